"""The events of a run: a row for each subject, with its history as text, so that splits are by subject."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data.builtin import builtin_names, find_builtin
from regard.data.formats.events import EventColumns, EventTable, read_events
from regard.data.formats.files import content_hash
from regard.data.formats.messages import format_count
from regard.data.formats.tables import Table, rows_hash
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, Source, hash_with_held_out, is_builtin, require_files
from regard.errors import ConfigError, DataError

ROLES = ("subject", "history")
_NO_EFFECT = ("group", "stratify", "order", "shots", "skip_bad")


def open_events(
    config: DataConfig,
    rows: Rows | None = None,
    columns: EventColumns = EventColumns(),  # noqa: B008  frozen
    *,
    unit: str | None = None,
    values: Sequence[str] | None = None,
) -> tuple[Source, EventTable]:
    """Open the events that the settings name, or rows in memory; the second result is the training table.

    Args:
        config: The data settings.
        rows: Rows in memory.
        columns: The columns of subjects, times and events.
        unit: The unit of times, for a model that was trained on it; unset, it is inferred.
        values: The columns of numbers, for a model that was trained on them.
    """
    defaults = DataConfig()
    for name in _NO_EFFECT:
        if (value := getattr(config, name)) != getattr(defaults, name):
            raise ConfigError(f"data.{name} has no effect on events, which are split by subject, got {value!r}")
    train, hash_of_train = _open_train(config, rows, columns, unit, values)

    def read_held_out(paths: Sequence[str]) -> Table | None:
        if not paths:
            return None
        return _table(read_events(paths[0], columns, used=config.columns, unit=train.unit, values=train.values))

    valid, test = read_held_out(config.valid), read_held_out(config.test)
    held_out = {split: table.paths for split, table in (("valid", valid), ("test", test)) if table is not None}
    return Source(_table(train), valid, test, lambda: hash_with_held_out(hash_of_train(), held_out)), train


def _open_train(
    config: DataConfig, rows: Rows | None, columns: EventColumns, unit: str | None, values: Sequence[str] | None
) -> tuple[EventTable, Any]:
    def read(data: Any) -> EventTable:
        return read_events(data, columns, used=config.columns, unit=unit, values=values)

    if rows is not None:
        records = [dict(zip(rows.names, row, strict=True)) for row in rows] if isinstance(rows, NamedRows) else rows
        return read(records), lambda: rows_hash([[str(cell) for cell in row] for row in rows])
    require_files(config, "a table of events or a built-in data set")
    if is_builtin(config):
        data = find_builtin(config.train[0])
        num_rows = config.num_rows or data.num_rows
        generated = data.generate(num_rows, config.split_seed)
        table = read([dict(zip(data.columns, row, strict=True)) for row in generated])
        return table, lambda: data.content_hash(num_rows, config.split_seed)
    if len(config.train) > 1:
        raise DataError(f"events are read from one table, got {len(config.train)} files")
    if not Path(config.train[0]).exists():
        raise DataError(f"there is no file {config.train[0]}; built-in data sets: {', '.join(builtin_names())}")
    return read(config.train[0]), lambda: content_hash(config.train[0])


def _table(events: EventTable) -> Table:
    """A table with a row for each subject."""
    rows = [(each.subject, each.to_text()) for each in events.histories]
    num_events = sum(len(each.events) for each in events.histories)
    counts = f"{format_count(num_events, 'event')} of {format_count(len(rows), 'subject')}"
    return Table(
        paths=events.paths,
        format="rows",
        roles=ROLES,
        columns=ROLES,
        inferred=[*events.inferred, counts],
        skip_bad=False,
        read=lambda: ((number, row, "") for number, row in enumerate(rows, start=1)),
    )
