r"""The model of a forecast: an encoder of series, a head with all steps at once, and intervals that are calibrated.

Each column of a window is normalized by its own mean and standard deviation, and the forecast is mapped back: Kim et
al., "Reversible Instance Normalization for Accurate Time-Series Forecasting against Distribution Shift" (2022). The
first output of a step is the mean, trained by the squared error; the others are quantiles, trained by their loss.

Features of steps that are known in advance have an effect on each column, a function of the features of a step alone:
it is subtracted from the steps that are read and added to those that are forecast, as in a regression whose errors are
a series. One part of it is in units of the data, the other in those of the window.

Beside the network there is a linear forecast: see `linear`. With weights that are fitted on the validation part, the
forecast of a model in evaluation mode is an average of both.

Intervals are those of conformalized quantile regression: Romano, Patterson and Candès (2019).
https://arxiv.org/abs/1905.03222. With scores $E = \max(\hat q_{low} - y, y - \hat q_{high})$ of the validation part, a
margin that is their quantile at $(1 - \alpha)(1 + 1/n)$ is added on both sides: such intervals contain a share
$1 - \alpha$ of new values, if those are exchangeable with the validation part. There is a margin for each step and
column, in units of the window's standard deviation.

Also windows of series as batches, and the sums over forecasts that metrics are computed from.

Dimensions: `batch` windows, `time` steps that are read, `horizon` steps that are forecast, `columns` of numbers,
`steps` that are read and forecast, `features` of each, `outputs`: the mean and the quantiles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import TensorBatch
from regard.data.codecs.series import SeriesCodec
from regard.data.permutation import mix, permute
from regard.data.stores.series import Segments
from regard.evaluation.metrics.forecasts import SUMS
from regard.models.family import ModelConfig, build_encoder
from regard.models.heads import HeadConfig
from regard.models.series import SeriesShape
from regard.nn.dropout import Dropout
from regard.tasks.forecasting.linear import LinearForecast
from regard.tasks.task import Likelihoods

_SMALLEST_STD = 1e-3
"""The smallest scale of a window, relative to that of the training part: a constant window is not magnified."""
_EFFECT_WIDTH = 64
"""The width of the hidden layer for effects of features."""
_EVALUATION_VALUES = 1 << 20
"""Numbers that are read at once when no gradient is needed."""


@dataclass(frozen=True)
class ForecastOutput:
    """Forecasts of standardized values."""

    point: Float[Tensor, "batch horizon columns"]
    quantiles: Float[Tensor, "batch horizon columns quantiles"]
    lower: Float[Tensor, "batch horizon columns"]
    """The lower ends of the intervals."""
    upper: Float[Tensor, "batch horizon columns"]


class SeriesForecaster(nn.Module):
    """Standardized numbers in, the next ones out."""

    def __init__(
        self,
        config: ModelConfig,
        shape: SeriesShape,
        head: HeadConfig,
        *,
        num_quantiles: int,
        has_linear: bool = False,
    ) -> None:
        super().__init__()
        self.config, self.horizon = config, shape.horizon
        self.body: Any = build_encoder(config, shape, reads="series", example="patchtst")
        self.effects = FeatureEffects(shape.num_features, shape.num_columns) if shape.num_features else None
        self.dropout = Dropout(head.dropout)
        steps = self.body.steps_per_position
        num_read, num_steps = (self.body.num_positions, shape.horizon) if steps is None else (1, steps)
        self.head = nn.Linear(num_read * self.body.width, num_steps * (1 + num_quantiles))
        self.linear = LinearForecast(shape) if has_linear else None
        self.margins: Tensor
        self.register_buffer("margins", torch.zeros(shape.horizon, shape.num_columns))

    def conformal_scores(
        self, output: ForecastOutput, values: Float[Tensor, "batch time columns"],
        targets: Float[Tensor, "batch horizon columns"],
    ) -> Float[Tensor, "batch horizon columns"]:  # fmt: skip
        """How far each value is outside of its quantiles, in units of the window's standard deviation."""
        quantiles = output.quantiles
        outside = torch.maximum(quantiles[..., 0] - targets, targets - quantiles[..., -1])
        return outside / level_and_scale(values)[1]

    def forward(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None = None
    ) -> ForecastOutput:
        outputs = self.network(values, features)
        if self.linear is not None and not self.training:
            outputs = outputs + self.linear.shift(outputs[..., 0], self.linear(values, features))[..., None]
        margins = self.margins * level_and_scale(values)[1]
        point, quantiles = outputs[..., 0], outputs[..., 1:]
        # The mean is not between the quantiles of a skewed distribution, or of a network that has learned little.
        lower = torch.minimum(quantiles[..., 0] - margins, point)
        return ForecastOutput(point, quantiles, lower, torch.maximum(quantiles[..., -1] + margins, point))

    def network(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None = None
    ) -> Float[Tensor, "batch horizon columns outputs"]:
        """The forecast of the network alone: the mean and the quantiles."""
        length, dtype = values.size(1), torch.promote_types(self.head.weight.dtype, torch.float32)
        values, features = values.to(dtype), None if features is None else features.to(dtype)
        if self.effects is None or features is None:
            mean, scale = level_and_scale(values)
            found = self._normalized((values - mean) / scale, features)
            return found * scale[..., None] + mean[..., None]
        absolute, relative = (part.to(values.dtype) for part in self.effects(features))
        values = values - absolute[:, :length]
        mean, scale = level_and_scale(values)
        relative = relative - relative[:, :length].mean(dim=1, keepdim=True)
        found = self._normalized((values - mean) / scale - relative[:, :length], features)
        found = (found + relative[:, length:, :, None]) * scale[..., None] + mean[..., None]
        return found + absolute[:, length:, :, None]

    def _normalized(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None
    ) -> Float[Tensor, "batch horizon columns outputs"]:
        """The outputs for normalized values."""
        hidden_states = self.body.encode(values, features=features).hidden_states.unflatten(1, (values.size(2), -1))
        if self.body.steps_per_position is None:
            found = self.head(self.dropout(hidden_states.flatten(2))).unflatten(2, (self.horizon, -1))
        else:
            found = self.head(self.dropout(hidden_states)).unflatten(3, (self.body.steps_per_position, -1))
            found = found.flatten(2, 3)[:, :, : self.horizon]
        found = found.transpose(1, 2).to(values.dtype)
        # Each output is an increment to the one before: quantiles cannot cross.
        point, lowest, steps = found[..., :1], found[..., 1:2], nn.functional.softplus(found[..., 2:])
        return torch.cat([point, lowest, lowest + steps.cumsum(dim=-1)], dim=-1)


