"""What a reader of a table format is given, and what it returns."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Record = tuple[int, tuple[str, ...], str]
"""Line, values, fault. A valid row has an empty fault. The fault of an invalid one, which has no values, completes the
sentence "the row has": `1 column instead of 2`. If a table has a key, it follows the values."""

BLANK = "blank"
"""The fault of a row without any content, which is skipped and not counted."""

TABLE_FORMATS = {
    "tsv": "TSV",
    "csv": "CSV",
    "jsonl": "JSON lines",
    "parquet": "Parquet",
    "xlsx": "Excel",
    "fasta": "FASTA",
    "fasttext": "fastText",
    "aligned": "aligned lines",
    "lines": "lines",
    "folders": "folders of texts",
    "semeval": "SemEval's XML, by category",
    "semeval-terms": "SemEval's XML, by term",
}
"""The formats of tables, and their names in messages."""

FORMAT_OF_SUFFIX = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    **dict.fromkeys((".fasta", ".fa", ".faa", ".fna"), "fasta"),
    ".xml": "semeval",
}
"""The format of a table by the suffix of its file, before that of a compression."""

FORMATS_OF_CELLS = ("tsv", "csv", "xlsx")
"""Formats of rows and columns without names, whose first row may be a header."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What the caller specifies about a table; None for what is inferred from the file."""

    roles: tuple[str, ...] = ()
    """The values that each row must have, such as source and target."""
    columns: tuple[str, ...] | None = None
    """For each role its column, by name or by position from 1."""
    format: str | None = None
    encoding: str | None = None
    header: bool | None = None
    key: str | None = None
    """A column that is read in addition to those of the roles."""

    @property
    def requested(self) -> tuple[str, ...]:
        """All columns that are specified."""
        return (*(self.columns or ()), *(() if self.key is None else (self.key,)))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the rows of a file are read: its format and its columns."""

    format: str
    label: str
    """The format in a message, such as `TSV with a header`."""
    names: tuple[str, ...]
    """The names of all columns of text, or their positions from 1 if they have no names."""
    has_names: bool = True
    lists: tuple[str, ...] = ()
    """The names of fields whose values are lists."""
    index: tuple[int, ...] = ()
    """The columns that only number the rows."""
    numeric: frozenset[int] = frozenset()
    """The columns whose cells are numbers."""
    delimiter: str | None = None
    """For CSV: the character between cells."""
    is_inferred: bool = False
    """Whether the format or the header was inferred from the content."""
    read: Callable[[Sequence[int]], Iterator[Record]]
    """Read the given columns, by index into `names`, from the beginning of the file. It can be pickled."""


def positions(width: int) -> tuple[str, ...]:
    """The positions of columns, counted from 1, which are their names if they have no others.

    >>> positions(3)
    ('1', '2', '3')
    """
    return tuple(str(position) for position in range(1, width + 1))
