"""Confidence intervals: how far a score on a test set can be from the score on all such data.

    bootstrap_interval   any score that is a function of per-example statistics summed over the test set
    clopper_pearson      proportions; exact
    mean_interval        the mean of a few independent runs, by Student's t

Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapter 13.
Clopper and Pearson, "The Use of Confidence or Fiducial Limits Illustrated in
the Case of the Binomial", Biometrika 26 (1934).
Student, "The Probable Error of a Mean", Biometrika 6 (1908).

Dimensions:
    examples    independent draws: sentences, sequences, documents
    statistics  what is counted for each example, such as matches and lengths
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Real

from regard.errors import ConfigError, DataError

Interval = tuple[float, float, float]
"""A mean, and the lower and upper end of its interval."""

CONFIDENCE = 0.95
NUM_RESAMPLES = 1000

_DRAWS_AT_ONCE = 2**20  # bounds the memory of resampling to about 25 MB


def bootstrap_interval(
    statistics: Real[np.ndarray, "examples statistics"],
    compute: Callable[[Float[np.ndarray, " statistics"]], float],
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    r"""The percentile bootstrap interval of a score computed from summed statistics.

    With $s_i$ the statistics of example $i$ and $f$ the score,

    $$ \hat\theta^*_b = f\Big(\sum_{i=1}^n s_{I_{b,i}}\Big), \qquad I_{b,i} \sim \text{uniform}\{1, \dots, n\} $$

    for $b = 1, \dots, B$, and the interval runs from the $\alpha/2$ to the
    $1 - \alpha/2$ quantile of the $\hat\theta^*_b$, where $1 - \alpha$ is the
    confidence (Efron and Tibshirani 1993, equation 13.5).

    It holds asymptotically: when the examples are independent draws from one
    distribution, when $f$ is smooth in the mean of the $s_i$, and as $n$ grows,
    the interval covers the true score with probability tending to $1 - \alpha$.
    It covers less often with few examples (below about fifty), with a score that
    a few examples determine, or with sentences of the same documents: then
    resample documents. When every example has the same statistics, the interval
    is a single point, which is not certainty: for proportions use `clopper_pearson`.

    Args:
        statistics: One row per example. Integers below 2**53 are summed exactly.
        compute: The score, from the sum of the rows. It is called once per
            resample, and must be finite for every resample.
        confidence: Probability $1 - \alpha$ with which the interval should cover.
        num_resamples: The number of resampled test sets, $B$.
        seed: Seed of the resampling; equal seeds give equal intervals.

    Returns:
        The lower and the upper end.

    Raises:
        DataError: If there are fewer than two examples.
        ConfigError: If an argument lies outside its range.

    Example:
        >>> lengths_and_ones = np.array([[3, 1], [5, 1], [4, 1], [8, 1]])
        >>> bootstrap_interval(lengths_and_ones, lambda sums: sums[0] / sums[1])
        (3.5, 7.0)
    """
    _check_confidence(confidence)
    if num_resamples < 1 or seed < 0:
        raise ConfigError(f"num_resamples must be positive and seed not negative, got {num_resamples=} and {seed=}")
    if statistics.ndim != 2 or len(statistics) < 2:
        raise DataError(f"statistics must be a table of at least 2 examples, got the shape {statistics.shape}")
    rng = np.random.Generator(np.random.PCG64(seed))
    sums = resampled_sums(statistics.astype(np.float64), num_resamples, rng)
    return percentile_interval(np.array([compute(row) for row in sums]), confidence)


def percentile_interval(scores: Float[np.ndarray, " resamples"], confidence: float) -> tuple[float, float]:
    r"""The $\alpha/2$ and $1 - \alpha/2$ quantiles, where $1 - \alpha$ is the confidence."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(scores, [tail, 1 - tail])
    return float(low), float(high)


