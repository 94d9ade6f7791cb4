"""What rows are split by, where it is not their source: a column that is read beside the others.

Its text is the key of a row. It decides which set the row belongs to, and no task
sees it: neither is it learned from, nor is it stored.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from regard.data.columns import column_name
from regard.data.config import DataConfig
from regard.data.records import Record
from regard.data.tables import Table
from regard.data.times import ROWS, Moment, read_moment
from regard.errors import ConfigError


def key_column(config: DataConfig) -> str | None:
    """The column to be read beside those of the task, if any."""
    column = config.group if config.group is not None else config.order
    return None if column is None or column == ROWS else str(column)


def ordered(table: Table, config: DataConfig) -> Table:
    """The table with moments for keys, where rows are split by time: those of the column, or the lines of the file.

    A row without a moment, or with a date where the first has a number, is a bad row.
    """
    if config.order is None:
        return table
    if config.order == ROWS:
        return replace(table, key=ROWS, read=partial(_with_lines, table.read))
    assert table.key is not None, "a table that was asked for a column has it"
    return replace(table, read=partial(_with_moments, table.read, column_name(table.key)))


def refuse_columns(config: DataConfig, what: str, *, group: str | None = None) -> None:
    """Refuse to split by a column what has none; `group` is the one thing that it can be grouped by."""
    column = key_column(config)
    if column is None or (config.group is not None and config.group == group):
        return
    may = f"data.group may be {group!r} and data.order {ROWS!r}" if group else f"data.order may be {ROWS!r}"
    name = "data.group" if config.group is not None else "data.order"
    raise ConfigError(f"{what} cannot be split by a column: {may}, got {name} = {column!r}")


def _with_lines(read: Callable[[], Iterator[Record]]) -> Iterator[Record]:
    for line, values, fault in read():
        yield line, values if fault else (*values, str(line)), fault


def _with_moments(read: Callable[[], Iterator[Record]], name: str) -> Iterator[Record]:
    first: Moment | None = None
    for line, values, fault in read():
        if not fault and values[-1].strip():  # what is empty, the table tells
            moment = read_moment(values[-1])
            first = first or moment
            if moment is None:
                fault = f"no number and no date as 2024-05-31 in {name}"
            elif first is not None and moment.kind != first.kind:
                fault = f"a {moment.kind} in {name} where the first row has a {first.kind}"
        yield line, () if fault else values, fault
