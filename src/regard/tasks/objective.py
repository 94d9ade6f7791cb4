"""The objective that all tasks of writing share: the next token, by cross-entropy.

Dimensions: `batch` rows, `time` positions, `model` width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.models.families import AnyModel
from regard.nn.losses import IGNORED, consistent_cross_entropy, linear_cross_entropy, linear_log_likelihoods


@dataclass(frozen=True)
class Objective:
    """What is asked of a model, besides that the next token be likely."""

    label_smoothing: float = 0.0
    consistency: float = 0.0
    """How much it weighs that two readings of a batch, with another dropout each, agree."""
    contrast: float = 0.0
    """How much `contrast_losses` weigh."""
    activation_penalty: float = 0.0
    change_penalty: float = 0.0
    """Both as `state_penalty` has them."""
    is_float8: bool = False
    """Whether products with the vocabulary are taken in eight bits."""


PLAIN = Objective()
_TILE = 8
"""Columns are added by so many, as tensor cores have them."""


def next_token_loss(
    model: AnyModel,
    states: Float[Tensor, "batch time model"],
    targets: Int[Tensor, "batch time"],
    objective: Objective = PLAIN,
) -> Float[Tensor, ""]:
    """The loss summed over all targets but `IGNORED` ones, and what `state_penalty` adds to it.

    With `consistency`, the second half of the rows reads what the first half does.
    """
    assert model.output is not None
    rows, targets, smoothing = states.flatten(0, 1), targets.flatten(), objective.label_smoothing
    if objective.consistency:
        scores = model.scores(rows)
        loss = consistent_cross_entropy(scores, targets, label_smoothing=smoothing, weight=objective.consistency)
    else:
        rows, weight = with_bias(rows, model.output)
        loss = linear_cross_entropy(rows, weight, targets, label_smoothing=smoothing, is_float8=objective.is_float8)
    if objective.activation_penalty or objective.change_penalty:
        penalty = state_penalty(states, activation=objective.activation_penalty, change=objective.change_penalty)
        loss = loss + (penalty / 2 if objective.consistency else penalty)
    return loss


def with_bias(
    states: Float[Tensor, "rows model"], output: nn.Linear
) -> tuple[Float[Tensor, "rows wider"], Float[Tensor, "vocab wider"]]:
    """States and a matrix whose products are the scores; a bias is the matrix's column for a 1."""
    if output.bias is None:
        return states, output.weight
    one, bias = (F.pad(column, (0, _TILE - 1)) for column in (states.new_ones(len(states), 1), output.bias[:, None]))
    return torch.cat([states, one], dim=1), torch.cat([output.weight, bias], dim=1)


def state_penalty(states: Float[Tensor, "batch time model"], *, activation: float, change: float) -> Float[Tensor, ""]:
    r"""A price on large states, and on states that change much from one position to the next.

    Merity et al., "Revisiting Activation Regularization for Language RNNs" (2017), AR and TAR.
    https://arxiv.org/abs/1708.01009

    With states $h_t$ of width $d$, as dropout leaves them, and weights $\alpha$ and $\beta$ it is

    $$ \frac1d \sum_t \alpha \lVert h_t \rVert^2 + \beta \lVert h_{t+1} - h_t \rVert^2 $$

    summed over positions as the loss is, and divided by their number with it.
    """
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    sizes, changes = states.square().sum(), states.diff(dim=1).square().sum()
    return (activation * sizes + change * changes) / states.size(-1)


@torch.no_grad()
def row_losses(
    model: AnyModel, states: Float[Tensor, "*rows model"], targets: Int[Tensor, "batch time"]
) -> tuple[list[float], list[int]]:
    """Of each row of targets the negative log-likelihood, and how many of them count."""
    assert model.output is not None
    found = linear_log_likelihoods(*with_bias(states.flatten(0, -2), model.output), targets.flatten())
    losses = -found.unflatten(0, targets.shape).sum(dim=1)
    return losses.tolist(), (targets != IGNORED).sum(dim=1).tolist()
