"""The figure of a comparison: how the models learned, and what they score, in all, by length and by training set."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from regard.explanation.comparison_words import is_finite
from regard.explanation.figures import INK, MUTED

Floats = Float[np.ndarray, " places"]

MARKERS = ("o", "s", "^", "D")
GRID = "#e8e8e4"
PANEL, GAP = (4.3, 3.0), 0.8
"""Width and height of a panel, and what lies between two of them, in inches."""
NAMES_TO_A_PANEL = 3
"""How many names stand beside each other in the legend, for each panel below it."""


def compose(
    models: Sequence[Mapping[str, Any]],
    *,
    title: str,
    metric: str,
    is_lower_better: bool,
    size_unit: str,
    colors: Sequence[str],
) -> Figure:
    """Lay out the panels for which there is something to show, under one legend for all."""
    looks = [
        {"color": colors[number % len(colors)], "marker": MARKERS[(number + number // len(colors)) % len(MARKERS)]}
        for number in range(len(models))
    ]
    score = f"{metric} (lower is better)" if is_lower_better else metric
    panels = [("validation loss", _draw_learning)]
    if any(model["by_length"] for model in models):
        panels.append((f"{score} by source length", _draw_lengths))
    else:
        panels.append((score, _draw_scores))
    if any(model["by_size"] for model in models):
        panels.append((f"{score} by training {size_unit}", partial(_draw_sizes, unit=size_unit)))
    num_across = NAMES_TO_A_PANEL * len(panels)
    head = 0.82 + 0.24 * math.ceil(len(models) / num_across)
    width, height = len(panels) * (PANEL[0] + GAP) - GAP, PANEL[1] + head
    figure = Figure(figsize=(width, height), facecolor="white")
    for place, (name, draw) in enumerate(panels):
        left = place * (PANEL[0] + GAP)
        axes = figure.add_axes((left / width, 0.0, PANEL[0] / width, PANEL[1] / height))
        _clear(axes)
        axes.set_title(name, loc="left", fontsize=10, color=INK, pad=10)
        draw(axes, models, looks)
    start = -0.4 / width  # over the numbers of the first axis
    figure.text(start, 1.0, title, fontsize=13, color=INK, va="top")
    figure.legend(
        handles=[Line2D([], [], label=model["name"], **_line(look)) for model, look in zip(models, looks, strict=True)],
        loc="upper left",
        bbox_to_anchor=(start, 1.0 - 0.32 / height),
        ncols=num_across,
        fontsize=9,
        labelcolor=INK,
        frameon=False,
        borderpad=0.0,
        columnspacing=1.8,
    )
    return figure


def _draw_learning(axes: Axes, models: Sequence[Mapping[str, Any]], looks: Sequence[Mapping[str, str]]) -> None:
    """Validation loss over seconds: a thin line for each seed, with a sign at its end, and a band over all of them."""
    has_bands = any(len(model["curves"]) > 1 for model in models)
    words = "seconds of training" + ("; bands reach over all seeds" if has_bands else "")
    axes.set_xlabel(words, fontsize=8.5, color=MUTED, loc="left")
    lines = [
        (look, [(p["seconds"], p["valid_loss"]) for p in curve["points"] if _is_positive(p["valid_loss"])])
        for model, look in zip(models, looks, strict=True)
        for curve in model["curves"]
    ]
    if not any(points for _, points in lines):
        axes.text(0.5, 0.5, "no validation was logged", transform=axes.transAxes, ha="center", color=MUTED, fontsize=9)
        axes.set(xticks=[], yticks=[])
        return
    for look, points in lines:
        if points:
            axes.plot(*zip(*points, strict=True), **_line(look, width=1.1), markevery=[-1])
    for model, look in zip(models, looks, strict=True):
        curves = [[(p["seconds"], p["valid_loss"]) for p in curve["points"]] for curve in model["curves"]]
        if (band := band_of([[p for p in some if _is_positive(p[1])] for some in curves])) is not None:
            axes.fill_between(*band, color=look["color"], alpha=0.16, linewidth=0)
    _count_in_powers(axes)
    axes.set_xlim(left=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def band_of(curves: Sequence[Sequence[tuple[float, float]]]) -> tuple[Floats, Floats, Floats] | None:
    """Places, and between which heights several curves lie there, where all of them have begun and none has ended.

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


