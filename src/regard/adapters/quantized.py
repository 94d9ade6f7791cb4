r"""Frozen weights in 8 or 4 bits: stored as integers, and dequantized whenever they are multiplied.

Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs" (2023), section 3. https://arxiv.org/abs/2305.14314
The levels are not theirs but the evenly spaced ones of Jacob et al. (2018), arXiv 1712.05877, section 2.1.

In 8 bits a row of a matrix shares a scale, in 4 bits each 64 neighbours of a row
share a scale and a zero point,

$$ W_{ij} \approx s_i \, q_{ij}, \quad q \in \{-127 \dots 127\}, \qquad
   W_{ij} \approx s_{ig} \, (q_{ij} - z_{ig}), \quad q, z \in \{0 \dots 15\}, $$

so that no weight changes by more than half its scale, and zero remains zero. The
scales have the dtype of the weights: in float32, 4 bits become 4.6 per weight.

Dimensions: `input` and `output` widths of a layer, `groups` of 64 inputs.
"""

from collections.abc import Iterable
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8, UInt8
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.errors import ConfigError

Bits = Literal[4, 8]

_GROUP = 64
_LARGEST = {4: 15, 8: 127}


class QuantizedLinear(nn.Module):
    """A frozen linear layer with weights of 8 or 4 bits; gradients pass through it to its input.

    The matrix exists only while it is multiplied: it is dequantized in the forward
    and in the backward pass, and not stored in between.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, *, bits: Bits) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bits = linear.in_features, linear.out_features, bits
        weight = linear.weight.detach()
        codes, scales, zeros = (*_quantize_8(weight), None) if bits == 8 else _quantize_4(weight)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def forward(self, x: Float[Tensor, "*rows input"]) -> Float[Tensor, "*rows output"]:
        return cast(Any, _QuantizedProduct.apply)(x, self)

    @torch.no_grad()
    def matrix(self) -> Float[Tensor, "output input"]:
        """Return the dequantized weights, in a new tensor."""
        if self.zeros is None:
            return self.codes.to(self.scales.dtype).mul_(self.scales[:, None])
        weights = self.scales.new_empty(*self.scales.shape, _GROUP)
        weights[..., : _GROUP // 2] = self.codes & 15
        weights[..., _GROUP // 2 :] = self.codes >> 4
        weights.sub_(self.zeros[..., None]).mul_(self.scales[..., None])
        return weights.flatten(1)[:, : self.in_features]

    def dequantized(self) -> nn.Linear:
        """Return a frozen `nn.Linear` with the dequantized weights."""
        return frozen_linear(self.matrix(), self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bits={self.bits}"


def quantize_layers(model: nn.Module, names: Iterable[str], *, bits: Bits) -> None:
    """Replace, in place, the linear layers of these names by quantized ones."""
    for name in names:
        layer = model.get_submodule(name)
        if isinstance(layer, QuantizedLinear):
            if layer.bits != bits:
                raise ConfigError(f"{name} is quantized to {layer.bits} bits already, got bits={bits}")
            continue
        assert isinstance(layer, nn.Linear)
        model.set_submodule(name, QuantizedLinear(layer, bits=bits))


@torch.no_grad()
def frozen_linear(weight: Float[Tensor, "output input"], bias: Float[Tensor, " output"] | None) -> nn.Linear:
    """Return a frozen linear layer with copies of these."""
    num_outputs, num_inputs = weight.shape
    linear = nn.utils.skip_init(
        nn.Linear, num_inputs, num_outputs, bias=bias is not None, device=weight.device, dtype=weight.dtype
    )
    assert isinstance(linear, nn.Linear)
    linear.weight.copy_(weight)
    if bias is not None:
        linear.bias.copy_(bias)
    return linear.requires_grad_(False)


class _QuantizedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.matrix(), layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides the name of ctx
        (gradient,) = gradients
        return gradient @ ctx.layer.matrix().to(gradient.dtype), None


def _quantize_8(
    weight: Float[Tensor, "output input"],
) -> tuple[Int8[Tensor, "output input"], Float[Tensor, " output"]]:
    # A row of zeros may have any positive scale.
    scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).tiny) / _LARGEST[8]
    return (weight / scales[:, None]).round().clamp(-_LARGEST[8], _LARGEST[8]).to(torch.int8), scales


def _quantize_4(
    weight: Float[Tensor, "output input"],
) -> tuple[UInt8[Tensor, "output groups 32"], Float[Tensor, "output groups"], UInt8[Tensor, "output groups"]]:
    """Return codes whose lower bits are the first half of a group and whose upper bits are the second."""
    num_groups = -(-weight.size(1) // _GROUP)
    grouped = F.pad(weight, (0, num_groups * _GROUP - weight.size(1))).unflatten(1, (num_groups, _GROUP))
    lowest, highest = grouped.amin(dim=2).clamp(max=0.0), grouped.amax(dim=2).clamp(min=0.0)
    scales = ((highest - lowest) / _LARGEST[4]).clamp(min=torch.finfo(weight.dtype).tiny)
    zeros = (-lowest / scales).round()
    codes = ((grouped / scales[..., None]).round() + zeros[..., None]).clamp(0, _LARGEST[4]).to(torch.uint8)
    lower, upper = codes.chunk(2, dim=2)
    return lower | upper << 4, scales, zeros.to(torch.uint8)
