r"""Stochastic gradients: the noise floor of a quadratic, noise in one step of a network, and batch size.

Keskar et al., "On Large-Batch Training for Deep Learning" (2017), for batch sizes. https://arxiv.org/abs/1609.04836

The mean gradient of $B$ examples, drawn with replacement, is $g + \xi$ with
$\mathbb{E}\, \xi = 0$ and covariance $\Sigma / B$. To second order the noise raises the loss after a
step by, on average,

$$ \mathbb{E} f(w - \eta (g + \xi)) - f(w - \eta g) \approx \frac{\eta^2}{2 B} \operatorname{tr}(H \Sigma) ; $$

with one weight that is $\tfrac12 \eta^2 (\sigma^2 / B) \lambda$. On a quadratic each step adds it and removes
the fraction $1 - (1 - \eta \lambda)^2$ of the loss, which balance at the noise floor

$$ f_\infty = \frac{\eta\, \sigma^2 / B}{2\,(2 - \eta \lambda)} . $$

Dimensions: `rows` examples, `weights`, `draws` of a batch; `runs` networks trained in parallel.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.evaluation.intervals import Interval, mean_interval
from regard.lab.descent.rates import DescentProblem
from regard.lab.hessian import flat_gradient, flat_weights, hessian_product, set_flat_weights
from regard.lab.networks import BinaryExamples, draw_examples, draw_networks, error_rates, logistic_losses
from regard.logging import progress_bar


def noise_floor(learning_rate: float, batch_size: int, *, sigma: float = 1.0, curvature: float = 1.0) -> float:
    """The expected final loss of a quadratic; infinite where the learning rate is too large to converge."""
    if learning_rate * curvature >= 2:
        return math.inf
    return learning_rate * sigma**2 / batch_size / (2 * (2 - learning_rate * curvature))


def measure_noise_floor(
    learning_rate: float, batch_size: int, *, runs: int, rng: torch.Generator, sigma: float = 1.0
) -> Interval:
    r"""The mean loss over independent runs, after enough steps to forget the start.

    The loss is $\tfrac12 (x - \mu)^2$ for the mean $\mu = 0$ of normal examples, of
    which each step draws `batch_size`.
    """
    x = torch.zeros(runs, dtype=torch.float64)
    for _ in range(math.ceil(5 / min(learning_rate, 2 - learning_rate))):
        examples = sigma * torch.randn(runs, batch_size, generator=rng, dtype=torch.float64)
        x = x - learning_rate * (x - examples.mean(dim=1))
    return mean_interval(x**2 / 2)


def example_gradients(problem: DescentProblem) -> Float[Tensor, "rows weights"]:
    """The gradient of each example's own loss."""
    return torch.stack(
        [flat_gradient(problem.losses()[row], problem.parameters) for row in range(len(problem.losses()))]
    )


def noise_curvature(problem: DescentProblem, gradients: Float[Tensor, "rows weights"]) -> float:
    """The trace of the Hessian times the covariance of the examples' gradients."""
    product = hessian_product(problem.loss, problem.parameters)
    centered = gradients - gradients.mean(dim=0)
    return float(torch.stack([row @ product(row) for row in centered]).mean())


def step_noise(
    problem: DescentProblem,
    gradients: Float[Tensor, "rows weights"],
    learning_rate: float,
    batch_size: int,
    *,
    num_draws: int,
    rng: torch.Generator,
) -> Interval:
    """The mean difference of the loss after a step with a random batch and after one with all examples.

    Each batch is used twice, the second time with its noise negated: the part that
    is linear in the noise cancels, which reduces the variance. The weights are restored.
    """
    parameters, start = problem.parameters, flat_weights(problem.parameters)
    full = gradients.mean(dim=0)

    def loss_after(gradient: Tensor) -> float:
        set_flat_weights(parameters, start - learning_rate * gradient)
        with torch.no_grad():
            return float(problem.loss())

    noiseless, added = loss_after(full), []
    for _ in range(num_draws):
        rows = torch.randint(len(gradients), (batch_size,), generator=rng)
        noise = gradients[rows].mean(dim=0) - full
        added.append((loss_after(full + noise) + loss_after(full - noise)) / 2 - noiseless)
    set_flat_weights(parameters, start)
    return mean_interval(added)


@dataclass(frozen=True)
class BatchSizeResult:
    """Networks trained in the same way with one batch size."""

    batch_size: int
    losses: Float[Tensor, " runs"]
    """On the training examples, in nats."""
    train_errors: Float[Tensor, " runs"]
    test_errors: Float[Tensor, " runs"]
    """On test examples, whose labels are not flipped."""


@dataclass(frozen=True, kw_only=True)
class NoisyClassification:
    """A small classification task with flipped labels, which a wide network can memorize."""

    num_rows: int = 128
    num_inputs: int = 10
    width: int = 64
    flipped: float = 0.2
    """Fraction of the training labels that are inverted."""
    num_test_rows: int = 1000
    learning_rate: float = 0.5


NARROW = NoisyClassification(num_rows=512, width=16)
"""Too narrow to memorize all flipped labels in the steps of the study."""
WIDE = NoisyClassification(num_rows=128, width=64)
"""Wide enough to memorize them."""


def compare_batch_sizes(
    batch_sizes: Sequence[int], task: NoisyClassification, *, steps: int, runs: int, seed: int
) -> list[BatchSizeResult]:
    """Train from the same weights on the same examples for the same number of steps, with each batch size."""
    rng = torch.Generator().manual_seed(seed)
    teacher = draw_networks(runs, task.num_inputs, 3, rng=rng)
    initial = draw_networks(runs, task.num_inputs, task.width, rng=rng)

    def draw(num_rows: int, flipped: float) -> BinaryExamples:
        return draw_examples(runs, num_rows, task.num_inputs, teacher=teacher, flipped=flipped, rng=rng)

    train, test = draw(task.num_rows, task.flipped), draw(task.num_test_rows, 0.0)
    results = []
    for size in batch_sizes:
        networks = initial.copy()
        rng = torch.Generator().manual_seed(seed + 1)
        for _ in progress_bar(range(steps), f"batch size {size}", total=steps):
            batch = train
            if size < task.num_rows:  # drawn without replacement
                batch = train.take(torch.rand(runs, task.num_rows, generator=rng).topk(size, dim=1).indices)
            networks.update(logistic_losses(networks(batch.inputs), batch), learning_rate=task.learning_rate)
        with torch.no_grad():
            on_train, on_test = networks(train.inputs), networks(test.inputs)
        losses = logistic_losses(on_train, train)
        results.append(BatchSizeResult(size, losses, error_rates(on_train, train), error_rates(on_test, test)))
    return results
