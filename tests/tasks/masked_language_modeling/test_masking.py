"""Masking: which tokens are masked, which of them together, and what they are replaced by."""

import re

import numpy as np
import pytest
from scipy.stats import binom

from regard.errors import DataError
from regard.tasks.masked_language_modeling.masking import (
    _SPAN_LENGTHS,
    _SPAN_SHARES,
    NOT_HIDDEN,
    Masking,
    MaskingVocabulary,
    choose_spans,
    disguise,
    number_words,
    vocabulary_of,
)
from regard.tasks.masked_language_modeling.task import with_mask
from regard.text.tokenizer import Tokenizer, TokenizerKind, train_tokenizer

TEXT = "Tokenization (of 1997) isn't un-believable: naïve, slow; and Unbelievably tokenized tokens, 2024!"
SIZES: dict[TokenizerKind, int] = {
    "bpe": 300, "unigram": 60, "characters": 100, "bytes": 300, "words": 100, "wordpunct": 100,
}  # fmt: skip
KINDS = list(SIZES)
"""Of tokenizers for texts; those of molecules and sequences know no words."""
UNLIKELY = 1e-6


def trained(kind: TokenizerKind) -> Tokenizer:
    return with_mask(train_tokenizer([TEXT] * 3, kind, SIZES[kind]))


def single_letters(size: int = 31) -> MaskingVocabulary:
    """A vocabulary of words, the first three of which are special and the last the mask."""
    is_ordinary = np.ones(size, bool)
    is_ordinary[[0, 1, 2, size - 1]] = False
    nothing = np.zeros(size, bool)
    return MaskingVocabulary(size - 1, np.flatnonzero(is_ordinary), is_ordinary, nothing, nothing)


def is_plausible(count: int, trials: int, probability: float) -> bool:
    low, high = binom.ppf([UNLIKELY, 1 - UNLIKELY], trials, probability)
    return bool(low <= count <= high)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_runs_of_letters_and_digits(kind: TokenizerKind):
    tokenizer = trained(kind)
    ids = tokenizer.encode([TEXT])[0]
    words = number_words(np.array([ids]), vocabulary_of(tokenizer))[0]
    assert sorted(set(words.tolist())) == list(range(words.max() + 1))
    together = ["".join(tokenizer.decode([[i for i, w in zip(ids, words, strict=True) if w == n]])) for n in set(words)]
    found = [text.strip().removeprefix("'") for text in together]  # bpe makes one token of what follows an apostrophe
    if kind == "words":
        assert found == TEXT.split()
    else:
        assert [text for text in found if re.fullmatch(r"\w+", text)] == re.findall(r"\w+", TEXT)


def test_scripts_without_spaces_have_words_of_one_token():
    tokenizer = with_mask(train_tokenizer(["東京は日本 und Köln"], "characters", 100))
    words = number_words(np.array(tokenizer.encode(["東京は Köln"])), vocabulary_of(tokenizer))
    assert words.tolist() == [[0, 1, 2, 3, 4, 4, 4, 4]]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_and_the_mask_are_not_ordinary(kind: TokenizerKind):
    tokenizer = trained(kind)
    vocabulary = vocabulary_of(tokenizer)
    special = {tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.mask}
    assert set(vocabulary.ordinary.tolist()) == set(range(tokenizer.vocab_size)) - special
    assert set(np.flatnonzero(vocabulary.is_ordinary).tolist()) == set(vocabulary.ordinary.tolist())
    assert not (vocabulary.begins_inside | vocabulary.ends_inside)[list(special)].any()


def test_a_tokenizer_needs_a_mask():
    with pytest.raises(DataError, match="mask token"):
        vocabulary_of(train_tokenizer(["a b"], "words", 100))