def clopper_pearson(num_successes: int, num_examples: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    r"""The exact interval of a proportion, by inverting the binomial test.

    With $k$ successes in $n$ examples and $B(q; a, b)$ the $q$ quantile of the
    beta distribution,

    $$ \big[\, B(\alpha/2;\; k,\; n - k + 1),\;\; B(1 - \alpha/2;\; k + 1,\; n - k) \,\big] $$

    where the lower end is 0 for $k = 0$ and the upper end is 1 for $k = n$
    (Clopper and Pearson 1934).

    For every $n$ and every true proportion the interval covers it with
    probability at least $1 - \alpha$, so it is slightly too wide rather than too
    narrow. It holds when the examples are independent draws from one
    distribution, and the model was fixed before they were seen.

    It is informative at the ends, too: for $n$ successes of $n$ the lower end is
    below 1, where a bootstrap gives [1, 1].

    Args:
        num_successes: The number of right examples, $k$.
        num_examples: The number of examples, $n$.
        confidence: Probability $1 - \alpha$ with which the interval covers, at least.

    Returns:
        The lower and the upper end, in [0, 1].

    Raises:
        ConfigError: If an argument lies outside its range.

    Example:
        >>> low, high = clopper_pearson(100, 100)
        >>> round(low, 4), high
        (0.9638, 1.0)
    """
    from scipy.special import betaincinv  # imported here: scipy loads slowly, and a prediction does not need it

    _check_confidence(confidence)
    if num_examples < 1 or not 0 <= num_successes <= num_examples:
        raise ConfigError(
            f"0 <= num_successes <= num_examples and num_examples >= 1 must hold, got {num_successes=} and "
            f"{num_examples=}"
        )
    tail = (1 - confidence) / 2
    num_failures = num_examples - num_successes
    low = 0.0 if num_successes == 0 else float(betaincinv(num_successes, num_failures + 1, tail))
    high = 1.0 if num_failures == 0 else float(betaincinv(num_successes + 1, num_failures, 1 - tail))
    return low, high


def mean_interval(values: Sequence[float] | Any, *, confidence: float = CONFIDENCE) -> Interval:
    r"""The mean of independent runs with its interval, $\bar x \pm t_{n-1} s / \sqrt n$ (Student 1908).

    Exact for normally distributed values, approximate for the mean of many others,
    and wide for few. For a single run both ends are NaN: one run does not show how
    much runs vary.

    Args:
        values: One number for each run; a list, an array or a tensor.
        confidence: The probability with which the interval covers the mean over all runs.

    Example:
        >>> mean, low, high = mean_interval([1.0, 2.0, 3.0])
        >>> f"{mean:.2f} [{low:.2f}, {high:.2f}]"
        '2.00 [-0.48, 4.48]'
    """
    from scipy.special import stdtrit  # imported here, since scipy loads slowly

    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    if len(sample) < 2:
        return mean, math.nan, math.nan
    half_width = float(stdtrit(len(sample) - 1, 0.5 + confidence / 2) * sample.std(ddof=1)) / math.sqrt(len(sample))
    return mean, mean - half_width, mean + half_width


def resampled_sums(
    statistics: Float[np.ndarray, "examples statistics"], num_resamples: int, rng: np.random.Generator
) -> Iterator[Float[np.ndarray, " statistics"]]:
    """For each resample, `statistics[rng.integers(n, size=n)].sum(axis=0)`.

    Counting how often each example is drawn turns many such sums into one matrix
    product, with the same stream of random numbers.
    """
    n = len(statistics)
    resamples_at_once = max(1, _DRAWS_AT_ONCE // n)
    for start in range(0, num_resamples, resamples_at_once):
        size = min(resamples_at_once, num_resamples - start)
        draws = rng.integers(n, size=(size, n))
        draws += n * np.arange(size)[:, None]
        counts = np.bincount(draws.ravel(), minlength=size * n).reshape(size, n)
        yield from counts @ statistics


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence must be in (0, 1), got {confidence}")
