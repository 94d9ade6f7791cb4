"""The figure of a text whose words are shaded by their weights: a block of lines for each aspect."""

from collections.abc import Iterator

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text

from regard.explanation.figures import INK, MUTED, RAMP
from regard.explanation.fonts import fonts_for
from regard.explanation.highlights import Highlights, Judgement
from regard.explanation.maps import visible

_WIDTH, _MARGIN = 8.0, 0.3
"""In inches, as all lengths here."""
_LINE, _HEAD, _BETWEEN = 0.34, 0.36, 0.28
_SIZE = 13.0
"""Of the letters, in points."""
_DARK = 0.58
"""From this share of the peak on, letters are white."""

Placed = tuple[float, int, str, float, float]
"""A word: where it begins, on which line, what it is, how wide, and its share of the peak."""


def compose_highlights(highlights: Highlights) -> Figure:
    """Lay out the text once for each judgement, under the aspect and what was said about it."""
    ruler = _Ruler(highlights.text)
    blocks = [(each, list(_placed(highlights, each, ruler))) for each in highlights.judgements]
    heights = [_HEAD + _LINE * (1 + max((word[1] for word in words), default=0)) for _, words in blocks]
    height = 2 * _MARGIN + sum(heights) + _BETWEEN * (len(heights) - 1)
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0.0, _WIDTH)
    axes.set_ylim(height, 0.0)
    axes.axis("off")
    top = _MARGIN
    for (judgement, words), block_height in zip(blocks, heights, strict=True):
        axes.text(_MARGIN, top, judgement.aspect, fontsize=10, color=INK, weight="bold", va="top")
        said = f"{judgement.label} {judgement.probabilities[judgement.label]:.2f}"
        axes.text(_WIDTH - _MARGIN, top, said, fontsize=10, color=MUTED, va="top", ha="right")
        for left, line, word, width, share in words:
            middle = top + _HEAD + _LINE * (line + 0.5)
            box = FancyBboxPatch(
                (left, middle - 0.13), width, 0.26, boxstyle="round,pad=0.0,rounding_size=0.05", linewidth=0,
                facecolor=RAMP(share) if share > 0.02 else "white",
            )  # fmt: skip
            axes.add_patch(box)
            ink = "white" if share > _DARK else INK
            axes.text(left + width / 2, middle, word, fontsize=_SIZE, color=ink, va="center_baseline", ha="center")
        top += block_height + _BETWEEN
    return figure


def _placed(highlights: Highlights, judgement: Judgement, ruler: "_Ruler") -> Iterator[Placed]:
    """Where each word stands; a line that is full goes on in the next."""
    left, line = _MARGIN, 0
    for before, word, weight in highlights.pieces(judgement):
        shown = visible(word)
        width = ruler.width(shown) + 0.04
        left += 0.05 if before else 0.0
        if left + width > _WIDTH - _MARGIN and left > _MARGIN:
            left, line = _MARGIN, line + 1
        yield left, line, shown, width, weight / judgement.peak
        left += width


class _Ruler:
    """Measures words in the fonts that they will be drawn in."""

    def __init__(self, text: str) -> None:
        figure = Figure(dpi=200)
        self._renderer = FigureCanvasAgg(figure).get_renderer()
        self._text = Text(0, 0, "", figure=figure, fontsize=_SIZE, fontfamily=fonts_for([text]), parse_math=False)

    def width(self, word: str) -> float:
        self._text.set_text(word)
        return self._text.get_window_extent(self._renderer).width / 200
