"""How rows are split according to the settings, and the column that decides it.

Rows are split by source, by group, within labels, by time, or by structure. If a column decides, its text is the key of
a row, read in addition to the texts: it is neither passed to the task nor stored.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from regard.data.formats.cells import Timestamp, parse_timestamp
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_column
from regard.data.formats.tables import Table
from regard.data.settings import DataConfig
from regard.data.splits.by_group import LabelOf, no_label, plan_by_group
from regard.data.splits.by_hash import SplitEntry, SplitPlan, plan_by_source
from regard.data.splits.by_structure import plan_by_structure
from regard.data.splits.by_time import ROW_ORDER, plan_by_time
from regard.errors import ConfigError

STRUCTURES = ("scaffold", "similarity")
"""Values of `data.split` by which rows are split by what their first text describes."""


def plan_split(
    entries: Iterable[SplitEntry],
    config: DataConfig,
    *,
    has_valid: bool,
    has_test: bool,
    column: str | None = None,
    label_of: LabelOf | None = None,
) -> SplitPlan:
    """Count the rows and decide the split, in one pass.

    Args:
        entries: Rows and the key by which each is split.
        config: The split settings.
        has_valid: Whether there are separate validation rows; then nothing is held out.
        has_test: Whether there are separate test rows.
        column: The column by which rows are split, if it is not their source.
        label_of: The label of a row, if each has one.
    """
    settings = split_settings(config)
    if settings is None:
        return plan_by_source(entries, config, has_valid=has_valid, has_test=has_test)
    if has_valid:
        raise ConfigError(
            f"rows are not split if there are separate validation rows, got {settings} and a validation file"
        )
    if config.split in STRUCTURES:
        return plan_by_structure(entries, config, has_test=has_test)
    if config.stratify and label_of is None:
        raise ConfigError("data.stratify is for rows with one label each, and these rows have none")
    if config.order is not None:
        assert column is not None, "rows that are split by time have a column for it, or their lines"
        return plan_by_time(entries, config, has_test=has_test, column=column)
    return plan_by_group(
        entries,
        config,
        has_test=has_test,
        label_of=label_of if config.stratify and label_of is not None else no_label,
        group=column if config.group is not None else None,
    )


def split_settings(config: DataConfig) -> str | None:
    """The settings that decide how rows are split, for a message; None if rows are split by their source."""
    used = {"data.group": config.group is not None, "data.stratify": config.stratify,
            "data.order": config.order is not None, "data.split": config.split in STRUCTURES}  # fmt: skip
    return " and ".join(name for name, is_set in used.items() if is_set) or None


def key_column(config: DataConfig) -> str | None:
    """The column that is read in addition to those of the task, if any."""
    column = config.group if config.group is not None else config.order
    return None if column is None or column == ROW_ORDER else str(column)


def with_split_keys(table: Table, config: DataConfig) -> Table:
    """The table with timestamps as keys, if rows are split by time: from a column, or the lines of the file.

    A row without a timestamp, or with a date if the first one has a number, is invalid.
    """
    if config.order is None:
        return table
    if config.order == ROW_ORDER:
        return replace(table, key=ROW_ORDER, read=partial(_with_lines, table.read))
    assert table.key is not None, "the column was requested"
    return replace(table, read=partial(_with_timestamps, table.read, format_column(table.key)))


def reject_split_columns(config: DataConfig, what: str, *, group: str | None = None) -> None:
    """Reject splitting by a column for data without columns; `group` is the only possible grouping."""
    column = key_column(config)
    if column is None or (config.group is not None and config.group == group):
        return
    allowed = (
        f"data.group may be {group!r} and data.order {ROW_ORDER!r}" if group else f"data.order may be {ROW_ORDER!r}"
    )
    name = "data.group" if config.group is not None else "data.order"
    raise ConfigError(f"{what} cannot be split by a column: {allowed}, got {name} = {column!r}")


def _with_lines(read: Callable[[], Iterator[Record]]) -> Iterator[Record]:
    for line, values, fault in read():
        yield line, values if fault else (*values, str(line)), fault


def _with_timestamps(read: Callable[[], Iterator[Record]], name: str) -> Iterator[Record]:
    first: Timestamp | None = None
    for line, values, fault in read():
        if not fault and values[-1].strip():  # the table reports empty values
            timestamp = parse_timestamp(values[-1])
            first = first or timestamp
            if timestamp is None:
                fault = f"no number and no date as 2024-05-31 in {name}"
            elif first is not None and timestamp.kind != first.kind:
                fault = f"a {timestamp.kind} in {name} although the first row has a {first.kind}"
        yield line, () if fault else values, fault
