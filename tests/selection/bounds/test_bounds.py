"""Bounds against formulas worked out by hand, published figures, scipy, and each other."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from regard.errors import ConfigError, DataError
from regard.selection.bounds import (
    Bound,
    ScoreSummary,
    applicable_bounds,
    bernstein,
    binary_kl,
    binomial,
    bootstrap_estimate,
    bootstrap_estimate_of_all,
    chernoff,
    fresh_bound,
    hoeffding,
    hoeffding_epsilon,
    kl_from_uniform,
    pac_bayes,
    tightest_bound,
)
from regard.selection.bounds.means import kl_lower_end, kl_upper_end

BOUNDS: dict[str, Callable[..., Bound]] = {
    "hoeffding": hoeffding,
    "chernoff": chernoff,
    "bernstein": bernstein,
    "binomial": lambda value, n, **options: binomial(round(value * n), n, **options),
}


def width(bound: Bound) -> float:
    return bound.interval[1] - bound.interval[0]


def test_the_lectures_example():
    assert hoeffding_epsilon(4_000, num_candidates=10**6, delta=0.05) == pytest.approx(0.0468, abs=1e-4)
    expected = math.sqrt(math.log(10**6 / 0.05) / 8_000)
    assert hoeffding_epsilon(4_000, num_candidates=10**6, delta=0.05, side="lower") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("right", "total", "lower", "upper"),
    [(81, 263, 0.2527, 0.3676), (15, 148, 0.0578, 0.1617), (0, 20, 0.0, 0.1684), (1, 29, 0.0009, 0.1776)],
)
def test_the_exact_interval_is_that_of_newcombes_table(right: int, total: int, lower: float, upper: float):
    # Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I, method 5.
    assert binomial(right, total).interval == pytest.approx((lower, upper), abs=5e-5)


@pytest.mark.parametrize(("right", "total"), [(0, 7), (3, 7), (7, 7), (93, 101)])
@pytest.mark.parametrize("num_candidates", [1, 13])
def test_the_exact_interval_is_scipys(right: int, total: int, num_candidates: int):
    level = 1 - 0.1 / num_candidates
    theirs = binomtest(right, total).proportion_ci(level)
    ours = binomial(right, total, num_candidates=num_candidates, delta=0.1)
    assert ours.interval == pytest.approx((theirs.low, theirs.high), abs=1e-10)
    one_sided = binomtest(right, total, alternative="greater").proportion_ci(level)
    ours = binomial(right, total, num_candidates=num_candidates, delta=0.1, side="lower")
    assert ours.interval == pytest.approx((one_sided.low, 1.0), abs=1e-10)


def test_bernstein_is_maurer_and_pontils_formula():
    rng = np.random.default_rng(0)
    values = rng.beta(5, 2, size=211)
    pairs = ((values[:, None] - values[None, :]) ** 2).sum() / (2 * 211 * 210)  # V_n as they define it
    log_term = math.log(2 * 17 / 0.1)
    expected = math.sqrt(2 * pairs * log_term / 211) + 7 * log_term / (3 * 210)
    variance = ScoreSummary.from_values(values).variance
    ours = bernstein(float(values.mean()), 211, variance=variance, num_candidates=17, delta=0.1, side="upper")
    assert ours.epsilon == pytest.approx(expected)
    # Both sides are two such statements, with half of delta each.
    both = bernstein(float(values.mean()), 211, variance=variance, num_candidates=17, delta=0.2)
    assert both.epsilon == pytest.approx(expected)


def test_without_a_variance_bernstein_takes_that_of_zeros_and_ones():
    values = [1.0] * 31 + [0.0] * 6
    known = bernstein(31 / 37, 37, variance=float(np.var(values, ddof=1)))
    assert bernstein(31 / 37, 37).epsilon == pytest.approx(known.epsilon)
    assert bernstein(31 / 37, 37, variance=0.01).epsilon < known.epsilon
    with pytest.raises(ConfigError, match="sample variance of at most"):
        bernstein(31 / 37, 37, variance=0.3)


@pytest.mark.parametrize("value", [0.0, 0.02, 0.5, 0.93, 1.0])
@pytest.mark.parametrize("room", [1e-4, 0.01, 1.0])
def test_the_inverse_of_the_divergence_is_one(value: float, room: float):
    for end in (kl_upper_end(value, room), kl_lower_end(value, room)):
        assert 0.0 <= end <= 1.0
        if 0.0 < end < 1.0:
            assert binary_kl(value, end) == pytest.approx(room)
            assert binary_kl(value, end) >= room * (1 - 1e-12)  # errs outwards


@given(
    right=st.integers(0, 60),
    total=st.integers(2, 60),
    num_candidates=st.integers(1, 10**9),
    delta=st.floats(1e-6, 0.9),
    side=st.sampled_from(["both", "lower", "upper"]),
)
def test_the_exact_bound_lies_inside_chernoffs_and_that_inside_hoeffdings(
    right: int, total: int, num_candidates: int, delta: float, side
):
    right = min(right, total)
    options = {"num_candidates": num_candidates, "delta": delta, "side": side}
    exact = binomial(right, total, **options).interval
    sharp = chernoff(right / total, total, **options).interval
    plain = hoeffding(right / total, total, **options).interval
    assert plain[0] - 1e-9 <= sharp[0] <= exact[0] + 1e-9
    assert exact[1] - 1e-9 <= sharp[1] <= plain[1] + 1e-9
    if delta <= 0.5:
        assert exact[0] <= right / total <= exact[1]


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_widen_with_candidates_and_narrow_with_examples_and_delta(name: str):
    make = BOUNDS[name]
    for bounds in (
        [make(0.8, 1_000, num_candidates=m, delta=0.05) for m in (1, 2, 100, 10**6)],
        [make(0.8, n, num_candidates=10, delta=0.05) for n in (4_000, 1_000, 500, 100)],
        [make(0.8, 1_000, num_candidates=10, delta=delta) for delta in (0.5, 0.1, 0.05, 1e-6)],
    ):
        widths = [width(bound) for bound in bounds]
        assert widths == sorted(widths)
        assert widths[0] < widths[-1]
        assert [bound.epsilon for bound in bounds] == sorted(bound.epsilon for bound in bounds)


@pytest.mark.parametrize("name", BOUNDS)
def test_one_side_is_nearer_than_that_of_two_and_leaves_the_other_open(name: str):
    both, lower, upper = (BOUNDS[name](0.8, 500, num_candidates=7, side=side) for side in ("both", "lower", "upper"))
    assert both.interval[0] < lower.interval[0] < 0.8 < upper.interval[1] < both.interval[1]
    assert lower.interval[1] == 1.0
    assert upper.interval[0] == 0.0


@pytest.mark.parametrize("name", BOUNDS)
def test_more_candidates_than_a_float_can_count(name: str):
    bound = BOUNDS[name](0.8, 1_000, num_candidates=10**400)
    assert 0.0 <= bound.interval[0] < bound.interval[1] <= 1.0
    assert math.isfinite(bound.epsilon)


def test_a_share_that_was_rounded_is_rounded_outwards():
    between = binomial(56.4, 100).interval
    assert between[0] == binomial(56, 100).interval[0]
    assert between[1] == binomial(57, 100).interval[1]
    assert binomial(0.57 * 100, 100).interval == binomial(57, 100).interval  # 0.57 * 100 < 57


def test_pac_bayes_on_one_candidate_pays_for_the_root_beside_the_union():
    n, m, delta = 3_000, 500, 0.05
    one = pac_bayes(0.9, n, divergence=math.log(m), delta=delta)
    # The same room as Chernoff's with 2 sqrt(N) in the place of 2.
    same = chernoff(0.9, n, num_candidates=1, delta=delta / m / math.sqrt(n))
    assert one.interval == pytest.approx(same.interval)
    spread = pac_bayes(0.9, n, divergence=kl_from_uniform([1.0] * 50 + [0.0] * 450), delta=delta)
    assert kl_from_uniform([1.0] * 50 + [0.0] * 450) == pytest.approx(math.log(10))
    assert width(spread) < width(one)


@pytest.mark.parametrize("num_examples", [1, 2, 3, 7, 8, 50, 500])
def test_what_maurers_theorem_sums_is_at_most_two_roots(num_examples: int):
    # sum over k of C(n, k) (k/n)^k (1 - k/n)^(n - k), which the bound replaces by 2 sqrt(n).
    n = num_examples
    total = sum(math.comb(n, k) * (k / n) ** k * (1 - k / n) ** (n - k) for k in range(n + 1))
    assert math.sqrt(n) <= total <= 2 * math.sqrt(n) + 1e-9


def test_which_bounds_apply_follows_from_the_scores():
    def names(scores, **options) -> list[str]:
        return [bound.name for bound in applicable_bounds(scores, **options)]

    assert names([1.0, 0.0, 1.0]) == ["Hoeffding", "Chernoff", "empirical Bernstein", "exact binomial"]
    assert names([0.3, 0.0, 1.0]) == ["Hoeffding", "Chernoff", "empirical Bernstein"]
    assert names([1.0]) == ["Hoeffding", "Chernoff", "exact binomial"]  # a variance needs two
    assert names(ScoreSummary.from_mean(0.7, 10)) == ["Hoeffding", "Chernoff", "empirical Bernstein"]
    assert names([0.3, -0.1, 1.0]) == ["bootstrap"]
    assert names(ScoreSummary.from_values([0.3, 0.1, 0.9], is_bounded=False)) == ["bootstrap"]
    assert all(bound.is_estimate == (bound.name == "bootstrap") for bound in applicable_bounds([0.3, 0.1, 3.0]))


def test_values_and_their_statistics_have_the_same_bounds():
    values = np.random.default_rng(1).beta(2, 3, size=97)
    known = ScoreSummary.from_mean(float(values.mean()), 97, variance=float(values.var(ddof=1)))
    for ours, theirs in zip(
        applicable_bounds(values, num_candidates=5), applicable_bounds(known, num_candidates=5), strict=True
    ):
        assert ours.interval == pytest.approx(theirs.interval)
    flips = (values > 0.4).astype(float)
    counted = applicable_bounds(ScoreSummary.from_successes(int(flips.sum()), 97), num_candidates=5)
    for ours, theirs in zip(applicable_bounds(flips, num_candidates=5), counted, strict=True):
        assert ours.interval == pytest.approx(theirs.interval)


def test_the_narrower_of_two_has_half_of_delta_for_each():
    quiet = np.random.default_rng(2).normal(0.5, 0.01, size=2_000)
    bound = tightest_bound(quiet, num_candidates=30, delta=0.1)
    variance = float(quiet.var(ddof=1))
    half = bernstein(float(quiet.mean()), 2_000, variance=variance, num_candidates=30, delta=0.05)
    assert bound.name == "empirical Bernstein"
    assert bound.interval == half.interval
    assert bound.delta == 0.1
    assert "half of delta each" in bound.statement
    loud = np.random.default_rng(3).beta(0.1, 0.1, size=100)
    value = float(loud.mean())
    assert tightest_bound(loud, num_candidates=30, delta=0.1).interval == chernoff(
        value, 100, num_candidates=30, delta=0.05
    ).interval  # fmt: skip
    alone = tightest_bound(ScoreSummary.from_mean(value, 100), num_candidates=30, delta=0.1)
    assert alone.interval == chernoff(value, 100, num_candidates=30, delta=0.1).interval


def test_fresh_examples_know_nothing_of_the_choice():
    assert fresh_bound(ScoreSummary.from_successes(90, 100)).interval == binomial(90, 100, num_candidates=1).interval
    assert fresh_bound(ScoreSummary.from_successes(90, 100)).num_candidates == 1


def test_the_bootstrap_is_near_the_normal_interval_for_many_examples():
    values = np.random.default_rng(4).exponential(size=900)
    error = float(values.std()) / math.sqrt(900)
    by_quantiles = bootstrap_estimate(values, delta=0.05, num_resamples=5_000)
    assert "quantiles" in by_quantiles.statement
    assert by_quantiles.epsilon == pytest.approx(1.96 * error, rel=0.08)
    # 10^6 candidates leave no resample beyond the ends; z at 0.05 / 2e6 is 5.4513.
    by_normal = bootstrap_estimate(values, num_candidates=10**6, delta=0.05, num_resamples=5_000)
    assert "normal distribution" in by_normal.statement
    assert by_normal.epsilon == pytest.approx(5.4513 * error, rel=0.05)
    assert by_normal.statement.startswith("an estimate, not a bound")
    lower = bootstrap_estimate(values, side="lower", delta=0.05, num_resamples=5_000)
    assert lower.interval[1] == math.inf
    assert value_of(lower) - lower.interval[0] == pytest.approx(1.645 * error, rel=0.08)


def value_of(bound: Bound) -> float:
    assert bound.value is not None
    return bound.value


def test_the_bootstrap_of_all_is_that_of_one_where_all_are_the_same():
    values = np.random.default_rng(5).exponential(size=(400, 1))
    one = bootstrap_estimate_of_all(values, 0, num_resamples=2_000)
    many = bootstrap_estimate_of_all(np.repeat(values, 30, axis=1), 7, num_resamples=2_000)
    assert many.epsilon == pytest.approx(one.epsilon)
    assert many.is_estimate


def test_an_interval_needs_a_value():
    assert hoeffding(None, 100).lower is None
    with pytest.raises(ConfigError, match="no interval without a measured value"):
        hoeffding(None, 100).holds(0.5)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: hoeffding(0.5, 0), "N, must be at least 1, got 0"),
        (lambda: hoeffding(0.5, 10, num_candidates=0), "M, must be at least 1, got 0"),
        (lambda: hoeffding(0.5, 10, delta=0.0), "delta must lie between 0 and 1"),
        (lambda: hoeffding(0.5, 10, delta=1.0), "delta must lie between 0 and 1"),
        (lambda: hoeffding(0.5, 10, delta=math.nan), "delta must lie between 0 and 1"),
        (lambda: hoeffding(1.5, 10), "Hoeffding's bound needs scores in .* only the bootstrap"),
        (lambda: chernoff(-0.1, 10), "Chernoff's bound needs"),
        (lambda: chernoff(0.1, 0), "N, must be at least 1"),
        (lambda: bernstein(math.nan, 10), "empirical Bernstein bound needs"),
        (lambda: bernstein(0.5, 1), "N, must be at least 2, got 1"),
        (lambda: binomial(11, 10), "0 <= num_successes <= num_examples"),
        (lambda: binomial(1, 10, side="left"), "side must be both, lower or upper"),  # pyright: ignore
        (lambda: pac_bayes(0.5, 10, divergence=-1.0), "divergence must be finite"),
        (lambda: kl_from_uniform([]), "at least one weight"),
        (lambda: ScoreSummary.from_mean(2.0, 10), "a bound from a mean alone needs"),
        (lambda: ScoreSummary.from_values([0.5, 2.0], is_bounded=True), "must be in .*, got 2"),
        (lambda: bootstrap_estimate(np.ones(9), num_resamples=5), "num_resamples"),
        (lambda: bootstrap_estimate_of_all(np.ones((9, 3)), 3), "selected must be one of"),
    ],
)
def test_numbers_outside_their_range_are_refused(call: Callable[[], object], part: str):
    with pytest.raises(ConfigError, match=part):
        call()


def test_scores_that_are_none_or_not_numbers():
    for values in ([], [0.5, math.nan]):
        with pytest.raises(DataError, match="finite numbers, at least one"):
            ScoreSummary.from_values(values)
    with pytest.raises(DataError, match="needs the score of each example"):
        applicable_bounds(ScoreSummary(value=3.0, num_examples=10, is_bounded=False))
