"""Plots that a task describes as panels of curves: forecasts with intervals, risks with the events of subjects.

Importing this module imports matplotlib, so callers import it where a figure is drawn.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from regard.errors import ConfigError
from regard.explanation.colors import INK, MUTED
from regard.explanation.figures import save_figure
from regard.tasks.content import Panel, Plot

_COLORS = ("#3b55bd", "#d2691e", "#2e8b57", "#a0307d", "#8a7a00", "#1a9bb0", "#7a4a2a", "#606470")
_MOST_PANELS, _NUM_TICKS = 12, 4
_SUFFIXES = (".png", ".svg")


def draw_plot(plot: Plot) -> Figure:
    """Draw at most 12 panels; of more than 8 names of curves, those with the highest values."""
    shown = plot.panels[:_MOST_PANELS]
    highest: dict[str, float] = {}
    for curve in (each for panel in shown for each in panel.curves if not each.is_observed):
        known = [value for value in curve.y if value is not None]
        highest[curve.name] = max(highest.get(curve.name, -math.inf), *known)
    kept = set(sorted(highest, key=lambda name: -highest[name])[: len(_COLORS)])
    colors = dict(zip((name for name in highest if name in kept), _COLORS, strict=False))
    top = math.ceil(10 * max(highest.values(), default=0.0)) / 10 or 0.1
    per_row = min(plot.per_row, len(shown))
    num_rows = math.ceil(len(shown) / per_row)
    figure = Figure(figsize=(10.4 if plot.per_row == 1 else 5.6 * per_row, 2.5 * num_rows), layout="constrained")
    for number, panel in enumerate(shown, start=1):
        _draw(figure.add_subplot(num_rows, per_row, number), panel, colors, top)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, fontsize=8, frameon=False, loc="outside lower center", ncols=len(labels), labelcolor=MUTED
    )
    return figure


def save_plot(plot: Plot, path: str | os.PathLike[str]) -> None:
    """Write a plot as PNG or SVG, by the suffix of `path`."""
    require_plot_path(path)
    save_figure(draw_plot(plot), Path(path))


def require_plot_path(path: str | os.PathLike[str], suffixes: Sequence[str] = _SUFFIXES) -> None:
    """Raise unless a plot can be written there."""
    if Path(path).suffix.lower() not in suffixes:
        raise ConfigError(f"the name of a plot must end in {' or '.join(suffixes)}, got {Path(path).name!r}")
    if not Path(path).parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {Path(path).parent}")


def _draw(axes: Axes, panel: Panel, colors: Mapping[str, str], top: float) -> None:
    named: set[str] = set()
    for curve in panel.curves:
        if not curve.is_observed and curve.name not in colors:
            continue
        color, width = (INK, 1.0) if curve.is_observed else (colors[curve.name], 1.4)
        label = "_" if curve.name in named else curve.name  # matplotlib leaves such labels out of a legend
        style: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 3, "alpha": 0.6}
        style = style if curve.is_points else {"linewidth": width}
        axes.plot(curve.x, _gaps(curve.y), color=color, label=label, **style)
        if curve.band:
            axes.fill_between(curve.x, curve.lower, curve.upper, color=color, alpha=0.18, linewidth=0, label=curve.band)
        named.add(curve.name)
    for name, moments in panel.marks.items():
        if name in colors:
            axes.plot(moments, [1.12 * top] * len(moments), "|", color=colors[name], markersize=9, markeredgewidth=1.6)
    if panel.marks:  # above the curves, on one scale in all panels
        axes.set_ylim(0.0, 1.24 * top)
        axes.set_yticks([0.0, top / 2, top])
    if panel.line is not None:
        axes.axvline(panel.line, color=MUTED, linewidth=0.8, linestyle="--")
    if panel.end is not None:
        axes.axvline(panel.end, color=MUTED, linewidth=0.8, linestyle=":")
        axes.set_xlim(min((min(each.x) for each in panel.curves), default=0.0), panel.end or 1.0)
    axes.tick_params(labelsize=7, labelcolor=MUTED)
    if panel.ticks:
        last = len(panel.ticks) - 1
        places = sorted({round(part * last / (_NUM_TICKS - 1)) for part in range(_NUM_TICKS)})
        axes.xaxis.set_major_locator(FixedLocator(places))
        axes.set_xticklabels([panel.ticks[place].replace(" ", "\n") for place in places])
    axes.set_xlabel(panel.labels[0], fontsize=7, color=MUTED)
    axes.set_ylabel(panel.labels[1], fontsize=7, color=MUTED)
    axes.set_title(panel.title, fontsize=9, loc="left", color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _gaps(values: Sequence[float | None]) -> list[Any]:
    return [math.nan if value is None else value for value in values]
