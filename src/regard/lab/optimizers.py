r"""Optimizers side by side, each at its own best rate: on quadratics and on a Transformer.

Choi et al., "On Empirical Comparisons of Optimizers for Deep Learning" (2019), for why each must be tuned alike.
https://arxiv.org/abs/1910.05446

Each optimizer is tried at the same rates for the same number of steps, from one
seed; the rate with the lowest loss at the end is then run from other seeds, and
only these count. Rates are constant.

The quadratics are $\tfrac12 (w - w^*)^\top H (w - w^*)$ for a matrix $w$ of weights, with
curvatures spread evenly on a logarithmic scale. In one, $H$ is diagonal: a rate
of its own for each coordinate, as AdaGrad, RMSProp and Adam have, can undo the
spread. In the other it is turned at random, and no coordinate is special.

The formulas of the adaptive ones are written out in `optimizers_formulas`; Muon's
are in `regard.training.muon`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.lab import STUDIES
from regard.lab.exercises import look_back, loss_of
from regard.lab.optimizers_figure import Tuned, compose
from regard.lab.optimizers_formulas import update_lengths
from regard.lab.optimizers_words import findings, tables
from regard.lab.study import Study
from regard.logging import log_info, progress_bar
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.optimizers import AnyOptimizer, OptimizerName, make_optimizer

_GIVEN_UP = 100.0
"""A loss so many times the first one is not followed further."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The problems, and how much is tried."""

    rates: tuple[float, ...]
    """Tried with each optimizer."""
    num_seeds: int
    """Run at the best rate."""
    side: int = 8
    """Rows and columns of the quadratics' weights."""
    condition: float = 1000.0
    quadratic_steps: int
    steps: int
    """Of the Transformer."""
    length: int = 12
    batch_size: int = 16
    vocab_size: int = 16
    model_dim: int = 32
    num_layers: int = 2


QUICK = Sizes(rates=tuple(10 ** (k / 2) for k in range(-7, 3)), num_seeds=4, quadratic_steps=200, steps=100)
FULL = Sizes(rates=tuple(10 ** (k / 4) for k in range(-18, 5)), num_seeds=10, quadratic_steps=1000, steps=200,
             length=24, batch_size=32, model_dim=64)  # fmt: skip


def _ours(name: OptimizerName) -> Callable[[nn.Module], AnyOptimizer]:
    """Of `regard.training`, with Adam's usual settings and a light decay."""
    return partial(make_optimizer, name, betas=(0.9, 0.999), epsilon=1e-8, weight_decay=0.01)


OPTIMIZERS: dict[str, Callable[[nn.Module], AnyOptimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters()),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), momentum=0.9),
    "AdaGrad": lambda model: torch.optim.Adagrad(model.parameters()),
    "RMSProp": lambda model: torch.optim.RMSprop(model.parameters()),
    "Adam": _ours("adam"),
    "AdamW": _ours("adamw"),
    "Muon": _ours("muon"),
}


class Quadratic(nn.Module):
    """Half the squared distance of a matrix from another, curvature by curvature; the first loss is 1."""

    def __init__(self, side: int, condition: float, *, is_turned: bool, rng: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(side, side, dtype=torch.float64))
        size = side * side
        curvatures = torch.logspace(-math.log10(condition), 0, size, dtype=torch.float64)
        curvatures = curvatures[torch.randperm(size, generator=rng)]
        # Each axis holds the same share of the loss on average.
        drawn = torch.randn(size, generator=rng, dtype=torch.float64)
        drawn *= math.sqrt(2) / drawn.norm()
        axes = torch.eye(size, dtype=torch.float64)
        if is_turned:
            axes = torch.linalg.qr(torch.randn(size, size, generator=rng, dtype=torch.float64)).Q
        self.hessian: Float[Tensor, "size size"] = axes @ curvatures.diag() @ axes.T
        self.lowest: Float[Tensor, " size"] = axes @ (drawn / curvatures.sqrt())

    def forward(self) -> Float[Tensor, ""]:
        away = self.weight.flatten() - self.lowest
        return 0.5 * away @ self.hessian @ away


