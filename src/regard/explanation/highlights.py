"""The words that mattered: a text with each word shaded by its weight, once for each aspect that was judged."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from regard.errors import ConfigError
from regard.explanation.drawings import SHADES, mixed
from regard.explanation.maps import visible
from regard.explanation.templates import write_page

_DARK, _BRIGHT = ColorTriplet(*SHADES[0]), ColorTriplet(*SHADES[-1])
_STANDS_OUT = 4.0
_FAINT, _NAMED = 0.05, 0.5
"""Words with less than this share of the peak are not shaded; without colours, those with this are marked."""


@dataclass(frozen=True)
class Judgement:
    """What a model said about one aspect, and by which words."""

    aspect: str
    label: str
    probabilities: Mapping[str, float]
    words: Sequence[tuple[str, float]]
    """In their order, each with its weight; the weights sum to 1 where the whole text was read."""
    wanted: str | None = None
    """What should have been said, where it is known."""

    @property
    def peak(self) -> float:
        """The weight of the darkest shade: the largest, or a few times the mean where no word stands out."""
        weights = [weight for _, weight in self.words]
        return max(*weights, min(1.0, _STANDS_OUT / len(weights))) if weights else 1.0


@dataclass(frozen=True)
class Highlights:
    """A text, and what was said about its aspects."""

    text: str
    judgements: Sequence[Judgement]

    def pieces(self, judgement: Judgement) -> list[tuple[str, str, float]]:
        """The text in parts: what stands before a word, the word, and its weight.

        Example:
            >>> judgement = Judgement("food", "good", {}, [("Good", 0.75), ("soup", 0.25)])
            >>> Highlights("Good soup", [judgement]).pieces(judgement)
            [('', 'Good', 0.75), (' ', 'soup', 0.25)]
        """
        parts, end = [], 0
        for word, weight in judgement.words:
            start = self.text.index(word, end)
            parts.append((self.text[end:start], word, weight))
            end = start + len(word)
        return parts

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "text": self.text,
            "judgements": [
                {
                    "aspect": each.aspect,
                    "label": each.label,
                    "wanted": each.wanted,
                    "probabilities": dict(each.probabilities),
                    "pieces": self.pieces(each),
                    "peak": each.peak,
                }
                for each in self.judgements
            ],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_colored = console.color_system is not None and not console.no_color
        for number, each in enumerate(self.judgements):
            if number:
                yield Text()
            yield Text.assemble((each.aspect, "bold"), f"  {each.label} {each.probabilities[each.label]:.2f}")
            line = Text()
            for before, word, weight in self.pieces(each):
                line.append("".join(sign if sign == " " else visible(sign) for sign in before))
                share = weight / each.peak
                line.append_text(_shaded(word, share) if is_colored else Text(_marked(word, weight, share)))
            yield line


def draw_highlights(highlights: Highlights, path: str | os.PathLike[str]) -> None:
    """Write the text as a page, or as a picture, by the suffix of `path`."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".html":
        write_highlights_page([highlights], path)
    elif suffix in {".png", ".svg"}:
        # Imported here, since matplotlib takes longer to load than a text takes to print.
        from regard.explanation.figures import save
        from regard.explanation.highlights_figure import compose_highlights

        save(compose_highlights(highlights), path)
    else:
        raise ConfigError(f"the name of a drawing must end in .html, .png or .svg, got {path.name!r}")


def write_highlights_page(examples: Sequence[Highlights], path: str | os.PathLike[str]) -> None:
    """Write texts as one HTML file that needs nothing else."""
    write_page(
        path,
        "highlights.html",
        title="Words that mattered",
        data=[example.to_dict() for example in examples],
        styles=["style.css", "highlights.css"],
        scripts=["common.js", "highlights.js", "highlights_start.js"],
    )


def _shaded(word: str, share: float) -> Text:
    if share < _FAINT:  # on a light ground a dark shade would not look like none
        return Text(word)
    shade = mixed(share)
    ink = _DARK if sum(shade) > 3 * 128 else _BRIGHT
    return Text(word, style=Style(color=Color.from_triplet(ink), bgcolor=Color.from_triplet(shade)))


def _marked(word: str, weight: float, share: float) -> str:
    return f"[{word} {weight:.2f}]" if share >= _NAMED else word
