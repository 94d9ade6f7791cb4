"""Metrics of likelihoods: values by hand, intervals against simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from regard.errors import DataError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.likelihood import PSEUDO_PERPLEXITY, count_masked_accuracy, count_perplexity
from regard.evaluation.scores import Score, score_counts

NUM_SIMULATIONS = 400


def perplexity(losses: list[float], num_tokens: list[int], **options: int) -> Score:
    return score_counts(count_perplexity(losses, num_tokens), **options)


def test_an_even_spread_over_the_vocabulary_has_its_size_as_perplexity():
    num_tokens = [2, 3, 5, 7]
    score = perplexity([count * math.log(23) for count in num_tokens], num_tokens)
    assert score.value == pytest.approx(23)
    assert score.interval == pytest.approx((23, 23))
    assert score.settings["tokens"] == 17


def test_perplexity_weighs_tokens_not_sequences():
    assert perplexity([1.0, 10.0], [1, 4]).value == pytest.approx(math.exp(11 / 5))


def test_the_order_of_sequences_does_not_change_perplexity():
    nats, tokens = np.random.default_rng(8).gamma(2.0, size=43), np.arange(1, 44)
    assert perplexity(nats[::-1].tolist(), tokens[::-1].tolist()).value == pytest.approx(
        perplexity(nats.tolist(), tokens.tolist()).value, rel=1e-13
    )


def test_the_interval_of_perplexity_covers_the_truth():
    """Of sequences whose length and loss per token both vary, the truth is the ratio of their means."""
    rng = np.random.default_rng(11)
    covered = 0
    for simulation in range(NUM_SIMULATIONS):
        tokens = rng.integers(1, 30, size=151)  # mean 15
        nats = tokens * rng.gamma(8.0, 0.25, size=151)  # mean 2 per token
        score = perplexity(nats.tolist(), tokens.tolist(), num_resamples=400, seed=simulation)
        assert score.interval is not None
        covered += score.interval[0] <= math.exp(2.0) <= score.interval[1]
    low, high = scipy.stats.binom.interval(0.998, NUM_SIMULATIONS, 0.95)
    assert low <= covered <= high, covered


@pytest.mark.parametrize(
    ("nats", "tokens", "message"),
    [
        ([], [], "got 0 and 0"),
        ([1.0, 2.0], [1], "got 2 and 1"),
        ([1.0, 2.0], [1, 0], "at least 1, got 0 for sequence 1"),
        ([1.0, math.nan], [1, 1], "finite and at most 700, got nan for sequence 1"),
        ([math.inf, 1.0], [1, 1], "got inf for sequence 0"),
        ([1.0, 1e6], [1, 10], "got 100000 for sequence 1"),
    ],
)
def test_perplexity_refuses_what_has_none(nats: list[float], tokens: list[int], message: str):
    with pytest.raises(DataError, match=message):
        perplexity(nats, tokens)


def test_a_pseudo_perplexity_is_computed_as_a_perplexity_and_has_its_own_name():
    examples = Examples(losses=[1.0, 10.0], num_tokens=[1, 4], settings={"window": 7})
    (score,) = PSEUDO_PERPLEXITY.scores(examples)
    assert (score.name, score.value) == ("pseudo_perplexity", pytest.approx(math.exp(11 / 5)))
    assert score.settings["window"] == 7


def test_masked_tokens_of_a_window_are_not_independent():
    counts = count_masked_accuracy([3, 0, 4], [4, 2, 4])
    assert counts.value == 0.7
    assert not counts.is_proportion
    assert score_counts(counts).settings["interval"] == "bootstrap"
