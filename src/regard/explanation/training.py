"""Plots of what a task measures during training.

Importing this module imports matplotlib, so callers import it where a figure is drawn.
"""

from matplotlib.figure import Figure

from regard.explanation.colors import MUTED
from regard.explanation.figures import style_axes
from regard.tasks.task import TrainingPlot

_COLORS = ("#3b55bd", "#b4552d", "#3a7d44", "#7a4b8f")


def plot_training(plot: TrainingPlot) -> Figure:
    """Draw each line with its interval, in the order of training, and a vertical line at the mark."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for line, color in zip(plot.lines, _COLORS, strict=False):
        axes.errorbar(
            line.x, line.y, yerr=line.half_widths, color=color, label=line.label, linewidth=1.4, marker="o",
            markersize=3.5, elinewidth=0.8, capsize=2,
        )  # fmt: skip
    if plot.mark is not None:
        axes.axvline(plot.mark, color=MUTED, linestyle=":", linewidth=1.2, label=plot.mark_label)
    style_axes(axes, title=plot.title, xlabel=plot.x_label)
    axes.legend(fontsize=8, frameon=False, labelcolor=MUTED)
    return figure
