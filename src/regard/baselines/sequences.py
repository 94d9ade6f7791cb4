r"""Series, events and actions without a network.

Series are forecast by the seasonal naive forecast, and by exponential smoothing.

Holt, "Forecasting seasonals and trends by exponentially weighted moving averages" (1957); Winters, "Forecasting Sales
by Exponentially Weighted Moving Averages" (1960); Gardner and McKenzie, "Forecasting Trends in Time Series" (1985): the
damped trend. With a season of one step, smoothing is simple, or Holt's with a trend.

$$ l_t = \alpha (y_t - s_{t-m}) + (1 - \alpha)(l_{t-1} + \phi b_{t-1}), \quad
   b_t = \beta (l_t - l_{t-1}) + (1 - \beta) \phi b_{t-1}, \quad
   s_t = \gamma (y_t - l_t) + (1 - \gamma) s_{t-m} $$

Each window is smoothed on its own, from its first step to its last; the three weights are chosen once, by the error of
forecasts within the training part.

Events have constant rates, a homogeneous Poisson process for each event, or rates that depend on the last event, a
Markov chain whose times are exponential. Both are fitted exactly: the rate of an event is its number divided by the
time in which it could have happened.

Actions are those of a linear policy of the current observation, by behavior cloning.

Dimensions: `windows`, `time` steps that are read, `horizon` steps that are forecast, `columns` of numbers; `last`
event, or the start, `events` kinds of events; `steps`, `features` of an observation, `outputs`: scores of actions, or
the numbers of an action.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float

from regard.baselines.baseline import Baseline, BaselinePredictions
from regard.data.codecs.episodes import EncodedSteps

PointForecast = Callable[[Float[np.ndarray, "windows time columns"]], Float[np.ndarray, "windows horizon columns"]]

_LEVELS, _TRENDS, _SEASONS = (0.05, 0.2, 0.5, 0.9), (0.0, 0.05), (0.0, 0.1, 0.3)
"""Weights alpha, beta and gamma among which the best are chosen."""
_DAMPING = 0.98
_PRIOR = 0.5
"""Added to each number of events, so that none is impossible."""
_MOST_STEPS = 50_000
"""Steps that are enough to fit a linear policy."""
_SEED = 0


@dataclass(frozen=True)
class SmoothingWeights:
    """The weights of the newest value in the level, the trend and the season."""

    level: float
    trend: float
    season: float


@dataclass(frozen=True, kw_only=True)
class SeriesBaseline(Baseline):
    """A baseline that forecasts many windows at once."""

    forecast: PointForecast
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


@dataclass(frozen=True, kw_only=True)
class EventBaseline(Baseline):
    """A baseline with a rate of each event after each event."""

    rates: Float[np.ndarray, "last events"]


def count_transitions(
    histories: Iterable[tuple[Sequence[int], Sequence[float]]], num_events: int
) -> tuple[Float[np.ndarray, "last events"], Float[np.ndarray, " last"]]:
    """How often each event followed each, and the time that was spent after each.

    Args:
        histories: Kinds of events, from 1, with 0 for the start and the end, and the gap before each.
        num_events: Kinds of events.

    Example:
        >>> counts, exposure = count_transitions([([0, 1, 2, 0], [0.0, 1.0, 3.0, 2.0])], 2)
        >>> counts.tolist(), exposure.tolist()
        ([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [1.0, 3.0, 2.0])
    """
    counts, exposure = np.zeros((num_events + 1, num_events + 1)), np.zeros(num_events + 1)
    for kinds, gaps in histories:
        last, following = np.asarray(kinds)[:-1], np.asarray(kinds)[1:]
        np.add.at(counts, (last, following), 1.0)
        np.add.at(exposure, last, np.asarray(gaps, np.float64)[1:])
    return counts[:, 1:], exposure


def poisson_rates(
    counts: Float[np.ndarray, "last events"], exposure: Float[np.ndarray, " last"]
) -> Float[np.ndarray, "last events"]:
    """The rate of each event, whatever came before."""
    rates = (counts.sum(axis=0) + _PRIOR) / exposure.sum()
    return np.repeat(rates[None], len(counts), axis=0)


def markov_rates(
    counts: Float[np.ndarray, "last events"], exposure: Float[np.ndarray, " last"]
) -> Float[np.ndarray, "last events"]:
    """The rate of each event after each event; a rare last event is drawn towards the rates of all."""
    common = poisson_rates(counts, exposure)
    mean_gap = exposure.sum() / counts.sum()
    return (counts + _PRIOR * common * mean_gap) / (exposure + _PRIOR * mean_gap)[:, None]


@dataclass(frozen=True)
class LinearPolicy(Baseline):
    """A baseline that chooses actions by observations alone."""

    act: Callable[[Float[np.ndarray, "steps features"]], Float[np.ndarray, "steps outputs"]] = lambda read: read
    """The scores of the actions, or the numbers of an action, from standardized observations."""


def fit_actions(steps: EncodedSteps, *, num_actions: int) -> LinearPolicy:
    """Fit logistic regression to actions that are integers, else ridge regression."""
    from sklearn.linear_model import LogisticRegression, Ridge  # imported here: it loads slowly

    chosen = np.arange(len(steps.returns))
    if len(chosen) > _MOST_STEPS:
        chosen = np.sort(np.random.default_rng(_SEED).choice(chosen, _MOST_STEPS, replace=False))
    read, actions = steps.observations[chosen], steps.actions[chosen]
    if not num_actions:
        linear = Ridge(alpha=1.0).fit(read, actions)
        name = "ridge regression on observations"
        act = lambda given: linear.predict(given).reshape(len(given), -1).astype(np.float32)  # noqa: E731  two cases
    elif len(np.unique(actions)) == 1:
        name, only = "the only action", np.eye(num_actions, dtype=np.float32)[actions[:1]]
        act = lambda given: np.repeat(only, len(given), axis=0)  # noqa: E731  as above
    else:
        classifier = LogisticRegression(max_iter=1_000).fit(read, actions)
        name, classes = "logistic regression on observations", classifier.classes_.astype(np.int64)

        def act(given: Float[np.ndarray, "steps features"]) -> Float[np.ndarray, "steps outputs"]:
            found = np.zeros((len(given), num_actions), np.float32)
            found[:, classes] = classifier.predict_proba(given)
            return found

    return LinearPolicy(name=name, predict=lambda inputs: BaselinePredictions(), act=act)
