"""A text with each word shaded by its weight, once for each aspect of the text that was predicted."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from regard.explanation.colors import INK, MUTED, SHADES, shade
from regard.explanation.pages import frame, page_html, write_page
from regard.explanation.tokens import visible
from regard.files import check_suffix
from regard.tasks.content import Attribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLE = "Word attributions"
_FAINT, _MARKED = 0.05, 0.5
"""Words below this share of the peak are not shaded; without colors, words above this share are marked."""
_WIDTH, _MARGIN = 8.0, 0.3
"""Width and margin of the figure, in inches, as all lengths below."""
_LINE, _HEAD, _BETWEEN = 0.34, 0.36, 0.28
_FONT_SIZE = 13.0
_LIGHT_TEXT = 0.58
"""Words above this share of the peak are printed in white."""


@dataclass(frozen=True)
class Highlights:
    """A text and the attributions of its aspects."""

    text: str
    attributions: Sequence[Attribution]

    def pieces(self, attribution: Attribution) -> list[tuple[str, str, float]]:
        """Returns the text in parts: what precedes a word, the word, and its weight.

        Example:
            >>> attribution = Attribution("food", "good", {}, [("Good", 0.75), ("soup", 0.25)])
            >>> Highlights("Good soup", [attribution]).pieces(attribution)
            [('', 'Good', 0.75), (' ', 'soup', 0.25)]
        """
        parts, end = [], 0
        for word, weight in attribution.words:
            start = self.text.index(word, end)
            parts.append((self.text[end:start], word, weight))
            end = start + len(word)
        return parts

    def to_json(self) -> dict[str, Any]:
        """Returns the highlights in the types of JSON."""
        return {
            "text": self.text,
            "attributions": [
                {
                    "aspect": each.aspect,
                    "label": each.label,
                    "target": each.target,
                    "probabilities": dict(each.probabilities),
                    "pieces": self.pieces(each),
                    "peak": each.peak,
                }
                for each in self.attributions
            ],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a page (`.html`) or a figure (`.png`, `.svg`), by the suffix of `path`."""
        path = check_suffix(path, (".html", ".png", ".svg"))
        if path.suffix.lower() == ".html":
            write_highlights_page([self], path)
            return
        # Imported here, since importing matplotlib takes longer than printing a text.
        from regard.explanation.figures import save_figure

        save_figure(_figure(self), path)

    def _repr_html_(self) -> str:
        return frame(page_html("highlights", title=_TITLE, data=[self.to_json()]), height=360)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_colored = console.color_system is not None and not console.no_color
        for number, each in enumerate(self.attributions):
            if number:
                yield Text()
            yield Text.assemble((each.aspect, "bold"), f"  {each.label} {each.probabilities[each.label]:.2f}")
            line = Text()
            for before, word, weight in self.pieces(each):
                line.append("".join(sign if sign == " " else visible(sign) for sign in before))
                share = weight / each.peak
                line.append_text(_shaded(word, share) if is_colored else Text(_marked(word, weight, share)))
            yield line


def write_highlights_page(examples: Sequence[Highlights], path: str | os.PathLike[str]) -> None:
    """Writes several texts as one HTML file."""
    write_page(path, "highlights", title=_TITLE, data=[example.to_json() for example in examples])


def _shaded(word: str, share: float) -> Text:
    if share < _FAINT:  # on a light background the shade of a small weight would be dark
        return Text(word)
    color = shade(share)
    ink = SHADES[0] if sum(color) > 3 * 128 else SHADES[-1]
    return Text(word, style=Style(color=Color.from_rgb(*ink), bgcolor=Color.from_rgb(*color)))


def _marked(word: str, weight: float, share: float) -> str:
    return f"[{word} {weight:.2f}]" if share >= _MARKED else word


def _figure(highlights: Highlights) -> "Figure":
    """Draws the text once for each attribution, under the aspect and its prediction."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    from regard.explanation.figures import RAMP

    ruler = _Ruler(highlights.text)
    blocks = [(each, list(_placed(highlights, each, ruler))) for each in highlights.attributions]
    heights = [_HEAD + _LINE * (1 + max((word[1] for word in words), default=0)) for _, words in blocks]
    height = 2 * _MARGIN + sum(heights) + _BETWEEN * (len(heights) - 1)
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0.0, _WIDTH)
    axes.set_ylim(height, 0.0)
    axes.axis("off")
    top = _MARGIN
    for (each, words), block_height in zip(blocks, heights, strict=True):
        axes.text(_MARGIN, top, each.aspect, fontsize=10, color=INK, weight="bold", va="top")
        predicted = f"{each.label} {each.probabilities[each.label]:.2f}"
        axes.text(_WIDTH - _MARGIN, top, predicted, fontsize=10, color=MUTED, va="top", ha="right")
        for left, line, word, width, share in words:
            middle = top + _HEAD + _LINE * (line + 0.5)
            box = FancyBboxPatch(
                (left, middle - 0.13), width, 0.26, boxstyle="round,pad=0.0,rounding_size=0.05", linewidth=0,
                facecolor=RAMP(share) if share > 0.02 else "white",
            )  # fmt: skip
            axes.add_patch(box)
            ink = "white" if share > _LIGHT_TEXT else INK
            axes.text(left + width / 2, middle, word, fontsize=_FONT_SIZE, color=ink, va="center_baseline", ha="center")
        top += block_height + _BETWEEN
    return figure


def _placed(
    highlights: Highlights, attribution: Attribution, ruler: "_Ruler"
) -> Iterator[tuple[float, int, str, float, float]]:
    """Yields for each word where it begins, on which line, its text, its width, and its share of the peak."""
    left, line = _MARGIN, 0
    for before, word, weight in highlights.pieces(attribution):
        shown = visible(word)
        width = ruler.width(shown) + 0.04
        left += 0.05 if before else 0.0
        if left + width > _WIDTH - _MARGIN and left > _MARGIN:
            left, line = _MARGIN, line + 1
        yield left, line, shown, width, weight / attribution.peak
        left += width


class _Ruler:
    """Measures words in the fonts in which they are drawn."""

    def __init__(self, text: str) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.text import Text as Label

        from regard.explanation.figures import fonts_for

        figure = Figure(dpi=200)
        self._renderer = FigureCanvasAgg(figure).get_renderer()
        self._label = Label(
            0, 0, "", figure=figure, fontsize=_FONT_SIZE, fontfamily=fonts_for([text]), parse_math=False
        )

    def width(self, word: str) -> float:
        self._label.set_text(word)
        return self._label.get_window_extent(self._renderer).width / 200
