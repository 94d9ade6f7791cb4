"""Matplotlib figures of results: comparisons, sweeps, bounds, certificates and few-shot curves.

Importing this module imports matplotlib, so callers import it where a figure is drawn.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from regard.errors import ConfigError
from regard.evaluation.registry import score_label
from regard.explanation.colors import COLORS, INK, MUTED
from regard.explanation.figures import style_axes
from regard.explanation.report.few_shot import unit_of
from regard.explanation.report.formatting import is_finite, label_of
from regard.explanation.report.sweep import digits_of, format_objective, format_setting
from regard.selection.bounds.means import hoeffding_epsilon
from regard.selection.bounds.planning import Calculation
from regard.selection.certificate import Certificate

Floats = Float[np.ndarray, " places"]
Style = Mapping[str, str]

_MARKERS = ("o", "s", "^", "D")
_PANEL, _GAP = (4.3, 3.0), 0.8
"""Width and height of a panel of a comparison, and the space between two of them, in inches."""
_NAMES_PER_PANEL = 3
"""How many names the legend has side by side for each panel."""
_SELECTED, _OTHERS = COLORS[1], COLORS[0]
_ALPHAS = (0.24, 0.42, 0.62, 0.85)
"""The opacity of a trial, from the worst quarter to the best."""
_SPREAD = 0.07
"""How far apart trials of the same choice cross its axis; otherwise they would be one line."""
_MOST_CHOICES = 12
"""Choices that an axis of a sweep labels."""
_EXAMPLES = (100, 1_000, 10_000, 100_000)
_CANDIDATES = (1, 1_000, 1_000_000, 1_000_000_000)
_MOST_CANDIDATES = 10**30
"""Beyond this, the axis of a figure of bounds has no space."""
_HALO = [withStroke(linewidth=2.5, foreground="#ffffff")]


def plot_comparison(models: Sequence[Mapping[str, Any]], *, title: str, score: str, size_unit: str) -> Figure:
    """Plots the validation losses and the scores of a comparison, in the panels for which there is data."""
    styles = [
        {"color": COLORS[number % len(COLORS)], "marker": _MARKERS[(number + number // len(COLORS)) % len(_MARKERS)]}
        for number in range(len(models))
    ]
    panels: list[tuple[str, Callable[[Axes, Any, Any], None]]] = [("validation loss", _plot_losses)]
    if any(model["by_length"] for model in models):
        panels.append((f"{score} by source length", _plot_lengths))
    else:
        panels.append((score, _plot_scores))
    if any(model["by_size"] for model in models):
        panels.append((f"{score} by training {size_unit}", partial(_plot_sizes, unit=size_unit)))
    num_columns = _NAMES_PER_PANEL * len(panels)
    head = 0.82 + 0.24 * math.ceil(len(models) / num_columns)
    width, height = len(panels) * (_PANEL[0] + _GAP) - _GAP, _PANEL[1] + head
    figure = Figure(figsize=(width, height), facecolor="white")
    for number, (name, plot) in enumerate(panels):
        left = number * (_PANEL[0] + _GAP)
        axes = figure.add_axes((left / width, 0.0, _PANEL[0] / width, _PANEL[1] / height))
        style_axes(axes, title=name, grid="y")
        plot(axes, models, styles)
    start = -0.4 / width  # above the tick labels of the first axis
    figure.text(start, 1.0, title, fontsize=13, color=INK, va="top")
    names = zip(models, styles, strict=True)
    figure.legend(
        handles=[Line2D([], [], label=model["name"], **_line(style)) for model, style in names],
        loc="upper left",
        bbox_to_anchor=(start, 1.0 - 0.32 / height),
        ncols=num_columns,
        fontsize=9,
        labelcolor=INK,
        frameon=False,
        borderpad=0.0,
        columnspacing=1.8,
    )
    return figure


def _plot_losses(axes: Axes, models: Sequence[Mapping[str, Any]], styles: Sequence[Style]) -> None:
    """Plots the validation loss over seconds: a line for each seed with a marker at its end, and a band over seeds."""
    has_bands = any(len(model["curves"]) > 1 for model in models)
    _label(axes, "seconds of training" + ("; bands: range over seeds" if has_bands else ""))
    curves = [
        [
            [
                (p["seconds"], p["valid_loss"])
                for p in curve["points"]
                if is_finite(p["valid_loss"]) and p["valid_loss"] > 0
            ]
            for curve in model["curves"]
        ]
        for model in models
    ]
    if not any(points for lines in curves for points in lines):
        axes.text(0.5, 0.5, "no validation loss was logged", transform=axes.transAxes, ha="center", color=MUTED)
        axes.set(xticks=[], yticks=[])
        return
    for lines, style in zip(curves, styles, strict=True):
        for points in filter(None, lines):
            axes.plot(*zip(*points, strict=True), **_line(style, width=1.1), markevery=[-1])
        if (band := band_of(lines)) is not None:
            axes.fill_between(*band, color=style["color"], alpha=0.16, linewidth=0)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    factors = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]) if high / low < 8 else LogLocator(subs=factors))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(left=0.0)
    _count_on(axes.xaxis, 6, lambda value: f"{value:,.0f}")


def band_of(curves: Sequence[Sequence[tuple[float, float]]]) -> tuple[Floats, Floats, Floats] | None:
    """Returns places, and the range of several curves there, where all of them have begun and none has ended.

    Example:
        >>> x, low, high = band_of([[(0.0, 1.0), (2.0, 3.0)], [(1.0, 1.0), (3.0, 1.0)]])
        >>> x.tolist(), low.tolist(), high.tolist()
        ([1.0, 2.0], [1.0, 1.0], [2.0, 3.0])
    """
    if len(curves) < 2 or min(map(len, curves)) < 2:
        return None
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    places = np.array(sorted({x for curve in curves for x, _ in curve if first <= x <= last}))
    if len(places) < 2:
        return None
    heights = [np.interp(places, [x for x, _ in curve], [y for _, y in curve]) for curve in curves]
    return places, np.min(heights, axis=0), np.max(heights, axis=0)


def _plot_scores(axes: Axes, models: Sequence[Mapping[str, Any]], styles: Sequence[Style]) -> None:
    """Plots scores side by side, with their intervals, and beside each those of its seeds."""
    for place, (model, style) in enumerate(zip(models, styles, strict=True)):
        _plot_line(axes, [place], [model["score"]], style)
        seeds = [value for value in model["seed_scores"] if is_finite(value)]
        if len(seeds) > 1:
            axes.plot([place + 0.12] * len(seeds), seeds, ".", color=style["color"], markersize=3.5, alpha=0.75)
    axes.set(xlim=(-0.6, len(models) - 0.4), xticks=[])
    has_seeds = any(len(model["seed_scores"]) > 1 for model in models)
    _label(axes, "bars: 95 % intervals" + ("; small dots: seeds" if has_seeds else ""))


def _plot_lengths(axes: Axes, models: Sequence[Mapping[str, Any]], styles: Sequence[Style]) -> None:
    """Plots scores side by side in each range of lengths."""
    ranges = sorted({(part["low"], part["high"]) for model in models for part in model["by_length"]})
    step = min(0.1, 0.6 / len(models))
    for number, (model, style) in enumerate(zip(models, styles, strict=True)):
        shift = (number - (len(models) - 1) / 2) * step
        places = [ranges.index((part["low"], part["high"])) + shift for part in model["by_length"]]
        _plot_line(axes, places, model["by_length"], style)
    axes.set_xticks(
        range(len(ranges)), labels=[str(low) if low == high else f"{low}\N{EN DASH}{high}" for low, high in ranges]
    )
    _label(axes, "length of the source in tokens")


def _plot_sizes(axes: Axes, models: Sequence[Mapping[str, Any]], styles: Sequence[Style], *, unit: str) -> None:
    for model, style in zip(models, styles, strict=True):
        _plot_line(axes, [part["rows"] for part in model["by_size"]], model["by_size"], style)
    _count_rows(axes, sorted({part["rows"] for model in models for part in model["by_size"]}))
    _label(axes, f"training {unit}")


def _plot_line(axes: Axes, places: Sequence[float], parts: Sequence[Mapping[str, Any]], style: Style) -> None:
    """Plots a line through the scores, with the interval of each."""
    known = [(x, part["value"], part["interval"]) for x, part in zip(places, parts, strict=True)]
    known = [(x, value, interval) for x, value, interval in known if is_finite(value)]
    axes.plot([x for x, _, _ in known], [value for _, value, _ in known], **_line(style, width=1.4))
    for x, _, interval in known:
        if interval is not None:
            axes.vlines(x, *interval, color=style["color"], linewidth=1.1, alpha=0.55)


def _line(style: Style, *, width: float = 1.6) -> dict[str, Any]:
    size = 5.5 if style["marker"] == "^" else 4.5  # a triangle looks smaller than it is
    return {**style, "linewidth": width, "markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.7}


def plot_few_shot(result: Mapping[str, Any]) -> Figure:
    """Plots the score over the number of rows: means with intervals, and dots for runs."""
    figure = Figure(figsize=(5.2, 3.4), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    metric = f"{score_label(result['metric'])} on {result['rows']:,} {result['set']} rows"
    style_axes(axes, title=f"{result['model']} on {result['data']}\n{metric}", grid="y")
    numbers = [size["shots"] for size in result["sizes"]]
    _plot_line(axes, numbers, [size["score"] for size in result["sizes"]], {"color": COLORS[0], "marker": "o"})
    for size in result["sizes"]:
        values = [run["score"]["value"] for run in size["runs"]]
        axes.plot([size["shots"] * 1.06] * len(values), values, ".", color=COLORS[0], markersize=3.5, alpha=0.75)
    _count_rows(axes, numbers)
    _label(axes, f"{unit_of(result)}; bars: 95 % intervals; small dots: runs")
    return figure


def plot_sweep(sweep: Mapping[str, Any], *, title: str = "", subtitle: str = "") -> Figure:
    """Plots the trials as parallel coordinates, and below the importances, the selected trial and the Pareto front.

    Inselberg, "The Plane with Parallel Coordinates" (1985): each setting is a vertical axis, which each trial crosses.
    """
    panels = [_plot_importance] if sweep["importance"] else []
    panels += [_plot_selected]
    panels += [_plot_front] if len(sweep["objectives"]) > 1 else []
    width, top, bottom, gap, head = 11.0, 3.6, 2.3, 0.95, 0.95 if title else 0.45
    height = head + top + gap + bottom
    figure = Figure(figsize=(width, height), facecolor="white")
    _plot_trials(figure.add_axes((0.0, (bottom + gap) / height, 1.0, top / height)), sweep)
    share = 1.0 / len(panels)
    for number, plot in enumerate(panels):
        inset = 0.11 if plot is _plot_importance else 0.045
        panel_width = share - inset - (0.03 if len(panels) > 1 else 0.0)
        plot(figure.add_axes((number * share + inset, 0.0, panel_width, bottom / height)), sweep)
    figure.text(-0.045, 1.0, title, fontsize=13, color=INK, va="top")
    figure.text(-0.045, 1.0 - 0.27 / height, subtitle, fontsize=9.5, color=MUTED, va="top")
    return figure


def _plot_trials(axes: Axes, sweep: Mapping[str, Any]) -> None:
    """Plots parallel coordinates; the better a trial, the darker, and the selected one in a color of its own."""
    goals = [goal["name"] for goal in sweep["objectives"]]
    scales = [_Scale.of_setting(name, one) for name, one in sweep["space"].items()]
    settings, scales = scales, [*scales, *(_Scale.of_goal(goal, sweep) for goal in goals)]
    finished = [trial for trial in sweep["trials"] if trial["state"] == "finished"]
    unfinished = [trial for trial in sweep["trials"] if trial["state"] != "finished"]
    for trial in unfinished:
        heights = [scale.height(trial["settings"].get(scale.name)) - _SPREAD * scale.is_choice for scale in settings]
        axes.plot(range(len(heights)), heights, color=MUTED, alpha=0.5, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    for place, trial in reversed(list(enumerate(finished))):
        values = [*(trial["settings"].get(scale.name) for scale in settings), *trial["values"].values()]
        beside = _SPREAD * (0.5 - place / len(finished))
        heights = [s.height(value) + beside * s.is_choice for s, value in zip(scales, values, strict=True)]
        if trial["number"] == sweep["winner"]["number"]:
            axes.plot(range(len(heights)), heights, color=_SELECTED, linewidth=2.4, zorder=4)
            continue
        alpha = _ALPHAS[len(_ALPHAS) - 1 - place * len(_ALPHAS) // len(finished)]
        zorder = 3 - place / len(finished)
        axes.plot(range(len(heights)), heights, color=_OTHERS, alpha=alpha, linewidth=1.3, zorder=zorder)
    for place, scale in enumerate(scales):
        scale.draw(axes, place, is_goal=place >= len(settings), is_last=place == len(scales) - 1)
    axes.set(xlim=(-0.02, len(scales) - 1 + 0.02), ylim=(-0.05, 1.08), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    legend = "orange: the selected trial; the more opaque, the better" + (
        "; dashed: pruned or failed" if unfinished else ""
    )
    axes.text(-0.045, -0.01, legend, transform=axes.transAxes, fontsize=8.5, color=MUTED, va="top")


class _Scale:
    """Maps the values of a setting, or of an objective, to a vertical axis from 0 to 1."""

    def __init__(
        self, name: str, title: str, ticks: Sequence[tuple[float, str]], place: Any, *, is_choice: bool = False
    ) -> None:
        self.name, self.title, self.ticks, self._place = name, title, ticks, place
        self.is_choice = is_choice

    def height(self, value: Any) -> float:
        return math.nan if value is None else self._place(value)

    @classmethod
    def of_setting(cls, name: str, one: Mapping[str, Any]) -> "_Scale":
        title = "\n".join(filter(None, name.rpartition(".")[::2]))
        if "choices" in one:
            choices = [repr(choice) for choice in one["choices"]]
            heights = {choice: (number + 0.5) / len(choices) for number, choice in enumerate(choices)}
            shown = one["choices"][:: max(1, math.ceil(len(choices) / _MOST_CHOICES))]
            ticks = [(heights[repr(choice)], format_setting(choice)) for choice in shown]
            return cls(name, title, ticks, lambda value: heights[repr(value)], is_choice=True)
        low, high = float(one["low"]), float(one["high"])
        if one.get("log"):
            ticks = [(h, f"{value:.2g}") for h, value in ((0.0, low), (0.5, math.sqrt(low * high)), (1.0, high))]
            return cls(name, title, ticks, lambda value: math.log(value / low) / math.log(high / low))
        ticks = [(h, f"{low + h * (high - low):.3g}") for h in (0.0, 0.5, 1.0)]
        return cls(name, title, ticks, lambda value: (value - low) / (high - low))

    @classmethod
    def of_goal(cls, goal: str, sweep: Mapping[str, Any]) -> "_Scale":
        """Better is higher, in either direction of the objective."""
        is_maximized = next(g["direction"] == "maximize" for g in sweep["objectives"] if g["name"] == goal)
        values = [trial["values"][goal] for trial in sweep["trials"] if is_finite(trial["values"][goal])]
        low, high = min(values), max(values)

        def place(value: float) -> float:
            share = (value - low) / (high - low) if high > low else 0.5
            return share if is_maximized else 1.0 - share

        ticks = [(place(v), format_objective(v, goal, digits_of(sweep))) for v in sorted({low, (low + high) / 2, high})]
        return cls(goal, score_label(goal) + ("" if is_maximized else "\n(lower is better)"), ticks, place)

    def draw(self, axes: Axes, place: int, *, is_goal: bool, is_last: bool) -> None:
        """Draws the axis with its numbers at the left; those of the last axis are at the right, where no line is."""
        color = INK if is_goal else MUTED
        axes.vlines(place, 0.0, 1.0, color=color, linewidth=1.6 if is_goal else 0.9, zorder=5)
        for height, text in self.ticks:
            axes.annotate(
                text, (place, height), xytext=(6 if is_last else -5, 0), textcoords="offset points", va="center",
                ha="left" if is_last else "right", fontsize=8.5, color=color, path_effects=_HALO, zorder=6,
                annotation_clip=False,
            )  # fmt: skip
        axes.annotate(
            self.title, (place, 1.0), xytext=(0, 9), textcoords="offset points", ha="center", va="bottom", fontsize=9,
            color=INK, annotation_clip=False,
        )  # fmt: skip


def _plot_importance(axes: Axes, sweep: Mapping[str, Any]) -> None:
    style_axes(axes, title="Importance of the settings", grid=None)
    shares = sorted(sweep["importance"].items(), key=lambda item: item[1])
    axes.barh(range(len(shares)), [share for _, share in shares], color=_OTHERS, height=0.55)
    for place, (_, share) in enumerate(shares):
        axes.annotate(f"{100 * share:.0f} %", (share, place), xytext=(4, 0), textcoords="offset points", va="center",
                      fontsize=8.5, color=MUTED)  # fmt: skip
    axes.set_yticks(range(len(shares)), labels=[name for name, _ in shares])
    axes.set(ylim=(-0.6, len(shares) - 0.4), xlim=(0.0, 1.15 * max(share for _, share in shares)), xticks=[])


def _plot_selected(axes: Axes, sweep: Mapping[str, Any]) -> None:
    """Plots the score of the selected trial with its bound, and the scores of its settings with other seeds."""
    winner, goal, bound = sweep["winner"], sweep["objectives"][0]["name"], sweep["bound"]
    covered = f"all M = {sweep['hypotheses']:,} candidates" if sweep.get("release") is None else "released scores"
    bars = [f"upper bar: bound for {covered}"] if bound is not None else []
    bars += ["lower bar: 95 % interval of the mean over seeds"] if winner["interval"] is not None else []
    label = "\n".join([score_label(goal), *bars])
    style_axes(axes, title="Selected trial and other seeds", xlabel=label, grid="x")
    names = ["selected trial"]
    if bound is not None:
        axes.hlines(0, bound["lower"], bound["upper"], color=_SELECTED, linewidth=1.4, alpha=0.6)
    axes.plot([winner["value"]], [0], "o", color=_SELECTED, markersize=8, markeredgecolor="#ffffff", zorder=4)
    if winner["repeats"]:
        names.append("mean over other seeds")
        if winner["interval"] is not None:
            axes.hlines(-1, *winner["interval"], color=_OTHERS, linewidth=1.4, alpha=0.6)
        axes.plot(winner["repeats"], [-1] * len(winner["repeats"]), "o", color=_OTHERS, markersize=4.5, alpha=0.8)
        axes.plot([winner["mean"]], [-1], "D", color=_OTHERS, markersize=7, markeredgecolor="#ffffff", zorder=4)
    for place, (name, value) in enumerate(zip(names, (winner["value"], winner["mean"]), strict=False)):
        axes.annotate(
            f"{name}: {format_objective(value, goal, digits_of(sweep))}", (value, -place), xytext=(0, 11), ha="center",
            textcoords="offset points", fontsize=9, color=INK,
        )  # fmt: skip
    axes.set(yticks=[], ylim=(-len(names) + 0.35, 0.75))
    axes.margins(x=0.18)
    _count_on(axes.xaxis, 7)


def _plot_front(axes: Axes, sweep: Mapping[str, Any]) -> None:
    """Plots the first two objectives against each other, and the Pareto front."""
    first, second = (goal["name"] for goal in sweep["objectives"][:2])
    style_axes(axes, title=f"Pareto front: {score_label(first)} by {score_label(second)}", xlabel=score_label(second))
    finished = [trial for trial in sweep["trials"] if all(map(is_finite, trial["values"].values()))]
    places = [(trial["values"][second], trial["values"][first]) for trial in finished]
    axes.plot(*zip(*places, strict=True), "o", color=_OTHERS, alpha=_ALPHAS[1], markersize=4.5)
    front = sorted(place for place, trial in zip(places, finished, strict=True) if trial["is_pareto_optimal"])
    axes.plot(*zip(*front, strict=True), "o-", color=_OTHERS, markersize=6, linewidth=1.3, markeredgecolor="#ffffff")
    for axis, goal, most in ((axes.xaxis, second, 4), (axes.yaxis, first, 5)):
        _count_on(axis, most, partial(format_objective, objective=goal, digits=2))


def plot_bounds(calculation: Calculation) -> Figure:
    """Plots Hoeffding's epsilon over M for several N, and over N for several M, with the given point in both."""
    m, n = _given_point(calculation)
    delta = calculation.delta
    figure = Figure(figsize=(11.0, 4.2), facecolor="white")
    left, right = (figure.add_axes((x, 0.0, 0.38, 0.85)) for x in (0.0, 0.56))
    most = 10 ** math.ceil(math.log10(max(_CANDIDATES[-1], 10 * m)))
    least, largest = max(1, min(100, n // 2)), max(10**6, 10 * n)
    sizes = _around(n, _EXAMPLES)
    for number, line in zip(sizes, _plot_epsilons(left, (1, most), sizes, n, delta, over_m=True), strict=True):
        axes_and_data = (left.get_yaxis_transform(), float(np.asarray(line.get_ydata())[-1]))
        left.annotate(
            f"N = {number:,}", (1.0, axes_and_data[1]), xycoords=axes_and_data[0], xytext=(5, 0), va="center",
            textcoords="offset points", fontsize=8.5, color=COLORS[0] if number == n else MUTED,
        )  # fmt: skip
    lines = _plot_epsilons(right, (least, largest), _around(m, _CANDIDATES), m, delta, over_m=False)
    right.legend(handles=lines[::-1], loc="upper right", fontsize=8.5, frameon=False, labelcolor=INK, handlelength=1.6)
    reached = hoeffding_epsilon(n, num_candidates=m, delta=delta)
    wanted = None if calculation.requirements is None else calculation.requirements.epsilon
    for axes, x, title, name in (
        (left, m, "By the number of candidates", "candidates, M"),
        (right, n, "By the number of examples", "examples, N"),
    ):
        _style_logarithmic(axes, title, name)
        _mark_point(axes, x, reached, wanted)
    title = f"Largest distance of a measured score from its true value: sqrt(ln(2M/delta) / 2N), delta = {delta:g}"
    figure.text(-0.035, 1.0, title, fontsize=12.5, color=INK, va="top")
    return figure


def _given_point(c: Calculation) -> tuple[int, int]:
    """Returns M and N; one that was not given is what the answers allow or require."""
    m, n = c.num_candidates, c.num_examples
    if m is None and c.requirements is not None and c.requirements.num_candidates is not None:
        m = max(1, int(min(c.requirements.num_candidates, _MOST_CANDIDATES)))
    if n is None and c.requirements is not None:
        n = c.requirements.num_examples
    assert m is not None
    assert n is not None
    if m > _MOST_CANDIDATES:
        raise ConfigError(
            f"a figure shows up to {_MOST_CANDIDATES:.0e} candidates, got a number of {len(str(m))} digits"
        )
    return m, n


def _around(given: int, usual: Sequence[int]) -> list[int]:
    """Returns the usual numbers and the given one, which replaces any that is nearly the same."""
    return sorted([given, *(each for each in usual if abs(math.log10(each / given)) > 0.3)])


def _plot_epsilons(
    axes: Axes, limits: tuple[int, int], numbers: Sequence[int], given: int, delta: float, *, over_m: bool
) -> list[Line2D]:
    """Plots a line for each of `numbers`, which count examples where x counts candidates, and the reverse."""
    places = sorted({round(x) for x in np.logspace(math.log10(limits[0]), math.log10(limits[1]), 200)})
    axes.set_xlim(*map(float, limits))
    lines = []
    for shade, number in zip(np.linspace(0.75, 0.45, len(numbers)), numbers, strict=True):
        style = {"color": COLORS[0], "linewidth": 2.2} if number == given else {"color": str(shade), "linewidth": 1.3}
        label = f"{'N' if over_m else 'M'} = {f'{number:,}' if number < 10**12 else f'{number:.1e}'}"
        epsilons = [
            hoeffding_epsilon(number, num_candidates=x, delta=delta)
            if over_m
            else hoeffding_epsilon(x, num_candidates=number, delta=delta)
            for x in places
        ]
        lines += axes.plot([float(x) for x in places], epsilons, label=label, **style)
    return lines


def _mark_point(axes: Axes, x: int, reached: float, wanted: float | None) -> None:
    """Marks the epsilon that is reached, and the one that was asked for."""
    axes.plot([float(x)], [reached], "o", color=_SELECTED, markersize=8, markeredgecolor="#ffffff", zorder=5)
    axes.annotate(
        f"{reached:.4f}", (float(x), reached), xytext=(7, 9), textcoords="offset points", fontsize=10, color=_SELECTED,
        path_effects=_HALO,
    )  # fmt: skip
    if wanted is not None and wanted != reached:
        axes.axhline(wanted, color=_SELECTED, linewidth=1, linestyle=":")
        axes.text(0.02, wanted, f"target: {wanted:g}", transform=axes.get_yaxis_transform(), va="bottom",
                  fontsize=8.5, color=_SELECTED, path_effects=_HALO)  # fmt: skip


def _style_logarithmic(axes: Axes, title: str, xlabel: str) -> None:
    limits = axes.get_xlim()
    axes.set(xscale="log", yscale="log", xlim=limits)
    style_axes(axes, title=title, xlabel=xlabel, ylabel="epsilon", has_spines=True)
    axes.xaxis.set_major_locator(LogLocator(numticks=10))
    axes.xaxis.set_major_formatter(FuncFormatter(_power_of_ten))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _power_of_ten(value: float, _: object) -> str:
    """Returns 1, 10 and 100 as they are, and powers from a thousand on by a letter or by their exponent."""
    words = {1e3: "1k", 1e4: "10k", 1e5: "100k", 1e6: "1M", 1e7: "10M", 1e8: "100M", 1e9: "1G", 1e10: "10G"}
    return words.get(round(value, 6), f"{value:g}")


def plot_certificate(certificate: Certificate) -> Figure:
    """Plots each bound as a bar, with a point for the measured score."""
    bars = []
    for judged in certificate.shown:
        if judged.interval is not None:
            name = f"{judged.rows_label}: as if it were the only candidate"
            bars.append((judged.value, name, judged.interval, judged.best is None))
        for bound in judged.bounds:
            is_best = judged.best is not None and bound.name == judged.best.name
            name = f"{judged.rows_label}: {bound.name}, {judged.num_candidates:,} candidates"
            bars.append((judged.value, f"{name} (to report)" if is_best else name, bound.interval, is_best))
    sets = ", ".join(f"{each.num_examples:,} {each.rows_label}" for each in certificate.shown)
    metric = next((label_of(each.metric) for each in certificate.shown), "No score")
    figure = Figure(figsize=(8.2, 0.62 * max(1, len(bars)) + 1.5), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    style_axes(
        axes, title=f"{metric} on {sets or 'no rows'}: measured value (point) and intervals of the true one", grid="x"
    )
    for place, (value, name, (low, high), is_best) in enumerate(bars):
        color, width = (COLORS[0], 7) if is_best else (MUTED, 3)
        axes.plot([low, high], [-place, -place], color=color, linewidth=width, solid_capstyle="butt")
        axes.plot([value], [-place], "o", color=INK, markersize=6)
        axes.annotate(name, (low, -place), (0, 9), textcoords="offset points", fontsize=9, color=INK)
    axes.set(ylim=(-len(bars) + 0.4, 0.75), yticks=[])
    return figure


def _label(axes: Axes, text: str) -> None:
    axes.set_xlabel(text, fontsize=8.5, color=MUTED, loc="left")


def _count_on(axis: Axis, most: int, write: Callable[[float], str] | None = None) -> None:
    """Puts at most so many round numbers on an axis."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
    if write is not None:
        axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


def _count_rows(axes: Axes, numbers: Sequence[int]) -> None:
    """Puts these numbers of rows on a logarithmic axis."""
    axes.set_xscale("log")
    axes.set_xticks(numbers, labels=[f"{number:,}" for number in numbers])
    axes.xaxis.set_minor_locator(NullLocator())
