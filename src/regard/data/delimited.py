"""Splitting lines into cells: by tabs, or as CSV.

CSV is that of RFC 4180: a cell that begins with a quotation mark runs to the next
lone one, whatever delimiters and line ends lie between, and two marks in it stand
for one. A mark inside a cell that does not begin with one is a character like any
other. The standard library reads rows of one line, being fast; it cannot read the
rest, for it refuses cells above a length that is set for the whole process, and does
not say where a row begins or where a quote was left open.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from regard.data.columns import count_of
from regard.errors import DataError

Cells = tuple[int, list[str], str]
"""The line a row starts on, its cells, and what is wrong with it, if anything."""

DELIMITERS = (",", ";", "|")
"""What may stand between the cells of CSV, likeliest first."""

_TO_CLOSING_QUOTE = re.compile(r'[^"]*(?:""[^"]*)*')
_LONGEST_CELL = 1 << 24


def split_tsv(lines: Iterator[str]) -> Iterator[Cells]:
    """The cells between tabs, without any quoting."""
    return ((number, line.split("\t"), "") for number, line in enumerate(lines, 1))


def split_csv(lines: Iterator[str], delimiter: str, *, where: str) -> Iterator[Cells]:
    """The cells of each row, which may span several lines.

    Args:
        lines: Lines with their `\\r`, which may be part of a quoted cell.
        delimiter: One character.
        where: Name of the source, for the error.

    Raises:
        DataError: If a quotation mark is never closed: every row after it is lost.
    """
    number = 0
    for line in lines:
        number += 1
        if '"' not in line:
            yield number, line.removesuffix("\r").split(delimiter), ""
            continue
        try:
            yield number, next(csv.reader((line,), delimiter=delimiter, strict=True)), ""
        except csv.Error:  # a row of several lines, a very long one, or a broken one
            cells, fault, num_more = _split_quoted(line, lines, delimiter, where=f"line {number:,} of {where}")
            yield number, cells, fault
            number += num_more


def _split_quoted(line: str, lines: Iterator[str], delimiter: str, *, where: str) -> tuple[list[str], str, int]:
    """The cells of a row with quotation marks, what is wrong with it, and how many more lines it took."""
    cells: list[str] = []
    fault = ""
    num_more = 0
    position = 0
    while position <= len(line):  # a delimiter that ends the line is followed by an empty cell
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
    """The cell, the line it closes on, the position after its closing quote, and how many lines that is on."""
    pieces: list[str] = []
    length = 0
    position = start + 1
    while (end := _closing_quote(line, position)) is None:
        pieces.append(line[position:])
        length += len(pieces[-1])
        following = next(lines, None)
        if following is None or length > _LONGEST_CELL:
            lost = count_of(len(pieces) - 1 + sum(1 for _ in lines), "line")
            raise DataError(f"the quote opened in {where} is not closed, so the {lost} after it cannot be told apart")
        line, position = following, 0
    pieces.append(line[position:end])
    return "\n".join(pieces).replace('""', '"'), line, end + 1, len(pieces) - 1


def _closing_quote(line: str, start: int) -> int | None:
    match = _TO_CLOSING_QUOTE.match(line, start)
    assert match is not None
    return match.end() if match.end() < len(line) else None


def sample_csv(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """The whole rows among the first lines of a file; a row that they cut through is left out."""
    rows: list[list[str]] = []
    with suppress(DataError):  # the quote is closed further down, or else reading the file will say so
        rows.extend(cells for _, cells, _ in split_csv(iter(lines), delimiter, where="the sample"))
    return [cells for cells in rows if not is_blank(cells)]


def guess_delimiter(lines: Sequence[str]) -> tuple[str, float] | None:
    """The delimiter that gives most rows one width, two or more, and the share of rows that have it.

    The first row must have that width, too: in a header there are no stray commas.

    >>> guess_delimiter(["source;target", "Hallo, Welt;Hello, world", "Ja, ja;Yes; yes"])
    (';', 0.6666666666666666)
    """
    best = None
    for delimiter in DELIMITERS:
        widths = [len(cells) for cells in sample_csv(lines, delimiter)]
        width, count = Counter(widths).most_common(1)[0] if widths else (0, 0)
        if width > 1 and width == widths[0] and (best is None or count / len(widths) > best[1]):
            best = delimiter, count / len(widths)
    return best


def is_blank(cells: Sequence[str]) -> bool:
    """Whether every cell is empty or white space."""
    return (not cells[0] or cells[0].isspace()) and not "".join(cells).strip()
