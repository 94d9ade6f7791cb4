"""The position-wise feed-forward network: one network applied to each position.

Vaswani et al. (2017), section 3.3, equation 2: `W2 relu(W1 x)`.
Hendrycks & Gimpel, "Gaussian Error Linear Units" (2016), exact and by tanh. https://arxiv.org/abs/1606.08415
Shazeer, "GLU Variants Improve Transformer" (2020). https://arxiv.org/abs/2002.05202
So et al., "Primer" (2021): squared ReLU. https://arxiv.org/abs/2109.08668
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "squared-relu", "swiglu", "geglu", "geglu-tanh"]


def squared_relu(x: Tensor) -> Tensor:
    """Return max(0, x)^2, which is differentiable at zero and sparse like ReLU."""
    return F.relu(x).square()


FUSED_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "squared-relu": squared_relu,
    "swiglu": F.silu,
}
"""Activations that the fused decoding kernels implement as well."""
_OTHER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "geglu": F.gelu,
    "geglu-tanh": partial(F.gelu, approximate="tanh"),
}
_GATED = ("swiglu", "geglu", "geglu-tanh")


class FeedForward(nn.Module):
    """Two linear layers with an activation between them: `output(activation(input(x)))`.

    With `swiglu` a second projection gates the first: `output(silu(gate(x)) * input(x))`,
    which has 1.5 times as many weights at the same `feedforward_dim`. `geglu` uses GELU
    instead of SiLU, `geglu-tanh` its tanh approximation.
    """

    def __init__(
        self, model_dim: int, feedforward_dim: int, *, activation: Activation = "relu", bias: bool = True
    ) -> None:
        super().__init__()
        self.activation = (FUSED_ACTIVATIONS | _OTHER_ACTIVATIONS)[activation]
        self.input = nn.Linear(model_dim, feedforward_dim, bias=bias)
        self.gate = nn.Linear(model_dim, feedforward_dim, bias=bias) if activation in _GATED else None
        self.output = nn.Linear(feedforward_dim, model_dim, bias=bias)

    def forward(self, x: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        if self.gate is None:
            hidden = self.activation(self.input(x))
        else:
            hidden = self.activation(self.gate(x)) * self.input(x)
        return self.output(hidden)
