"""Tables of events: a column of subjects, one of time, one of events and, optionally, columns of numbers.

The rows of a subject become its history: the start of its observation, its events in the order of time, and the end.
An event called `start`, `birth` or similar is the start, one called `end`, `censored` or similar the end. Without a
start, times that are numbers begin at 0, and those that are dates at the first event, which is then given and not
predicted. Without an end, the observation of a subject ends with its last event.

The text of a history is a JSON list with an entry for each event, `[time, event, number, ...]`, of which the first is
at time 0. An event that is null is the start, in the first entry, or the end, in the last.

    [[0, null], [2.5, "visit", 1.7], [4, "relapse", null], [9, null]]

Dimensions: `events` of a subject, `columns` of numbers.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
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
from regard.data.formats.layouts import BLANK, ReadOptions
from regard.data.formats.messages import format_column, format_count, format_names
from regard.data.formats.records import RecordTable, cell, open_records
from regard.errors import DataError
from regard.files import load_json

SUBJECT_COLUMNS = (
    "subject", "subject_id", "patient", "patient_id", "user", "user_id", "customer", "customer_id", "person",
    "person_id", "case", "case_id", "session", "session_id", "visitor_id", "client_id", "entity", "entity_id", "id",
)  # fmt: skip
EVENT_TIME_COLUMNS = (
    "time", "timestamp", "date", "datetime", "day", "t", "start_time", "event_time", "age", "hour", "days",
)  # fmt: skip
EVENT_COLUMNS = (
    "event", "event_type", "event_name", "type", "activity", "action", "code", "diagnosis", "mark", "label", "category",
    "concept", "state",
)  # fmt: skip
_START_NAMES = ("start", "birth", "begin", "enrolment", "enrollment", "start of observation")
_END_NAMES = ("end", "censored", "censoring", "end of observation", "end of follow-up", "lost to follow-up", "exit")
_MISSING = ("", "nan", "na", "n/a", "null", "none", "?")
_SECONDS = {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0}
_SAMPLE = 1_000
_MOST_EVENTS = 5_000
"""More kinds of events are a sign of a column of texts or numbers."""


_Rows = Sequence[tuple[int, Mapping[str, Any]]]
"""Lines and rows."""


@dataclass(frozen=True)
class EventHistory:
    """The observation of one subject."""

    subject: str
    start: Timestamp
    times: Float[np.ndarray, " events"]
    """Since the start, ascending; of the first event 0 where the observation starts with it."""
    events: tuple[str, ...]
    values: Float[np.ndarray, "events columns"]
    """NaN where a number is missing."""
    end: float
    """When the observation ends, since the start."""
    is_given: bool
    """Whether the observation starts with the first event, which is then not predicted."""

    def to_text(self) -> str:
        """The history as JSON."""
        entries: list[list[Any]] = [] if self.is_given else [[0, None]]
        for time, event, values in zip(self.times.tolist(), self.events, self.values.tolist(), strict=True):
            entries.append([time, event, *(None if value != value else value for value in values)])
        if not entries or self.end > entries[-1][0]:
            entries.append([self.end, None])
        return json.dumps(entries, ensure_ascii=False)


@dataclass(frozen=True)
class EventTable:
    """The histories of a table."""

    unit: str
    """The unit of times: `days` to `seconds` for dates, empty for numbers."""
    values: tuple[str, ...]
    """The columns of numbers."""
    histories: tuple[EventHistory, ...]
    paths: tuple[Path, ...] = ()
    inferred: list[str] = field(default_factory=list)
    """What was inferred, one sentence each."""


@dataclass(frozen=True)
class EventColumns:
    """The columns of a table of events, and the events that start and end an observation."""

    subject: str | None = None
    time: str | None = None
    event: str | None = None
    start_event: str | None = None
    end_event: str | None = None


def unit_size(unit: str) -> float:
    """Seconds of a unit of dates; 1 for numbers."""
    return _SECONDS.get(unit, 1.0)


def parse_history(text: str, num_values: int) -> tuple[list[float], list[str | None], list[list[float]]]:
    """The times, events and values of the entries of a history.

    Example:
        >>> parse_history('[[0, null], [2.5, "visit"]]', 0)
        ([0.0, 2.5], [None, 'visit'], [[], []])
    """
    try:
        entries = load_json(text)
    except ValueError:
        raise DataError(f'a history must be JSON such as [[0, null], [2.5, "visit"]], got {text[:60]!r}') from None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, list) for entry in entries):
        raise DataError(f"a history must be a list of entries [time, event], got {text[:60]!r}")
    times: list[float] = []
    events: list[str | None] = []
    values: list[list[float]] = []
    for place, entry in enumerate(entries):
        time, event = (entry[0], entry[1]) if len(entry) > 1 else (None, None)
        is_inner = 0 < place < len(entries) - 1
        if not _is_number(time) or not (isinstance(event, str) or (event is None and not is_inner)):
            raise DataError(f"an entry of a history must be a time and an event, got {json.dumps(entry)}")
        numbers = [*entry[2:], *[None] * (num_values - len(entry) + 2)][:num_values]
        if wrong := [number for number in numbers if number is not None and not _is_number(number)]:
            raise DataError(f"a value of an event must be a number or null, got {wrong[0]!r}")
        times.append(float(time))  # pyright: ignore[reportArgumentType]  a number, as checked
        events.append(event)
        values.append([math.nan if number is None else float(number) for number in numbers])
    if times[0] != 0:
        raise DataError(f"the first entry of a history must be at time 0, got {times[0]:g}")
    if late := next((place for place in range(1, len(times)) if times[place] < times[place - 1]), 0):
        raise DataError(f"the times of a history must not decrease, got {times[late]:g} after {times[late - 1]:g}")
    return times, events, values


def read_events(
    data: Any,
    columns: EventColumns,
    *,
    used: Sequence[str] = (),
    unit: str | None = None,
    values: Sequence[str] | None = None,
    keeps_single: bool = False,
    options: ReadOptions = ReadOptions(),  # noqa: B008  frozen
) -> EventTable:
    """Read the events of a file, or of rows in memory.

    Args:
        data: A path, or rows in memory: dictionaries or lists of cells.
        columns: The columns of subjects, times and events; those that are unset are inferred.
        used: The columns to use; unset, all.
        unit: The unit of times; unset, that of the distances between dates.
        values: The columns of numbers, for a model that was trained on them; unset, all that have numbers.
        keeps_single: Whether subjects with one event and no end are kept, from which something is predicted and nothing
            is learned.
        options: The encoding and the format of a file, where they are known.
    """
    wanted = [*used, *filter(None, (columns.subject, columns.time, columns.event))]
    table = open_records(
        data, wanted=wanted or None, encoding=options.encoding, format=options.format, header=options.header
    )
    table.check()
    rows = [(line, row) for line, row, fault in table.read() if fault != BLANK]
    names = [table.names[require_column(name, table.names, where=table.name)] for name in used] or list(table.names)
    roles = _find_roles(table, rows, names, columns)
    if values is not None:
        if missing := [name for name in values if name not in table.names]:
            raise DataError(
                f"{table.name} must have the columns of training, got none called "
                f"{format_names([format_column(name) for name in missing])}"
            )
        numeric, ignored = list(values), []
    else:
        numeric, ignored = _find_numbers(rows, [name for name in names if name not in roles.values()])
    kind, times = _read_times(table.name, rows, roles["time"])
    subjects = _read_texts(table.name, rows, roles["subject"])
    events = _read_texts(table.name, rows, roles["event"])
    numbers = np.empty((len(rows), len(numeric)))
    for place, name in enumerate(numeric):
        numbers[:, place] = _read_numbers(table.name, rows, name)
    if len(set(events)) > _MOST_EVENTS:
        raise DataError(
            f"{table.name} has {len(set(events)):,} different events in {format_column(roles['event'])}: "
            f"at most {_MOST_EVENTS:,} are modeled"
        )
    reader = _Reader(table.name, kind, times, events, numbers, columns)
    found = reader.read(subjects, unit, keeps_single=keeps_single)
    notes = [
        f"subject = {format_column(roles['subject'])}, time = {format_column(roles['time'])}"
        f"{f' in {found[0]}' if found[0] else ''}, event = {format_column(roles['event'])}"
        + (f", numbers: {format_names([format_column(name) for name in numeric])}" if numeric else ""),
        *([f"not used: {format_names([format_column(name) for name in ignored])}, without numbers"] if ignored else []),
        *reader.notes,
    ]
    paths = () if table.format == "rows" else (Path(data),)
    return EventTable(found[0], tuple(numeric), tuple(found[1]), paths, notes)


class _Reader:
    """Makes histories of the cells of a table."""

    def __init__(
        self, where: str, kind: TimestampKind, times: NDArray[np.float64], events: list[str],
        numbers: NDArray[np.float64], columns: EventColumns,
    ) -> None:  # fmt: skip
        self.where, self.times, self.events, self.numbers = where, times, events, numbers
        self.kind: TimestampKind = kind
        known = {event.strip().lower(): event for event in events}
        self.start = _special(columns.start_event, _START_NAMES, known, where)
        self.end = _special(columns.end_event, _END_NAMES, known, where)
        self.notes: list[str] = []

    def read(self, subjects: Sequence[str], unit: str | None, *, keeps_single: bool) -> tuple[str, list[EventHistory]]:
        of_subject: dict[str, list[int]] = {}
        for place, subject in enumerate(subjects):
            of_subject.setdefault(subject, []).append(place)
        order, num_unsorted, num_ties = {}, 0, 0
        for subject, places in of_subject.items():
            keys = self.times[places]
            num_unsorted += bool((np.diff(keys) < 0).any())
            order[subject] = np.array(places)[np.argsort(keys, kind="stable")]
            num_ties += int((np.diff(self.times[order[subject]]) == 0).sum())
        unit = self._unit(order) if unit is None else unit
        size = unit_size(unit)
        is_zero = self.kind == "number" and self.start is None and self._starts_at_zero(order)
        found, num_single = [], 0
        for subject, places in order.items():
            history = self._history(subject, places, size, is_zero=is_zero)
            if history.end == 0.0 and len(history.events) <= history.is_given and not keeps_single:
                num_single += 1
            else:
                found.append(history)
        if not found:
            raise DataError(
                f"{self.where}: every subject has one event only and no end of observation, so there is nothing to "
                "predict"
            )
        self._describe(num_unsorted, num_ties, num_single, is_zero=is_zero)
        return unit, found

    def _history(self, subject: str, places: NDArray[np.int64], size: float, *, is_zero: bool) -> EventHistory:
        names = [self.events[place] for place in places]
        times = self.times[places]
        starts = [place for place, name in enumerate(names) if name == self.start]
        ends = [place for place, name in enumerate(names) if name == self.end]
        for event, some in ((self.start, starts), (self.end, ends)):
            if len(some) > 1:
                raise DataError(f"{self.where}: the subject {subject!r} has {len(some)} rows with the event {event!r}")
        start = float(times[starts[0]] if starts else 0.0 if is_zero else times[0])
        if times[0] < start:
            began = f"its {self.start!r} at {self._time(start)}" if starts else "the start of its observation at 0"
            raise DataError(
                f"{self.where}: the subject {subject!r} has the event {names[0]!r} at {self._time(float(times[0]))}, "
                f"before {began}"
            )
        end = float(times[ends[0]] if ends else times[-1])
        if times[-1] > end:
            raise DataError(
                f"{self.where}: the subject {subject!r} has the event {names[-1]!r} at {self._time(float(times[-1]))}, "
                f"after its {self.end!r} at {self._time(end)}"
            )
        kept = np.array([place for place in range(len(names)) if place not in (*starts, *ends)], np.int64)
        is_given = not starts and not is_zero and len(kept) > 0
        return EventHistory(
            subject,
            Timestamp(self.kind, start),
            (times[kept] - start) / size,
            tuple(names[place] for place in kept),
            self.numbers[places][kept],
            (end - start) / size,
            is_given,
        )

    def _time(self, value: float) -> str:
        return str(Timestamp(self.kind, value))

    def _unit(self, order: Mapping[str, NDArray[np.int64]]) -> str:
        """For dates, the largest unit that the median distance between events has at least one of."""
        if self.kind == "number":
            return ""
        gaps = np.concatenate([np.diff(self.times[places]) for places in order.values()])
        gaps = gaps[gaps > 0]
        median = float(np.median(gaps)) if len(gaps) else 1.0
        return next(unit for unit, seconds in _SECONDS.items() if median >= seconds or unit == "seconds")

    def _starts_at_zero(self, order: Mapping[str, NDArray[np.int64]]) -> bool:
        """Whether numbers are times since the start, and not those of a clock, such as seconds since 1970."""
        firsts = np.array([self.times[places[0]] for places in order.values()])
        spans = np.array([self.times[places[-1]] - self.times[places[0]] for places in order.values()])
        return bool(np.median(firsts) <= max(float(spans.max()), 1e-12) or float(firsts.min()) < 0)

    def _describe(self, num_unsorted: int, num_ties: int, num_single: int, *, is_zero: bool) -> None:
        began = (
            f"the event {self.start!r} is the start of observation" if self.start is not None
            else "observation starts at time 0" if is_zero
            else "observation starts with the first event of a subject, which is given and not predicted"
        )  # fmt: skip
        ended = (
            f"the event {self.end!r} is the end: a subject is censored there" if self.end is not None
            else "no event marks the end of observation (task.end_event), which ends with the last event of a subject"
        )  # fmt: skip
        self.notes = [f"{began}; {ended}"]
        if num_unsorted:
            self.notes.append(
                f"the rows of {format_count(num_unsorted, 'subject')} are not in the order of time: they are sorted"
            )
        if num_ties:
            self.notes.append(
                f"{format_count(num_ties, 'event')} at the same time as the one before: the order of the table is kept"
            )
        if num_single:
            self.notes.append(
                f"{format_count(num_single, 'subject')} with one event only and no end of observation: left out"
            )


def _special(given: str | None, names: Sequence[str], known: Mapping[str, str], where: str) -> str | None:
    """The event that starts or ends an observation, as it is spelled in the table; None where there is none."""
    if given is not None:
        return given
    found = [known[name] for name in names if name in known]
    if len(found) > 1:
        raise DataError(
            f"{where} has the events {format_names([repr(name) for name in found])}: task.start_event or "
            "task.end_event names the one that is meant"
        )
    return found[0] if found else None


def _find_roles(table: RecordTable, rows: _Rows, names: list[str], columns: EventColumns) -> dict[str, str]:
    """The columns of subjects, times and events."""
    roles: dict[str, str] = {}
    for role in ("time", "subject", "event"):
        if (given := getattr(columns, role)) is not None:
            roles[role] = table.names[require_column(given, table.names, where=table.name)]
    cells = {name: _known_cells(rows[:_SAMPLE], name) for name in names}

    def first(role: str, known: Sequence[str], suits: Any) -> None:
        if role not in roles:
            free = [name for name in names if name not in roles.values() and suits(cells[name])]
            by_name = [name for wanted in known for name in free if name.strip().lower() == wanted]
            roles.update({role: by_name[0]} if by_name else {})

    first("time", EVENT_TIME_COLUMNS, lambda texts: _are_dates(texts) or has_numbers(texts))
    first("time", [name.strip().lower() for name in names], _are_dates)
    first("subject", SUBJECT_COLUMNS, bool)
    first("event", EVENT_COLUMNS, bool)
    if "event" not in roles and "subject" in roles:  # the only other column of text
        texts = [name for name in names if name not in roles.values() and not has_numbers(cells[name])]
        roles |= {"event": texts[0]} if len(texts) == 1 else {}
    if missing := [role for role in ("subject", "time", "event") if role not in roles]:
        shown = format_names([format_column(name) for name in names])
        raise DataError(f"{table.name} has no column of {missing[0]}s among {shown}: task.{missing[0]}_column names it")
    return roles


def _find_numbers(rows: _Rows, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The columns that have numbers, and those that have texts only."""
    are_numbers = {name: has_numbers(_known_cells(rows[:_SAMPLE], name)) for name in names}
    return [name for name in names if are_numbers[name]], [name for name in names if not are_numbers[name]]


