"""Tables of series: a column of time, columns of numbers, covariates and, for several series, a column of their names.

Steps of time are equal: seconds, months or plain numbers. Missing values and rows are filled with the last value before
them, and marked as not observed.

Dimensions: `time` steps, `columns` of numbers, `covariates`.
"""

import calendar
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    is_number,
    parse_timestamp,
    with_decimal_point,
)
from regard.data.formats.columns import require_column
from regard.data.formats.layouts import BLANK, ReadOptions
from regard.data.formats.messages import format_column, format_count, format_names
from regard.data.formats.records import cell, open_records
from regard.errors import DataError

TIME_NAMES = ("time", "timestamp", "date", "datetime", "ds", "t", "step", "year", "month", "week", "day", "hour")
"""What a column of time is called, where its cells are numbers."""
ID_NAMES = ("unique_id", "series", "series_id", "item_id", "id")
"""What the column with the names of series is called, where its cells are numbers."""
_MISSING = ("", "nan", "na", "n/a", "null", "none", "?")
_REGULAR = 0.5
"""The share of rows that are one step apart in a series: of the days of a month, more than half are 31 days apart."""
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
class Covariate:
    """A column that is an input of forecasts only: its values are known in advance."""

    name: str
    is_static: bool = False
    """Whether it has one value for each series."""
    categories: tuple[str, ...] = ()
    """Its values, where they are not numbers: in arrays, each is its place here, and an unknown one the place after."""


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
    covariates: Float[np.ndarray, "time covariates"] = field(default_factory=lambda: np.empty((0, 0)))
    """NaN where a value is missing."""

    def part(self, first: int, last: int, clock: Clock) -> "Series":
        """The steps from `first` to `last`."""
        span = slice(first, last)
        return replace(
            self, first=clock.at(self.first, first), values=self.values[span], observed=self.observed[span],
            covariates=self.covariates[span],
        )  # fmt: skip


@dataclass(frozen=True)
class SeriesTable:
    """The series of a table."""

    columns: tuple[str, ...]
    clock: Clock
    series: tuple[Series, ...]
    paths: tuple[Path, ...] = ()
    inferred: list[str] = field(default_factory=list)
    """What was inferred and filled in, one sentence each."""
    covariates: tuple[Covariate, ...] = ()

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
    known: Sequence[str] = (),
    static: Sequence[str] = (),
    covariates: Sequence[Covariate] | None = None,
    resample: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008  frozen
) -> SeriesTable:
    """Read the series of a file, or of rows or columns in memory.

    Args:
        data: A path; rows in memory: dictionaries or lists of cells; or columns: a dictionary of arrays.
        columns: The columns to use; unset, all.
        time_column: The column of time; unset, it is inferred.
        id_column: The column with the names of series; unset, it is inferred.
        clock: The step that the series must have; unset, it is the most frequent one.
        known: Covariates that are known in advance.
        static: Covariates with one value for each series.
        covariates: Those of another table, with their categories, instead of `known` and `static`.
        resample: A step such as `1 hour`, to which rows are averaged.
        options: The encoding and the format of a file, where they are known.
    """
    if covariates is not None:
        known = [each.name for each in covariates if not each.is_static]
        static = [each.name for each in covariates if each.is_static]
    named = [*columns, *known, *static] if columns else []
    table = _open_table(data, [*named, *filter(None, (time_column, id_column))], options)
    names = list(dict.fromkeys(table.name_of(name) for name in named)) or list(table.columns)
    roles = _find_roles(table, names, time_column, id_column, known, static)
    times = _read_times(table, roles.time)
    numbers = np.column_stack([_read_numbers(table, name) for name in roles.values])
    found = covariates if covariates is not None else [
        *(_describe_covariate(table, name, is_static=False) for name in roles.known),
        *(_describe_covariate(table, name, is_static=True) for name in roles.static),
    ]  # fmt: skip
    inputs = np.column_stack([_read_covariate(table, each) for each in found] or [np.empty((len(times.values), 0))])
    order, is_sorted = _in_order(_series_names(table, roles), times)
    notes = []
    if resample is not None:
        clock = parse_clock(resample, times.kind)
        before = len(times.values)
        times, numbers, inputs, order = _resampled(times, numbers, inputs, order, clock, found)
        notes.append(f"resampled to steps of {clock}: {before:,} rows are averaged to {len(times.values):,}")
    _require_distinct(table.name, roles, times, order)
    clock = clock or _find_clock(table.name, times, order)
    origin = float(times.values.min())
    series = tuple(
        _make_series(table.name, name, places, times, numbers, inputs, clock, origin) for name, places in order.items()
    )
    _fill_static(series, found)
    inferred = [*_describe(roles, clock, series, len(times.values), is_sorted=is_sorted), *notes]
    return SeriesTable(roles.values, clock, series, table.paths, inferred, tuple(found))


