"""Splits by scaffold and by similarity: no group is in two sets, and the largest are for training."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from regard.data.chemistry import scaffold_of
from regard.data.settings import DataConfig
from regard.data.splits import plan_split
from regard.data.splits.by_structure import assign_groups, cluster, has_scaffolds, kmer_bits
from regard.errors import ConfigError, DataError

pytest.importorskip("rdkit")
RINGS = [
    "c1ccccc1",
    "C1CCCCC1",
    "c1ccncc1",
    "C1CCNCC1",
    "c1ccsc1",
    "C1CCOC1",
    "c1cc[nH]c1",
    "C1CC1",
    "C1CCC1",
    "c1ccoc1",
]
MOLECULES = [f"{'C' * size}{ring}" for place, ring in enumerate(RINGS) for size in range(1, 12 - place)]


def split(texts: list[str], **settings: Any) -> dict[str, list[str]]:
    config = DataConfig(splits=[0.8, 0.1, 0.1], **settings)
    plan = plan_split((((text, "1"), text) for text in texts), config, has_valid=False, has_test=False)
    found = defaultdict(list)
    for text in texts:
        found[plan.rule.assign((text, "1"), text)].append(text)
    assert plan.rule.has_validation
    assert plan.num_rows == len(texts)
    return found


def reference_split(texts: list[str]) -> tuple[set[str], set[str], set[str]]:
    """The algorithm of MoleculeNet, as its paper and its code describe it."""
    groups: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        groups.setdefault(scaffold_of(text), []).append(place)
    train, valid, test = [], [], []
    for group in sorted(groups.values(), key=lambda some: (len(some), some[0]), reverse=True):
        if len(train) + len(group) > 0.8 * len(texts):
            is_full = len(train) + len(valid) + len(group) > 0.9 * len(texts)
            (test if is_full else valid).extend(group)
        else:
            train.extend(group)
    return tuple({texts[place] for place in some} for some in (train, valid, test))  # pyright: ignore[reportReturnType]


def test_a_split_by_scaffold_is_that_of_moleculenet():
    found = split(MOLECULES, split="scaffold")
    assert (set(found["train"]), set(found["valid"]), set(found["test"])) == reference_split(MOLECULES)


@pytest.mark.parametrize("kind", ["scaffold", "similarity"])
def test_a_group_is_in_one_set_and_the_split_has_no_seed(kind: str):
    found = split(MOLECULES, split=kind)
    assert {"train", "valid", "test"} <= set(found)
    assert found == split(MOLECULES, split=kind, split_seed=5)
    if kind == "scaffold":
        scaffolds = [{scaffold_of(text) for text in some} for some in found.values()]
        assert sum(map(len, scaffolds)) == len(set.union(*scaffolds))


def test_similar_molecules_are_in_one_set():
    alike = [f"{'C' * 12}{'C' * size}O" for size in range(30)]
    found = split(MOLECULES + alike, split="similarity")
    assert set(alike[5:]) <= set(found["train"])


def test_similar_sequences_are_in_one_set():
    rng = np.random.default_rng(0)
    families = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 60)) for _ in range(20)]
    texts = [family[:place] + "W" + family[place + 1 :] for family in families for place in range(0, 60, 12)]
    found = split(texts, split="similarity")
    sets = [{text[-5:] for text in some} for some in found.values()]
    assert sum(map(len, sets)) == len(set.union(*sets))
    with pytest.raises(DataError, match="amino-acids have no scaffolds"):
        split(texts, split="scaffold")


def test_fewer_training_rows_are_a_subset():
    fewer, more = (split(MOLECULES, split="scaffold", train_rows=number) for number in (10, 30))
    assert set(fewer["train"]) < set(more["train"])
    assert (len(fewer["train"]), len(more["train"])) == (10, 30)
    assert fewer["test"] == more["test"]


def test_groups_are_assigned_from_the_largest_to_the_smallest():
    assert assign_groups([1, 4, 2, 1, 2], 0.1, 0.3) == ["test", "train", "test", "valid", "train"]


def test_clusters_have_a_leader_that_all_members_are_similar_to():
    bits = np.random.default_rng(1).integers(0, 2, (40, 7)).astype(np.uint8)
    groups = cluster(bits, 0.6)
    assert sorted(row for group in groups for row in group) == list(range(40))
    for leader, *members in groups:
        for member in members:
            assert (bits[leader] & bits[member]).sum() >= 0.6 * (bits[leader] | bits[member]).sum()


def test_kmers_of_equal_texts_are_equal():
    one, other, third = kmer_bits(["MKVLA", "MKVLA", "AVKMW"], 3)
    assert (one == other).all()
    assert one.sum() == 3
    assert not (one & third).any()


def test_chains_have_too_few_scaffolds():
    chains = ["C" * size for size in range(1, 40)]
    assert not has_scaffolds(chains, DataConfig())
    assert has_scaffolds(MOLECULES, DataConfig())
    with pytest.raises(DataError, match=r"39 rows have 1 scaffold, too few.*random"):
        split(chains, split="scaffold")


def test_other_texts_and_other_settings_are_refused():
    with pytest.raises(DataError, match="is for molecules and biological sequences"):
        split(["a cat", "a dog"] * 10, split="scaffold")
    with pytest.raises(ConfigError, match=r"'scaffold' cannot be combined with data\.stratify"):
        DataConfig(split="scaffold", stratify=True)
