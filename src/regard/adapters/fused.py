r"""The product of an adapted layer and its gradients, in few passes over anything long.

$$ y = c \odot (W x + s B A \tilde x) + \text{bias} $$

where $\tilde x$ is $x$ with some of its numbers dropped, and $c$ is 1, or the
magnitudes of DoRA divided by the lengths of the rows of $W + s B A$, which no
gradient flows through. `LoRALinear.plain` is the specification.

- Where nothing is dropped and there are many rows, the correction is added to the
  matrix and not to the product: $W + s B A$ costs what a few rows do.
- $W$ is frozen, so what is kept for the gradients is $x$ and, of what was
  dropped, a byte for each number. All else is made again.
- Products with the rank as one side have it as their first: MKL takes up to ten
  times as long for the same product the other way round.

Dimensions: `rows` vectors, `input` and `output` widths, `rank` of the correction.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.adapters.quantized import PackedLinear

Frozen = nn.Linear | PackedLinear

_LEVELS = 1 << 16
"""Into so many equal parts is the chance divided that a number is dropped, on a CPU."""
_PART = 1 << 18
"""Numbers that a CPU works on at a time, where passes over all of them would need memory of their own."""


class Correction(NamedTuple):
    """What is learned beside a frozen matrix W: `scale` B A, and with a magnitude the length of each row of the sum."""

    a: Float[Tensor, "rank input"]
    b: Float[Tensor, "output rank"]
    magnitude: Float[Tensor, " output"] | None
    scale: float

    def joined(self, matrix: Float[Tensor, "output input"]) -> Float[Tensor, "output input"]:
        """The one matrix that an adapted layer amounts to."""
        total = self.added_to(matrix)
        return total if self.magnitude is None else total * self.row_factors(total)[:, None]

    def added_to(self, matrix: Float[Tensor, "output input"]) -> Float[Tensor, "output input"]:
        """The total, W + `scale` B A."""
        return torch.addmm(matrix, self.b, self.a, alpha=self.scale)

    def row_factors(self, total: Float[Tensor, "output input"]) -> Float[Tensor, " output"]:
        """What gives the rows of the total their magnitudes; a row of zeros stays one."""
        assert self.magnitude is not None
        lengths = torch.linalg.vector_norm(total.detach(), dim=1)
        return self.magnitude / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)


def adapted_product(
    x: Float[Tensor, "*rows input"], base: Frozen, correction: Correction, *, dropout: float = 0.0
) -> Float[Tensor, "*rows output"]:
    """What an adapted layer makes of `x`. The weights of `base` get no gradient.

    `dropout` is the chance of each number to be dropped on its way into the correction.
    """
    flat = x.reshape(-1, x.size(-1))
    kept = _draw_kept(flat, dropout) if dropout else None
    return cast(Any, _AdaptedProduct.apply)(flat, *correction, base, kept).view(*x.shape[:-1], -1)


def matrix_of(base: Frozen) -> Float[Tensor, "output input"]:
    """The weights of a frozen layer, as numbers."""
    return base.matrix() if isinstance(base, PackedLinear) else base.weight.detach()


class _Kept(NamedTuple):
    """Which numbers are not dropped, and what they are enlarged by to make up."""

    mask: Bool[Tensor, "rows input"]
    factor: float


def _draw_kept(x: Float[Tensor, "rows input"], probability: float) -> _Kept:
    """Drop what `regard.nn.dropout.Dropout` would drop from the same seed."""
    if x.device.type != "cpu":
        return _Kept(torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - probability), 1.0 / (1.0 - probability))
    dropped = round(probability * _LEVELS)
    bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    mask = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _LEVELS // 2
    return _Kept(mask, _LEVELS / (_LEVELS - dropped))


class _Factors(NamedTuple):
    """What the forward and the backward pass multiply by."""

    weight: Float[Tensor, "output input"]
    """Of `x`: the joined matrix, or the frozen one with its rows scaled."""
    gain: Float[Tensor, " output"] | float
    """Of what B A makes of what is not dropped."""
    is_joined: bool


def _factors(num_rows: int, base: Frozen, correction: Correction, kept: _Kept | None) -> _Factors:
    matrix = matrix_of(base)
    gain = correction.scale if kept is None else correction.scale * kept.factor
    if correction.magnitude is not None:
        total = correction.added_to(matrix)
        rows = correction.row_factors(total)
        return _Factors((total if kept is None else matrix) * rows[:, None], gain * rows, kept is None)
    num_outputs, num_inputs = matrix.shape
    is_joined = kept is None and num_rows * (num_inputs + num_outputs) >= num_inputs * num_outputs
    return _Factors(correction.added_to(matrix) if is_joined else matrix, gain, is_joined)


class _AdaptedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "rows input"],
        a: Float[Tensor, "rank input"],
        b: Float[Tensor, "output rank"],
        magnitude: Float[Tensor, " output"] | None,
        scale: float,
        base: Frozen,
        kept: _Kept | None,
    ) -> Float[Tensor, "rows output"]:
        weight, gain, is_joined = _factors(len(x), base, Correction(a, b, magnitude, scale), kept)
        y = F.linear(x, weight, base.bias)
        if not is_joined:
            narrowed = torch.cat([a @ part.t() for part in _parts(x, kept)], dim=1)
            y.addmm_(narrowed.t(), b.t() * gain)
        # The gradient of the magnitudes needs the product, which whatever comes next mostly keeps in any case.
        ctx.save_for_backward(x, a, b, magnitude, None if magnitude is None else y)
        ctx.scale, ctx.base, ctx.kept = scale, base, kept
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides the name of ctx
        (gradient,) = gradients
        x, a, b, magnitude, y = ctx.saved_tensors
        weight, gain, is_joined = _factors(len(x), ctx.base, Correction(a, b, magnitude, ctx.scale), ctx.kept)
        inner = (b.t() * gain).contiguous() @ gradient.t()
        for_a, narrowed, first = torch.zeros_like(a), [], 0
        for part in _parts(x, ctx.kept):
            for_a.addmm_(inner[:, first : first + len(part)], part)
            narrowed.append(a @ part.t())
            first += len(part)
        for_b = ((torch.cat(narrowed, dim=1) @ gradient) * gain).t()
        for_x = None
        if ctx.needs_input_grad[0]:
            for_x = gradient @ weight
            if not is_joined:
                _add_dropped(for_x, inner.t(), a, ctx.kept)
        for_magnitude = None if magnitude is None else _magnitude_gradient(magnitude, gradient, y, ctx.base.bias)
        return for_x, for_a, for_b, for_magnitude, None, None, None


def _parts(x: Float[Tensor, "rows input"], kept: _Kept | None) -> Iterator[Float[Tensor, "part input"]]:
    """The rows of `x` less what is dropped, so few at a time that they stay in the cache."""
    if kept is None:
        yield x
        return
    num_rows = _part_length(x)
    for part, mask in zip(x.split(num_rows), kept.mask.split(num_rows), strict=True):
        yield part * mask


def _add_dropped(
    total: Float[Tensor, "rows input"],
    inner: Float[Tensor, "rows rank"],
    a: Float[Tensor, "rank input"],
    kept: _Kept | None,
) -> None:
    """Add `inner` A to `total`, but where numbers are dropped."""
    if kept is None:
        total.addmm_(inner, a)
        return
    num_rows = _part_length(total)
    for part, factor, mask in zip(*(all.split(num_rows) for all in (total, inner, kept.mask)), strict=True):
        part += (factor @ a).mul_(mask)


def _magnitude_gradient(
    magnitude: Float[Tensor, " output"],
    gradient: Float[Tensor, "rows output"],
    y: Float[Tensor, "rows output"],
    bias: Float[Tensor, " output"] | None,
) -> Float[Tensor, " output"]:
    """By the product, which is the magnitude times what its gradient is made of."""
    num_rows = _part_length(y)
    along = torch.zeros_like(magnitude)
    for part, made in zip(gradient.split(num_rows), y.split(num_rows), strict=True):
        along += (part * (made if bias is None else made - bias)).sum(dim=0)
    # A magnitude of exactly zero hides what it multiplied.
    return torch.where(magnitude == 0.0, 0.0, along / magnitude)


def _part_length(x: Float[Tensor, "rows width"]) -> int:
    return max(1, _PART // x.size(1)) if x.device.type == "cpu" else max(1, len(x))