def parse_clock(text: str, kind: TimestampKind = "date") -> Clock:
    """The step that a text such as `15 minutes` names.

    Example:
        >>> parse_clock("2 hours"), parse_clock("month"), parse_clock("0.5", "number")
        (Clock(unit='seconds', size=7200.0), Clock(unit='months', size=1.0), Clock(unit='numbers', size=0.5))
    """
    if kind == "number":
        if not is_number(text) or float(text) <= 0:
            raise DataError(f"times are numbers, so task.resample must be a positive number, got {text!r}")
        return Clock("numbers", float(text))
    number, _, unit = text.strip().rpartition(" ")
    seconds = {name: size for size, name in _SECONDS} | {"week": 7 * 86_400}
    months = {"month": 1, "year": _MONTHS}
    unit = unit.removesuffix("s")
    if (number and not (number.isdigit() and int(number))) or unit not in seconds | months:
        raise DataError(f"task.resample must be a step such as 1 hour, 15 minutes or 1 month, got {text!r}")
    count = int(number or 1)
    return (
        Clock("months", float(count * months[unit]))
        if unit in months
        else Clock("seconds", float(count * seconds[unit]))
    )


@dataclass(frozen=True)
class _Roles:
    time: str
    id: str | None
    values: tuple[str, ...]
    known: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    inferred_static: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    """Columns of text that vary in the only series."""


@dataclass(frozen=True)
class _Times:
    kind: TimestampKind
    values: NDArray[np.float64]

    def name(self, place: int) -> str:
        return str(Timestamp(self.kind, float(self.values[place])))


@dataclass(frozen=True)
class _Table:
    """The columns of a table: arrays of numbers or points in time, or cells as texts."""

    name: str
    columns: Mapping[str, NDArray[Any] | list[str]]
    lines: Sequence[int]
    paths: tuple[Path, ...] = ()

    def name_of(self, name: str) -> str:
        return tuple(self.columns)[require_column(name, tuple(self.columns), where=self.name)]

    def texts(self, name: str, most: int | None = None) -> list[str]:
        """The first cells of a column as texts; an empty one is missing."""
        column = self.columns[name][:most]
        if isinstance(column, list):
            return column
        return ["" if text in ("nan", "NaT", "None") else text for text in column.astype(str).tolist()]

    def known_texts(self, name: str, most: int | None = None) -> list[str]:
        """Those that are not missing."""
        return [text for text in self.texts(name, most) if text.lower() not in _MISSING]


def _open_table(data: Any, wanted: Sequence[str], options: ReadOptions) -> _Table:
    if isinstance(data, Mapping):
        columns = {str(name): np.asarray(column) for name, column in data.items()}
        if not columns or len({len(column) for column in columns.values()}) > 1:
            lengths = ", ".join(f"{name}: {len(column):,}" for name, column in columns.items())
            raise DataError(f"columns must be as long as each other, got {lengths or 'none'}")
        if not len(next(iter(columns.values()))):
            raise DataError("the table in memory has no rows")
        return _Table("the table in memory", columns, range(1, len(next(iter(columns.values()))) + 1))
    table = open_records(
        data, wanted=wanted or None, encoding=options.encoding, format=options.format, header=options.header
    )
    table.check()
    rows = [(line, row) for line, row, fault in table.read() if fault != BLANK]
    columns = {name: [(as_text(cell(row, name)) or "").strip() for _, row in rows] for name in table.names}
    paths = () if table.format == "rows" else (Path(data),)
    return _Table(table.name, columns, [line for line, _ in rows], paths)


