"""Tables of series: a column of time, columns of numbers and, where there are several series, a column of their names.

Steps of time are equal: seconds, months or plain numbers. Missing values and rows are filled with the last value before
them, and marked as not observed.

Dimensions: `time` steps, `columns` of numbers.
"""

import calendar
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from regard.data.formats.cells import (
    Timestamp,
    TimestampKind,
    as_text,
    decimal_mark,
    decimal_marks,
    is_date,
    parse_timestamp,
    with_decimal_point,
)
from regard.data.formats.columns import require_column
from regard.data.formats.layouts import BLANK
from regard.data.formats.messages import format_column, format_count, format_names
from regard.data.formats.records import RecordTable, cell, open_records
from regard.errors import DataError

TIME_NAMES = ("time", "timestamp", "date", "datetime", "ds", "t", "step", "year", "month", "week", "day", "hour")
"""What a column of time is called, where its cells are numbers."""
ID_NAMES = ("unique_id", "series", "series_id", "item_id", "id")
"""What the column with the names of series is called, where its cells are numbers."""
_MISSING = ("", "nan", "na", "n/a", "null", "none", "?")
_SAMPLE = 1_000
_MOST_STEPS = 20_000_000
"""More rows to be filled in are a sign of a step that is much smaller than the distances of the rows."""
_MONTHS = 12
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True)
class Clock:
    """The step between two rows of a series.

    Example:
        >>> Clock("seconds", 3600.0).after("2024-02-28 23:00:00", 2)
        ['2024-02-29', '2024-02-29 01:00:00']
        >>> Clock("months", 1.0).after("2024-01-31", 2)
        ['2024-02-29', '2024-03-31']
    """

    unit: Literal["seconds", "months", "numbers"]
    size: float

    def __str__(self) -> str:
        """The step in words: `1 hour`."""
        if self.unit == "numbers":
            return f"{self.size:g}"
        if self.unit == "months":
            count, name = (self.size / _MONTHS, "year") if self.size % _MONTHS == 0 else (self.size, "month")
        else:
            seconds, name = next(each for each in _SECONDS if self.size % each[0] == 0 or each[0] == 1)
            count = self.size / seconds
        return f"{count:g} {name}" + ("" if count == 1 else "s")

    def after(self, last: str, count: int) -> list[str]:
        """The next points in time after `last`."""
        return [self.at(last, step) for step in range(1, count + 1)]

    def at(self, first: str, steps: int) -> str:
        """The point in time this many steps after `first`."""
        found = parse_timestamp(first)
        if found is None:
            raise DataError(f"a time must be a number or a date such as 2024-05-31, got {first!r}")
        if self.unit != "months":
            return str(Timestamp(found.kind, found.value + steps * self.size))
        moment = _EPOCH + timedelta(seconds=found.value)
        is_end = moment.day == calendar.monthrange(moment.year, moment.month)[1]
        year, month = divmod(_month_of(moment) + round(steps * self.size), _MONTHS)
        longest = calendar.monthrange(year, month + 1)[1]
        then = moment.replace(year=year, month=month + 1, day=longest if is_end else min(moment.day, longest))
        return str(Timestamp("date", (then - _EPOCH).total_seconds()))


@dataclass(frozen=True)
class Series:
    """One series: a row for each step, from the first to the last one that is in the table."""

    name: str
    first: str
    """The time of its first row."""
    start: int
    """The number of steps from the first row of all series to its own."""
    values: Float[np.ndarray, "time columns"]
    """A value that is missing is the last one before it; NaN where there is none."""
    observed: Bool[np.ndarray, "time columns"]


@dataclass(frozen=True)
class SeriesTable:
    """The series of a table."""

    columns: tuple[str, ...]
    clock: Clock
    series: tuple[Series, ...]
    paths: tuple[Path, ...] = ()
    inferred: list[str] = field(default_factory=list)
    """What was inferred and filled in, one sentence each."""

    @property
    def num_steps(self) -> int:
        """Steps from the first row of any series to the last of any."""
        return max(series.start + len(series.values) for series in self.series)


