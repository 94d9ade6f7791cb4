"""The sealed test set: rows that nothing reads before they are opened, and marks by which they are known elsewhere.

Sealed rows lie compressed behind a first line that every reader of data knows and refuses, so that no training, sweep
or evaluation comes by them through a path. Their marks, a hash of each row, lie beside them: rows of another file that
are among the sealed ones are found by these, and nothing is opened. This keeps honest people honest; it is no lock.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from regard.data.files import SEALED_LINE
from regard.data.splits import row_hash
from regard.errors import RunError

Row = Sequence[str]

_SHORTEST = 20
"""Characters of a line of text that tells where it is from; shorter ones occur everywhere."""
_COVERED = 0.05
"""The share of a sealed text that another may repeat, as texts quote one another."""


def seal(rows: Iterable[Row]) -> bytes:
    """Rows as they are kept until they are opened."""
    return SEALED_LINE + zlib.compress(_lines(rows))


def unseal(data: bytes) -> list[tuple[str, ...]]:
    """The rows that were sealed.

    Example:
        >>> unseal(seal([("a text", "a label")]))
        [('a text', 'a label')]
    """
    if not data.startswith(SEALED_LINE):
        raise RunError("it is not what `seal` wrote")
    try:
        lines = zlib.decompress(data[len(SEALED_LINE) :]).decode().splitlines()
        return [tuple(json.loads(line)) for line in lines]
    except (zlib.error, ValueError) as error:
        raise RunError(f"it is damaged: {error}") from None


def rows_digest(rows: Iterable[Row]) -> str:
    """The hash by which it is seen whether a sealed set is what it was."""
    return hashlib.sha256(_lines(rows)).hexdigest()


@dataclass(frozen=True)
class Marks:
    """What sealed rows are known by."""

    numbers: frozenset[int]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Marks":
        return cls(frozenset(mark for row in rows for mark in _marks(row)))

    @classmethod
    def read(cls, data: bytes) -> "Marks":
        return cls(frozenset(np.frombuffer(data, dtype="<u8").tolist()))

    def to_bytes(self) -> bytes:
        return np.array(sorted(self.numbers), dtype="<u8").tobytes()

    def among(self, rows: Sequence[Row]) -> list[bool]:
        """Of each row whether it is one of the sealed ones; of a text, whether half of its lines are."""
        found = []
        for row in rows:
            marks = _marks(row)
            found.append(2 * len(marks & self.numbers) >= len(marks) > 0)
        return found

    def share_within(self, rows: Sequence[Row]) -> float:
        """How much of the sealed rows stands inside of these, such as in a longer text."""
        seen = set().union(*map(_marks, rows)) & self.numbers
        return len(seen) / len(self.numbers) if self.numbers else 0.0


def without_sealed(rows: Sequence[Row], marks: Marks) -> list[Row]:
    """The rows that are not sealed; an error where a longer text holds sealed ones inside."""
    kept = [row for row, is_sealed in zip(rows, marks.among(rows), strict=True) if not is_sealed]
    if (share := marks.share_within(kept)) > _COVERED:
        raise RunError(
            f"{100 * share:.0f} % of the sealed test text stands inside of this text: take it out, or open the test set"
        )
    return kept


def _marks(row: Row) -> set[int]:
    """A mark for a row of several columns; of a text, one for each line that is long enough to tell."""
    if len(row) > 1:
        return {row_hash(row)}
    lines = {line.strip() for line in row[0].splitlines()}
    return {row_hash((line,)) for line in lines if len(line) >= _SHORTEST} or {row_hash(row)}


def _lines(rows: Iterable[Row]) -> bytes:
    return "".join(json.dumps(list(row), ensure_ascii=True) + "\n" for row in rows).encode()
