"""One attention map as a heat map in the terminal, and as a figure beside the heads that it averages."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from regard.explanation.colors import INK, MUTED, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLOCKS = " ░▒▓█"
"""The shades of a terminal without colors."""
_TALLEST_COLUMN_NAME = 14
_LONGEST_NAME = 20
_CELL, _LARGEST = 0.27, 11.0
"""Side of a cell of the large map, and the longest side of that map, in inches."""
_GAP = 0.14
"""Space between two small maps, in inches."""


@dataclass(frozen=True, eq=False)
class HeatMap:
    """One attention map, which a rich console can print; without colors the weights are blocks of five shades."""

    weights: NDArray[np.float32]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    roles: tuple[str, str]
    title: str
    width: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.width or options.max_width, options.max_width)
        is_colored = console.color_system is not None and not console.no_color
        names = [_stack(token) for token in self.columns]
        margin = min(max(map(cell_len, self.rows)), max(4, width // 4)) + 1
        widest = max(cell_len(sign) for name in names for sign in name)
        cell = max(widest, 2 if margin + 2 * len(names) <= width else 1)
        band = max(1, (width - margin) // cell)
        peak = float(self.weights.max()) or 1.0

        for words, style in ((self.title, "bold"), (f"↓ {self.roles[0]}   → {self.roles[1]}", "dim")):
            line = Text(words, style=style, no_wrap=True)
            line.truncate(width, overflow="ellipsis")
            yield line
        for start in range(0, len(names), band):
            yield Text()
            for line in _vertical_names(names[start : start + band], cell):
                yield Text(" " * margin + line, no_wrap=True)
            for token, weights in zip(self.rows, self.weights[:, start : start + band], strict=True):
                line = Text(_right_aligned(token, margin - 1) + " ", no_wrap=True)
                for weight in weights:
                    line.append_text(block(float(weight) / peak, cell, is_colored=is_colored))
                yield line
        last = max(4, min(15, width - margin - 8))
        legend = [block(step / last, 1, is_colored=is_colored) for step in range(last + 1)]
        yield Text()
        yield Text.assemble(" " * margin, "0 ", *legend, f" {peak:.2f}", no_wrap=True)


def _stack(token: str) -> list[str]:
    """Returns the characters of `token`, each with its combining marks."""
    signs: list[str] = []
    for character in token:
        if signs and (cell_len(character) == 0 or unicodedata.category(character).startswith("M")):
            signs[-1] += character
        else:
            signs.append(character)
    if len(signs) > _TALLEST_COLUMN_NAME:
        signs[_TALLEST_COLUMN_NAME - 1 :] = ["…"]
    return signs or [" "]


def _vertical_names(names: Sequence[Sequence[str]], cell: int) -> Iterator[str]:
    """Yields lines in which each name runs from top to bottom above its column, which is `cell` wide."""
    height = max(map(len, names))
    for depth in range(-height, 0):
        signs = (name[depth] if len(name) >= -depth else "" for name in names)
        yield "".join(sign + " " * (cell - cell_len(sign)) for sign in signs)


def _right_aligned(token: str, width: int) -> str:
    excess = cell_len(token) - width
    return " " * -excess + token if excess <= 0 else set_cell_size(token, width - 1) + "…"


def block(weight: float, width: int, *, is_colored: bool) -> Text:
    """Returns a cell of a heat map in the terminal."""
    if not is_colored:
        return Text(BLOCKS[round(weight * (len(BLOCKS) - 1))] * width)
    return Text(" " * width, style=Style(bgcolor=Color.from_rgb(*shade(weight))))


def draw_heads(
    path: Path,
    parts: NDArray[np.float32],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    roles: tuple[str, str],
    title: str,
    first: tuple[int, int],
) -> None:
    """Writes a figure of the average of `parts` and, where there are several, of the parts themselves.

    Args:
        path: A PNG or SVG file.
        parts: Layers, heads, rows, columns.
        rows: Names of the rows.
        columns: Names of the columns.
        roles: Labels of the two axes.
        title: The title of the large map.
        first: The indices of the first layer and of the first head among the parts.
    """
    # Imported here, since importing matplotlib takes longer than printing a map.
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from regard.explanation.figures import RAMP, save_figure

    average = parts.mean(axis=(0, 1), dtype=np.float64)
    cell = min(_CELL, _LARGEST / max(average.shape))
    height, width = (cell * count for count in average.shape)
    tile = _tile_size(parts, max(height, 2.0))
    grid = (0.0, 0.0) if tile is None else (parts.shape[1] * (tile[0] + _GAP), parts.shape[0] * (tile[1] + _GAP))
    bar, gap = 0.12, 0.9
    total = (width + 0.25 + bar + (0.0 if tile is None else gap + grid[0]), max(height, grid[1]))
    figure = Figure(figsize=total, facecolor="white")

    def place(left: float, size: tuple[float, float]) -> "Axes":
        return figure.add_axes((left / total[0], 1 - size[1] / total[1], size[0] / total[0], size[1] / total[1]))

    scale = Normalize(0.0, float(average.max()) or 1.0)
    axes = place(0.0, (width, height))
    axes.imshow(average, cmap=RAMP, norm=scale, aspect="auto", interpolation="nearest")
    _name_axes(axes, rows, columns, roles, size=min(9.5, cell * 72 * 0.6))
    _color_bar(figure, place(width + 0.25, (bar, min(height, 2.2))), float(scale.vmax or 1.0))
    if tile is not None:
        _draw_tiles(place(width + 0.25 + bar + gap, grid), parts, tile, first)
    axes.set_title(title, loc="left", fontsize=12, color=INK, pad=14)
    save_figure(figure, path)


def _name_axes(
    axes: "Axes", rows: Sequence[str], columns: Sequence[str], roles: tuple[str, str], *, size: float
) -> None:
    """Puts a token at each row and above each column, rotated where it is longer than its column is wide."""
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


def _color_bar(figure: "Figure", axes: "Axes", largest: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    from regard.explanation.figures import RAMP

    bar = figure.colorbar(ScalarMappable(Normalize(0.0, largest), RAMP), cax=axes)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]  # typed as if it were callable
    bar.set_ticks([0.0, largest], labels=["0", f"{largest:.2f}"])
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED, pad=4)


def _tile_size(parts: NDArray[np.float32], height: float) -> tuple[float, float] | None:
    """Returns width and height of a small map in inches; None where there is one part only."""
    num_layers, num_heads, num_rows, num_columns = parts.shape
    if num_layers * num_heads == 1:
        return None
    ratio = min(2.0, max(0.5, num_columns / num_rows))
    tile_height = min(1.1, max(0.45, height / num_layers - _GAP))
    return tile_height * ratio, tile_height


def _draw_tiles(axes: "Axes", parts: NDArray[np.float32], tile: tuple[float, float], first: tuple[int, int]) -> None:
    """Draws all parts in one set of axes, in inches, on one scale."""
    from regard.explanation.figures import RAMP

    num_layers, num_heads = parts.shape[:2]
    step_x, step_y = tile[0] + _GAP, tile[1] + _GAP
    largest = float(parts.max()) or 1.0
    for layer in range(num_layers):
        for head in range(num_heads):
            left, top = head * step_x, layer * step_y
            extent = (left, left + tile[0], top + tile[1], top)
            axes.imshow(parts[layer, head], cmap=RAMP, vmin=0.0, vmax=largest, extent=extent, interpolation="nearest")
    axes.set_aspect("auto")
    axes.set_xlim(0, num_heads * step_x)
    axes.set_ylim(num_layers * step_y, 0)
    axes.xaxis.tick_top()
    axes.set_xticks(
        [head * step_x + tile[0] / 2 for head in range(num_heads)],
        labels=[f"head {first[1] + head + 1}" for head in range(num_heads)],
    )
    axes.set_yticks(
        [layer * step_y + tile[1] / 2 for layer in range(num_layers)],
        labels=[f"layer {first[0] + layer + 1}" for layer in range(num_layers)],
        rotation=90,
        va="center",
    )
    axes.tick_params(length=0, labelsize=7.5, labelcolor=MUTED, pad=4)
    axes.set_xlabel(f"all on one scale, from 0 to {largest:.2f}", fontsize=7.5, color=MUTED, labelpad=6, loc="left")
    axes.spines[:].set_visible(False)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
