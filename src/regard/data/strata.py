"""Splits of groups, and within labels: rows that belong together are a unit, and units have strata.

A unit is all rows of one group, or of one source; it goes into one set as a whole.
Its stratum is the label of its rows, or the commonest of them, the first by
alphabet where two are equally common; without labels all units have the same.

What each set is to have of each stratum is its share, rounded up or down so that the
sets have the sizes asked for and the strata the rows they have. It is then filled
with units in the order of their hashes: the first are the test set, the next the
validation set, and the rest is for training. Where units are single rows each set
has the share of each stratum to within one row; where a unit is too large for that,
the next strata make up for it. The order of the file does not matter.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.apportionment import apportion, cut_whole
from regard.data.columns import column_name, count_of, plural
from regard.data.config import DataConfig
from regard.data.splits import Entry, HashSplit, Survey, held_out_counts, split_hash
from regard.errors import DataError

LabelOf = Callable[[Sequence[str]], str]
"""What a row is called."""

SETS = ("test", "valid", "train", "unused")
_PURPOSES = {
    "train": "to train on",
    "valid": "for validation",
    "test": "for the test",
    "unused": "not used",
}
_LABELS_TOLD = 12
_FAR_OFF = 2.0
"""A set is told to be far from what was asked for where it has so many times the rows, or so many times fewer."""


@dataclass(frozen=True)
class StratifiedSplit:
    """Which set a row belongs to, by the hash of its key and by its stratum."""

    strata: dict[str, HashSplit]
    """The limits of each; all that a row needs where its unit has one label."""
    mixed: dict[int, str]
    """The stratum of each unit that has several labels, by its hash."""
    label_of: LabelOf
    seed: int

    @property
    def holds_back(self) -> bool:
        return any(split.holds_back for split in self.strata.values())

    def role(self, row: Sequence[str], key: str) -> str:
        number = split_hash(key, self.seed)
        stratum = self.mixed.get(number) or self.label_of(row)
        return self.strata[stratum].role_of_hash(number)


def no_label(row: Sequence[str]) -> str:
    """The label of all rows where labels do not matter."""
    return ""


def survey_by_units(
    entries: Iterable[Entry],
    config: DataConfig,
    *,
    has_test: bool,
    label_of: LabelOf = no_label,
    group: str | None = None,
) -> Survey:
    """Count the rows and decide the split, in one pass; it keeps two numbers for each row.

    Args:
        entries: Rows, each with its group, or with its source.
        config: How much is for which set.
        has_test: Whether there are test rows of their own.
        label_of: The label of a row, where its share is to be the same in every set.
        group: What a group is called, where rows are split by groups.
    """
    hashes, names, numbers = array("Q"), dict[str, int](), array("q")
    num_characters = 0
    for row, key in entries:
        hashes.append(split_hash(key, config.split_seed))
        numbers.append(names.setdefault(label_of(row), len(names)))
        num_characters += sum(map(len, row))
    units = _Units.of(np.array(hashes), np.array(numbers), list(names))
    num_valid, num_test = held_out_counts(config, len(hashes), has_valid=False, has_test=has_test)
    roles = _deal_out(units, {"test": num_test, "valid": num_valid}, config.split_seed)
    asked = {"train": 1, "valid": num_valid, "test": num_test}
    if any(number and not (roles == SETS.index(name)).any() for name, number in asked.items()):
        what = f"{len(units.hashes):,} {plural(group)}" if group else "those with the same source"
        raise DataError(
            f"{len(hashes):,} rows, of which {what} stay together, are too few to hold any back for validation "
            "and the test: give more rows, or a file of them"
        )
    if config.train_rows is not None:
        _leave_out(units, roles, config.train_rows)
    told = _Told(units, roles, {"valid": num_valid, "test": num_test}, group, has_labels=label_of is not no_label)
    split = _split(units, roles, label_of, config.split_seed)
    return Survey(len(hashes), num_characters, split, None, told.notes(), told.warnings())


def far_off(rows: Mapping[str, int], wanted: Mapping[str, int], why: str) -> list[str]:
    """A sentence for each set that has far more or far fewer rows than were asked for."""
    return [
        f"{rows[name]:,} rows are {_PURPOSES[name]} where {asked:,} were asked for: {why}"
        for name, asked in wanted.items()
        if asked and not asked / _FAR_OFF <= rows[name] <= asked * _FAR_OFF
    ]


@dataclass(frozen=True)
class _Units:
    """Rows that belong together, in the order of their hashes."""

    hashes: NDArray[np.uint64]
    weights: NDArray[np.int64]
    """How many rows each has."""
    strata: NDArray[np.int64]
    """The number of the label that each goes with."""
    num_labels: NDArray[np.int64]
    """How many labels the rows of each have."""
    of_row: NDArray[np.int64]
    """The unit of each row,"""
    label_of_row: NDArray[np.int64]
    """and its label."""
    labels: list[str]
    """By their numbers, in the order of the alphabet."""

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


def _deal_out(units: _Units, wanted: Mapping[str, int], seed: int) -> NDArray[np.int64]:
    """The set of each unit, as its place in `SETS`."""
    totals = np.bincount(units.strata, units.weights, len(units.labels)).astype(np.int64)
    sizes = [int(totals.sum()) - sum(wanted.values()), *wanted.values()]
    shares = apportion(totals, sizes, [split_hash(label, seed) for label in units.labels])[:, 1:]
    roles = np.full(len(units.hashes), SETS.index("train"))
    # A label that is the commonest of no unit has none.
    ends = np.cumsum(np.bincount(units.strata, minlength=len(units.labels)))
    by_stratum = np.split(np.argsort(units.strata, kind="stable"), ends[:-1])
    owed = np.zeros(len(wanted), np.int64)
    # The largest first: what it cannot have for the size of its units, those after it make up for.
    for stratum in np.argsort(-totals, kind="stable"):
        some = by_stratum[stratum]
        owed += shares[stratum]
        *ends, _ = cut_whole(units.weights[some], [*owed.tolist(), 1], least=int(len(units.labels) == 1))
        for number, (name, start, end) in enumerate(zip(wanted, [0, *ends], ends, strict=False)):
            roles[some[start:end]] = SETS.index(name)
            owed[number] -= units.weights[some[start:end]].sum()
    return roles


def _leave_out(units: _Units, roles: NDArray[np.int64], train_rows: int) -> None:
    """Leave so many training rows, of each stratum its share, and those with the largest hashes.

    A unit with `b` training rows of its stratum behind it, `w` of its own and `n` of the stratum in all stands at
    $(b + w / 2) / n$. In this order all strata are spread evenly, so that its beginning has a share of each; and more
    rows are a longer beginning.
    """
    trained = np.flatnonzero(roles == SETS.index("train"))[::-1]
    weights, strata = units.weights[trained], units.strata[trained]
    totals = np.bincount(strata, weights, len(units.labels))
    by_stratum = np.argsort(strata, kind="stable")
    behind = np.cumsum(weights[by_stratum]) - weights[by_stratum]
    behind = behind - (np.cumsum(totals) - totals)[strata[by_stratum]]
    places = np.empty(len(trained))
    places[by_stratum] = (behind + weights[by_stratum] / 2) / totals[strata[by_stratum]]
    order = np.lexsort((units.hashes[trained], places))
    (num_used,) = cut_whole(weights[order], [train_rows])
    roles[trained[order[num_used:]]] = SETS.index("unused")


def _split(units: _Units, roles: NDArray[np.int64], label_of: LabelOf, seed: int) -> StratifiedSplit:
    """The sets as limits: within a stratum they follow one another by hash."""
    limits: dict[str, list[int]] = {}
    for name in ("test", "valid", "train"):
        is_inside = roles == SETS.index(name)
        found = dict.fromkeys(range(len(units.labels)), 1 << 64 if name == "train" else 0)
        pairs = list(zip(units.strata[is_inside].tolist(), units.hashes[is_inside].tolist(), strict=True))
        # In the order of hashes: of each stratum the last stays, or of the training rows the first.
        found.update(reversed(pairs) if name == "train" else ((stratum, key + 1) for stratum, key in pairs))
        limits[name] = [found[stratum] for stratum in range(len(units.labels))]
    strata = {
        label: HashSplit(test_below, max(test_below, valid_below), train_from, seed)
        for label, test_below, valid_below, train_from in zip(units.labels, *limits.values(), strict=True)
    }
    mixed = {int(units.hashes[unit]): units.labels[units.strata[unit]] for unit in np.flatnonzero(units.num_labels > 1)}
    return StratifiedSplit(strata, mixed, label_of, seed)


@dataclass(frozen=True)
class _Told:
    """What is said of a split."""

    units: _Units
    roles: NDArray[np.int64]
    wanted: dict[str, int]
    group: str | None
    has_labels: bool

    def notes(self) -> list[str]:
        notes: list[str] = []
        num_mixed = int((self.units.num_labels > 1).sum())
        if self.group is not None:
            counts = self._counts(np.bincount(self.roles, minlength=len(SETS)))
            whole = f"{counts.pop('train'):,} of {len(self.units.hashes):,} {plural(self.group)} to train on"
            rest = (f"{count:,} {_PURPOSES[name]}" for name, count in counts.items())
            notes.append(f"split by {column_name(self.group)}: {', '.join([whole, *rest])}")
        if self.has_labels:
            nearly = "nearly " if num_mixed else ""
            notes.append(f"split within each label, so that its share is {nearly}the same in every set")
        if num_mixed:
            what = plural(self.group) if self.group else "sources"
            notes.append(
                f"{num_mixed:,} of {len(self.units.hashes):,} {what} have rows of several labels: "
                "the rows of each stay together, and go with the commonest of its labels"
            )
        return notes

    def warnings(self) -> list[str]:
        rows = self._counts(np.bincount(self.roles, self.units.weights, len(SETS)).astype(int))
        why = f"rows of one {self.group or 'source'} stay together; another data.split_seed deals them out otherwise"
        return far_off(rows, self.wanted, why) + (self._rare() if self.has_labels else [])

    def _rare(self) -> list[str]:
        """Labels that are not in every set, with what is where."""
        pairs = self.units.label_of_row * len(SETS) + self.roles[self.units.of_row]
        table = np.bincount(pairs, minlength=len(self.units.labels) * len(SETS)).reshape(-1, len(SETS))
        asked = [name for name in SETS if name == "train" or self.wanted.get(name)]
        missing = (table[:, [SETS.index(name) for name in asked]] == 0).any(axis=1)
        rare = [
            f"{label} ({', '.join(f'{count:,} {_PURPOSES[name]}' for name, count in self._counts(row).items())})"
            for label, row, is_rare in zip(self.units.labels, table, missing, strict=True)
            if is_rare
        ]
        if not rare:
            return []
        more = f" and {len(rare) - _LABELS_TOLD} more" if len(rare) > _LABELS_TOLD else ""
        return [f"{count_of(len(rare), 'label')} too rare to be in every set: {', '.join(rare[:_LABELS_TOLD])}{more}"]

    def _counts(self, by_role: NDArray[np.int64]) -> dict[str, int]:
        """Of each set, training first; what is not used is left out where there is none."""
        counts = {name: int(by_role[SETS.index(name)]) for name in _PURPOSES}
        return {name: count for name, count in counts.items() if count or name in ("train", *self.wanted)}
