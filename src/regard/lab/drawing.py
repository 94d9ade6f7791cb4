"""The look of a study's figure: rows of panels in the colours of the pages, by day and by night."""

import io
import math
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image
from torch import Tensor

from regard.explanation.figure_page import COLORS as COLORS
from regard.explanation.figure_page import GRID as GRID
from regard.explanation.figures import INK, MUTED

DIVERGING = LinearSegmentedColormap.from_list("regard-signed", ["#a3440f", "#eeb48f", "#f6f5f1", "#9db1e6", "#2a3f9d"])
"""From -1 through 0 to 1."""


def panels(*counts: int, width: float = 11.0, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    """A figure with a row of panels for each count, all rows equally wide."""
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(width, height * len(counts)), layout=layout, facecolor="white")
    columns = math.lcm(*counts)
    grid = figure.add_gridspec(len(counts), columns)
    axes = []
    for row, count in enumerate(counts):
        share = columns // count
        axes += [figure.add_subplot(grid[row, share * i : share * (i + 1)]) for i in range(count)]
    return figure, axes


def label(axes: Axes, title: str, x: str, y: str, *, has_grid: bool = True) -> None:
    """Say what a panel shows and what its axes are, in the house's manner."""
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=9)
    axes.set_xlabel(x, fontsize=9, color=MUTED)
    axes.set_ylabel(y, fontsize=9, color=MUTED)
    axes.tick_params(labelsize=8.5, labelcolor=MUTED, color=MUTED, length=3)
    axes.tick_params(which="minor", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    if has_grid:
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)


def legend(axes: Axes, **options: Any) -> None:
    """Names of lines, without a frame."""
    settings = {"fontsize": 8.5, "frameon": False, "labelcolor": INK, "handlelength": 1.6, **options}
    axes.legend(**settings)


def show_matrix(axes: Axes, matrix: Float[Tensor, "row column"]) -> None:
    """Numbers of both signs as colours, on a scale that is the same to both sides of 0."""
    most = float(matrix.abs().max()) or 1.0
    axes.imshow(matrix.numpy(), cmap=DIVERGING, vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    axes.spines[:].set_visible(False)


def smooth(
    values: Float[Tensor, "*runs step"], *, num_points: int = 80
) -> tuple[Float[Tensor, " point"], Float[Tensor, "*runs point"]]:
    """Means over neighbouring steps, and the step in the middle of each."""
    width = max(1, values.size(-1) // num_points)
    means = values.unfold(-1, width, width).mean(dim=-1)
    return torch.arange(means.size(-1)) * width + (width + 1) / 2, means


def to_png(figure: Figure) -> bytes:
    """The figure as a picture on white."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130)
    # Of 256 colours, which is as many as a drawing needs, and a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small.getvalue()
