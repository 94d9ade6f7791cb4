r"""Plain text: documents of any length, read a piece at a time.

A document is a whole file, kept verbatim including its line ends, or each of its lines, or each row of a table. It is
read from the file each time, so that a text of any size takes the same memory.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data.formats.cells import is_number
from regard.data.formats.files import AnyPath, cut_blocks, iter_blocks
from regard.data.formats.messages import format_count
from regard.data.formats.tables import Table
from regard.errors import DataError

TEXT_ROLES = ("text",)
"""The value that each row of a table of documents must have."""

DocumentForm = Literal["file", "lines", "rows"]
"""What a document is: a whole file, a line of a file, or a row of a table."""

_PIECE_LENGTH = 1 << 16
_MAX_NAMES = 3
_SEARCHED = 1 << 16
_FEWEST_WORDS, _MOSTLY = 100, 0.8
"""Of so many words, such a share are numbers in a file of measurements, which may begin with a description."""
_BETWEEN_NUMBERS = re.compile(r"[\s,;:]+")


class Piece(NamedTuple):
    """Part of a document; pieces are concatenated without a separator."""

    text: str
    is_last: bool
    """Whether the document ends here."""


@dataclass(frozen=True)
class TextFile:
    r"""A file as one document, verbatim except that `\r\n` is read as `\n`.

    Pieces end at line ends, unless a line is longer than a piece.
    """

    path: Path
    encoding: str | None = None
    """Unset: detected."""

    def __iter__(self) -> Iterator[Piece]:
        pending = ""
        is_blank = True
        for block in iter_blocks(self.path, block_length=_PIECE_LENGTH, encoding=self.encoding):
            is_blank = is_blank and block.isspace()
            if pending:
                yield Piece(pending, is_last=False)
            pending = block
        if is_blank:
            raise DataError(f"{self.path} has nothing but blank lines")
        yield Piece(pending, is_last=True)


@dataclass(frozen=True)
class Documents:
    """A source of documents that can be read repeatedly, in constant memory.

    Iterating yields the pieces of all documents in order. Errors in a file or in rows of a table are `DataError`s.
    """

    files: tuple[TextFile | Table, ...]
    """In order; a `TextFile` is one document, a `Table` has one in each row."""
    form: DocumentForm

    def __iter__(self) -> Iterator[Piece]:
        for file in self.files:
            yield from read_pieces(file)

    def documents(self) -> Iterator[str]:
        """The whole documents, each of which must fit into memory."""
        return join_pieces(self)

    def entries(self) -> Iterator[tuple[str, str]]:
        """The whole documents, each with the key by which it is split: its text, or a column of its table."""
        for file in self.files:
            if isinstance(file, Table):
                yield from ((row.values[0], row.split_key) for row in file)
            else:
                yield from ((document, document) for document in join_pieces(file))

    @property
    def column(self) -> str | None:
        """The column by which documents are split, if any."""
        return next((table.key for table in self.tables), None)

    @property
    def paths(self) -> tuple[Path, ...]:
        nested = ((file.path,) if isinstance(file, TextFile) else file.paths for file in self.files)
        return tuple(path for paths in nested for path in paths)

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(file for file in self.files if isinstance(file, Table))

    @property
    def name(self) -> str:
        """The text in a sentence."""
        return format_paths(self.paths) or "the table in memory"


def read_pieces(file: TextFile | Table) -> Iterator[Piece]:
    """The pieces of one file, or of the rows of one table."""
    return iter(file) if isinstance(file, TextFile) else cut_documents(row.values[0] for row in file)


def cut_documents(documents: Iterable[str]) -> Iterator[Piece]:
    """Cut documents in memory into pieces, as those in files."""
    for document in documents:
        *blocks, last = cut_blocks(document, block_length=_PIECE_LENGTH)
        for block in blocks:
            yield Piece(block, is_last=False)
        yield Piece(last, is_last=True)


def join_pieces(pieces: Iterable[Piece]) -> Iterator[str]:
    """Join pieces to whole documents.

    >>> list(join_pieces([Piece("a b", False), Piece(" c", True), Piece("d", True)]))
    ['a b c', 'd']
    """
    parts: list[str] = []
    for text, is_last in pieces:
        parts.append(text)
        if is_last:
            yield "".join(parts)
            parts = []


def format_paths(paths: Iterable[Path]) -> str:
    """The names of a few files, or the number of many, for a message."""
    names = [path.name for path in paths]
    return " and ".join(names) if len(names) <= _MAX_NAMES else format_count(len(names), "file")


def has_mostly_numbers(path: AnyPath, encoding: str | None = None) -> bool:
    """Whether most words at the beginning of a text are numbers, as in files of measurements."""
    with closing(iter_blocks(path, block_length=_SEARCHED, encoding=encoding)) as blocks:
        words = _BETWEEN_NUMBERS.split(next(blocks, ""))
    words = [word for word in words if word]
    return len(words) >= _FEWEST_WORDS and sum(map(is_number, words)) >= _MOSTLY * len(words)
