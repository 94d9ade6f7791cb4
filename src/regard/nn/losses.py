r"""Cross-entropy with label smoothing, of scores or of the states that scores are made from.

Szegedy et al., "Rethinking the Inception Architecture" (2015), section 7.
https://arxiv.org/abs/1512.00567

With $V$ tokens, smoothing $\epsilon$, scores $s$ and log-probabilities $\ell$, a target $t$ costs

$$ -(1 - \epsilon)\, \ell_t - \frac{\epsilon}{V} \sum_i \ell_i = -\ell_t + \epsilon\, (s_t - \bar s) $$

and its gradient by the scores is $p - \epsilon / V$, less $1 - \epsilon$ at $t$.

Where there are many tokens to choose from, the scores are the largest thing in
a step, and `linear_cross_entropy` never holds them all.

Dimensions: `tokens` predictions, `vocab` tokens to choose from, `model` width of a state.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels import has_kernels
from regard.nn.float8 import Scaled, fits_float8, product, scaled

IGNORED = -100
"""The target of a position that does not count."""

_CPU_CHUNK, _GPU_CHUNK = 1 << 26, 1 << 32
"""Bytes that the scores of one chunk would take in float32, at most."""
_GPU_SHARE = 32
"""On a GPU, also no more than one part in so many of its memory."""
_TILE = 128
_SCORED_AT_ONCE = 4096
"""Scores that a program on a GPU reads at a time."""


def cross_entropy(
    scores: Float[Tensor, "tokens vocab"], targets: Int[Tensor, " tokens"], *, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """The loss summed over all targets but `IGNORED` ones.

    The value of `torch.nn.functional.cross_entropy(..., reduction="sum")`, in
    fewer passes over the scores, which are the largest thing in a step.
    """
    return _CrossEntropy.apply(scores, targets, label_smoothing)  # pyright: ignore[reportReturnType]  apply is untyped


def linear_cross_entropy(
    states: Float[Tensor, "tokens model"],
    weight: Float[Tensor, "vocab model"],
    targets: Int[Tensor, " tokens"],
    *,
    label_smoothing: float = 0.0,
    chunk_size: int | None = None,
    is_float8: bool = False,
) -> Float[Tensor, ""]:
    r"""The `cross_entropy` of the scores `states @ weight.T`, which are made and forgotten chunk by chunk.

    The loss is a number, so its gradient is known up to a factor as soon as the
    scores are: the gradients by the states and the weight are computed in the
    forward pass, and nothing is computed twice. They cannot be differentiated again.

    Under autocast the matrix products are in its precision, all sums in float32.
    With `is_float8` they are in eight bits, where sizes allow it.
    `chunk_size`, in tokens, is chosen for the device where it is not given.
    """
    is_wanted = [torch.is_grad_enabled() and x.requires_grad for x in (states, weight)]
    chunk_size = chunk_size or _chunk_size(weight, len(states))
    products = _Float8Products if is_float8 and fits_float8(*states.shape, *weight.shape, chunk_size) else _Products
    return _apply(states, weight, targets, label_smoothing, chunk_size, products, *is_wanted)


@torch.no_grad()
def linear_log_likelihoods(
    states: Float[Tensor, "tokens model"],
    weight: Float[Tensor, "vocab model"],
    targets: Int[Tensor, " tokens"],
    *,
    chunk_size: int | None = None,
) -> Float[Tensor, " tokens"]:
    """The log-probability of each target under the scores of `linear_cross_entropy`; 0 where it is `IGNORED`.

    For evaluation: it has no gradient.
    """
    counts = targets != IGNORED
    places = targets.where(counts, 0)[:, None]
    chunk_size = chunk_size or _chunk_size(weight, len(states))
    states, weight = _as_factor(states), _as_factor(weight)
    found = [
        (rows @ weight.T).log_softmax(-1, dtype=_sum_dtype(rows)).gather(1, goals)
        for rows, goals in zip(states.split(chunk_size), places.split(chunk_size), strict=True)
    ]
    return torch.cat(found)[:, 0].where(counts, 0.0)


def consistent_cross_entropy(
    scores: Float[Tensor, "tokens vocab"],
    targets: Int[Tensor, " tokens"],
    *,
    label_smoothing: float = 0.0,
    weight: float,
) -> Float[Tensor, ""]:
    r"""The mean `cross_entropy` of two readings of the same targets, and how far the two disagree.

    Liang et al., "R-Drop: Regularized Dropout for Neural Networks" (2021), equation 4.
    https://arxiv.org/abs/2106.14448

    The second half of the rows are the first half's targets again, scored with
    another dropout. With $w$ = `weight` and $p$, $q$ the two distributions of a target it costs

    $$ \tfrac12 (L_p + L_q) + \tfrac w4 \big(\mathrm{KL}(p \| q) + \mathrm{KL}(q \| p)\big) $$
    """
    loss = cross_entropy(scores, targets, label_smoothing=label_smoothing) / 2
    one, other = scores.log_softmax(-1, dtype=_sum_dtype(scores)).chunk(2)
    # KL(p || q) + KL(q || p) = sum (p - q) (log p - log q)
    disagreement = ((one.exp() - other.exp()) * (one - other)).sum(-1)
    counts = targets.chunk(2)[0] != IGNORED
    return loss + weight / 4 * disagreement.where(counts, 0.0).sum()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        # Sums over a vocabulary need more digits than bfloat16 has.
        log_probabilities = scores.log_softmax(-1, dtype=None if scores.dtype == torch.float64 else torch.float32)
        counts = targets != IGNORED
        places = targets.where(counts, 0)[:, None]
        ctx.save_for_backward(log_probabilities, counts, places)
        ctx.label_smoothing, ctx.dtype = label_smoothing, scores.dtype
        losses = -log_probabilities.gather(1, places)[:, 0]
        if label_smoothing:
            losses = (1 - label_smoothing) * losses - label_smoothing * log_probabilities.mean(-1)
        return losses.where(counts, 0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        log_probabilities, counts, places = ctx.saved_tensors
        gradient = log_probabilities.exp()
        if ctx.label_smoothing:
            gradient.sub_(ctx.label_smoothing / gradient.size(-1))
        gradient.scatter_add_(1, places, gradient.new_full(places.shape, ctx.label_smoothing - 1))
        gradient.mul_((counts * gradients[0])[:, None])
        return gradient.to(ctx.dtype), None, None


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        label_smoothing: float,
        chunk_size: int,
        make_products: "type[_Products] | type[_Float8Products]",
        wants_states_gradient: bool,
        wants_weight_gradient: bool,
    ) -> Tensor:
        counts = targets != IGNORED
        places = targets.where(counts, 0)[:, None]
        # A state of zeros adds nothing to the weight's gradient, which spares a mask over the scores.
        inputs, matrix = _as_factor(states.where(counts[:, None], 0.0)), _as_factor(weight)
        dtype, products = _sum_dtype(matrix), make_products(matrix)
        mean_weight = matrix.mean(0, dtype=dtype) if label_smoothing else None

        losses: list[Tensor] = []
        states_gradients: list[Tensor] = []
        weight_gradient: Tensor | None = None
        for rows, goals in zip(inputs.split(chunk_size), places.split(chunk_size), strict=True):
            some_losses, gradient = _losses_and_gradient(
                products,
                rows,
                goals,
                label_smoothing=label_smoothing,
                mean_weight=mean_weight,
                wants_gradient=wants_states_gradient or wants_weight_gradient,
            )
            losses.append(some_losses)
            if gradient is not None and wants_states_gradient:
                some = products.by_states(gradient)
                some = some if mean_weight is None else some - label_smoothing * mean_weight
                states_gradients.append(some.to(states.dtype))
            if gradient is not None and wants_weight_gradient:
                some = products.by_weight(gradient)
                weight_gradient = some.to(dtype) if weight_gradient is None else weight_gradient.add_(some)
            del gradient  # the next chunk's scores can have its room

        if weight_gradient is not None and mean_weight is not None:
            weight_gradient -= inputs.sum(0, dtype=dtype) * (label_smoothing / weight.size(0))
        states_gradient = torch.cat(states_gradients).where(counts[:, None], 0.0) if wants_states_gradient else None
        ctx.save_for_backward(states_gradient, weight_gradient)
        ctx.weight_dtype = weight.dtype
        return torch.cat(losses).where(counts, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides the name of ctx
        states_gradient, weight_gradient = ctx.saved_tensors
        return (
            None if states_gradient is None else states_gradient * gradients[0],
            None if weight_gradient is None else (weight_gradient * gradients[0]).to(ctx.weight_dtype),
            *(None,) * 6,
        )


_apply: Callable[..., Any] = _LinearCrossEntropy.apply


def keep_from_compiler() -> None:
    """Let torch.compile leave `linear_cross_entropy` as it is: it has kernels of its own.

    Said when something is to be compiled and not before, for saying it loads the compiler, which takes seconds.
    """
    global _apply
    _apply = cast(Any, torch.compiler.disable)(_LinearCrossEntropy.apply)


class _Products:
    """The three products of a chunk, in the precision of the matrix."""

    enlarged = 1.0

    def __init__(self, matrix: Float[Tensor, "vocab model"]) -> None:
        self._matrix, self._rows = matrix, matrix

    def scores(self, rows: Float[Tensor, "tokens model"]) -> Float[Tensor, "tokens vocab"]:
        self._rows = rows
        return rows @ self._matrix.T

    def room(self, scores: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens vocab"]:
        """Where the gradient goes, in the precision of the products to come: where the scores were."""
        return scores

    def by_states(self, gradient: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens model"]:
        return gradient @ self._matrix

    def by_weight(self, gradient: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "vocab model"]:
        """Of the rows that were scored last."""
        return gradient.T @ self._rows


class _Float8Products:
    """The same in eight bits."""

    enlarged = 2.0**14
    """Gradients lie between -1 and 1, and most are tiny: so many times larger they are where e5m2 has its digits."""

    def __init__(self, matrix: Float[Tensor, "vocab model"]) -> None:
        self._dtype, self._matrix = matrix.dtype, scaled(matrix)
        self._transposed, self._rows = self._matrix.transposed, self._matrix
        self._scale = torch.full((), 1 / self.enlarged, device=matrix.device, dtype=torch.float32)

    def scores(self, rows: Float[Tensor, "tokens model"]) -> Float[Tensor, "tokens vocab"]:
        self._rows = scaled(rows)
        return product(self._rows, self._matrix, self._dtype, is_quick=True)

    def room(self, scores: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens vocab"]:
        """Where the gradient goes."""
        return torch.empty_like(scores, dtype=torch.float8_e5m2)

    def by_states(self, gradient: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens model"]:
        return product(Scaled(gradient, self._scale), self._transposed, self._dtype)

    def by_weight(self, gradient: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "vocab model"]:
        """Of the rows that were scored last."""
        return product(Scaled(gradient, self._scale).transposed, self._rows.transposed, self._dtype)


def _losses_and_gradient(
    products: _Products | _Float8Products,
    rows: Float[Tensor, "tokens model"],
    goals: Int[Tensor, "tokens 1"],
    *,
    label_smoothing: float,
    mean_weight: Float[Tensor, " model"] | None,
    wants_gradient: bool,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, "tokens vocab"] | None]:
    r"""What the targets of a chunk cost, and the gradient by their scores.

    The mean score is a product with the `mean_weight`, and the gradient lacks its
    constant part $-\epsilon / V$, of which the caller knows the products: smoothing
    needs no pass over the scores.
    """
    scores = products.scores(rows)
    if wants_gradient and has_kernels(scores):
        losses, gradient = _by_kernel(products, scores, goals, label_smoothing)
    else:
        losses, gradient = _by_passes(products, scores, goals, label_smoothing, wants_gradient=wants_gradient)
    if mean_weight is not None:
        losses = losses - label_smoothing * (rows * mean_weight).sum(-1)
    return losses, gradient


def _by_passes(
    products: _Products | _Float8Products,
    scores: Float[Tensor, "tokens vocab"],
    goals: Int[Tensor, "tokens 1"],
    label_smoothing: float,
    *,
    wants_gradient: bool,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, "tokens vocab"] | None]:
    """Losses, but for the mean score, and the gradient."""
    log_probabilities = scores.log_softmax(-1, dtype=_sum_dtype(scores))
    found = log_probabilities.gather(1, goals)
    losses = (label_smoothing * scores.gather(1, goals) - found)[:, 0]
    if not wants_gradient:
        return losses, None
    at_goals = found.exp() - (1 - label_smoothing)
    gradient = log_probabilities.exp_().scatter_(1, goals, at_goals).mul_(products.enlarged)
    return losses, products.room(scores).copy_(gradient)


def _by_kernel(
    products: _Products | _Float8Products,
    scores: Float[Tensor, "tokens vocab"],
    goals: Int[Tensor, "tokens 1"],
    label_smoothing: float,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, "tokens vocab"]]:
    """The same in two looks at the scores."""
    from regard.kernels.cross_entropy import losses_and_gradients

    (num_rows, num_tokens), gradient = scores.shape, products.room(scores)
    losses = torch.empty(num_rows, device=scores.device, dtype=torch.float32)
    losses_and_gradients[(num_rows,)](
        scores, goals.contiguous(), losses, gradient, num_tokens, label_smoothing, products.enlarged,
        BLOCK=_SCORED_AT_ONCE, num_warps=8,
    )  # fmt: skip
    return losses, gradient


def _as_factor(x: Tensor) -> Tensor:
    """`x` as autocast hands it to a matrix product."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(kind))


def _sum_dtype(x: Tensor) -> torch.dtype:
    """Sums over a vocabulary need more digits than bfloat16 has."""
    return torch.promote_types(x.dtype, torch.float32)


def _chunk_size(weight: Float[Tensor, "vocab model"], num_tokens: int) -> int:
    """Tokens of a chunk: chunks of about the same size, in whole tiles of a matrix product where there are several."""
    most = _CPU_CHUNK
    if weight.is_cuda:
        most = min(_GPU_CHUNK, torch.cuda.get_device_properties(weight.device).total_memory // _GPU_SHARE)
    largest = max(1, most // (4 * weight.size(0)))
    size = math.ceil(num_tokens / math.ceil(num_tokens / largest)) if num_tokens else 1
    return size if size < _TILE else math.ceil(size / _TILE) * _TILE
