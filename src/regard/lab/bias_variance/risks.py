r"""Bias, variance and noise of a learner over repeated training sets, and selection of the best of K functions.

Geman, Bienenstock and Doursat, "Neural Networks and the Bias/Variance Dilemma" (1992).
Shalev-Shwartz and Ben-David, *Understanding Machine Learning* (2014), chapters 2 and 4.
Massart, "Some applications of concentration inequalities to statistics" (2000), lemma 5.2.

For $y = f(x) + \varepsilon$ and $\hat f_D$ fitted to a training set $D$,

$$ \underbrace{\mathbb E\,(y - \hat f_D(x))^2}_{\text{risk}}
   = \underbrace{\mathbb E_x\big(f(x) - \mathbb E_D \hat f_D(x)\big)^2}_{\text{bias}^2}
   + \underbrace{\mathbb E_x \operatorname{Var}_D \hat f_D(x)}_{\text{variance}}
   + \underbrace{\sigma^2}_{\text{noise}} , $$

where the randomness of the learner itself, such as its features, is drawn with $D$.
The right side is measured where $f$ is known; the left side on other training sets
and on test examples with noise, so that the two are independent.

Of $K$ functions with error probabilities $R_k$ and error rates $\hat R_k$ on $n$ examples,
$\hat k$ has the lowest error rate: empirical risk minimization. By Hoeffding's lemma

$$ \mathbb E\,[R_{\hat k} - \hat R_{\hat k}] \le \sqrt{\frac{\ln K}{2n}}, \qquad
   \Pr\Big[\max_k |R_k - \hat R_k| > \sqrt{\tfrac{\ln(2K/\delta)}{2n}}\Big] \le \delta , $$

for examples drawn independently of each other and of the functions, which may
depend on each other. Two families are measured:

    coins        random predictions, independent of the label and of each other
    thresholds   1 if x is at least t, for K equally spaced t: neighbors predict almost the same

The risk is decomposed for four learners: polynomials by their degree, ridge
regression by its strength, random features by their number, through the point
where there are as many features as rows, and networks by their hidden units, as by
Geman et al. With the rows of a file $f$ is not known: what is measured is then the sum
of squared bias and noise, on rows that no training set is drawn from.

Dimensions: `draw` of a training set or of n examples, `row`, `input`, `point` of evaluation, `feature`, `function`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from regard.evaluation.intervals import mean_interval
from regard.lab.bias_variance import BIAS_VARIANCE
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.networks import draw_networks
from regard.lab.own_data import LabeledRows, read_labeled_rows
from regard.lab.random_features import draw_random_features, ridge_regression
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info, progress_bar

_NUM_BATCHES = 10
"""Independent repetitions of each measurement, over which intervals are computed."""
RegressionLearner = Callable[[Tensor, Tensor, Tensor, torch.Generator], Float[Tensor, "draw point"]]
"""From inputs and targets of training sets, and points, to the predictions of the fitted models at the points."""
FunctionFamily = Literal["coins", "thresholds"]
FUNCTION_FAMILIES: tuple[FunctionFamily, ...] = ("coins", "thresholds")
FLIPPED = 0.2
"""The fraction of flipped labels for thresholds, which is the risk of the best one."""
FAILURE_PROBABILITY = 0.05
_NUMBERS_AT_ONCE = 2**21
_FILE_BANDWIDTH = 1.0
"""The bandwidth of random features on rows of a file, whose inputs have a variance of 1."""
_CAPACITIES = {"polynomials": "degree", "ridge regression": "1 / strength", "random features": "features",
               "networks": "hidden units"}  # fmt: skip
"""The learners, and the measure of their capacity."""


@dataclass(frozen=True)
class RegressionProblem:
    """Inputs uniform on the cube from -1 to 1, a function of them, and normal noise on it."""

    truth: Callable[[Tensor], Tensor]
    input_dim: int
    noise: float
    """Standard deviation."""

    def draw(self, *shape: int, rng: torch.Generator) -> Float[Tensor, "draw row input"]:
        return 2 * torch.rand(*shape, self.input_dim, generator=rng, dtype=torch.float64) - 1

    def targets(self, inputs: Float[Tensor, "draw row input"], rng: torch.Generator) -> Float[Tensor, "draw row"]:
        """The function with noise."""
        truth = self.truth(inputs)
        return truth + self.noise * torch.randn(truth.shape, generator=rng, dtype=truth.dtype)


@dataclass(frozen=True)
class RiskDecomposition:
    """Bias, variance and risk at one capacity, for each repetition."""

    capacity: float
    bias: Tensor
    """Unbiased estimates of the squared bias: corrected for the variance of a mean over finitely many training sets,
    so that they can be negative where the squared bias is close to 0."""
    variance: Tensor
    noise: float
    risk: Tensor

    @property
    def total(self) -> Tensor:
        """Squared bias + variance + noise."""
        return self.bias + self.variance + self.noise


def decompose_risk(
    problem: RegressionProblem, learner: RegressionLearner, capacity: float, *, num_rows: int, num_draws: int,
    num_points: int, rng: torch.Generator,
) -> RiskDecomposition:  # fmt: skip
    """Fit `num_draws` training sets for bias and variance and as many others for the risk, in each repetition."""

    def predict(points: Float[Tensor, "draw point input"]) -> Float[Tensor, "draw point"]:
        inputs = problem.draw(num_draws, num_rows, rng=rng)
        return learner(inputs, problem.targets(inputs, rng), points, rng)

    repetitions = []
    for _ in range(_NUM_BATCHES):
        shared = problem.draw(1, num_points, rng=rng)
        predicted = predict(shared.expand(num_draws, -1, -1))
        variance = predicted.var(dim=0)
        bias = (predicted.mean(dim=0) - problem.truth(shared)[0]).square() - variance / num_draws
        test = problem.draw(num_draws, num_points, rng=rng)
        residuals = predict(test) - problem.targets(test, rng)
        repetitions.append(torch.stack([bias.mean(), variance.mean(), residuals.square().mean()]))
    bias, variance, risk = torch.stack(repetitions, dim=1)
    return RiskDecomposition(capacity, bias, variance, problem.noise**2, risk)


def decompose_file_risk(
    rows: LabeledRows, learner: RegressionLearner, capacity: float, *, num_rows: int, num_draws: int, num_points: int,
    rng: torch.Generator,
) -> RiskDecomposition:  # fmt: skip
    """As `decompose_risk`, with training sets drawn from every other row and points from the rows between them.

    The estimate of `bias` is that of the squared bias plus the noise, and `noise` is 0.
    """
    train, test = (LabeledRows(rows.inputs[i::2], rows.targets[i::2], rows.kind, "") for i in range(2))

    def draw(some: LabeledRows, sets: int, count: int) -> tuple[Tensor, Tensor]:
        chosen = torch.rand(sets, len(some), generator=rng).topk(min(count, len(some)), dim=1).indices
        return some.inputs[chosen], some.targets[chosen]

    repetitions = []
    for _ in range(_NUM_BATCHES):
        points, targets = draw(test, 1, num_points)
        predicted = learner(*draw(train, num_draws, num_rows), points.expand(num_draws, -1, -1), rng)
        variance = predicted.var(dim=0)
        bias = (predicted.mean(dim=0) - targets[0]).square() - variance / num_draws
        points, targets = draw(test, num_draws, num_points)
        residuals = learner(*draw(train, num_draws, num_rows), points, rng) - targets
        repetitions.append(torch.stack([bias.mean(), variance.mean(), residuals.square().mean()]))
    bias, variance, risk = torch.stack(repetitions, dim=1)
    return RiskDecomposition(capacity, bias, variance, 0.0, risk)


def linear_learner(*, strength: float) -> RegressionLearner:
    """Ridge regression on the inputs and a constant."""

    def with_constant(inputs: Tensor) -> Tensor:
        return F.pad(inputs, (0, 1), value=1.0)

    def learn(inputs: Tensor, targets: Tensor, points: Tensor, rng: torch.Generator) -> Tensor:
        weights = ridge_regression(with_constant(inputs), targets[..., None], strength=strength)
        return (with_constant(points) @ weights)[..., 0]

    return learn


def hidden_unit_learner(width: int, *, steps: int, learning_rate: float) -> RegressionLearner:
    """Networks with one hidden tanh layer, trained by Adam on all rows from initial weights of their own."""

    def learn(inputs: Tensor, targets: Tensor, points: Tensor, rng: torch.Generator) -> Tensor:
        networks = draw_networks(len(inputs), inputs.size(-1), width, rng=rng)
        rows, labels, tests = (each.to(networks.hidden) for each in (inputs, targets, points))
        optimizer = torch.optim.Adam(networks.parameters, lr=learning_rate)
        for _ in range(steps):
            optimizer.zero_grad()
            # The gradient of the sum has each network's own.
            (networks(rows) - labels).square().mean(dim=1).sum().backward()
            optimizer.step()
        with torch.no_grad():
            return networks(tests).to(points)

    return learn


def polynomial_learner(degree: int, *, strength: float) -> RegressionLearner:
    """Ridge regression on Legendre polynomials of the first input."""

    def learn(inputs: Tensor, targets: Tensor, points: Tensor, rng: torch.Generator) -> Tensor:
        weights = ridge_regression(legendre(inputs[..., 0], degree), targets[..., None], strength=strength)
        return (legendre(points[..., 0], degree) @ weights)[..., 0]

    return learn


def feature_learner(width: int, *, bandwidth: float, strength: float) -> RegressionLearner:
    """Ridge regression on random Fourier features, drawn anew for each training set."""

    def learn(inputs: Tensor, targets: Tensor, points: Tensor, rng: torch.Generator) -> Tensor:
        predicted = []
        for rows, target, test in zip(inputs, targets, points, strict=True):
            features = draw_random_features("fourier", rows.size(-1), width, bandwidth=bandwidth, rng=rng)
            weights = ridge_regression(features(rows), target[:, None], strength=strength)
            predicted.append((features(test) @ weights)[:, 0])
        return torch.stack(predicted)

    return learn


def legendre(x: Float[Tensor, "*batch"], degree: int) -> Float[Tensor, "*batch feature"]:
    r"""$\sqrt{2k + 1}\, P_k(x)$ for $k$ up to `degree`: uncorrelated where x is uniform on [-1, 1]."""
    values = [torch.ones_like(x), x]
    for k in range(1, degree):
        values.append(((2 * k + 1) * x * values[k] - k * values[k - 1]) / (k + 1))
    return torch.stack([math.sqrt(2 * k + 1) * value for k, value in enumerate(values[: degree + 1])], dim=-1)


@dataclass(frozen=True)
class FunctionSelection:
    """Selections among K functions on n examples, for each draw."""

    family: FunctionFamily
    num_functions: int
    num_examples: int
    optimism: Float[Tensor, " draw"]
    """Risk minus error rate of the selected function."""
    excess: Float[Tensor, " draw"]
    """Its risk minus that of the best function."""
    deviation: Float[Tensor, " draw"]
    """The largest difference of risk and error rate over all functions."""

    @property
    def scale(self) -> float:
        """The square root of ln K / n."""
        return math.sqrt(math.log(self.num_functions) / self.num_examples)

    @property
    def bound(self) -> float:
        """The bound on the mean optimism."""
        return self.scale / math.sqrt(2)

    @property
    def violations(self) -> float:
        """Fraction of draws in which the uniform bound at `FAILURE_PROBABILITY` fails."""
        allowed = math.sqrt(math.log(2 * self.num_functions / FAILURE_PROBABILITY) / (2 * self.num_examples))
        return float((self.deviation > allowed).double().mean())


def select_function(
    family: FunctionFamily, num_functions: int, num_examples: int, *, num_draws: int, rng: torch.Generator
) -> FunctionSelection:
    """Draw examples repeatedly, and select the function with the fewest errors each time."""
    draw_rates = _coin_error_rates if family == "coins" else _threshold_error_rates
    risks = torch.full((num_functions,), 0.5, dtype=torch.float64)
    if family == "thresholds":
        # The true threshold is 1/2: between it and t, a prediction is correct only if the label was flipped.
        risks = FLIPPED + (1 - 2 * FLIPPED) * (_thresholds(num_functions) - 0.5).abs()
    at_once = max(1, _NUMBERS_AT_ONCE // (num_functions + num_examples))
    parts = []
    for start in range(0, num_draws, at_once):
        rates = draw_rates(num_functions, num_examples, min(at_once, num_draws - start), rng)
        lowest, selected = rates.min(dim=1)
        deviation = (rates - risks).abs().amax(1)
        parts.append(torch.stack([risks[selected] - lowest, risks[selected] - risks.min(), deviation]))
    return FunctionSelection(family, num_functions, num_examples, *torch.cat(parts, dim=1))


def select_all(
    counts: Sequence[int], sizes: Sequence[int], *, num_draws: int, rng: torch.Generator
) -> dict[FunctionFamily, list[FunctionSelection]]:
    """Every number of functions with every number of examples, for each family."""
    cases: list[tuple[FunctionFamily, int, int]] = [
        (family, k, n) for family in FUNCTION_FAMILIES for n in sizes for k in counts
    ]
    selections: dict[FunctionFamily, list[FunctionSelection]] = {family: [] for family in FUNCTION_FAMILIES}
    for family, k, n in progress_bar(cases, "selection among functions", total=len(cases)):
        selections[family].append(select_function(family, k, n, num_draws=num_draws, rng=rng))
    return selections


def optimism_slope(selections: Sequence[FunctionSelection]) -> float:
    """The slope of a line through 0 fitted to the mean optimism against the square root of ln K / n."""
    scales = torch.tensor([each.scale for each in selections], dtype=torch.float64)
    gaps = torch.stack([each.optimism.mean() for each in selections])
    return float((scales * gaps).sum() / scales.square().sum())


def optimism_exponent(selections: Sequence[FunctionSelection]) -> float:
    """The exponent of n in the mean optimism at the largest K: -1/2 in theory."""
    most = max(each.num_functions for each in selections)
    points = [(each.num_examples, float(each.optimism.mean())) for each in selections if each.num_functions == most]
    x, y = np.log(points).T
    return float(np.polyfit(x, y, 1)[0])


def _coin_error_rates(
    num_functions: int, num_examples: int, num_draws: int, rng: torch.Generator
) -> Float[Tensor, "draw function"]:
    """Error counts of independent random predictions are independent binomial variables."""
    counts = torch.full((num_draws, num_functions), float(num_examples), dtype=torch.float64)
    return torch.binomial(counts, torch.full_like(counts, 0.5), generator=rng) / num_examples


def _thresholds(num_functions: int) -> Float[Tensor, " function"]:
    """The midpoints of equal parts of [0, 1]."""
    return (torch.arange(num_functions, dtype=torch.float64) + 0.5) / num_functions


def _threshold_error_rates(
    num_functions: int, num_examples: int, num_draws: int, rng: torch.Generator
) -> Float[Tensor, "draw function"]:
    """Examples uniform on [0, 1]; the errors of all thresholds are cumulative sums over the sorted examples."""
    x = torch.rand(num_draws, num_examples, generator=rng, dtype=torch.float64).sort(dim=1).values
    flipped = torch.rand(num_draws, num_examples, generator=rng, dtype=torch.float64) < FLIPPED
    labels = (x >= 0.5) ^ flipped
    # A threshold errs on labels of 1 below it and on labels of 0 from it on.
    ones = F.pad(labels.double().cumsum(dim=1), (1, 0))
    below = torch.searchsorted(x, _thresholds(num_functions).expand(num_draws, -1).contiguous())
    ones_below = ones.gather(1, below)
    zeros_above = (num_examples - below) - (ones[:, -1:] - ones_below)
    return (ones_below + zeros_above) / num_examples


@dataclass(frozen=True, kw_only=True)
class BiasVarianceSizes:
    """How much is drawn; the defaults are those of a quick run."""

    num_rows: int = 40
    """Rows of a training set for polynomials and ridge regression."""
    noise: float = 0.3
    """Standard deviation of the noise on targets."""
    degrees: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
    polynomial_strength: float = 1e-3
    """Without some ridge penalty the variance of high degrees is dominated by the rarest training sets."""
    ridge_degree: int = 15
    strengths: tuple[float, ...] = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4)
    feature_rows: int = 60
    feature_input_dim: int = 5
    bandwidth: float = 3.0
    feature_strength: float = 1e-5
    """Without some ridge penalty the variance is infinite where there are as many features as rows."""
    widths: tuple[int, ...] = (3, 6, 12, 20, 30, 45, 60, 80, 120, 250, 500, 1000)
    hidden_units: tuple[int, ...] = (1, 2, 3, 4, 6, 10, 20, 40)
    network_steps: int = 300
    network_rate: float = 0.03
    num_draws: int = 50
    """Training sets of a repetition."""
    num_points: int = 200
    num_functions: tuple[int, ...] = (2, 10, 100, 1_000, 10_000)
    num_examples: tuple[int, ...] = (50, 200, 800)
    num_choices: int = 200
    """Selections among functions."""


_FULL = BiasVarianceSizes(
    widths=(3, 6, 9, 12, 16, 20, 30, 38, 45, 52, 57, 60, 63, 68, 80, 100, 120, 250, 500, 1000, 2000), num_draws=100,
    num_points=500, num_functions=(2, 5, 10, 100, 1_000, 10_000, 100_000), num_examples=(50, 100, 200, 400, 800, 1600),
    num_choices=1_000, hidden_units=(1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 80), network_steps=1_000,
)  # fmt: skip


def study_bias_variance(
    *, quick: bool = False, seed: int = 0, data: str | None = None, sizes: BiasVarianceSizes | None = None
) -> Study:
    """Measure bias and variance over training sets, and the optimism of the best of K functions.

    With a file, `data`, training sets are drawn from its rows; functions are not selected.
    """
    sizes = sizes or (BiasVarianceSizes() if quick else _FULL)
    rng = torch.Generator().manual_seed(seed)
    if data is not None:
        rows = read_labeled_rows(data, study=BIAS_VARIANCE.name, seed=seed)
        figure, axes = make_panels(2, 2, height=3.5)
        return BIAS_VARIANCE.result(sizes, [_file_decompositions(axes, rows, sizes, rng)], figure)
    figure, axes = make_panels(4, 3, width=13.0, height=3.5)
    sections = [_decompositions(axes[:5], sizes, rng), _selections(axes[5:], sizes, rng)]
    return BIAS_VARIANCE.result(sizes, sections, figure)


def sum_differs(parts: RiskDecomposition) -> bool:
    """Whether bias² + variance + noise differs significantly from the measured risk, at 95 %."""
    _, low, high = mean_interval(parts.total - parts.risk)
    return low > 0 or high < 0


def _decompositions(panels: Sequence[Axes], sizes: BiasVarianceSizes, rng: torch.Generator) -> StudySection:
    wave = RegressionProblem(lambda x: (4 * x[..., 0]).sin(), 1, sizes.noise)
    product = RegressionProblem(lambda x: x[..., 0] + x[..., 1] * x[..., 2], sizes.feature_input_dim, sizes.noise)
    polynomials = [(n, polynomial_learner(n, strength=sizes.polynomial_strength)) for n in sizes.degrees]
    ridge = [(1 / s, polynomial_learner(sizes.ridge_degree, strength=s)) for s in sizes.strengths]
    features = [
        (n, feature_learner(n, bandwidth=sizes.bandwidth, strength=sizes.feature_strength)) for n in sizes.widths
    ]
    networks = _hidden_unit_learners(sizes)
    curves, tables, lowest = {}, [], []
    for axes, (name, unit), log, problem, learners, num_rows in zip(
        panels, _CAPACITIES.items(), ("y", "xy", "xy", "xy"), (wave, wave, product, wave),
        (polynomials, ridge, features, networks), (sizes.num_rows, sizes.num_rows, sizes.feature_rows, sizes.num_rows),
        strict=False,
    ):  # fmt: skip
        curves[name] = curve = [
            decompose_risk(problem, learner, capacity, num_rows=num_rows, num_draws=sizes.num_draws,
                                 num_points=sizes.num_points, rng=rng)
            for capacity, learner in progress_bar(learners, name, total=len(learners))
        ]  # fmt: skip
        log_info(f"{name}: bias and variance at {len(learners)} capacities")
        best = min(curve, key=lambda parts: float(parts.risk.mean()))
        lowest.append(f"{name} at {unit} = {best.capacity:,g}")
        tables.append(_table(name, unit, curve))
        _draw_curve(axes, curve)
        legend = "lower left" if name == "random features" else ""
        label_axes(axes, name.capitalize(), unit, "squared error", log=log, legend=legend, fontsize=8)
        axes.set_ylim(bottom=1e-3)
        if "x" in log:
            axes.minorticks_off()
    panels[2].axvline(sizes.feature_rows, color=MUTED, linewidth=1, linestyle=":")
    panels[2].text(1.1 * sizes.feature_rows, 1.3e-3, "as many as rows", fontsize=8, color=MUTED)
    _draw_sums(panels[4], curves)
    of_features = curves["random features"]
    top = max(of_features, key=lambda parts: float(parts.variance.mean()))
    falls = sum(mean_interval(after.bias - before.bias)[2] < 0 for before, after in pairwise(of_features))
    measured = [parts for several in curves.values() for parts in several]
    ratios = [float(parts.total.mean() / parts.risk.mean()) for parts in measured]
    return [
        f"The risk is lowest for {'; '.join(lowest)}.",
        _network_finding(curves["networks"]),
        f"The variance of random features is largest, {float(top.variance.mean()):.3g}, at {top.capacity:,g} features "
        f"for {sizes.feature_rows} rows; bias² falls significantly in {falls} of {len(of_features) - 1} steps.",
        f"Bias² + variance + noise agrees with the risk measured on other training sets, within the 95 % interval of "
        f"their difference, at {len(measured) - sum(map(sum_differs, measured))} of {len(measured)} capacities "
        f"({0.95 * len(measured):.0f} expected); the ratio is {min(ratios):.3f} to {max(ratios):.3f}.",
    ], tables


def _hidden_unit_learners(sizes: BiasVarianceSizes) -> list[tuple[int, RegressionLearner]]:
    train = {"steps": sizes.network_steps, "learning_rate": sizes.network_rate}
    return [(n, hidden_unit_learner(n, **train)) for n in sizes.hidden_units]


def _network_finding(curve: Sequence[RiskDecomposition], bias: str = "bias²") -> str:
    first, last = curve[0], curve[-1]
    return (
        f"From {first.capacity:g} to {last.capacity:g} hidden units the {bias} of networks changes from "
        f"{float(first.bias.mean()):.3g} to {float(last.bias.mean()):.3g} and their variance from "
        f"{float(first.variance.mean()):.3g} to {float(last.variance.mean()):.3g}."
    )


def _file_decompositions(
    panels: Sequence[Axes], rows: LabeledRows, sizes: BiasVarianceSizes, rng: torch.Generator
) -> StudySection:
    """The decomposition on the rows of a file: ridge regression, random features and networks."""
    num_rows = min(sizes.feature_rows, max(10, len(rows) // 8))
    learners = {
        "ridge regression": [(1 / s, linear_learner(strength=s)) for s in sizes.strengths],
        "random features": [
            (n, feature_learner(n, bandwidth=_FILE_BANDWIDTH, strength=sizes.feature_strength)) for n in sizes.widths
        ],
        "networks": _hidden_unit_learners(sizes),
    }
    curves, tables, lowest = {}, [], []
    for axes, (name, several) in zip(panels, learners.items(), strict=False):
        curves[name] = curve = [
            decompose_file_risk(rows, learner, capacity, num_rows=num_rows, num_draws=sizes.num_draws,
                                num_points=sizes.num_points, rng=rng)
            for capacity, learner in progress_bar(several, name, total=len(several))
        ]  # fmt: skip
        best = min(curve, key=lambda parts: float(parts.risk.mean()))
        lowest.append(f"{name} at {_CAPACITIES[name]} = {best.capacity:,g} ({float(best.risk.mean()):.3f})")
        tables.append(_table(name, _CAPACITIES[name], curve, has_truth=False))
        _draw_curve(axes, curve, has_truth=False)
        label_axes(axes, name.capitalize(), _CAPACITIES[name], "squared error", log="xy", legend="best", fontsize=8)
        axes.minorticks_off()
    _draw_sums(panels[3], curves)
    measured = [parts for several in curves.values() for parts in several]
    return [
        f"Trained on {num_rows} rows of {len(rows):,} ({rows.description}), the risk is lowest for "
        f"{'; '.join(lowest)}; always predicting the mean has {float(rows.targets.var()):.3f}.",
        _network_finding(curves["networks"], "bias² + noise"),
        f"Bias² + noise + variance agrees with the risk measured on other training sets, within the 95 % interval of "
        f"their difference, at {len(measured) - sum(map(sum_differs, measured))} of {len(measured)} capacities.",
    ], tables


def _table(name: str, unit: str, curve: Sequence[RiskDecomposition], *, has_truth: bool = True) -> StudyTable:
    bias = "bias² (unbiased estimate)" if has_truth else "bias² + noise (unbiased estimate)"
    return StudyTable(
        f"{name}: decomposition of the risk",
        [unit, bias, "variance", "noise" if has_truth else "known noise", "sum", "measured risk", "sum - risk"],
        [[parts.capacity, float(parts.bias.mean()), float(parts.variance.mean()), parts.noise,
          float(parts.total.mean()), float(parts.risk.mean()), mean_interval(parts.total - parts.risk)]
         for parts in curve],
        "The estimate of bias² is unbiased, so it can be negative where bias² is close to 0. In brackets the 95 % "
        "interval.",
    )  # fmt: skip


def _draw_curve(axes: Axes, curve: Sequence[RiskDecomposition], *, has_truth: bool = True) -> None:
    places = [parts.capacity for parts in curve]
    for values, color, name in (
        ([parts.bias for parts in curve], COLORS[0], "bias²" if has_truth else "bias² + noise"),
        ([parts.variance for parts in curve], COLORS[1], "variance"),
    ):
        middle, low, high = zip(*map(mean_interval, values), strict=True)
        # A line where the interval is above 0, and the interval as a band.
        positive = [value if end > 0 else math.nan for value, end in zip(middle, low, strict=True)]
        axes.plot(places, positive, color=color, linewidth=1.4, label=name)
        axes.fill_between(places, [max(value, 1e-9) for value in low], high, color=color, alpha=0.2, linewidth=0)
    if has_truth:
        axes.axhline(curve[0].noise, color=MUTED, linewidth=1, linestyle="--", label="noise")
    axes.plot(places, [float(parts.total.mean()) for parts in curve], color=INK, linewidth=1.4, label="sum")
    measured = [float(parts.risk.mean()) for parts in curve]
    axes.plot(places, measured, "o", color=COLORS[2], markersize=5, markerfacecolor="none", label="measured risk")


def _draw_sums(axes: Axes, curves: Mapping[str, Sequence[RiskDecomposition]]) -> None:
    """The difference of sum and risk, relative to the risk, with its interval."""
    start = 0
    for (name, curve), color, marker in zip(curves.items(), COLORS, "osD^", strict=False):
        estimates = [mean_interval((parts.total - parts.risk) / parts.risk.mean()) for parts in curve]
        places = range(start, start + len(curve))
        plot_errorbars(axes, places, estimates, fmt=marker, color=color, markersize=3.5, label=name)
        start += len(curve) + 1
    axes.axhline(0, color=INK, linewidth=0.9)
    axes.set_xticks([])
    most = max(abs(end) for end in axes.get_ylim())
    axes.set_ylim(-most, 1.7 * most)
    label_axes(axes, "The sum compared with the risk", "capacities, from small to large",
               "(sum - risk) / risk, 95 %", legend="upper left", fontsize=8)  # fmt: skip


def _selections(panels: Sequence[Axes], sizes: BiasVarianceSizes, rng: torch.Generator) -> StudySection:
    selections = select_all(sizes.num_functions, sizes.num_examples, num_draws=sizes.num_choices, rng=rng)
    coins, every = selections["coins"], [each for family in selections.values() for each in family]
    for axes, family, title in zip(panels, selections.values(), ("independent coins", "thresholds"), strict=True):
        for n, color, marker in zip(sizes.num_examples, COLORS, "osD^vP", strict=False):
            line = [each for each in family if each.num_examples == n]
            estimates = [mean_interval(each.optimism) for each in line]
            plot_errorbars(axes, [each.scale for each in line], estimates, fmt=f"{marker}-", color=color, markersize=4,
                           linewidth=1.1, label=f"n = {n:,}")  # fmt: skip
        most = max(each.scale for each in family)
        axes.plot([0, most], [0, most / 2**0.5], color=INK, linewidth=1.1, linestyle=":", label="bound, √(ln K / 2n)")
        x = "√(ln K / n), K increasing along each line"
        label_axes(axes, f"The best of K {title}", x, "risk - error rate", legend="upper left", fontsize=8)
    above = sum(mean_interval(each.optimism)[1] > each.bound for each in every)
    tables = [
        StudyTable(
            f"{name}: the best of K functions on n examples",
            ["K", "n", "√(ln K / n)", "risk - error rate", "bound", "risk - lowest risk", "bound for all fails"],
            [[each.num_functions, each.num_examples, each.scale, mean_interval(each.optimism), each.bound,
              float(each.excess.mean()), each.violations] for each in family],
            "Means with 95 % intervals; last column: the fraction of draws in which some function deviates by more "
            f"than √(ln(2K/δ) / 2n), δ = {FAILURE_PROBABILITY:g}.",
        )
        for name, family in selections.items()
    ]  # fmt: skip
    return [
        f"The mean optimism of the best of K coins is {optimism_slope(coins):.2f} √(ln K / n) (bound: "
        f"{0.5**0.5:.2f}), and changes as n to the power {optimism_exponent(coins):.2f} at K = "
        f"{max(sizes.num_functions):,}; {above} of {len(every)} means are above the bound.",
        f"The bound on all functions simultaneously, at δ = {FAILURE_PROBABILITY:g}, fails in at most "
        f"{100 * max(each.violations for each in every):.1f} % of draws.",
    ], tables
