r"""Gradient descent where everything is known: quadratics.

Polyak, "Some methods of speeding up the convergence of iteration methods" (1964), for momentum.

With $f(x) = \tfrac12 \sum_i \lambda_i x_i^2$ each coordinate is multiplied by
$1 - \eta \lambda_i$ at each step. So it shrinks iff $\eta < 2 / \lambda_i$; the
rate that serves the largest and the smallest curvature best is
$2 / (\lambda_{\max} + \lambda_{\min})$, and then the slowest coordinate shrinks by

$$ \rho = \frac{\kappa - 1}{\kappa + 1}, \qquad \kappa = \lambda_{\max} / \lambda_{\min} ; $$

momentum makes it about $(\sqrt\kappa - 1) / (\sqrt\kappa + 1)$. Gradients with
noise of variance $\sigma^2 / B$ from $B$ examples leave the loss at a floor:
each step adds $\tfrac12 \eta^2 (\sigma^2 / B) \lambda$ to it and takes
$1 - (1 - \eta \lambda)^2$ of what is there, which are equal at

$$ f_\infty = \frac{\eta\, \sigma^2 / B}{2\,(2 - \eta \lambda)} . $$

Dimensions: `coordinate`, `runs`, `batch` examples of one step.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.evaluation.means import Around, mean_interval


class Pace(NamedTuple):
    """A learning rate, and how much of the last step is taken again."""

    rate: float
    momentum: float


def best_plain(most: float, least: float) -> Pace:
    """Without momentum."""
    return Pace(2 / (most + least), 0.0)


def best_momentum(most: float, least: float) -> Pace:
    """Polyak's (1964), section 4."""
    a, b = math.sqrt(most), math.sqrt(least)
    return Pace((2 / (a + b)) ** 2, ((a - b) / (a + b)) ** 2)


def descend(
    eigenvalues: Float[Tensor, " coordinate"], pace: Pace, *, steps: int, fraction: float = 0.0
) -> Float[Tensor, " step"]:
    """The loss relative to its start, after each step, until it is below `fraction`.

    Each coordinate holds the same share of the loss at the start.
    """
    x, moved = eigenvalues.rsqrt(), torch.zeros_like(eigenvalues)
    start, losses = float((eigenvalues * x**2).sum()), []
    for _ in range(steps):
        moved = pace.momentum * moved - pace.rate * eigenvalues * x
        x = x + moved
        losses.append(float((eigenvalues * x**2).sum()) / start)
        if losses[-1] < fraction:
            break
    return torch.tensor(losses, dtype=torch.float64)


def steps_until(condition: float, fraction: float, *, has_momentum: bool, num_coordinates: int = 20) -> int:
    """Steps until the loss is below `fraction` of its start, curvatures lying evenly on a logarithmic scale."""
    eigenvalues = torch.logspace(0, math.log10(condition), num_coordinates, dtype=torch.float64)
    pace = (best_momentum if has_momentum else best_plain)(condition, 1.0)
    most = 20 + round(4 * predicted_steps(condition, fraction, has_momentum=has_momentum))
    return len(descend(eigenvalues, pace, steps=most, fraction=fraction))


def predicted_steps(condition: float, fraction: float, *, has_momentum: bool) -> float:
    """The steps that the slowest coordinate takes: of the loss, which is a square, the rate counts twice."""
    kappa = math.sqrt(condition) if has_momentum else condition
    return math.log(fraction) / (2 * math.log((kappa - 1) / (kappa + 1)))


def noise_floor(rate: float, batch_size: int, *, sigma: float = 1.0, curvature: float = 1.0) -> float:
    """Where the loss ends; infinite where the rate is too large to end anywhere."""
    if rate * curvature >= 2:
        return math.inf
    return rate * sigma**2 / batch_size / (2 * (2 - rate * curvature))


def measure_floor(rate: float, batch_size: int, *, runs: int, rng: torch.Generator, sigma: float = 1.0) -> Around:
    """The mean loss after so many steps that the start is forgotten, over independent runs.

    The loss is $\\tfrac12 (x - \\mu)^2$ for the mean $\\mu = 0$ of examples drawn from a
    normal distribution, and a step sees `batch_size` of them.
    """
    x = torch.zeros(runs, dtype=torch.float64)
    for _ in range(math.ceil(5 / min(rate, 2 - rate))):
        examples = sigma * torch.randn(runs, batch_size, generator=rng, dtype=torch.float64)
        x = x - rate * (x - examples.mean(dim=1))
    return mean_interval(x**2 / 2)