@pytest.mark.parametrize("has_spans", [False, True])
@pytest.mark.parametrize("has_words", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_budget_is_kept_and_special_tokens_are_not_masked(kind: TokenizerKind, has_spans: bool, has_words: bool):
    tokenizer = trained(kind)
    ids = tokenizer.encode([TEXT, f"{TEXT} {TEXT}"])
    assert len(ids[0]) < len(ids[1])
    rows = np.full((2, len(ids[1]) + 3), tokenizer.pad)
    for row, own in zip(rows, ids, strict=True):
        row[: len(own) + 2] = [tokenizer.start, *own, tokenizer.end]
    masking, vocabulary = Masking(0.2, has_spans=has_spans, has_words=has_words), vocabulary_of(tokenizer)
    budgets = [round(0.2 * len(own)) for own in ids]
    for seed in range(20):
        shown, is_hidden = masking.hide(rows, vocabulary, rng(seed))
        assert not is_hidden[np.isin(rows, [tokenizer.pad, tokenizer.start, tokenizer.end])].any()
        assert (shown == rows)[~is_hidden].all()
        counts = is_hidden.sum(axis=1).tolist()
        assert all(count <= budget for count, budget in zip(counts, budgets, strict=True))
        if not has_words:
            assert counts == budgets
        plain, same = masking.hide(rows, vocabulary, rng(seed), is_plain=True)
        assert (same == is_hidden).all()
        assert (plain[is_hidden] == tokenizer.mask).all()
        assert (plain[~is_hidden] == rows[~is_hidden]).all()


@pytest.mark.parametrize("has_spans", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_a_word_are_masked_together(kind: TokenizerKind, has_spans: bool):
    tokenizer = trained(kind)
    rows = np.array(tokenizer.encode([f"{TEXT} {TEXT}"]))
    masking, vocabulary = Masking(0.3, has_spans=has_spans, has_words=True), vocabulary_of(tokenizer)
    words = number_words(rows, vocabulary)[0]
    for seed in range(20):
        hidden = masking.hide(rows, vocabulary, rng(seed))[1][0]
        for word in range(words.max() + 1):
            assert len(set(hidden[words == word].tolist())) == 1


def test_a_word_longer_than_the_budget_is_masked_in_part():
    words = np.array([[0, 0, 0, 0, 0, 1]])
    found = [choose_spans(words, np.array([2]), rng(seed), has_spans=False)[0] >= 0 for seed in range(50)]
    assert all(each.sum() == 2 for each in found)
    assert np.any(found, axis=0).all()


def test_every_token_is_masked_with_the_same_probability():
    words, budget, trials = np.arange(23)[None], 5, 2_000
    counts = sum(
        (choose_spans(words, np.array([budget]), rng(seed), has_spans=False) >= 0)[0] for seed in range(trials)
    )
    assert all(is_plausible(count, trials, budget / 23) for count in np.asarray(counts).tolist())


def test_80_percent_are_replaced_by_the_mask_10_by_others_and_10_are_kept():
    vocabulary, trials = single_letters(), 20_000
    tokens = rng(1).choice(vocabulary.ordinary, size=trials)
    shown = disguise(tokens, np.arange(trials), vocabulary, rng(2))
    num_masked, num_same = int((shown == vocabulary.mask).sum()), int((shown == tokens).sum())
    by_chance = 0.1 / len(vocabulary.ordinary)
    assert is_plausible(num_masked, trials, 0.8)
    assert is_plausible(num_same, trials, 0.1 + by_chance)
    assert is_plausible(trials - num_masked - num_same, trials, 0.1 - by_chance)
    others = shown[(shown != tokens) & (shown != vocabulary.mask)]
    assert vocabulary.is_ordinary[others].all()
    assert set(others.tolist()) == set(vocabulary.ordinary.tolist())


def test_the_tokens_of_a_span_are_treated_alike():
    vocabulary = single_letters(10_007)
    tokens = rng(1).choice(vocabulary.ordinary, size=(7, 503))
    shown, is_hidden = Masking(0.15, has_spans=True, has_words=True).hide(tokens, vocabulary, rng(3))
    spans = choose_spans(number_words(tokens, vocabulary), is_hidden.sum(axis=1), rng(3), has_spans=True)
    assert ((spans != NOT_HIDDEN) == is_hidden).all()
    kinds = np.where(shown == vocabulary.mask, 0, np.where(shown == tokens, 1, 2))
    for span in set(spans[is_hidden].tolist()):
        assert len(set(kinds[spans == span].tolist())) == 1
    assert {*kinds[is_hidden].tolist()} == {0, 1, 2}


def test_span_lengths_are_geometric():
    mean = float(_SPAN_SHARES @ _SPAN_LENGTHS)
    assert mean == pytest.approx(3.8, abs=0.01)  # Joshi et al. (2019), section 3.1
    words = np.arange(300_007)[None]
    spans = choose_spans(words, np.array([2_000]), rng(), has_spans=True)[0]
    lengths = np.unique(spans[spans != NOT_HIDDEN], return_counts=True)[1]
    assert lengths.max() == 10
    for length, share in zip(_SPAN_LENGTHS.tolist(), _SPAN_SHARES.tolist(), strict=True):
        assert is_plausible(int((lengths == length).sum()), len(lengths), share)


def test_spans_are_in_one_row_and_do_not_cross_special_tokens():
    vocabulary = single_letters()
    tokens = rng(1).choice(vocabulary.ordinary, size=(5, 11))
    tokens[:, 4] = 2
    for seed in range(50):
        spans = choose_spans(number_words(tokens, vocabulary), np.full(5, 7), rng(seed), has_spans=True)
        assert (spans[:, 4] == NOT_HIDDEN).all()
        for span in set(spans[spans != NOT_HIDDEN].tolist()):
            places = np.argwhere(spans == span)
            assert len(set(places[:, 0].tolist())) == 1
            assert (np.diff(places[:, 1]) == 1).all()


def test_nothing_is_masked_in_a_row_without_text():
    vocabulary = single_letters()
    tokens = np.array([[1, 2, 0], [1, 7, 2]])
    shown, is_hidden = Masking(0.5, has_spans=True, has_words=True).hide(tokens, vocabulary, rng())
    assert is_hidden.tolist() == [[False] * 3, [False, True, False]]
    assert not Masking(0.5, has_spans=False, has_words=True).hide(tokens[:1], vocabulary, rng())[1].any()
    assert shown[0].tolist() == [1, 2, 0]


def test_the_random_generator_determines_what_is_masked():
    vocabulary = single_letters()
    tokens = rng(1).choice(vocabulary.ordinary, size=(3, 101))
    masking = Masking(0.15, has_spans=True, has_words=False)
    one, again, other = (masking.hide(tokens, vocabulary, rng(seed)) for seed in (5, 5, 6))
    assert (one[0] == again[0]).all()
    assert (one[1] == again[1]).all()
    assert (one[1] != other[1]).any()
