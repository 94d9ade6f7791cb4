"""Histories of events: kinds of events by number, gaps in units of their mean, and standardized values.

Gaps are stored as the two halves of a float32, and values as float16: a store has numbers of 16 bits.

Dimensions: `events` of a subject, `columns` of numbers.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from regard.data.codecs.codec import Codec, checked_codec
from regard.data.formats.events import parse_history
from regard.data.formats.messages import format_names
from regard.errors import DataError
from regard.files import load_json

_HORIZON_QUANTILES = (0.25, 0.5, 0.75)
_NUM_SCALES = 16
LARGEST_VALUE = 1e3
"""The largest standardized value; larger ones are clipped."""
_LARGEST_MEMORY = 0.99


@dataclass(frozen=True)
class EncodedHistory:
    """A history as arrays; its first entry is the start, or the event that it starts with."""

    kinds: NDArray[np.int64]
    """From 1; 0 for the start and the end."""
    gaps: NDArray[np.float32]
    """Since the entry before, in units of the mean gap."""
    values: Float[np.ndarray, "events columns"]
    """Standardized, as float16; NaN where a number is missing."""


@dataclass(frozen=True)
class EventCodec(Codec):
    """What is known of events by the training subjects."""

    events: tuple[str, ...] = ()
    """The most frequent one first."""
    counts: tuple[int, ...] = ()
    unit: str = ""
    """The unit of times; empty for numbers."""
    scale: float = 1.0
    """The mean gap between events."""
    resolution: float = 1e-6
    """The smallest positive gap."""
    gap_quantiles: tuple[float, ...] = ()
    """Quantiles of the gaps in units of their mean, at equal distances: initial scales of a mixture."""
    horizons: tuple[float, ...] = ()
    """Quantiles of the gaps, rounded: default horizons of risks."""
    values: tuple[str, ...] = ()
    """The columns of numbers."""
    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()
    value_shares: tuple[float, ...] = ()
    """For each event and each column, by which values of simulated events are drawn: how many events have a value."""
    value_means: tuple[float, ...] = ()
    """The mean, the standard deviation, and the correlation with the value of the last event of the same kind."""
    value_stds: tuple[float, ...] = ()
    value_memories: tuple[float, ...] = ()

    @classmethod
    def fit(cls, histories: Iterable[str], *, unit: str, values: Sequence[str]) -> Self:
        """Count events, and compute statistics of gaps and values."""
        counts, gaps, numbers = Counter[str](), [], []
        by_event: dict[str, list[list[float]]] = {}
        nothing = [math.nan] * len(values)
        for text in histories:
            times, events, found = parse_history(text, len(values))
            last: dict[str, list[float]] = {}
            for event, some in zip(events, found, strict=True):
                if event is not None and values:
                    by_event.setdefault(event, []).append([*last.get(event, nothing), *some])
                    last[event] = some
            counts.update(event for event in events if event is not None)
            gaps += [after - now for now, after, event in zip(times, times[1:], events[1:], strict=False) if event]
            numbers += found
        positive = np.array([gap for gap in gaps if gap > 0])
        if not len(positive):
            raise DataError("no subject has an event after its start, so there is nothing to learn")
        table = np.array(numbers, np.float64).reshape(len(numbers), len(values))
        known = [column[np.isfinite(column)] for column in table.T]
        ordered = sorted(counts, key=lambda event: (-counts[event], event))
        scale = float(np.mean(positive))
        means = [float(column.mean()) if len(column) else 0.0 for column in known]
        stds = [float(column.std()) or 1.0 if len(column) else 1.0 for column in known]
        statistics = [
            _autoregression((np.array(by_event[event]).reshape(-1, 2, len(values)) - means) / stds)
            for event in (ordered if values else [])
        ]
        drawn = np.concatenate(statistics, axis=1) if statistics else np.zeros((4, 0))
        return cls(
            events=tuple(ordered),
            counts=tuple(counts[event] for event in ordered),
            unit=unit,
            scale=scale,
            resolution=float(positive.min()),
            gap_quantiles=tuple((np.quantile(positive, (np.arange(_NUM_SCALES) + 0.5) / _NUM_SCALES) / scale).tolist()),
            horizons=tuple(sorted({_rounded(float(np.quantile(positive, each))) for each in _HORIZON_QUANTILES})),
            values=tuple(values),
            means=tuple(means),
            stds=tuple(stds),
            value_shares=tuple(drawn[0].tolist()),
            value_means=tuple(drawn[1].tolist()),
            value_stds=tuple(drawn[2].tolist()),
            value_memories=tuple(drawn[3].tolist()),
        )

    def read(self, text: str, *, is_strict: bool = True, max_entries: int | None = None) -> EncodedHistory:
        """A history as arrays.

        Args:
            text: The history.
            is_strict: Whether an event that training did not see is an error; otherwise the observation ends with it.
            max_entries: Only so many of the last entries are kept; the gap of the first is then since the start.
        """
        times, events, values = parse_history(text, len(self.values))
        known = {event: number for number, event in enumerate(self.events, start=1)}
        for place, event in enumerate(events):
            if event is not None and event not in known:
                if is_strict:
                    raise DataError(
                        f"the event {event!r} is not among those of training: {format_names(list(self.events))}"
                    )
                times, values = times[: place + 1], values[: place + 1]
                events = [*events[:place], None]
                break
        if max_entries is not None:
            times, events, values = times[-max_entries:], events[-max_entries:], values[-max_entries:]
        gaps = np.diff(np.array(times), prepend=0.0)
        kinds = np.array([0 if event is None else known[event] for event in events], np.int64)
        # Events at the same time are half of the resolution apart: a gap of an event is positive.
        gaps[1:] = np.where(kinds[1:] > 0, np.maximum(gaps[1:], self.resolution / 2), gaps[1:])
        standardized = (
            np.array(values, np.float64).reshape(len(times), len(self.values)) - np.array(self.means)
        ) / self.stds
        return EncodedHistory(
            kinds,
            (gaps / self.scale).astype(np.float32),
            standardized.clip(-LARGEST_VALUE, LARGEST_VALUE).astype(np.float16),
        )

    def to_columns(self, history: EncodedHistory) -> tuple[list[int], list[int], list[int], list[int]]:
        """The columns of a store: kinds, the two halves of the gaps, and values."""
        bits = history.gaps.view(np.uint32)
        return (
            history.kinds.tolist(),
            (bits >> 16).tolist(),
            (bits & 0xFFFF).tolist(),
            history.values.reshape(-1).view(np.uint16).tolist(),
        )

    def unknown_events(self, text: str) -> list[str]:
        """The events of a history that training did not see."""
        return [event for event in parse_history(text, 0)[1] if event is not None and event not in self.events]

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        """The columns of each history, one after the other."""
        return [[number for column in self.to_columns(self.read(text)) for number in column] for text in values]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Histories whose times and values are rounded as the store has them."""
        found = []
        for some in ids:
            count = len(some) // (3 + len(self.values))
            kinds, high, low, rest = (np.array(some[count * n : count * (n + 1 if n < 3 else 99)]) for n in range(4))
            gaps = join_halves(high, low)
            numbers = (
                rest.astype(np.uint16).view(np.float16).reshape(count, len(self.values)) * np.array(self.stds)
                + self.means
            )
            times = np.cumsum(gaps.astype(np.float64) * self.scale)
            found.append(
                json.dumps(
                    [
                        [time, self.events[kind - 1] if kind else None, *(None if v != v else v for v in row)]
                        for time, kind, row in zip(times.tolist(), kinds.tolist(), numbers.tolist(), strict=True)
                    ]
                )
            )
        return found

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        found: dict[str, Any] = load_json(text)
        kept = ("value_shares", "value_means", "value_stds", "value_memories")
        return checked_codec(cls, found, (("events", "counts"), ("values", "means", "stds"), kept))


def _autoregression(pairs: Float[np.ndarray, "events two columns"]) -> Float[np.ndarray, "four columns"]:
    """Statistics of one kind of event's values and of those before them: share known, mean, deviation, correlation."""
    found = np.zeros((4, pairs.shape[2]))
    for column, (before, now) in enumerate(zip(pairs[:, 0].T, pairs[:, 1].T, strict=True)):
        known = now[np.isfinite(now)]
        if not len(known):
            continue
        mean, std = float(known.mean()), float(known.std())
        both = np.isfinite(before) & np.isfinite(now)
        product = float(np.mean((before[both] - mean) * (now[both] - mean))) if both.any() else 0.0
        memory = np.clip(product / std**2, -_LARGEST_MEMORY, _LARGEST_MEMORY) if std else 0.0
        found[:, column] = len(known) / len(now), mean, std, memory
    return found


def join_halves(high: NDArray, low: NDArray) -> NDArray[np.float32]:
    """The float32 numbers of their upper and lower 16 bits."""
    return ((high.astype(np.uint32) << 16) | low.astype(np.uint32)).view(np.float32)


def _rounded(value: float) -> float:
    """Two significant digits."""
    return float(f"{value:.2g}") if value and math.isfinite(value) else value
