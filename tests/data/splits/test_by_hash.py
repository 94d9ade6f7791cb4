"""Splits by hash: by content, whole sources, exact counts, the same every time."""

import random
from collections import Counter

import pytest

from regard.data.settings import DataConfig
from regard.data.splits.by_hash import SplitPlan, SplitRule
from regard.data.splits.plan import plan_split
from regard.errors import DataError


def plan(rows, *, has_valid: bool = False, has_test: bool = False, **settings) -> SplitPlan:
    entries = ((row, row[0]) for row in rows)
    return plan_split(entries, DataConfig.read(settings), has_valid=has_valid, has_test=has_test)


def roles_of(rows, split: SplitRule) -> list[str]:
    return [split.assign(row, row[0]) for row in rows]


def counts(rows, **settings) -> dict[str, int]:
    return dict(Counter(roles_of(rows, plan(rows, **settings).rule)))


def pairs(number: int) -> list[tuple[str, str]]:
    return [(f"source {i}", f"target {i}") for i in range(number)]


@pytest.mark.parametrize(
    ("number", "train", "held_out"),
    [
        *((3, 1, 1), (4, 2, 1), (20, 16, 2), (59, 47, 6), (100, 80, 10), (1_996, 1_596, 200)),  # a tenth
        *((2_000, 1_600, 200), (3_001, 2_601, 200), (4_000, 3_600, 200)),  # 200
        *((4_020, 3_618, 201), (9_001, 8_101, 450)),  # a twentieth
    ],
)
def test_a_tenth_up_to_two_hundred_rows_or_else_a_twentieth_each_is_held_out_exactly(
    number: int, train: int, held_out: int
):
    assert counts(pairs(number)) == {"train": train, "valid": held_out, "test": held_out}


def test_two_thousand_are_enough():
    assert counts(pairs(50_000)) == {"train": 46_000, "valid": 2_000, "test": 2_000}


def test_shares_are_kept():
    rows = pairs(997)
    assert counts(rows, splits=[0.5, 0.3, 0.2]) == {"train": 499, "valid": 299, "test": 199}
    assert counts(rows, splits=[0.9, 0.1, 0.0]) == {"train": 897, "valid": 100}


def test_beyond_what_is_counted_the_share_is_near():
    found = counts(pairs(60_000), splits=[0.2, 0.5, 0.3])
    assert found["valid"] == pytest.approx(30_000, rel=0.02)
    assert found["test"] == pytest.approx(18_000, rel=0.02)


def test_files_of_ones_own_take_the_place_of_a_split():
    rows = pairs(100)
    for has_valid, has_test, expected in (
        (True, True, {"train": 100}),
        (True, False, {"train": 100}),
        (False, True, {"train": 90, "valid": 10}),
    ):
        split = plan(rows, has_valid=has_valid, has_test=has_test).rule
        assert dict(Counter(roles_of(rows, split))) == expected


def test_order_is_irrelevant_and_the_seed_is_not():
    rows = pairs(300)
    shuffled = random.Random(1).sample(rows, len(rows))
    split = plan(rows).rule
    assert plan(shuffled).rule == split
    assert set(plan(shuffled).sample or ()) == set(plan(rows).sample or ())
    other = plan(rows, split_seed=1).rule
    assert roles_of(rows, split) != roles_of(rows, other)


def test_rows_of_one_source_stay_together():
    rows = [(f"source {i % 50}", f"target {i}") for i in range(400)]
    split = plan(rows).rule
    roles = {source: set(roles_of([row for row in rows if row[0] == source], split)) for source, _ in rows}
    assert all(len(found) == 1 for found in roles.values())
    assert set().union(*roles.values()) == {"train", "valid", "test"}


@pytest.mark.parametrize("repeats", [2, 7, 40])
def test_no_set_is_empty_because_a_source_is_frequent(repeats: int):
    """The first keys may all be one source's: the set takes it whole."""
    for seed in range(20):
        rows = [(f"source {i}", f"target {j}") for i in range(9) for j in range(repeats)]
        found = counts(rows, split_seed=seed)
        assert found.keys() == {"train", "valid", "test"}
        assert found["train"] >= sum(found.values()) // 2


def test_the_sample_is_of_training_rows_only_and_cut():
    rows = [*pairs(200), ("x" * 5000, "y")]
    found = plan(rows)
    assert found.num_rows == 201
    assert found.num_characters == sum(len(a) + len(b) for a, b in rows)
    trained = [row for row, role in zip(rows, roles_of(rows, found.rule), strict=True) if role == "train"]
    assert set(found.sample or ()) == {tuple(text[:1000] for text in row) for row in trained}


@pytest.mark.parametrize("rows", [pairs(1), pairs(2)], ids=["one", "two"])
def test_too_few_rows_are_reported(rows):
    with pytest.raises(DataError, match="too few to hold out any"):
        plan(rows)


def test_rows_of_one_source_cannot_be_split():
    with pytest.raises(DataError, match=r"^all 30 rows have the same source, and rows with one source stay together"):
        plan(pairs(1) * 30)


def test_a_single_row_is_counted_as_one():
    with pytest.raises(DataError, match=r"^1 row is too few to hold out any"):
        plan(pairs(1))
