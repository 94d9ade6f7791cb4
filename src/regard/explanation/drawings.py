"""Attention maps as pictures: a figure in a file, and a heat map in the terminal."""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from regard.errors import ConfigError
from regard.explanation.maps import AttentionMaps, visible

SHADES = ((34, 38, 47), (47, 63, 125), (79, 112, 208), (157, 187, 247), (244, 248, 255))
"""Red, green and blue from no weight to the largest."""
BLOCKS = " ░▒▓█"
"""The same where there is no colour."""
ROLES = {
    "encoder": ("source token that looks", "source token looked at"),
    "decoder": ("token produced", "token read before"),
    "cross": ("token produced", "source token looked at"),
}
"""For each kind of attention, what a row stands for and what a column."""
TALLEST_COLUMN_NAME = 14


def draw_figure(
    maps: AttentionMaps,
    path: str | os.PathLike[str],
    *,
    kind: str = "cross",
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Write one map as a PNG or SVG picture, by the suffix of `path`.

    What is not named is averaged, and the maps that went into the average stand
    small beside it: layers from top to bottom, heads from left to right.
    """
    path = Path(path)
    if path.suffix.lower() not in {".png", ".svg"}:
        raise ConfigError(f"the name of a figure must end in .png or .svg, got {path.name!r}")
    parts = maps.select(kind, layer, head)
    # Imported here, since matplotlib takes longer to load than a map takes to print.
    from regard.explanation.figures import compose, save

    figure = compose(
        parts,
        rows=[visible(token) for token in maps.rows(kind)],
        columns=[visible(token) for token in maps.columns(kind)],
        roles=ROLES[kind],
        title=maps.describe(kind, layer, head),
        corner=(layer or 0, head or 0),
    )
    save(figure, path)


def draw_terminal(
    maps: AttentionMaps,
    *,
    kind: str = "cross",
    layer: int | None = None,
    head: int | None = None,
    width: int | None = None,
) -> "TerminalMap":
    """One map for a rich console; what is not named is averaged.

    A map too wide for `width` (the console's own, where it is left out) goes on
    in a second band below. Without colours the weights are blocks of five shades.
    """
    return TerminalMap(
        weights=maps.average(kind, layer, head),
        rows=tuple(visible(token) for token in maps.rows(kind)),
        columns=tuple(visible(token) for token in maps.columns(kind)),
        roles=ROLES[kind],
        title=maps.describe(kind, layer, head),
        width=width,
    )


@dataclass(frozen=True, eq=False)
class TerminalMap:
    """A heat map that a rich console can print."""

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
            for line in _written_downwards(names[start : start + band], cell):
                yield Text(" " * margin + line, no_wrap=True)
            for token, weights in zip(self.rows, self.weights[:, start : start + band], strict=True):
                line = Text(_fitted(token, margin - 1) + " ", no_wrap=True)
                for weight in weights:
                    line.append_text(_shade(float(weight) / peak, cell, is_colored=is_colored))
                yield line
        last = max(4, min(15, width - margin - 8))
        legend = [_shade(step / last, 1, is_colored=is_colored) for step in range(last + 1)]
        yield Text()
        yield Text.assemble(" " * margin, "0 ", *legend, f" {peak:.2f}", no_wrap=True)


def _stack(token: str) -> list[str]:
    """The signs of `token`, each with the marks that sit on it."""
    signs: list[str] = []
    for character in token:
        if signs and (cell_len(character) == 0 or unicodedata.category(character).startswith("M")):
            signs[-1] += character
        else:
            signs.append(character)
    if len(signs) > TALLEST_COLUMN_NAME:
        signs[TALLEST_COLUMN_NAME - 1 :] = ["…"]
    return signs or [" "]


def _written_downwards(names: Sequence[Sequence[str]], cell: int) -> Iterator[str]:
    """Lines in which each name runs from top to bottom over its own column, `cell` wide, and ends on the map."""
    height = max(map(len, names))
    for depth in range(-height, 0):
        signs = (name[depth] if len(name) >= -depth else "" for name in names)
        yield "".join(sign + " " * (cell - cell_len(sign)) for sign in signs)


def _fitted(token: str, width: int) -> str:
    """`token` at the right end of `width` cells, cut where it is longer."""
    excess = cell_len(token) - width
    return " " * -excess + token if excess <= 0 else set_cell_size(token, width - 1) + "…"


def _shade(weight: float, width: int, *, is_colored: bool) -> Text:
    """One cell for a weight between 0 and 1."""
    if not is_colored:
        return Text(BLOCKS[round(weight * (len(BLOCKS) - 1))] * width)
    return Text(" " * width, style=Style(bgcolor=Color.from_triplet(mixed(weight))))


def mixed(weight: float) -> ColorTriplet:
    """The shade for a weight between 0 and 1."""
    place = weight * (len(SHADES) - 1)
    low, high = list(pairwise(SHADES))[min(int(place), len(SHADES) - 2)]
    part = place - min(int(place), len(SHADES) - 2)
    return ColorTriplet(*(round(a + (b - a) * part) for a, b in zip(low, high, strict=True)))
