r"""How far a mean can be off where scores have no known range: estimates by the bootstrap, which are no bounds.

A loss that can be arbitrarily large, with a chance that can be arbitrarily
small, lets no finite number of examples say anything for certain of its mean.
What remains holds about, for many examples and tails that are not too heavy.

Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapter 13.
Chernozhukov, Chetverikov and Kato, "Gaussian Approximations and Multiplier Bootstrap for Maxima of Sums of
High-Dimensional Random Vectors" (2013). https://arxiv.org/abs/1212.6906
"""

import math

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError, DataError
from regard.evaluation.bootstrap import resampled_sums
from regard.selection.bound_record import DELTA, Bound, Side, check, log_tail, reach

NUM_RESAMPLES = 10_000

_FEWEST_BEYOND = 10
"""Resamples beyond an end, below which the end is more luck than quantile."""


def bootstrap(
    values: Float[np.ndarray, " examples"],
    *,
    num_hypotheses: int = 1,
    delta: float = DELTA,
    side: Side = "both",
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Bound:
    r"""Where the true mean of a score without a range lies, about: an estimate, for the one chosen among $M$.

    The ends are the $\delta / 2M$ and $1 - \delta / 2M$ quantiles of the means of
    resamples. Where fewer than ten resamples lie beyond such a quantile, they
    are the mean and so many standard errors of the resamples as a normal
    distribution has there; the statement says which.

    It holds as $N$ grows, $M$ being fixed, for scores with a variance. It covers
    less than it says with few examples, with heavy tails, and for large $M$,
    where the far tails of the mean must be right, and are what is known least.

    Args:
        values: The score of each example, for the hypothesis that was chosen.
        num_hypotheses: Among how many it was chosen.
        delta: The chance of being wrong, about.
        side: Which ends are asked for.
        num_resamples: How many sets of examples are drawn.
        seed: Of the draws.

    Example:
        >>> losses = np.random.default_rng(0).exponential(size=400)
        >>> estimate = bootstrap(losses, num_hypotheses=20)
        >>> estimate.is_estimate, estimate.lower < 1.0 < estimate.upper
        (True, True)
    """
    log_share = log_tail(num_hypotheses, delta, side)
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
    return _estimate("bootstrap", how, value, (lower, upper), len(values), num_hypotheses, delta, side)


def bootstrap_of_all(
    values: Float[np.ndarray, "examples hypotheses"],
    chosen: int,
    *,
    delta: float = DELTA,
    num_resamples: int = 1_000,
    seed: int = 0,
) -> Bound:
    r"""The same from the scores of all $M$ hypotheses, which says how alike they are.

    $$ \varepsilon = q_{1-\delta}\Big( \max_i |\hat\mu^*_i - \hat\mu_i| \Big) $$

    over resamples of the examples, the same for all hypotheses: the largest
    error of any of them is what a choice can exploit. Where the hypotheses
    make mostly the same mistakes, it is hardly wider than for one. It holds
    about, as above; $M$ may be larger than $N$ (Chernozhukov et al. 2013).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> alike = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 50))
        >>> apart = rng.normal(size=(300, 50))
        >>> bootstrap_of_all(alike, 0).epsilon < 0.7 * bootstrap_of_all(apart, 0).epsilon
        True
    """
    values = _checked(values, num_resamples, seed)
    num_examples, num_hypotheses = values.shape
    check(delta=delta)
    if not 0 <= chosen < num_hypotheses:
        raise ConfigError(f"chosen must be one of the hypotheses 0 to {num_hypotheses - 1}, got {chosen}")
    rng = np.random.Generator(np.random.PCG64(seed))
    centred = values - values.mean(axis=0)
    largest = [float(np.abs(row).max()) / num_examples for row in resampled_sums(centred, num_resamples, rng)]
    epsilon, value = float(np.quantile(largest, 1 - delta)), float(values[:, chosen].mean())
    how = f"the largest error of any hypothesis in {num_resamples:,} resamples"
    ends = (value - epsilon, value + epsilon)
    return _estimate("bootstrap of all", how, value, ends, num_examples, num_hypotheses, delta, "both")


def _checked(
    values: Float[np.ndarray, "examples hypotheses"], num_resamples: int, seed: int
) -> Float[np.ndarray, "examples hypotheses"]:
    if num_resamples < 100 or seed < 0:
        raise ConfigError(f"num_resamples must be at least 100 and seed not negative, got {num_resamples=} and {seed=}")
    if values.ndim != 2 or len(values) < 2 or not np.isfinite(values).all():
        raise DataError(f"a bootstrap needs at least 2 examples, all of them finite, got the shape {values.shape}")
    return values.astype(np.float64)


def _estimate(
    name: str,
    how: str,
    value: float,
    ends: tuple[float, float],
    num_examples: int,
    num_hypotheses: int,
    delta: float,
    side: Side,
) -> Bound:
    return Bound(
        name=name,
        statement=f"an estimate, not a bound: for many examples the true mean of the one chosen among "
        f"{num_hypotheses:,} lies there with a probability of about {1 - delta:.6g}; by {how}",
        value=value,
        lower=-math.inf if side == "upper" else ends[0],
        upper=math.inf if side == "lower" else ends[1],
        epsilon=reach(value, ends, side),
        num_hypotheses=num_hypotheses,
        num_examples=num_examples,
        delta=delta,
        side=side,
        is_estimate=True,
    )
