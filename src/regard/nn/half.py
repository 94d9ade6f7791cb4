"""A part of a network in float16 whose gradients are enlarged on their way through it.

cuDNN has its fastest recurrent kernels for float16 alone, whose smallest number is
6e-8: gradients of a mean over thousands of tokens are smaller. So they are
multiplied where they come in, by the power of two that brings the largest of
them between 1/2 and 1, and divided by it where they go out. Micikevicius et al., "Mixed
Precision Training" (2017), section 3.2, does so with one factor for a whole
network and a search for it. https://arxiv.org/abs/1710.03740

Nothing is read back from the device: the factor stays there.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class HalfPrecision:
    """What goes in by `enter` is in float16 until it goes out by `leave`, gradients on their way back too."""

    def __init__(self) -> None:
        self.factor: Tensor | None = None
        """By which the gradients that have come in were multiplied."""

    def enter(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """`tensors` in float16."""
        return cast(Any, _Enter.apply)(self, *tensors)

    def leave(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """`tensors` in float32."""
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
        made = (
            None if gradient is None else (gradient.float() / factor).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return None, *made


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
        # Gradients that are all zero, or not numbers, are handed on as they are.
        exponent = torch.log2(1.0 / largest).floor().nan_to_num(0.0, posinf=0.0, neginf=0.0).clamp(-100, 100)
        ctx.part.factor = torch.exp2(exponent)
        made = (None if gradient is None else (gradient * ctx.part.factor).half() for gradient in gradients)
        return None, *made
