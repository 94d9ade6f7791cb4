"""Questions asked backwards have the answer that leads forward again."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from regard.errors import ConfigError
from regard.evaluation.paired import holm
from regard.selection.bounds import (
    binomial_p_value,
    bonferroni,
    candidates_allowed,
    equivalent_fresh_examples,
    examples_needed,
    failure_probability,
    hoeffding_epsilon,
    smallest_difference,
    which_beat,
)


@given(st.floats(0.003, 0.9), st.integers(1, 10**12), st.floats(1e-9, 0.99), st.sampled_from(["both", "lower"]))
def test_so_many_examples_are_enough_and_one_less_is_not(epsilon: float, num_candidates: int, delta: float, side):
    options = {"num_candidates": num_candidates, "delta": delta, "side": side}
    needed = examples_needed(epsilon, **options)
    assert hoeffding_epsilon(needed, **options) <= epsilon
    # A hair: where the whole number is met exactly, the last bit decides.
    assert needed == 1 or hoeffding_epsilon(needed - 1, **options) >= epsilon * (1 - 1e-12)


@given(st.integers(1, 10**5), st.floats(0.003, 0.9), st.floats(1e-9, 0.99))
def test_so_many_candidates_are_allowed_and_one_more_is_not(num_examples: int, epsilon: float, delta: float):
    allowed = candidates_allowed(num_examples, epsilon, delta=delta)
    if not 0 < allowed < 10**9:
        return
    assert hoeffding_epsilon(num_examples, num_candidates=int(allowed), delta=delta) <= epsilon * (1 + 1e-9)
    assert hoeffding_epsilon(num_examples, num_candidates=int(allowed) + 1, delta=delta) >= epsilon * (1 - 1e-9)


def test_none_where_no_candidate_is_allowed():
    assert candidates_allowed(10, 0.1) == 0
    assert hoeffding_epsilon(10) > 0.1


def test_delta_leads_back_to_epsilon():
    epsilon = hoeffding_epsilon(777, num_candidates=31, delta=0.013)
    assert failure_probability(777, epsilon, num_candidates=31) == pytest.approx(0.013)
    one_sided = hoeffding_epsilon(777, num_candidates=31, delta=0.013, side="upper")
    assert failure_probability(777, one_sided, num_candidates=31, side="upper") == pytest.approx(0.013)
    assert failure_probability(10, 0.01) == 1.0


def test_two_that_may_each_be_off_by_epsilon_differ_by_twice_that():
    assert smallest_difference(4_000, num_candidates=10**6) == pytest.approx(2 * 0.046776583, rel=1e-6)
    assert smallest_difference(1_000) < smallest_difference(1_000, num_candidates=100)


def test_fresh_examples_are_worth_the_ratio_of_the_logarithms():
    assert equivalent_fresh_examples(4_000, num_candidates=10**6) == math.ceil(4_000 * math.log(40) / math.log(4e7))
    assert equivalent_fresh_examples(500, num_candidates=1) == 500


def test_numbers_outside_their_range_are_refused():
    for call in (
        lambda: examples_needed(0.0),
        lambda: candidates_allowed(10, -0.1),
        lambda: failure_probability(10, math.nan),
    ):
        with pytest.raises(ConfigError, match="epsilon must be above 0"):
            call()
    with pytest.raises(ConfigError, match="M, must be at least 1"):
        smallest_difference(10, num_candidates=0)


@pytest.mark.parametrize(("right", "total", "baseline"), [(0, 5, 0.3), (5, 5, 0.3), (61, 101, 0.5), (3, 7, 1.0)])
def test_p_values_are_scipys(right: int, total: int, baseline: float):
    theirs = binomtest(right, total, baseline, alternative="greater").pvalue
    assert binomial_p_value(right, total, baseline=baseline) == pytest.approx(theirs)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9))
def test_holm_never_finds_less_than_bonferroni(p_values: list[float]):
    for ours, theirs in zip(holm(p_values), bonferroni(p_values), strict=True):
        assert ours <= theirs
    assert min(holm(p_values)) == min(bonferroni(p_values))


def test_holm_names_one_that_bonferroni_misses():
    successes = [80, 60, 62, 50]
    assert which_beat(0.5, successes, 100, delta=0.05) == [True, False, True, False]
    p = binomial_p_value(62, 100, baseline=0.5)
    between = 3.5 * p  # more than 3 p, less than 4 p
    assert which_beat(0.5, successes, 100, delta=between) == [True, False, True, False]
    assert which_beat(0.5, successes, 100, delta=between, correct=bonferroni) == [True, False, False, False]


def test_p_values_outside_their_range_are_refused():
    with pytest.raises(ConfigError, match="p-values must be in"):
        bonferroni([0.5, 1.5])
    with pytest.raises(ConfigError, match="0 <= baseline <= 1"):
        binomial_p_value(1, 2, baseline=1.5)
