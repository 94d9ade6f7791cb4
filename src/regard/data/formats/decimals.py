"""Targets that are numbers: with a decimal point or a decimal comma, the same in the whole file."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

from regard.data.formats.cells import decimal_mark, decimal_marks, is_number, with_decimal_point
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_column
from regard.data.formats.tables import Table

_SAMPLE_ROWS = 1_000
_NAMES = {".": "a decimal point", ",": "a decimal comma"}


def with_numbers(table: Table) -> Table:
    """The table with the numbers of its last role as Python writes them, whatever their decimal mark.

    The mark is that of most of the first rows. A row with the other one, or without a number, is invalid.
    """
    place = len(table.roles) - 1
    sample = islice((values[place] for _, values, fault in table.read() if not fault), _SAMPLE_ROWS)
    mark = decimal_mark(sample)
    column = format_column(table.columns[place])
    inferred = [*table.inferred, f"numbers in {column} have a decimal comma"] if mark == "," else table.inferred
    return replace(table, inferred=inferred, read=partial(_read, table.read, place, mark, column))


def _read(read: Callable[[], Iterator[Record]], place: int, mark: str, column: str) -> Iterator[Record]:
    for line, values, fault in read():
        if not fault and values[place].strip():  # the table reports empty values
            text = values[place]
            marks = decimal_marks(text)
            number = with_decimal_point(text, mark) if mark in marks else text
            if marks and mark not in marks:
                fault = f"{_NAMES[marks]} in {column}, where others have {_NAMES[mark]}"
            elif not is_number(number):
                fault = f"no finite number in {column}"
            values = (*values[:place], number, *values[place + 1 :])
        yield line, () if fault else values, fault
