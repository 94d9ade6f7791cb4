"""The style of a study's figure: rows of panels in the colors of the HTML pages, for light and dark themes."""

import io
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image
from torch import Tensor

from regard.evaluation.intervals import Interval
from regard.explanation.colors import COLORS as COLORS
from regard.explanation.colors import GRID as GRID
from regard.explanation.colors import INK as INK
from regard.explanation.colors import MUTED as MUTED

_LEGEND: Any = {"fontsize": 8.5, "frameon": False, "labelcolor": INK, "handlelength": 1.6}
_DIVERGING = LinearSegmentedColormap.from_list("regard-signed", ["#a3440f", "#eeb48f", "#f6f5f1", "#9db1e6", "#2a3f9d"])


def make_panels(*counts: int, width: float = 11.0, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    """Returns a figure with one row of panels per count, all rows equally wide, and its axes in reading order."""
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(width, height * len(counts)), layout=layout, facecolor="white")
    columns = math.lcm(*counts)
    grid = figure.add_gridspec(len(counts), columns)
    axes = []
    for row, count in enumerate(counts):
        span = columns // count
        axes += [figure.add_subplot(grid[row, span * i : span * (i + 1)]) for i in range(count)]
    return figure, axes


def label_axes(
    axes: Axes, title: str, x: str, y: str, *, log: str = "", legend: str = "", has_grid: bool = True, **options: Any
) -> None:
    """Set the title, the axis labels and the style of a panel.

    `log` names the logarithmic axes (`x`, `y` or `xy`), `legend` the place of the
    legend (empty for none); `options` are those of `Axes.legend`.
    """
    axes.set(**dict.fromkeys((f"{axis}scale" for axis in log), "log"))
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=9)
    axes.set_xlabel(x, fontsize=9, color=MUTED)
    axes.set_ylabel(y, fontsize=9, color=MUTED)
    axes.tick_params(which="both", labelsize=8.5, labelcolor=MUTED, color=MUTED, length=3)
    axes.tick_params(which="minor", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    if has_grid:
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    if legend:
        axes.legend(**{**_LEGEND, "loc": legend, **options})


def add_figure_legend(figure: Figure, axes: Axes, loc: Any) -> None:
    """Add the legend entries of one panel in a row outside all panels."""
    lines, names = axes.get_legend_handles_labels()
    figure.legend(lines, names, loc=loc, ncols=len(names), frameon=False, fontsize=9, labelcolor=INK)


def plot_errorbars(axes: Axes, x: Sequence[float], estimates: Sequence[Interval], **options: Any) -> None:
    """Plot estimates with their intervals as error bars; `options` are those of `Axes.errorbar`."""
    middle = [estimate[0] for estimate in estimates]
    # An interval by percentiles need not contain its estimate, and error bars cannot be negative.
    below = [max(0.0, m - low) for m, low, _ in estimates]
    above = [max(0.0, high - m) for m, _, high in estimates]
    axes.errorbar(x, middle, yerr=[below, above], **{"elinewidth": 0.9, **options})


def plot_band(
    axes: Axes,
    x: Sequence[float],
    estimates: Sequence[Interval],
    style: str = "-",
    *,
    color: str,
    floor: float = -math.inf,
    **options: Any,
) -> None:
    """Plot a line through the estimates and their intervals as a band; `options` are those of `Axes.plot`.

    The band is cut off below `floor`: on a logarithmic axis an end at or below 0 has no place.
    """
    middle, low, high = zip(*estimates, strict=True)
    axes.plot(x, middle, style, color=color, **options)
    axes.fill_between(x, [max(end, floor) for end in low], high, color=color, alpha=0.18, linewidth=0)


def plot_matrix(axes: Axes, matrix: Float[Tensor, "row column"]) -> None:
    """Plot a matrix as a heat map with a diverging color scale centered at 0; NaN is left blank."""
    largest = float(matrix.nan_to_num().abs().max()) or 1.0
    axes.imshow(matrix.numpy(), cmap=_DIVERGING, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    axes.spines[:].set_visible(False)


def block_means(
    values: Float[Tensor, "*runs step"], *, num_points: int = 80
) -> tuple[Float[Tensor, " point"], Float[Tensor, "*runs point"]]:
    """Returns the middle step of about `num_points` blocks of consecutive steps, and the mean over each block."""
    width = max(1, values.size(-1) // num_points)
    means = values.unfold(-1, width, width).mean(dim=-1)
    return torch.arange(means.size(-1)) * width + (width + 1) / 2, means


def render_png(figure: Figure) -> bytes:
    """Returns the figure as a PNG on white, reduced to 256 colors, which makes it a third of the size."""
    full, reduced = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=130)
    Image.open(full).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(reduced, format="png", optimize=True)
    return reduced.getvalue()
