"""Selections whose truth is known, against what can be worked out, and the study from end to end."""

import math

import numpy as np
import pytest

from regard.lab.bounds import Sizes, investigate
from regard.lab.bounds_coverage import Coverage, cover_losses, cover_tests
from regard.lab.bounds_selections import BOUNDS, FRESH, NAIVE, ends_of, select, select_once
from regard.lab.bounds_worlds import SHARED, TRUTH, World, classifiers, coins, draw_alike, hashed
from regard.selection.bounds import binomial, hoeffding_epsilon

TINY = Sizes(num_hypotheses=(1, 7), num_examples=30, num_selections=23, num_rows=150, num_training=20, num_estimates=2)


def test_hypotheses_that_are_alike_have_the_moments_of_shared_coins():
    n = 60
    counts = draw_alike(4_000, n, 3, np.random.default_rng(0))
    assert counts.mean() == pytest.approx(n * TRUTH, rel=0.01)
    covariance = np.cov(counts.T)
    variance = n * TRUTH * (1 - TRUTH)
    # Two share an answer with the chance s^2, and are independent else.
    assert np.diag(covariance) == pytest.approx([variance] * 3, rel=0.1)
    assert covariance[0, 1] == pytest.approx(SHARED**2 * variance, rel=0.1)


def test_independent_coins_are_not_correlated():
    same, spread, _ = coins(4)
    counts = same.draw(4_000, 50, 3, np.random.default_rng(1))
    assert abs(np.corrcoef(counts.T)[0, 1]) < 0.06
    assert spread.truths[0] == TRUTH
    assert (np.diff(spread.truths) < 0).all()


def test_the_optimism_of_two_fair_winners_is_that_of_normal_theory():
    # Of two independent means with standard error e the larger exceeds its truth by e / sqrt(pi).
    world = coins(2)[0]
    outcome = select(world, 2, 400, 4_000, delta=0.05, rng=np.random.default_rng(2))
    expected = math.sqrt(TRUTH * (1 - TRUTH) / 400 / math.pi)
    mean, low, high = outcome.optimism
    assert low < mean < high
    assert mean == pytest.approx(expected, rel=0.08)


def test_failures_of_one_interval_are_those_that_the_binomial_distribution_has():
    world, n = coins(1)[0], 40
    outcome = select(world, 1, n, 4_000, delta=0.2, rng=np.random.default_rng(3))
    ends = ends_of(binomial, n, 1, 0.2)
    chances = [math.comb(n, k) * TRUTH**k * (1 - TRUTH) ** (n - k) for k in range(n + 1)]
    expected = sum(p for p, (low, high) in zip(chances, ends, strict=True) if not low <= TRUTH <= high)
    assert outcome.failures[NAIVE] / 4_000 == pytest.approx(expected, abs=0.025)
    assert outcome.failures["exact binomial"] == outcome.failures[NAIVE]
    assert outcome.failures_of_any["exact binomial"] == outcome.failures[NAIVE]


def test_hoeffding_reaches_its_epsilon_and_fresh_examples_do_not_feel_the_number_of_hypotheses():
    world, rng = coins(50)[0], np.random.default_rng(4)
    few, many = (select(world, m, 200, 300, delta=0.05, rng=rng) for m in (1, 50))
    assert many.reaches["Hoeffding"] == pytest.approx(hoeffding_epsilon(200, num_hypotheses=50, delta=0.05))
    assert many.reaches["exact binomial"] > 1.2 * few.reaches["exact binomial"]
    assert many.reaches[FRESH] == pytest.approx(few.reaches[FRESH], rel=0.03)
    assert many.failures[NAIVE] > 150  # who does not count is wrong more often than not
    assert all(many.failures_of_any[name] < 30 for name in BOUNDS)


def test_one_selection_takes_the_best_and_keeps_its_truth():
    world = World("given", np.array([0.1, 0.5, 0.9]), lambda runs, n, m, rng: np.array([[3, 5, 9]])[:, :m])
    example = select_once(world, 10, delta=0.05, rng=np.random.default_rng(5))
    assert example.winner == 2
    naive, *others = example.bounds
    assert naive.num_hypotheses == 1
    assert {bound.num_hypotheses for bound in others} == {3}
    assert len(others) == len(BOUNDS)


@pytest.mark.slow
def test_classifiers_are_better_than_chance_and_their_truth_is_the_mean_of_the_pool():
    world = classifiers(12, num_rows=400, num_training=150, seed=0)
    assert world.truths.mean() > 0.52
    counts = world.draw(400, 100, 12, np.random.default_rng(6))
    assert counts.shape == (400, 12)
    # 40,000 draws: 0.01 is four standard errors.
    assert counts.mean(axis=0) / 100 == pytest.approx(world.truths, abs=0.01)


def test_stretches_of_letters_are_counted():
    features = hashed(["aaaa", "ab", "aaab"], num_features=97)
    assert features[:, 0].tolist() == [1.0, 1.0, 1.0]
    assert features[0, 1:].sum() == 2  # aaa, twice
    assert features[0, 1:].max() == 2
    assert features[1, 1:].sum() == 0
    assert features[2, 1:].sum() == 2


def test_a_broken_promise_is_noticed():
    assert Coverage("", "", 5, 100).is_kept(0.05)
    assert not Coverage("", "", 20, 100).is_kept(0.05)
    assert Coverage("", "", 0, 100).interval[0] == 0.0


def test_tests_of_many_find_nothing_where_there_is_nothing():
    found = list(cover_tests(60, delta=0.1, rng=np.random.default_rng(7)))
    assert [each.name for each in found] == ["Holm", "Bonferroni"]
    assert all(each.is_kept(0.1) for each in found)
    assert found[0].failures == found[1].failures  # where all are null the first rejection is the same


def test_losses_without_a_range_have_estimates():
    assert all(each.is_estimate for each in cover_losses(2, delta=0.1, rng=np.random.default_rng(8)))


@pytest.mark.slow
def test_the_study_is_whole():
    study = investigate(TINY, seed=0)
    missed, any_missed, room, example, coverage = study.tables
    assert len(missed.rows) == len(any_missed.rows) == len(room.rows) == 8
    assert [row[0] for row in example.rows] == [NAIVE, *BOUNDS]
    assert len(coverage.rows) == 9
    assert len(study.figure.axes) == 4
    assert any("no promise is broken" in finding or "broken: " in finding for finding in study.findings)
    again = investigate(TINY, seed=0)
    assert again.findings == study.findings
