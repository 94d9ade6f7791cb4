"""TSV and CSV.

In TSV, cells are separated by tabs and a quotation mark is an ordinary character. CSV is that of RFC 4180: a cell that
begins with a quotation mark extends to the next single one, including any delimiters and line ends, and two marks in
it denote one. A mark inside a cell that does not begin with one is an ordinary character. The `csv` module of the
standard library reads rows of one line, since it is fast; it cannot read the others, because it rejects cells above a
length that is set for the whole process, and reports neither where a row begins nor where a quote was left open.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path

from regard.data.formats.columns import find_names, index_columns, number_columns
from regard.data.formats.files import iter_lines, sample_lines
from regard.data.formats.layouts import BLANK, TABLE_FORMATS, Layout, ReadOptions, Record
from regard.data.formats.messages import format_count
from regard.errors import DataError

DELIMITERS = (",", ";", "|", "::")
"""Delimiters of CSV, likeliest first. Cells between double colons, as in MovieLens's `.dat`, are not quoted."""

_Cells = tuple[int, list[str], str]
"""The first line of a row, its cells, and its fault, if any."""

_TO_CLOSING_QUOTE = re.compile(r'[^"]*(?:""[^"]*)*')
_MAX_CELL_LENGTH = 1 << 24
_SAMPLE_ROWS, _SAMPLE_LINES = 100, 10_000


def delimited_layout(path: Path, options: ReadOptions) -> Layout:
    """The layout of a TSV or CSV file; delimiter and header are inferred unless they are given.

    A first row is a header if it contains one of the requested column names, or by `looks_like_header`. All rows must
    have as many columns as the header, or, without one, as most of the first hundred rows.
    """
    format, encoding = options.format or "csv", options.encoding
    delimiter = "\t"
    if format == "csv":
        lines = sample_lines(path, _SAMPLE_ROWS, keep_carriage_returns=True, encoding=encoding)
        delimiter = (infer_delimiter(lines) or (",", 0.0))[0]
    rows = _first_rows(path, delimiter, encoding)
    found = find_names(rows, options, where=path.name)
    width = len(found.names)
    full = [row for row in rows[found.has_header :] if len(row) == width]
    separated = f" separated by {delimiter!r}" if delimiter in DELIMITERS[1:] else ""
    return Layout(
        format=format,
        label=f"{TABLE_FORMATS[format]}{separated} {'with' if found.has_header else 'without'} a header",
        names=found.names,
        has_names=found.has_header,
        delimiter=delimiter if format == "csv" else None,
        index=index_columns(found, full),
        numeric=number_columns(list(zip(*full, strict=True))),
        is_inferred=found.is_inferred,
        read=partial(_read, path, encoding, delimiter, width, found.has_header),
    )


def infer_delimiter(lines: Sequence[str]) -> tuple[str, float] | None:
    """The delimiter with which most rows have one width of two or more, and the share of rows that have it.

    The first row must have that width, too: a header has no stray commas.

    >>> infer_delimiter(["source;target", "Hallo, Welt;Hello, world", "Ja, ja;Yes; yes"])
    (';', 0.6666666666666666)
    """
    best = None
    for delimiter in DELIMITERS:
        rows: list[list[str]] = []
        with suppress(DataError):  # the sample cuts a row, or the quote is never closed, which reading will report
            rows.extend(cells for _, cells, _ in split_csv(iter(lines), delimiter, where="the sample"))
        widths = [len(cells) for cells in rows if not is_blank(cells)]
        width, count = Counter(widths).most_common(1)[0] if widths else (0, 0)
        if width > 1 and width == widths[0] and (best is None or count / len(widths) > best[1]):
            best = delimiter, count / len(widths)
    return best


def is_blank(cells: Sequence[str]) -> bool:
    """Whether every cell is empty or white space."""
    return (not cells[0] or cells[0].isspace()) and not "".join(cells).strip()


def _first_rows(path: Path, delimiter: str, encoding: str | None) -> list[list[str]]:
    with closing(iter_lines(path, keep_carriage_returns=delimiter != "\t", encoding=encoding)) as lines:
        rows = islice(_split(lines, delimiter, where=path.name), _SAMPLE_LINES)
        sample = list(islice((cells for _, cells, _ in rows if not is_blank(cells)), _SAMPLE_ROWS))
    if not sample:
        raise DataError(f"{path} has nothing but blank lines")
    return sample


