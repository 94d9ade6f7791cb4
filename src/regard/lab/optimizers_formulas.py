r"""AdaGrad, RMSProp and Adam, written out: one step of each.

Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization" (2011).
Hinton et al., "Neural Networks for Machine Learning", lecture 6e (2012), for RMSProp.
Kingma & Ba, "Adam: A Method for Stochastic Optimization" (2015), algorithm 1. https://arxiv.org/abs/1412.6980

All divide each coordinate's step by the root of its squared gradients so far:
AdaGrad by that of their sum, so that steps shrink as $1 / \sqrt t$; RMSProp by
that of a moving average, which forgets. Adam takes a moving average of the
gradients too. Averages that start at 0 are too small at first, by
$1 - \beta^t$ after $t$ steps: Adam divides that out.

These are the specification that PyTorch's own are tested against in `tests/lab/test_optimizers.py`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Memory(NamedTuple):
    """What is known of the gradients so far, coordinate by coordinate."""

    mean: Float[Tensor, "*shape"]
    square: Float[Tensor, "*shape"]


class Moved(NamedTuple):
    """The weights after a step, and what is remembered."""

    weight: Float[Tensor, "*shape"]
    memory: Memory


def nothing(weight: Float[Tensor, "*shape"]) -> Memory:
    """The memory before the first step."""
    return Memory(torch.zeros_like(weight), torch.zeros_like(weight))


def adagrad_step(weight: Tensor, gradient: Tensor, memory: Memory, *, rate: float, epsilon: float = 1e-10) -> Moved:
    r"""$v \leftarrow v + g^2, \quad w \leftarrow w - \eta\, g / (\sqrt v + \epsilon)$."""
    square = memory.square + gradient**2
    return Moved(weight - rate * gradient / (square.sqrt() + epsilon), Memory(memory.mean, square))


def rmsprop_step(
    weight: Tensor, gradient: Tensor, memory: Memory, *, rate: float, decay: float = 0.99, epsilon: float = 1e-8
) -> Moved:
    r"""$v \leftarrow \beta v + (1 - \beta) g^2, \quad w \leftarrow w - \eta\, g / (\sqrt v + \epsilon)$."""
    square = decay * memory.square + (1 - decay) * gradient**2
    return Moved(weight - rate * gradient / (square.sqrt() + epsilon), Memory(memory.mean, square))


def adam_step(
    weight: Tensor,
    gradient: Tensor,
    memory: Memory,
    *,
    step: int,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    is_corrected: bool = True,
) -> Moved:
    r"""Step number `step`, counted from 1.

    $$ m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 $$
    $$ \hat m = \frac{m}{1 - \beta_1^t}, \qquad \hat v = \frac{v}{1 - \beta_2^t}, \qquad
       w \leftarrow w - \eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon} $$

    Without the correction $m$ and $v$ take the places of $\hat m$ and $\hat v$.
    """
    first, second = betas
    mean = first * memory.mean + (1 - first) * gradient
    square = second * memory.square + (1 - second) * gradient**2
    unbiased_mean, unbiased_square = mean, square
    if is_corrected:
        unbiased_mean, unbiased_square = mean / (1 - first**step), square / (1 - second**step)
    update = unbiased_mean / (unbiased_square.sqrt() + epsilon)
    return Moved(weight - rate * update, Memory(mean, square))


def update_lengths(num_steps: int) -> dict[str, list[float]]:
    """How far each moves at each step, in units of its rate, where every gradient is 1."""
    gradient = torch.ones((), dtype=torch.float64)
    rules = {
        "AdaGrad": lambda weight, memory, step: adagrad_step(weight, gradient, memory, rate=1.0),
        "RMSProp": lambda weight, memory, step: rmsprop_step(weight, gradient, memory, rate=1.0),
        "Adam": lambda weight, memory, step: adam_step(weight, gradient, memory, step=step, rate=1.0),
        "Adam, not corrected": lambda weight, memory, step: adam_step(
            weight, gradient, memory, step=step, rate=1.0, is_corrected=False
        ),
    }
    lengths: dict[str, list[float]] = {}
    for name, rule in rules.items():
        weight, memory, lengths[name] = torch.zeros_like(gradient), nothing(gradient), []
        for step in range(1, num_steps + 1):
            moved = rule(weight, memory, step)
            lengths[name].append(float(weight - moved.weight))
            weight, memory = moved
    return lengths
