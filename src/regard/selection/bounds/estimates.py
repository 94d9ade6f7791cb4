r"""Intervals for scores without a known range: estimates by the bootstrap, which are not bounds.

If a loss can be arbitrarily large with arbitrarily small probability, no finite
number of examples bounds its mean. An estimate holds approximately, for many
examples and tails that are not too heavy.

Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapter 13.
Chernozhukov, Chetverikov and Kato, "Gaussian Approximations and Multiplier Bootstrap for Maxima of Sums of
High-Dimensional Random Vectors" (2013). https://arxiv.org/abs/1212.6906
"""

import math

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError, DataError
from regard.evaluation.intervals import resampled_sums
from regard.selection.bounds.bound import DELTA, Bound, Side, check_arguments, largest_distance, log_tail

_FEWEST_BEYOND = 10
"""With fewer resamples beyond an end, the quantile is too noisy."""


def bootstrap_estimate(
    values: Float[np.ndarray, " examples"],
    *,
    num_candidates: int = 1,
    delta: float = DELTA,
    side: Side = "both",
    num_resamples: int = 10_000,
    seed: int = 0,
) -> Bound:
    r"""An approximate interval for the true mean of a score without a range, for one selected among $M$.

    The ends are the $\delta / 2M$ and $1 - \delta / 2M$ quantiles of the means of
    resamples. Where fewer than ten resamples lie beyond such a quantile, they
    are the corresponding quantiles of a normal distribution with the standard error
    of the resamples; the statement names the method.

    It holds as $N$ grows, for fixed $M$ and scores with a finite variance. It covers
    less often than stated with few examples, with heavy tails, and for large $M$,
    which depends on the far tails of the mean, the least known part.

    Args:
        values: The score of each example, for the selected candidate.
        num_candidates: The number of candidates it was selected from.
        delta: The approximate probability of failure.
        side: Which ends are estimated.
        num_resamples: The number of resampled sets of examples.
        seed: Seed of the resampling.

    Example:
        >>> losses = np.random.default_rng(0).exponential(size=400)
        >>> estimate = bootstrap_estimate(losses, num_candidates=20)
        >>> estimate.is_estimate, estimate.lower < 1.0 < estimate.upper
        (True, True)
    """
    log_share = log_tail(num_candidates, delta, side)
    values = _checked(values[:, None], num_resamples, seed)[:, 0]
    rng = np.random.Generator(np.random.PCG64(seed))
    means = np.array([float(row[0]) for row in resampled_sums(values[:, None], num_resamples, rng)]) / len(values)
    value, share = float(values.mean()), math.exp(log_share)
    if share * num_resamples >= _FEWEST_BEYOND:
        lower, upper = (float(end) for end in np.quantile(means, [share, 1 - share]))
        how = f"quantiles of {num_resamples:,} resamples"
    else:
        from scipy.special import ndtri_exp

        distance = -float(ndtri_exp(log_share)) * float(means.std(ddof=1))
        lower, upper = value - distance, value + distance
        how = f"a normal distribution with the standard error of {num_resamples:,} resamples"
    return _estimate("bootstrap", how, value, (lower, upper), len(values), num_candidates, delta, side)


def bootstrap_estimate_of_all(
    values: Float[np.ndarray, "examples candidates"],
    selected: int,
    *,
    delta: float = DELTA,
    num_resamples: int = 1_000,
    seed: int = 0,
) -> Bound:
    r"""The same from the scores of all $M$ candidates, which accounts for their similarity.

    $$ \varepsilon = q_{1-\delta}\Big( \max_i |\hat\mu^*_i - \hat\mu_i| \Big) $$

    over resamples of the examples, the same for all candidates: the largest
    error of any of them bounds what a selection can exploit. Where the candidates
    mostly make the same errors, it is hardly wider than for one. It holds
    approximately, as above; $M$ may be larger than $N$ (Chernozhukov et al. 2013).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> similar = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 50))
        >>> different = rng.normal(size=(300, 50))
        >>> bootstrap_estimate_of_all(similar, 0).epsilon < 0.7 * bootstrap_estimate_of_all(different, 0).epsilon
        True
    """
    values = _checked(values, num_resamples, seed)
    num_examples, num_candidates = values.shape
    check_arguments(delta=delta)
    if not 0 <= selected < num_candidates:
        raise ConfigError(f"selected must be one of the candidates 0 to {num_candidates - 1}, got {selected}")
    rng = np.random.Generator(np.random.PCG64(seed))
    centred = values - values.mean(axis=0)
    largest = [float(np.abs(row).max()) / num_examples for row in resampled_sums(centred, num_resamples, rng)]
    epsilon, value = float(np.quantile(largest, 1 - delta)), float(values[:, selected].mean())
    how = f"the largest error of any candidate in {num_resamples:,} resamples"
    ends = (value - epsilon, value + epsilon)
    return _estimate("bootstrap of all", how, value, ends, num_examples, num_candidates, delta, "both")


def _checked(
    values: Float[np.ndarray, "examples candidates"], num_resamples: int, seed: int
) -> Float[np.ndarray, "examples candidates"]:
    if num_resamples < 100 or seed < 0:
        raise ConfigError(f"num_resamples must be at least 100 and seed not negative, got {num_resamples=} and {seed=}")
    if values.ndim != 2 or len(values) < 2 or not np.isfinite(values).all():
        raise DataError(f"a bootstrap needs the finite scores of at least 2 examples, got the shape {values.shape}")
    return values.astype(np.float64)


def _estimate(
    name: str,
    how: str,
    value: float,
    ends: tuple[float, float],
    num_examples: int,
    num_candidates: int,
    delta: float,
    side: Side,
) -> Bound:
    return Bound(
        name=name,
        statement=f"an estimate, not a bound: for many examples the true mean of the one selected among "
        f"{num_candidates:,} lies in the interval with a probability of about {1 - delta:.6g}; by {how}",
        value=value,
        lower=-math.inf if side == "upper" else ends[0],
        upper=math.inf if side == "lower" else ends[1],
        epsilon=largest_distance(value, ends, side),
        num_candidates=num_candidates,
        num_examples=num_examples,
        delta=delta,
        side=side,
        is_estimate=True,
    )