def read_series(
    data: Any,
    *,
    columns: Sequence[str] = (),
    time_column: str | None = None,
    id_column: str | None = None,
    clock: Clock | None = None,
) -> SeriesTable:
    """Read the series of a file, or of rows in memory.

    Args:
        data: A path, or rows in memory: dictionaries or lists of cells.
        columns: The columns to use; unset, all.
        time_column: The column of time; unset, it is inferred.
        id_column: The column with the names of series; unset, it is inferred.
        clock: The step that the series must have; unset, it is the most frequent one.
    """
    wanted = [*columns, *filter(None, (time_column, id_column))]
    table = open_records(data, wanted=wanted or None)
    rows = _rows_of(table)
    names = [table.names[require_column(name, table.names, where=table.name)] for name in columns] or list(table.names)
    roles = _find_roles(table, rows, names, time_column, id_column)
    times = _read_times(table.name, rows, roles.time)
    numbers = np.column_stack([_read_numbers(table.name, rows, name) for name in roles.values])
    of_series: dict[str, list[int]] = {}
    for place, (_, row) in enumerate(rows):
        of_series.setdefault("" if roles.id is None else as_text(cell(row, roles.id)) or "", []).append(place)
    order, is_sorted = {}, True
    for name, places in of_series.items():
        keys = times.values[places]
        is_sorted = is_sorted and bool((keys[1:] >= keys[:-1]).all())
        order[name] = np.array(places)[np.argsort(keys, kind="stable")]
    _require_distinct(table.name, roles, times, order)
    clock = clock or _find_clock(table.name, times, order)
    origin = float(times.values.min())
    found = tuple(
        _make_series(table.name, name, places, times, numbers, clock, origin) for name, places in order.items()
    )
    paths = () if table.format == "rows" else (Path(data),)
    inferred = _describe(roles, clock, found, len(rows), is_sorted=is_sorted)
    return SeriesTable(roles.values, clock, found, paths, inferred)


@dataclass(frozen=True)
class _Roles:
    time: str
    id: str | None
    values: tuple[str, ...]


@dataclass(frozen=True)
class _Times:
    kind: TimestampKind
    values: NDArray[np.float64]
    texts: list[str]

    def name(self, place: int) -> str:
        return str(Timestamp(self.kind, float(self.values[place])))


_Rows = list[tuple[int, Mapping[str, Any]]]


def _rows_of(table: RecordTable) -> _Rows:
    table.check()
    return [(line, row) for line, row, fault in table.read() if fault != BLANK]


def _find_roles(
    table: RecordTable, rows: _Rows, names: list[str], time_column: str | None, id_column: str | None
) -> _Roles:
    """The columns of time, of the names of series and of numbers."""
    where = table.name
    cells = {name: _texts(rows[:_SAMPLE], name) for name in names}
    time = _given(time_column, table) or next(
        (name for name in names if cells[name] and all(is_date(text) for text in cells[name])), None
    )
    time = time or next((name for name in names if name.lower() in TIME_NAMES and _are_numbers(cells[name])), None)
    if time is None:
        raise DataError(
            f"{where} has no column of time among {_listed(names)}: dates such as 2024-05-31T12:00, or numbers in a "
            "column called time; task.time_column names another"
        )
    others = [name for name in names if name != time]
    texts = [name for name in others if cells[name] and not any(decimal_marks(text) for text in cells[name])]
    has_repeats = len(set(_texts(rows, time))) < len(rows)
    chosen = _given(id_column, table)
    if chosen is None and texts:
        if len(texts) > 1:
            raise DataError(
                f"{where} has {len(texts)} columns of text ({_listed(texts)}): task.id_column names the one with the "
                "names of series, and data.columns those that are used"
            )
        chosen = texts[0]
    if chosen is None and has_repeats:
        chosen = next((name for name in others if name.lower() in ID_NAMES), None)
    values = tuple(name for name in others if name != chosen)
    if not values:
        raise DataError(f"{where} has no column of numbers beside the time, {format_column(time)}")
    return _Roles(time, chosen, values)