@dataclass(frozen=True)
class Task:
    """Something to be learnt: a model from a seed, and its loss at each step."""

    name: str
    make: Callable[[int], nn.Module]
    loss: Callable[[nn.Module], Tensor]
    steps: int
    start: float
    """The loss of who knows nothing, by which a run that has come to no number is judged."""


def study(*, quick: bool, seed: int) -> Study:
    """Tune each optimizer on the same budget, and run each at its best rate from other seeds."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    results = {
        task.name: {name: tune(name, task, sizes, seed=seed) for name in OPTIMIZERS} for task in make_tasks(sizes)
    }
    lengths = update_lengths(num_steps=1000)
    return Study(
        name="optimizers",
        title="Optimizers, each at its best rate",
        claim=STUDIES["optimizers"],
        findings=findings(results, lengths, chance=math.log(sizes.vocab_size)),
        tables=tables(results),
        figure=compose(results, lengths, chance=math.log(sizes.vocab_size)),
        settings=asdict(sizes),
    )


def make_tasks(sizes: Sizes) -> list[Task]:
    """Two quadratics of the same curvatures, and a Transformer that is to name the token before."""

    def quadratic(seed: int, *, is_turned: bool) -> Quadratic:
        rng = torch.Generator().manual_seed(seed)
        return Quadratic(sizes.side, sizes.condition, is_turned=is_turned, rng=rng)

    def transformer(seed: int) -> Transformer:
        torch.manual_seed(seed)
        config = TransformerConfig(
            encoder_layers=0, decoder_layers=sizes.num_layers, model_dim=sizes.model_dim, num_heads=2,
            feedforward_dim=2 * sizes.model_dim, block="pre-norm", dropout=0.0,
        )  # fmt: skip
        return Transformer(config, sizes.vocab_size)

    def on_a_fresh_batch(model: nn.Module) -> Tensor:
        return loss_of(model, look_back(sizes.batch_size, sizes.length, distance=1, vocab_size=sizes.vocab_size))

    chance = math.log(sizes.vocab_size)
    return [
        Task("quadratic along the axes", partial(quadratic, is_turned=False), _call, sizes.quadratic_steps, 1.0),
        Task("quadratic turned", partial(quadratic, is_turned=True), _call, sizes.quadratic_steps, 1.0),
        Task("Transformer", transformer, on_a_fresh_batch, sizes.steps, chance),
    ]


def tune(name: str, task: Task, sizes: Sizes, *, seed: int) -> Tuned:
    """Try all rates from one seed, and run the best from the seeds that follow."""
    ends = []
    for rate in progress_bar(sizes.rates, f"{task.name}: {name}", total=len(sizes.rates)):
        ends.append(end_of(train(name, task, rate, seed=seed)))
    best = sizes.rates[min(range(len(ends)), key=ends.__getitem__)]
    runs = [train(name, task, best, seed=seed + 1 + number) for number in range(sizes.num_seeds)]
    found = Tuned(best, dict(zip(sizes.rates, ends, strict=True)), torch.tensor(runs, dtype=torch.float64))
    log_info(f"{task.name}, {name}: {float(found.ends.mean()):.3g} at the end, at rate {best:.2g}")
    return found


def train(name: str, task: Task, rate: float, *, seed: int) -> list[float]:
    """The loss before each step; where it explodes, what it was like when it was given up."""
    model = task.make(seed)
    optimizer = OPTIMIZERS[name](model)
    for group in optimizer.param_groups:
        group["lr"] = rate
    losses: list[float] = []
    for _ in range(task.steps):
        loss = task.loss(model)
        found = loss.item()
        if not found < _GIVEN_UP * task.start:
            return losses + [_GIVEN_UP * task.start] * (task.steps - len(losses))
        losses.append(found)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def end_of(losses: Sequence[float]) -> float:
    """The mean over the last tenth of the steps."""
    return math.fsum(last := losses[-max(1, len(losses) // 10) :]) / len(last)


def _call(model: nn.Module) -> Tensor:
    return model()
