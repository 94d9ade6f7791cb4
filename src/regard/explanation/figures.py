"""The figure of an attention map: one map large, and beside it, small, the maps that it averages."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

from regard.explanation.fonts import fonts_for
from regard.files import write_atomically

INK, MUTED = "#1d2129", "#5d6470"
RAMP = LinearSegmentedColormap.from_list("regard", ["#f1f2f6", "#c3cff0", "#7d97de", "#3b55bd", "#1a2368"])
"""From no weight to the largest."""
CELL = 0.27
"""Side of a cell of the large map in inches, as long as the map stays below `LARGEST`."""
LARGEST = 11.0
LONGEST_NAME = 20


def compose(
    parts: NDArray[np.float32],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    roles: tuple[str, str],
    title: str,
    corner: tuple[int, int],
) -> Figure:
    """Lay out the average of `parts` and, where there are several, the parts themselves.

    Args:
        parts: Layers, heads, rows, columns.
        rows: Names of the rows, all of them visible.
        columns: Names of the columns.
        roles: What a row stands for, and what a column.
        title: What the large map shows.
        corner: The number of the first layer and of the first head among the parts.
    """
    average = parts.mean(axis=(0, 1), dtype=np.float64)
    cell = min(CELL, LARGEST / max(average.shape))
    height, width = (cell * count for count in average.shape)
    grid_width, grid_height, tile = _grid_size(parts, max(height, 2.0))
    bar, gap = 0.12, 0.9
    total = (width + 0.25 + bar + (gap + grid_width if tile else 0.0), max(height, grid_height))
    figure = Figure(figsize=total, facecolor="white")

    def place(left: float, size: tuple[float, float]) -> Axes:
        return figure.add_axes((left / total[0], 1 - size[1] / total[1], size[0] / total[0], size[1] / total[1]))

    scale = Normalize(0.0, float(average.max()) or 1.0)
    axes = place(0.0, (width, height))
    axes.imshow(average, cmap=RAMP, norm=scale, aspect="auto", interpolation="nearest")
    _name_axes(axes, rows, columns, roles, size=min(9.5, cell * 72 * 0.6))
    _color_bar(figure, place(width + 0.25, (bar, min(height, 2.2))), scale)
    if tile:
        _draw_parts(place(width + 0.25 + bar + gap, (grid_width, grid_height)), parts, tile, corner)
    axes.set_title(title, loc="left", fontsize=12, color=INK, pad=14)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure with fonts that have its signs; text stays text in an SVG."""
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    families = fonts_for(text.get_text() for text in texts)
    for text in texts:
        text.set_fontfamily(families)
        text.set_parse_math(False)
    is_vector = path.suffix.lower() == ".svg"
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard"}), warnings.catch_warnings():
        # A sign that no installed font has is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        metadata, drawn = {"Date": None} if is_vector else None, io.BytesIO()
        kind = path.suffix[1:].lower()
        figure.savefig(drawn, format=kind, dpi=200, bbox_inches="tight", pad_inches=0.25, metadata=metadata)
    write_atomically(path, drawn.getvalue())


def _name_axes(axes: Axes, rows: Sequence[str], columns: Sequence[str], roles: tuple[str, str], *, size: float) -> None:
    """Put a token at each row and on top of each column, turned where it is longer than its column is wide."""
    names = [_shortened(name) for name in columns]
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks(range(len(names)), labels=names, fontsize=size, color=INK)
    for label, name in zip(axes.get_xticklabels(), names, strict=True):
        label.set(**({"va": "baseline"} if len(name) <= 2 else {"rotation": 90, "va": "bottom"}))
    axes.set_yticks(range(len(rows)), labels=[_shortened(name) for name in rows], fontsize=size, color=INK)
    axes.set_ylabel(roles[0], fontsize=8.5, color=MUTED, labelpad=8)
    axes.set_xlabel(roles[1], fontsize=8.5, color=MUTED, labelpad=8)
    axes.tick_params(length=0, pad=4)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(0.5, len(names) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(rows) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=min(1.0, size / 8))
    axes.tick_params(which="minor", length=0)


def _color_bar(figure: Figure, axes: Axes, scale: Normalize) -> None:
    bar = figure.colorbar(ScalarMappable(scale, RAMP), cax=axes)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]  # typed as if it were callable
    bar.set_ticks([0.0, float(scale.vmax or 1.0)], labels=["0", f"{scale.vmax:.2f}"])
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED, pad=4)


def _grid_size(parts: NDArray[np.float32], height: float) -> tuple[float, float, tuple[float, float] | None]:
    """Width and height of the grid of small maps in inches, and of one of them; none where there is one part."""
    num_layers, num_heads, num_rows, num_columns = parts.shape
    if num_layers * num_heads == 1:
        return 0.0, 0.0, None
    ratio = min(2.0, max(0.5, num_columns / num_rows))
    tile_height = min(1.1, max(0.45, height / num_layers - 0.14))
    tile = (tile_height * ratio, tile_height)
    return num_heads * (tile[0] + 0.14), num_layers * (tile[1] + 0.14), tile


def _draw_parts(axes: Axes, parts: NDArray[np.float32], tile: tuple[float, float], corner: tuple[int, int]) -> None:
    """All parts in one set of axes, in inches, on one scale."""
    num_layers, num_heads = parts.shape[:2]
    step_x, step_y = tile[0] + 0.14, tile[1] + 0.14
    scale = Normalize(0.0, float(parts.max()) or 1.0)
    for layer in range(num_layers):
        for head in range(num_heads):
            left, top = head * step_x, layer * step_y
            extent = (left, left + tile[0], top + tile[1], top)
            axes.imshow(parts[layer, head], cmap=RAMP, norm=scale, extent=extent, interpolation="nearest")
    axes.set_aspect("auto")
    axes.set_xlim(0, num_heads * step_x)
    axes.set_ylim(num_layers * step_y, 0)
    first_layer, first_head = corner
    middles_x = [head * step_x + tile[0] / 2 for head in range(num_heads)]
    middles_y = [layer * step_y + tile[1] / 2 for layer in range(num_layers)]
    axes.xaxis.tick_top()
    axes.set_xticks(middles_x, labels=[f"head {first_head + head}" for head in range(num_heads)])
    layers = [f"layer {first_layer + layer}" for layer in range(num_layers)]
    axes.set_yticks(middles_y, labels=layers, rotation=90, va="center")
    axes.tick_params(length=0, labelsize=7.5, labelcolor=MUTED, pad=4)
    axes.set_xlabel(f"all on one scale, from 0 to {scale.vmax:.2f}", fontsize=7.5, color=MUTED, labelpad=6, loc="left")
    axes.spines[:].set_visible(False)


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
