"""Arithmetic in fewer bits: a part of a network in float16, and matrix products in float8.

Micikevicius et al., "Mixed Precision Training" (2017), section 3.2. https://arxiv.org/abs/1710.03740
Micikevicius et al., "FP8 Formats for Deep Learning" (2022). https://arxiv.org/abs/2209.05433

    HalfPrecision               float16 with gradient scaling for a part of a network
    to_float8, float8_matmul    products in float8, twice as fast as in 16 bits where the device has them
"""

from functools import cache
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.kernels import has_kernels

_MULTIPLE = 16
"""Sizes of float8 matrices must be multiples of this."""
_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs with float8 products."""
_TILE = 128
"""Side of the tiles in which a float8 matrix is transposed."""


class HalfPrecision:
    """Tensors between `enter` and `leave` are float16, and so are their gradients, which are scaled.

    cuDNN has its fastest recurrent kernels for float16 only, whose smallest positive
    number is 6e-8; gradients of a mean over thousands of tokens are smaller. So
    gradients are multiplied where they enter the backward pass, by the power of two
    that brings the largest of them between 1/2 and 1, and divided by it where they
    leave it. Micikevicius et al. (2017) use one factor for the whole network, found
    by a search. The factor stays on the device: nothing synchronizes.
    """

    def __init__(self) -> None:
        self.factor: Tensor | None = None
        """The factor by which the gradients were multiplied."""

    def enter(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return `tensors` in float16."""
        return cast(Any, _Enter.apply)(self, *tensors)

    def leave(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return `tensors` in float32."""
        return cast(Any, _Leave.apply)(self, *tensors)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: HalfPrecision, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.part, ctx.dtypes = part, [tensor.dtype for tensor in tensors]
        ctx.set_materialize_grads(False)
        return tuple(tensor.to(torch.float16, copy=True) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides the name of ctx
        factor = ctx.part.factor
        unscaled = (
            None if gradient is None else (gradient.float() / factor).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return None, *unscaled


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: HalfPrecision, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.part = part
        ctx.set_materialize_grads(False)
        return tuple(tensor.float() for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides the name of ctx
        largest = torch.stack([gradient.abs().amax() for gradient in gradients if gradient is not None]).amax()
        # Gradients that are all zero, infinite or NaN are passed on unscaled.
        exponent = torch.log2(1.0 / largest).floor().nan_to_num(0.0, posinf=0.0, neginf=0.0).clamp(-100, 100)
        ctx.part.factor = torch.exp2(exponent)
        scaled = (None if gradient is None else (gradient * ctx.part.factor).half() for gradient in gradients)
        return None, *scaled


class Float8Matrix(NamedTuple):
    """A matrix in float8: `numbers` times `scale`.

    Weights and hidden states are rounded to e4m3 (three bits of mantissa), gradients
    to e5m2 (two bits and a wider range).
    """

    numbers: Float[Tensor, "rows columns"]
    scale: Float[Tensor, ""]

    @property
    def transposed(self) -> "Float8Matrix":
        """The transposed matrix, contiguous."""
        return Float8Matrix(_transpose(self.numbers), self.scale)


@cache
def cpu_has_bfloat16() -> bool:
    """Return whether the CPU has instructions for bfloat16, without which products are slower than in float32."""
    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(has_instructions) and torch.backends.mkldnn.is_available()


def has_float8(device: torch.device) -> bool:
    """Return whether the device has float8 matrix products."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY


def fits_float8(*sizes: int) -> bool:
    """Return whether matrices of these sizes can be multiplied in float8."""
    return all(size % _MULTIPLE == 0 for size in sizes)


def to_float8(x: Float[Tensor, "rows columns"]) -> Float8Matrix:
    """Round a matrix to e4m3, scaled so that its largest number is representable."""
    largest = x.abs().amax().float().clamp(min=torch.finfo(torch.float32).tiny)
    scale = largest / torch.finfo(torch.float8_e4m3fn).max
    return Float8Matrix((x / scale.to(x.dtype)).to(torch.float8_e4m3fn), scale)


def float8_matmul(
    a: Float8Matrix, b: Float8Matrix, dtype: torch.dtype, *, use_fast_accum: bool = False
) -> Float[Tensor, "rows others"]:
    """Return `a @ b.T`, accumulated in float32; with `use_fast_accum` faster and with fewer digits."""
    whole = F.ScalingType.TensorWise
    return F.scaled_mm(
        a.numbers, b.numbers.t(), a.scale, whole, b.scale, whole, output_dtype=dtype, use_fast_accum=use_fast_accum
    )


def _transpose(x: Float[Tensor, "rows columns"]) -> Float[Tensor, "columns rows"]:
    # PyTorch transposes single bytes at a tenth of the memory bandwidth.
    if not has_kernels(x):
        return x.t().contiguous()
    from regard.nn.kernels.cross_entropy import transpose_bytes

    y = x.new_empty(x.size(1), x.size(0))
    transpose_bytes[(-(-x.size(0) // _TILE), -(-x.size(1) // _TILE))](
        x.view(torch.uint8), y.view(torch.uint8), x.size(0), x.size(1), SIDE=_TILE
    )
    return y
