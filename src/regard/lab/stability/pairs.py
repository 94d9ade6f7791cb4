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

Measured are, over pairs of runs, the distance of the weights, the largest
difference of the losses on test examples, and the generalization gap. The bounds are
for the worst training sets and examples, while these are random, so the measurements
should lie below them. For logistic regression the constants of the bounds are known.
For the network they are measured during training, which can only underestimate them:
its bound is what the theorem would give if no larger constant occurred anywhere.

Dimensions: `runs` pairs, `record` recorded steps, and those of `regard.lab.networks`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from regard.errors import ConfigError
from regard.evaluation.intervals import mean_interval
from regard.lab.drawing import COLORS, MUTED, label_axes, make_panels, plot_band
from regard.lab.hessian import flat_gradient, top_curvature
from regard.lab.networks import BinaryExamples, ParallelNetworks, draw_examples, draw_networks
from regard.lab.own_data import LabeledRows, read_labeled_rows
from regard.lab.stability import STABILITY
from regard.lab.study import Study, StudyCell, StudyTable, format_cell
from regard.logging import progress_bar

_LIPSCHITZ, _SMOOTHNESS = 1.0, 0.25
"""Constants of logistic regression, for inputs of norm 1."""
_Rows = tuple[list[str], list[list[StudyCell]]]
"""Findings and rows of a table."""
_COLUMNS = [
    "case",
    "distance",
    "its bound",
    "loss difference",
    "test - training loss",
    "bound of both",
    "training loss",
]
_NOTE = (
    "All but the last column in hundredths; in brackets the 95 % interval of the mean over pairs. Loss difference: the "
    "largest on any test example. For c / t the constants of the bound are measured in training."
)


def convex_distance_bound(rates: Sequence[float], *, num_rows: int, lipschitz: float, smoothness: float) -> float:
    r"""Bounds the mean distance of the weights: $\frac{2L}{n} \sum_t \alpha_t$ (theorem 3.8, in its proof).

    Holds for a convex loss and rates up to $2 / \beta$.
    """
    if rates and max(rates) > 2 / smoothness:
        raise ConfigError(f"rates must not exceed 2 / smoothness, got {max(rates)=} and {smoothness=}")
    return 2 * lipschitz / num_rows * sum(rates)


def convex_stability_bound(rates: Sequence[float], *, num_rows: int, lipschitz: float, smoothness: float) -> float:
    r"""Bounds the difference of losses: $\frac{2L^2}{n} \sum_t \alpha_t$ (theorem 3.8)."""
    return lipschitz * convex_distance_bound(rates, num_rows=num_rows, lipschitz=lipschitz, smoothness=smoothness)


def strongly_convex_distance_bound(
    rate: float, *, num_rows: int, lipschitz: float, smoothness: float, convexity: float
) -> float:
    r"""Bounds the mean distance of the weights: $\frac{2L}{\gamma n}$, for any number of steps (proof of theorem 3.9).

    Holds for a $\gamma$-strongly convex loss, weights that are projected to a ball in
    which it is $L$-Lipschitz, and a constant rate up to $1 / \beta$.
    """
    if rate > 1 / smoothness:
        raise ConfigError(f"rate must not exceed 1 / smoothness, got {rate=} and {smoothness=}")
    return 2 * lipschitz / (convexity * num_rows)


