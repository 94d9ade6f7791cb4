r"""Weights of 8 bits, for writing on a CPU: a quarter of the memory, and about twice the speed of 32 bits.

Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), section 2. https://arxiv.org/abs/1712.05877

A row of a matrix is stored as integers of -127..127 and the scale they share,

$$ W_{ij} \approx s_i \, q_{ij}, \qquad s_i = \max_j |W_{ij}| / 127, $$

so no weight moves by more than $s_i / 2$. What a layer is handed is rounded the
same way whenever it is called, with one scale for the batch; with 7 bits,
because processors without an instruction of their own add pairs of products in
16 bits. Sums are of 32 bits, and all else (embeddings, norms, attention) stays
as it is.
"""

import copy
import warnings
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError

_LARGEST = 127
_ENGINE = "fbgemm"
"""PyTorch's library for products of 8 bits on x86."""

Model = TypeVar("Model", bound=nn.Module)


def quantized(model: Model) -> Model:
    """A copy of `model` to write with, whose linear layers hold weights of 8 bits. It cannot be trained or moved.

    A tied output projection is quantised, the embedding that it shared its
    weights with is not.
    """
    devices = {parameter.device.type for parameter in model.parameters()}
    if devices - {"cpu"}:
        raise ConfigError(f"weights of 8 bits are for a CPU, got a model on {', '.join(sorted(devices))}")
    if _ENGINE not in torch.backends.quantized.supported_engines:
        raise ConfigError(f"products of 8 bits need PyTorch with {_ENGINE}, which is there on x86 only")
    made = copy.deepcopy(model).eval().requires_grad_(False)
    for module in list(made.modules()):
        for name, part in module.named_children():
            if type(part) is nn.Linear:
                setattr(module, name, QuantizedLinear(part))
    return made


class QuantizedLinear(nn.Module):
    """Stands in the place of a `nn.Linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        bias = None if linear.bias is None else linear.bias.detach().float()
        # Of a row of zeros, any scale is right.
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor, torch.quantize_per_channel", UserWarning)
            rounded = torch.quantize_per_channel(weight, scales.double(), zeros, axis=0, dtype=torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, x: Float[Tensor, "*rows input"]) -> Float[Tensor, "*rows output"]:
        return torch.ops.quantized.linear_dynamic(x.float(), self._packed, reduce_range=True).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"
