r"""AdaGrad, RMSProp and Adam, written out: one step of each.

Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization" (2011).
Hinton et al., "Neural Networks for Machine Learning", lecture 6e (2012), for RMSProp.
Kingma & Ba, "Adam: A Method for Stochastic Optimization" (2015), algorithm 1. https://arxiv.org/abs/1412.6980

All divide the step of each coordinate by the root of its squared gradients so
far: AdaGrad by that of their sum, so that steps shrink as $1 / \sqrt t$; RMSProp by
that of a moving average. Adam uses a moving average of the gradients as well.
Averages that start at 0 are too small by a factor $1 - \beta^t$ after $t$ steps: Adam
divides by it.

PyTorch's optimizers are tested against these in `tests/lab/test_optimizers.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Moments(NamedTuple):
    """The running first and second moment of the gradients of each coordinate."""

    mean: Float[Tensor, "*shape"]
    square: Float[Tensor, "*shape"]


class UpdatedWeight(NamedTuple):
    """The weights after a step, and the moments."""

    weight: Float[Tensor, "*shape"]
    moments: Moments


def zero_moments(weight: Float[Tensor, "*shape"]) -> Moments:
    """The moments before the first step."""
    return Moments(torch.zeros_like(weight), torch.zeros_like(weight))


def adagrad_step(
    weight: Tensor, gradient: Tensor, moments: Moments, *, rate: float, epsilon: float = 1e-10
) -> UpdatedWeight:
    r"""$v \leftarrow v + g^2, \quad w \leftarrow w - \eta\, g / (\sqrt v + \epsilon)$."""
    square = moments.square + gradient**2
    return UpdatedWeight(weight - rate * gradient / (square.sqrt() + epsilon), Moments(moments.mean, square))


def rmsprop_step(
    weight: Tensor, gradient: Tensor, moments: Moments, *, rate: float, decay: float = 0.99, epsilon: float = 1e-8
) -> UpdatedWeight:
    r"""$v \leftarrow \beta v + (1 - \beta) g^2, \quad w \leftarrow w - \eta\, g / (\sqrt v + \epsilon)$."""
    square = decay * moments.square + (1 - decay) * gradient**2
    return UpdatedWeight(weight - rate * gradient / (square.sqrt() + epsilon), Moments(moments.mean, square))


def adam_step(
    weight: Tensor,
    gradient: Tensor,
    moments: Moments,
    *,
    step: int,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    is_corrected: bool = True,
) -> UpdatedWeight:
    r"""Step number `step`, counted from 1.

    $$ m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 $$
    $$ \hat m = \frac{m}{1 - \beta_1^t}, \qquad \hat v = \frac{v}{1 - \beta_2^t}, \qquad
       w \leftarrow w - \eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon} $$

    Without the bias correction $m$ and $v$ are used in place of $\hat m$ and $\hat v$.
    """
    first, second = betas
    mean = first * moments.mean + (1 - first) * gradient
    square = second * moments.square + (1 - second) * gradient**2
    unbiased_mean, unbiased_square = mean, square
    if is_corrected:
        unbiased_mean, unbiased_square = mean / (1 - first**step), square / (1 - second**step)
    update = unbiased_mean / (unbiased_square.sqrt() + epsilon)
    return UpdatedWeight(weight - rate * update, Moments(mean, square))


def update_sizes(num_steps: int) -> dict[str, list[float]]:
    """The update of each rule at each step, over its learning rate, for a constant gradient of 1."""
    gradient = torch.ones((), dtype=torch.float64)
    rules: dict[str, Callable[[int], Callable[..., UpdatedWeight]]] = {
        "AdaGrad": lambda step: adagrad_step,
        "RMSProp": lambda step: rmsprop_step,
        "Adam": lambda step: partial(adam_step, step=step),
        "Adam, not corrected": lambda step: partial(adam_step, step=step, is_corrected=False),
    }
    sizes: dict[str, list[float]] = {}
    for name, rule in rules.items():
        weight, moments, sizes[name] = torch.zeros_like(gradient), zero_moments(gradient), []
        for step in range(1, num_steps + 1):
            updated = rule(step)(weight, gradient, moments, rate=1.0)
            sizes[name].append(float(weight - updated.weight))
            weight, moments = updated
    return sizes