class ExportedForecaster(nn.Module):
    """Values in the units of the data in, forecasts in these units out; a missing value is NaN, as in `standardize`."""

    means: Tensor
    stds: Tensor

    def __init__(self, model: SeriesForecaster, means: Sequence[float], stds: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("means", torch.tensor(list(means)))
        self.register_buffer("stds", torch.tensor(list(stds)))

    def forward(self, values: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        scaled = (values - self.means) / self.stds
        found = self.model(torch.where(scaled.isnan(), 0.0, scaled), features)
        point, lower, upper = (each * self.stds + self.means for each in (found.point, found.lower, found.upper))
        return point, lower, upper


class FeatureEffects(nn.Module):
    """The effects of a step's features on its values: a linear map and a small network, zero before training."""

    def __init__(self, num_features: int, num_columns: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, _EFFECT_WIDTH)
        self.output = nn.Linear(_EFFECT_WIDTH + num_features, 2 * num_columns)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(
        self, features: Float[Tensor, "batch steps features"]
    ) -> tuple[Float[Tensor, "batch steps columns"], Float[Tensor, "batch steps columns"]]:
        """The effects in units of the data, and in units of the window's standard deviation."""
        hidden = nn.functional.gelu(self.hidden(features))
        absolute, relative = self.output(torch.cat([hidden, features.to(hidden.dtype)], dim=-1)).chunk(2, dim=-1)
        return absolute, relative


def level_and_scale(
    values: Float[Tensor, "batch time columns"],
) -> tuple[Float[Tensor, "batch 1 columns"], Float[Tensor, "batch 1 columns"]]:
    """The mean and the standard deviation of each column of a window."""
    mean = values.mean(dim=1, keepdim=True)
    variance = (values - mean).square().mean(dim=1, keepdim=True)
    return mean, (variance + _SMALLEST_STD**2).sqrt()


def quantile_losses(
    quantiles: Float[Tensor, "*batch quantiles"], targets: Float[Tensor, "*batch"], levels: Float[Tensor, " quantiles"]
) -> Float[Tensor, "*batch"]:
    """Twice the quantile loss, its mean over the quantiles."""
    errors = targets[..., None] - quantiles
    return 2 * torch.maximum(levels * errors, (levels - 1) * errors).mean(dim=-1)


def conformal_margins(
    scores: Float[Tensor, "windows horizon columns"], coverage: float
) -> Float[Tensor, "horizon columns"]:
    """The margin of each step and column; NaN among the scores is left out.

    Where there are fewer scores than the coverage needs, the margin is the largest of them.
    """
    counts = scores.isfinite().sum(dim=0)
    ordered = torch.where(scores.isfinite(), scores, torch.inf).sort(dim=0).values
    ranks = torch.minimum(torch.ceil(coverage * (counts + 1)).long(), counts) - 1
    found = ordered.gather(0, ranks.clamp(min=0)[None])[0]
    return torch.where(counts > 0, found, 0.0)


@dataclass(frozen=True)
class ForecastBatch(TensorBatch):
    """Windows, the values after each, and which of those are known."""

    tensor_names = ("values", "targets", "known", "features")
    values: Float[Tensor, "batch time columns"]
    targets: Float[Tensor, "batch horizon columns"]
    known: Bool[Tensor, "batch horizon columns"]
    """False where a value is missing, and in windows that only pad the batch."""
    num_targets: int
    num_tokens: int
    """The numbers that are read."""
    features: Float[Tensor, "batch steps features"] | None = None
    """What is known in advance, for the steps that are read and for those that are forecast."""
    spans: tuple[int, ...] = ()
    """The number of the span of origins that each window belongs to, in evaluations."""


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