def _given(name: str | None, table: RecordTable) -> str | None:
    return None if name is None else table.names[require_column(name, table.names, where=table.name)]


def _texts(rows: _Rows, name: str) -> list[str]:
    """The cells of a column that are not missing."""
    found = ((as_text(cell(row, name)) or "").strip() for _, row in rows)
    return [text for text in found if text.lower() not in _MISSING]


def _are_numbers(texts: Sequence[str]) -> bool:
    return bool(texts) and all(decimal_marks(text) for text in texts)


def _listed(names: Sequence[str]) -> str:
    return format_names([format_column(name) for name in names])


def _read_times(where: str, rows: _Rows, name: str) -> _Times:
    texts = [(as_text(cell(row, name)) or "").strip() for _, row in rows]
    found = [parse_timestamp(text) for text in texts]
    for (line, _), text, time in zip(rows, texts, found, strict=True):
        if time is None or time.kind != (found[0] or time).kind:
            raise DataError(
                f"{where}, line {line:,}: {format_column(name)} must be a number or a date such as 2024-05-31T12:00, "
                f"as in all rows, got {text!r}"
            )
    assert found[0] is not None
    return _Times(found[0].kind, np.array([time.value for time in found if time is not None]), texts)


def _read_numbers(where: str, rows: _Rows, name: str) -> NDArray[np.float64]:
    texts = [(as_text(cell(row, name)) or "").strip() for _, row in rows]
    mark = decimal_mark(texts[:_SAMPLE])
    values = np.full(len(texts), np.nan)
    for place, text in enumerate(texts):
        if text.lower() in _MISSING:
            continue
        if mark not in decimal_marks(text):
            raise DataError(
                f"{where}, line {rows[place][0]:,}: {format_column(name)} must have numbers, got {text!r}; an empty "
                "cell is a missing value"
            )
        values[place] = float(with_decimal_point(text, mark))
    return values


def _require_distinct(where: str, roles: _Roles, times: _Times, order: Mapping[str, NDArray[np.int64]]) -> None:
    for name, places in order.items():
        keys = times.values[places]
        if len(twice := np.flatnonzero(keys[1:] == keys[:-1])):
            which = f"the series {name!r} has" if roles.id is not None else f"{where} has"
            hint = "" if roles.id is not None else "; task.id_column names the column that distinguishes several series"
            raise DataError(f"{which} two rows for {times.name(int(places[twice[0]]))}{hint}")


def _find_clock(where: str, times: _Times, order: Mapping[str, NDArray[np.int64]]) -> Clock:
    """The most frequent step; in months, where that is what rows are apart."""
    steps = Counter[float]()
    for places in order.values():
        steps.update(np.diff(times.values[places]).tolist())
    if not steps:
        raise DataError(f"{where} has one row for each series: a series needs many")
    if times.kind == "number":
        return Clock("numbers", steps.most_common(1)[0][0])
    most = steps.most_common(1)[0][0]
    if most >= 28 * 86_400:
        months = Counter[int]()
        for places in order.values():
            months.update(np.diff([_month_of(_EPOCH + timedelta(seconds=t)) for t in times.values[places]]).tolist())
        common = months.most_common(1)[0][0]
        if common and most not in (28 * 86_400, 35 * 86_400, 42 * 86_400, 56 * 86_400):
            return Clock("months", float(common))
    return Clock("seconds", most)


def _month_of(moment: datetime) -> int:
    return _MONTHS * moment.year + moment.month - 1


