"""The objective that all tasks of writing share: the next token, by cross-entropy.

Dimensions: `batch` rows, `time` positions, `model` width.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.families import AnyModel
from regard.nn.losses import IGNORED, consistent_cross_entropy, linear_cross_entropy, linear_log_likelihoods


def next_token_loss(
    model: AnyModel,
    states: Float[Tensor, "batch time model"],
    targets: Int[Tensor, "batch time"],
    *,
    label_smoothing: float,
    consistency: float,
) -> Float[Tensor, ""]:
    """The loss summed over all targets but `IGNORED` ones.

    With `consistency`, the second half of the rows reads what the first half does.
    """
    assert model.output is not None
    states, targets = states.flatten(0, 1), targets.flatten()
    if consistency:
        scores = model.scores(states)
        return consistent_cross_entropy(scores, targets, label_smoothing=label_smoothing, weight=consistency)
    return linear_cross_entropy(states, model.output.weight, targets, label_smoothing=label_smoothing)


@torch.no_grad()
def row_losses(
    model: AnyModel, states: Float[Tensor, "*rows model"], targets: Int[Tensor, "batch time"]
) -> tuple[list[float], list[int]]:
    """Of each row of targets the negative log-likelihood, and how many of them count."""
    assert model.output is not None
    found = linear_log_likelihoods(states.flatten(0, -2), model.output.weight, targets.flatten())
    losses = -found.unflatten(0, targets.shape).sum(dim=1)
    return losses.tolist(), (targets != IGNORED).sum(dim=1).tolist()