def _find_roles(
    table: _Table, names: list[str], time_column: str | None, id_column: str | None, known: Sequence[str],
    static: Sequence[str],
) -> _Roles:  # fmt: skip
    """The columns of time, of the names of series, of covariates and of numbers."""
    where = table.name
    known, static = tuple(map(table.name_of, known)), tuple(map(table.name_of, static))
    if twice := set(known) & set(static):
        raise DataError(f"a covariate is either known or static, got {_listed(sorted(twice))} as both")
    cells = {name: table.known_texts(name, _SAMPLE) for name in names}
    time = (None if time_column is None else table.name_of(time_column)) or next(
        (name for name in names if cells[name] and all(is_date(text) for text in cells[name])), None
    )
    time = time or next((name for name in names if name.lower() in TIME_NAMES and _are_numbers(cells[name])), None)
    if time is None:
        raise DataError(
            f"{where} has no column of time among {_listed(names)}: dates such as 2024-05-31T12:00, or numbers in a "
            "column called time; task.time_column names another"
        )
    others = [name for name in names if name != time and name not in (*known, *static)]
    texts = [name for name in others if cells[name] and not any(decimal_marks(text) for text in cells[name])]
    chosen, inferred = None if id_column is None else table.name_of(id_column), ()
    unused: tuple[str, ...] = ()
    if chosen is None and len(texts) == 1 and _is_one_series(table, time, texts[0]):
        unused = tuple(texts)
    elif chosen is None and texts:
        chosen, inferred = _find_id(table, time, texts)
    if chosen is None and len(np.unique(np.asarray(table.columns[time]))) < len(table.lines):
        chosen = next((name for name in others if name.lower() in ID_NAMES), None)
    values = tuple(name for name in others if name != chosen and name not in (*inferred, *unused))
    if not values:
        raise DataError(f"{where} has no column of numbers beside the time, {format_column(time)}")
    return _Roles(time, chosen, values, known, (*static, *inferred), inferred, unused)


def _is_one_series(table: _Table, time: str, text: str) -> bool:
    """Whether rows are at distinct times, most of them one step apart, while a text varies: that of one series."""
    times = np.sort(_read_times(table, time).values)
    steps, counts = np.unique(np.diff(times), return_counts=True)
    is_regular = len(steps) > 0 and steps[0] > 0 and counts.max() >= _REGULAR * counts.sum()
    return is_regular and len(set(table.known_texts(text))) > 1


