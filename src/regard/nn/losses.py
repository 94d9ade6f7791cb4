r"""Losses: cross-entropy with label smoothing, R-Drop and the supervised contrastive loss.

Szegedy et al., "Rethinking the Inception Architecture" (2015), section 7. https://arxiv.org/abs/1512.00567
Liang et al., "R-Drop: Regularized Dropout for Neural Networks" (2021). https://arxiv.org/abs/2106.14448
Khosla et al., "Supervised Contrastive Learning" (2020). https://arxiv.org/abs/2004.11362

With $V$ tokens, smoothing $\epsilon$, logits $s$ and log-probabilities $\ell$, the loss of a target $t$ is

$$ -(1 - \epsilon)\, \ell_t - \frac{\epsilon}{V} \sum_i \ell_i = -\ell_t + \epsilon\, (s_t - \bar s) $$

and its gradient by the logits is $p - \epsilon / V$, minus $1 - \epsilon$ at $t$.

With a large vocabulary the logits are the largest tensor of a training step;
`linear_cross_entropy` and `linear_log_probs` never store all of them.

Dimensions: `tokens` predictions, `vocab` entries of the vocabulary, `model` width of a hidden state, `batch` texts.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.kernels import has_kernels
from regard.nn.precision import Float8Matrix, fits_float8, float8_matmul, to_float8

IGNORED = -100
"""The target of a position that has no loss; the default `ignore_index` of PyTorch."""
CONTRASTIVE_TEMPERATURE = 0.1
"""Cosines are divided by it: the smaller it is, the more the nearest other vectors weigh."""

_CPU_CHUNK, _GPU_CHUNK = 1 << 26, 1 << 32
"""Upper limits on the bytes that the logits of one chunk take in float32."""
_GPU_SHARE = 32
"""On a GPU a chunk takes at most this fraction, 1 / 32, of the memory."""
_TILE = 128
_KERNEL_BLOCK = 4096
"""Logits that a program of the kernel reads at a time."""


def cross_entropy(
    logits: Float[Tensor, "tokens vocab"], targets: Int[Tensor, " tokens"], *, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return the loss summed over all targets except `IGNORED` ones.

    It equals `torch.nn.functional.cross_entropy(..., reduction="sum")` and makes
    fewer passes over the logits.
    """
    return _CrossEntropy.apply(logits, targets, label_smoothing)  # pyright: ignore[reportReturnType]  apply is untyped


def linear_cross_entropy(
    hidden_states: Float[Tensor, "tokens model"],
    weight: Float[Tensor, "vocab model"],
    targets: Int[Tensor, " tokens"],
    *,
    label_smoothing: float = 0.0,
    chunk_size: int | None = None,
    is_float8: bool = False,
) -> Float[Tensor, ""]:
    r"""Return the `cross_entropy` of the logits `hidden_states @ weight.T`, computed chunk by chunk.

    The loss is a scalar, so its gradient is known up to a factor as soon as the
    logits are: the gradients by the hidden states and the weight are computed in the
    forward pass, and nothing is computed twice. They cannot be differentiated again.

    Under autocast the matrix products are in its dtype and all sums in float32.
    With `is_float8` the products are in float8, where the sizes allow it.
    `chunk_size`, in tokens, is by default chosen for the device.
    """
    is_wanted = [torch.is_grad_enabled() and x.requires_grad for x in (hidden_states, weight)]
    chunk_size = chunk_size or _chunk_size(weight, len(hidden_states))
    has_sizes = fits_float8(*hidden_states.shape, *weight.shape, chunk_size)
    products = _Float8Products if is_float8 and has_sizes else _Products
    return _apply(hidden_states, weight, targets, label_smoothing, chunk_size, products, *is_wanted)


