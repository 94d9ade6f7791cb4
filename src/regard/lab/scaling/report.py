"""The study of scaling laws: its runs, findings, tables and figure.

Small Transformers of several widths read texts of several lengths once. The laws
are fitted to these runs, and extrapolated to a model that is larger than all of them,
with as much data and with more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from regard.evaluation.intervals import Interval, percentile_interval
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.scaling import SCALING, laws
from regard.lab.study import Study, StudyTable, format_cell

_FULL = laws.ScalingSizes(
    widths=(8, 12, 20, 32, 48, 72), steps=(200, 400, 800, 1_600, 3_200), larger_width=112,
    larger_steps=(3_200, 6_400), num_seeds=3, num_resamples=1_000,
)  # fmt: skip

_NUMBERS: dict[str, Callable[[laws.FittedLaws], float]] = {
    "E, nats per character": lambda fit: fit.whole.floor,
    "alpha, of parameters": lambda fit: fit.whole.size_exponent,
    "beta, of data": lambda fit: fit.whole.data_exponent,
    "beta / (alpha + beta), of the optimal size by compute": lambda fit: fit.whole.compute_exponent,
    "power law of parameters": lambda fit: fit.by_size.exponent,
    "power law of data": lambda fit: fit.by_data.exponent,
    "power law of compute": lambda fit: fit.by_compute.exponent,
}
_LARGER = COLORS[1]
"""The color of runs to which no law is fitted."""
_PREFIXES = EngFormatter(places=1, sep="")


@dataclass(frozen=True)
class _Results:
    runs: Sequence[laws.ScalingRun]
    larger: Sequence[laws.ScalingRun]
    fit: laws.FittedLaws
    resampled: Sequence[laws.FittedLaws]
    """Fitted to resampled runs."""
    entropy: float

    def estimate(self, number: Callable[[laws.FittedLaws], float]) -> Interval:
        """A number of the fitted laws, with its 95 % interval over resampled runs."""
        return number(self.fit), *percentile_interval(np.array([number(each) for each in self.resampled]), 0.95)

    def predict(self, run: laws.ScalingRun) -> tuple[Interval, Interval]:
        """The loss of a run by the law of parameters and data, and by the power law of compute."""
        return (
            self.estimate(lambda fit: fit.whole.loss(run.parameters, run.characters)),
            self.estimate(lambda fit: fit.by_compute.loss(run.compute)),
        )


def study_scaling(*, quick: bool = False, seed: int = 0, sizes: laws.ScalingSizes | None = None) -> Study:
    """Train the grid, fit the laws, and extrapolate them to a larger model."""
    sizes = sizes or (laws.ScalingSizes() if quick else _FULL)
    language, test = laws.draw_language(sizes, seed)
    seeds, train = range(sizes.num_seeds), partial(laws.run_scaling, language, test, sizes, seed=seed)
    runs = [train(*of, number=number) for number, *of in product(seeds, sizes.widths, sizes.steps)]
    larger = [train(sizes.larger_width, steps, number=n) for n, steps in product(seeds, sizes.larger_steps)]
    fit = laws.fit_laws(runs)
    resampled = laws.bootstrap_fits(
        lambda drawn: laws.fit_laws([runs[i] for i in drawn], start=fit.whole),
        len(runs),
        num_resamples=sizes.num_resamples,
        rng=np.random.default_rng(seed),
        is_sufficient=lambda drawn: laws.can_fit([runs[i] for i in drawn]),
    )
    results = _Results(runs, larger, fit, resampled, test.entropy)
    return SCALING.result(sizes, [(_findings(results), _tables(results))], _draw(results), entropy=test.entropy)


def _findings(results: _Results) -> list[str]:
    _, low, high = results.estimate(lambda fit: fit.whole.floor)
    share = results.estimate(lambda fit: fit.whole.compute_exponent)
    form = laws.lack_of_fit([(run.parameters, run.characters, run.loss) for run in results.runs], results.fit.whole)
    ratios = {run.width: run.compute / run.operations for run in (*results.runs, *results.larger)}
    narrow, wide = min(ratios), max(ratios)
    findings = [
        f"The entropy of the language is {results.entropy:.2f} nats per character; the interval of E "
        f"{_contains(results.entropy, low, high)} it.",
        f"By the fit, the optimal number of parameters grows as compute to the power {format_cell(share)}; the "
        f"interval {_contains(0.5, *share[1:])} the 0.5 of Hoffmann et al.",
        *map(partial(_extrapolation, results), sorted({run.characters for run in results.larger})),
        f"6 N D is {100 * ratios[narrow]:.0f} % of the counted operations at a width of {narrow}, and "
        f"{100 * ratios[wide]:.0f} % at {wide}: it omits the products of queries with keys and of weights with values.",
    ]
    if form is not None:
        # The test assumes equal variances, which holds only approximately: more digits would not be meaningful.
        p = "< 0.001" if form.p_value < 0.001 else f"= {form.p_value:.2g}"
        is_significant = form.p_value < 0.05
        verdict = (
            "significant: the intervals, which assume the law, are too narrow" if is_significant else "not significant"
        )
        findings.append(
            f"Losses of runs that differ only in the seed have a spread of {100 * form.spread:.2g} %, and their means "
            f"differ from the law by {100 * form.residual:.2g} % (F test of lack of fit, p {p}): {verdict}."
        )
    return findings


def _contains(value: float, low: float, high: float) -> str:
    return "contains" if low <= value <= high else "does not contain"


def _extrapolation(results: _Results, characters: int) -> str:
    some = [run for run in results.larger if run.characters == characters]
    measured = sum(run.loss for run in some) / len(some)
    size = some[0].parameters / max(run.parameters for run in results.runs)
    data = characters / max(run.characters for run in results.runs)
    both, compute = results.predict(some[0])

    def error(predicted: float) -> str:
        share = 100 * (predicted / measured - 1)
        below = ", below the entropy" if predicted < results.entropy else ""
        return f"{abs(share):.1f} % too {'high' if share > 0 else 'low'}{below}"

    return (
        f"For a model {size:.1f} times the largest, with {data:.1f} times the most data, the law of N and D predicts a "
        f"loss {error(both[0])}; its interval {_contains(measured, *both[1:])} the measured {measured:.3f}. The power "
        f"law of compute predicts {error(compute[0])}."
    )


def _tables(results: _Results) -> list[StudyTable]:
    return [
        StudyTable(
            "fitted laws", ["parameter", "value"],
            [[name, results.estimate(number)] for name, number in _NUMBERS.items()],
            "L = E + A / N^alpha + B / D^beta, fitted to all runs; the exponents of single power laws, fitted to the "
            "runs with the most data, with the most parameters, and on the compute frontier. In brackets the 95 % "
            f"interval over {len(results.resampled)} draws of runs with replacement.",
        ),
        StudyTable(
            "extrapolation to a larger model",
            ["parameters", "characters", "loss", "predicted by N and D", "predicted by compute"],
            [[run.parameters, run.characters, run.loss, *results.predict(run)] for run in results.larger],
        ),
        StudyTable(
            "runs that the laws are fitted to",
            ["seed", "width", "parameters", "characters", "operations", "loss", "loss / fit - 1"],
            [[run.seed, run.width, run.parameters, run.characters, run.operations, run.loss,
              run.loss / results.fit.whole.loss(run.parameters, run.characters) - 1] for run in results.runs],
        ),
    ]  # fmt: skip


def _draw(results: _Results) -> Figure:
    figure, (by_data, by_size, by_compute, predicted) = make_panels(2, 2, height=3.6)
    every = (*results.runs, *results.larger)
    for axes, across, along, title, x in (
        (by_data, "characters", "parameters", "By data; dashed: fit; dotted: entropy", "characters, D"),
        (by_size, "parameters", "characters", "By parameters", "parameters, N"),
    ):
        _draw_slices(axes, results, across=across, along=along)
        label_axes(axes, title, x, "loss, nats", log="x", legend="upper right", fontsize=7.5, ncols=2)
        axes.set_xticks(sorted({getattr(run, across) for run in every}))
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom, top + 0.32 * (top - bottom))
    _draw_compute(by_compute, results)
    title = "By compute: a power law of the best runs"
    label_axes(by_compute, title, "compute, C = 6 N D", "loss, nats", log="x", legend="upper right")
    for axes in (by_data, by_size, by_compute):
        axes.axhline(results.entropy, color=MUTED, linewidth=1, linestyle=":")
        axes.xaxis.set_major_formatter(_PREFIXES)
        axes.xaxis.set_minor_locator(NullLocator())
    _draw_predicted(predicted, results)
    return figure


def _draw_slices(axes: Axes, results: _Results, *, across: str, along: str) -> None:
    """The loss by `across`, with one color per value of `along`, and the fitted law."""
    every = (*results.runs, *results.larger)
    ends = [getattr(run, across) for run in every]
    grid = np.geomspace(min(ends), max(ends), 60)
    fitted = {getattr(run, along) for run in results.runs}
    colors = [color for color in COLORS if color != _LARGER]
    for i, value in enumerate(sorted({getattr(run, along) for run in every})):
        color = colors[i % len(colors)] if value in fitted else _LARGER
        law = [results.fit.whole.loss(*((x, value) if across == "parameters" else (value, x))) for x in grid]
        axes.plot(grid, law, color=color, linewidth=1, linestyle="--")
        for some, style, size in ((results.runs, "o", 4.5), (results.larger, "*", 9)):
            mine = [run for run in some if getattr(run, along) == value]
            if mine:
                name = f"{_PREFIXES(value)} {along}" if style == "o" or value not in fitted else None
                places = [getattr(run, across) for run in mine]
                axes.plot(places, [run.loss for run in mine], style, color=color, markersize=size, label=name)


def _draw_compute(axes: Axes, results: _Results) -> None:
    fit = results.fit
    compute, losses = (np.array([getattr(run, name) for run in results.runs]) for name in ("compute", "loss"))
    best = laws.compute_frontier(compute, losses)
    axes.plot(compute, losses, "o", color=MUTED, markersize=4, alpha=0.6, label="runs")
    axes.plot(compute[best], losses[best], "o", color=COLORS[0], markersize=5, label="compute frontier")
    larger = [run.compute for run in results.larger]
    axes.plot(larger, [run.loss for run in results.larger], "*", color=_LARGER, markersize=10, label="larger model")
    grid = np.geomspace(compute.min(), max(larger), 60)
    name = f"power law, exponent {fit.by_compute.exponent:.2f}"
    axes.plot(grid, [fit.by_compute.loss(x) for x in grid], "--", color=COLORS[0], linewidth=1, label=name)
    optimal = [fit.whole.loss(n := fit.whole.optimal_size(x), x / (6 * n)) for x in grid]
    axes.plot(grid, optimal, color=INK, linewidth=1, label="law of N and D, at the optimal N")


def _draw_predicted(axes: Axes, results: _Results) -> None:
    every = [run.loss for run in (*results.runs, *results.larger)]
    ends = [0.96 * min(every), 1.03 * max(every)]
    axes.plot(ends, ends, color=MUTED, linewidth=1)
    fitted = [results.fit.whole.loss(run.parameters, run.characters) for run in results.runs]
    axes.plot([run.loss for run in results.runs], fitted, "o", color=COLORS[0], markersize=4.5, label="fitted runs")
    predictions = zip(*map(results.predict, results.larger), strict=True)
    for estimates, color, name in zip(predictions, (_LARGER, COLORS[2]), ("N and D", "compute"), strict=True):
        plot_errorbars(
            axes, [run.loss for run in results.larger], estimates, fmt="*", color=color, markersize=9, elinewidth=1,
            capsize=3, label=f"larger model, by {name}",
        )  # fmt: skip
    title = "Predicted against measured; bars: 95 % intervals"
    label_axes(axes, title, "measured loss, nats", "predicted loss, nats", legend="upper left")
