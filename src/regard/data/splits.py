"""Train, validation and test rows: split once, by content, the same way every time.

A row's place is decided by a hash of its first column, so that rows with the
same source stay together: none can be in two sets. The smallest hashes are the
test set, the next the validation set, and the rest is for training, whatever
the order of the file and however often it is read.
"""

import hashlib
import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Split:
    """Which set a row belongs to, by its hash."""

    test_below: int
    """Hashes below this one are test rows; of the others,"""
    valid_below: int
    """those below this one are validation rows; of the others,"""
    train_from: int
    """those from this one on are training rows, and what is left is not used."""
    seed: int

    def role(self, row: Sequence[str]) -> str:
        key = split_key(row, self.seed)
        if key < self.valid_below:
            return "test" if key < self.test_below else "valid"
        return "train" if key >= self.train_from else "unused"


@dataclass(frozen=True)
class Survey:
    """What one pass over the training table finds out."""

    num_rows: int
    num_characters: int
    split: Split
    sample: list[tuple[str, ...]]
    """Training rows for a tokenizer to learn from, chosen by hash."""


def split_key(row: Sequence[str], seed: int) -> int:
    """A number below 2^64 that depends on the row's first column and the seed alone."""
    return _hash(f"{seed}\x1f{row[0]}")


def row_hash(row: Sequence[str]) -> int:
    """A number that two rows share if, and but for chance only if, they are the same."""
    return _hash("\x1f".join(row))


def survey(rows: Iterable[Sequence[str]], config: DataConfig, *, has_valid: bool, has_test: bool) -> Survey:
    """Count the rows, decide the split and choose a sample, in one pass and constant memory."""
    smallest: list[int] = []  # negated: a heap whose top is the largest of the smallest keys
    largest: list[tuple[int, tuple[str, ...]]] = []
    num_rows = num_characters = 0
    for row in rows:
        num_rows += 1
        num_characters += sum(map(len, row))
        key = split_key(row, config.split_seed)
        if len(smallest) < _KEYS_KEPT:
            heapq.heappush(smallest, -key)
        elif -key > smallest[0]:
            heapq.heapreplace(smallest, -key)
        if len(largest) < _SAMPLE_ROWS:
            heapq.heappush(largest, (key, tuple(text[:_SAMPLE_CHARACTERS] for text in row)))
        elif key > largest[0][0]:
            heapq.heapreplace(largest, (key, tuple(text[:_SAMPLE_CHARACTERS] for text in row)))
    test_below, valid_below = _limits(config, num_rows, sorted(-key for key in smallest), has_valid, has_test)
    train_from = max(valid_below, _train_from(config, num_rows, sorted(key for key, _ in largest)))
    split = Split(test_below, valid_below, train_from, config.split_seed)
    sample = [row for key, row in sorted(largest) if key >= train_from]
    if not sample:
        raise DataError(
            f"{num_rows:,} rows, of which those with the same source stay together, are too few "
            "to hold any back for validation: give more rows or a file of them"
        )
    return Survey(num_rows, num_characters, split, sample)


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


def _train_from(config: DataConfig, num_rows: int, largest: list[int]) -> int:
    """The hash from which on rows are trained on, where not all are."""
    if config.train_rows is None or config.train_rows >= num_rows:
        return 0
    if config.train_rows <= len(largest):
        return largest[-config.train_rows]
    return round(_LARGEST * (1 - config.train_rows / num_rows))


def _limits(config: DataConfig, num_rows: int, smallest: list[int], has_valid: bool, has_test: bool) -> tuple[int, int]:
    default = default_share(num_rows, most=_DEFAULT_MOST)
    if config.few is not None and not config.splits:
        more = min(_TEST_SHARE_OF_FEW, _DEFAULT_MOST / max(1, num_rows))
        config = config.changed(splits=[1 - default - more, default, more])
    valid, test = held_out_shares(config, default, has_valid=has_valid, has_test=has_test)
    num_test, num_valid = (max(1, round(share * num_rows)) if share else 0 for share in (test, valid))

    def below(rank: int, start: int) -> int:
        """The limit of a set that begins at the key `start` and ends before the row of this rank."""
        first = bisect_left(smallest, start)
        if max(rank, first) >= len(smallest):
            return round(_LARGEST * rank / num_rows) if num_rows > len(smallest) else _LARGEST
        # Rows of one source may hold all these ranks; they are taken whole.
        return max(smallest[rank], smallest[first] + 1)

    test_below = below(num_test, 0) if num_test else 0
    return test_below, (below(num_test + num_valid, test_below) if num_valid else test_below)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
