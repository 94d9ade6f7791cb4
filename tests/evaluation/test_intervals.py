"""Intervals are tested as intervals: they must cover the truth as often as they say."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from regard.errors import ConfigError, DataError
from regard.evaluation import intervals
from regard.evaluation.intervals import bootstrap_interval, clopper_pearson, mean_interval

NUM_SIMULATIONS = 400


def mean(sums: np.ndarray) -> float:
    return sums[0] / sums[1]


def with_ones(values: np.ndarray) -> np.ndarray:
    return np.stack([values, np.ones_like(values)], axis=1)


def test_the_bootstrap_equals_its_definition():
    """The readable version: draw rows, sum them, score the sum."""
    statistics = np.random.default_rng(1).integers(1, 50, size=(37, 3))

    def compute(sums: np.ndarray) -> float:
        return sums[0] * sums[1] / sums[2]

    rng = np.random.Generator(np.random.PCG64(5))
    scores = [compute(statistics[rng.integers(37, size=37)].sum(axis=0)) for _ in range(211)]
    low, high = bootstrap_interval(statistics, compute, confidence=0.9, num_resamples=211, seed=5)
    assert (low, high) == tuple(np.quantile(scores, [0.05, 0.95]))


@pytest.mark.parametrize("draws_at_once", [1, 100, 37 * 13])
def test_the_size_of_the_chunks_changes_nothing(draws_at_once: int, monkeypatch: pytest.MonkeyPatch):
    statistics = np.random.default_rng(1).integers(1, 50, size=(37, 2))
    expected = bootstrap_interval(statistics, mean, num_resamples=101)
    monkeypatch.setattr(intervals, "_DRAWS_AT_ONCE", draws_at_once)
    assert bootstrap_interval(statistics, mean, num_resamples=101) == expected


def test_the_bootstrap_agrees_with_scipy_on_a_mean():
    values = np.random.default_rng(2).exponential(size=173)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(3)
    ).confidence_interval
    ours = bootstrap_interval(with_ones(values), mean, num_resamples=20_000)
    # Both are random: a quantile of 20 000 draws is off by about 2 % of the standard error of the mean.
    tolerance = 0.08 * values.std() / np.sqrt(len(values))
    np.testing.assert_allclose(ours, (theirs.low, theirs.high), rtol=0, atol=tolerance)


def test_the_bootstrap_interval_covers_a_mean_as_often_as_it_says():
    rng = np.random.default_rng(4)
    covered = 0
    for simulation in range(NUM_SIMULATIONS):
        values = rng.gamma(4.0, 0.5, size=101)  # its mean is 2
        low, high = bootstrap_interval(with_ones(values), mean, num_resamples=500, seed=simulation)
        covered += low <= 2.0 <= high
    assert_covers(covered, 0.95)


def test_the_bootstrap_interval_covers_at_other_confidences_too():
    rng = np.random.default_rng(5)
    covered = 0
    for simulation in range(NUM_SIMULATIONS):
        values = rng.normal(3.0, 1.0, size=101)
        low, high = bootstrap_interval(with_ones(values), mean, confidence=0.7, num_resamples=300, seed=simulation)
        covered += low <= 3.0 <= high
    assert_covers(covered, 0.7)


def test_equal_seeds_give_equal_intervals_and_others_do_not():
    statistics = with_ones(np.random.default_rng(6).normal(size=53))
    first = bootstrap_interval(statistics, mean, seed=7)
    assert bootstrap_interval(statistics, mean, seed=7) == first
    assert bootstrap_interval(statistics, mean, seed=8) != first


def test_more_confidence_is_a_wider_interval():
    statistics = with_ones(np.random.default_rng(6).normal(size=53))
    narrow = bootstrap_interval(statistics, mean, confidence=0.5)
    wide = bootstrap_interval(statistics, mean, confidence=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_bootstrap_refuses_a_single_example():
    with pytest.raises(DataError, match=r"at least 2 examples, got the shape \(1, 2\)"):
        bootstrap_interval(np.ones((1, 2)), mean)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\), got 1.0"),
        ({"num_resamples": 0}, "num_resamples=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_the_bootstrap_refuses_what_lies_out_of_range(arguments: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        bootstrap_interval(np.ones((3, 2)), mean, **arguments)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("num_examples", [1, 2, 7, 101, 10_007])
def test_clopper_pearson_equals_scipys_exact_interval(num_examples: int, confidence: float):
    for num_successes in {0, 1, num_examples // 3, num_examples - 1, num_examples}:
        theirs = scipy.stats.binomtest(num_successes, num_examples).proportion_ci(confidence, method="exact")
        ours = clopper_pearson(num_successes, num_examples, confidence=confidence)
        # binomtest searches for the ends, and stops within 2e-12 of them.
        np.testing.assert_allclose(ours, (theirs.low, theirs.high), rtol=0, atol=4e-12)


@pytest.mark.parametrize("num_examples", [2, 101, 10_007])
def test_clopper_pearson_has_closed_forms_at_the_ends(num_examples: int):
    tail = 0.025
    np.testing.assert_allclose(clopper_pearson(num_examples, num_examples), (tail ** (1 / num_examples), 1.0))
    np.testing.assert_allclose(clopper_pearson(0, num_examples), (0.0, -np.expm1(np.log(tail) / num_examples)))
    np.testing.assert_allclose(clopper_pearson(1, num_examples)[0], -np.expm1(np.log1p(-tail) / num_examples))


@pytest.mark.parametrize("num_examples", [5, 23, 101])
def test_clopper_pearson_covers_every_proportion(num_examples: int):
    """Its coverage needs no simulation: sum the binomial over the counts whose interval holds the truth."""
    counts = np.arange(num_examples + 1)
    low, high = np.array([clopper_pearson(int(count), num_examples, confidence=0.9) for count in counts]).T
    for proportion in np.linspace(0, 1, 211):
        holds = (low <= proportion) & (proportion <= high)
        assert scipy.stats.binom.pmf(counts, num_examples, proportion)[holds].sum() >= 0.9 - 1e-12


def test_clopper_pearson_is_symmetric_in_right_and_wrong():
    low, high = clopper_pearson(13, 17)
    np.testing.assert_allclose(clopper_pearson(4, 17), (1 - high, 1 - low), rtol=1e-12)


@pytest.mark.parametrize(("num_successes", "num_examples"), [(0, 0), (-1, 3), (4, 3)])
def test_clopper_pearson_refuses_impossible_counts(num_successes: int, num_examples: int):
    with pytest.raises(ConfigError, match=f"{num_successes=} and {num_examples=}"):
        clopper_pearson(num_successes, num_examples)


def test_the_interval_of_a_mean_is_students_by_scipy():
    values = [0.81, 0.9, 0.84, 0.79]
    low, high = scipy.stats.t.interval(0.9, 3, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert mean_interval(values, confidence=0.9) == pytest.approx((np.mean(values), low, high))
    assert mean_interval(torch.tensor(values)) == pytest.approx(mean_interval(values))


def test_the_interval_of_a_mean_covers_as_often_as_stated():
    draws = np.random.default_rng(0).normal(size=(4_000, 4))
    covered = sum(low <= 0 <= high for _, low, high in map(mean_interval, draws))
    assert scipy.stats.binomtest(covered, 4_000, 0.95).pvalue > 1e-3


def test_one_run_has_no_interval():
    mean, low, high = mean_interval([0.8])
    assert mean == 0.8
    assert math.isnan(low)
    assert math.isnan(high)


def assert_covers(covered: int, confidence: float) -> None:
    """The count of covering intervals is binomial; a right interval falls outside once in 500 seeds."""
    low, high = scipy.stats.binom.interval(0.998, NUM_SIMULATIONS, confidence)
    assert low <= covered <= high, f"covered {covered} of {NUM_SIMULATIONS}, expected {low} to {high}"
