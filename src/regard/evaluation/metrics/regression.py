"""Metrics of predicted numbers: correlations, the mean absolute and root mean squared error, the explained variance.

All but Spearman's correlation are functions of sums over rows.

Dimensions:
    examples    rows
    statistics  what is summed over them
    resamples   resampled test sets
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from regard.errors import ConfigError, DataError
from regard.evaluation.counts import Counts, check_equal_lengths, ratio
from regard.evaluation.intervals import CONFIDENCE, NUM_RESAMPLES, percentile_interval
from regard.evaluation.registry import PAIRS, Metric, on_pairs
from regard.evaluation.scores import Score

_DRAWS_AT_ONCE = 2**20  # bounds the memory of resampling to about 50 MB
_ROUNDING = 1e-12  # rounding error of a variance, relative to the squares that it is the difference of


def count_pearson(predictions: Sequence[float], references: Sequence[float]) -> Counts:
    """Pearson's correlation; 0 where either side is constant."""
    x, y = (values - values.mean() for values in _numbers(predictions, references))
    statistics = np.column_stack([np.ones(len(x)), x, y, x * x, y * y, x * y])
    return Counts(statistics=statistics, compute=_pearson)


def count_absolute_errors(predictions: Sequence[float], references: Sequence[float]) -> Counts:
    """The mean absolute error, in the unit of the data.

    Example:
        >>> count_absolute_errors([1.0, 2.0], [1.5, 4.0]).value
        1.25
    """
    x, y = _numbers(predictions, references)
    return Counts(statistics=np.column_stack([np.abs(x - y), np.ones(len(x))]), compute=ratio)


def count_rmse(predictions: Sequence[float], references: Sequence[float]) -> Counts:
    """The root mean squared error, in the unit of the references."""
    x, y = _numbers(predictions, references)
    statistics = np.column_stack([(x - y) ** 2, np.ones(len(x))])
    return Counts(statistics=statistics, compute=lambda sums: math.sqrt(sums[0] / sums[1]))


def count_r_squared(predictions: Sequence[float], references: Sequence[float]) -> Counts:
    r"""The explained share of the references' variance: $1 - \sum (y - \hat y)^2 / \sum (y - \bar y)^2$.

    Predicting their mean has 0, and worse predictions are negative. Where the
    references are constant it is 1 if all predictions equal them, else 0.
    """
    x, y = _numbers(predictions, references)
    centred = y - y.mean()
    statistics = np.column_stack([np.ones(len(y)), (x - y) ** 2, centred, centred * centred])
    return Counts(statistics=statistics, compute=_r_squared)


def score_spearman(
    predictions: Sequence[float], references: Sequence[float], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Score:
    """Spearman's correlation: Pearson's of the ranks, with mean ranks for ties; 0 where either side is constant.

    Ranks are not sums over rows: each resample is ranked again.

    Example:
        >>> round(score_spearman([1.0, 2.0, 4.0, 3.0], [1.0, 2.0, 3.0, 5.0]).value, 3)
        0.8
    """
    if num_resamples < 1 or seed < 0:
        raise ConfigError(f"num_resamples must be positive and seed not negative, got {num_resamples=} and {seed=}")
    x, y = _numbers(predictions, references)
    settings: dict[str, str | int | float] = {"n": len(x)}
    interval = None
    if len(x) == 1:
        settings |= {"interval": "none"}
    else:
        drawn = _drawn_counts(len(x), num_resamples, np.random.Generator(np.random.PCG64(seed)))
        scores = np.concatenate([_rank_correlations(x, y, counts) for counts in drawn])
        interval = percentile_interval(scores, CONFIDENCE)
        settings |= {"interval": "bootstrap", "confidence": CONFIDENCE, "resamples": num_resamples, "seed": seed}
    value = float(_rank_correlations(x, y, np.ones((1, len(x)), np.int64))[0])
    return Score(name="spearman", value=value, interval=interval, settings=settings)


PEARSON = Metric(
    name="pearson",
    label="Pearson correlation",
    label_in_text="Pearson correlation",
    counter=on_pairs(count_pearson),
)
SPEARMAN = Metric(
    name="spearman",
    label="Spearman correlation",
    label_in_text="Spearman correlation",
    scorer=lambda examples: score_spearman(*examples.require(*PAIRS)),
)
MEAN_ABSOLUTE_ERROR = Metric(
    name="mean_absolute_error",
    label="Mean absolute error",
    counter=on_pairs(count_absolute_errors),
    higher_is_better=False,
    digits=None,
)
RMSE = Metric(name="rmse", label="RMSE", counter=on_pairs(count_rmse), higher_is_better=False, digits=None)
R_SQUARED = Metric(name="r_squared", label="R squared", counter=on_pairs(count_r_squared))


def _pearson(sums: Float[np.ndarray, " statistics"]) -> float:
    rows, x, y, xx, yy, xy = sums
    spreads = rows * xx - x * x, rows * yy - y * y
    if spreads[0] <= _ROUNDING * rows * xx or spreads[1] <= _ROUNDING * rows * yy:
        return 0.0
    return float(np.clip((rows * xy - x * y) / math.sqrt(spreads[0] * spreads[1]), -1, 1))


def _r_squared(sums: Float[np.ndarray, " statistics"]) -> float:
    rows, errors, y, yy = sums
    spread = yy - y * y / rows
    if spread <= _ROUNDING * yy:
        return float(errors == 0)
    return float(1 - errors / spread)


def _drawn_counts(
    num_rows: int, num_resamples: int, rng: np.random.Generator
) -> Iterator[Int[np.ndarray, "resamples examples"]]:
    """The number of times that each row is drawn, for some resamples at a time."""
    at_once = max(1, _DRAWS_AT_ONCE // num_rows)
    for start in range(0, num_resamples, at_once):
        size = min(at_once, num_resamples - start)
        draws = rng.integers(num_rows, size=(size, num_rows)) + num_rows * np.arange(size)[:, None]
        yield np.bincount(draws.ravel(), minlength=size * num_rows).reshape(size, num_rows)


def _rank_correlations(
    x: Float[np.ndarray, " examples"], y: Float[np.ndarray, " examples"], counts: Int[np.ndarray, "resamples examples"]
) -> Float[np.ndarray, " resamples"]:
    """Spearman's correlation where row i occurs `counts[i]` times."""
    middle = (len(x) + 1) / 2
    ranks = [_ranks(values, counts) - middle for values in (x, y)]
    xx, yy, xy = ((counts * a * b).sum(axis=1) for a, b in ((ranks[0],) * 2, (ranks[1],) * 2, ranks))
    return xy / np.sqrt(np.where(xx * yy == 0, 1, xx * yy))


def _ranks(
    values: Float[np.ndarray, " examples"], counts: Int[np.ndarray, "resamples examples"]
) -> Float[np.ndarray, "resamples examples"]:
    """The mean rank, from 1, of each value where value i occurs `counts[i]` times."""
    distinct, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    firsts = np.searchsorted(group[order], np.arange(len(distinct)))
    sizes = np.add.reduceat(counts[:, order], firsts, axis=1)
    return (sizes.cumsum(axis=1) - sizes + (sizes + 1) / 2)[:, group]


def _numbers(
    predictions: Sequence[float], references: Sequence[float]
) -> tuple[Float[np.ndarray, " examples"], Float[np.ndarray, " examples"]]:
    check_equal_lengths(predictions, references)
    arrays = np.asarray(predictions, np.float64), np.asarray(references, np.float64)
    for what, values in zip(("predictions", "references"), arrays, strict=True):
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise DataError(f"{what} must be finite, got {values[row]} for row {row}")
    return arrays
