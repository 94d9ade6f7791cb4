"""The sealed test set: rows that nothing reads before they are opened, and fingerprints that recognize them elsewhere.

Sealed rows are stored compressed after a first line that every reader of data refuses, so that no training, sweep or
evaluation reads them by accident. Their fingerprints, a hash of each row, are stored beside them: by these, sealed rows
in another file are recognized without opening anything. This prevents mistakes, not manipulation: it is no encryption.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.data.formats.files import SEALED_HEADER
from regard.data.splits.by_hash import row_hash
from regard.errors import RunError
from regard.files import load_json, most_expanded

_Row = Sequence[str]

_SHORTEST = 20
"""Characters from which a line of text identifies its source; shorter ones occur everywhere."""
_LARGEST_OVERLAP = 0.05
"""The share of a sealed text that another text may repeat, since texts quote each other."""


def seal(rows: Iterable[_Row]) -> bytes:
    """Encode rows as they are stored until they are opened."""
    return SEALED_HEADER + zlib.compress(_lines(rows))


def unseal(data: bytes) -> list[tuple[str, ...]]:
    """The rows that were sealed.

    Example:
        >>> unseal(seal([("a text", "a label")]))
        [('a text', 'a label')]
    """
    if not data.startswith(SEALED_HEADER):
        raise RunError("it was not written by `seal`")
    try:
        lines = _expanded(data[len(SEALED_HEADER) :]).decode().splitlines()
        return [tuple(as_row(load_json(line))) for line in lines]
    except (zlib.error, ValueError) as error:
        raise RunError(f"it is damaged: {error}") from None


def _expanded(data: bytes) -> bytes:
    """The decompressed bytes, if they are not out of proportion."""
    stream, most = zlib.decompressobj(), most_expanded(len(data))
    found = stream.decompress(data, most + 1)
    if len(found) > most:
        raise ValueError(f"it expands to more than {most / 2**20:,.0f} MiB")
    if not stream.eof:
        raise ValueError("it ends too early")
    return found


def as_row(value: Any) -> list[str]:
    """A row of a set, which is a list of texts; a ValueError for any other value."""
    if not isinstance(value, list) or not all(isinstance(cell, str) for cell in value):
        raise ValueError(f"a row must be a list of texts, got {str(value)[:60]}")
    return value


def rows_digest(rows: Iterable[_Row]) -> str:
    """The hash of all rows, by which a change of a sealed set is detected."""
    return hashlib.sha256(_lines(rows)).hexdigest()


@dataclass(frozen=True)
class Fingerprints:
    """Hashes by which rows are recognized elsewhere: sealed ones, and those of training."""

    hashes: frozenset[int]

    @classmethod
    def of(cls, rows: Iterable[_Row]) -> "Fingerprints":
        return cls(frozenset(each for row in rows for each in _row_hashes(row)))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Fingerprints":
        if len(data) % 8:
            raise RunError(f"the fingerprints of a run's rows are damaged: they have {len(data):,} bytes")
        return cls(frozenset(np.frombuffer(data, dtype="<u8").tolist()))

    def to_bytes(self) -> bytes:
        return np.array(sorted(self.hashes), dtype="<u8").tobytes()

    def match(self, rows: Sequence[_Row]) -> list[bool]:
        """For each row whether it is one of these; for a text, whether half of its lines are."""
        found = []
        for row in rows:
            hashes = _row_hashes(row)
            found.append(2 * len(hashes & self.hashes) >= len(hashes) > 0)
        return found

    def share_within(self, rows: Sequence[_Row]) -> float:
        """The share of the sealed rows that these contain, as a longer text may."""
        seen = set().union(*map(_row_hashes, rows)) & self.hashes
        return len(seen) / len(self.hashes) if self.hashes else 0.0


def without_sealed(rows: Sequence[_Row], fingerprints: Fingerprints) -> list[_Row]:
    """The rows that are not sealed; an error where a longer text contains sealed ones."""
    kept = [row for row, is_sealed in zip(rows, fingerprints.match(rows), strict=True) if not is_sealed]
    if (share := fingerprints.share_within(kept)) > _LARGEST_OVERLAP:
        raise RunError(
            f"this text contains {100 * share:.0f} % of the sealed test text: remove it, or open the test set"
        )
    return kept


def _row_hashes(row: _Row) -> set[int]:
    """One hash for a row of several columns; for a text, one for each line that is long enough to be distinctive."""
    if len(row) > 1:
        return {row_hash(row)}
    lines = {line.strip() for line in row[0].splitlines()}
    return {row_hash((line,)) for line in lines if len(line) >= _SHORTEST} or {row_hash(row)}


def _lines(rows: Iterable[_Row]) -> bytes:
    return "".join(json.dumps(list(row), ensure_ascii=True) + "\n" for row in rows).encode()
