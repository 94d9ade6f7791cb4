"""Near-duplicates of training rows, compared with an exhaustive search."""

import random
import string
from functools import cache

import numpy as np
import pytest

from regard.data.splits import leaks
from regard.data.splits.leaks import LONG_TEXT, NearDuplicateSearch, find_near_duplicates, row_similarity, shingles
from regard.errors import ConfigError

WORDS = ["".join(random.Random(i).choices(string.ascii_lowercase, k=2 + i % 7)) for i in range(300)]
CAT = "the cat sat quietly on the old mat beside the door and slept"


def sentence(rng: random.Random, num_words: int = 12) -> str:
    return " ".join(rng.choices(WORDS, k=num_words))


def edited(text: str, rng: random.Random, num_edits: int) -> str:
    letters = list(text)
    for _ in range(num_edits):
        letters[rng.randrange(len(letters))] = rng.choice(string.digits)
    return "".join(letters)


@cache
def runs(text: str) -> frozenset[str]:
    """Of five characters; written again, from the definition, for texts of small letters and single spaces."""
    return frozenset(map("".join, zip(*(text[i:] for i in range(5)), strict=False)))


def jaccard(first: str, second: str) -> float:
    both = len(runs(first) & runs(second))
    return both / (len(runs(first)) + len(runs(second)) - both)


@pytest.mark.parametrize("threshold", [0.6, 0.8, 0.88])
def test_what_is_found_is_what_comparing_all_with_all_finds(threshold: float):
    rng = random.Random(1)
    train = [(sentence(rng, 20),) for _ in range(113)]
    held_out = [(edited(rng.choice(train)[0], rng, rng.randrange(1, 7)),) for _ in range(71)]
    held_out += [(sentence(rng, 20),) for _ in range(29)]
    best = [max((jaccard(row[0], other[0]), other) for other in train) for row in held_out]
    assert all(row not in train for row in held_out)
    expected = [i for i, (share, _) in enumerate(best) if share >= threshold]
    assert 2 < len(expected) < 71
    found = find_near_duplicates(train, {"valid": held_out}, threshold=threshold)
    missed = len(expected) - found.overlaps["valid"].num_near
    # Bands are made for 0.8: a pair of 0.6 is looked at with probability 1 - (1 - 0.6 ** 6) ** 20 = 0.62.
    assert 0 <= missed <= (0 if threshold >= 0.8 else 0.38 * len(expected))
    for example in found.examples:
        share, other = best[held_out.index((example.held_out[0],))]
        assert (example.similarity, example.training) == (pytest.approx(share), other)


def test_the_share_of_equal_values_is_that_of_equal_pieces():
    rng = random.Random(2)
    firsts = [(sentence(rng), sentence(rng), "label") for _ in range(199)]
    seconds = [(edited(a, rng, i % 7), edited(b, rng, i % 5), label) for i, (a, b, label) in enumerate(firsts)]
    search = NearDuplicateSearch(firsts, 0.8, np.random.default_rng(0))
    alike = (search.signatures(firsts) == search.signatures(seconds)).mean(axis=1)
    tagged = [[{(i, piece) for i, text in enumerate(row) for piece in shingles(text)} for row in rows]
              for rows in (firsts, seconds)]  # fmt: skip
    true = np.array([len(a & b) / len(a | b) for a, b in zip(*tagged, strict=True)])
    # A share of 120 values, each of which is the same with the true probability.
    variances = true * (1 - true) / 120
    assert (np.abs(alike - true) <= 5 * np.sqrt(variances)).all()
    assert abs(float((alike - true).mean())) < 4 * float(np.sqrt(variances.sum())) / len(true)


def test_pairs_at_the_threshold_are_found():
    rng = random.Random(3)
    train = [(sentence(rng),) for _ in range(1_009)]
    planted = [(edited(row[0], rng, 1),) for row in train]
    planted = [row for row, other in zip(planted, train, strict=True) if 0.8 <= jaccard(row[0], other[0]) < 0.9]
    assert len(planted) > 500
    assert find_near_duplicates(train, {"valid": planted}).overlaps["valid"].num_near >= 0.99 * len(planted)


