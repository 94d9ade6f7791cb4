r"""Bias, variance and noise of a learner, from training sets that are drawn again and again.

Geman, Bienenstock and Doursat, "Neural Networks and the Bias/Variance Dilemma" (1992).

For $y = f(x) + \varepsilon$ and $\hat f_D$ fitted to a training set $D$,

$$ \underbrace{\mathbb E\,(y - \hat f_D(x))^2}_{\text{risk}}
   = \underbrace{\mathbb E_x\big(f(x) - \mathbb E_D \hat f_D(x)\big)^2}_{\text{bias}^2}
   + \underbrace{\mathbb E_x \operatorname{Var}_D \hat f_D(x)}_{\text{variance}}
   + \underbrace{\sigma^2}_{\text{noise}} , $$

where what is random in a learner itself, such as its features, is drawn with $D$.
The right side is measured where $f$ is known; the left from other training sets, on
fresh examples with their noise, so that the two could differ if one were wrong.

Dimensions: `draw` of a training set, `row` of it, `input` numbers of a row, `point` at which is judged, `feature`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.lab.random_features import draw_features, ridge
from regard.logging import progress_bar

NUM_BATCHES = 10
"""All is measured so many times over, with nothing shared, and intervals are of the mean of these."""


@dataclass(frozen=True)
class Problem:
    """Inputs uniform on a cube from -1 to 1, a function of them, and normal noise on it."""

    truth: Callable[[Tensor], Tensor]
    input_dim: int
    noise: float
    """Standard deviation."""

    def draw(self, *shape: int, rng: torch.Generator) -> Float[Tensor, "draw row input"]:
        return 2 * torch.rand(*shape, self.input_dim, generator=rng, dtype=torch.float64) - 1

    def answer(self, inputs: Float[Tensor, "draw row input"], rng: torch.Generator) -> Float[Tensor, "draw row"]:
        """The function with its noise."""
        truth = self.truth(inputs)
        return truth + self.noise * torch.randn(truth.shape, generator=rng, dtype=truth.dtype)


Learner = Callable[[Tensor, Tensor, Tensor, torch.Generator], Float[Tensor, "draw point"]]
"""Inputs and targets of training sets, and points: what a model fitted to each says at its points."""


@dataclass(frozen=True)
class Parts:
    """Of one capacity, batch by batch."""

    capacity: float
    bias: Tensor
    """Squared, and less what the variance of a mean over finitely many training sets adds to it."""
    variance: Tensor
    noise: float
    risk: Tensor

    @property
    def total(self) -> Tensor:
        """Squared bias, variance and noise."""
        return self.bias + self.variance + self.noise


def measure_parts(
    problem: Problem, learner: Learner, capacity: float, *, num_rows: int, num_draws: int, num_points: int,
    rng: torch.Generator,
) -> Parts:  # fmt: skip
    """Fit `num_draws` training sets for the parts and as many others for the risk, in each batch."""

    def fitted(points: Float[Tensor, "draw point input"]) -> Float[Tensor, "draw point"]:
        inputs = problem.draw(num_draws, num_rows, rng=rng)
        return learner(inputs, problem.answer(inputs, rng), points, rng)

    batches = []
    for _ in range(NUM_BATCHES):
        shared = problem.draw(1, num_points, rng=rng)
        said = fitted(shared.expand(num_draws, -1, -1))
        variance = said.var(dim=0)
        bias = (said.mean(dim=0) - problem.truth(shared)[0]).square() - variance / num_draws
        fresh = problem.draw(num_draws, num_points, rng=rng)
        missed = fitted(fresh) - problem.answer(fresh, rng)
        batches.append(torch.stack([bias.mean(), variance.mean(), missed.square().mean()]))
    bias, variance, risk = torch.stack(batches, dim=1)
    return Parts(capacity, bias, variance, problem.noise**2, risk)


def measure_curve(
    problem: Problem, learners: Sequence[tuple[float, Learner]], what: str, *, num_rows: int, num_draws: int,
    num_points: int, rng: torch.Generator,
) -> list[Parts]:  # fmt: skip
    """One measurement for each capacity."""
    return [
        measure_parts(
            problem, learner, capacity, num_rows=num_rows, num_draws=num_draws, num_points=num_points, rng=rng
        )
        for capacity, learner in progress_bar(learners, what, total=len(learners))
    ]


def polynomial(degree: int, *, strength: float) -> Learner:
    """Ridge regression on Legendre polynomials of the first input."""

    def learn(inputs: Tensor, targets: Tensor, points: Tensor, rng: torch.Generator) -> Tensor:
        weights = ridge(legendre(inputs[..., 0], degree), targets[..., None], strength=strength)
        return (legendre(points[..., 0], degree) @ weights)[..., 0]

    return learn


def random_features(width: int, *, bandwidth: float, strength: float) -> Learner:
    """Ridge regression on Fourier features, drawn anew for each training set."""

    def learn(inputs: Tensor, targets: Tensor, points: Tensor, rng: torch.Generator) -> Tensor:
        said = []
        for rows, target, judged in zip(inputs, targets, points, strict=True):
            features = draw_features("fourier", rows.size(-1), width, bandwidth=bandwidth, rng=rng)
            weights = ridge(features(rows), target[:, None], strength=strength)
            said.append((features(judged) @ weights)[:, 0])
        return torch.stack(said)

    return learn


def legendre(x: Float[Tensor, "*batch"], degree: int) -> Float[Tensor, "*batch feature"]:
    r"""$\sqrt{2k + 1}\, P_k(x)$ for $k$ up to `degree`: uncorrelated where x is uniform on [-1, 1]."""
    values = [torch.ones_like(x), x]
    for k in range(1, degree):
        values.append(((2 * k + 1) * x * values[k] - k * values[k - 1]) / (k + 1))
    return torch.stack([math.sqrt(2 * k + 1) * value for k, value in enumerate(values[: degree + 1])], dim=-1)
