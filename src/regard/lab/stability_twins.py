"""Trainings that differ in one example: as many pairs as wished, side by side.

Dimensions: `runs` pairs, `record` of some steps, and those of `descent_networks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.lab.curvature import top_curvature
from regard.lab.descent_networks import Examples, Networks, draw_examples, draw_networks
from regard.logging import progress_bar


class Stack(Protocol):
    """Models side by side, each with weights of its own along the first dimension."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """A score for each row of each run."""
        ...

    @property
    def parameters(self) -> list[Tensor]: ...


@dataclass(frozen=True)
class Linear:
    """Scores that are inner products."""

    weight: Float[Tensor, "runs inputs"]

    def __call__(self, inputs: Float[Tensor, "runs rows inputs"]) -> Float[Tensor, "runs rows"]:
        return (inputs @ self.weight[..., None]).squeeze(-1)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.weight]


@dataclass(frozen=True)
class Learner:
    """What is trained, on which loss; after each step all weights of a run are brought into a ball of that radius."""

    make: Callable[[int, torch.Generator], Stack]
    """So many models with random weights."""
    losses: Callable[[Stack, Examples], Float[Tensor, "runs rows"]]
    radius: float = torch.inf


def logistic(num_inputs: int, *, convexity: float = 0.0, radius: float = torch.inf) -> Learner:
    """Logistic regression from weights of 0, with half of `convexity` times the squared weights added to its loss.

    For inputs of length 1 its loss is 1-Lipschitz and 1/4-smooth without the
    addition; with it, inside the ball, (1 + convexity radius)-Lipschitz and (1/4 + convexity)-smooth.
    """

    def make(runs: int, rng: torch.Generator) -> Linear:
        return Linear(torch.zeros(runs, num_inputs, requires_grad=True))

    return Learner(make, partial(_log_losses, convexity=convexity), radius)


def network(num_inputs: int, width: int) -> Learner:
    """A hidden layer of tanh; the loss is the squared difference of probability and label, between 0 and 1."""

    def make(runs: int, rng: torch.Generator) -> Networks:
        return draw_networks(runs, num_inputs, width, rng=rng)

    return Learner(make, _squared_differences)


@dataclass(frozen=True)
class World:
    """Where examples come from: inputs of length 1, a teacher's labels, some of them turned over."""

    teacher: Networks
    """One for all."""
    flipped: float

    @property
    def num_inputs(self) -> int:
        return self.teacher.hidden.size(1)

    def draw(self, runs: int, num_rows: int, *, rng: torch.Generator) -> Examples:
        teacher = Networks(*(parameter.expand(runs, -1, -1) for parameter in self.teacher.parameters))
        drawn = draw_examples(runs, num_rows, self.num_inputs, teacher=teacher, flipped=self.flipped, rng=rng)
        return Examples(F.normalize(drawn.inputs, dim=-1), drawn.labels)


@dataclass(frozen=True)
class Path:
    """Two trainings that differ in one example, at some of their steps; pair by pair."""

    num_rows: int
    steps: list[int]
    distances: Float[Tensor, "record runs"]
    """Between their weights."""
    apart: Float[Tensor, "record runs"]
    """The largest difference of their losses on any of some hundred new examples, which each pair has its own of."""
    train: Float[Tensor, "record runs"]
    test: Float[Tensor, "record runs"]

    @property
    def gaps(self) -> Float[Tensor, "record runs"]:
        """The loss on new examples less that on the training examples, of the first of each pair."""
        return self.test - self.train


