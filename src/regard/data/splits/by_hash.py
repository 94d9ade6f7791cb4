"""Training, validation and test rows by a hash of their source.

The split of a row is decided by a hash of its first column, so that rows with the same source are in the same split.
The smallest hashes are the test set, the next ones the validation set, and the rest is for training; the result does
not depend on the order of the file.
"""

import hashlib
import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from regard.data.settings import DataConfig
from regard.errors import DataError

SPLIT_PURPOSES = {"train": "for training", "valid": "for validation", "test": "for the test", "unused": "not used"}
"""The splits, and their wording in messages."""

_END = 1 << 64
_DEFAULT_SHARE, _DEFAULT_MAX = 0.05, 2_000
_FEW_HELD_OUT, _LARGEST_SHARE = 200, 0.1
"""Of few rows a larger share is held out: the interval of a proportion on 200 rows is +-0.07, on 20 rows +-0.22."""
_FEW_SHOT_TEST_SHARE = 0.4
"""With few training rows, more of the others are available for the test."""
_MAX_EXACT = 20_000
"""Up to this many held-out rows are counted exactly; beyond, a share of the range of hashes is accurate enough."""
_SAMPLE_ROWS, _SAMPLE_CHARACTERS = 100_000, 1_000
"""The sample for training a tokenizer: at most this many rows, and characters of each text."""

SplitEntry = tuple[Sequence[str], str]
"""A row, and the key by which it is split: its source, group or time."""


class SplitRule(Protocol):
    """Assigns rows to splits."""

    @property
    def has_validation(self) -> bool:
        """Whether any rows are assigned to the validation set."""
        ...

    def assign(self, row: Sequence[str], key: str) -> str:
        """Return `train`, `valid`, `test` or `unused` for a row with this key."""
        ...


@dataclass(frozen=True)
class HashSplit:
    """Assigns rows by the hash of their key."""

    test_below: int
    """Hashes below this are in the test set."""
    valid_below: int
    """Other hashes below this are in the validation set."""
    train_from: int
    """Other hashes from this on are in the training set; the rest is not used."""
    seed: int

    @property
    def has_validation(self) -> bool:
        return self.valid_below > self.test_below

    def assign(self, row: Sequence[str], key: str) -> str:
        return self.assign_hash(split_hash(key, self.seed))

    def assign_hash(self, number: int) -> str:
        if number < self.valid_below:
            return "test" if number < self.test_below else "valid"
        return "train" if number >= self.train_from else "unused"


@dataclass(frozen=True)
class SplitPlan:
    """The result of one pass over the training table."""

    num_rows: int
    num_characters: int
    rule: SplitRule
    sample: list[tuple[str, ...]] | None
    """Training rows for a tokenizer, chosen by hash; None if `sample_rows` has to choose them in another pass."""
    notes: list[str] = field(default_factory=list)
    """How rows were split, if not by source."""
    warnings: list[str] = field(default_factory=list)


def split_hash(key: str, seed: int) -> int:
    """A number below 2^64 that depends only on the key of a row and the seed."""
    return _hash(f"{seed}\x1f{key}")


def row_hash(row: Sequence[str]) -> int:
    """A number below 2^64 that is equal for equal rows, and with high probability different for others."""
    return _hash("\x1f".join(row))


def plan_by_source(entries: Iterable[SplitEntry], config: DataConfig, *, has_valid: bool, has_test: bool) -> SplitPlan:
    """Count the rows, decide the split and choose a sample, in one pass and constant memory."""
    smallest: list[int] = []  # negated: a heap whose top is the largest of the smallest hashes
    sample = _Largest(_SAMPLE_ROWS)
    num_rows = num_characters = 0
    for row, key in entries:
        num_rows += 1
        num_characters += sum(map(len, row))
        number = split_hash(key, config.split_seed)
        if len(smallest) < _MAX_EXACT:
            heapq.heappush(smallest, -number)
        elif -number > smallest[0]:
            heapq.heapreplace(smallest, -number)
        sample.add(number, row)
    largest = sample.sorted()
    wanted = held_out_counts(config, num_rows, has_valid=has_valid, has_test=has_test)
    test_below, valid_below = _limits(num_rows, sorted(-number for number in smallest), *wanted)
    train_from = max(valid_below, _train_from(config, num_rows, [number for number, _ in largest]))
    rows = [row for number, row in largest if number >= train_from]
    if not rows:
        if num_rows > 1 and len(set(smallest)) == 1:
            raise DataError(
                f"all {num_rows:,} rows have the same source, and rows with one source stay together, so that none can "
                "be held out for validation: add rows with other sources, or a validation file"
            )
        advice = "too few to hold out any for validation: add rows or a validation file"
        if num_rows == 1:
            raise DataError(f"1 row is {advice}")
        raise DataError(f"{num_rows:,} rows, of which those with the same source stay together, are {advice}")
    rule = HashSplit(test_below, valid_below, train_from, config.split_seed)
    return SplitPlan(num_rows, num_characters, rule, rows)


