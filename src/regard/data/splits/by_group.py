"""Splitting by group and within labels: rows that stay together are a unit, and units have strata.

A unit is all rows of one group, or of one source; it is assigned to a split as a whole. Its stratum is the most common
label of its rows, the first by alphabet among equally common ones; without labels all units have the same stratum.

The size of each split in each stratum is its share, rounded up or down so that the splits have the sizes requested and
the strata the rows they have. It is then filled with units in the order of their hashes: the first are the test set,
the next the validation set, and the rest is for training. If units are single rows, each split has the share of each
stratum to within one row; if a unit is too large for that, the following strata compensate. The order of the file does
not matter.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from regard.data.formats.messages import format_column, format_count, plural_of
from regard.data.settings import DataConfig
from regard.data.splits.by_hash import SPLIT_PURPOSES, HashSplit, SplitEntry, SplitPlan, held_out_counts, split_hash
from regard.errors import DataError

LabelOf = Callable[[Sequence[str]], str]
"""Returns the label of a row."""

_SPLITS = ("test", "valid", "train", "unused")
_TEST, _VALID, _TRAIN, _UNUSED = range(len(_SPLITS))
_MAX_LABELS = 12
_MAX_FACTOR = 2.0
"""A warning is given if a split has more than this many times the rows requested, or fewer than that fraction."""


@dataclass(frozen=True)
class StratifiedSplit:
    """Assigns rows by the hash of their key within their stratum."""

    strata: dict[str, HashSplit]
    """The limits of each stratum."""
    mixed: dict[int, str]
    """The stratum of each unit with several labels, by its hash; for other units it is the label of the row."""
    label_of: LabelOf
    seed: int

    @property
    def has_validation(self) -> bool:
        return any(split.has_validation for split in self.strata.values())

    def assign(self, row: Sequence[str], key: str) -> str:
        number = split_hash(key, self.seed)
        return self.strata[self.mixed.get(number) or self.label_of(row)].assign_hash(number)


def no_label(row: Sequence[str]) -> str:
    """The label of every row if labels are not used."""
    return ""


def plan_by_group(
    entries: Iterable[SplitEntry],
    config: DataConfig,
    *,
    has_test: bool,
    label_of: LabelOf = no_label,
    group: str | None = None,
) -> SplitPlan:
    """Count the rows and decide the split, in one pass that keeps two numbers for each row.

    Args:
        entries: Rows, each with its group or its source.
        config: The sizes of the splits.
        has_test: Whether there are separate test rows.
        label_of: The label of a row, if its share is to be the same in every split.
        group: The name of the column of groups, if rows are split by group.
    """
    hashes, numbers, names = array("Q"), array("q"), dict[str, int]()
    num_characters = 0
    for row, key in entries:
        hashes.append(split_hash(key, config.split_seed))
        numbers.append(names.setdefault(label_of(row), len(names)))
        num_characters += sum(map(len, row))
    units = _Units.of(np.array(hashes), np.array(numbers), list(names))
    num_valid, num_test = held_out_counts(config, len(hashes), has_valid=False, has_test=has_test)
    splits = _assign(units, [num_test, num_valid], config.split_seed)
    for split, wanted in ((_TRAIN, 1), (_VALID, num_valid), (_TEST, num_test)):
        if wanted and not (splits == split).any():
            what = f"{len(units.hashes):,} {plural_of(group)}" if group else "those with the same source"
            raise DataError(
                f"{len(hashes):,} rows, of which {what} stay together, are too few to hold out any for validation and "
                "the test: add rows, or a file for them"
            )
    if config.train_rows is not None:
        _leave_out(units, splits, config.train_rows)
    wanted = {"valid": num_valid, "test": num_test}
    has_labels = label_of is not no_label
    rows = _by_name(np.bincount(splits, units.weights, len(_SPLITS)).astype(int), wanted)
    warnings = size_warnings(
        rows, wanted, f"rows of one {group or 'source'} stay together; another data.split_seed gives another split"
    )
    return SplitPlan(
        len(hashes),
        num_characters,
        _rule(units, splits, label_of, config.split_seed),
        None,
        _notes(units, splits, wanted, group, has_labels=has_labels),
        warnings + (_rare_labels(units, splits, wanted) if has_labels else []),
    )


def size_warnings(rows: Mapping[str, int], wanted: Mapping[str, int], reason: str) -> list[str]:
    """A sentence for each split with far more or far fewer rows than requested."""
    return [
        f"{rows[name]:,} rows are {SPLIT_PURPOSES[name]} although {number:,} were requested: {reason}"
        for name, number in wanted.items()
        if number and not number / _MAX_FACTOR <= rows[name] <= number * _MAX_FACTOR
    ]


def apportion(totals: NDArray[np.int64], sizes: Sequence[int], ties: Sequence[int]) -> NDArray[np.int64]:
    """The rows of each stratum in each of three splits: its share, rounded up or down, with all sums exact.

    Shares are rounded down first. The missing rows of a stratum are then given to the splits with the largest
    remainders, as long as the following strata can still fill the splits: a 0-1 matrix with given row and column sums
    exists, for three columns, if no column lacks more than there are rows left (Ryser, "Combinatorial Properties of
    Matrices of Zeros and Ones", 1957). The strata with the largest remainders come first.

    Args:
        totals: The rows of each stratum.
        sizes: The rows of each split; they sum to those of all strata.
        ties: A number for each stratum that decides between equal remainders.

    Example:
        >>> apportion(np.array([2, 2, 1, 11]), [8, 5, 3], ties=[0, 1, 2, 3])
        array([[1, 1, 0],
               [1, 1, 0],
               [1, 0, 0],
               [5, 3, 3]])
    """
    table, remainders = np.divmod(totals[:, None] * np.array(sizes), totals.sum())
    missing = np.array(sizes) - table.sum(axis=0)
    order = np.lexsort((np.array(ties, np.uint64), totals, -remainders.max(axis=1)))
    open_strata = [stratum for stratum in order if table[stratum].sum() < totals[stratum]]
    for num_done, stratum in enumerate(open_strata, 1):
        num_more = int(totals[stratum] - table[stratum].sum())
        choices = np.array(list(combinations(range(len(sizes)), num_more)))
        for chosen in choices[np.lexsort((-missing[choices].sum(axis=1), -remainders[stratum][choices].sum(axis=1)))]:
            after = missing - np.isin(np.arange(len(sizes)), chosen)
            if after.min() >= 0 and after.max() <= len(open_strata) - num_done:
                table[stratum, chosen] += 1
                missing = after
                break
    assert not missing.any(), "a rounding with exact sums exists"
    return table


def cut_whole(weights: NDArray[np.int64], wanted: Sequence[int], *, least: int = 1) -> list[int]:
    """The ends of consecutive sets of whole units whose weights come closest to those wanted.

    A set with a positive wanted weight has at least `least` units, and leaves as many for each set after it, if
    possible.

    Example:
        >>> cut_whole(np.array([3, 3, 3, 3, 8, 1]), [7, 5, 0])
        [2, 4, 4]
    """
    ends: list[int] = []
    rows_before = np.concatenate([[0], np.cumsum(weights)])
    start = 0
    for place, num_rows in enumerate(wanted, 1):
        if num_rows > 0 and start < len(weights):
            target = rows_before[start] + num_rows
            after = min(int(np.searchsorted(rows_before, target)), len(weights))
            is_nearer_before = target - rows_before[after - 1] < rows_before[after] - target
            limit = len(weights) - least * sum(later > 0 for later in wanted[place:])
            start = max(start + least, min(after - is_nearer_before, limit))
        ends.append(int(start))
    return ends


@dataclass(frozen=True)
class _Units:
    """Rows that stay together, in the order of their hashes."""

    hashes: NDArray[np.uint64]
    weights: NDArray[np.int64]
    """The number of rows of each unit."""
    strata: NDArray[np.int64]
    """The label of each unit, by its index."""
    num_labels: NDArray[np.int64]
    """The number of labels among the rows of each unit."""
    of_row: NDArray[np.int64]
    """The unit of each row."""
    label_of_row: NDArray[np.int64]
    labels: list[str]
    """In alphabetical order."""

    @classmethod
    def of(cls, hashes: NDArray[np.uint64], numbers: NDArray[np.int64], names: list[str]) -> "_Units":
        labels = sorted(names)
        rank_of = {name: rank for rank, name in enumerate(labels)}
        label_of_row = np.array([rank_of[name] for name in names], np.int64)[numbers]
        units, of_row, weights = np.unique(hashes, return_inverse=True, return_counts=True)
        pairs, counts = np.unique(of_row * len(labels) + label_of_row, return_counts=True)
        owners, pair_labels = np.divmod(pairs, len(labels))
        by_frequency = np.lexsort((pair_labels, -counts, owners))
        first = np.unique(owners[by_frequency], return_index=True)[1]
        strata = pair_labels[by_frequency][first]
        return cls(units, weights, strata, np.bincount(owners), of_row, label_of_row, labels)


def _assign(units: _Units, wanted: Sequence[int], seed: int) -> NDArray[np.int64]:
    """The split of each unit, as an index into `_SPLITS`; `wanted` are the rows of test and validation set."""
    totals = np.bincount(units.strata, units.weights, len(units.labels)).astype(np.int64)
    sizes = [int(totals.sum()) - sum(wanted), *wanted]
    shares = apportion(totals, sizes, [split_hash(label, seed) for label in units.labels])[:, 1:]
    splits = np.full(len(units.hashes), _TRAIN)
    # A label that is not the most common one of any unit has no units.
    ends = np.cumsum(np.bincount(units.strata, minlength=len(units.labels)))
    by_stratum = np.split(np.argsort(units.strata, kind="stable"), ends[:-1])
    owed = np.zeros(len(wanted), np.int64)
    # The largest first: rows it lacks or exceeds because of the size of its units are balanced by those after it.
    for stratum in np.argsort(-totals, kind="stable"):
        members = by_stratum[stratum]
        owed += shares[stratum]
        *ends, _ = cut_whole(units.weights[members], [*owed.tolist(), 1], least=int(len(units.labels) == 1))
        for split, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            splits[members[start:end]] = split
            owed[split] -= units.weights[members[start:end]].sum()
    return splits


def _leave_out(units: _Units, splits: NDArray[np.int64], train_rows: int) -> None:
    """Keep `train_rows` training rows, of each stratum its share, those with the largest hashes.

    A unit with `b` training rows of its stratum after it, `w` rows of its own and `n` of the stratum in total has the
    rank $(b + w / 2) / n$. In this order all strata are distributed evenly, so that a prefix has a share of each, and
    more rows are a longer prefix.
    """
    trained = np.flatnonzero(splits == _TRAIN)[::-1]
    weights, strata = units.weights[trained], units.strata[trained]
    totals = np.bincount(strata, weights, len(units.labels))
    by_stratum = np.argsort(strata, kind="stable")
    after = np.cumsum(weights[by_stratum]) - weights[by_stratum]
    after = after - (np.cumsum(totals) - totals)[strata[by_stratum]]
    ranks = np.empty(len(trained))
    ranks[by_stratum] = (after + weights[by_stratum] / 2) / totals[strata[by_stratum]]
    order = np.lexsort((units.hashes[trained], ranks))
    (num_used,) = cut_whole(weights[order], [train_rows])
    splits[trained[order[num_used:]]] = _UNUSED


def _rule(units: _Units, splits: NDArray[np.int64], label_of: LabelOf, seed: int) -> StratifiedSplit:
    """The splits as limits of hashes, since within a stratum they are consecutive."""
    limits: list[list[int]] = []
    for split in (_TEST, _VALID, _TRAIN):
        is_inside = splits == split
        found = dict.fromkeys(range(len(units.labels)), 1 << 64 if split == _TRAIN else 0)
        pairs = list(zip(units.strata[is_inside].tolist(), units.hashes[is_inside].tolist(), strict=True))
        # In the order of hashes: the last of each stratum remains, or the first for the training rows.
        found.update(reversed(pairs) if split == _TRAIN else ((stratum, key + 1) for stratum, key in pairs))
        limits.append([found[stratum] for stratum in range(len(units.labels))])
    strata = {
        label: HashSplit(test_below, max(test_below, valid_below), train_from, seed)
        for label, test_below, valid_below, train_from in zip(units.labels, *limits, strict=True)
    }
    mixed = {int(units.hashes[unit]): units.labels[units.strata[unit]] for unit in np.flatnonzero(units.num_labels > 1)}
    return StratifiedSplit(strata, mixed, label_of, seed)


def _notes(
    units: _Units, splits: NDArray[np.int64], wanted: Mapping[str, int], group: str | None, *, has_labels: bool
) -> list[str]:
    notes: list[str] = []
    num_mixed = int((units.num_labels > 1).sum())
    if group is not None:
        counts = _by_name(np.bincount(splits, minlength=len(_SPLITS)), wanted)
        whole = f"{counts.pop('train'):,} of {len(units.hashes):,} {plural_of(group)} for training"
        rest = (f"{count:,} {SPLIT_PURPOSES[name]}" for name, count in counts.items())
        notes.append(f"split by {format_column(group)}: {', '.join([whole, *rest])}")
    if has_labels:
        nearly = "nearly " if num_mixed else ""
        notes.append(f"split within each label, so that its share is {nearly}the same in every set")
    if num_mixed:
        what = plural_of(group) if group else "sources"
        notes.append(
            f"{num_mixed:,} of {len(units.hashes):,} {what} have rows of several labels: the rows of each stay "
            "together, and count for the most common of its labels"
        )
    return notes


def _rare_labels(units: _Units, splits: NDArray[np.int64], wanted: Mapping[str, int]) -> list[str]:
    """A warning about labels that are not in every split, with their numbers of rows."""
    pairs = units.label_of_row * len(_SPLITS) + splits[units.of_row]
    table = np.bincount(pairs, minlength=len(units.labels) * len(_SPLITS)).reshape(-1, len(_SPLITS))
    used = [index for index, name in enumerate(_SPLITS) if name == "train" or wanted.get(name)]
    rare = [
        f"{label} ({', '.join(f'{count:,} {SPLIT_PURPOSES[name]}' for name, count in _by_name(row, wanted).items())})"
        for label, row in zip(units.labels, table, strict=True)
        if (row[used] == 0).any()
    ]
    if not rare:
        return []
    more = f" and {len(rare) - _MAX_LABELS} more" if len(rare) > _MAX_LABELS else ""
    return [f"{format_count(len(rare), 'label')} too rare to be in every set: {', '.join(rare[:_MAX_LABELS])}{more}"]


def _by_name(counts: NDArray[np.int64], wanted: Mapping[str, int]) -> dict[str, int]:
    """The count of each split, training first; an empty split that was not requested is omitted."""
    named = {name: int(counts[_SPLITS.index(name)]) for name in SPLIT_PURPOSES}
    return {name: count for name, count in named.items() if count or name in ("train", *wanted)}
