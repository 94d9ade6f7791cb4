"""Models of the next event: an encoder of events with a mixture after each, and constant rates for comparison.

Also histories of events as batches, and what metrics are computed from.

Dimensions: `batch` subjects, `time` entries of their histories, `features` of an entry, `last` event, `events` kinds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import TensorBatch
from regard.data.codecs.events import LARGEST_VALUE, EventCodec, join_halves
from regard.evaluation.metrics.events import censoring_weights
from regard.models.events import EventShape
from regard.models.family import ModelConfig, build_encoder
from regard.models.heads import HeadConfig
from regard.nn.dropout import Dropout
from regard.tasks.event_prediction.process import EventMixture, make_mixture
from regard.tasks.task import Likelihoods

_NUM_PARTS = 3
"""Outputs of a component besides the logits of the events: weight, scale and shape."""
_GRID = 20
"""Times up to the longest horizon at which the integrated Brier score is computed."""
_MOST_LANDMARKS = 20_000
"""Where there are more, every second is used, or every third and so on: of all subjects the same."""
_DIGITS = 6


class EventPredictor(nn.Module):
    """Histories in, the distribution of the next event after each entry out; times are in units of the mean gap."""

    def __init__(self, config: ModelConfig, head: HeadConfig, codec: EventCodec, *, num_components: int) -> None:
        super().__init__()
        self.config, self.num_components, self.num_events = config, num_components, len(codec.events)
        self.shortest = codec.resolution / codec.scale / 2
        shape = EventShape(len(codec.events), len(codec.values))
        self.body: Any = build_encoder(config, shape, reads="events", example="transformer-events")
        self.dropout = Dropout(head.dropout)
        self.output = nn.Linear(config.model_dim, num_components * (_NUM_PARTS + self.num_events))
        self._initialize(codec.gap_quantiles, codec.counts)

    @torch.no_grad()
    def _initialize(self, gap_quantiles: Sequence[float], counts: Sequence[int]) -> None:
        """Exponentials whose scales are those of the gaps, with events as frequent as in training."""
        self.output.weight.mul_(0.1)
        bias = self.output.bias.zero_().view(self.num_components, -1)
        places = np.linspace(0, len(gap_quantiles) - 1, self.num_components)
        scales = np.interp(places, np.arange(len(gap_quantiles)), np.log(gap_quantiles))
        bias[:, 1] = torch.from_numpy(scales).to(bias)
        bias[:, _NUM_PARTS:] = torch.tensor([math.log(count / sum(counts)) for count in counts]).to(bias)

    def forward(self, source: Float[Tensor, "batch time features"]) -> EventMixture:
        source = source.to(torch.promote_types(self.output.weight.dtype, torch.float32))
        hidden_states = self.dropout(self.body.encode(source).hidden_states)
        # The logarithms of scales need more digits than bfloat16 has.
        with torch.autocast(source.device.type, enabled=False):
            outputs = self.output(hidden_states.to(self.output.weight.dtype))
        outputs = outputs.unflatten(-1, (self.num_components, -1))
        return make_mixture(outputs, shortest=self.shortest, num_events=self.num_events)


class ExportedEvents(nn.Module):
    """Histories in the units of the data in, probabilities of the next event and its risks within horizons out."""

    def __init__(self, model: EventPredictor, codec: EventCodec, horizons: Sequence[float]) -> None:
        super().__init__()
        self.model, self.scale, self.resolution = model, codec.scale, codec.resolution
        self.means: Tensor
        self.stds: Tensor
        self.horizons: Tensor
        for name, numbers in {"means": codec.means, "stds": codec.stds, "horizons": horizons}.items():
            self.register_buffer(name, torch.tensor(list(numbers)))

    def forward(
        self,
        events: Int[Tensor, "batch time"],
        gaps: Float[Tensor, "batch time"],
        num_entries: Int[Tensor, " batch"],
        elapsed: Float[Tensor, " batch"],
        values: Float[Tensor, "batch time values"] | None = None,
    ) -> tuple[Float[Tensor, "batch events"], Float[Tensor, "batch horizons events"]]:
        is_later_event = (events > 0) & (torch.arange(events.size(1)) > 0)
        gaps = torch.where(is_later_event, gaps.clamp(min=self.resolution / 2), gaps) / self.scale
        parts = [torch.stack([events.to(gaps.dtype), gaps, gaps.cumsum(dim=1)], dim=-1)]
        if values is not None:
            known = ~values.isnan()
            scaled = ((values - self.means) / self.stds).clamp(-LARGEST_VALUE, LARGEST_VALUE)
            numbers = torch.where(known, scaled, 0.0).half().to(gaps.dtype)  # as they are stored
            parts.append(torch.stack([numbers, known.to(gaps.dtype)], dim=-1).flatten(2))
        mixture = self.model(torch.cat(parts, dim=-1)).at((torch.arange(events.size(0)), num_entries - 1))
        waited = elapsed / self.scale
        return mixture.event_probabilities(waited), mixture.risks(waited, self.horizons / self.scale)


class ConstantRates(nn.Module):
    """Events at rates that depend on the last event only: a mixture with one exponential component."""

    def __init__(self, rates: Float[np.ndarray, "last events"]) -> None:
        super().__init__()
        self.rates: Tensor
        self.register_buffer("rates", torch.from_numpy(rates).float())

    def forward(self, source: Float[Tensor, "batch time features"]) -> EventMixture:
        rates = self.rates[source[..., 0].long()][..., None, :]
        total = rates.sum(dim=-1)
        return EventMixture(
            torch.zeros_like(total), -total.log(), torch.ones_like(total), (rates / total[..., None]).log()
        )


@dataclass(frozen=True)
class EventBatch(TensorBatch):
    """Histories, padded at their ends."""

    tensor_names = ("source", "lengths")
    source: Float[Tensor, "batch time features"]
    """Kind, gap, time, and each value with whether it is known."""
    lengths: Int[Tensor, " batch"]
    """Entries of each history, the start and the end among them."""
    num_targets: int
    """Events that are predicted."""
    num_tokens: int
    """Entries that are read."""

    @property
    def is_target(self) -> Bool[Tensor, "batch time"]:
        """Which entries but the first are there, and not padding."""
        places = torch.arange(1, self.source.size(1), device=self.source.device)
        return places < self.lengths[:, None]

    @property
    def kinds(self) -> Int[Tensor, "batch time"]:
        """The kinds of all entries but the first; 0 for an end."""
        return self.source[:, 1:, 0].long()

    @property
    def gaps(self) -> Float[Tensor, "batch time"]:
        return self.source[:, 1:, 1]

    def last_events(self) -> tuple[Int[Tensor, " batch"], Float[Tensor, " batch"]]:
        """The place of the last event, or of the start, and the time from it to the end of the observation.

        An end is not read: it is the time that has passed since the last event.
        """
        rows, last = torch.arange(len(self.lengths), device=self.lengths.device), self.lengths - 1
        is_end = (self.source[rows, last, 0] == 0) & (last > 0)
        return last - is_end.long(), torch.where(is_end, self.source[rows, last, 1], 0.0)


def make_event_batch(columns: Sequence[list[NDArray[np.int64]]]) -> EventBatch:
    """A batch of the columns of a store: kinds, the halves of gaps, and values."""
    kinds, high, low, *values = columns
    lengths = np.array([len(each) for each in kinds])
    is_entry = np.arange(lengths.max()) < lengths[:, None]
    source = np.zeros((*is_entry.shape, 3 + 2 * len(values)), np.float32)
    gaps = join_halves(np.concatenate(high), np.concatenate(low))
    source[is_entry, 0] = np.concatenate(kinds)
    source[is_entry, 1] = gaps
    source[..., 2] = source[..., 1].cumsum(axis=1, dtype=np.float64)
    for place, some in enumerate(values):
        numbers = np.concatenate(some).astype(np.uint16).view(np.float16).astype(np.float32)
        source[is_entry, 3 + 2 * place] = np.nan_to_num(numbers, nan=0.0)
        source[is_entry, 4 + 2 * place] = np.isfinite(numbers)
    return EventBatch(
        source=torch.from_numpy(source),
        lengths=torch.from_numpy(lengths),
        num_targets=max(1, int((source[:, 1:, 0] > 0).sum())),
        num_tokens=int(lengths.sum()),
    )


def pad_event_batch(batch: EventBatch, num_rows: int, length: int) -> EventBatch:
    """The batch with more rows, without entries, and more entries, which are padding."""
    rows, entries = num_rows - batch.source.size(0), length - batch.source.size(1)
    pad = torch.nn.functional.pad
    # A row without entries has a length of 1: it starts and nothing is known of it.
    return batch.with_tensors([pad(batch.source, (0, 0, 0, entries, 0, rows)), pad(batch.lengths, (0, rows), value=1)])


def log_likelihoods(mixture: EventMixture, batch: EventBatch) -> Float[Tensor, "batch time"]:
    """Returns, for each entry but the first, the log-density of an event, the log-survival of an end, 0 for padding."""
    kinds, gaps, is_target = batch.kinds, batch.gaps, batch.is_target
    is_event = is_target & (kinds > 0)
    # Where there is no event a density would be that of gap 0, whose gradient is not finite.
    density = mixture.log_density(torch.where(is_event, gaps, 1.0), (kinds - 1).clamp(min=0))
    survival = mixture.log_survival(torch.where(is_event, 1.0, gaps))
    return torch.where(is_event, density, torch.where(is_target, survival, 0.0))


@dataclass(frozen=True)
class Landmarks:
    """What risks are judged by: a landmark after each entry, of all subjects one after the other."""

    subjects: NDArray[np.int64]
    gaps: NDArray[np.float64]
    """Until the next event, or the end of the observation."""
    events: NDArray[np.int64]
    """The next event; 0 where the observation ends."""
    risks: NDArray[np.float64]
    """Landmarks x horizons x events."""
    grid_risks: NDArray[np.float64]
    """The probability that the next event has come by each time of a grid up to the longest horizon."""


@dataclass(frozen=True)
class EventLikelihoods(Likelihoods):
    """The likelihoods of subjects, and the risks at their landmarks."""

    landmarks: tuple[Landmarks, ...] = field(default=())
    simulated: tuple[Any, ...] = field(default=())
    """`JudgedRisks` of batches, where continuations are simulated."""


def find_landmarks(
    mixture: EventMixture, batch: EventBatch, horizons: Float[Tensor, " horizons"], *, first_subject: int
) -> Landmarks:
    """Landmarks of a batch; horizons and gaps are in units of the mean gap."""
    is_target = batch.is_target
    nothing = torch.zeros_like(batch.gaps)
    risks = mixture.risks(nothing, horizons)[is_target]
    grid = mixture.risks(nothing, risk_grid(horizons)).sum(dim=-1)[is_target]
    subjects = torch.arange(is_target.size(0), device=is_target.device)[:, None].expand_as(is_target)[is_target]
    return Landmarks(
        subjects.cpu().numpy() + first_subject,
        batch.gaps[is_target].double().cpu().numpy(),
        batch.kinds[is_target].cpu().numpy(),
        risks.double().cpu().numpy(),
        grid.double().cpu().numpy(),
    )


def risk_grid(horizons: Float[Tensor, " horizons"]) -> Float[Tensor, " times"]:
    """Equal steps up to the longest horizon."""
    return horizons.max() * torch.arange(1, _GRID + 1, device=horizons.device, dtype=horizons.dtype) / _GRID


def judge_landmarks(
    parts: Sequence[Landmarks], num_subjects: int, horizons: Sequence[float]
) -> tuple[list[list[float]], list[list[list[list[float]]]]]:
    """The fields `brier_sums` and `risks` of examples; horizons are in units of the mean gap."""
    subjects, gaps, events, risks, grid_risks = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("subjects", "gaps", "events", "risks", "grid_risks")
    )
    firsts = np.searchsorted(subjects, np.arange(num_subjects))
    every = -(-len(subjects) // _MOST_LANDMARKS)
    chosen = (np.arange(len(subjects)) - firsts[subjects]) % every == 0
    subjects, gaps, events, risks, grid_risks = (each[chosen] for each in (subjects, gaps, events, risks, grid_risks))
    is_censored = events == 0
    # Torch's grid in float32 and this one may differ in the last bit, which no gap depends on.
    grid = np.max(horizons) * np.arange(1, _GRID + 1) / _GRID
    errors = np.zeros(len(gaps))
    for time, risk in zip(grid, grid_risks.T, strict=True):
        has_come = (gaps <= time) & ~is_censored
        errors += censoring_weights(gaps, is_censored, time) * (has_come - risk) ** 2 / _GRID
    sums = np.stack([np.bincount(subjects, each, num_subjects) for each in (errors, np.ones(len(gaps)))], axis=1)
    found: list[list[list[list[float]]]] = [[] for _ in range(num_subjects)]
    tables = [
        np.column_stack(
            [
                censoring_weights(gaps, is_censored, horizon),
                np.where((gaps <= horizon) & ~is_censored, events, 0),
                risks[:, place],
            ]
        )
        for place, horizon in enumerate(horizons)
    ]
    for subject, landmark in zip(subjects, np.stack(tables, axis=1).round(_DIGITS).tolist(), strict=True):
        found[subject].append(landmark)
    return sums.tolist(), found