def test_identical_rows_are_counted_as_such_and_not_again():
    train = [(CAT, "a"), (CAT + ".", "a"), ("short", "b")]
    found = find_near_duplicates(
        train, {"valid": [(CAT, "a"), ("short", "b"), ("other", "b")], "test": [(CAT + "!", "a")]}
    )
    valid, test = found.overlaps["valid"], found.overlaps["test"]
    assert (valid.num_rows, valid.num_identical, valid.num_near, valid.num_compared) == (3, 2, 0, 1)
    assert (test.num_identical, test.num_near) == (0, 1)
    first, second = found.describe()
    assert first == "2 of the 3 validation rows are also training rows: scores on them are too optimistic"
    assert second.startswith(
        "1 of the 1 test rows is a near-duplicate of training rows (80 % or more of their 5-grams are shared)"
    )
    assert CAT not in second, "nobody is to read a test row before the test"
    (near,) = find_near_duplicates(train, {"valid": [(CAT + "!", "a")]}).describe()
    assert CAT + "!" in near


def test_the_whole_row_must_be_alike():
    longer = "a long answer which tells what the cat did after it had slept"
    train = [(CAT, "positive"), (CAT, longer)]
    for answer, is_near in [("positive", True), ("negative", False), (longer + "!", True), (longer[::-1], False)]:
        found = find_near_duplicates(train, {"valid": [(CAT + ".", answer)]})
        assert found.overlaps["valid"].num_near == is_near


@pytest.mark.parametrize(
    ("first", "second", "is_near"),
    [
        ("4 March 2025", "4 March 2026", False),
        ("Positive", "positive", False),
        ("on the 4th of March 2025", "on the 4th of March 2025.", True),
        ("the Fourth  of March in 2025", "The fourth of March in 2025", True),
        ("the fourth of March in 2025", "the fourth of May in 2025", False),
    ],
)
def test_short_texts_are_the_same_or_they_are_not(first: str, second: str, is_near: bool):
    found = find_near_duplicates([(first, "2025-03-04")], {"valid": [(second, "2025-03-04")]})
    assert found.overlaps["valid"].num_near == is_near
    assert (row_similarity((first,), (second,)) >= 0.8) == is_near


def test_neither_order_nor_chunks_matter(monkeypatch):
    rng = random.Random(4)
    train = [(sentence(rng), str(i % 2)) for i in range(97)]
    valid = [(edited(text, rng, i % 4), label) for i, (text, label) in enumerate(train)]
    whole = find_near_duplicates(iter(train), {"valid": valid})
    monkeypatch.setattr(leaks, "_CHUNK_ROWS", 7)
    assert find_near_duplicates(reversed(train), {"valid": valid}) == whole
    assert whole.overlaps["valid"].num_near > 20


def test_of_very_many_held_out_rows_some_are_drawn(monkeypatch):
    monkeypatch.setattr(leaks, "MAX_COMPARED", 11)
    rng = random.Random(5)
    train = [(sentence(rng),) for _ in range(31)]
    found = find_near_duplicates(train, {"valid": [(text + ".",) for (text,) in train], "test": [(train[0][0],)]})
    valid = found.overlaps["valid"]
    assert (valid.num_rows, valid.num_compared, valid.num_near, valid.is_sample) == (31, 11, 11, True)
    assert not found.overlaps["test"].is_sample
    assert (
        "11 of the 11 validation rows sampled for comparison are near-duplicates of training rows"
        in found.describe()[0]
    )


def test_long_texts_are_compared_by_their_words():
    rng = random.Random(6)
    document = sentence(rng, num_words=400)
    assert len(document) > LONG_TEXT
    words = document.split()
    changed = " ".join([*words[:200], "another", *words[201:]])
    shuffled = " ".join(rng.sample(words, len(words)))
    found = find_near_duplicates([(document,)], {"valid": [(changed,), (shuffled,)]})
    assert found.overlaps["valid"].num_near == 1
    # Of 396 runs of five words five are others.
    assert found.examples[0].similarity == pytest.approx(391 / 401)


def test_rows_of_one_mould_take_no_longer_and_most_twins_are_found():
    rng = random.Random(7)
    mould = "the price of article number {} in the shop on the corner is {} euros as of today"
    train = [(mould.format(rng.randrange(10**6), rng.randrange(10**6)),) for _ in range(499)]
    held_out = [(text + ".",) for (text,) in train[:251]]
    assert find_near_duplicates(train, {"valid": held_out}).overlaps["valid"].num_near == len(held_out)


def test_without_rows_nothing_is_reported():
    assert find_near_duplicates([], {"valid": [(CAT,)]}).describe() == []
    assert find_near_duplicates([(CAT,)], {}).describe() == []
    assert find_near_duplicates([(CAT,), ("",)], {"valid": [("",), (" " * 30,)]}).overlaps["valid"].num_identical == 1
    with pytest.raises(ConfigError, match=r"threshold must be in \(0, 1\], got 1.5"):
        find_near_duplicates([], {}, threshold=1.5)