@torch.no_grad()
def linear_log_likelihoods(
    hidden_states: Float[Tensor, "tokens model"],
    weight: Float[Tensor, "vocab model"],
    targets: Int[Tensor, " tokens"],
    *,
    chunk_size: int | None = None,
) -> Float[Tensor, " tokens"]:
    """Return the log-probability of each target under the logits of `linear_cross_entropy`; 0 where it is `IGNORED`.

    For evaluation: it has no gradient.
    """
    counts = targets != IGNORED
    indices = targets.where(counts, 0)[:, None]
    chunk_size = chunk_size or _chunk_size(weight, len(hidden_states))
    hidden_states, weight = _as_factor(hidden_states), _as_factor(weight)
    log_probabilities = [
        (rows @ weight.T).log_softmax(-1, dtype=_sum_dtype(rows)).gather(1, some)
        for rows, some in zip(hidden_states.split(chunk_size), indices.split(chunk_size), strict=True)
    ]
    return torch.cat(log_probabilities)[:, 0].where(counts, 0.0)


def linear_log_probs(
    hidden_states: Float[Tensor, "tokens model"],
    weight: Float[Tensor, "vocab model"],
    targets: Int[Tensor, " tokens"],
    *,
    chunk_size: int | None = None,
) -> Float[Tensor, " tokens"]:
    """Return `linear_log_likelihoods` with gradients.

    The gradient of a log-probability depends on what is computed from it, so that the logits of each chunk are computed
    again in the backward pass.
    """
    chunk_size = chunk_size or logits_chunk(weight.size(0), len(hidden_states))
    return _apply_log_probs(hidden_states, weight, targets, chunk_size)


def rdrop_cross_entropy(
    logits: Float[Tensor, "tokens vocab"],
    targets: Int[Tensor, " tokens"],
    *,
    label_smoothing: float = 0.0,
    weight: float,
) -> Float[Tensor, ""]:
    r"""Return the mean `cross_entropy` of two passes over the same targets plus the divergence between them.

    Liang et al. (2021), equation 4. The second half of the rows are the targets of
    the first half again, with another dropout mask. With $w$ = `weight` and $p$, $q$
    the two distributions of a target its loss is

    $$ \tfrac12 (L_p + L_q) + \tfrac w4 \big(\mathrm{KL}(p \| q) + \mathrm{KL}(q \| p)\big) $$
    """
    loss = cross_entropy(logits, targets, label_smoothing=label_smoothing) / 2
    one, other = logits.log_softmax(-1, dtype=_sum_dtype(logits)).chunk(2)
    # KL(p || q) + KL(q || p) = sum (p - q) (log p - log q)
    divergence = ((one.exp() - other.exp()) * (one - other)).sum(-1)
    counts = targets.chunk(2)[0] != IGNORED
    return loss + weight / 4 * divergence.where(counts, 0.0).sum()


