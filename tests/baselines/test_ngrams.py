"""Kneser-Ney n-grams, of one direction or both, against the definition, and by what a probability distribution is."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from regard.baselines import KneserNey
from regard.baselines import ngrams as module
from regard.baselines.ngrams import BidirectionalNgrams
from regard.errors import DataError
from regard.nn.ngrams import NO_TOKEN

TEXT = [0, 3, 1, 3, 1, 2, 3, 1, 3, 3, 1, 0, 2, 2, 1, 3, 1, 0, 0, 3, 1, 2]
VOCAB = 5


def discounts(counts: Counter[tuple[int, ...]]) -> list[float]:
    """Chen & Goodman (1999), equation 26, with half of the count where one of the numbers is 0."""
    number = Counter(counts.values())
    found = [0.0]
    for count in (1, 2, 3):
        if number[1] and number[2] and sum(n for c, n in number.items() if min(c, 5) == count):
            share = number[1] / (number[1] + 2 * number[2])
            found.append(min(max(count - (count + 1) * share * number[count + 1] / number[count], 0.1), count))
        else:
            found.append(count / 2)
    return found


def probability(context: tuple[int, ...], token: int, order: int) -> float:
    """The definition, by recursion."""
    below = probability(context[1:], token, order) if context else 1 / VOCAB
    size = len(context) + 1
    longest = Counter(tuple(TEXT[i : i + size]) for i in range(len(TEXT) - size + 1))
    longer = {tuple(TEXT[i : i + size + 1]) for i in range(len(TEXT) - size)}
    counts = longest if size == order else Counter(ngram[1:] for ngram in longer)
    after = {ngram: count for ngram, count in counts.items() if ngram[:-1] == context}
    if not after:
        return below
    total, discount = sum(after.values()), discounts(counts)
    removed = sum(discount[min(count, 3)] for count in after.values())
    count = counts[(*context, token)]
    return (count - discount[min(count, 3)]) / total + removed / total * below


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_are_those_of_the_definition(order: int):
    model = KneserNey(np.array(TEXT, np.uint16), vocab_size=VOCAB, order=order)
    read = [3, 1, 2, 4, 1, 3, 1, 0]
    expected = [-math.log(probability(tuple(read[max(0, i - order + 1) : i]), read[i], order)) for i in range(1, 8)]
    np.testing.assert_allclose(model.losses(np.array(read)), expected, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_of_all_tokens_sum_to_1_after_any_context(order: int):
    model = KneserNey(np.array(TEXT), vocab_size=VOCAB, order=order)
    for context in itertools.product(range(VOCAB), repeat=3):
        found = [np.exp(-model.losses(np.array([*context, token]))[-1]) for token in range(VOCAB)]
        assert min(found) > 0
        assert math.isclose(sum(found), 1.0, rel_tol=1e-12)


def test_longer_ngrams_predict_a_repetitive_text_better():
    text = np.array([0, 1, 2, 0, 2, 1, 3] * 40)
    losses = [KneserNey(text, vocab_size=4, order=order).losses(text).mean() for order in (1, 2, 3)]
    assert losses[0] > losses[1] > losses[2]


def test_a_text_shorter_than_its_ngrams_is_an_error():
    with pytest.raises(DataError, match="n-grams of 5 tokens need a text of more tokens, got 4"):
        KneserNey(np.array([1, 2, 3, 4]), vocab_size=5, order=5)


def neighbors(tokens: list[int], place: int, order: int, step: int) -> tuple[int, ...]:
    """Up to `order - 1` known tokens beside a place, the nearest last."""
    found: list[int] = []
    at = place + step
    while len(found) < order - 1 and 0 <= at < len(tokens) and tokens[at] != NO_TOKEN:
        found.insert(0, tokens[at])
        at += step
    return tuple(found)


@pytest.mark.parametrize("order", [2, 3])
def test_masked_tokens_have_the_product_of_both_directions(order: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 3)
    texts = [[3, NO_TOKEN, 1, 3, 2, NO_TOKEN, NO_TOKEN], [NO_TOKEN, 3, 1, NO_TOKEN, 3, NO_TOKEN, 4]]
    shown = [(0, 1), (0, 5), (0, 6), (1, 0), (1, 3)]  # the other one is a special token, which is not predicted
    is_hidden = torch.zeros(2, 7, dtype=torch.bool)
    for row, place in shown:
        is_hidden[row, place] = True
    sides = [KneserNey(np.array(text), vocab_size=VOCAB, order=order) for text in (TEXT, TEXT[::-1])]
    frequencies = [(TEXT.count(token) + 0.5) / (len(TEXT) + VOCAB / 2) for token in range(VOCAB)]
    expected = []
    for row, place in shown:
        shares = list(frequencies)
        for model, step in zip(sides, (-1, 1), strict=True):
            if context := neighbors(texts[row], place, order, step):
                for token in range(VOCAB):
                    shares[token] *= math.exp(-model.losses(np.array([*context, token]))[-1]) / frequencies[token]
        expected.append([share / sum(shares) for share in shares])
    found = BidirectionalNgrams(np.array(TEXT), vocab_size=VOCAB, order=order)
    parts = list(found.log_probabilities(torch.tensor(texts), is_hidden))
    assert [len(part) for part in parts] == [3, 2]
    np.testing.assert_allclose(torch.cat(parts).exp(), expected, rtol=1e-5)  # in float32
