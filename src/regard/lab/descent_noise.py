r"""Stochastic gradients on networks: what their noise adds to a step, and what it does to the error on new examples.

Keskar et al., "On Large-Batch Training for Deep Learning" (2017), for batch sizes. https://arxiv.org/abs/1609.04836

The mean gradient of $B$ examples, drawn with replacement, is $g + \xi$ with
$\mathbb{E}\, \xi = 0$ and covariance $\Sigma / B$. To second order it leaves the loss higher
than a step along $g$ itself would have left it, on average by

$$ \mathbb{E} f(w - \eta (g + \xi)) - f(w - \eta g) \approx \frac{\eta^2}{2 B} \operatorname{tr}(H \Sigma) ; $$

with one weight that is $\tfrac12 \eta^2 (\sigma^2 / B) f''$.

Dimensions: `rows` examples, `weights`, `draws` of a batch; `runs` networks side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.evaluation.means import Around, mean_interval
from regard.lab.curvature import flat_gradient, hessian_product, put_weights, weights_of
from regard.lab.descent_networks import Examples, Networks, Problem, draw_examples, draw_networks, errors, log_losses
from regard.logging import progress_bar


def gradients_of_examples(problem: Problem) -> Float[Tensor, "rows weights"]:
    """The gradient of each example's own loss."""
    return torch.stack(
        [flat_gradient(problem.losses()[row], problem.parameters) for row in range(len(problem.losses()))]
    )


def noise_curvature(problem: Problem, gradients: Float[Tensor, "rows weights"]) -> float:
    """The trace of the Hessian times the covariance of the examples' gradients."""
    product = hessian_product(problem.loss, problem.parameters)
    spread = gradients - gradients.mean(dim=0)
    return float(torch.stack([row @ product(row) for row in spread]).mean())


def noise_of_a_step(
    problem: Problem,
    gradients: Float[Tensor, "rows weights"],
    rate: float,
    batch_size: int,
    *,
    num_draws: int,
    rng: torch.Generator,
) -> Around:
    """How much higher a step with a random batch leaves the loss than one with all examples, on average.

    Each batch is used twice, once with its noise turned round: what is linear in
    the noise has a mean of 0, and would hide what is not. The weights are left where they were.
    """
    parameters, start = problem.parameters, weights_of(problem.parameters)
    whole = gradients.mean(dim=0)

    def loss_at(gradient: Tensor) -> float:
        put_weights(parameters, start - rate * gradient)
        with torch.no_grad():
            return float(problem.loss())

    quiet, added = loss_at(whole), []
    for _ in range(num_draws):
        rows = torch.randint(len(gradients), (batch_size,), generator=rng)
        noise = gradients[rows].mean(dim=0) - whole
        added.append((loss_at(whole + noise) + loss_at(whole - noise)) / 2 - quiet)
    put_weights(parameters, start)
    return mean_interval(added)


@dataclass(frozen=True)
class Outcome:
    """Networks that were trained alike with batches of one size."""

    batch_size: int
    losses: Float[Tensor, " runs"]
    """On the training examples, in nats."""
    train: Float[Tensor, " runs"]
    """Share of the training examples with the wrong answer."""
    test: Float[Tensor, " runs"]
    """The same of new examples, whose labels are right."""


@dataclass(frozen=True, kw_only=True)
class Classes:
    """A small exercise in classification that is easy to learn by heart."""

    num_rows: int = 128
    num_inputs: int = 10
    width: int = 64
    flipped: float = 0.2
    """Share of the training labels that are wrong."""
    num_test_rows: int = 1000
    rate: float = 0.5


NARROW = Classes(num_rows=512, width=16)
"""Too few units to learn all wrong labels by heart in the time there is."""
WIDE = Classes(num_rows=128, width=64)
"""Units enough for that."""


def compare_batches(sizes: Sequence[int], classes: Classes, *, steps: int, runs: int, seed: int) -> list[Outcome]:
    """Train from the same weights on the same examples for the same number of steps, with batches of each size."""
    rng = torch.Generator().manual_seed(seed)
    teacher = draw_networks(runs, classes.num_inputs, 3, rng=rng)
    first = draw_networks(runs, classes.num_inputs, classes.width, rng=rng)

    def draw(num_rows: int, flipped: float) -> Examples:
        return draw_examples(runs, num_rows, classes.num_inputs, teacher=teacher, flipped=flipped, rng=rng)

    train, test = draw(classes.num_rows, classes.flipped), draw(classes.num_test_rows, 0.0)
    outcomes = []
    for size in sizes:
        networks = first.copy()
        _train(networks, train, size, steps=steps, rate=classes.rate, rng=torch.Generator().manual_seed(seed + 1))
        with torch.no_grad():
            known, new = networks(train.inputs), networks(test.inputs)
        outcomes.append(Outcome(size, log_losses(known, train), errors(known, train), errors(new, test)))
    return outcomes


def _train(
    networks: Networks, train: Examples, batch_size: int, *, steps: int, rate: float, rng: torch.Generator
) -> None:
    """Stochastic gradient descent on batches drawn without replacement, or on all examples at once."""
    runs, num_rows = train.labels.shape
    for _ in progress_bar(range(steps), f"batches of {batch_size}", total=steps):
        if batch_size < num_rows:
            batch = train.take(torch.rand(runs, num_rows, generator=rng).topk(batch_size, dim=1).indices)
        else:
            batch = train
        networks.descend(log_losses(networks(batch.inputs), batch), rate=rate)