def _draw_scores(axes: Axes, models: Sequence[Mapping[str, Any]], looks: Sequence[Mapping[str, str]]) -> None:
    """Scores side by side, with their intervals, and beside each those of its seeds."""
    for place, (model, look) in enumerate(zip(models, looks, strict=True)):
        _draw_parts(axes, [place], [model["score"]], look)
        seeds = [value for value in model["seed_scores"] if is_finite(value)]
        if len(seeds) > 1:
            axes.plot([place + 0.12] * len(seeds), seeds, ".", color=look["color"], markersize=3.5, alpha=0.75)
    axes.set_xlim(-0.6, len(models) - 0.4)
    axes.set_xticks([])
    has_seeds = any(len(model["seed_scores"]) > 1 for model in models)
    words = "bars: 95 % intervals" + ("; small dots: seeds" if has_seeds else "")
    axes.set_xlabel(words, fontsize=8.5, color=MUTED, loc="left", labelpad=18)


def _draw_lengths(axes: Axes, models: Sequence[Mapping[str, Any]], looks: Sequence[Mapping[str, str]]) -> None:
    """Scores side by side in each band of lengths."""
    bands = sorted({(part["low"], part["high"]) for model in models for part in model["by_length"]})
    step = min(0.1, 0.6 / len(models))
    for number, (model, look) in enumerate(zip(models, looks, strict=True)):
        shift = (number - (len(models) - 1) / 2) * step
        places = [bands.index((part["low"], part["high"])) + shift for part in model["by_length"]]
        _draw_parts(axes, places, model["by_length"], look)
    names = [str(low) if low == high else f"{low}\N{EN DASH}{high}" for low, high in bands]
    axes.set_xticks(range(len(bands)), labels=names)
    axes.set_xlabel("length of the source in tokens", fontsize=8.5, color=MUTED, loc="left")


def _draw_sizes(
    axes: Axes, models: Sequence[Mapping[str, Any]], looks: Sequence[Mapping[str, str]], *, unit: str
) -> None:
    for model, look in zip(models, looks, strict=True):
        _draw_parts(axes, [part["rows"] for part in model["by_size"]], model["by_size"], look)
    axes.set_xscale("log")
    sizes = sorted({part["rows"] for model in models for part in model["by_size"]})
    axes.set_xticks(sizes, labels=[f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"training {unit}", fontsize=8.5, color=MUTED, loc="left")


def _draw_parts(
    axes: Axes, places: Sequence[float], parts: Sequence[Mapping[str, Any]], look: Mapping[str, str]
) -> None:
    """A line through the scores, with the interval of each."""
    known = [(x, part["value"], part["interval"]) for x, part in zip(places, parts, strict=True)]
    known = [(x, value, interval) for x, value, interval in known if is_finite(value)]
    axes.plot([x for x, _, _ in known], [value for _, value, _ in known], **_line(look, width=1.4))
    for x, _, interval in known:
        if interval is not None:
            axes.vlines(x, *interval, color=look["color"], linewidth=1.1, alpha=0.55)


def _clear(axes: Axes) -> None:
    """Nothing but light lines to read the height by."""
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=8.5, labelcolor=MUTED, pad=6)


def _count_in_powers(axes: Axes) -> None:
    """A logarithmic axis whose numbers are written out: 0.5, not a power of ten."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    factors = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]) if high / low < 8 else LogLocator(subs=factors))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _line(look: Mapping[str, str], *, width: float = 1.6) -> dict[str, Any]:
    size = 5.5 if look["marker"] == "^" else 4.5  # a triangle looks smaller than it is
    return {**look, "linewidth": width, "markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.7}


def _is_positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0.0
