"""Normalization of the residual stream.

Ba et al., "Layer Normalization" (2016). https://arxiv.org/abs/1607.06450
Zhang & Sennrich, "Root Mean Square Layer Normalization" (2019). https://arxiv.org/abs/1910.07467
Ioffe & Szegedy, "Batch Normalization" (2015). https://arxiv.org/abs/1502.03167

    LayerNorm   g * (x - mean(x)) / sqrt(var(x) + eps) + b      gain g and bias b are learned
    RMSNorm     g * x / sqrt(mean(x^2) + eps)                   no centering, no bias
    BatchNorm   LayerNorm with the statistics of each channel over the images of a batch and their pixels

The output has the dtype of the input, also under autocast, which would compute
the first two in float32: the kernels accumulate in float32 in any case, and half
of the time of a norm is reading and writing.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Norm = Literal["layer", "rms", "none"]

_EPSILON = 1e-5
"""Keeps the division finite; the value of `nn.LayerNorm`."""
_MOMENTUM = 0.1
"""The share of the newest batch in the moving average of batch normalization; the value of `nn.BatchNorm2d`."""


class LayerNorm(nn.LayerNorm):
    """Layer normalization in the dtype of its input."""

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(input.device.type):
            return super().forward(input)
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        with torch.autocast(input.device.type, enabled=False):
            return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """Normalization by the root mean square in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        assert self.weight is not None
        with torch.autocast(x.device.type, enabled=False):
            return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class BatchNorm(nn.Module):
    """Batch normalization of feature maps; outside of training by a moving average of the statistics.

    A layer whose gain is frozen uses the moving average in training too, and does not change it: what is not trained
    stays as it is.
    """

    def __init__(self, num_channels: int, *, epsilon: float = _EPSILON) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.mean: Tensor
        self.variance: Tensor
        self.register_buffer("mean", torch.zeros(num_channels))
        self.register_buffer("variance", torch.ones(num_channels))
        self.sum_over_processes: Callable[[Tensor], Tensor] | None = None
        """Sums a tensor over the processes that share a batch; None where there is one."""

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        is_of_batch = self.training and self.weight.requires_grad
        if is_of_batch and self.sum_over_processes is not None:
            return self._normalize_shared(x, self.sum_over_processes)
        return F.batch_norm(
            x, self.mean, self.variance, self.weight, self.bias, is_of_batch, momentum=_MOMENTUM, eps=self.epsilon
        )

    def _normalize_shared(
        self, x: Float[Tensor, "batch channels height width"], add: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch channels height width"]:
        """The same where the batch is spread over processes: its statistics are those of all of their images."""
        values = x.to(self.mean.dtype)
        count = add(torch.tensor(float(x.numel() // x.size(1)), dtype=torch.float64))
        num_values = count.to(values)
        mean = add(values.sum(dim=(0, 2, 3))) / num_values
        centered = values - mean[:, None, None]
        variance = add((centered * centered).sum(dim=(0, 2, 3))) / num_values
        with torch.no_grad():
            self.mean.lerp_(mean, _MOMENTUM)
            self.variance.lerp_(variance * (num_values / (num_values - 1)), _MOMENTUM)
        scale = self.weight * (variance + self.epsilon).rsqrt()
        return (centered * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)


def make_norm(norm: Norm, model_dim: int, *, epsilon: float = _EPSILON) -> nn.Module:
    """Return a new normalization layer for vectors of width `model_dim`."""
    match norm:
        case "layer":
            return LayerNorm(model_dim, eps=epsilon)
        case "rms":
            return RMSNorm(model_dim, eps=epsilon)
        case "none":
            return nn.Identity()
