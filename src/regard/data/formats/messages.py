"""Wording of counts, names and bad rows in messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field

_MAX_NAME_LENGTH = 40
_MAX_NAMES = 20
_MAX_LINES = 5
_MAX_REASONS = 5
_MAX_BAD_SHARE = 0.05


def format_count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> format_count(1, "row"), format_count(1000, "row")
    ('1 row', '1,000 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_names(names: Sequence[str]) -> str:
    """Names separated by commas; long names and long lists are cut."""
    shown = [name if len(name) <= _MAX_NAME_LENGTH else f"{name[:_MAX_NAME_LENGTH]}…" for name in names[:_MAX_NAMES]]
    return ", ".join(shown) + (", …" if len(names) > _MAX_NAMES else "")


def format_column(column: str) -> str:
    """A column in a sentence: its name, or `column 3` if it has only a position."""
    return f"column {column}" if column.isascii() and column.isdigit() else column


def plural_of(noun: str | None) -> str:
    """The plural of the name of a column.

    >>> plural_of("author"), plural_of("user id"), plural_of("address"), plural_of("3")
    ('authors', 'user ids', 'values of address', 'values of column 3')
    """
    name = noun or "value"
    is_regular = name.replace(" ", "").isalpha() and not name.endswith(("s", "x", "y", "z", "h"))
    return f"{name}s" if is_regular else f"values of {format_column(name)}"


def is_tolerable(num_bad: int, num_rows: int) -> bool:
    """Whether so few rows are bad that they are likely to be missing values, and not signs of a file that is misread.

    >>> is_tolerable(5, 100), is_tolerable(6, 100)
    (True, False)
    """
    return num_bad <= _MAX_BAD_SHARE * num_rows


@dataclass(kw_only=True)
class BadRows:
    """The invalid rows of one pass over a table: how many there are by reason, and the lines of the first ones."""

    where: str
    unit: str = "line"
    num_good: int = 0
    """Valid rows of the same pass."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows by reason."""
    first_lines: dict[str, list[int]] = field(default_factory=dict)
    """The first lines by reason."""

    def add(self, reason: str, line: int) -> None:
        """Count one row."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        lines = self.first_lines.setdefault(reason, [])
        if len(lines) < _MAX_LINES:
            lines.append(line)

    @property
    def total(self) -> int:
        """The number of invalid rows."""
        return sum(self.counts.values())

    def may_be_skipped(self, skip_bad: bool | None) -> bool:
        """Whether the pass may leave these rows out: as `skip_bad` says, or for None if they are few."""
        return is_tolerable(self.total, self.total + self.num_good) if skip_bad is None else skip_bad

    def __str__(self) -> str:
        """One sentence, such as `3 of 1,000 rows of pairs.tsv have 1 column instead of 2: lines 4, 9, 17`."""
        reasons = sorted(self.counts, key=lambda key: -self.counts[key])
        share = f"{self.total:,} of {format_count(self.total + self.num_good, 'row')} of {self.where}"
        if len(reasons) == 1:
            return f"{share} {self._has(reasons[0])}: {self._lines(reasons[0])}"
        if not reasons:
            return f"no bad rows in {self.where}"
        parts = [f"{self.counts[key]:,} {self._has(key)} ({self._lines(key)})" for key in reasons[:_MAX_REASONS]]
        more = "; …" if len(reasons) > _MAX_REASONS else ""
        return f"{share} are bad: {'; '.join(parts)}{more}"

    def _has(self, reason: str) -> str:
        return f"{'has' if self.counts[reason] == 1 else 'have'} {reason}"

    def _lines(self, reason: str) -> str:
        count, lines = self.counts[reason], ", ".join(f"{line:,}" for line in self.first_lines[reason])
        return f"{self.unit if count == 1 else self.unit + 's'} {lines}{', …' if count > _MAX_LINES else ''}"
