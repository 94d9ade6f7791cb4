r"""Bias and variance, measured, and what it costs to choose among functions.

The parts of a risk are measured for three learners in `bias_variance_risks.py`:
polynomials by their degree, ridge regression by its strength, and random features
by their number, through the point where they are as many as the rows. Choosing
the best of K functions by n examples is measured in `bias_variance_selection.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import torch
from torch import Tensor

from regard.evaluation.means import mean_interval
from regard.lab import STUDIES
from regard.lab.bias_variance_figure import compose
from regard.lab.bias_variance_risks import Parts, Problem, measure_curve, polynomial, random_features
from regard.lab.bias_variance_selection import DELTA, Choice, Family, choose_all, power, slope
from regard.lab.study import Study, Table
from regard.logging import log_info

CURVES = {
    "polynomials": "degree",
    "ridge": "1 / strength",
    "random features": "features",
}
"""The learners, and what their capacity is."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is drawn."""

    num_rows: int = 40
    """Of a training set for polynomials and ridge."""
    noise: float = 0.3
    """Standard deviation of the noise on targets."""
    degrees: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
    polynomial_strength: float = 1e-3
    """Of a little ridge, without which the variance of high degrees is decided by the rarest training sets."""
    ridge_degree: int = 15
    strengths: tuple[float, ...] = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4)
    feature_rows: int = 60
    feature_input_dim: int = 5
    bandwidth: float = 3.0
    feature_strength: float = 1e-5
    """Of a very little ridge, as without it there is no variance where features are as many as rows."""
    widths: tuple[int, ...]
    num_draws: int
    """Training sets of a batch."""
    num_points: int
    num_functions: tuple[int, ...]
    num_examples: tuple[int, ...]
    num_choices: int
    """How often is chosen."""


QUICK = Sizes(
    widths=(3, 6, 12, 20, 30, 45, 60, 80, 120, 250, 500, 1000), num_draws=50, num_points=200,
    num_functions=(2, 10, 100, 1_000, 10_000), num_examples=(50, 200, 800), num_choices=200,
)  # fmt: skip
FULL = Sizes(
    widths=(3, 6, 9, 12, 16, 20, 30, 38, 45, 52, 57, 60, 63, 68, 80, 100, 120, 250, 500, 1000, 2000), num_draws=100,
    num_points=500, num_functions=(2, 5, 10, 100, 1_000, 10_000, 100_000), num_examples=(50, 100, 200, 400, 800, 1600),
    num_choices=1_000,
)  # fmt: skip


