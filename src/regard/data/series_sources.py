"""The series of a run, which are split by time, the same for all series; and its events, which are split by subject.

A row of events is a subject, with its history as text.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from regard.data.builtin import builtin_names, find_builtin
from regard.data.codecs.codec import write_codecs
from regard.data.codecs.series import SeriesCodec
from regard.data.formats.events import EventColumns, EventTable, read_events
from regard.data.formats.files import content_hash
from regard.data.formats.layouts import ReadOptions
from regard.data.formats.messages import format_count, format_names
from regard.data.formats.series import Clock, Series, SeriesTable, read_series, require_columns
from regard.data.formats.tables import Table, rows_hash
from regard.data.prepare import HeldOut, Prepared, RowEncoder, find_or_build, write_record
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, Source, hash_with_held_out, is_builtin, require_files
from regard.data.stores.series import SeriesStore, write_series
from regard.errors import ConfigError, DataError

SPLITS = (0.7, 0.1, 0.2)
"""Shares of the steps for training, validation and test."""
_HORIZONS = {"second": 60, "minute": 60, "hour": 24, "day": 14, "week": 13, "month": 12, "year": 6}
_OTHER_HORIZON = 24
_LONGEST_INPUT, _INPUT_HORIZONS, _INPUT_SHARE = 512, 3, 4
"""By default a forecast is made from a quarter of the training steps, at least 3 times and at most 512 of them."""
EVENT_ROLES = ("subject", "history")
_NO_EFFECT = ("group", "stratify", "order", "shots", "skip_bad")
"""Data settings that neither series nor events have a use for; the former have none for `split` either."""


@dataclass(frozen=True)
class SeriesSource:
    """The series of a run; `valid` and `test` are None if they are to be split off `train`."""

    train: SeriesTable
    valid: SeriesTable | None
    test: SeriesTable | None
    content_hash: Callable[[], str]

    @property
    def inferred(self) -> list[str]:
        tables = [table for table in (self.train, self.valid, self.test) if table is not None]
        return list(dict.fromkeys(sentence for table in tables for sentence in table.inferred))


@dataclass(frozen=True)
class SeriesSplit:
    """The steps at which the training, the validation and the test part end, and the lengths of a window."""

    train_start: int
    train_end: int
    valid_end: int
    test_end: int
    input_length: int
    horizon: int

    @property
    def window(self) -> int:
        return self.input_length + self.horizon


def open_series(
    config: DataConfig,
    rows: Rows | None = None,
    *,
    time_column: str | None = None,
    id_column: str | None = None,
    known: Sequence[str] = (),
    static: Sequence[str] = (),
    resample: str | None = None,
) -> SeriesSource:
    """Open the series that the settings name, or rows in memory."""
    defaults = DataConfig()
    for name in ("split", *_NO_EFFECT):
        if (value := getattr(config, name)) != getattr(defaults, name):
            raise ConfigError(f"data.{name} has no effect on series, which are split by time, got {value!r}")

    def read(data: object, like: SeriesTable | None = None) -> SeriesTable:
        """Read a table, with the step and the categories of another one."""
        return read_series(
            data,
            columns=config.columns,
            time_column=time_column,
            id_column=id_column,
            clock=None if like is None else like.clock,
            known=known,
            static=static,
            covariates=None if like is None else like.covariates,
            resample=resample,
            options=_read_options(config),
        )

    if rows is not None:
        records = [dict(zip(rows.names, row, strict=True)) for row in rows] if isinstance(rows, NamedRows) else rows
        train, hash_of_train = read(records), lambda: rows_hash([[str(cell) for cell in row] for row in rows])
    else:
        require_files(config, "a table of series or a built-in data set")
        if is_builtin(config):
            data = find_builtin(config.train[0])
            num_rows = config.num_rows or data.num_rows
            generated = data.generate(num_rows, config.split_seed)
            train = read([dict(zip(data.columns, row, strict=True)) for row in generated])
            hash_of_train = lambda: data.content_hash(num_rows, config.split_seed)  # noqa: E731  as above
        else:
            if len(config.train) > 1:
                raise DataError(f"series are read from one table, got {len(config.train)} files")
            try:
                train = read(config.train[0])
            except DataError as error:
                if "there is no file" in str(error):
                    raise DataError(f"{error}; built-in data sets: {', '.join(builtin_names())}") from None
                raise
            hash_of_train = lambda: content_hash(config.train[0])  # noqa: E731  as above
    valid, test = (read(paths[0], train) if paths else None for paths in (config.valid, config.test))
    held_out = {split: table.paths for split, table in (("valid", valid), ("test", test)) if table is not None}
    return SeriesSource(train, valid, test, lambda: hash_with_held_out(hash_of_train(), held_out))


def plan_series(
    source: SeriesSource,
    config: DataConfig,
    *,
    horizon: int | None = None,
    input_length: int | None = None,
    split_rows: Sequence[int] = (),
) -> SeriesSplit:
    """The parts of the steps, and the lengths of a window where they are unset."""
    total = source.train.num_steps
    if split_rows:
        if sum(split_rows) > total:
            raise ConfigError(
                f"task.split_rows must sum to at most the {total:,} steps of the series, got {split_rows}"
            )
        ends = [sum(split_rows[: count + 1]) for count in range(3)]
    else:
        valid, test = source.valid is None, source.test is None and source.valid is None
        shares = config.splits or [1 - SPLITS[1] * valid - SPLITS[2] * test, SPLITS[1] * valid, SPLITS[2] * test]
        ends = [round(total * sum(shares[: count + 1])) for count in range(3)]
    if horizon is None:
        unit = str(source.train.clock).rpartition(" ")[2].removesuffix("s")
        held_out = min([end - start for start, end in pairwise(ends) if end > start], default=ends[0])
        horizon = max(1, min(_HORIZONS.get(unit, _OTHER_HORIZON), held_out, ends[0] // 4))
    if input_length is None:
        wanted = max(_INPUT_HORIZONS * horizon, ends[0] // _INPUT_SHARE)
        input_length = max(1, min(_LONGEST_INPUT, wanted, max(ends[0] // 2, ends[0] - 2 * horizon)))
    start = 0 if config.train_rows is None else max(0, ends[0] - config.train_rows)
    split = SeriesSplit(start, ends[0], ends[1], ends[2], input_length, horizon)
    longest = max(min(len(each.values), ends[0] - each.start) for each in source.train.series) - start
    if longest < split.window:
        raise DataError(
            f"the training part has {max(0, longest):,} steps, fewer than a window of {input_length:,} steps that are "
            f"read and {horizon:,} that are forecast: a longer series, or smaller task.input_length and task.horizon"
        )
    return split


def prepare_series(
    source: SeriesSource, config: DataConfig, encoder: RowEncoder, split: SeriesSplit
) -> Prepared[SeriesStore]:
    """Split, standardize and store series, or find them in the cache."""

    def build(folder: Path) -> None:
        _build_series(folder, source, encoder, split)

    return find_or_build(source, config, encoder, SeriesStore, build, source.train.columns, {"split": asdict(split)})


def _build_series(folder: Path, source: SeriesSource, encoder: RowEncoder, split: SeriesSplit) -> None:
    table = source.train
    codec = SeriesCodec.fit(
        table, end=split.train_end, input_length=split.input_length, horizon=split.horizon, start=split.train_start
    )
    before = split.input_length
    parts = {
        "train": _parts(table.series, table.clock, split.train_start, split.train_end),
        "valid": _parts(table.series, table.clock, split.train_end - before, split.valid_end),
        "test": _parts(table.series, table.clock, split.valid_end - before, split.test_end),
    }
    ends = {"valid": split.train_end, "test": split.valid_end}
    for role, given in (("valid", source.valid), ("test", source.test)):
        if given is not None:
            own = require_columns(given, table.columns, role)
            parts[role], ends[role] = _parts(own.series, own.clock, 0, given.num_steps), 0
    sizes = {"train": split.train_end - split.train_start, "valid": split.valid_end - split.train_end,
             "test": split.test_end - split.valid_end}  # fmt: skip
    usable = {role: [each for each in some if len(each.values) >= split.window] for role, some in parts.items()}
    warnings = []
    for role, some in usable.items():
        if short := len(parts[role]) - len(some) if sizes[role] or role not in ends else 0:
            names = format_names([each.name for each in parts[role] if len(each.values) < split.window])
            warnings.append(
                f"{short:,} of {len(parts[role]):,} series have fewer than {split.window:,} steps up to the end of the "
                f"{_PARTS[role]} part, and are left out of it: {names}"
            )
    if not usable["valid"]:
        raise DataError(
            f"the validation part has {max(0, sizes['valid']):,} steps, fewer than the horizon of {split.horizon:,}: "
            "a smaller task.horizon, or other data.splits"
        )
    if 0 < sizes["valid"] < _FEW_STEPS:
        warnings.append(
            f"the validation part has {format_count(sizes['valid'], 'step')}: a score on so few is not reliable"
        )
    folder.mkdir(parents=True)
    write_codecs(folder / "codecs", {"values": codec})
    for role in ("train", "valid"):
        write_series(
            folder / role, map(codec.segment, usable[role]), len(table.columns), codec.num_features(has_calendar=True)
        )  # fmt: skip
    held_out: HeldOut = {role: [(each.name, each.first, codec.text(each)) for each in usable[role]] for role in ends}
    notes = [
        f"{format_count(table.num_steps, 'step')}, split by time: {sizes['train']:,} for training, "
        f"{sizes['valid']:,} for validation, {sizes['test']:,} for the test",
        *encoder.with_codecs({"values": codec}).notes(),
    ]
    write_record(folder, notes, warnings, held_out)


_FEW_STEPS = 20
"""Steps of the validation part below which its score is reported as unreliable."""
_PARTS = {"train": "training", "valid": "validation", "test": "test"}


def _parts(series: Sequence[Series], clock: Clock, start: int, end: int) -> list[Series]:
    """The steps from `start` to `end` of each series that has some."""
    found = []
    for each in series:
        first, last = max(0, start - each.start), max(0, end - each.start)
        if len(each.values[first:last]):
            found.append(each.part(first, last, clock))
    return found


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
        options = _read_options(config)
        return _table(
            read_events(paths[0], columns, used=config.columns, unit=train.unit, values=train.values, options=options)
        )

    valid, test = read_held_out(config.valid), read_held_out(config.test)
    held_out = {split: table.paths for split, table in (("valid", valid), ("test", test)) if table is not None}
    return Source(_table(train), valid, test, lambda: hash_with_held_out(hash_of_train(), held_out)), train


def _open_train(
    config: DataConfig, rows: Rows | None, columns: EventColumns, unit: str | None, values: Sequence[str] | None
) -> tuple[EventTable, Any]:
    def read(data: Any) -> EventTable:
        options = _read_options(config)
        return read_events(data, columns, used=config.columns, unit=unit, values=values, options=options)

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


def _read_options(config: DataConfig) -> ReadOptions:
    return ReadOptions(format=config.format, header=config.header, encoding=config.encoding)


def _table(events: EventTable) -> Table:
    """A table with a row for each subject."""
    rows = [(each.subject, each.to_text()) for each in events.histories]
    num_events = sum(len(each.events) for each in events.histories)
    counts = f"{format_count(num_events, 'event')} of {format_count(len(rows), 'subject')}"
    return Table(
        paths=events.paths,
        format="rows",
        roles=EVENT_ROLES,
        columns=EVENT_ROLES,
        inferred=[*events.inferred, counts],
        skip_bad=False,
        read=lambda: ((number, row, "") for number, row in enumerate(rows, start=1)),
    )
