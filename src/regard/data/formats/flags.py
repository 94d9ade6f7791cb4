"""Tables with a column of 0 and 1 for each label that a row may have, as of the labels that a row has."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_column
from regard.data.formats.tables import Table

_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}


def join_flags(table: Table, labels: Sequence[str], separator: str) -> Table:
    """The table with one column of labels instead of its last ones, which are 1 or true in the rows that have them.

    Labels are separated by `separator`, which is all that a row without labels has. A row with another value than 0 and
    1 is invalid.
    """
    first = len(table.roles) - len(labels)
    return replace(
        table,
        roles=(*table.roles[:first], "label"),
        columns=(*table.columns[:first], separator.join(labels)),
        read=partial(_read, table.read, first, tuple(labels), separator),
    )


def _read(read: Callable[[], Iterator[Record]], first: int, labels: Sequence[str], separator: str) -> Iterator[Record]:
    for line, values, fault in read():
        if fault:
            yield line, (), fault
            continue
        last = first + len(labels)
        flags = [_FLAGS.get(value.strip().lower()) for value in values[first:last]]
        wrong = next((label for label, flag in zip(labels, flags, strict=True) if flag is None), None)
        if wrong is not None:
            yield line, (), f"neither 0 nor 1 in {format_column(wrong)}"
            continue
        chosen = [label for label, flag in zip(labels, flags, strict=True) if flag]
        yield line, (*values[:first], separator.join(chosen) or separator, *values[last:]), ""