def nonconvex_stability_bound(steps: int, *, scale: float, num_rows: int, lipschitz: float, smoothness: float) -> float:
    r"""Bounds the difference of losses in [0, 1], convex or not, after $T$ steps at rates up to $c / t$ (theorem 3.12).

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
class RowSource:
    """The distribution of the rows of a file, drawn with replacement; inputs are scaled to norm 1."""

    rows: LabeledRows

    @property
    def num_inputs(self) -> int:
        return self.rows.inputs.size(1)

    def draw(self, runs: int, num_rows: int, *, rng: torch.Generator) -> BinaryExamples:
        chosen = torch.randint(len(self.rows), (runs, num_rows), generator=rng)
        inputs = F.normalize(self.rows.inputs, dim=-1).to(torch.get_default_dtype())
        return BinaryExamples(inputs[chosen], (self.rows.signs > 0).to(inputs)[chosen])


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
    source: ExampleSource | RowSource,
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
    learner: StableLearner, source: ExampleSource | RowSource, rates: Sequence[float], *, num_rows: int,
    records: Sequence[int], seed: int,
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


@dataclass(frozen=True, kw_only=True)
class StabilitySizes:
    """The training sets, the learning rates, and the number of pairs; the defaults are those of a quick run."""

    runs: int = 200
    """Pairs."""
    num_rows: int = 200
    num_inputs: int = 10
    flipped: float = 0.1
    """Fraction of inverted labels, in training and test examples."""
    steps: int = 2000
    rates: tuple[float, ...] = (0.05, 0.3, 2.0)
    """Learning rates of logistic regression."""
    row_counts: tuple[int, ...] = (50, 100, 200, 400, 800)
    """Sizes of training sets that are compared, at the middle rate."""
    convexities: tuple[float, ...] = (0.03, 0.1)
    radius: float = 5.0
    width: int = 32
    network_rates: tuple[float, ...] = (0.2, 0.7, 2.0)
    scales: tuple[float, ...] = (0.5, 2.0)
    """The c of learning rates c / t."""

    @property
    def middle_rate(self) -> float:
        return self.rates[len(self.rates) // 2]


_FULL = StabilitySizes(runs=500, steps=20_000, row_counts=(50, 100, 200, 400, 800, 1600))


_Train = Callable[..., PairedRuns]


def study_stability(
    *, quick: bool = False, seed: int = 0, data: str | None = None, sizes: StabilitySizes | None = None
) -> Study:
    """Train pairs of models on sets that differ in one example, and compare them with the bounds.

    With a file, `data`, examples are drawn from its rows.
    """
    sizes = sizes or (StabilitySizes() if quick else _FULL)
    if data is None:
        teacher = draw_networks(1, sizes.num_inputs, 3, rng=torch.Generator().manual_seed(seed))
        source = ExampleSource(teacher, sizes.flipped)
    else:
        source = RowSource(read_labeled_rows(data, study=STABILITY.name, seed=seed))
        sizes = replace(sizes, num_inputs=source.num_inputs, flipped=0.0)
    train = partial(
        train_pairs, source=source, num_rows=sizes.num_rows, runs=sizes.runs,
        records=recorded_steps(sizes.steps), seed=seed,
    )  # fmt: skip
    figure, axes = make_panels(3, 3, height=3.5)
    sections = [
        _logistic_regression(axes[0], train, sizes),
        _penalized_regression(axes[1], train, sizes),
        _network(axes[3], axes[5], train, sizes),
        _falling_rates(axes[4], train, source, sizes, seed),
    ]
    by_size = _training_set_sizes(axes[2], train, sizes)
    findings = [finding for section in (*sections, by_size) for finding in section[0]]
    rows = [row for section in sections for row in section[1]]
    tables = [
        StudyTable(f"{name}, after {sizes.steps:,} steps", _COLUMNS, cells, _NOTE)
        for name, cells in (("one example replaced", rows), ("logistic regression by training set size", by_size[1]))
    ]
    return STABILITY.result(sizes, [(findings, tables)], figure)


def recorded_steps(steps: int) -> list[int]:
    """The steps at which pairs are compared: four per decade from 10 on, and the last."""
    some = {round(10 ** (k / 4)) for k in range(4, 40)}
    return sorted({step for step in some if step < 0.8 * steps} | {steps})


def power_law_exponent(points: Mapping[int, float]) -> float:
    """The slope of a line through the logarithms; NaN with fewer than two positive values."""
    kept = [(place, value) for place, value in points.items() if value > 0]
    if len(kept) < 2:
        return math.nan
    x, y = np.log(kept).T
    return float(np.polyfit(x, y, 1)[0])


def _row(
    name: str, runs: PairedRuns, distance_bound: float | None = None, loss_bound: float | None = None
) -> list[StudyCell]:
    values = (runs.distances, runs.loss_differences, runs.gaps)
    distance, difference, gap = (mean_interval(100 * each[-1]) for each in values)
    bounds = [None if bound is None else 100 * bound for bound in (distance_bound, loss_bound)]
    return [name, distance, bounds[0], difference, gap, bounds[1], float(runs.train[-1].mean())]


def _plot(axes: Axes, steps: Sequence[int], values: Tensor, bound: Sequence[float], color: str, name: str) -> None:
    """The mean over pairs at each recorded step, with its interval, and the bound."""
    plot_band(axes, steps, [mean_interval(row) for row in values], color=color, label=name)
    axes.plot(steps[: len(bound)], bound, color=color, linewidth=1.2, linestyle=":")


def _finish(axes: Axes, title: str, x: str, y: str, legend: str = "upper left") -> None:
    """Logarithmic axes, with room for the legend above the lines."""
    label_axes(axes, title, x, y, log="xy", legend=legend)
    # Below the lowest line rather than the lowest band, which may reach 0.
    drawn = [float(value) for line in axes.get_lines() for value in np.asarray(line.get_ydata()) if value > 0]
    low, high = min(drawn) / 3, max(drawn)
    axes.set_ylim(low, high * (high / low) ** 0.4)


def _late_growth(runs: PairedRuns) -> float:
    """The exponent of the number of steps in the mean distance, over the last factor of ten of the steps."""
    means = zip(runs.steps, runs.distances.mean(dim=1).tolist(), strict=True)
    return power_law_exponent({step: mean for step, mean in means if step >= runs.steps[-1] / 10})


def _train_convex(
    train: _Train, rate: float, num_rows: int, sizes: StabilitySizes
) -> tuple[PairedRuns, list[float], list[float]]:
    """Logistic regression: pairs of runs, and the bounds of theorem 3.8 at the recorded steps."""
    known = {"num_rows": num_rows, "lipschitz": _LIPSCHITZ, "smoothness": _SMOOTHNESS}
    description = f"logistic regression, {num_rows} examples, rate {rate:g}"
    learner = logistic_learner(sizes.num_inputs)
    runs = train(learner, rates=[rate] * sizes.steps, num_rows=num_rows, description=description)
    distance = [convex_distance_bound([rate] * step, **known) for step in runs.steps]
    return runs, distance, [convex_stability_bound([rate] * step, **known) for step in runs.steps]


def _logistic_regression(axes: Axes, train: _Train, sizes: StabilitySizes) -> _Rows:
    rows, below, within = [], 0, 0
    for rate, color in zip(sizes.rates, COLORS, strict=False):
        runs, distance, stability = _train_convex(train, rate, sizes.num_rows, sizes)
        _plot(axes, runs.steps, runs.distances, distance, color, f"rate {rate:g}")
        rows.append(_row(f"logistic, rate {rate:g}", runs, distance[-1], stability[-1]))
        below += all(mean <= bound for mean, bound in zip(runs.distances.mean(dim=1), distance, strict=True))
        within += float(runs.gaps[-1].mean()) <= stability[-1]
    _finish(axes, "Logistic regression", "step", "distance of the weights; dotted: bound")
    return [
        f"Logistic regression: the mean distance of the weights is below its bound at every recorded step for {below} "
        f"of {len(rows)} learning rates, and the generalization gap after the last step for {within}."
    ], rows


def _penalized_regression(axes: Axes, train: _Train, sizes: StabilitySizes) -> _Rows:
    """Logistic regression with a penalty, with theorem 3.9."""
    rows, growth, rate = [], [], sizes.middle_rate
    for convexity, color in zip(sizes.convexities, COLORS, strict=False):
        lipschitz, smoothness = _LIPSCHITZ + convexity * sizes.radius, _SMOOTHNESS + convexity
        learner = logistic_learner(sizes.num_inputs, convexity=convexity, radius=sizes.radius)
        name = f"logistic, convexity {convexity:g}"
        runs = train(learner, rates=[rate] * sizes.steps, description=name)
        bound = strongly_convex_distance_bound(
            rate, num_rows=sizes.num_rows, lipschitz=lipschitz, smoothness=smoothness, convexity=convexity
        )
        _plot(axes, runs.steps, runs.distances, [bound] * len(runs.steps), color, f"convexity {convexity:g}")
        rows.append(_row(name, runs, bound, lipschitz * bound))
        growth.append(f"{_late_growth(runs):.2f} at convexity {convexity:g}")
    _finish(axes, "... with a penalty", "step", "distance of the weights; dotted: bound")
    return [
        f"With a penalty, whose bound does not grow, the distance grows over the last factor of ten of the steps as "
        f"their number to the power {', '.join(growth)}."
    ], rows


def _training_set_sizes(axes: Axes, train: _Train, sizes: StabilitySizes) -> _Rows:
    rows, differences, gaps, bounds = [], [], [], []
    for count in sizes.row_counts:
        runs, distance, stability = _train_convex(train, sizes.middle_rate, count, sizes)
        rows.append(_row(f"{count} examples", runs, distance[-1], stability[-1]))
        differences.append(mean_interval(runs.loss_differences[-1]))
        gaps.append(mean_interval(runs.gaps[-1]))
        bounds.append(stability[-1])
    for estimates, name, color in (
        (differences, "largest loss difference", COLORS[0]),
        (gaps, "test - training loss", COLORS[1]),
    ):
        plot_band(axes, sizes.row_counts, estimates, "o-", color=color, floor=1e-6, markersize=3.5, label=name)
    axes.plot(sizes.row_counts, bounds, color=MUTED, linestyle=":", label="bound of both")
    _finish(axes, "Logistic regression by training set size", "training examples", "loss, nats", "upper right")
    axes.set_xticks(sizes.row_counts, labels=[str(count) for count in sizes.row_counts])
    axes.minorticks_off()
    exponent = power_law_exponent(dict(zip(sizes.row_counts, (mean for mean, *_ in differences), strict=True)))
    return [
        f"From {min(sizes.row_counts)} to {max(sizes.row_counts)} training examples the largest difference of losses "
        f"changes as n to the power {exponent:.2f} (bound: -1)."
    ], rows


def _network(distances: Axes, gaps: Axes, train: _Train, sizes: StabilitySizes) -> _Rows:
    rows, growth = [], []
    for rate, color in zip(sizes.network_rates, COLORS, strict=False):
        learner, name = network_learner(sizes.num_inputs, sizes.width), f"network, rate {rate:g}"
        runs = train(learner, rates=[rate] * sizes.steps, description=name)
        rows.append(_row(name, runs))
        growth.append(f"{_late_growth(runs):.2f} at rate {rate:g}")
        for axes, values in ((distances, runs.distances), (gaps, runs.gaps)):
            _plot(axes, runs.steps, values, (), color, f"rate {rate:g}")
    _finish(distances, "Network", "step", "distance of the weights")
    gaps.axhline(0, color=MUTED, linewidth=0.8)
    gaps.set_ylim(top=1.25 * gaps.get_ylim()[1])
    label_axes(gaps, "Network: generalization gap", "step", "test - training loss", log="x", legend="upper left")
    return [
        f"For the network at constant rates, without a bound, the distance grows over the last factor of ten of the "
        f"steps as their number to the power {', '.join(growth)}."
    ], rows


def _falling_rates(
    axes: Axes, train: _Train, source: ExampleSource | RowSource, sizes: StabilitySizes, seed: int
) -> _Rows:
    """The network at learning rates c / t, with theorem 3.12 and constants measured in training."""
    findings, rows = [], []
    for scale, color in zip(sizes.scales, COLORS, strict=False):
        learner, name = network_learner(sizes.num_inputs, sizes.width), f"rates {scale:g} / t"
        rates = [scale / step for step in range(1, sizes.steps + 1)]
        runs = train(learner, rates=rates, description=f"network, {name}")
        lipschitz, smoothness = measured_constants(
            learner, source, rates, num_rows=sizes.num_rows, records=runs.steps[::4], seed=seed
        )
        known = {"scale": scale, "num_rows": sizes.num_rows, "lipschitz": lipschitz, "smoothness": smoothness}
        bound = [nonconvex_stability_bound(step, **known) for step in runs.steps]
        _plot(axes, runs.steps, runs.loss_differences, bound, color, name)
        rows.append(_row(f"network, {name}", runs, None, bound[-1]))
        findings.append(
            f"Network at learning {name}: theorem 3.12, with constants measured in training (L = {lipschitz:.3g}, β = "
            f"{smoothness:.3g}), bounds the difference of losses by {bound[-1]:.3g}"
            f"{', which is vacuous' if bound[-1] >= 1 else ''}; measured: "
            f"{format_cell(mean_interval(runs.loss_differences[-1]))}. The training loss fell from "
            f"{float(runs.train[0].mean()):.3f} to {float(runs.train[-1].mean()):.3f}."
        )
    axes.axhline(1, color=MUTED, linewidth=1)
    _finish(axes, "Network at rates c / t", "step", "loss difference; dotted: bound")
    return findings, rows
