"""Kneser-Ney n-grams against the definition, and by what a probability distribution is."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from regard.baselines import KneserNey
from regard.errors import DataError

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
