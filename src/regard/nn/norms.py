"""Normalisation of the residual stream.

Ba et al., "Layer Normalization" (2016). https://arxiv.org/abs/1607.06450
Zhang & Sennrich, "Root Mean Square Layer Normalization" (2019). https://arxiv.org/abs/1910.07467

    LayerNorm   g * (x - mean(x)) / sqrt(var(x) + eps) + b      gain g and bias b are learned
    RMSNorm     g * x / sqrt(mean(x^2) + eps)                   no centring, no bias
"""

from typing import Literal

from torch import nn

Norm = Literal["layer", "rms", "none"]

_EPSILON = 1e-5
"""Keeps the division finite; the value of `nn.LayerNorm`."""


def make_norm(norm: Norm, model_dim: int) -> nn.Module:
    """A fresh normalisation layer over vectors of `model_dim` numbers."""
    match norm:
        case "layer":
            return nn.LayerNorm(model_dim, eps=_EPSILON)
        case "rms":
            return nn.RMSNorm(model_dim, eps=_EPSILON)
        case "none":
            return nn.Identity()
