"""Train, validation and test rows: split once, by content, the same way every time.

A row's place is decided by a hash of its first column, so that rows with the
same source stay together: none can be in two sets. The smallest hashes are the
test set, the next the validation set, and the rest is for training, whatever
the order of the file and however often it is read.

`regard.data.strata` splits by groups and within labels, `regard.data.times` by
time, and `regard.data.surveys` does as the settings say.
"""

import hashlib
import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from regard.data.config import DataConfig
from regard.errors import DataError

_LARGEST = 1 << 64
_DEFAULT_SHARE, _DEFAULT_MOST = 0.05, 2_000
_TEST_SHARE_OF_FEW = 0.4
"""Where few rows are learned from, more of the others can judge."""
_KEYS_KEPT = 20_000
"""Up to this many held-out rows are counted exactly; beyond, a share of the hashes is as good."""
_SAMPLE_ROWS, _SAMPLE_CHARACTERS = 100_000, 1_000
"""What a tokenizer learns from: so many rows, so much of each side."""


Entry = tuple[Sequence[str], str]
"""A row, and what it is split by: its source, or the group or the time that it belongs to."""


class Split(Protocol):
    """Which set a row belongs to."""

    @property
    def holds_back(self) -> bool:
        """Whether any rows are for validation."""
        ...

    def role(self, row: Sequence[str], key: str) -> str:
        """`train`, `valid`, `test` or `unused`, for a row that is split by this key."""
        ...


@dataclass(frozen=True)
class HashSplit:
    """Which set a row belongs to, by the hash of its key."""

    test_below: int
    """Hashes below this one are test rows; of the others,"""
    valid_below: int
    """those below this one are validation rows; of the others,"""
    train_from: int
    """those from this one on are training rows, and what is left is not used."""
    seed: int

    @property
    def holds_back(self) -> bool:
        return self.valid_below > self.test_below

    def role(self, row: Sequence[str], key: str) -> str:
        return self.role_of_hash(split_hash(key, self.seed))

    def role_of_hash(self, number: int) -> str:
        if number < self.valid_below:
            return "test" if number < self.test_below else "valid"
        return "train" if number >= self.train_from else "unused"


@dataclass(frozen=True)
class Survey:
    """What one pass over the training table finds out."""

    num_rows: int
    num_characters: int
    split: Split
    sample: list[tuple[str, ...]] | None
    """Training rows for a tokenizer to learn from, chosen by hash; None where only `sample_of` can tell them."""
    notes: list[str] = field(default_factory=list)
    """How the split was made, where that is not by source."""
    warnings: list[str] = field(default_factory=list)
    """What it could not do."""


def split_hash(key: str, seed: int) -> int:
    """A number below 2^64 that depends on what a row is split by and the seed alone."""
    return _hash(f"{seed}\x1f{key}")


def row_hash(row: Sequence[str]) -> int:
    """A number that two rows share if, and but for chance only if, they are the same."""
    return _hash("\x1f".join(row))


def survey_by_source(entries: Iterable[Entry], config: DataConfig, *, has_valid: bool, has_test: bool) -> Survey:
    """Count the rows, decide the split and choose a sample, in one pass and constant memory."""
    smallest: list[int] = []  # negated: a heap whose top is the largest of the smallest keys
    largest: list[tuple[int, tuple[str, ...]]] = []
    num_rows = num_characters = 0
    for row, source in entries:
        num_rows += 1
        num_characters += sum(map(len, row))
        key = split_hash(source, config.split_seed)
        if len(smallest) < _KEYS_KEPT:
            heapq.heappush(smallest, -key)
        elif -key > smallest[0]:
            heapq.heapreplace(smallest, -key)
        if len(largest) < _SAMPLE_ROWS:
            heapq.heappush(largest, (key, _beginnings(row)))
        elif key > largest[0][0]:
            heapq.heapreplace(largest, (key, _beginnings(row)))
    wanted = held_out_counts(config, num_rows, has_valid=has_valid, has_test=has_test)
    test_below, valid_below = _limits(num_rows, sorted(-key for key in smallest), *wanted)
    train_from = max(valid_below, _train_from(config, num_rows, sorted(key for key, _ in largest)))
    split = HashSplit(test_below, valid_below, train_from, config.split_seed)
    sample = [row for key, row in sorted(largest) if key >= train_from]
    if not sample:
        raise DataError(
            f"{num_rows:,} rows, of which those with the same source stay together, are too few "
            "to hold any back for validation: give more rows or a file of them"
        )
    return Survey(num_rows, num_characters, split, sample)


