"""Normalization of the residual stream.

Ba et al., "Layer Normalization" (2016). https://arxiv.org/abs/1607.06450
Zhang & Sennrich, "Root Mean Square Layer Normalization" (2019). https://arxiv.org/abs/1910.07467

    LayerNorm   g * (x - mean(x)) / sqrt(var(x) + eps) + b      gain g and bias b are learned
    RMSNorm     g * x / sqrt(mean(x^2) + eps)                   no centering, no bias

The output has the dtype of the input, also under autocast, which would compute
both in float32: the kernels accumulate in float32 in any case, and half of the
time of a norm is reading and writing.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Literal["layer", "rms", "none"]

_EPSILON = 1e-5
"""Keeps the division finite; the value of `nn.LayerNorm`."""


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


def make_norm(norm: Norm, model_dim: int, *, epsilon: float = _EPSILON) -> nn.Module:
    """Return a new normalization layer for vectors of width `model_dim`."""
    match norm:
        case "layer":
            return LayerNorm(model_dim, eps=epsilon)
        case "rms":
            return RMSNorm(model_dim, eps=epsilon)
        case "none":
            return nn.Identity()