def _find_id(table: _Table, time: str, texts: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Returns the text column with the names of series; the others must have one value for each series."""
    if len(texts) == 1:
        return texts[0], ()
    numbers = {name: np.unique(table.texts(name), return_inverse=True)[1] for name in (*texts, time)}
    for name in texts:
        others = tuple(each for each in texts if each != name)
        pairs = np.unique(np.stack([numbers[name], numbers[time]]), axis=1).shape[1]
        size = numbers[name].max() + 1
        constant = (np.unique(np.stack([numbers[name], numbers[other]]), axis=1).shape[1] == size for other in others)
        if pairs == len(table.lines) and all(constant):
            return name, others
    raise DataError(
        f"{table.name} has {len(texts)} columns of text ({_listed(texts)}): task.id_column names the one with the "
        "names of series, task.known covariates that are known in advance, and data.columns those that are used"
    )


def _are_numbers(texts: Sequence[str]) -> bool:
    return bool(texts) and all(decimal_marks(text) for text in texts)


def _listed(names: Sequence[str]) -> str:
    return format_names([format_column(name) for name in names])


def _read_times(table: _Table, name: str) -> _Times:
    column = table.columns[name]
    if isinstance(column, np.ndarray) and column.dtype.kind == "M" and not np.isnat(column).any():
        return _Times("date", column.astype("datetime64[us]").astype(np.int64) / 1e6)
    texts = table.texts(name)
    distinct = {text: parse_timestamp(text) for text in dict.fromkeys(texts)}
    first = next((time for time in distinct.values() if time is not None), None)
    if wrong := {text for text, time in distinct.items() if time is None or first is None or time.kind != first.kind}:
        place = next(place for place, text in enumerate(texts) if text in wrong)
        raise DataError(
            f"{table.name}, line {table.lines[place]:,}: {format_column(name)} must be a number or a date such as "
            f"2024-05-31T12:00, as in all rows, got {texts[place]!r}"
        )
    assert first is not None
    values = {text: time.value for text, time in distinct.items() if time is not None}
    return _Times(first.kind, np.array([values[text] for text in texts]))


def _read_numbers(table: _Table, name: str) -> NDArray[np.float64]:
    column = table.columns[name]
    if isinstance(column, np.ndarray) and column.dtype.kind in "fiub":
        return np.where(np.isfinite(values := column.astype(np.float64)), values, np.nan)
    texts = table.texts(name)
    is_missing = np.array([text.lower() in _MISSING for text in texts])
    try:
        values = np.array(["nan" if missing else text for text, missing in zip(texts, is_missing, strict=True)], float)
    except ValueError:
        values = np.full(len(texts), np.nan)
    if (np.isfinite(values) != is_missing).all():
        return values
    mark = decimal_mark(texts[:_SAMPLE])
    for place in np.flatnonzero(~is_missing).tolist():
        text = texts[place]
        if mark not in decimal_marks(text):
            raise DataError(
                f"{table.name}, line {table.lines[place]:,}: {format_column(name)} must have numbers, got {text!r}; an "
                "empty cell is a missing value"
            )
        values[place] = float(with_decimal_point(text, mark))
    return values


def _describe_covariate(table: _Table, name: str, *, is_static: bool) -> Covariate:
    texts = dict.fromkeys(table.known_texts(name))
    if not texts:
        raise DataError(f"the covariate {format_column(name)} of {table.name} has no values")
    return Covariate(name, is_static, () if _are_numbers(tuple(texts)) else tuple(sorted(texts)))


def _read_covariate(table: _Table, covariate: Covariate) -> NDArray[np.float64]:
    name = table.name_of(covariate.name)
    if not covariate.categories:
        return _read_numbers(table, name)
    places = {text: float(place) for place, text in enumerate(covariate.categories)}
    texts = table.texts(name)
    return np.array(
        [np.nan if text.lower() in _MISSING else places.get(text, float(len(places))) for text in texts]
    )  # fmt: skip


def _series_names(table: _Table, roles: _Roles) -> NDArray[Any]:
    if roles.id is None:
        return np.full(len(table.lines), "")
    column = np.asarray(table.columns[roles.id])
    return column if column.dtype.kind == "U" else np.array(table.texts(roles.id))


def _in_order(names: NDArray[Any], times: _Times) -> tuple[dict[str, NDArray[np.int64]], bool]:
    """The rows of each series in the order of time, and whether they were in that order."""
    distinct, firsts, numbers = np.unique(names, return_index=True, return_inverse=True)
    order = np.lexsort((times.values, numbers))
    ends = np.cumsum(np.bincount(numbers.reshape(-1), minlength=len(distinct)))
    parts = np.split(order, ends[:-1])
    found = {str(distinct[number]): parts[number] for number in np.argsort(firsts)}
    return found, all((part[1:] > part[:-1]).all() for part in found.values())


def _resampled(
    times: _Times, numbers: NDArray[np.float64], inputs: NDArray[np.float64], order: Mapping[str, NDArray[np.int64]],
    clock: Clock, covariates: Sequence[Covariate],
) -> tuple[_Times, NDArray[np.float64], NDArray[np.float64], dict[str, NDArray[np.int64]]]:  # fmt: skip
    """The means of the rows of each step; of categories, the last one."""
    if clock.unit == "months":
        months = np.array([_month_of(_EPOCH + timedelta(seconds=value)) for value in times.values])
        bins = months // clock.size
    else:
        bins = np.floor(times.values / clock.size + 1e-9)
    kept: list[NDArray[np.float64]] = []
    averaged: list[NDArray[np.float64]] = []
    found, total = {}, 0
    table = np.concatenate([numbers, inputs], axis=1)
    is_category = np.array([False] * numbers.shape[1] + [bool(each.categories) for each in covariates])
    for name, places in order.items():
        steps, firsts = np.unique(bins[places], return_index=True)
        rows = table[places]
        counts = np.add.reduceat(np.isfinite(rows), firsts, axis=0, dtype=np.float64)
        sums = np.add.reduceat(np.nan_to_num(rows), firsts, axis=0)
        means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        lasts = fill_forward(rows)[np.append(firsts[1:], len(rows)) - 1]
        averaged.append(np.where(is_category & (counts > 0), lasts, means))
        kept.append(steps)
        found[name] = np.arange(total, total := total + len(steps))
    joined = np.concatenate(kept)
    if clock.unit == "months":
        starts = [datetime(*_year_and_month(int(step * clock.size)), 1, tzinfo=UTC) for step in joined]
        joined = np.array([(each - _EPOCH).total_seconds() for each in starts])
    else:
        joined = joined * clock.size
    values = np.concatenate(averaged)
    split = numbers.shape[1]
    return _Times(times.kind, joined), values[:, :split], values[:, split:], found


def _year_and_month(month: int) -> tuple[int, int]:
    return month // _MONTHS, month % _MONTHS + 1


def _require_distinct(where: str, roles: _Roles, times: _Times, order: Mapping[str, NDArray[np.int64]]) -> None:
    for name, places in order.items():
        keys = times.values[places]
        if len(twice := np.flatnonzero(keys[1:] == keys[:-1])):
            which = f"the series {name!r} has" if roles.id is not None else f"{where} has"
            hint = "" if roles.id is not None else "; task.id_column names the column that distinguishes several series"
            raise DataError(f"{which} two rows for {times.name(int(places[twice[0]]))}{hint}")


def _fill_static(series: Sequence[Series], covariates: Sequence[Covariate]) -> None:
    """Give all steps of a series the one value that a static covariate has in some."""
    for column, covariate in enumerate(covariates):
        for each in series if covariate.is_static else ():
            known = each.covariates[np.isfinite(each.covariates[:, column]), column]
            if len(known) and known.min() != known.max():
                which = f"the series {each.name!r}" if each.name else "the series"
                raise DataError(
                    f"{format_column(covariate.name)} is a static covariate and must have one value for {which}, got "
                    "several; task.known is for covariates that change"
                )
            if len(known):
                each.covariates[:, column] = known[0]


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
    where: str, name: str, places: NDArray[np.int64], times: _Times, numbers: NDArray[np.float64],
    inputs: NDArray[np.float64], clock: Clock, origin: float,
) -> Series:  # fmt: skip
    steps = _places(clock, times.values[places])
    whole = np.round(steps)
    if len(wrong := np.flatnonzero(np.abs(steps - whole) > 1e-3)) or (len(whole) > 1 and np.diff(whole).min() < 1):
        place = int(wrong[0]) if len(wrong) else int(np.argmin(np.diff(whole))) + 1
        of_series = f" of the series {name!r}" if name else ""
        raise DataError(
            f"{where}: the rows{of_series} must be a step of {clock} apart, or several, got {times.name(places[place])}"
            f" after {times.name(places[place - 1])}: task.resample averages rows to equal steps, such as 1 hour"
        )
    length = int(whole[-1]) + 1
    if length > _MOST_STEPS:
        raise DataError(
            f"{where}: {length:,} steps of {clock} are too many for {len(places):,} rows: task.resample averages rows"
        )
    steps = whole.astype(np.int64)
    values, covariates = (np.full((length, some.shape[1]), np.nan) for some in (numbers, inputs))
    values[steps], covariates[steps] = numbers[places], inputs[places]
    observed = np.isfinite(values)
    first = _places(clock, np.array([origin, times.values[places[0]]]))[1]
    return Series(name, times.name(places[0]), math.floor(first + 1e-3), fill_forward(values), observed, covariates)


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
    if roles.unused:
        notes.append(f"not used: {_listed(roles.unused)}, a text that varies in one series")
    if roles.known or roles.static:
        parts = {"known in advance": roles.known, "static": roles.static}
        listed = "; ".join(f"{kind}: {_listed(names)}" for kind, names in parts.items() if names)
        notes.append(f"covariates {listed}")
    if not is_sorted:
        notes.append("rows are not in the order of time: they are sorted")
    added = sum(len(series.values) for series in found) - num_rows
    if added:
        notes.append(
            f"{format_count(added, 'step')} without a row: filled with the last values before them, not scored"
        )
    ends = [int(np.append(np.flatnonzero(series.observed.any(axis=1)), -1).max()) + 1 for series in found]
    if future := sum(len(series.values) - end for series, end in zip(found, ends, strict=True)):
        notes.append(f"{format_count(future, 'step')} without values at the end of series: they are to be forecast")
    missing = sum(int((~series.observed).sum()) for series in found) - (added + future) * len(roles.values)
    if missing:
        notes.append(f"{format_count(missing, 'missing value')}: filled with the last one before, not scored")
    return notes


def require_columns(table: SeriesTable, columns: Sequence[str], where: str) -> SeriesTable:
    """The table with the columns that a model was trained on, in their order."""
    if missing := [name for name in columns if name not in table.columns]:
        raise DataError(f"{where} must have the columns of training, got none called {_listed(missing)}")
    chosen = [table.columns.index(name) for name in columns]
    series = tuple(
        replace(each, values=each.values[:, chosen], observed=each.observed[:, chosen]) for each in table.series
    )
    return replace(table, columns=tuple(columns), series=series)
