r"""Forecasts without a network: the seasonal naive forecast, and exponential smoothing.

Holt, "Forecasting seasonals and trends by exponentially weighted moving averages" (1957); Winters, "Forecasting Sales
by Exponentially Weighted Moving Averages" (1960); Gardner and McKenzie, "Forecasting Trends in Time Series" (1985): the
damped trend. With a season of one step, smoothing is simple, or Holt's with a trend.

$$ l_t = \alpha (y_t - s_{t-m}) + (1 - \alpha)(l_{t-1} + \phi b_{t-1}), \quad
   b_t = \beta (l_t - l_{t-1}) + (1 - \beta) \phi b_{t-1}, \quad
   s_t = \gamma (y_t - l_t) + (1 - \gamma) s_{t-m} $$

Each window is smoothed on its own, from its first step to its last; the three weights are chosen once, by the error of
forecasts within the training part.

Dimensions: `windows`, `time` steps that are read, `horizon` steps that are forecast, `columns` of numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float

from regard.baselines.baseline import Baseline

Forecaster = Callable[[Float[np.ndarray, "windows time columns"]], Float[np.ndarray, "windows horizon columns"]]

_LEVELS, _TRENDS, _SEASONS = (0.05, 0.2, 0.5, 0.9), (0.0, 0.05), (0.0, 0.1, 0.3)
"""Weights alpha, beta and gamma among which the best are chosen."""
_DAMPING = 0.98


@dataclass(frozen=True)
class SmoothingWeights:
    """The weights of the newest value in the level, the trend and the season."""

    level: float
    trend: float
    season: float


@dataclass(frozen=True, kw_only=True)
class SeriesBaseline(Baseline):
    """A baseline that forecasts many windows at once."""

    forecast: Forecaster
    residuals: Float[np.ndarray, "windows horizon columns"]
    """Its errors on windows of the training part, whose quantiles are added to its forecasts."""


def seasonal_naive(
    values: Float[np.ndarray, "windows time columns"], *, horizon: int, season: int
) -> Float[np.ndarray, "windows horizon columns"]:
    """The last season again and again; the last value where there is none.

    Example:
        >>> seasonal_naive(np.array([[[9.0], [1.0], [2.0]]]), horizon=3, season=2)[0, :, 0].tolist()
        [1.0, 2.0, 1.0]
    """
    season = min(season, values.shape[1])
    places = values.shape[1] - season + np.arange(horizon) % season
    return values[:, places]


def exponential_smoothing(
    values: Float[np.ndarray, "windows time columns"], weights: SmoothingWeights, *, horizon: int, season: int
) -> Float[np.ndarray, "windows horizon columns"]:
    """The forecast of a level, a damped trend and an additive season."""
    length = values.shape[1]
    season = season if 2 * season <= length else 1
    first = values[:, :season]
    level, trend = first.mean(axis=1), np.zeros_like(values[:, 0])
    seasons = first - level[:, None] if season > 1 else np.zeros_like(first)
    for step in range(season, length):
        value, place = values[:, step], step % season
        before, expected = level, level + _DAMPING * trend
        level = weights.level * (value - seasons[:, place]) + (1 - weights.level) * expected
        trend = weights.trend * (level - before) + (1 - weights.trend) * _DAMPING * trend
        if season > 1:
            seasons[:, place] = weights.season * (value - level) + (1 - weights.season) * seasons[:, place]
    damping = np.cumsum(_DAMPING ** np.arange(1, horizon + 1))
    repeated = seasons[:, (length + np.arange(horizon)) % season]
    return level[:, None] + damping[:, None] * trend[:, None] + repeated


def choose_weights(
    values: Float[np.ndarray, "windows time columns"], targets: Float[np.ndarray, "windows horizon columns"],
    *, season: int,
) -> SmoothingWeights:  # fmt: skip
    """The weights with the smallest squared error on some windows."""
    horizon = targets.shape[1]
    candidates = [SmoothingWeights(*each) for each in product(_LEVELS, _TRENDS, _SEASONS if season > 1 else (0.0,))]

    def error(weights: SmoothingWeights) -> float:
        found = exponential_smoothing(values, weights, horizon=horizon, season=season)
        return float(((found - targets) ** 2).mean())

    return min(candidates, key=error)
