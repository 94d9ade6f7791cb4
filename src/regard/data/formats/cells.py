"""Values of cells: what counts as text, and which texts are numbers, dates or points in time."""

import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from numbers import Number
from typing import Literal, NamedTuple

TimestampKind = Literal["number", "date"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTH = re.compile(r"\d{4}-\d{2}")
_DAY = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})((?:[ T].*)?)")
"""A date that begins with its year: the order of the others is ambiguous."""
_POINT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?\d{1,3}(,\d{3})+(\.\d+)?")
_COMMA = re.compile(r"[-+]?(\d+(,\d*)?|,\d+)([eE][-+]?\d+)?|[-+]?\d{1,3}(\.\d{3})+(,\d+)?")
"""Numbers with a decimal point or comma, and the other mark between thousands. No two repetitions of digits follow each
other: the time for a long cell would grow with the square of its length."""
_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2}))([ T]\d{1,2}:\d{2}.*)?")

_MISSING = ("", "-", "?", "na", "n/a", "nan", "none", "null")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_CLOCK = re.compile(
    rf"([A-Z][a-z]{{2}},? )?((\d{{1,2}} )?({_MONTHS})[a-z]*( \d{{1,2}})?,? (\d{{4}} )?)\d{{1,2}}:\d{{2}}\b.*"
)
"""A month by its name and a time of day, as programs write them: `Mon Apr 06 22:19:45 +0000 2009`."""


def as_text(value: object) -> str | None:
    """Strings unchanged, numbers and booleans as in JSON, dates as in ISO 8601; None for any other value.

    A string that cannot be written to a text file, with a NUL or an unpaired surrogate, and NaN are also None.

    >>> as_text("two"), as_text(2), as_text(True), as_text(None)
    ('two', '2', 'true', None)
    """
    if isinstance(value, str):
        return value if _is_writable(value) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number) and not (isinstance(value, float) and math.isnan(value)):
        return str(value)
    return value.isoformat() if isinstance(value, date) else None


def value_kind(value: object) -> str:
    """What a value is for which `as_text` returns None."""
    if isinstance(value, str):
        return "a NUL or half a surrogate pair"
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", float: "NaN"}
    return names.get(type(value), f"a {type(value).__name__}")


def is_missing(text: str) -> bool:
    """Whether a cell of a column of numbers or dates is missing, or has a word for that.

    >>> is_missing(" NA "), is_missing("0")
    (True, False)
    """
    return text.strip().lower() in _MISSING


def is_number(text: str) -> bool:
    """Whether a text is a finite number.

    >>> is_number(" -2.5e3"), is_number("nan"), is_number("3 apples")
    (True, False, False)
    """
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def decimal_marks(text: str) -> str:
    """The decimal marks with which a text is a number: both for a whole number, none for what is not a number.

    >>> [decimal_marks(text) for text in ("3.5", "3,5", "12", "1,234,567.8", "1,234", "3.5.2024")]
    ['.', ',', '.,', '.', '.,', '']
    """
    text = text.strip()
    return "." * bool(_POINT.fullmatch(text)) + "," * bool(_COMMA.fullmatch(text))


def decimal_mark(texts: Iterable[str]) -> str:
    """The decimal mark of most of the texts that have one; those such as 1,234 could have either."""
    marks = [(decimal_marks(text), text) for text in texts]
    counts = [sum(mark == found for found, _ in marks) for mark in ".,"]
    if counts == [0, 0]:
        counts = [sum(found == ".," and mark in text for found, text in marks) for mark in ".,"]
    return "," if counts[1] > counts[0] else "."


def with_decimal_point(text: str, mark: str) -> str:
    """A number with this decimal mark as Python writes it.

    >>> with_decimal_point("1.234,5", ","), with_decimal_point("1,234.5", ".")
    ('1234.5', '1234.5')
    """
    return text.strip().replace("." if mark == "," else ",", "").replace(mark, ".")


def is_date(text: str) -> bool:
    """Whether a text is a date with or without a time, in ISO 8601 or as day, month and year in digits.

    A month that is written as a word needs a time of day: without one, dates may be texts to be translated.

    >>> [is_date(text) for text in ("2024-05-31T12:00", "31.5.2024", "5/31/24 8:15", "2024", "May")]
    [True, True, True, False, False]
    >>> [is_date(text) for text in ("Mon Apr 06 22:19:45 PDT 2009", "Mon, 06 Apr 2009 22:19:45 GMT", "6 April 2009")]
    [True, True, False]
    """
    if _DATE.fullmatch(text.strip()) or _CLOCK.fullmatch(text.strip()):
        return True
    timestamp = parse_timestamp(text)
    return timestamp is not None and timestamp.kind == "date"


class Timestamp(NamedTuple):
    """A point in time."""

    kind: TimestampKind
    value: float
    """The number itself, or the seconds since 1970. Points closer than the precision of a float are equal."""

    def __str__(self) -> str:
        if self.kind == "number":
            return f"{self.value:.15g}"  # without commas: it may be a year
        date = _EPOCH + timedelta(seconds=self.value)
        is_midnight = (date.hour, date.minute, date.second, date.microsecond) == (0, 0, 0, 0)
        return str(date.date()) if is_midnight else date.replace(tzinfo=None).isoformat(" ", "seconds")


def parse_timestamp(text: str) -> Timestamp | None:
    """Parse a number, or a date with or without a time in ISO 8601 (UTC if no time zone is given); None otherwise.

    Year, month and day may also be separated by slashes or points, and have one digit.

    >>> [str(parse_timestamp(text)) for text in ("-2.5", "1970-01-02", "2024-05-31T12:00+02:00", "soon")]
    ['-2.5', '1970-01-02', '2024-05-31 10:00:00', 'None']
    >>> str(parse_timestamp("2024/5/31 12:00"))
    '2024-05-31 12:00:00'
    """
    text = text.strip()
    if is_number(text):
        return Timestamp("number", float(text))
    if day := _DAY.fullmatch(text):
        text = f"{day[1]}-{day[3]:0>2}-{day[4]:0>2}{day[5]}"
    try:
        date = datetime.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
    except ValueError:
        return None
    return Timestamp("date", ((date if date.tzinfo else date.replace(tzinfo=UTC)) - _EPOCH).total_seconds())


def _is_writable(text: str) -> bool:
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
