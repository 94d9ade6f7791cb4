"""Sentences of SemEval's XML, with what is said about each aspect.

Pontiki et al., "SemEval-2014 Task 4: Aspect Based Sentiment Analysis" (2014).
https://aclanthology.org/S14-2004

    <sentences>
      <sentence id="1">
        <text>Good soup, rude waiter.</text>
        <aspectTerms><aspectTerm term="soup" polarity="positive" from="5" to="9"/></aspectTerms>
        <aspectCategories><aspectCategory category="food" polarity="positive"/></aspectCategories>
      </sentence>
    </sentences>

An aspect is one of a few categories, or a term of the sentence itself. A file is
read in constant memory, and none that declares a document type is read at all:
entities that expand into one another could fill any memory.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from regard.data.files import read_text
from regard.data.records import Record
from regard.errors import DataError

COLUMNS = ("text", "aspect", "label")
ASPECTS = {"semeval": ("aspectCategory", "category"), "semeval-terms": ("aspectTerm", "term")}
"""For each format the element that tells an aspect, and which of its attributes names it."""

_ROOT = "sentences"
_BLOCK = 1 << 16


def read_semeval(path: Path, *, format: str, picks: Sequence[int]) -> Generator[Record]:
    """A row for each aspect of each sentence; `picks` are places in `COLUMNS`."""
    reader = _Reader(path, format)
    with closing(read_text(path, block_length=_BLOCK)) as blocks:
        for block in blocks:
            reader.feed(block)
            yield from reader.take(picks)
    reader.feed("", is_last=True)
    yield from reader.take(picks)


def require_aspects(path: Path, format: str) -> None:
    """Refuse a file without a single aspect of this format."""
    with closing(read_semeval(path, format=format, picks=range(len(COLUMNS)))) as records:
        if next(records, None) is not None:
            return
    element, others = ASPECTS[format][0], [name for name in ASPECTS if name != format]
    raise DataError(f"{path.name} has no {element} in any sentence; data.format={others[0]} reads the other kind")


class _Reader:
    """Takes XML piece by piece, and keeps the rows that are whole."""

    def __init__(self, path: Path, format: str) -> None:
        self._path, (self._element, self._name) = path, ASPECTS[format]
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add
        self._is_begun = self._is_text = False
        self._text = ""
        self._aspects: list[tuple[int, str | None, str | None]] = []
        self._rows: list[tuple[int, tuple[str, ...], str]] = []

    def feed(self, block: str, *, is_last: bool = False) -> None:
        try:
            self._parser.Parse(block, is_last)
        except expat.ExpatError as error:
            raise DataError(f"{self._path.name} is not XML: {error}") from None

    def take(self, picks: Sequence[int]) -> Iterator[Record]:
        """The rows since the last time."""
        rows, self._rows = self._rows, []
        for line, values, fault in rows:
            yield line, tuple(values[pick] for pick in picks) if values else (), fault

    def _start(self, element: str, attributes: Mapping[str, str]) -> None:
        if not self._is_begun and element != _ROOT:
            raise DataError(
                f"{self._path.name} is not a SemEval file: it begins with <{element}> where <{_ROOT}> should stand"
            )
        self._is_begun = True
        if element == "sentence":
            self._text, self._aspects = "", []
        elif element == "text":
            self._is_text = True
        elif element == self._element:
            line = self._parser.CurrentLineNumber
            self._aspects.append((line, attributes.get(self._name), attributes.get("polarity")))

    def _end(self, element: str) -> None:
        if element == "text":
            self._is_text = False
        elif element == "sentence":
            self._rows += [self._row(*aspect) for aspect in self._aspects]

    def _row(self, line: int, aspect: str | None, polarity: str | None) -> Record:
        if aspect is None or polarity is None:
            return line, (), f"no {self._name if aspect is None else 'polarity'}"
        return line, (" ".join(self._text.split()), aspect, polarity), ""

    def _add(self, text: str) -> None:
        if self._is_text:
            self._text += text

    def _refuse_doctype(self, *_: object) -> NoReturn:
        raise DataError(f"{self._path.name} declares a document type, whose entities could expand without end")
