"""Matplotlib figures: fonts for tokens of any script, one style for all axes, and files.

Importing this module imports matplotlib, so callers import it where a figure is drawn.
"""

import io
import re
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib import font_manager, ft2font
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text

from regard.explanation.colors import DARK, GRID, INK, MUTED
from regard.files import write_atomically

RAMP = LinearSegmentedColormap.from_list("regard", ["#f1f2f6", "#c3cff0", "#7d97de", "#3b55bd", "#1a2368"])
"""From weight 0 to the largest weight; the same stops as `--ramp-0` to `--ramp-4` of `style.css`."""
PREFERRED_FONTS = (
    "DejaVu Sans",  # part of matplotlib, so it is always installed
    "Noto Sans",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Thai",
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Arial Unicode MS",
    "Segoe UI",
    "Nirmala UI",
    "Leelawadee UI",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans",
)
"""Sans-serif families that look similar, tried before all other installed ones."""


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG or SVG file, by the suffix of `path`, with fonts for all characters; text stays text in an SVG."""
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    families = fonts_for(text.get_text() for text in texts)
    for text in texts:
        text.set_fontfamily(families)
        text.set_parse_math(False)
    kind = path.suffix[1:].lower()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard"}), warnings.catch_warnings():
        # A character that no installed font covers is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        metadata, drawn = {"Date": None} if kind == "svg" else None, io.BytesIO()
        figure.savefig(drawn, format=kind, dpi=200, bbox_inches="tight", pad_inches=0.25, metadata=metadata)
    write_atomically(path, drawn.getvalue())


def to_svg(figure: Figure) -> str:
    """Returns the figure as SVG without a background, with text as outlines, so that no font has to be installed."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "regard"}):
        figure.savefig(
            buffer, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None}
        )
    return buffer.getvalue()


def to_dark(svg: str) -> str:
    """Returns the drawing in the colors of a dark page."""
    return re.sub("|".join(DARK), lambda color: DARK[color[0]], svg)


def style_axes(
    axes: Axes,
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    grid: Literal["both", "x", "y"] | None = "both",
    has_spines: bool = False,
) -> None:
    """Sets the title, the labels, the grid and the ticks in the style of all figures."""
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=9)
    axes.set_xlabel(xlabel, fontsize=8.5, color=MUTED, loc="left")
    axes.set_ylabel(ylabel, fontsize=8.5, color=MUTED)
    axes.spines[:].set_visible(False)
    if has_spines:
        axes.spines[["left", "bottom"]].set(visible=True, color=GRID)
    axes.grid(visible=False)
    if grid is not None:
        axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=8.5, labelcolor=MUTED, pad=5)


def fonts_for(texts: Iterable[str]) -> list[str]:
    """Returns installed families, most preferred first, that together cover the characters of `texts` if possible.

    Matplotlib draws each character with the first family of the list that has it.
    """
    missing = {ord(character) for text in texts for character in text}
    chosen: list[str] = []
    for family, path in _candidates():
        covered = missing & _characters(path)
        if covered or not chosen:
            chosen.append(family)
            missing -= covered
        if not missing:
            break
    return chosen


@cache
def _candidates() -> tuple[tuple[str, str], ...]:
    """Family and file of each upright font of regular weight: preferred ones, other sans-serif ones, the rest.

    A "last resort" font claims every character and draws a box for each, so it comes last.
    """
    fonts: dict[str, str] = {}
    for entry in font_manager.fontManager.ttflist:
        if entry.style == "normal" and entry.weight in {400, "normal", "regular"}:
            fonts.setdefault(entry.name, entry.fname)
    ranks = {family: rank for rank, family in enumerate(PREFERRED_FONTS)}

    def order(font: tuple[str, str]) -> tuple[bool, int, bool, str]:
        family = font[0]
        return family.startswith("Last Resort"), ranks.get(family, len(ranks)), "Sans" not in family, family

    return tuple(sorted(fonts.items(), key=order))


@cache
def _characters(path: str) -> frozenset[int]:
    try:
        return frozenset(ft2font.FT2Font(path).get_charmap())
    except FileNotFoundError:  # matplotlib caches its list of fonts and does not notice removed ones
        return frozenset()