def study(*, quick: bool, seed: int) -> Study:
    """Measure bias and variance over training sets, and the gap of the best of K functions."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    rng = torch.Generator().manual_seed(seed)
    curves = measure_curves(sizes, rng=rng)
    choices = choose_all(sizes.num_functions, sizes.num_examples, num_draws=sizes.num_choices, rng=rng)
    return Study(
        name="bias-variance",
        title="Bias, variance, and choosing among functions",
        claim=STUDIES["bias-variance"],
        findings=[
            *(_curve_finding(name, curve) for name, curve in curves.items()),
            _peak_finding(curves["random features"], sizes),
            _sum_finding(curves),
            *_choice_findings(choices),
        ],
        tables=[*(_table(name, curve) for name, curve in curves.items()), *map(_choice_table, choices.values())],
        figure=compose(curves, CURVES, choices, feature_rows=sizes.feature_rows),
        settings=asdict(sizes),
    )


def wave(inputs: Tensor) -> Tensor:
    """What is to be learnt: a wave along the first input."""
    return (4 * inputs[..., 0]).sin()


def bend(inputs: Tensor) -> Tensor:
    """What random features are to learn of several inputs: one matters alone, two together."""
    return inputs[..., 0] + inputs[..., 1] * inputs[..., 2]


def measure_curves(sizes: Sizes, *, rng: torch.Generator) -> dict[str, list[Parts]]:
    """The parts of the risk of each learner, by its capacity."""
    line = Problem(wave, 1, sizes.noise)
    cube = Problem(bend, sizes.feature_input_dim, sizes.noise)
    cases = {
        "polynomials": (
            line,
            [(n, polynomial(n, strength=sizes.polynomial_strength)) for n in sizes.degrees],
            sizes.num_rows,
        ),
        "ridge": (line, [(1 / s, polynomial(sizes.ridge_degree, strength=s)) for s in sizes.strengths], sizes.num_rows),
        "random features": (
            cube,
            [(n, random_features(n, bandwidth=sizes.bandwidth, strength=sizes.feature_strength)) for n in sizes.widths],
            sizes.feature_rows,
        ),
    }
    curves = {}
    for name, (problem, learners, num_rows) in cases.items():
        curves[name] = measure_curve(
            problem, learners, name, num_rows=num_rows, num_draws=sizes.num_draws, num_points=sizes.num_points, rng=rng
        )
        log_info(f"{name}: bias and variance at {len(learners)} capacities")
    return curves


def misses(parts: Parts) -> bool:
    """Whether the parts and the measured risk differ by more than their draws explain, at 95 %."""
    _, low, high = mean_interval(parts.total - parts.risk)
    return low > 0 or high < 0


def _curve_finding(name: str, curve: Sequence[Parts]) -> str:
    best = min(curve, key=lambda parts: float(parts.risk.mean()))

    def tell(parts: Parts) -> str:
        bias, variance, risk = (float(part.mean()) for part in (parts.bias, parts.variance, parts.risk))
        return f"bias² {bias:.3g}, variance {variance:.3g}, risk {risk:.3g} at {_number(parts.capacity)}"

    return f"{name.capitalize()}, by {CURVES[name]}: {tell(curve[0])}; {tell(best)}, where the risk is least; and " + (
        f"{tell(curve[-1])}." if best is not curve[-1] else "no larger capacity was tried."
    )


def _peak_finding(curve: Sequence[Parts], sizes: Sizes) -> str:
    top = max(curve, key=lambda parts: float(parts.variance.mean()))
    last = curve[-1]
    bias = sum(bool(mean_interval(after.bias - before.bias)[2] < 0) for before, after in pairwise(curve))
    return (
        f"Of random features the variance is largest, {float(top.variance.mean()):.3g}, at {_number(top.capacity)} "
        f"features for {sizes.feature_rows} rows, and {float(last.variance.mean()):.3g} at {_number(last.capacity)}; "
        f"bias² falls from step to step by more than its draws explain in {bias} of {len(curve) - 1} steps."
    )


def _sum_finding(curves: Mapping[str, Sequence[Parts]]) -> str:
    measured = [parts for curve in curves.values() for parts in curve]
    missed = sum(map(misses, measured))
    ratios = [float(parts.total.mean() / parts.risk.mean()) for parts in measured]
    return (
        f"Bias² + variance + noise is the risk measured on other training sets, to within a 95 % interval of their "
        f"difference, at {len(measured) - missed} of {len(measured)} capacities ({0.95 * len(measured):.0f} are to be "
        f"expected); the sum is {min(ratios):.3f} to {max(ratios):.3f} of the risk."
    )


def _choice_findings(choices: Mapping[Family, Sequence[Choice]]) -> list[str]:
    coins, thresholds = choices["coins"], choices["thresholds"]
    above = sum(mean_interval(choice.optimism)[1] > choice.bound for choice in (*coins, *thresholds))
    most = max(choice.num_functions for choice in coins)
    worst = max(choice.violations for choice in (*coins, *thresholds))

    def at(family: Sequence[Choice]) -> str:
        n = max(choice.num_examples for choice in family)
        line = [choice for choice in family if choice.num_examples == n]
        return ", ".join(f"{float(choice.optimism.mean()):.3f} of {choice.num_functions:,}" for choice in line)

    return [
        f"The best of K coins looks better than it is by {slope(coins):.2f} √(ln K / n), where theory allows "
        f"{0.5**0.5:.2f}, and with n to the power {power(coins):.2f} at K = {most:,}; {above} of "
        f"{len(coins) + len(thresholds)} means lie above the bound.",
        f"By {max(choice.num_examples for choice in coins)} examples: coins {at(coins)}; thresholds, which answer "
        f"nearly alike, {at(thresholds)}.",
        f"The bound on all functions at once, at δ = {DELTA:g}, is passed in at most {100 * worst:.1f} % of draws.",
    ]


def _number(capacity: float) -> str:
    return f"{capacity:,.0f}" if capacity >= 1 or capacity == 0 else f"{capacity:.3g}"


def _table(name: str, curve: Sequence[Parts]) -> Table:
    return Table(
        name=f"{name}: parts of the risk",
        columns=[CURVES[name], "bias²", "variance", "noise", "sum", "measured risk", "sum - risk, 95 % interval"],
        rows=[
            [
                parts.capacity, float(parts.bias.mean()), float(parts.variance.mean()), parts.noise,
                float(parts.total.mean()), float(parts.risk.mean()), _spell(mean_interval(parts.total - parts.risk)),
            ]
            for parts in curve
        ],
        note="Bias² is unbiased, so that it may come out below 0 where it is nearly 0.",
    )  # fmt: skip


def _choice_table(choices: Sequence[Choice]) -> Table:
    return Table(
        name=f"{choices[0].family}: the best of K functions by n examples",
        columns=["K", "n", "√(ln K / n)", "risk - error on the examples", "bound", "risk - least risk", "passes δ"],
        rows=[
            [
                choice.num_functions, choice.num_examples, choice.scale, _spell(mean_interval(choice.optimism)),
                choice.bound, float(choice.excess.mean()), choice.violations,
            ]
            for choice in choices
        ],
        note="Means with 95 % intervals; the last column is the share of draws in which some function deviates by "
        f"more than √(ln(2K/δ) / 2n), δ = {DELTA:g}.",
    )  # fmt: skip


def _spell(around: tuple[float, float, float]) -> str:
    return "{:.4f} [{:.4f}, {:.4f}]".format(*around)
