"""Which tokenizer suits which texts."""

import random

import pytest

from regard.text.statistics import TextStatistics, choose_tokenizer

SYLLABLES = ["ka", "lo", "mi", "ren", "tos", "vu", "bel", "dri", "so", "nan", "ple", "gor"]
PHONEMES = ["AH0", "B", "K", "D", "IY1", "L", "M", "N", "S", "T", "AE1", "R"]


def words(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 5))) for _ in range(count)]


def joined(parts: list[str], lengths: range, count: int = 500) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(parts, k=rng.choice(lengths))) for _ in range(count)]


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (words(500, 0), "characters"),
        ([str(number) for number in range(0, 50_000, 77)], "characters"),
        (joined(PHONEMES, range(3, 9)), "words"),
        (joined(words(30, 1), range(2, 6)), "words"),
        (joined(words(4_000, 2), range(5, 20)), "bpe"),
        (["これは短い文です", "猫が好きです", "今日は晴れです"] * 30, "characters"),
        (["これは長い文です" * 20, "猫が好きです" * 20] * 30, "unigram"),
        (["To be , or not to be , that is the question"] * 3, "bpe"),
    ],
)
def test_the_kind_follows_from_the_texts(texts: list[str], kind: str):
    assert choose_tokenizer(TextStatistics.of(texts))[0] == kind


def test_statistics_of_no_texts_are_those_of_nothing():
    found = TextStatistics.of([])
    assert (found.num_texts, found.mean_words, found.num_distinct, found.unseen_share) == (0, 0.0, 0, 0.0)


def test_words_that_the_other_half_of_the_texts_lacks_are_unseen():
    assert TextStatistics.of(["a b", "a c", "b a", "a d"]).unseen_share == pytest.approx(2 / 4)
