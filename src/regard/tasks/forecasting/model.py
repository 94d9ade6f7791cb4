r"""The model of a forecast: an encoder of series, a head with all steps at once, and intervals that are calibrated.

Each column of a window is normalized by its own mean and standard deviation, and the forecast is mapped back: Kim et
al., "Reversible Instance Normalization for Accurate Time-Series Forecasting against Distribution Shift" (2022). The
first output of a step is the mean, trained by the squared error; the others are quantiles, trained by their loss.

Intervals are those of conformalized quantile regression: Romano, Patterson and Candès (2019).
https://arxiv.org/abs/1905.03222. With scores $E = \max(\hat q_{low} - y, y - \hat q_{high})$ of the validation part, a
margin that is their quantile at $(1 - \alpha)(1 + 1/n)$ is added on both sides: such intervals contain a share
$1 - \alpha$ of new values, if those are exchangeable with the validation part. There is a margin for each step and
column, in units of the window's standard deviation.

Dimensions: `batch` windows, `time` steps that are read, `horizon` steps that are forecast, `columns` of numbers,
`outputs`: the mean and the quantiles.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.family import ModelConfig, find_family
from regard.models.heads import HeadConfig
from regard.models.series import SeriesShape
from regard.nn.dropout import Dropout

_SMALLEST_STD = 1e-3
"""Of a window, relative to the standard deviation of the training part: a constant window is not magnified."""


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
        self, config: ModelConfig, shape: SeriesShape, head: HeadConfig, *, horizon: int, num_quantiles: int
    ) -> None:
        super().__init__()
        if config.input_kind != "series":
            raise ConfigError(
                f"series need a model that reads them, such as patchtst, got model.family={config.family}"
            )
        family: Any = find_family(config.family)
        self.config, self.horizon = config, horizon
        self.body: Any = family.build(config, vocab_size=0, series=shape)
        self.dropout = Dropout(head.dropout)
        self.head = nn.Linear(self.body.num_positions * self.body.width, horizon * (1 + num_quantiles))
        self.margins: Tensor
        self.register_buffer("margins", torch.zeros(horizon, shape.num_columns))

    def conformal_scores(
        self, values: Float[Tensor, "batch time columns"], targets: Float[Tensor, "batch horizon columns"]
    ) -> Float[Tensor, "batch horizon columns"]:
        """How far each value is outside of its quantiles, in units of the window's standard deviation."""
        quantiles = self(values).quantiles
        outside = torch.maximum(quantiles[..., 0] - targets, targets - quantiles[..., -1])
        return outside / self._level_and_scale(values)[1]

    @staticmethod
    def _level_and_scale(
        values: Float[Tensor, "batch time columns"],
    ) -> tuple[Float[Tensor, "batch 1 columns"], Float[Tensor, "batch 1 columns"]]:
        mean = values.mean(dim=1, keepdim=True)
        variance = (values - mean).square().mean(dim=1, keepdim=True)
        return mean, (variance + _SMALLEST_STD**2).sqrt()

    def forward(self, values: Float[Tensor, "batch time columns"]) -> ForecastOutput:
        values = values.to(torch.promote_types(self.head.weight.dtype, torch.float32))
        mean, scale = self._level_and_scale(values)
        hidden_states = self.body.encode((values - mean) / scale).hidden_states
        of_columns = hidden_states.unflatten(1, (values.size(2), -1)).flatten(2)
        found = self.head(self.dropout(of_columns)).unflatten(2, (self.horizon, -1)).transpose(1, 2).to(values.dtype)
        # Each output is an increment to the one before: quantiles cannot cross.
        point, lowest, steps = found[..., :1], found[..., 1:2], nn.functional.softplus(found[..., 2:])
        found = torch.cat([point, lowest, lowest + steps.cumsum(dim=-1)], dim=-1)
        outputs = found * scale[..., None] + mean[..., None]
        margins, quantiles = self.margins * scale, outputs[..., 1:]
        lower = quantiles[..., 0] - margins
        return ForecastOutput(outputs[..., 0], quantiles, lower, torch.maximum(quantiles[..., -1] + margins, lower))


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
