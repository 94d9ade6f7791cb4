"""The study of bias and variance: its sizes, findings, tables and figure.

The risk is decomposed for three learners: polynomials by their degree, ridge
regression by its strength, and random features by their number, through the point
where there are as many features as rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from matplotlib.axes import Axes

from regard.evaluation.intervals import mean_interval
from regard.lab.bias_variance import BIAS_VARIANCE, risks
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info, progress_bar

_CAPACITIES = {"polynomials": "degree", "ridge regression": "1 / strength", "random features": "features"}
"""The learners, and the measure of their capacity."""


@dataclass(frozen=True, kw_only=True)
class BiasVarianceSizes:
    """How much is drawn; the defaults are those of a quick run."""

    num_rows: int = 40
    """Of a training set for polynomials and ridge regression."""
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
    num_choices=1_000,
)  # fmt: skip


def study_bias_variance(*, quick: bool = False, seed: int = 0, sizes: BiasVarianceSizes | None = None) -> Study:
    """Measure bias and variance over training sets, and the optimism of the best of K functions."""
    sizes = sizes or (BiasVarianceSizes() if quick else _FULL)
    rng = torch.Generator().manual_seed(seed)
    figure, axes = make_panels(3, 3, height=3.5)
    sections = [_decompositions(axes[:4], sizes, rng), _selections(axes[4:], sizes, rng)]
    return BIAS_VARIANCE.result(sizes, sections, figure)


def sum_differs(parts: risks.RiskDecomposition) -> bool:
    """Whether bias² + variance + noise differs significantly from the measured risk, at 95 %."""
    _, low, high = mean_interval(parts.total - parts.risk)
    return low > 0 or high < 0


def _decompositions(panels: Sequence[Axes], sizes: BiasVarianceSizes, rng: torch.Generator) -> StudySection:
    wave = risks.RegressionProblem(lambda x: (4 * x[..., 0]).sin(), 1, sizes.noise)
    product = risks.RegressionProblem(lambda x: x[..., 0] + x[..., 1] * x[..., 2], sizes.feature_input_dim, sizes.noise)
    polynomials = [(n, risks.polynomial_learner(n, strength=sizes.polynomial_strength)) for n in sizes.degrees]
    ridge = [(1 / s, risks.polynomial_learner(sizes.ridge_degree, strength=s)) for s in sizes.strengths]
    features = [
        (n, risks.feature_learner(n, bandwidth=sizes.bandwidth, strength=sizes.feature_strength)) for n in sizes.widths
    ]
    curves, tables, lowest = {}, [], []
    for axes, (name, unit), log, problem, learners, num_rows in zip(
        panels, _CAPACITIES.items(), ("y", "xy", "xy"), (wave, wave, product), (polynomials, ridge, features),
        (sizes.num_rows, sizes.num_rows, sizes.feature_rows), strict=False,
    ):  # fmt: skip
        curves[name] = curve = [
            risks.decompose_risk(problem, learner, capacity, num_rows=num_rows, num_draws=sizes.num_draws,
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
    _draw_sums(panels[3], curves)
    of_features = curves["random features"]
    top = max(of_features, key=lambda parts: float(parts.variance.mean()))
    falls = sum(mean_interval(after.bias - before.bias)[2] < 0 for before, after in pairwise(of_features))
    measured = [parts for several in curves.values() for parts in several]
    ratios = [float(parts.total.mean() / parts.risk.mean()) for parts in measured]
    return [
        f"The risk is lowest for {'; '.join(lowest)}.",
        f"The variance of random features is largest, {float(top.variance.mean()):.3g}, at {top.capacity:,g} features "
        f"for {sizes.feature_rows} rows; bias² falls significantly in {falls} of {len(of_features) - 1} steps.",
        f"Bias² + variance + noise agrees with the risk measured on other training sets, within the 95 % interval of "
        f"their difference, at {len(measured) - sum(map(sum_differs, measured))} of {len(measured)} capacities "
        f"({0.95 * len(measured):.0f} expected); the ratio is {min(ratios):.3f} to {max(ratios):.3f}.",
    ], tables


def _table(name: str, unit: str, curve: Sequence[risks.RiskDecomposition]) -> StudyTable:
    return StudyTable(
        f"{name}: decomposition of the risk",
        [unit, "bias² (unbiased estimate)", "variance", "noise", "sum", "measured risk", "sum - risk"],
        [[parts.capacity, float(parts.bias.mean()), float(parts.variance.mean()), parts.noise,
          float(parts.total.mean()), float(parts.risk.mean()), mean_interval(parts.total - parts.risk)]
         for parts in curve],
        "The estimate of bias² is unbiased, so it can be negative where bias² is close to 0. In brackets the 95 % "
        "interval.",
    )  # fmt: skip


def _draw_curve(axes: Axes, curve: Sequence[risks.RiskDecomposition]) -> None:
    places = [parts.capacity for parts in curve]
    for values, color, name in (
        ([parts.bias for parts in curve], COLORS[0], "bias²"),
        ([parts.variance for parts in curve], COLORS[1], "variance"),
    ):
        middle, low, high = zip(*map(mean_interval, values), strict=True)
        # A line where the interval is above 0, and the interval as a band.
        positive = [value if end > 0 else math.nan for value, end in zip(middle, low, strict=True)]
        axes.plot(places, positive, color=color, linewidth=1.4, label=name)
        axes.fill_between(places, [max(value, 1e-9) for value in low], high, color=color, alpha=0.2, linewidth=0)
    axes.axhline(curve[0].noise, color=MUTED, linewidth=1, linestyle="--", label="noise")
    axes.plot(places, [float(parts.total.mean()) for parts in curve], color=INK, linewidth=1.4, label="sum")
    measured = [float(parts.risk.mean()) for parts in curve]
    axes.plot(places, measured, "o", color=COLORS[2], markersize=5, markerfacecolor="none", label="measured risk")


def _draw_sums(axes: Axes, curves: Mapping[str, Sequence[risks.RiskDecomposition]]) -> None:
    """The difference of sum and risk, relative to the risk, with its interval."""
    start = 0
    for (name, curve), color, marker in zip(curves.items(), COLORS, "osD", strict=False):
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
    selections = risks.select_all(sizes.num_functions, sizes.num_examples, num_draws=sizes.num_choices, rng=rng)
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
            f"than √(ln(2K/δ) / 2n), δ = {risks.FAILURE_PROBABILITY:g}.",
        )
        for name, family in selections.items()
    ]  # fmt: skip
    return [
        f"The mean optimism of the best of K coins is {risks.optimism_slope(coins):.2f} √(ln K / n) (bound: "
        f"{0.5**0.5:.2f}), and changes as n to the power {risks.optimism_exponent(coins):.2f} at K = "
        f"{max(sizes.num_functions):,}; {above} of {len(every)} means are above the bound.",
        f"The bound on all functions simultaneously, at δ = {risks.FAILURE_PROBABILITY:g}, fails in at most "
        f"{100 * max(each.violations for each in every):.1f} % of draws.",
    ], tables