def follow(
    learner: Learner,
    world: World,
    rates: Sequence[float],
    *,
    num_rows: int,
    runs: int,
    records: Sequence[int],
    num_test_rows: int = 300,
    seed: int,
    what: str = "pairs",
) -> Path:
    """Train `runs` pairs for a step at each rate; both of a pair start alike and draw the same rows.

    The second of a pair has another example in its first row. Sets, order and
    new examples do not depend on the learner, so that learners can be compared pair by pair.
    """
    rng = torch.Generator().manual_seed(seed)
    first = world.draw(runs, num_rows, rng=rng)
    other = world.draw(runs, 1, rng=rng)
    both = Examples(first.inputs.repeat(2, 1, 1), first.labels.repeat(2, 1))
    both.inputs[runs:, 0], both.labels[runs:, 0] = other.inputs[:, 0], other.labels[:, 0]
    new = world.draw(runs, num_test_rows, rng=rng)
    order = torch.randint(num_rows, (len(rates), runs), generator=rng)
    models = _doubled(learner.make(runs, rng))
    found = []
    for step, rate in enumerate(progress_bar(rates, what, total=len(rates)), start=1):
        rows = order[step - 1].repeat(2)[:, None]
        descend(models, learner.losses(models, both.take(rows)).sum(), rate=rate, radius=learner.radius)
        if step in records:
            found.append(_record(learner, models, both, new, runs))
    distances, apart, train, test = (torch.stack(part) for part in zip(*found, strict=True))
    steps = [step for step in records if step <= len(rates)]
    return Path(num_rows, steps, distances, apart, train, test)


@torch.no_grad()
def descend(models: Stack, loss: Tensor, *, rate: float, radius: float) -> None:
    """Move down the gradient, and back into the ball."""
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss, models.parameters)
    for parameter, gradient in zip(models.parameters, gradients, strict=True):
        parameter.sub_(gradient, alpha=rate)
    if radius < torch.inf:
        scale = (radius / _flat(models).norm(dim=1)).clamp(max=1.0)
        for parameter in models.parameters:
            parameter.mul_(scale.view(-1, *[1] * (parameter.dim() - 1)))


@torch.no_grad()
def _record(learner: Learner, models: Stack, both: Examples, new: Examples, runs: int) -> tuple[Tensor, ...]:
    weights = _flat(models)
    twice = Examples(new.inputs.repeat(2, 1, 1), new.labels.repeat(2, 1))
    losses = learner.losses(models, twice)
    known = learner.losses(models, both)[:runs].mean(dim=1)
    apart = (losses[:runs] - losses[runs:]).abs().amax(dim=1)
    return (weights[:runs] - weights[runs:]).norm(dim=1), apart, known, losses[:runs].mean(dim=1)


def constants(
    learner: Learner, world: World, rates: Sequence[float], *, num_rows: int, records: Sequence[int], seed: int
) -> tuple[float, float]:
    """The longest gradient and the largest curvature, in size, of any example's loss that were met on the way.

    Of one training, on some of its own examples: the true constants, which are of
    all weights and all examples, are at least as large.
    """
    rng = torch.Generator().manual_seed(seed)
    examples = world.draw(1, num_rows, rng=rng)
    models, longest, steepest = learner.make(1, rng), 0.0, 0.0
    for step, rate in enumerate([0.0, *rates]):
        row = torch.randint(num_rows, (1, 1), generator=rng)
        descend(models, learner.losses(models, examples.take(row)).sum(), rate=rate, radius=learner.radius)
        if step in (0, *records):
            for some in torch.randint(num_rows, (8, 1, 1), generator=rng):
                one = partial(_loss_on, learner, models, examples.take(some))
                gradients = torch.autograd.grad(one(), models.parameters)
                longest = max(longest, float(torch.cat([part.flatten() for part in gradients]).norm()))
                bends = (one, lambda one=one: -one())
                tops = (top_curvature(bend, models.parameters, rng=rng, tolerance=0.05).value for bend in bends)
                steepest = max(steepest, *tops)
    return longest, steepest


def _loss_on(learner: Learner, models: Stack, examples: Examples) -> Tensor:
    return learner.losses(models, examples).sum()


def _doubled(models: Stack) -> Stack:
    """Two of each."""
    twice = [
        parameter.detach().repeat(2, *[1] * (parameter.dim() - 1)).requires_grad_() for parameter in models.parameters
    ]
    return type(models)(*twice)


def _flat(models: Stack) -> Float[Tensor, "runs weights"]:
    return torch.cat([parameter.flatten(1) for parameter in models.parameters], dim=1)


def _log_losses(models: Stack, examples: Examples, *, convexity: float) -> Tensor:
    losses = F.binary_cross_entropy_with_logits(models(examples.inputs), examples.labels, reduction="none")
    (weight,) = models.parameters
    return losses + 0.5 * convexity * weight.square().sum(dim=1, keepdim=True)


def _squared_differences(models: Stack, examples: Examples) -> Tensor:
    return (models(examples.inputs).sigmoid() - examples.labels).square()
