"""What is wrong with the rows of a table, counted during a pass and told at its end, all together."""

from dataclasses import dataclass, field

from regard.data.columns import count_of
from regard.data.records import BLANK

_LINES_TO_LIST = 5
_REASONS_TO_LIST = 5


@dataclass(kw_only=True)
class BadRows:
    """The rows that a pass over a table could not use: how many, why, and where the first of them are."""

    where: str
    unit: str = "line"
    num_good: int = 0
    """Rows of the same pass that could be used."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows by reason. The reason `blank` is no fault: such lines are passed over."""
    first_lines: dict[str, list[int]] = field(default_factory=dict)
    """The first few lines of each reason."""

    def add(self, reason: str, line: int) -> None:
        """Count one row."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        lines = self.first_lines.setdefault(reason, [])
        if len(lines) < _LINES_TO_LIST:
            lines.append(line)

    @property
    def total(self) -> int:
        """How many rows are bad; blank lines are not."""
        return sum(count for reason, count in self.counts.items() if reason != BLANK)

    def __str__(self) -> str:
        """One sentence, as `3 of 1,000 rows of pairs.tsv have 1 column instead of 2: lines 4, 9, 17`."""
        reasons = sorted((reason for reason in self.counts if reason != BLANK), key=lambda key: -self.counts[key])
        share = f"{self.total:,} of {count_of(self.total + self.num_good, 'row')} of {self.where}"
        if len(reasons) == 1:
            return f"{share} {self._has(reasons[0])}: {self._lines(reasons[0])}"
        if not reasons:
            return f"no bad rows in {self.where}"
        told = [f"{self.counts[key]:,} {self._has(key)} ({self._lines(key)})" for key in reasons[:_REASONS_TO_LIST]]
        more = "; …" if len(reasons) > _REASONS_TO_LIST else ""
        return f"{share} are bad: {'; '.join(told)}{more}"

    def _has(self, reason: str) -> str:
        return f"{'has' if self.counts[reason] == 1 else 'have'} {reason}"

    def _lines(self, reason: str) -> str:
        count, lines = self.counts[reason], ", ".join(f"{line:,}" for line in self.first_lines[reason])
        return f"{self.unit if count == 1 else self.unit + 's'} {lines}{', …' if count > _LINES_TO_LIST else ''}"