def _read(
    path: Path, encoding: str | None, delimiter: str, width: int, has_header: bool, picks: Sequence[int]
) -> Iterator[Record]:
    # itemgetter with one index returns a cell rather than a tuple, so a slice is used.
    pick: Callable[[list[str]], Sequence[str]] = (
        itemgetter(*picks) if len(picks) > 1 else itemgetter(slice(picks[0], picks[0] + 1))
    )
    lines = iter_lines(path, keep_carriage_returns=delimiter != "\t", encoding=encoding)
    is_header = has_header
    for number, cells, fault in _split(lines, delimiter, where=path.name):
        if is_blank(cells):
            yield number, (), BLANK
        elif is_header:
            is_header = False
        elif fault:
            yield number, (), fault
        elif len(cells) != width:
            yield number, (), f"{format_count(len(cells), 'column')} instead of {width}"
        else:
            yield number, tuple(pick(cells)), ""


def _split(lines: Iterator[str], delimiter: str, *, where: str) -> Iterator[_Cells]:
    if delimiter == "\t":
        return ((number, line.split("\t"), "") for number, line in enumerate(lines, 1))
    return split_csv(lines, delimiter, where=where)


def split_csv(lines: Iterator[str], delimiter: str, *, where: str) -> Iterator[_Cells]:
    r"""The cells of each row of CSV, which may span several lines.

    Args:
        lines: Lines with their `\r`, which may be part of a quoted cell.
        delimiter: One of `DELIMITERS`, or another character.
        where: Name of the source, for the error.

    Raises:
        DataError: If a quotation mark is never closed, so that the rows after it cannot be separated.
    """
    number = 0
    for line in lines:
        number += 1
        if '"' not in line or len(delimiter) > 1:
            yield number, line.removesuffix("\r").split(delimiter), ""
            continue
        try:
            yield number, next(csv.reader((line,), delimiter=delimiter, strict=True)), ""
        except csv.Error:  # a row of several lines, a very long one, or an invalid one
            cells, fault, num_more = _split_quoted(line, lines, delimiter, where=f"line {number:,} of {where}")
            yield number, cells, fault
            number += num_more


def _split_quoted(line: str, lines: Iterator[str], delimiter: str, *, where: str) -> tuple[list[str], str, int]:
    """The cells of a row with quotation marks, its fault, and the number of further lines it takes."""
    cells: list[str] = []
    fault = ""
    num_more = 0
    position = 0
    while position <= len(line):  # a delimiter at the end of the line is followed by an empty cell
        if line.startswith('"', position):
            cell, line, position, num_lines = _quoted_cell(line, position, lines, where=where)
            num_more += num_lines
            end = _end_of_cell(line, position, delimiter)
            if position < end:
                fault = "text after a closing quote"
        else:
            end = _end_of_cell(line, position, delimiter)
            cell = line[position:end]
        cells.append(cell)
        position = end + 1 if line.startswith(delimiter, end) else len(line) + 1
    return cells, fault, num_more


def _end_of_cell(line: str, start: int, delimiter: str) -> int:
    end = line.find(delimiter, start)
    return end if end >= 0 else len(line) - line.endswith("\r", start)


def _quoted_cell(line: str, start: int, lines: Iterator[str], *, where: str) -> tuple[str, str, int, int]:
    """The cell, the line on which it ends, the position after its closing quote, and the number of further lines."""
    pieces: list[str] = []
    length = 0
    position = start + 1
    while (end := _closing_quote(line, position)) is None:
        pieces.append(line[position:])
        length += len(pieces[-1])
        following = next(lines, None)
        if following is None or length > _MAX_CELL_LENGTH:
            num_lost = len(pieces) - 1 + sum(1 for _ in lines)
            lost = f", so the {format_count(num_lost, 'line')} after it cannot be separated" if num_lost else ""
            raise DataError(f"the quote opened in {where} is not closed{lost}")
        line, position = following, 0
    pieces.append(line[position:end])
    return "\n".join(pieces).replace('""', '"'), line, end + 1, len(pieces) - 1


def _closing_quote(line: str, start: int) -> int | None:
    match = _TO_CLOSING_QUOTE.match(line, start)
    assert match is not None
    return match.end() if match.end() < len(line) else None
