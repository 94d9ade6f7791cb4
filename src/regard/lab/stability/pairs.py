r"""Stability of stochastic gradient descent: its bounds, and pairs of runs whose training sets differ in one example.

Hardt, Recht & Singer, "Train faster, generalize better: Stability of stochastic gradient descent" (2016).
https://arxiv.org/abs/1509.01240

A learner is $\varepsilon$-uniformly stable if replacing one of its $n$ training examples
changes its expected loss on any example by at most $\varepsilon$. Then the test loss exceeds
the training loss by at most $\varepsilon$ on average (theorem 2.2).

The bounds assume one uniformly drawn example per step, and a loss that is
$L$-Lipschitz and $\beta$-smooth in the weights for every example. They bound the distance
of the weights of the two runs: a step with the same example expands it by a factor,
which is 1 for a convex loss; a step with the replaced example, which has
probability $1/n$, adds at most $2 \alpha L$.

Dimensions: `runs` pairs, `record` recorded steps, and those of `regard.lab.networks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError
from regard.lab.curvature import flat_gradient, top_curvature
from regard.lab.networks import BinaryExamples, ParallelNetworks, draw_examples, draw_networks
from regard.logging import progress_bar


def convex_distance_bound(rates: Sequence[float], *, num_rows: int, lipschitz: float, smoothness: float) -> float:
    r"""Of the mean distance of the weights: $\frac{2L}{n} \sum_t \alpha_t$ (theorem 3.8, in its proof).

    Holds for a convex loss and rates up to $2 / \beta$.
    """
    if rates and max(rates) > 2 / smoothness:
        raise ConfigError(f"rates must not exceed 2 / smoothness, got {max(rates)=} and {smoothness=}")
    return 2 * lipschitz / num_rows * sum(rates)


def convex_stability_bound(rates: Sequence[float], *, num_rows: int, lipschitz: float, smoothness: float) -> float:
    r"""Of the difference of losses: $\frac{2L^2}{n} \sum_t \alpha_t$ (theorem 3.8)."""
    return lipschitz * convex_distance_bound(rates, num_rows=num_rows, lipschitz=lipschitz, smoothness=smoothness)


def strongly_convex_distance_bound(
    rate: float, *, num_rows: int, lipschitz: float, smoothness: float, convexity: float
) -> float:
    r"""Of the mean distance of the weights: $\frac{2L}{\gamma n}$, for any number of steps (theorem 3.9, in its proof).

    Holds for a $\gamma$-strongly convex loss, weights that are projected to a ball in
    which it is $L$-Lipschitz, and a constant rate up to $1 / \beta$.
    """
    if rate > 1 / smoothness:
        raise ConfigError(f"rate must not exceed 1 / smoothness, got {rate=} and {smoothness=}")
    return 2 * lipschitz / (convexity * num_rows)


def nonconvex_stability_bound(steps: int, *, scale: float, num_rows: int, lipschitz: float, smoothness: float) -> float:
    r"""Of the difference of losses in [0, 1], convex or not, after $T$ steps at rates up to $c / t$ (theorem 3.12).

    $$ \varepsilon \le \frac{1 + 1 / \beta c}{n - 1}
       \big(2 c L^2\big)^{\frac{1}{\beta c + 1}}\, T^{\frac{\beta c}{\beta c + 1}} $$

    `scale` is $c$. A bound of 1 or more is vacuous.
    """
    if num_rows < 2:
        raise ConfigError(f"num_rows must be at least 2, got {num_rows=}")
    growth = smoothness * scale
    factor = (2 * scale * lipschitz**2) ** (1 / (growth + 1)) * steps ** (growth / (growth + 1))
    return (1 + 1 / growth) / (num_rows - 1) * factor


@dataclass(frozen=True)
class ParallelLinear:
    """Linear models without bias, one per run."""

    weight: Float[Tensor, "runs inputs"]

    def __call__(self, inputs: Float[Tensor, "runs rows inputs"]) -> Float[Tensor, "runs rows"]:
        return (inputs @ self.weight[..., None]).squeeze(-1)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.weight]


ParallelModels = ParallelLinear | ParallelNetworks


@dataclass(frozen=True)
class StableLearner:
    """Models and their loss; after each step the weights of each run are projected to a ball of the given radius."""

    make: Callable[[int, torch.Generator], ParallelModels]
    """Returns so many models with random weights."""
    losses: Callable[[ParallelModels, BinaryExamples], Float[Tensor, "runs rows"]]
    radius: float = torch.inf


def logistic_learner(num_inputs: int, *, convexity: float = 0.0, radius: float = torch.inf) -> StableLearner:
    """Logistic regression from weights of 0, with a penalty of `convexity` / 2 times the squared weights.

    For inputs of norm 1 its loss is 1-Lipschitz and 1/4-smooth without the penalty; with
    it, inside the ball, (1 + convexity radius)-Lipschitz and (1/4 + convexity)-smooth.
    """

    def losses(models: ParallelModels, examples: BinaryExamples) -> Tensor:
        unpenalized = F.binary_cross_entropy_with_logits(models(examples.inputs), examples.labels, reduction="none")
        (weight,) = models.parameters
        return unpenalized + 0.5 * convexity * weight.square().sum(dim=1, keepdim=True)

    def make(runs: int, rng: torch.Generator) -> ParallelLinear:
        return ParallelLinear(torch.zeros(runs, num_inputs, requires_grad=True))

    return StableLearner(make, losses, radius)


def network_learner(num_inputs: int, width: int) -> StableLearner:
    """A network with one tanh layer; the loss is the squared error of the probability, in [0, 1]."""

    def losses(models: ParallelModels, examples: BinaryExamples) -> Tensor:
        return (models(examples.inputs).sigmoid() - examples.labels).square()

    def make(runs: int, rng: torch.Generator) -> ParallelNetworks:
        return draw_networks(runs, num_inputs, width, rng=rng)

    return StableLearner(make, losses)


@dataclass(frozen=True)
class ExampleSource:
    """A distribution of examples: inputs of norm 1, labeled by a teacher network, a fraction of the labels inverted."""

    teacher: ParallelNetworks
    """One network, shared by all runs."""
    flipped: float

    @property
    def num_inputs(self) -> int:
        return self.teacher.hidden.size(1)

    def draw(self, runs: int, num_rows: int, *, rng: torch.Generator) -> BinaryExamples:
        teacher = ParallelNetworks(*(parameter.expand(runs, -1, -1) for parameter in self.teacher.parameters))
        drawn = draw_examples(runs, num_rows, self.num_inputs, teacher=teacher, flipped=self.flipped, rng=rng)
        return BinaryExamples(F.normalize(drawn.inputs, dim=-1), drawn.labels)


@dataclass(frozen=True)
class PairedRuns:
    """Pairs of runs whose training sets differ in one example, at the recorded steps."""

    steps: list[int]
    distances: Float[Tensor, "record runs"]
    """Between the weights of a pair."""
    loss_differences: Float[Tensor, "record runs"]
    """The largest absolute difference of the losses of a pair on any of its test examples."""
    train: Float[Tensor, "record runs"]
    """Mean loss of the first run of each pair."""
    test: Float[Tensor, "record runs"]

    @property
    def gaps(self) -> Float[Tensor, "record runs"]:
        """The generalization gap: test loss - training loss."""
        return self.test - self.train


def train_pairs(
    learner: StableLearner,
    source: ExampleSource,
    rates: Sequence[float],
    *,
    num_rows: int,
    runs: int,
    records: Sequence[int],
    num_test_rows: int = 300,
    seed: int,
    description: str = "pairs",
) -> PairedRuns:
    """Train `runs` pairs, one step per learning rate; both runs of a pair start equal and draw the same rows.

    The second run of a pair has another example in its first row. Sets, order and
    test examples do not depend on the learner, so that learners can be compared by pair.
    """
    rng = torch.Generator().manual_seed(seed)
    first = source.draw(runs, num_rows, rng=rng)
    other = source.draw(runs, 1, rng=rng)
    both = BinaryExamples(first.inputs.repeat(2, 1, 1), first.labels.repeat(2, 1))
    both.inputs[runs:, 0], both.labels[runs:, 0] = other.inputs[:, 0], other.labels[:, 0]
    test = source.draw(runs, num_test_rows, rng=rng)
    test = BinaryExamples(test.inputs.repeat(2, 1, 1), test.labels.repeat(2, 1))
    order = torch.randint(num_rows, (len(rates), runs), generator=rng)
    single = learner.make(runs, rng)
    models = type(single)(*(p.detach().repeat(2, *[1] * (p.dim() - 1)).requires_grad_() for p in single.parameters))
    found = []
    for step, rate in enumerate(progress_bar(rates, description, total=len(rates)), start=1):
        rows = order[step - 1].repeat(2)[:, None]
        projected_step(models, learner.losses(models, both.take(rows)).sum(), rate=rate, radius=learner.radius)
        if step in records:
            with torch.no_grad():
                weights, losses = _flat(models), learner.losses(models, test)
                found.append((
                    (weights[:runs] - weights[runs:]).norm(dim=1), (losses[:runs] - losses[runs:]).abs().amax(dim=1),
                    learner.losses(models, both)[:runs].mean(dim=1), losses[:runs].mean(dim=1),
                ))  # fmt: skip
    steps = [step for step in records if step <= len(rates)]
    return PairedRuns(steps, *(torch.stack(part) for part in zip(*found, strict=True)))


@torch.no_grad()
def projected_step(models: ParallelModels, loss: Tensor, *, rate: float, radius: float) -> None:
    """One step of gradient descent, and the projection of each run's weights to the ball."""
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss, models.parameters)
    for parameter, gradient in zip(models.parameters, gradients, strict=True):
        parameter.sub_(gradient, alpha=rate)
    if radius < torch.inf:
        scale = (radius / _flat(models).norm(dim=1)).clamp(max=1.0)
        for parameter in models.parameters:
            parameter.mul_(scale.view(-1, *[1] * (parameter.dim() - 1)))


