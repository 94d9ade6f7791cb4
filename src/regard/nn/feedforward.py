"""The position-wise feed-forward network: the same small network at each position.

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
    """max(0, x)^2, smooth at zero and sparse like ReLU."""
    return F.relu(x).square()


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "squared-relu": squared_relu,
    "swiglu": F.silu,
}
"""Those that the kernels of decoding know as well."""
_OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "geglu": F.gelu,
    "geglu-tanh": partial(F.gelu, approximate="tanh"),
}
_GATED = ("swiglu", "geglu", "geglu-tanh")


class FeedForward(nn.Module):
    """Widen, bend, narrow: `output(activation(input(x)))`.

    With `swiglu` a second projection gates the first: `output(silu(gate(x)) * input(x))`,
    and the layer has half as many weights again at the same `feedforward_dim`; `geglu` has
    gelu for silu, and `geglu-tanh` its approximation.
    """

    def __init__(
        self, model_dim: int, feedforward_dim: int, *, activation: Activation = "relu", bias: bool = True
    ) -> None:
        super().__init__()
        self.activation = (_FUNCTIONS | _OTHERS)[activation]
        self.input = nn.Linear(model_dim, feedforward_dim, bias=bias)
        self.gate = nn.Linear(model_dim, feedforward_dim, bias=bias) if activation in _GATED else None
        self.output = nn.Linear(feedforward_dim, model_dim, bias=bias)

    def forward(self, x: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        if self.gate is None:
            hidden = self.activation(self.input(x))
        else:
            hidden = self.activation(self.gate(x)) * self.input(x)
        return self.output(hidden)
