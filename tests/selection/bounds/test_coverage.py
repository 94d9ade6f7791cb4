"""Coverage: simulate selections, count how often each bound fails, and compare with delta."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest

from regard.selection.bounds import (
    Bound,
    ScoreSummary,
    bernstein,
    binomial,
    bootstrap_estimate_of_all,
    chernoff,
    fresh_bound,
    hoeffding,
    kl_from_uniform,
    pac_bayes,
    tightest_bound,
    which_beat,
)

NUM_SELECTIONS = 600
DELTA = 0.2  # large enough for failures to happen
SURE = 1e-4
"""How unlikely a count of failures must be, for a bound to be called violated."""

BOUNDS: dict[str, Callable[..., Bound]] = {
    "hoeffding": lambda right, n, **options: hoeffding(right / n, n, **options),
    "chernoff": lambda right, n, **options: chernoff(right / n, n, **options),
    "bernstein": lambda right, n, **options: bernstein(right / n, n, **options),
    "binomial": binomial,
}


def holds_as_stated(num_failures: int, num_trials: int = NUM_SELECTIONS, delta: float = DELTA) -> bool:
    """Whether so many failures can be had with a chance of at most delta each."""
    return bool(binomtest(num_failures, num_trials, delta, alternative="greater").pvalue > SURE)


def intervals(make: Callable[..., Bound], n: int, **options) -> np.ndarray:
    """The interval of each count of successes from 0 to n."""
    return np.array([make(k, n, **options).interval for k in range(n + 1)])


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("truth", [0.5, 0.9])
@pytest.mark.parametrize("side", ["both", "lower"])
def test_the_winner_and_all_others_lie_where_it_was_said(name: str, truth: float, side: str):
    n, m = 60, 40
    ends = intervals(BOUNDS[name], n, num_candidates=m, delta=DELTA, side=side)
    right = np.random.default_rng(0).binomial(n, truth, size=(NUM_SELECTIONS, m))
    has_failed = (ends[right, 0] > truth) | (ends[right, 1] < truth)
    assert holds_as_stated(int(has_failed.any(axis=1).sum()))
    # An interval that does not count the candidates misses the winner, and the test detects it.
    naive = intervals(BOUNDS[name], n, delta=DELTA, side=side)
    winners = right.max(axis=1)
    is_wrong = (naive[winners, 0] > truth) | (naive[winners, 1] < truth)
    if name == "binomial":
        assert not holds_as_stated(int(is_wrong.sum()))


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("truth", [0.03, 0.5, 0.97])
def test_one_interval_covers_whatever_the_truth(name: str, truth: float):
    n = 50
    ends = intervals(BOUNDS[name], n, delta=DELTA)
    chances = np.array([math.comb(n, k) * truth**k * (1 - truth) ** (n - k) for k in range(n + 1)])
    is_outside = (ends[:, 0] > truth) | (ends[:, 1] < truth)
    assert chances[is_outside].sum() <= DELTA + 1e-12  # exactly, not by simulation


def test_candidates_that_are_similar():
    n, m, truth = 60, 40, 0.8
    rng = np.random.default_rng(1)
    common = rng.random((NUM_SELECTIONS, n, 1)) < truth
    own = rng.random((NUM_SELECTIONS, n, m)) < truth
    right = np.where(rng.random((NUM_SELECTIONS, n, m)) < 0.8, common, own).sum(axis=1)
    for make in BOUNDS.values():
        ends = intervals(make, n, num_candidates=m, delta=DELTA)
        has_failed = (ends[right, 0] > truth) | (ends[right, 1] < truth)
        assert holds_as_stated(int(has_failed.any(axis=1).sum()))


def test_the_tightest_of_scores_between_0_and_1_holds_as_stated():
    n, m = 80, 10
    rng = np.random.default_rng(2)
    failures = 0
    for _ in range(300):
        values = rng.beta(6, 2, size=(m, n))
        winner = int(values.mean(axis=1).argmax())
        failures += not tightest_bound(ScoreSummary.from_values(values[winner]), num_candidates=m, delta=DELTA).holds(
            0.75
        )
    assert holds_as_stated(failures, 300)


def test_the_winner_on_fresh_examples():
    n, m, truth = 60, 40, 0.8
    ends = np.array([fresh_bound(ScoreSummary.from_successes(k, n), delta=DELTA).interval for k in range(n + 1)])
    right = np.random.default_rng(3).binomial(n, truth, size=NUM_SELECTIONS)  # of the winner, whichever it was
    is_wrong = (ends[right, 0] > truth) | (ends[right, 1] < truth)
    assert holds_as_stated(int(is_wrong.sum()))
    assert ends[48, 0] > binomial(48, n, num_candidates=m, delta=DELTA).interval[0]


def test_pac_bayes_holds_for_weights_chosen_afterwards():
    n, m = 60, 40
    rng = np.random.default_rng(4)
    truths = rng.uniform(0.5, 0.9, size=m)
    failures = 0
    for _ in range(NUM_SELECTIONS):
        scores = rng.binomial(n, truths) / n
        weights = np.exp(30 * (scores - scores.max()))
        weights /= weights.sum()
        divergence = kl_from_uniform(weights.tolist())
        bound = pac_bayes(float(weights @ scores), n, divergence=divergence, delta=DELTA)
        failures += not bound.holds(float(weights @ truths))
    assert holds_as_stated(failures)


def test_holm_seldom_names_one_that_is_no_better():
    n = 60
    rng = np.random.default_rng(5)
    truths = np.array([0.5] * 12 + [0.75] * 3)
    false_calls = found = 0
    for _ in range(200):
        named = which_beat(0.5, rng.binomial(n, truths).tolist(), n, delta=DELTA)
        false_calls += any(named[:12])
        found += sum(named[12:])
    assert holds_as_stated(false_calls, 200)
    assert found > 500  # of 600: what is better is seen


def test_the_bootstrap_of_all_is_about_right_for_losses_without_a_range():
    n, m = 150, 12
    rng = np.random.default_rng(6)
    failures = 0
    for _ in range(150):
        losses = rng.exponential(size=(n, m))
        winner = int(losses.mean(axis=0).argmin())
        failures += not bootstrap_estimate_of_all(losses, winner, delta=DELTA, num_resamples=200).holds(1.0)
    assert failures / 150 < DELTA + 0.1  # an estimate: about
