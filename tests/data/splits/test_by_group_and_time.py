"""Splits by group, within labels and by time: their guarantees for any rows."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.formats.cells import parse_timestamp
from regard.data.settings import DataConfig
from regard.data.splits.by_group import StratifiedSplit, apportion, cut_whole
from regard.data.splits.by_hash import SplitPlan, sample_rows
from regard.data.splits.plan import plan_split
from regard.errors import ConfigError, DataError

Entry = tuple[tuple[str, ...], str]
SETS = ("train", "valid", "test")


def plan(entries: Sequence[Entry], *, has_valid: bool = False, has_test: bool = False, **settings) -> SplitPlan:
    return plan_split(
        entries,
        DataConfig.read(settings),
        has_valid=has_valid,
        has_test=has_test,
        column=str(settings.get("group") or settings.get("order") or "") or None,
        label_of=lambda row: row[-1],
    )


def roles(entries: Sequence[Entry], found: SplitPlan) -> list[str]:
    return [found.rule.assign(row, key) for row, key in entries]


def rows_by_split(entries: Sequence[Entry], **settings) -> dict[str, list[Entry]]:
    """The entries of each set."""
    sets: dict[str, list[Entry]] = defaultdict(list)
    for entry, role in zip(entries, roles(entries, plan(entries, **settings)), strict=True):
        sets[role].append(entry)
    return sets


def by_author(number: int, num_authors: int, seed: int = 0) -> list[Entry]:
    rng = random.Random(seed)
    return [((f"text {i}", "label"), f"author {int(num_authors * rng.random() ** 2)}") for i in range(number)]


def by_label(counts: dict[str, int]) -> list[Entry]:
    return [((f"{label} {i}", label), f"{label} {i}") for label, count in counts.items() for i in range(count)]


def by_time(number: int, seed: int = 0) -> list[Entry]:
    """In no order; about three rows on each day."""
    rng = random.Random(seed)
    first = datetime(2023, 11, 5)
    return [
        ((f"text {i}", "label"), str((first + timedelta(days=rng.randrange(number // 3))).date()))
        for i in range(number)
    ]


@given(st.integers(0, 2**32), st.integers(3, 97), st.integers(50, 400))
def test_no_group_is_in_two_sets_and_none_of_the_sets_is_empty(seed: int, num_authors: int, number: int):
    entries = by_author(number, num_authors, seed)
    if len({author for _, author in entries}) < 3:
        return
    sets = rows_by_split(entries, group="author", splits=[0.6, 0.2, 0.2], split_seed=seed)
    authors = {role: {author for _, author in sets[role]} for role in SETS}
    assert all(authors.values())
    assert sum(map(len, authors.values())) == len(set().union(*authors.values()))


def test_groups_come_as_near_to_the_shares_as_half_a_group():
    entries = by_author(2_003, 397)
    largest = max(Counter(author for _, author in entries).values())
    sets = rows_by_split(entries, group="author", splits=[0.7, 0.2, 0.1])
    assert abs(len(sets["test"]) - 200) <= largest / 2
    assert abs(len(sets["valid"]) - 401) <= largest / 2


def test_sets_take_whole_units_that_come_nearest():
    """Against every other end there is."""
    weights = np.random.default_rng(0).integers(1, 9, 31)
    for wanted in range(1, 40):
        first, second = cut_whole(weights, [wanted, 7])
        assert abs(weights[:first].sum() - wanted) == min(abs(weights[:end].sum() - wanted) for end in range(1, 32))
        assert abs(weights[first:second].sum() - 7) == min(
            abs(weights[first:end].sum() - 7) for end in range(first + 1, 32)
        )


def test_how_groups_were_split_is_reported():
    entries = by_author(2_003, 97)
    found = plan(entries, group="author", splits=[0.7, 0.2, 0.1])
    counts = {role: len({author for _, author in some}) for role, some in rows_by_split(
        entries, group="author", splits=[0.7, 0.2, 0.1]).items()}  # fmt: skip
    assert found.notes == [
        f"split by author: {counts['train']} of {sum(counts.values())} authors for training, "
        f"{counts['valid']} for validation, {counts['test']} for the test"
    ]
    assert not found.warnings


def test_a_group_too_large_for_its_set_is_an_error():
    entries = [((f"text {i}", "x"), f"author {i % 50 if i % 2 else 0}") for i in range(400)]
    found = [plan(entries, group="author", split_seed=seed) for seed in range(60)]
    told = [one.warnings for one in found if one.warnings]
    assert 0 < len(told) < 30
    assert "rows of one author stay together; another data.split_seed gives another split" in told[0][0]


@pytest.mark.parametrize("settings", [{"group": "author"}, {"stratify": True}, {"order": "date"}])
def test_the_order_of_the_file_changes_nothing_and_the_same_seed_is_the_same_split(settings):
    entries = {"group": by_author(501, 61), "stratify": by_label({"a": 211, "b": 83, "c": 7}), "order": by_time(501)}[
        next(iter(settings))
    ]
    shuffled = random.Random(1).sample(entries, len(entries))
    one, other = (rows_by_split(some, **settings) for some in (entries, shuffled))
    assert {role: sorted(some) for role, some in one.items()} == {role: sorted(some) for role, some in other.items()}
    found, again = (plan(some, **settings) for some in (entries, shuffled))
    assert sample_rows(entries, found.rule) == sample_rows(shuffled, again.rule)
    assert set(sample_rows(entries, found.rule)) == {row for row, _ in one["train"]}


@pytest.mark.parametrize("settings", [{"group": "author"}, {"stratify": True}])
def test_another_seed_is_another_split(settings):
    entries = by_author(501, 61) if "group" in settings else by_label({"a": 211, "b": 83})
    assert len({tuple(roles(entries, plan(entries, split_seed=seed, **settings))) for seed in range(5)}) == 5


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 120), min_size=1, max_size=9),
    st.sampled_from([(0.9, 0.05, 0.05), (0.5, 0.3, 0.2), (0.8, 0.2, 0.0), (1 / 3, 1 / 3, 1 / 3)]),
    st.integers(0, 99),
)
def test_each_label_has_its_share_of_every_set_to_within_one_row(sizes, shares, seed):
    labels = {f"label {number}": size for number, size in enumerate(sizes)}
    entries, total = by_label(labels), sum(sizes)
    num_valid, num_test = (max(1, round(share * total)) if share else 0 for share in shares[1:])
    if num_valid + num_test >= total:
        return
    sets = rows_by_split(entries, stratify=True, splits=list(shares), split_seed=seed)
    assert (len(sets["valid"]), len(sets["test"])) == (num_valid, num_test)
    for role, size in zip(SETS, (total - num_valid - num_test, num_valid, num_test), strict=True):
        found = Counter(row[-1] for row, _ in sets[role])
        for label, count in labels.items():
            assert abs(found[label] - count * size / total) <= 1 + 1e-9


@settings(max_examples=40)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1), st.randoms())
def test_shares_are_rounded_up_or_down_and_all_sums_are_right(totals, first, second, rng):
    whole = sum(totals)
    cuts = sorted(round(share * whole) for share in (first, second))
    sizes = [cuts[0], cuts[1] - cuts[0], whole - cuts[1]]
    table = apportion(np.array(totals), sizes, [rng.randrange(2**64) for _ in totals])
    ideal = np.outer(totals, sizes) / whole
    assert (np.abs(table - ideal) < 1 + 1e-9).all()
    assert (table >= 0).all()
    assert table.sum(axis=0).tolist() == sizes
    assert table.sum(axis=1).tolist() == totals


def test_a_split_that_heeds_no_labels_does_not_keep_their_shares():
    """What the test above would find: it can fail."""
    entries = by_label({"a": 100, "b": 100})
    counts = [Counter(row[-1] for row, _ in rows_by_split(entries, splits=[0.5, 0.25, 0.25], split_seed=seed)["test"])
              for seed in range(20)]  # fmt: skip
    assert any(abs(found["a"] - 25) > 1 for found in counts)


def test_a_source_with_two_labels_stays_together_and_counts_for_the_most_common():
    entries = by_label({"a": 60, "b": 30})
    mixed = [(("twice b", label), "twice b") for label in "bab"]
    surveys = [plan([*entries, *mixed], stratify=True, splits=[0.6, 0.2, 0.2], split_seed=seed) for seed in range(25)]
    for found in surveys:
        assert len(set(roles(mixed, found))) == 1
        assert isinstance(found.rule, StratifiedSplit)
        assert list(found.rule.mixed.values()) == ["b"]
    even = plan([*entries, *mixed[:2]], stratify=True).rule
    assert isinstance(even, StratifiedSplit)
    assert list(even.mixed.values()) == ["a"]  # of equals the first by alphabet
    assert surveys[0].notes[-1] == (
        "1 of 91 sources have rows of several labels: the rows of each stay together, and count for the most common "
        "of its labels"
    )
    assert "nearly the same" in surveys[0].notes[0]


def test_labels_too_rare_for_every_set_are_reported():
    entries = by_label({"a": 200, "b": 100, "rare": 2})
    found = plan(entries, stratify=True)
    assert found.warnings == [
        "1 label too rare to be in every set: rare (2 for training, 0 for validation, 0 for the test)"
    ]
    assert not plan(by_label({"a": 200, "b": 100}), stratify=True).warnings
    # A set that nobody asked for cannot lack a label.
    assert not plan(by_label({"a": 200, "b": 100}), stratify=True, splits=[0.9, 0.1, 0.0]).warnings


def test_groups_of_one_label_each_keep_both_promises():
    entries = [((f"text {i}", "ab"[(i // 4) % 3 == 0]), f"patient {i // 4}") for i in range(480)]
    sets = rows_by_split(entries, group="patient", stratify=True, splits=[0.6, 0.2, 0.2])
    patients = {role: {patient for _, patient in sets[role]} for role in SETS}
    assert sum(map(len, patients.values())) == 120
    for role, size in (("train", 288), ("valid", 96), ("test", 96)):
        assert abs(Counter(row[-1] for row, _ in sets[role])["b"] - size / 3) <= 4  # one patient's rows


def test_groups_of_several_labels_keep_their_promise_and_their_labels_shares_nearly():
    rng = random.Random(0)
    entries = [((f"text {i}", rng.choice("aaaab" if i < 1900 else "c")), f"author {i % 97}") for i in range(2_003)]
    sets = rows_by_split(entries, group="author", stratify=True, splits=[0.6, 0.2, 0.2])
    authors = {role: {author for _, author in sets[role]} for role in SETS}
    assert sum(map(len, authors.values())) == 97
    assert all(len(sets[role]) == pytest.approx(401, abs=21) for role in ("valid", "test"))


@pytest.mark.parametrize("settings", [{"group": "author"}, {"stratify": True}, {"order": "date"}])
def test_fewer_training_rows_are_a_subset_of_more_and_the_held_out_rows_are_unchanged(settings):
    entries = {
        "group": by_author(800, 397),
        "stratify": by_label({"a": 500, "b": 211, "c": 89}),
        "order": by_time(800),
    }[next(iter(settings))]
    whole = rows_by_split(entries, **settings)
    before: set[Entry] = set()
    for number in (50, 120, 400):
        sets = rows_by_split(entries, train_rows=number, **settings)
        assert abs(len(sets["train"]) - number) <= (0 if "stratify" in settings else 6)
        assert (sets["valid"], sets["test"]) == (whole["valid"], whole["test"])
        assert before < set(sets["train"]) < set(whole["train"])
        before = set(sets["train"])
        if "stratify" in settings:
            assert abs(Counter(row[-1] for row, _ in sets["train"])["b"] - number * 211 / 800) <= 1.5


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(30, 400))
def test_training_is_before_validation_is_before_the_test(seed: int, number: int):
    sets = rows_by_split(by_time(number, seed), order="date", splits=[0.6, 0.2, 0.2])
    days = {role: [day for _, day in sets[role]] for role in SETS}
    assert max(days["train"]) < min(days["valid"]) <= max(days["valid"]) < min(days["test"])
    most = max(Counter(day for some in days.values() for day in some).values())
    assert abs(len(days["test"]) - 0.2 * number) <= most / 2 + 1


def test_fewer_training_rows_are_the_last_ones():
    entries = [((f"text {i}", "x"), str(i)) for i in range(100)]
    sets = rows_by_split(entries, order="rows", train_rows=7)
    assert [int(key) for _, key in sets["train"]] == list(range(73, 80))
    assert [int(key) for _, key in sets["unused"]] == list(range(73))
    told = plan(entries, order="rows", train_rows=7).notes
    expected = "73 to 79 for training, 80 to 89 for validation, 90 to 99 for the test"
    assert told == [f"split in the order of the rows, by their lines: {expected}"]


def test_a_last_moment_with_too_many_rows_is_an_error():
    entries = [((f"text {i}", "x"), str(2000 + i // 100)) for i in range(300)]
    found = plan(entries, order="year")
    assert Counter(roles(entries, found)) == dict.fromkeys(SETS, 100)
    assert found.notes == [
        "split in the order of year: 2000 to 2000 for training, 2001 to 2001 for validation, 2002 to 2002 for the test"
    ]
    assert (
        "100 rows are for the test although 30 were requested: rows with the same timestamp stay together"
        in found.warnings
    )


def test_moments_are_in_the_order_of_time():
    texts = ["1969-12-31", "1970-01-01", "1970-01-01T00:00:00.5Z", "1970-01-01 01:30+01:00", "1970-01-01T00:31",
             "1970-02", "2024-05-31T23:59:59-05:00", "2024-06-01T05:00"]  # fmt: skip
    places = [moment.value for text in texts if (moment := parse_timestamp(text))]
    assert places == sorted(set(places))
    assert len(places) == len(texts)
    numbers = [moment.value for text in ("7", " -2.5 ", "1e3") if (moment := parse_timestamp(text))]
    assert numbers == [7, -2.5, 1000]
    assert [parse_timestamp(text) for text in ("soon", "31.05.2024", "nan", "inf", "2024-13-01", "")] == [None] * 6


@given(st.datetimes(min_value=datetime(1, 1, 2)))
def test_a_date_as_it_is_written_is_the_date_that_is_read(date: datetime):
    moment = parse_timestamp(date.isoformat())
    assert moment is not None
    assert str(moment).startswith(str(date.date()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "date", "group": "author"}, "got data.order = 'date' and data.group = 'author'"),
        ({"order": 2, "stratify": True}, "got data.order = 2 and data.stratify"),
        ({"group": True}, "group"),
    ],
)
def test_ways_that_exclude_one_another_are_reported(settings, message: str):
    with pytest.raises(ConfigError, match=message):
        DataConfig.read(settings)


def test_rows_that_are_not_split_cannot_be_split_otherwise():
    with pytest.raises(ConfigError, match="rows are not split if there are separate validation rows"):
        plan(by_author(100, 9), group="author", stratify=True, has_valid=True)
    with pytest.raises(ConfigError, match="rows with one label each, and these rows have none"):
        plan_split(by_label({"a": 9}), DataConfig.read({"stratify": True}), has_valid=False, has_test=False)
    assert "test" not in rows_by_split(by_author(100, 9), group="author", splits=[0.8, 0.2, 0.0])
    found = plan(entries := by_author(100, 9), group="author", has_test=True)
    assert set(roles(entries, found)) == {"train", "valid"}


@pytest.mark.parametrize(
    ("entries", "settings", "message"),
    [
        (by_author(100, 1), {"group": "author"}, "100 rows, of which 1 authors stay together, are too few"),
        (by_label({"a": 2}), {"stratify": True}, "2 rows, of which those with the same source stay together, are"),
        ([(("text", "x"), "2024")] * 9, {"order": "year"}, "9 rows with 1 timestamp are too few to hold out the last"),
    ],
)
def test_too_few_to_split_are_reported(entries, settings, message: str):
    with pytest.raises(DataError, match=message):
        plan(entries, **settings)
