"""Plots of forecasts: the last steps of each series, what is forecast after them, and its intervals.

Importing this module imports matplotlib, so callers import it where a figure is drawn.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from regard.errors import ConfigError
from regard.explanation.colors import INK, MUTED
from regard.explanation.figures import save_figure
from regard.tasks.task import SeriesForecast

_BLUE = "#3b55bd"
_MOST_DRAWN, _PER_ROW = 12, 2
_NUM_TICKS = 4
_SUFFIXES = (".png", ".svg")


def plot_forecasts(forecasts: Sequence[SeriesForecast], *, coverage: float | None = None) -> Figure:
    """Draw each forecast on axes of its own, at most 12."""
    shown = forecasts[:_MOST_DRAWN]
    num_rows = math.ceil(len(shown) / _PER_ROW)
    figure = Figure(figsize=(5.6 * min(len(shown), _PER_ROW), 2.6 * num_rows), layout="constrained")
    for number, forecast in enumerate(shown, start=1):
        axes = figure.add_subplot(num_rows, min(len(shown), _PER_ROW), number)
        _draw(axes, forecast, coverage)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, fontsize=7, frameon=False, loc="outside lower center", ncols=3, labelcolor=MUTED)
    return figure


def save_forecasts(forecasts: Sequence[SeriesForecast], path: str | Path, *, coverage: float | None = None) -> None:
    """Write the plot as PNG or SVG, by the suffix of `path`."""
    require_plot_path(path)
    save_figure(plot_forecasts(forecasts, coverage=coverage), Path(path))


def require_plot_path(path: str | Path) -> None:
    """Raise unless a plot can be written there."""
    if Path(path).suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"the name of a plot must end in {' or '.join(_SUFFIXES)}, got {Path(path).name!r}")
    if not Path(path).parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {Path(path).parent}")


def _draw(axes: Axes, forecast: SeriesForecast, coverage: float | None) -> None:
    num_past = len(forecast.past)
    ahead = range(num_past, num_past + len(forecast.point))
    axes.plot(range(num_past), _gaps(forecast.past), color=INK, linewidth=1.0, label="observed")
    if forecast.actual:
        axes.plot(ahead, _gaps(forecast.actual), color=INK, linewidth=1.0)
    axes.plot(ahead, forecast.point, color=_BLUE, linewidth=1.5, label="forecast")
    label = "interval" if coverage is None else f"{100 * coverage:g} % interval"
    axes.fill_between(ahead, forecast.lower, forecast.upper, color=_BLUE, alpha=0.18, linewidth=0, label=label)
    times = [*forecast.past_times, *forecast.times]
    places = sorted({round(part * (len(times) - 1) / (_NUM_TICKS - 1)) for part in range(_NUM_TICKS)})
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.set_xticklabels([times[place].replace(" ", "\n") for place in places], fontsize=7, color=MUTED)
    axes.tick_params(axis="y", labelsize=7, labelcolor=MUTED)
    axes.set_title(" · ".join(filter(None, (forecast.id, forecast.column))), fontsize=9, loc="left", color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _gaps(values: Sequence[float | None]) -> list[Any]:
    return [math.nan if value is None else value for value in values]
