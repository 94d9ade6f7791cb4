r"""The largest rate with which gradient descent makes progress, on losses of networks.

Cohen et al., "Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability" (2021).
https://arxiv.org/abs/2103.00065

To second order one step along the gradient $g$ changes the loss by

$$ f(w - \eta g) - f(w) \approx -\eta \lVert g \rVert^2 \Big( 1 - \frac{\eta\, \kappa}{2} \Big),
   \qquad \kappa = \frac{g^\top H g}{\lVert g \rVert^2} \le \lambda_{\max} , $$

so that it falls iff $\eta < 2 / \kappa$. Over many steps the direction of the
largest curvature decides: what lies along it is multiplied by
$1 - \eta \lambda_{\max}$ each time, and grows iff $\eta > 2 / \lambda_{\max}$.
This holds as long as the loss is near its quadratic; where it is not, a step
that is too large may lead to where the loss is flatter.

Dimensions: `multiple` of 2 / curvature, `step`.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.lab.curvature import Curvature, flat_gradient, put_weights, top_curvature, weights_of
from regard.lab.descent_networks import Problem
from regard.logging import progress_bar

_SLOW = 0.3
"""A rate as a share of 1 / largest curvature."""


@dataclass(frozen=True)
class OneStep:
    """What one step along the gradient does, by its rate."""

    multiples: Float[Tensor, " multiple"]
    """The rate as a share of 2 / largest curvature."""
    changes: Float[Tensor, " multiple"]
    """Of the loss, times the curvature over the squared length of the gradient."""

    @property
    def crossing(self) -> float:
        """The multiple from which on the loss rises, between two that were tried; NaN where it never does."""
        rising = (self.changes > 0).nonzero().flatten()
        if not len(rising) or rising[0] == 0:
            return math.nan
        at = int(rising[0])
        low, high = float(self.changes[at - 1]), float(self.changes[at])
        a, b = float(self.multiples[at - 1]), float(self.multiples[at])
        return a - low * (b - a) / (high - low)


def expected_changes(multiples: Float[Tensor, " multiple"]) -> Float[Tensor, " multiple"]:
    """The changes of `OneStep` for a quadratic: a parabola that is 0 again at 1."""
    return -2 * multiples * (1 - multiples)


def take_one_step(problem: Problem, top: Curvature, multiples: Float[Tensor, " multiple"]) -> OneStep:
    """Go some way up the direction of the largest curvature, and try one step back at each rate.

    So far up that the gradient along that direction is ten times all that there
    was before: it then points along it, and what decides is the curvature there. The weights are left where they were.
    """
    parameters, start = problem.parameters, weights_of(problem.parameters)
    way = 10 * float(flat_gradient(problem.loss(), parameters).norm()) / top.value
    raised = start + way * top.direction
    put_weights(parameters, raised)
    gradient = flat_gradient(problem.loss(), parameters)
    before, changes = problem.loss().item(), []
    for multiple in multiples.tolist():
        put_weights(parameters, raised - 2 * multiple / top.value * gradient)
        with torch.no_grad():
            changes.append(problem.loss().item() - before)
    put_weights(parameters, start)
    scale = top.value / float(gradient @ gradient)
    return OneStep(multiples, scale * torch.tensor(changes, dtype=multiples.dtype))


def descend(problem: Problem, rate: float, steps: int, what: str = "gradient descent") -> list[float]:
    """Gradient descent on all examples; the loss before each step and after the last, to where it is finite."""
    losses = []
    for _ in progress_bar(range(steps), what, total=steps):
        loss = problem.loss()
        if not math.isfinite(loss.item()):
            break
        losses.append(loss.item())
        gradient = flat_gradient(loss, problem.parameters)
        put_weights(problem.parameters, weights_of(problem.parameters) - rate * gradient)
    with torch.no_grad():
        losses.append(float(problem.loss()))
    return losses


@dataclass(frozen=True)
class Switch:
    """Gradient descent that went on at several rates from the same weights."""

    curvature: float
    """The largest, where the rates were changed."""
    losses: dict[float, list[float]]
    """By the rate as a multiple of 2 / curvature, step by step, the loss before the first being 1."""

    def holds(self, multiple: float) -> bool:
        """Whether the loss was never above where it started."""
        return all(loss <= 1.0 for loss in self.losses[multiple])


def switch_rates(problem: Problem, top: Curvature, multiples: Sequence[float], *, steps: int) -> Switch:
    """Go on from where the weights are with each multiple of 2 / largest curvature; they are left there."""
    losses = {}
    for multiple in multiples:
        branch = copy.deepcopy(problem)
        found = descend(branch, multiple * 2 / top.value, steps, f"{problem.name}, {multiple:g} x 2/curvature")
        losses[multiple] = [loss / found[0] for loss in found]
    return Switch(top.value, losses)


@dataclass(frozen=True)
class Sharpening:
    """The largest curvature as training at one rate goes on."""

    rate: float
    steps: list[int]
    curvatures: list[float]
    losses: list[float]

    @property
    def edge(self) -> float:
        """The curvature from which on a rate is too large."""
        return 2 / self.rate


def descend_slowly(problem: Problem, *, steps: int, rng: torch.Generator) -> Curvature:
    """Descend at a rate far below the largest; the largest curvature where that leads."""
    start = top_curvature(problem.loss, problem.parameters, rng=rng).value
    descend(problem, _SLOW / start, steps, problem.name)
    return top_curvature(problem.loss, problem.parameters, rng=rng)


def follow_curvature(problem: Problem, rate: float, *, steps: int, every: int, rng: torch.Generator) -> Sharpening:
    """Descend, and measure the largest curvature on the way."""
    at, curvatures, losses = [], [], []
    for done in progress_bar(range(0, steps + 1, every), f"curvature at rate {rate:g}", total=steps // every + 1):
        at.append(done)
        curvatures.append(top_curvature(problem.loss, problem.parameters, rng=rng, most_products=100).value)
        losses.append(descend(problem, rate, every)[0])
    return Sharpening(rate, at, curvatures, losses)


@dataclass(frozen=True)
class Escapes:
    """How long gradient descent stays near a saddle, by how near it started."""

    least_curvature: float
    """At the saddle itself, measured; below 0."""
    rate: float
    steps: dict[float, int]
    """Until half of all that there is to lose is lost, by the scale of the first weights."""

    def expected(self, scale: float, other: float) -> float:
        """How many steps more a start at `scale` takes than one at `other`: each multiplies the distance alike."""
        return math.log(other / scale) / math.log(1 - self.rate * self.least_curvature)


def leave_saddle(
    problem: Problem, scales: Sequence[float], *, rate: float, most_steps: int, rng: torch.Generator
) -> Escapes:
    """Start from random weights of each scale; at weights of 0 the network has a gradient of 0 and a saddle."""
    weights = weights_of(problem.parameters)
    put_weights(problem.parameters, torch.zeros_like(weights))
    least = -top_curvature(lambda: -problem.loss(), problem.parameters, rng=rng).value
    at_saddle = problem.loss().item()
    steps = {}
    for scale in scales:
        put_weights(problem.parameters, scale * weights)
        steps[scale] = _count_until(problem, at_saddle / 2, rate, most_steps)
    put_weights(problem.parameters, weights)
    return Escapes(least, rate, steps)


def _count_until(problem: Problem, loss: float, rate: float, most_steps: int) -> int:
    for step in range(most_steps):
        now = problem.loss()
        if now.item() < loss:
            return step
        gradient = flat_gradient(now, problem.parameters)
        put_weights(problem.parameters, weights_of(problem.parameters) - rate * gradient)
    return most_steps
