"""SemEval's XML: sentences with the sentiment about each of their aspects.

Pontiki et al., "SemEval-2014 Task 4: Aspect Based Sentiment Analysis" (2014).
https://aclanthology.org/S14-2004

    <sentences>
      <sentence id="1">
        <text>Good soup, rude waiter.</text>
        <aspectTerms><aspectTerm term="soup" polarity="positive" from="5" to="9"/></aspectTerms>
        <aspectCategories><aspectCategory category="food" polarity="positive"/></aspectCategories>
      </sentence>
    </sentences>

An aspect is one of a few categories, or a term of the sentence itself. A file is read in constant memory. A file that
declares a document type is rejected: its entities could expand without limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from regard.data.formats.files import iter_blocks
from regard.data.formats.layouts import TABLE_FORMATS, Layout, ReadOptions, Record
from regard.errors import DataError

_COLUMNS = ("text", "aspect", "label")
_ELEMENTS = {"semeval": ("aspectCategory", "category"), "semeval-terms": ("aspectTerm", "term")}
"""For each format the element of an aspect, and the attribute that names it."""
_ROOT = "sentences"
_BLOCK = 1 << 16


def semeval_layout(path: Path, options: ReadOptions) -> Layout:
    """The layout of a file with a row for each aspect of each sentence; it must have at least one aspect."""
    format = options.format or "semeval"
    read = partial(_read, path, format, options.encoding)
    if next(read(range(len(_COLUMNS))), None) is None:
        element, other = _ELEMENTS[format][0], next(name for name in _ELEMENTS if name != format)
        raise DataError(f"{path.name} has no {element} in any sentence; data.format={other} reads the other kind")
    return Layout(format=format, label=TABLE_FORMATS[format], names=_COLUMNS, read=read)


def _read(path: Path, format: str, encoding: str | None, picks: Sequence[int]) -> Iterator[Record]:
    parser = _Parser(path, format)
    with closing(iter_blocks(path, block_length=_BLOCK, encoding=encoding)) as blocks:
        for block in blocks:
            parser.feed(block)
            yield from parser.take(picks)
    parser.feed("", is_last=True)
    yield from parser.take(picks)


class _Parser:
    """Parses XML block by block and collects complete rows."""

    def __init__(self, path: Path, format: str) -> None:
        self._path, (self._element, self._name) = path, _ELEMENTS[format]
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._reject_doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add
        self._has_root = self._is_text = False
        self._text = ""
        self._aspects: list[tuple[int, str | None, str | None]] = []
        self._rows: list[Record] = []

    def feed(self, block: str, *, is_last: bool = False) -> None:
        try:
            self._parser.Parse(block, is_last)
        except expat.ExpatError as error:
            raise DataError(f"{self._path.name} is not XML: {error}") from None

    def take(self, picks: Sequence[int]) -> Iterator[Record]:
        """The rows completed since the last call."""
        rows, self._rows = self._rows, []
        for line, values, fault in rows:
            yield line, tuple(values[pick] for pick in picks) if values else (), fault

    def _start(self, element: str, attributes: Mapping[str, str]) -> None:
        if not self._has_root and element != _ROOT:
            raise DataError(
                f"{self._path.name} is not a SemEval file: its first element must be <{_ROOT}>, got <{element}>"
            )
        self._has_root = True
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

    def _reject_doctype(self, *_: object) -> NoReturn:
        raise DataError(f"{self._path.name} declares a document type, whose entities could expand without limit")