def sample_rows(entries: Iterable[SplitEntry], rule: SplitRule) -> list[tuple[str, ...]]:
    """Training rows for a tokenizer, chosen by a hash of each row, whatever their order."""
    sample = _Largest(_SAMPLE_ROWS)
    for row, key in entries:
        if rule.assign(row, key) == "train":
            sample.add(row_hash(row), row)
    return [row for _, row in sample.sorted()]


def draw_shots(
    rows: Iterable[Sequence[str]], shots: int, seed: int, labels_of: Callable[[Sequence[str]], Sequence[str]]
) -> list[tuple[str, ...]]:
    """Draw `shots` distinct rows of each label, or all there are, by a hash of the whole row and the seed.

    The order of the rows does not matter, and with one seed a smaller draw is part of every larger one. A row with
    several labels counts for each of them, so some labels may have more rows.

    Example:
        >>> rows = [(f"text {number}", "odd" if number % 2 else "even") for number in range(100)]
        >>> [label for _, label in sorted(draw_shots(rows, 2, 0, lambda row: row[-1:]), key=lambda row: row[-1])]
        ['even', 'even', 'odd', 'odd']
    """
    heaps: dict[str, list[tuple[int, tuple[str, ...]]]] = {}  # for each label; hashes negated: the largest is on top
    for row in rows:
        entry = -_hash("\x1f".join([str(seed), *row])), tuple(row)
        for label in labels_of(row):
            heap = heaps.setdefault(label, [])
            if (len(heap) < shots or entry > heap[0]) and entry not in heap:
                (heapq.heappush if len(heap) < shots else heapq.heapreplace)(heap, entry)
    return [row for _, row in sorted({entry for heap in heaps.values() for entry in heap}, reverse=True)]


def default_share(total: int, *, most: int) -> float:
    """The default share of each of validation and test set, which are limited to `most`."""
    return min(_DEFAULT_SHARE, most / total) if total else 0.0


def default_share_of_rows(num_rows: int, *, most: int = _DEFAULT_MAX) -> float:
    """The same for separate rows, of which a few are too few for a score.

    Example:
        >>> [round(default_share_of_rows(number), 3) for number in (100, 1_000, 2_000, 10_000, 100_000)]
        [0.1, 0.1, 0.1, 0.05, 0.02]
    """
    few = min(_LARGEST_SHARE, _FEW_HELD_OUT / num_rows) if num_rows else 0.0
    return max(few, default_share(num_rows, most=most))


def held_out_shares(config: DataConfig, default: float, *, has_valid: bool, has_test: bool) -> tuple[float, float]:
    """The shares of the training data to hold out for validation and for the test."""
    valid, test = config.splits[1:] or (default, default)
    # A user with a validation file also has a test file, or wants none to be made.
    return (0.0 if has_valid else valid), (0.0 if has_valid or has_test else test)


def held_out_counts(config: DataConfig, num_rows: int, *, has_valid: bool, has_test: bool) -> tuple[int, int]:
    """The number of rows to hold out for validation and for the test."""
    default = default_share_of_rows(num_rows)
    if config.shots is not None and not config.splits:
        more = min(_FEW_SHOT_TEST_SHARE, _DEFAULT_MAX / max(1, num_rows))
        config = config.changed(splits=[1 - default - more, default, more])
    shares = held_out_shares(config, default, has_valid=has_valid, has_test=has_test)
    num_valid, num_test = (max(1, round(share * num_rows)) if share else 0 for share in shares)
    return num_valid, num_test


class _Largest:
    """The beginnings of the rows with the largest numbers."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, tuple[str, ...]]] = []

    def add(self, number: int, row: Sequence[str]) -> None:
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, (number, _beginnings(row)))
        elif number > self._heap[0][0]:
            heapq.heapreplace(self._heap, (number, _beginnings(row)))

    def sorted(self) -> list[tuple[int, tuple[str, ...]]]:
        return sorted(self._heap)


def _train_from(config: DataConfig, num_rows: int, largest: list[int]) -> int:
    """The smallest hash of a training row, if not all rows are used."""
    if config.train_rows is None or config.train_rows >= num_rows:
        return 0
    if config.train_rows <= len(largest):
        return largest[-config.train_rows]
    return round(_END * (1 - config.train_rows / num_rows))


def _limits(num_rows: int, smallest: list[int], num_valid: int, num_test: int) -> tuple[int, int]:
    def below(rank: int, start: int) -> int:
        """The limit of a set that begins at the hash `start` and ends before the row of this rank."""
        first = bisect_left(smallest, start)
        if max(rank, first) >= len(smallest):
            return round(_END * rank / num_rows) if num_rows > len(smallest) else _END
        # Rows of one source may have all of these ranks; they stay together.
        return max(smallest[rank], smallest[first] + 1)

    test_below = below(num_test, 0) if num_test else 0
    return test_below, (below(num_test + num_valid, test_below) if num_valid else test_below)


def _beginnings(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(text[:_SAMPLE_CHARACTERS] for text in row)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
