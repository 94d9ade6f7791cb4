"""Windows of series: batches of them, and the sums over forecasts that metrics are computed from.

Dimensions: `batch` windows, `time` steps that are read, `horizon` steps that are forecast, `columns` of numbers,
`steps` that are read and forecast, `features` of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from regard.data.codecs.series import SeriesCodec
from regard.data.permutation import mix, permute
from regard.data.stores.series import Segments
from regard.evaluation.metrics.forecasts import SUMS
from regard.tasks.forecasting.model import ForecastOutput, quantile_losses
from regard.tasks.task import Likelihoods

_EVALUATION_VALUES = 1 << 20
"""Numbers that are read at once when no gradient is needed."""


@dataclass(frozen=True)
class ForecastBatch:
    """Windows, the values after each, and which of those are known."""

    values: Float[Tensor, "batch time columns"]
    targets: Float[Tensor, "batch horizon columns"]
    known: Bool[Tensor, "batch horizon columns"]
    """False where a value is missing, and in windows that only pad the batch."""
    num_targets: int
    num_tokens: int
    """The numbers that are read."""
    features: Float[Tensor, "batch steps features"] | None = None
    """Of the steps that are read and of those that are forecast: what is known in advance."""
    spans: tuple[int, ...] = ()
    """The number of the span of origins that each window belongs to, in evaluations."""

    def tensors(self) -> list[Tensor | None]:
        return [self.values, self.targets, self.known, self.features]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "ForecastBatch":
        names = ("values", "targets", "known", "features")
        return replace(self, **dict(zip(names, tensors, strict=True)))  # pyright: ignore[reportArgumentType]  by name


def make_batch(
    segments: Segments, starts: NDArray[np.int64], codec: SeriesCodec, *, num_features: int = 0
) -> ForecastBatch:
    """The windows that begin at these steps, with the first of the features."""
    places = starts[:, None] + np.arange(codec.input_length + codec.horizon)
    values, known = segments.values[places], segments.known[places]
    known = torch.from_numpy(known[:, codec.input_length :])
    return ForecastBatch(
        values=torch.from_numpy(values[:, : codec.input_length]),
        targets=torch.from_numpy(values[:, codec.input_length :]),
        known=known,
        num_targets=max(1, int(known.sum())),
        num_tokens=len(starts) * codec.input_length * values.shape[2],
        features=torch.from_numpy(segments.features[places, :num_features]) if num_features else None,
    )


class ForecastBatches:
    """The windows of some segments in shuffled order; with `has_fixed_shapes` all batches have one shape."""

    def __init__(
        self, segments: Segments, codec: SeriesCodec, *, num_features: int, batch_tokens: int, seed: int,
        has_fixed_shapes: bool,
    ) -> None:  # fmt: skip
        self._segments, self._codec, self._seed, self._num_features = segments, codec, seed, num_features
        self._starts = segments.windows(codec.input_length + codec.horizon)
        at_once = max(1, batch_tokens // (codec.input_length * len(codec.columns)))
        self.per_epoch = -(-len(self._starts) // at_once)
        self._num_windows = -(-len(self._starts) // self.per_epoch) if has_fixed_shapes else 0

    def batch(self, number: int) -> ForecastBatch:
        """Batch `number`, counted from 0 through all epochs."""
        epoch, place = divmod(number, self.per_epoch)
        total = len(self._starts)
        start, end = (total * each // self.per_epoch for each in (place, place + 1))
        chosen = permute(np.arange(start, end), total, mix(self._seed, epoch))
        batch = make_batch(self._segments, self._starts[chosen], self._codec, num_features=self._num_features)
        more = max(0, self._num_windows - len(chosen))
        padding = (0, 0, 0, 0, 0, more)
        return batch.with_tensors(
            [torch.nn.functional.pad(x, padding) if x is not None and more else x for x in batch.tensors()]
        )


def evaluation_batches(
    segments: Segments, codec: SeriesCodec, *, stride: int, num_features: int
) -> Iterator[ForecastBatch]:
    """All windows in their order, `stride` steps apart, each with the number of its span of origins.

    A span has the origins of as many steps as are forecast: forecasts from different spans share few values.
    """
    starts = segments.windows(codec.input_length + codec.horizon, stride)
    of_segment = segments.segment_of(starts)
    firsts = np.cumsum(segments.lengths) - segments.lengths
    numbers = np.stack([of_segment, (starts - firsts[of_segment]) // codec.horizon])
    _, spans = np.unique(numbers, axis=1, return_inverse=True)
    spans = spans.reshape(-1)
    at_once = max(1, _EVALUATION_VALUES // ((codec.input_length + codec.horizon) * len(codec.columns)))
    for first in range(0, len(starts), at_once):
        batch = make_batch(segments, starts[first : first + at_once], codec, num_features=num_features)
        yield replace(batch, spans=tuple(spans[first : first + at_once].tolist()))


@dataclass(frozen=True)
class ForecastLikelihoods(Likelihoods):
    """The losses of windows, and the sums that metrics are computed from, for each span of origins."""

    sums: tuple[tuple[float, ...], ...] = ()


class ForecastSums:
    """Adds up what metrics are computed from, span by span."""

    def __init__(self, codec: SeriesCodec, levels: Sequence[float]) -> None:
        self._codec, self._levels = codec, levels
        self._sums: dict[int, NDArray[np.float64]] = {}

    def add(self, batch: ForecastBatch, output: ForecastOutput) -> None:
        """Add the errors of the forecasts of a batch."""
        targets, known = batch.targets, batch.known
        stds, means, scales = (
            torch.tensor(each, device=targets.device, dtype=torch.float32)
            for each in (self._codec.stds, self._codec.means, self._codec.scales)
        )
        levels = torch.tensor(self._levels, device=targets.device, dtype=torch.float32)
        errors = (output.point - targets).abs()
        parts = [
            torch.ones_like(targets),
            errors.square(),
            errors,
            errors / scales,
            quantile_losses(output.quantiles, targets, levels) * stds,
            (targets * stds + means).abs(),
            ((output.lower <= targets) & (targets <= output.upper)).float(),
        ]
        assert len(parts) == len(SUMS)
        sums = torch.stack([(part * known).double().sum(dim=(1, 2)) for part in parts], dim=1).cpu().numpy()
        for span, each in zip(batch.spans, sums, strict=True):
            self._sums[span] = self._sums.get(span, 0.0) + each

    def rows(self) -> tuple[tuple[float, ...], ...]:
        """The sums of each span that has a known value, in order."""
        return tuple(tuple(self._sums[span].tolist()) for span in sorted(self._sums) if self._sums[span][0])
