"""Splits by time: the first rows are for training, the next for validation, the last for the test.

What comes later is judged by what came before, as it is where a model is put to
use. Rows of one moment stay together. A moment is a number, or a date with or without
a time as ISO 8601 writes them; one without a time zone is read as UTC.
"""

import math
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

import numpy as np

from regard.data.apportionment import cut_whole
from regard.data.columns import column_name, count_of
from regard.data.config import DataConfig
from regard.data.splits import Entry, Survey, held_out_counts
from regard.data.strata import far_off
from regard.errors import DataError

ROWS = "rows"
"""What `data.order` says where the order of the file is that of time."""

Kind = Literal["number", "date"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTH = re.compile(r"\d{4}-\d{2}")


class Moment(NamedTuple):
    """When something was."""

    kind: Kind
    place: float
    """The number itself, or the seconds since 1970. As a float: what is closer than it tells apart is one moment."""

    def __str__(self) -> str:
        if self.kind == "number":
            return f"{self.place:.15g}"  # without commas: it may be a year
        date = _EPOCH + timedelta(seconds=self.place)
        is_midnight = (date.hour, date.minute, date.second, date.microsecond) == (0, 0, 0, 0)
        return str(date.date()) if is_midnight else date.replace(tzinfo=None).isoformat(" ", "seconds")


def read_moment(text: str) -> Moment | None:
    """The moment that a text tells; None if it tells none.

    Example:
        >>> [str(read_moment(text)) for text in ("-2.5", "1970-01-02", "2024-05-31T12:00+02:00", "soon")]
        ['-2.5', '1970-01-02', '2024-05-31 10:00:00', 'None']
    """
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return Moment("number", number)
    try:
        date = datetime.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
    except ValueError:
        return None
    return Moment("date", ((date if date.tzinfo else date.replace(tzinfo=UTC)) - _EPOCH).total_seconds())


@dataclass(frozen=True)
class TimeSplit:
    """Which set a row belongs to, by its moment."""

    train_from: float
    """What is before this is not used; then follow the training rows,"""
    valid_from: float
    """from here on the validation rows,"""
    test_from: float
    """and from here on the test rows."""

    @property
    def holds_back(self) -> bool:
        return self.valid_from < self.test_from

    def role(self, row: Sequence[str], key: str) -> str:
        moment = read_moment(key)
        assert moment is not None, "a row without a moment is a bad row"
        if moment.place >= self.valid_from:
            return "test" if moment.place >= self.test_from else "valid"
        return "train" if moment.place >= self.train_from else "unused"


def survey_by_time(entries: Iterable[Entry], config: DataConfig, *, has_test: bool, column: str) -> Survey:
    """Count the rows and decide the split, in one pass; it keeps a number for each row.

    Of `train_rows` the last before the validation rows are trained on.
    """
    places, num_characters = array("d"), 0
    kind: Kind = "number"
    for row, key in entries:
        moment = read_moment(key)
        assert moment is not None, "a row without a moment is a bad row"
        kind = moment.kind
        places.append(moment.place)
        num_characters += sum(map(len, row))
    moments, weights = np.unique(np.array(places), return_counts=True)
    num_valid, num_test = held_out_counts(config, len(places), has_valid=False, has_test=has_test)
    wanted = [num_test, num_valid, config.train_rows or len(places)]
    test, valid, train = (len(moments) - taken for taken in cut_whole(weights[::-1], wanted))
    if valid == 0:
        raise DataError(
            f"{len(places):,} rows of {count_of(len(moments), 'moment')} are too few to hold the last back for "
            "validation and the test: rows of one moment stay together"
        )
    limits = (float(moments[start]) if start < len(moments) else math.inf for start in (train, valid, test))
    rows = {"valid": int(weights[valid:test].sum()), "test": int(weights[test:].sum())}
    return Survey(
        len(places),
        num_characters,
        TimeSplit(*limits),
        None,
        [_told(moments.tolist(), kind, [train, valid, test, len(moments)], column)],
        far_off(rows, {"valid": num_valid, "test": num_test}, "rows of one moment stay together"),
    )


def _told(places: Sequence[float], kind: Kind, starts: Sequence[int], column: str) -> str:
    """From when to when the rows of each set are, where there are any."""
    purposes = ("to train on", "for validation", "for the test")
    told = [
        f"{Moment(kind, places[start])} to {Moment(kind, places[end - 1])} {purpose}"
        for purpose, start, end in zip(purposes, starts, starts[1:], strict=False)
        if start < end
    ]
    by = "the rows, by their lines" if column == ROWS else column_name(column)
    return f"split in the order of {by}: {', '.join(told)}"
