r"""Optimizers compared, each at its own best learning rate: on quadratics and on a Transformer.

Choi et al., "On Empirical Comparisons of Optimizers for Deep Learning" (2019), for why each must be tuned equally.
https://arxiv.org/abs/1910.05446

Each optimizer is tried at the same learning rates for the same number of steps,
from one seed; the rate with the lowest final loss is then run from other seeds,
and only these are reported. Rates are constant.

The quadratics are $\tfrac12 (w - w^*)^\top H (w - w^*)$ for a matrix $w$ of weights, with
log-spaced curvatures. In the first one $H$ is diagonal: a learning rate per
coordinate, as AdaGrad, RMSProp and Adam have, can undo the spread. In the second
$H$ is rotated at random.

The adaptive optimizers are written out in `formulas`, Muon in `regard.training.muon`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor, nn

from regard.evaluation.intervals import mean_interval
from regard.lab.drawing import COLORS, MUTED, add_figure_legend, block_means, label_axes, make_panels
from regard.lab.exercises import draw_delayed_copy, token_loss
from regard.lab.optimizers import OPTIMIZERS_STUDY
from regard.lab.optimizers.formulas import update_sizes
from regard.lab.study import Study, StudyTable
from regard.logging import log_info, progress_bar
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.optimizers import AnyOptimizer, OptimizerName, make_optimizer

_DIVERGED = 100.0
"""A run whose loss exceeds so many times the initial one is stopped."""
_ROUNDING = 1e-16
"""Relative losses below this are rounding errors."""
_COLORS = (*COLORS[:6], COLORS[9])
"""One per optimizer; the seventh color is too similar to the first."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSizes:
    """The problems, and how much is tried; the defaults are those of a quick run."""

    rates: tuple[float, ...] = tuple(10 ** (k / 2) for k in range(-7, 3))
    """Learning rates tried with each optimizer."""
    num_seeds: int = 4
    """Runs at the best rate."""
    side: int = 8
    """Rows and columns of the quadratics' weights."""
    condition: float = 1000.0
    quadratic_steps: int = 200
    steps: int = 100
    """Training steps of the Transformer."""
    length: int = 12
    batch_size: int = 16
    vocab_size: int = 16
    model_dim: int = 32
    num_layers: int = 2


_FULL = OptimizerSizes(rates=tuple(10 ** (k / 4) for k in range(-18, 5)), num_seeds=10, quadratic_steps=1000, steps=200,
                       length=24, batch_size=32, model_dim=64)  # fmt: skip


def _from_training(name: OptimizerName) -> Callable[[nn.Module], AnyOptimizer]:
    """An optimizer of `regard.training`, with Adam's default settings and little weight decay."""
    return partial(make_optimizer, name, betas=(0.9, 0.999), epsilon=1e-8, weight_decay=0.01)


OPTIMIZERS: dict[str, Callable[[nn.Module], AnyOptimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters()),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), momentum=0.9),
    "AdaGrad": lambda model: torch.optim.Adagrad(model.parameters()),
    "RMSProp": lambda model: torch.optim.RMSprop(model.parameters()),
    "Adam": _from_training("adam"),
    "AdamW": _from_training("adamw"),
    "Muon": _from_training("muon"),
}


class MatrixQuadratic(nn.Module):
    """A quadratic loss of a matrix of weights, with an initial value of 1."""

    def __init__(self, side: int, condition: float, *, is_rotated: bool, rng: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(side, side, dtype=torch.float64))
        size = side * side
        curvatures = torch.logspace(-math.log10(condition), 0, size, dtype=torch.float64)
        curvatures = curvatures[torch.randperm(size, generator=rng)]
        # Each axis contributes the same part of the initial loss on average.
        drawn = torch.randn(size, generator=rng, dtype=torch.float64)
        drawn *= math.sqrt(2) / drawn.norm()
        axes = torch.eye(size, dtype=torch.float64)
        if is_rotated:
            axes = torch.linalg.qr(torch.randn(size, size, generator=rng, dtype=torch.float64)).Q
        self.hessian: Float[Tensor, "size size"] = axes @ curvatures.diag() @ axes.T
        self.minimum: Float[Tensor, " size"] = axes @ (drawn / curvatures.sqrt())

    def forward(self) -> Float[Tensor, ""]:
        offset = self.weight.flatten() - self.minimum
        return 0.5 * offset @ self.hessian @ offset


@dataclass(frozen=True)
class TrainingProblem:
    """A model for each seed, and its loss at each step."""

    name: str
    make: Callable[[int], nn.Module]
    loss: Callable[[nn.Module], Tensor]
    steps: int
    baseline: float
    """The loss of an untrained model, relative to which divergence is detected."""


