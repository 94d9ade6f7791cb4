r"""Cross-entropy with label smoothing.

Szegedy et al., "Rethinking the Inception Architecture" (2015), section 7.
https://arxiv.org/abs/1512.00567

With $V$ tokens, smoothing $\epsilon$ and log-probabilities $\ell$, a target $t$ costs

$$ -(1 - \epsilon)\, \ell_t - \frac{\epsilon}{V} \sum_i \ell_i $$

and its gradient by the scores is $p - \epsilon / V$, less $1 - \epsilon$ at $t$.

Dimensions: `tokens` predictions, `vocab` tokens to choose from.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

IGNORED = -100
"""The target of a position that does not count."""


def cross_entropy(
    scores: Float[Tensor, "tokens vocab"], targets: Int[Tensor, " tokens"], *, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """The loss summed over all targets but `IGNORED` ones.

    The value of `torch.nn.functional.cross_entropy(..., reduction="sum")`, in
    fewer passes over the scores, which are the largest thing in a step.
    """
    return _CrossEntropy.apply(scores, targets, label_smoothing)  # pyright: ignore[reportReturnType]  apply is untyped


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