def contrastive_losses(
    vectors: Float[Tensor, "batch model"], labels: Int[Tensor, " batch"], counts: Bool[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    r"""Return the supervised contrastive loss of each vector: vectors of one label are drawn together, others apart.

    Khosla et al. (2020), equation 2; beside cross-entropy as in Gunel et al., "Supervised Contrastive Learning for
    Pre-trained Language Model Fine-tuning" (2020), https://arxiv.org/abs/2011.01403. With cosines $s_{ij}$,
    temperature $\tau$ and the other vectors of the same label $P_i$, among those where `counts` is True, it is

    $$ -\frac{1}{|P_i|} \sum_{p \in P_i} \log \frac{e^{s_{ip} / \tau}}{\sum_{j \neq i} e^{s_{ij} / \tau}} $$

    and 0 for a vector whose label no other has.
    """
    unit = F.normalize(vectors, dim=-1)
    is_other = ~torch.eye(len(unit), dtype=torch.bool, device=unit.device) & counts
    cosines = unit @ unit.T
    cosines = cosines.to(torch.promote_types(cosines.dtype, torch.float32))  # autocast may have computed it in less
    # finfo.min rather than -inf: the loss of a single vector would be NaN.
    lowest = torch.finfo(cosines.dtype).min
    log_shares = (cosines / CONTRASTIVE_TEMPERATURE).masked_fill(~is_other, lowest).log_softmax(dim=-1)
    is_like = (labels[:, None] == labels) & is_other
    return -(log_shares * is_like).sum(dim=1) / is_like.sum(dim=1).clamp(min=1)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        # Sums over a vocabulary need more digits than bfloat16 has.
        log_probabilities = logits.log_softmax(-1, dtype=None if logits.dtype == torch.float64 else torch.float32)
        counts = targets != IGNORED
        indices = targets.where(counts, 0)[:, None]
        ctx.save_for_backward(log_probabilities, counts, indices)
        ctx.label_smoothing, ctx.dtype = label_smoothing, logits.dtype
        losses = -log_probabilities.gather(1, indices)[:, 0]
        if label_smoothing:
            losses = (1 - label_smoothing) * losses - label_smoothing * log_probabilities.mean(-1)
        return losses.where(counts, 0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        log_probabilities, counts, indices = ctx.saved_tensors
        gradient = log_probabilities.exp()
        if ctx.label_smoothing:
            gradient.sub_(ctx.label_smoothing / gradient.size(-1))
        gradient.scatter_add_(1, indices, gradient.new_full(indices.shape, ctx.label_smoothing - 1))
        gradient.mul_((counts * gradients[0])[:, None])
        return gradient.to(ctx.dtype), None, None


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: Tensor,
        weight: Tensor,
        targets: Tensor,
        label_smoothing: float,
        chunk_size: int,
        make_products: "type[_Products] | type[_Float8Products]",
        needs_hidden_gradient: bool,
        needs_weight_gradient: bool,
    ) -> Tensor:
        counts = targets != IGNORED
        indices = targets.where(counts, 0)[:, None]
        # A hidden state of zeros adds nothing to the gradient of the weight, so the logits need no mask.
        inputs, matrix = _as_factor(hidden_states.where(counts[:, None], 0.0)), _as_factor(weight)
        dtype, products = _sum_dtype(matrix), make_products(matrix)
        mean_weight = matrix.mean(0, dtype=dtype) if label_smoothing else None

        losses: list[Tensor] = []
        hidden_gradients: list[Tensor] = []
        weight_gradient: Tensor | None = None
        for rows, some_indices in zip(inputs.split(chunk_size), indices.split(chunk_size), strict=True):
            some_losses, gradient = _losses_and_gradient(
                products,
                rows,
                some_indices,
                label_smoothing=label_smoothing,
                mean_weight=mean_weight,
                needs_gradient=needs_hidden_gradient or needs_weight_gradient,
            )
            losses.append(some_losses)
            if gradient is not None and needs_hidden_gradient:
                some = products.hidden_gradient(gradient)
                some = some if mean_weight is None else some - label_smoothing * mean_weight
                hidden_gradients.append(some.to(hidden_states.dtype))
            if gradient is not None and needs_weight_gradient:
                some = products.weight_gradient(gradient)
                weight_gradient = some.to(dtype) if weight_gradient is None else weight_gradient.add_(some)
            del gradient  # frees its memory for the logits of the next chunk

        if weight_gradient is not None and mean_weight is not None:
            weight_gradient -= inputs.sum(0, dtype=dtype) * (label_smoothing / weight.size(0))
        hidden_gradient = torch.cat(hidden_gradients).where(counts[:, None], 0.0) if needs_hidden_gradient else None
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.weight_dtype = weight.dtype
        return torch.cat(losses).where(counts, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides the name of ctx
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return (
            None if hidden_gradient is None else hidden_gradient * gradients[0],
            None if weight_gradient is None else (weight_gradient * gradients[0]).to(ctx.weight_dtype),
            *(None,) * 6,
        )


class _LinearLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_states: Tensor, weight: Tensor, targets: Tensor, chunk_size: int) -> Tensor:
        counts = targets != IGNORED
        indices = targets.where(counts, 0)[:, None]
        products = _Products(_as_factor(weight))
        losses = [
            # The kernel writes a gradient at the place of the logits, in any case.
            _losses_and_gradient(
                products, rows, some, label_smoothing=0.0, mean_weight=None, needs_gradient=rows.is_cuda
            )[0]
            for rows, some in zip(_as_factor(hidden_states).split(chunk_size), indices.split(chunk_size), strict=True)
        ]
        ctx.save_for_backward(hidden_states, weight, counts, indices)
        ctx.chunk_size, ctx.factor_dtype = chunk_size, _as_factor(hidden_states).dtype
        return -torch.cat(losses).where(counts, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides the name of ctx
        hidden_states, weight, counts, indices = ctx.saved_tensors
        products = _Products(weight.to(ctx.factor_dtype))
        for_hidden, for_weight = [], None
        parts = (hidden_states.to(ctx.factor_dtype), indices, -gradients[0].where(counts, 0.0)[:, None])
        for rows, some, factors in zip(*(part.split(ctx.chunk_size) for part in parts), strict=True):
            _, gradient = _losses_and_gradient(
                products, rows, some, label_smoothing=0.0, mean_weight=None, needs_gradient=True
            )
            assert gradient is not None
            gradient.mul_(factors)
            if ctx.needs_input_grad[0]:
                for_hidden.append(products.hidden_gradient(gradient))
            if ctx.needs_input_grad[1]:
                added = products.weight_gradient(gradient).to(_sum_dtype(gradient))
                for_weight = added if for_weight is None else for_weight.add_(added)
            del gradient  # frees its memory for the logits of the next chunk
        return (
            torch.cat(for_hidden).to(hidden_states.dtype) if for_hidden else None,
            None if for_weight is None else for_weight.to(weight.dtype),
            None,
            None,
        )


_apply: Callable[..., Any] = _LinearCrossEntropy.apply
_apply_log_probs: Callable[..., Any] = _LinearLogProbs.apply


def exclude_from_compile() -> None:
    """Exclude `linear_cross_entropy` and `linear_log_probs`, which have kernels of their own, from `torch.compile`.

    Called before something is compiled and not on import: it loads the compiler, which takes seconds.
    """
    global _apply, _apply_log_probs
    disable = cast(Any, torch.compiler.disable)
    _apply, _apply_log_probs = disable(_LinearCrossEntropy.apply), disable(_LinearLogProbs.apply)


class _Products:
    """The three matrix products of a chunk, in the dtype of the weight."""

    gradient_scale = 1.0

    def __init__(self, matrix: Float[Tensor, "vocab model"]) -> None:
        self._matrix, self._rows = matrix, matrix

    def logits(self, rows: Float[Tensor, "tokens model"]) -> Float[Tensor, "tokens vocab"]:
        self._rows = rows
        return rows @ self._matrix.T

    def gradient_like(self, logits: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens vocab"]:
        """Return the tensor that the gradient is written to: that of the logits, which are not needed any more."""
        return logits

    def hidden_gradient(self, gradient: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens model"]:
        return gradient @ self._matrix

    def weight_gradient(self, gradient: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "vocab model"]:
        """Return the gradient by the weight for the rows of the last call of `logits`."""
        return gradient.T @ self._rows


class _Float8Products:
    """The same in float8."""

    gradient_scale = 2.0**14
    """Gradients are between -1 and 1, and most are tiny: this factor brings them into the range of e5m2."""

    def __init__(self, matrix: Float[Tensor, "vocab model"]) -> None:
        self._dtype, self._matrix = matrix.dtype, to_float8(matrix)
        self._transposed, self._rows = self._matrix.transposed, self._matrix
        self._scale = torch.full((), 1 / self.gradient_scale, device=matrix.device, dtype=torch.float32)

    def logits(self, rows: Float[Tensor, "tokens model"]) -> Float[Tensor, "tokens vocab"]:
        self._rows = to_float8(rows)
        return float8_matmul(self._rows, self._matrix, self._dtype, use_fast_accum=True)

    def gradient_like(self, logits: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens vocab"]:
        return torch.empty_like(logits, dtype=torch.float8_e5m2)

    def hidden_gradient(self, gradient: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens model"]:
        return float8_matmul(Float8Matrix(gradient, self._scale), self._transposed, self._dtype)

    def weight_gradient(self, gradient: Float[Tensor, "tokens vocab"]) -> Float[Tensor, "vocab model"]:
        return float8_matmul(Float8Matrix(gradient, self._scale).transposed, self._rows.transposed, self._dtype)


def _losses_and_gradient(
    products: _Products | _Float8Products,
    rows: Float[Tensor, "tokens model"],
    indices: Int[Tensor, "tokens 1"],
    *,
    label_smoothing: float,
    mean_weight: Float[Tensor, " model"] | None,
    needs_gradient: bool,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, "tokens vocab"] | None]:
    r"""Return the losses of a chunk and their gradient by the logits.

    The mean logit is a product with the `mean_weight`, and the gradient lacks its
    constant part $-\epsilon / V$, whose products the caller adds: smoothing needs no
    pass over the logits.
    """
    logits = products.logits(rows)
    if needs_gradient and has_kernels(logits):
        losses, gradient = _by_kernel(products, logits, indices, label_smoothing)
    else:
        losses, gradient = _by_torch(products, logits, indices, label_smoothing, needs_gradient=needs_gradient)
    if mean_weight is not None:
        losses = losses - label_smoothing * (rows * mean_weight).sum(-1)
    return losses, gradient


def _by_torch(
    products: _Products | _Float8Products,
    logits: Float[Tensor, "tokens vocab"],
    indices: Int[Tensor, "tokens 1"],
    label_smoothing: float,
    *,
    needs_gradient: bool,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, "tokens vocab"] | None]:
    """Return the losses without the term of the mean logit, and the gradient."""
    log_probabilities = logits.log_softmax(-1, dtype=_sum_dtype(logits))
    at_targets = log_probabilities.gather(1, indices)
    losses = (label_smoothing * logits.gather(1, indices) - at_targets)[:, 0]
    if not needs_gradient:
        return losses, None
    gradient_at_targets = at_targets.exp() - (1 - label_smoothing)
    gradient = log_probabilities.exp_().scatter_(1, indices, gradient_at_targets).mul_(products.gradient_scale)
    return losses, products.gradient_like(logits).copy_(gradient)


def _by_kernel(
    products: _Products | _Float8Products,
    logits: Float[Tensor, "tokens vocab"],
    indices: Int[Tensor, "tokens 1"],
    label_smoothing: float,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, "tokens vocab"]]:
    """Return what `_by_torch` returns, reading the logits twice."""
    from regard.nn.kernels.cross_entropy import losses_and_gradients

    (num_rows, num_tokens), gradient = logits.shape, products.gradient_like(logits)
    losses = torch.empty(num_rows, device=logits.device, dtype=torch.float32)
    losses_and_gradients[(num_rows,)](
        logits, indices.contiguous(), losses, gradient, num_tokens, label_smoothing, products.gradient_scale,
        BLOCK=_KERNEL_BLOCK, num_warps=8,
    )  # fmt: skip
    return losses, gradient


def _as_factor(x: Tensor) -> Tensor:
    """Return `x` in the dtype in which autocast computes matrix products."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(kind))


def _sum_dtype(x: Tensor) -> torch.dtype:
    """Return a dtype of at least 32 bits: sums over a vocabulary need more digits than bfloat16 has."""
    return torch.promote_types(x.dtype, torch.float32)


def _chunk_size(weight: Float[Tensor, "vocab model"], num_tokens: int) -> int:
    memory = torch.cuda.get_device_properties(weight.device).total_memory if weight.is_cuda else None
    return logits_chunk(weight.size(0), num_tokens, gpu_memory=memory)


def logits_chunk(vocab_size: int, num_tokens: int, *, gpu_memory: int | None = None) -> int:
    """Return the tokens of a chunk: chunks of about the same size, rounded up to whole tiles of a matrix product.

    `gpu_memory` is the memory of the GPU in bytes; None is a CPU.
    """
    most = _CPU_CHUNK if gpu_memory is None else min(_GPU_CHUNK, gpu_memory // _GPU_SHARE)
    largest = max(1, most // (4 * vocab_size))
    size = math.ceil(num_tokens / math.ceil(num_tokens / largest)) if num_tokens else 1
    return size if size < _TILE else math.ceil(size / _TILE) * _TILE
