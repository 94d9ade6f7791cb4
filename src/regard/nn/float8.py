"""Matrix products in eight bits, where the device has them: twice as fast as in sixteen.

Micikevicius et al., "FP8 Formats for Deep Learning" (2022). https://arxiv.org/abs/2209.05433

Weights and states are rounded to e4m3, which has three bits behind the point;
gradients to e5m2, which has two and reaches further. Each matrix has one scale.
Sums are taken in float32.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.kernels import has_kernels

_MULTIPLE = 16
"""Sizes of matrices that the products can deal with are multiples of this."""
_CAPABILITY = (8, 9)
"""Of the first GPUs that multiply in eight bits."""

_SIDE = 128
"""Of the squares that a matrix is transposed by."""


class Scaled(NamedTuple):
    """A matrix in eight bits: `numbers` times `scale`."""

    numbers: Float[Tensor, "rows columns"]
    scale: Float[Tensor, ""]

    @property
    def transposed(self) -> "Scaled":
        """The transposed matrix, laid out row by row."""
        return Scaled(_transposed(self.numbers), self.scale)


def has_float8(device: torch.device) -> bool:
    """Whether products in eight bits are worth while on this device."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY


def fits_float8(*sizes: int) -> bool:
    """Whether matrices of these sizes can be multiplied in eight bits."""
    return all(size % _MULTIPLE == 0 for size in sizes)


def scaled(x: Float[Tensor, "rows columns"]) -> Scaled:
    """A matrix of weights or states, rounded to e4m3 so that its largest number fits."""
    largest = x.abs().amax().float().clamp(min=torch.finfo(torch.float32).tiny)
    scale = largest / torch.finfo(torch.float8_e4m3fn).max
    return Scaled((x / scale.to(x.dtype)).to(torch.float8_e4m3fn), scale)


def product(a: Scaled, b: Scaled, dtype: torch.dtype, *, is_quick: bool = False) -> Float[Tensor, "rows others"]:
    """`a @ b.T`; with `is_quick`, the device's faster sums, which have fewer digits."""
    whole = F.ScalingType.TensorWise
    return F.scaled_mm(
        a.numbers, b.numbers.t(), a.scale, whole, b.scale, whole, output_dtype=dtype, use_fast_accum=is_quick
    )


def _transposed(x: Float[Tensor, "rows columns"]) -> Float[Tensor, "columns rows"]:
    # PyTorch transposes single bytes ten times slower than memory allows.
    if not has_kernels(x):
        return x.t().contiguous()
    from regard.kernels.transposition import transpose_bytes

    y = x.new_empty(x.size(1), x.size(0))
    transpose_bytes[(-(-x.size(0) // _SIDE), -(-x.size(1) // _SIDE))](
        x.view(torch.uint8), y.view(torch.uint8), x.size(0), x.size(1), SIDE=_SIDE
    )
    return y
