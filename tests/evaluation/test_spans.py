"""Spans that models share hold the same tokens for all; likelihoods are compared on them the right way round."""

import math
from itertools import product

import numpy as np
import pytest

from regard.data.windows import evaluation_windows
from regard.errors import DataError
from regard.evaluation.counts import Counts
from regard.evaluation.metrics.likelihood import count_bits_per_byte, count_perplexity, shared_ends, sum_between
from regard.evaluation.paired import compare_all
from regard.evaluation.scores import score_counts
from regard.evaluation.seeds import score_over_seeds

NUM_TOKENS, NUM_BYTES = 1009, 2003


def counts_of(window: int, stride: int | None = None) -> list[int]:
    """How many tokens each window over the text scores."""
    windows = evaluation_windows(NUM_TOKENS + 1, window, stride or window)
    return [end + 1 - first for _, end, first in windows]


def counts_per_span(losses: np.ndarray, *, tokens: int = 11) -> Counts:
    """Bits per byte of spans of equally many tokens, two bytes each."""
    return count_bits_per_byte(losses.tolist(), [tokens] * len(losses), 2 * tokens * len(losses))


@pytest.mark.parametrize("ways", [[(7, 7), (11, 11)], [(12, 12), (18, 5), (4, 4)], [(13, 13)], [(31, 31), (997, 1)]])
def test_a_shared_span_has_what_its_tokens_have(ways: list[tuple[int, int]]):
    """Windows of any length and stride, against sums over single tokens."""
    losses = np.random.default_rng(0).exponential(size=NUM_TOKENS)
    counts = [counts_of(*way) for way in ways]
    ends = shared_ends(counts)
    assert ends[-1] == NUM_TOKENS
    starts = np.concatenate([[0], ends[:-1]])
    expected = [losses[start:end].sum() for start, end in zip(starts, ends, strict=True)]
    for some in counts:
        by_window = [part.sum() for part in np.split(losses, np.cumsum(some)[:-1])]
        np.testing.assert_allclose(sum_between(by_window, some, ends), expected, rtol=1e-12)
        np.testing.assert_array_equal(sum_between(some, some, ends), ends - starts)


def test_windows_of_one_length_are_the_spans():
    counts = counts_of(17)
    losses = np.random.default_rng(1).exponential(size=len(counts)).tolist()
    ends = shared_ends([counts, counts])
    assert sum_between(losses, counts, ends).tolist() == losses
    assert sum_between(counts, counts, ends).tolist() == counts


def test_spans_are_as_many_as_the_common_multiples():
    assert shared_ends([counts_of(6), counts_of(10)]).tolist() == [*range(30, NUM_TOKENS, 30), NUM_TOKENS]


def test_texts_of_different_lengths_are_refused():
    with pytest.raises(DataError, match="must score the same text, got texts of 12 and 13 tokens"):
        shared_ends([[4, 4, 4], [6, 7]])


def test_of_one_seed_the_interval_is_that_of_an_evaluation():
    counts = counts_of(17)
    losses = np.random.default_rng(2).gamma(3.0, size=len(counts)).tolist()
    alone = score_counts(count_bits_per_byte(losses, counts, NUM_BYTES))
    compared = score_over_seeds([count_bits_per_byte(losses, counts, NUM_BYTES)])
    assert (compared.value, compared.interval) == (alone.value, alone.interval)


def test_a_model_that_needs_fewer_bits_has_a_difference_below_zero():
    """A constant gain in nats a token, whatever the span: the difference follows by hand."""
    rng = np.random.default_rng(3)
    hardness = rng.gamma(4.0, 6.0, size=83)
    better, worse = ([counts_per_span(hardness + 11 * gain) for _ in range(2)] for gain in (0.0, 0.25))
    (pair,) = compare_all({"better": better, "worse": worse})
    by_hand = -0.25 / 2 / math.log(2)  # two bytes a token
    assert pair.difference == pytest.approx(by_hand)
    np.testing.assert_allclose(pair.interval, [by_hand, by_hand])
    assert pair.is_significant
    (turned,) = compare_all({"worse": worse, "better": better})
    assert turned.difference == -pair.difference


def test_the_test_of_bits_per_byte_equals_all_swaps_written_out():
    rng = np.random.default_rng(7)
    a, b = rng.gamma(5.0, size=11), rng.gamma(6.0, size=11)
    swapped = np.array(list(product([1, -1], repeat=11))) @ (a - b)
    exact = np.mean(np.abs(swapped) >= abs((a - b).sum()) - 1e-12)
    assert 0.02 < exact < 0.5
    (pair,) = compare_all({"a": [counts_per_span(a)], "b": [counts_per_span(b)]}, num_resamples=20_000)
    assert pair.p == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))


def test_equal_recipes_are_not_told_apart():
    rng = np.random.default_rng(5)
    hardness = rng.gamma(4.0, 6.0, size=101)
    models = {name: [counts_per_span(hardness + rng.normal(size=101)) for _ in range(3)] for name in "abc"}
    assert not any(pair.is_significant for pair in compare_all(models))


def test_bits_and_perplexity_say_the_same_where_the_tokens_are_the_same():
    counts = counts_of(17)
    rng = np.random.default_rng(6)
    losses = [rng.gamma(3.0, size=len(counts)).tolist() for _ in range(2)]
    by_byte = [count_bits_per_byte(some, counts, NUM_BYTES).value for some in losses]
    by_token = [count_perplexity(some, counts).value for some in losses]
    np.testing.assert_allclose(np.log2(by_token) * NUM_TOKENS / NUM_BYTES, by_byte)