def measured_constants(
    learner: StableLearner, source: ExampleSource, rates: Sequence[float], *, num_rows: int, records: Sequence[int],
    seed: int,
) -> tuple[float, float]:  # fmt: skip
    """The largest gradient norm and absolute curvature of any example's loss at the recorded steps of one run.

    Lower bounds of the true constants, which are maxima over all weights and examples.
    """
    rng = torch.Generator().manual_seed(seed)
    examples = source.draw(1, num_rows, rng=rng)
    models, lipschitz, smoothness = learner.make(1, rng), 0.0, 0.0

    def loss_on(rows: Tensor, sign: int = 1) -> Tensor:
        return sign * learner.losses(models, examples.take(rows)).sum()

    for step, rate in enumerate([0.0, *rates]):
        row = torch.randint(num_rows, (1, 1), generator=rng)
        projected_step(models, loss_on(row), rate=rate, radius=learner.radius)
        if step in (0, *records):
            for rows in torch.randint(num_rows, (8, 1, 1), generator=rng):
                lipschitz = max(lipschitz, float(flat_gradient(loss_on(rows), models.parameters).norm()))
                for sign in (1, -1):
                    loss = partial(loss_on, rows, sign)
                    found = top_curvature(loss, models.parameters, rng=rng, tolerance=0.05)
                    smoothness = max(smoothness, found.value)
    return lipschitz, smoothness


def _flat(models: ParallelModels) -> Float[Tensor, "runs weights"]:
    return torch.cat([parameter.flatten(1) for parameter in models.parameters], dim=1)
