"""Event processes without a network: constant rates of events, or rates that depend on the last event.

The first is a homogeneous Poisson process for each event; the second a Markov chain whose times are exponential. Both
are fitted exactly: the rate of an event is its number divided by the time in which it could have happened.

Dimensions: `last` event, or the start, `events` kinds of events.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from regard.baselines.baseline import Baseline

_PRIOR = 0.5
"""Added to each number of events, so that none is impossible."""


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
