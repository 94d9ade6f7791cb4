"""Scores of predicted numbers: correlations, the size of errors, and the variance explained.

What every row adds to a score is counted apart, as in `tallies`, ranks excepted.

Dimensions:
    examples    rows
    statistics  what is summed over them
    resamples   test sets drawn
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from regard.errors import ConfigError, DataError
from regard.evaluation.bootstrap import CONFIDENCE, NUM_RESAMPLES
from regard.evaluation.metrics import score_tally
from regard.evaluation.scores import Score
from regard.evaluation.tallies import Tally

_DRAWS_AT_ONCE = 2**20  # bounds the memory of resampling to some 50 MB
_ROUNDING = 1e-12  # of a variance beside the squares that it is the difference of


def score_numbers(predictions: Sequence[float], references: Sequence[float]) -> list[Score]:
    """Pearson's and Spearman's correlation, the root of the mean squared error, and the variance explained.

    Example:
        >>> for score in score_numbers([1.0, 2.0, 4.0, 3.0], [1.0, 2.0, 3.0, 5.0]):
        ...     print(score.name, round(score.value, 3))
        pearson 0.68
        spearman 0.8
        rmse 1.118
        r_squared 0.429
    """
    pearson, rmse, r_squared = (make(predictions, references) for make in (tally_pearson, tally_rmse, tally_r_squared))
    return [score_tally(pearson), spearman(predictions, references), score_tally(rmse), score_tally(r_squared)]


def tally_pearson(predictions: Sequence[float], references: Sequence[float]) -> Tally:
    """Pearson's correlation: how near the pairs lie to a rising straight line; 0 where either side is constant."""
    x, y = (values - values.mean() for values in _numbers(predictions, references))
    statistics = np.column_stack([np.ones(len(x)), x, y, x * x, y * y, x * y])
    return Tally(name="pearson", statistics=statistics, compute=_pearson, settings={})


def tally_rmse(predictions: Sequence[float], references: Sequence[float]) -> Tally:
    """The root of the mean squared error, in the unit of the references."""
    x, y = _numbers(predictions, references)
    statistics = np.column_stack([(x - y) ** 2, np.ones(len(x))])
    value = math.sqrt(statistics[:, 0].mean())
    return Tally(
        name="rmse",
        statistics=statistics,
        compute=lambda sums: math.sqrt(sums[0] / sums[1]),
        settings={},
        digits=max(3, 2 - math.floor(math.log10(value))) if value else 3,
    )


def tally_r_squared(predictions: Sequence[float], references: Sequence[float]) -> Tally:
    r"""The share of the references' variance that is explained: $1 - \sum (y - \hat y)^2 / \sum (y - \bar y)^2$.

    0 is what their mean would have, and worse predictions lie below. Where the
    references are constant it is 1 if all are met, else 0.
    """
    x, y = _numbers(predictions, references)
    centred = y - y.mean()
    statistics = np.column_stack([np.ones(len(y)), (x - y) ** 2, centred, centred * centred])
    return Tally(name="r_squared", statistics=statistics, compute=_r_squared, settings={})


def spearman(
    predictions: Sequence[float], references: Sequence[float], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Score:
    """Spearman's correlation: Pearson's of the ranks, of which equal values share the mean; 0 where either is constant.

    Ranks are no sums over rows: each resample is ranked anew.
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
        low, high = np.quantile(scores, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        interval = (float(low), float(high))
        settings |= {"interval": "bootstrap", "confidence": CONFIDENCE, "resamples": num_resamples, "seed": seed}
    value = float(_rank_correlations(x, y, np.ones((1, len(x)), np.int64))[0])
    return Score(name="spearman", value=value, interval=interval, settings=settings)


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
    """How often each row was drawn, for some resamples at a time."""
    at_once = max(1, _DRAWS_AT_ONCE // num_rows)
    for start in range(0, num_resamples, at_once):
        size = min(at_once, num_resamples - start)
        draws = rng.integers(num_rows, size=(size, num_rows)) + num_rows * np.arange(size)[:, None]
        yield np.bincount(draws.ravel(), minlength=size * num_rows).reshape(size, num_rows)


def _rank_correlations(
    x: Float[np.ndarray, " examples"], y: Float[np.ndarray, " examples"], counts: Int[np.ndarray, "resamples examples"]
) -> Float[np.ndarray, " resamples"]:
    """Spearman's correlation where each row occurs so many times."""
    middle = (len(x) + 1) / 2
    ranks = [_ranks(values, counts) - middle for values in (x, y)]
    xx, yy, xy = ((counts * a * b).sum(axis=1) for a, b in ((ranks[0],) * 2, (ranks[1],) * 2, ranks))
    return xy / np.sqrt(np.where(xx * yy == 0, 1, xx * yy))


def _ranks(
    values: Float[np.ndarray, " examples"], counts: Int[np.ndarray, "resamples examples"]
) -> Float[np.ndarray, "resamples examples"]:
    """The mean rank of each value where it occurs so many times, counted from 1."""
    distinct, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    firsts = np.searchsorted(group[order], np.arange(len(distinct)))
    sizes = np.add.reduceat(counts[:, order], firsts, axis=1)
    return (sizes.cumsum(axis=1) - sizes + (sizes + 1) / 2)[:, group]


def _numbers(
    predictions: Sequence[float], references: Sequence[float]
) -> tuple[Float[np.ndarray, " examples"], Float[np.ndarray, " examples"]]:
    arrays = np.asarray(predictions, np.float64), np.asarray(references, np.float64)
    if len(arrays[0]) != len(arrays[1]) or len(arrays[0]) == 0:
        told = f"got {len(predictions)} and {len(references)}"
        raise DataError(f"predictions and references must be equally many and at least one, {told}")
    for what, values in zip(("predictions", "references"), arrays, strict=True):
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise DataError(f"{what} must be finite, got {values[row]} for row {row}")
    return arrays
