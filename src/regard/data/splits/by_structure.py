"""Splitting by structure: molecules with the same scaffold, or sequences that are similar, are in the same set.

A random split puts close relatives of a molecule into both sets, and a score then measures how well a model
interpolates between them; a model is used on molecules that are new.

Wu et al., "MoleculeNet: a benchmark for molecular machine learning" (2018), for the scaffold split: groups are taken
from the largest to the smallest, and each is for training if it fits there, else for validation if it fits, else for
the test. The groups of `scaffold` have one Bemis-Murcko scaffold each. Those of `similarity` are clusters: in the order
of the file, a row joins the first cluster whose first row is similar to it (leader clustering), by the Tanimoto index
of Morgan fingerprints or, for sequences of letters, of their k-mers.

The split depends on the order of rows only between groups of one size, and on no seed.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

from regard.data.chemistry import fault_of, morgan_bits, require_rdkit, scaffold_of
from regard.data.formats.messages import format_count
from regard.data.settings import DataConfig
from regard.data.splits.by_group import size_warnings
from regard.data.splits.by_hash import SplitEntry, SplitPlan, default_share_of_rows, held_out_shares, split_hash
from regard.errors import DataError
from regard.text.alphabets import sequence_kind

SIMILAR = {"molecules": 0.5, "sequences": 0.3}
"""The Tanimoto index from which two rows are similar."""
KMER_LENGTH = {"nucleotides": 6, "amino-acids": 3}
_KMER_BITS = 4_096
_SAMPLE = 200
_MOST_HELD_OUT = 2_000
_ROUNDING = 1e-9
"""Tolerance for shares such as 0.8, whose products with a number of rows may be whole."""


@dataclass(frozen=True)
class StructureSplit:
    """Assigns rows by the group of their source."""

    split_of: dict[str, str]

    @property
    def has_validation(self) -> bool:
        return "valid" in self.split_of.values()

    def assign(self, row: Sequence[str], key: str) -> str:
        return self.split_of[row[0]]


def plan_by_structure(entries: Iterable[SplitEntry], config: DataConfig, *, has_test: bool) -> SplitPlan:
    """Count the rows and decide the split, in one pass that keeps the sources in memory.

    Raises:
        DataError: If the sources are neither molecules nor sequences, or have too few groups.
    """
    counts: Counter[str] = Counter()
    num_characters = 0
    for row, _ in entries:
        counts[row[0]] += 1
        num_characters += sum(map(len, row))
    sources, num_rows = list(counts), sum(counts.values())
    groups, what = _groups(sources, config)
    sizes = [sum(counts[sources[place]] for place in group) for group in groups]
    shares = _shares(config, num_rows, has_test=has_test)
    splits = assign_groups(sizes, *shares)
    num_valid, num_test = (round(share * num_rows) for share in shares)
    rows = dict(Counter(split for split, size in zip(splits, sizes, strict=True) for _ in range(size)))
    for split, wanted in (("train", 1), ("valid", num_valid), ("test", num_test)):
        if wanted and not rows.get(split):
            raise DataError(
                f"{num_rows:,} rows have {format_count(len(groups), what)}, too few to hold any out for validation and "
                "the test: add rows, or set data.split to random"
            )
    split_of = {sources[place]: split for group, split in zip(groups, splits, strict=True) for place in group}
    if config.train_rows is not None:
        _leave_out(split_of, counts, config)
    found = Counter(splits)
    held_out = ", ".join(
        f"{found[split]:,} {purpose}" for split, purpose in (("valid", "for validation"), ("test", "for the test"))
    )
    wanted = {"valid": num_valid, "test": num_test}
    return SplitPlan(
        num_rows,
        num_characters,
        StructureSplit(split_of),
        None,
        [f"split by {what}: {found['train']:,} of {len(groups):,} for training, the largest; {held_out}"],
        size_warnings({"valid": 0, "test": 0, **rows}, wanted, f"rows of one {what} stay together"),
    )


def has_scaffolds(sources: Sequence[str], config: DataConfig) -> bool:
    """Whether these molecules have enough scaffolds to be split by them; data of chains has one, which is empty."""
    groups = _scaffolds(sources)
    splits = assign_groups([len(group) for group in groups], *_shares(config, len(sources), has_test=False))
    return {"train", "valid", "test"} <= set(splits)


def assign_groups(sizes: Sequence[int], valid: float, test: float) -> list[str]:
    """The split of each group: largest first, for training while they fit, then for validation, then for the test.

    Args:
        sizes: The rows of each group; of groups of one size, the last is taken first, as in MoleculeNet.
        valid: The share of rows for validation.
        test: The share of rows for the test.

    Example:
        >>> assign_groups([1, 4, 2, 1, 1, 1], 0.2, 0.1)
        ['test', 'train', 'train', 'valid', 'valid', 'train']
    """
    num_train, num_kept = ((1 - share) * sum(sizes) + _ROUNDING for share in (valid + test, test))
    splits = [""] * len(sizes)
    used = {"train": 0, "valid": 0, "test": 0}
    for group in sorted(range(len(sizes)), key=lambda place: (sizes[place], place), reverse=True):
        split = "test"
        if used["train"] + sizes[group] <= num_train:
            split = "train"
        elif used["train"] + used["valid"] + sizes[group] <= num_kept:
            split = "valid"
        splits[group] = split
        used[split] += sizes[group]
    return splits


def cluster(bits: UInt8[np.ndarray, "rows bits"], least: float) -> list[list[int]]:
    """Leader clustering: a row joins the first cluster whose first row has at least this Tanimoto index with it.

    Example:
        >>> cluster(np.array([[1, 1, 0], [0, 0, 1], [1, 1, 1]], np.uint8), 0.5)
        [[0, 2], [1]]
    """
    leaders = np.zeros((len(bits), bits.shape[1]), np.float32)
    counts = bits.sum(axis=1, dtype=np.float32)
    leader_counts = np.zeros(len(bits), np.float32)
    groups: list[list[int]] = []
    for row, own in enumerate(bits.astype(np.float32)):
        shared = leaders[: len(groups)] @ own
        similar = np.flatnonzero(shared >= least * np.maximum(1, leader_counts[: len(groups)] + counts[row] - shared))
        if len(similar):
            groups[similar[0]].append(row)
        else:
            leaders[len(groups)], leader_counts[len(groups)] = own, counts[row]
            groups.append([row])
    return groups


def kmer_bits(texts: Sequence[str], length: int) -> UInt8[np.ndarray, "rows bits"]:
    """The runs of `length` letters that each text has, folded to bits."""
    bits = np.zeros((len(texts), _KMER_BITS), np.uint8)
    for row, text in zip(bits, texts, strict=True):
        runs = {text[start : start + length] for start in range(max(1, len(text) - length + 1))}
        row[[zlib.crc32(run.encode()) % _KMER_BITS for run in runs]] = 1
    return bits


def _shares(config: DataConfig, num_rows: int, *, has_test: bool) -> tuple[float, float]:
    default = default_share_of_rows(num_rows, most=_MOST_HELD_OUT)
    return held_out_shares(config, default, has_valid=False, has_test=has_test)


def _groups(sources: Sequence[str], config: DataConfig) -> tuple[list[list[int]], str]:
    """The places of the sources of each group, in the order of their first ones, and what a group is called."""
    kind = sequence_kind(sources[:_SAMPLE])
    if kind in KMER_LENGTH:
        if config.split == "scaffold":
            raise DataError(f"{kind} have no scaffolds: data.split may be similarity or random, got scaffold")
        return cluster(kmer_bits(sources, KMER_LENGTH[kind]), SIMILAR["sequences"]), "cluster"
    require_rdkit(f"data.split = {config.split!r} of molecules")
    if fault := next(filter(None, map(fault_of, sources)), ""):
        raise DataError(
            f"data.split = {config.split!r} is for molecules and biological sequences, and a row has {fault}"
        )
    if config.split == "similarity":
        return cluster(morgan_bits(sources), SIMILAR["molecules"]), "cluster"
    return _scaffolds(sources), "scaffold"


def _scaffolds(sources: Sequence[str]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for place, source in enumerate(sources):
        groups.setdefault(scaffold_of(source), []).append(place)
    return list(groups.values())


def _leave_out(split_of: dict[str, str], counts: Counter[str], config: DataConfig) -> None:
    """Keep `data.train_rows` training rows, those with the largest hashes."""
    assert config.train_rows is not None
    trained = [source for source, split in split_of.items() if split == "train"]
    num_rows = 0
    for source in sorted(trained, key=lambda source: -split_hash(source, config.split_seed)):
        if num_rows >= config.train_rows:
            split_of[source] = "unused"
        num_rows += counts[source]