def sample_of(entries: Iterable[Entry], split: Split) -> list[tuple[str, ...]]:
    """Training rows for a tokenizer to learn from, chosen by a hash of each, whatever their order."""
    largest: list[tuple[int, tuple[str, ...]]] = []
    for row, key in entries:
        if split.role(row, key) == "train":
            number = row_hash(row)
            if len(largest) < _SAMPLE_ROWS:
                heapq.heappush(largest, (number, _beginnings(row)))
            elif number > largest[0][0]:
                heapq.heapreplace(largest, (number, _beginnings(row)))
    return [row for _, row in sorted(largest)]


def draw_few(
    rows: Iterable[Sequence[str]], few: int, seed: int, kinds: Callable[[Sequence[str]], Sequence[str]]
) -> list[tuple[str, ...]]:
    """So many distinct rows of each kind, or all there are, chosen by a hash of the whole row and the seed.

    The order of the rows does not matter, and of one seed fewer are always among more. A row of several kinds counts
    for each of them, so that of some there may be more.

    Example:
        >>> rows = [(f"text {number}", "odd" if number % 2 else "even") for number in range(100)]
        >>> [label for _, label in sorted(draw_few(rows, 2, 0, lambda row: row[-1:]), key=lambda row: row[-1])]
        ['even', 'even', 'odd', 'odd']
    """
    heaps: dict[str, list[tuple[int, tuple[str, ...]]]] = {}  # of each kind; keys negated: the largest is on top
    for row in rows:
        entry = -_hash("\x1f".join([str(seed), *row])), tuple(row)
        for kind in kinds(row):
            heap = heaps.setdefault(kind, [])
            if (len(heap) < few or entry > heap[0]) and entry not in heap:
                (heapq.heappush if len(heap) < few else heapq.heapreplace)(heap, entry)
    return [row for _, row in sorted({entry for heap in heaps.values() for entry in heap}, reverse=True)]


def default_share(total: int, *, most: int) -> float:
    """What is held back for validation, and as much for the test, where nobody says."""
    return min(_DEFAULT_SHARE, most / total) if total else 0.0


def held_out_shares(config: DataConfig, default: float, *, has_valid: bool, has_test: bool) -> tuple[float, float]:
    """The shares of the training data to hold back for validation and for the test."""
    valid, test = config.splits[1:] or (default, default)
    # Whoever brings a validation file has a test file as well, or wants none made.
    return (0.0 if has_valid else valid), (0.0 if has_valid or has_test else test)


def held_out_counts(config: DataConfig, num_rows: int, *, has_valid: bool, has_test: bool) -> tuple[int, int]:
    """How many of so many rows are to be held back for validation and for the test."""
    default = default_share(num_rows, most=_DEFAULT_MOST)
    if config.few is not None and not config.splits:
        more = min(_TEST_SHARE_OF_FEW, _DEFAULT_MOST / max(1, num_rows))
        config = config.changed(splits=[1 - default - more, default, more])
    shares = held_out_shares(config, default, has_valid=has_valid, has_test=has_test)
    num_valid, num_test = (max(1, round(share * num_rows)) if share else 0 for share in shares)
    return num_valid, num_test


def _train_from(config: DataConfig, num_rows: int, largest: list[int]) -> int:
    """The hash from which on rows are trained on, where not all are."""
    if config.train_rows is None or config.train_rows >= num_rows:
        return 0
    if config.train_rows <= len(largest):
        return largest[-config.train_rows]
    return round(_LARGEST * (1 - config.train_rows / num_rows))


def _limits(num_rows: int, smallest: list[int], num_valid: int, num_test: int) -> tuple[int, int]:
    def below(rank: int, start: int) -> int:
        """The limit of a set that begins at the key `start` and ends before the row of this rank."""
        first = bisect_left(smallest, start)
        if max(rank, first) >= len(smallest):
            return round(_LARGEST * rank / num_rows) if num_rows > len(smallest) else _LARGEST
        # Rows of one source may hold all these ranks; they are taken whole.
        return max(smallest[rank], smallest[first] + 1)

    test_below = below(num_test, 0) if num_test else 0
    return test_below, (below(num_test + num_valid, test_below) if num_valid else test_below)


def _beginnings(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(text[:_SAMPLE_CHARACTERS] for text in row)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