def _read_times(where: str, rows: _Rows, name: str) -> tuple[TimestampKind, NDArray[np.float64]]:
    texts = _texts(rows, name)
    found = [parse_timestamp(text) for text in texts]
    kinds = Counter(time.kind for time in found if time is not None)
    kind: TimestampKind = "number" if kinds["number"] >= kinds["date"] else "date"
    for (line, _), text, time in zip(rows, texts, found, strict=True):
        if time is None or time.kind != kind:
            what = "a number" if kind == "number" else "a date such as 2024-05-31T12:00"
            raise DataError(f"{where}, line {line:,}: {format_column(name)} must be {what}, got {text!r}")
    return kind, np.array([time.value for time in found if time is not None])


def _read_texts(where: str, rows: _Rows, name: str) -> list[str]:
    found = _texts(rows, name)
    if empty := next((line for (line, _), text in zip(rows, found, strict=True) if not text), 0):
        raise DataError(f"{where}, line {empty:,}: {format_column(name)} is empty")
    return found


def _read_numbers(where: str, rows: _Rows, name: str) -> NDArray[np.float64]:
    """The numbers of a column, NaN where a cell is empty."""
    texts = _texts(rows, name)
    mark = decimal_mark(texts[:_SAMPLE])
    found = np.full(len(texts), np.nan)
    for place, text in enumerate(texts):
        if text.lower() in _MISSING:
            continue
        if mark not in decimal_marks(text):
            raise DataError(
                f"{where}, line {rows[place][0]:,}: {format_column(name)} must have numbers, got {text!r}; an empty "
                "cell is a missing value"
            )
        found[place] = float(with_decimal_point(text, mark))
    return found


def _texts(rows: _Rows, name: str) -> list[str]:
    return [(as_text(cell(row, name)) or "").strip() for _, row in rows]


def _known_cells(rows: _Rows, name: str) -> list[str]:
    return [text for text in _texts(rows, name) if text.lower() not in _MISSING]


def _are_dates(texts: Sequence[str]) -> bool:
    return bool(texts) and all(is_date(text) for text in texts)


def has_numbers(texts: Sequence[str]) -> bool:
    """Whether most cells that are not empty are numbers: a few texts among them are errors, and not a column of text.

    Example:
        >>> has_numbers(["1.5", "", "2", "much"]), has_numbers(["a", "2024-05-31"])
        (True, False)
    """
    known = [text for text in texts if text.strip().lower() not in _MISSING]
    return 2 * sum(bool(decimal_marks(text)) for text in known) > len(known)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