@dataclass(frozen=True)
class TunedOptimizer:
    """An optimizer on one problem: the learning rates tried, and the runs at the best one."""

    rate: float
    """The best."""
    tried: Mapping[float, float]
    """The final loss at each rate tried, from one seed."""
    losses: Float[Tensor, "seed step"]
    """At the best rate, from other seeds."""

    @property
    def final(self) -> Float[Tensor, " seed"]:
        """The mean over the last tenth of the steps."""
        return self.losses[:, -max(1, self.losses.size(1) // 10) :].mean(dim=1)

    @property
    def log_final(self) -> Float[Tensor, " seed"]:
        """The decimal logarithm of the final losses, which are clipped at rounding errors."""
        return self.final.clamp(min=_ROUNDING).log10()

    @property
    def is_at_edge(self) -> bool:
        """Whether a rate outside the range tried might be better."""
        return self.rate in (min(self.tried), max(self.tried))


def study_optimizers(*, quick: bool = False, seed: int = 0, sizes: OptimizerSizes | None = None) -> Study:
    """Tune each optimizer on the same budget, and run each at its best rate from other seeds."""
    sizes = sizes or (OptimizerSizes() if quick else _FULL)
    results = {
        problem.name: {name: tune_optimizer(name, problem, sizes, seed=seed) for name in OPTIMIZERS}
        for problem in training_problems(sizes)
    }
    aligned, rotated, transformer = results.values()
    figure, axes = make_panels(2, 3, height=3.6)
    findings = [
        *_transformer(axes[0], axes[1], transformer, math.log(sizes.vocab_size)),
        _quadratics(axes[2], axes[3], aligned, rotated),
        _constant_gradient(axes[4]),
    ]
    add_figure_legend(figure, axes[0], "outside upper center")
    edges = [f"{name} ({problem})" for problem, tuned in results.items() for name in tuned if tuned[name].is_at_edge]
    findings.append(
        f"The best learning rate is at an end of the range tried, so that a better one may lie outside, for: "
        f"{', '.join(edges) or 'none'}."
    )
    return OPTIMIZERS_STUDY.result(sizes, [(findings, [_table(*each) for each in results.items()])], figure)


def training_problems(sizes: OptimizerSizes) -> list[TrainingProblem]:
    """Two quadratics with the same curvatures, and a Transformer that predicts the previous token."""

    def quadratic(seed: int, *, is_rotated: bool) -> MatrixQuadratic:
        rng = torch.Generator().manual_seed(seed)
        return MatrixQuadratic(sizes.side, sizes.condition, is_rotated=is_rotated, rng=rng)

    def transformer(seed: int) -> Transformer:
        torch.manual_seed(seed)
        config = TransformerConfig(
            encoder_layers=0, decoder_layers=sizes.num_layers, model_dim=sizes.model_dim, num_heads=2,
            feedforward_dim=2 * sizes.model_dim, block="pre-norm", dropout=0.0,
        )  # fmt: skip
        return Transformer(config, sizes.vocab_size)

    def fresh_batch_loss(model: nn.Module) -> Tensor:
        batch = draw_delayed_copy(sizes.batch_size, sizes.length, distance=1, vocab_size=sizes.vocab_size)
        return token_loss(model, batch)

    def call(model: nn.Module) -> Tensor:
        return model()

    return [
        TrainingProblem(
            "axis-aligned quadratic", partial(quadratic, is_rotated=False), call, sizes.quadratic_steps, 1.0
        ),
        TrainingProblem("rotated quadratic", partial(quadratic, is_rotated=True), call, sizes.quadratic_steps, 1.0),
        TrainingProblem("Transformer", transformer, fresh_batch_loss, sizes.steps, math.log(sizes.vocab_size)),
    ]


def tune_optimizer(name: str, problem: TrainingProblem, sizes: OptimizerSizes, *, seed: int) -> TunedOptimizer:
    """Try all learning rates from one seed, and run the best from the following seeds."""
    ends = []
    for rate in progress_bar(sizes.rates, f"{problem.name}: {name}", total=len(sizes.rates)):
        ends.append(final_loss(optimize(name, problem, rate, seed=seed)))
    best = sizes.rates[min(range(len(ends)), key=ends.__getitem__)]
    runs = [optimize(name, problem, best, seed=seed + 1 + number) for number in range(sizes.num_seeds)]
    found = TunedOptimizer(best, dict(zip(sizes.rates, ends, strict=True)), torch.tensor(runs, dtype=torch.float64))
    log_info(f"{problem.name}, {name}: final loss {float(found.final.mean()):.3g} at learning rate {best:.2g}")
    return found


def optimize(name: str, problem: TrainingProblem, rate: float, *, seed: int) -> list[float]:
    """The loss before each step; where it diverges, the limit at which the run was stopped."""
    model = problem.make(seed)
    optimizer = OPTIMIZERS[name](model)
    for group in optimizer.param_groups:
        group["lr"] = rate
    losses: list[float] = []
    for _ in range(problem.steps):
        loss = problem.loss(model)
        value = loss.item()
        if not value < _DIVERGED * problem.baseline:
            return losses + [_DIVERGED * problem.baseline] * (problem.steps - len(losses))
        losses.append(value)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def final_loss(losses: Sequence[float]) -> float:
    """The mean over the last tenth of the steps."""
    return math.fsum(last := losses[-max(1, len(losses) // 10) :]) / len(last)


def _draw_losses(axes: Axes, tuned: Mapping[str, TunedOptimizer]) -> None:
    for (name, found), color in zip(tuned.items(), _COLORS, strict=False):
        steps, runs = block_means(found.losses, num_points=50)
        ends = runs.amin(dim=0).tolist(), runs.amax(dim=0).tolist()
        axes.plot(steps, runs.mean(dim=0), color=color, linewidth=1.5, label=name)
        axes.fill_between(steps.tolist(), *ends, color=color, alpha=0.15, linewidth=0)


def _transformer(losses: Axes, rates: Axes, tuned: Mapping[str, TunedOptimizer], chance: float) -> list[str]:
    _draw_losses(losses, tuned)
    losses.set_ylim(bottom=0)
    label_axes(losses, "Transformer, each at its best rate; bands: range over seeds", "step", "loss, nats")
    best = min(tuned, key=lambda name: float(tuned[name].final.mean()))
    worse, undecided, good_rates = [], [], []
    for (name, found), color in zip(tuned.items(), _COLORS, strict=False):
        if name != best:
            # Paired by seed: the same initial weights and batches.
            _, low, high = mean_interval(found.final - tuned[best].final)
            (worse if low > 0 else undecided).append(f"{name} [{low:.2g}, {high:.2g}]")
        ends = list(found.tried.values())
        good_rates.append(f"{name} {sum(end <= (min(ends) + chance) / 2 for end in ends)}")
        # Diverged runs are drawn at the upper edge.
        shown = [min(end, 1.5 * chance) for end in ends]
        rates.semilogx(list(found.tried), shown, color=color, marker="o", markersize=3, linewidth=1.2)
    rates.set_ylim(0, 1.53 * chance)
    label_axes(rates, "Transformer: rates tried; dotted: chance", "learning rate", "final loss, nats")
    for axes in (losses, rates):
        axes.axhline(chance, color=MUTED, linewidth=1, linestyle=":")
    return [
        f"{best} reaches the lowest loss on the Transformer; paired by seed it is significantly ahead (95 % interval, "
        f"nats) of {', '.join(worse) or 'none'}, and not of {', '.join(undecided) or 'none'}.",
        f"Of {len(tuned[best].tried)} learning rates, the number that gains at least half of what the best one gains "
        f"over chance: {', '.join(good_rates)}.",
    ]


def _quadratics(
    left: Axes, right: Axes, aligned: Mapping[str, TunedOptimizer], rotated: Mapping[str, TunedOptimizer]
) -> str:
    for axes, tuned, title in ((left, aligned, "Axis-aligned quadratic"), (right, rotated, "Rotated quadratic")):
        _draw_losses(axes, tuned)
        label_axes(axes, title, "step", "loss, relative", log="y")
    low = min(axes.get_ylim()[0] for axes in (left, right))
    for axes in (left, right):
        axes.set_ylim(max(low, 1e-12), 3)
    ratios = [
        f"{name} {10 ** float((rotated[name].log_final - aligned[name].log_final).mean()):.2g}" for name in aligned
    ]
    return f"Rotating the quadratic multiplies the final loss by (geometric mean over seeds): {', '.join(ratios)}."


def _constant_gradient(axes: Axes) -> str:
    updates = update_sizes(num_steps=1000)
    for (name, values), color in zip(updates.items(), (COLORS[2], COLORS[3], COLORS[4], COLORS[8]), strict=True):
        style = "--" if "not" in name else "-"
        axes.loglog(range(1, len(values) + 1), values, style, color=color, label=name)
    axes.set_ylim(top=300)
    title = "Updates for a constant gradient of 1"
    label_axes(axes, title, "step", "update / learning rate", legend="upper right")
    plain = torch.tensor(updates["Adam, not corrected"])
    return (
        f"For a constant gradient of 1, Adam's updates without bias correction are {float(plain[0]):.2f} times its "
        f"learning rate at first and at most {float(plain.max()):.2f} times, at step {int(plain.argmax()) + 1}; "
        f"RMSProp's first is {updates['RMSProp'][0]:.1f} times, AdaGrad's last {updates['AdaGrad'][-1]:.3f} times."
    )


def _table(problem: str, tuned: Mapping[str, TunedOptimizer]) -> StudyTable:
    is_quadratic = "quadratic" in problem
    unit = "log10 of the final loss" if is_quadratic else "final loss, nats"
    return StudyTable(
        problem,
        ["optimizer", "best learning rate", "at an end of the range", unit, "final loss when tuned"],
        [[name, found.rate, "yes" if found.is_at_edge else "no",
          mean_interval(found.log_final if is_quadratic else found.final), min(found.tried.values())]
         for name, found in tuned.items()],
        "In brackets the 95 % interval over seeds; the rate was selected on another seed (last column).",
    )  # fmt: skip