def _places(clock: Clock, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Steps from the first of these points in time to each, which are whole where the series is regular."""
    if clock.unit != "months":
        return (values - values[0]) / clock.size
    moments = [_EPOCH + timedelta(seconds=value) for value in values]
    months = np.array([_month_of(moment) for moment in moments], np.float64)
    are_ends = all(each.day == calendar.monthrange(each.year, each.month)[1] for each in moments)
    days = np.array([0.0 if are_ends else (each.day - moments[0].day) / 31 for each in moments])
    return (months - months[0] + days) / clock.size


def _make_series(
    where: str, name: str, places: NDArray[np.int64], times: _Times, numbers: NDArray[np.float64], clock: Clock,
    origin: float,
) -> Series:  # fmt: skip
    steps = _places(clock, times.values[places])
    whole = np.round(steps)
    if len(wrong := np.flatnonzero(np.abs(steps - whole) > 1e-3)) or (len(whole) > 1 and np.diff(whole).min() < 1):
        place = int(wrong[0]) if len(wrong) else int(np.argmin(np.diff(whole))) + 1
        of_series = f" of the series {name!r}" if name else ""
        raise DataError(
            f"{where}: the rows{of_series} must be a step of {clock} apart, or several, got {times.name(places[place])}"
            f" after {times.name(places[place - 1])}: resample the series to equal steps"
        )
    length = int(whole[-1]) + 1
    if length > _MOST_STEPS:
        raise DataError(
            f"{where}: {length:,} steps of {clock} are too many for {len(places):,} rows: resample the series"
        )
    values = np.full((length, numbers.shape[1]), np.nan)
    values[whole.astype(np.int64)] = numbers[places]
    observed = np.isfinite(values)
    first = _places(clock, np.array([origin, times.values[places[0]]]))[1]
    return Series(name, times.name(places[0]), math.floor(first + 1e-3), fill_forward(values), observed)


def fill_forward(values: Float[np.ndarray, "time columns"]) -> Float[np.ndarray, "time columns"]:
    """Each missing value replaced by the last one before it; NaN where there is none.

    Example:
        >>> fill_forward(np.array([[np.nan], [2.0], [np.nan]])).tolist()
        [[nan], [2.0], [2.0]]
    """
    last = np.where(np.isfinite(values), np.arange(len(values))[:, None], 0)
    return np.take_along_axis(values, np.maximum.accumulate(last, axis=0), axis=0)


def _describe(
    roles: _Roles, clock: Clock, found: Sequence[Series], num_rows: int, *, is_sorted: bool
) -> list[str]:  # fmt: skip
    several = "" if roles.id is None else f", {len(found):,} series by {format_column(roles.id)}"
    notes = [
        f"time = {format_column(roles.time)}, a step of {clock}; {format_count(len(roles.values), 'column')} of "
        f"numbers: {_listed(roles.values)}{several}"
    ]
    if not is_sorted:
        notes.append("rows are not in the order of time: they are sorted")
    added = sum(len(series.values) for series in found) - num_rows
    if added:
        notes.append(
            f"{format_count(added, 'step')} without a row: filled with the last values before them, not scored"
        )
    missing = sum(int((~series.observed).sum()) for series in found) - added * len(roles.values)
    if missing:
        notes.append(f"{format_count(missing, 'missing value')}: filled with the last one before, not scored")
    return notes


def require_columns(table: SeriesTable, columns: Sequence[str], where: str) -> SeriesTable:
    """The table with the columns that a model was trained on, in their order."""
    if missing := [name for name in columns if name not in table.columns]:
        raise DataError(f"{where} must have the columns of training, got none called {_listed(missing)}")
    chosen = [table.columns.index(name) for name in columns]
    series = tuple(
        Series(each.name, each.first, each.start, each.values[:, chosen], each.observed[:, chosen])
        for each in table.series
    )
    return SeriesTable(tuple(columns), table.clock, series, table.paths, table.inferred)
