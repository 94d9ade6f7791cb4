r"""The risk of an event within a horizon, whether or not other events come before it, by simulation of the process.

Continuations of a history are drawn from the model, event by event. With $n$ events drawn before the horizon $h$ and
none of them $k$, the probability that the next one is $k$ before $h$ is exact, so a path contributes

$$ \sum_n \mathbf{1}[k \notin \{e_1, \dots, e_n\}, t_n < h] \; P(T_{n+1} \leq h, K_{n+1} = k \mid \text{path}) $$

whose expectation is the risk; its first term, the risk of the next event, has no variance. So is that of the indicator
that $k$ came before $h$, which varies less where the risk is high. The two are averaged with weights that are the
inverse of their variances. The standard error is that of the mean over paths.

Values of drawn events are those of a normal autoregression for each kind of event, fitted on the training subjects.

Dimensions: `batch` subjects, `rows` paths of subjects, `time` entries, `features` of an entry, `events`, `horizons`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.codecs.events import EventCodec
from regard.logging import log_warning
from regard.tasks.event_prediction.model import EventBatch
from regard.tasks.event_prediction.process import EventMixture

_TOKENS_AT_ONCE = 1 << 15
"""Entries in one forward pass."""
_MOST_EVENTS = 500
"""Events of a path; a horizon with more of them is far beyond the times that a model was trained on."""


@dataclass(frozen=True)
class SimulatedRisks:
    """Estimates and their standard errors."""

    risks: Float[Tensor, "batch horizons events"]
    errors: Float[Tensor, "batch horizons events"]


@dataclass(frozen=True)
class EventSimulator:
    """Draws continuations from a model; the same seed gives a history the same paths, whatever else is in the batch."""

    model: Any
    codec: EventCodec
    num_paths: int
    seed: int = 0
    max_entries: int = 512

    def risks(
        self,
        source: Float[Tensor, "batch time features"],
        lengths: Int[Tensor, " batch"],
        elapsed: Float[Tensor, " batch"],
        horizons: Float[Tensor, " horizons"],
    ) -> SimulatedRisks:
        """The risk of each event within each horizon.

        Args:
            source: Histories without the ends of their observations.
            lengths: The number of entries of each.
            elapsed: The time since the last one, in which nothing has happened.
            horizons: In units of the mean gap, as all times.
        """
        paths, size = self.num_paths, len(lengths)
        first = self._mixtures(source, lengths)
        rows = torch.arange(size, device=source.device).repeat_interleave(paths)
        state = _Paths(source[rows], lengths[rows], elapsed[rows], self.codec)
        mixture, generator = first.at((rows,)), torch.Generator().manual_seed(self.seed)
        like: Any = {"device": source.device, "dtype": source.dtype}
        totals = torch.zeros(len(rows), len(horizons), len(self.codec.events), **like)
        arrivals = torch.full_like(totals[:, 0], torch.inf)
        is_absent = torch.ones(len(rows), 1, len(self.codec.events), **like)
        now = torch.zeros(len(rows), **like)
        active = torch.arange(len(rows), device=source.device)
        for _ in range(_MOST_EVENTS):
            left = (horizons - now[active, None]).clamp(min=0.0)
            totals[active] += is_absent[active] * mixture.risks(state.elapsed[active], left)
            # All subjects have the same random numbers, those of path p and step n.
            draws = torch.rand(paths, 3, generator=generator).to(source).repeat(size, 1)
            noise = torch.randn(paths, len(self.codec.values) * 2, generator=generator).to(source)
            gaps, kinds = mixture.sample(draws[active], state.elapsed[active])
            now[active] += gaps - state.elapsed[active]
            arrivals[active, kinds] = torch.minimum(arrivals[active, kinds], now[active])
            is_absent[active, 0, kinds] = 0.0
            state.append(active, kinds, gaps, noise.repeat(size, 1)[active], max_entries=self.max_entries)
            is_open = (now[active] < horizons.max()) & (is_absent[active, 0].sum(dim=-1) > 0)
            active = active[is_open]
            if not len(active):
                break
            mixture = self._mixtures(state.source[active], state.lengths[active])
        else:
            log_warning(
                f"{len(active):,} of {len(rows):,} simulated paths have more than {_MOST_EVENTS} events before the "
                "longest horizon: risks within it are too low"
            )
        counted = (arrivals[:, None] <= horizons[:, None]).to(totals.dtype)
        return _estimate(*(each.view(size, paths, *each.shape[1:]) for each in (totals, counted)))

    def _mixtures(self, source: Float[Tensor, "rows time features"], lengths: Int[Tensor, " rows"]) -> EventMixture:
        """The distribution of the event after the last entry of each row."""
        source = source[:, : int(lengths.max())]
        at_once = max(1, _TOKENS_AT_ONCE // source.size(1))
        parts = []
        for some, ends in zip(source.split(at_once), lengths.split(at_once), strict=True):
            parts.append(self.model(some).at((torch.arange(len(ends), device=ends.device), ends - 1)))
        return EventMixture(
            *(torch.cat([getattr(part, name) for part in parts]) for name in EventMixture.__dataclass_fields__)
        )


@dataclass(frozen=True)
class JudgedRisks:
    """Simulated risks in the middle of each history, and what followed; times are in units of the mean gap."""

    risks: Float[np.ndarray, "batch horizons events"]
    waits: Float[np.ndarray, "batch events"]
    """The time until each event first came; infinite where it did not while the subject was observed."""
    observed: Float[np.ndarray, " batch"]
    """The time until the end of the observation."""


def judge_simulation(simulator: EventSimulator, batch: EventBatch, horizons: Float[Tensor, " horizons"]) -> JudgedRisks:
    """Simulate each subject from the event in the middle of its history on."""
    middle = batch.last_events()[0] // 2
    found = simulator.risks(batch.source, middle + 1, torch.zeros_like(batch.source[:, 0, 0]), horizons)
    rows, places = torch.arange(len(middle), device=middle.device), torch.arange(batch.source.size(1)).to(middle)
    kinds, times = batch.source[..., 0].long(), batch.source[..., 2]
    since = times - times[rows, middle, None]
    follows = (places > middle[:, None]) & (places < batch.lengths[:, None])
    waits = [
        torch.where(follows & (kinds == kind), since, torch.inf).amin(dim=1)
        for kind in range(1, 1 + len(simulator.codec.events))
    ]
    parts = (found.risks, torch.stack(waits, dim=1), since[rows, batch.lengths - 1])
    return JudgedRisks(*(part.double().cpu().numpy() for part in parts))


def _estimate(
    totals: Float[Tensor, "batch paths horizons events"], counted: Float[Tensor, "batch paths horizons events"]
) -> SimulatedRisks:
    """The mean over paths of two unbiased values, weighted by the inverse of their variances.

    The variance of an indicator is that of a risk p, p (1 - p): among few paths an event may not occur at all, and the
    sample variance is then 0.
    """
    risks = totals.mean(dim=1, keepdim=True).clamp(0.0, 1.0)
    variances = totals.var(dim=1, keepdim=True)
    weight = variances / (variances + risks * (1 - risks)).clamp(min=1e-12)
    values = torch.lerp(totals, counted, weight)
    return SimulatedRisks(values.mean(dim=1).clamp(0.0, 1.0), values.std(dim=1) / values.size(1) ** 0.5)


class _Paths:
    """Histories to which events are appended."""

    def __init__(
        self,
        source: Float[Tensor, "rows time features"],
        lengths: Int[Tensor, " rows"],
        elapsed: Float[Tensor, " rows"],
        codec: EventCodec,
    ) -> None:
        self.source, self.lengths, self.elapsed, self.codec = source, lengths.clone(), elapsed.clone(), codec
        shape = (len(codec.events), len(codec.values))
        parts = (codec.value_shares, codec.value_means, codec.value_stds, codec.value_memories)
        self.statistics = [torch.tensor(part or [0.0] * (shape[0] * shape[1])).view(shape).to(source) for part in parts]

    def append(
        self,
        rows: Int[Tensor, " some"],
        kinds: Int[Tensor, " some"],
        gaps: Float[Tensor, " some"],
        noise: Float[Tensor, "some numbers"],
        *,
        max_entries: int,
    ) -> None:
        """Append an event to some rows; of a history that is too long the first entry is left out."""
        last = self.lengths[rows] - 1
        times = self.source[rows, last, 2] + gaps
        values = self._values(rows, kinds, noise)
        entry = torch.cat([torch.stack([kinds + 1.0, gaps, times], dim=1), values], dim=1)
        full = rows[last + 1 >= max_entries]
        if len(full):
            shifted = self.source[full, 1:].clone()
            shifted[:, 0, 1] = shifted[:, 0, 2]  # the gap of a first entry is since the start
            self.source[full, :-1] = shifted
            self.lengths[full] -= 1
            last = self.lengths[rows] - 1
        if int(last.max()) + 1 >= self.source.size(1):
            self.source = torch.nn.functional.pad(self.source, (0, 0, 0, 8))
        self.source[rows, last + 1] = entry.to(self.source.dtype)
        self.lengths[rows] += 1
        self.elapsed[rows] = 0.0

    def _values(
        self, rows: Int[Tensor, " some"], kinds: Int[Tensor, " some"], noise: Float[Tensor, "some numbers"]
    ) -> Float[Tensor, "some numbers"]:
        """Each value and whether it is known, given that of the last event of the same kind."""
        count = len(self.codec.values)
        if not count:
            return noise
        shares, means, stds, memories = (part[kinds] for part in self.statistics)
        normal, second = noise.split(count, dim=1)
        places = torch.arange(self.source.size(1), device=rows.device)
        history = self.source[rows]
        is_same = (history[..., 0] == kinds[:, None] + 1) & (places < self.lengths[rows, None])
        before, was_known = history[..., 3::2], history[..., 4::2] * is_same[..., None]
        latest = (was_known * (places + 1.0)[:, None]).argmax(dim=1, keepdim=True)
        has_before = was_known.amax(dim=1)
        memories = memories * has_before
        centered = (before.gather(1, latest)[:, 0] - means) * memories
        values = means + centered + stds * (1 - memories.square()).sqrt() * normal
        is_known = (torch.special.ndtr(second) < shares).to(values.dtype)
        return torch.stack([values * is_known, is_known], dim=-1).flatten(1)
