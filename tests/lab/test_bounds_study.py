"""Selections with known true scores against closed forms, and the study from end to end."""

import math

import numpy as np
import pytest

from regard.lab.bounds.selections import (
    HOLD_OUT,
    SHARED_ANSWERS,
    TRUE_SCORE,
    UNCORRECTED,
    UNIFORM_BOUNDS,
    BoundSizes,
    CandidatePool,
    Coverage,
    cover_losses,
    cover_tests,
    date_classifiers,
    draw_similar,
    hashed_ngrams,
    interval_table,
    select_once,
    select_repeatedly,
    simulated_pools,
    study_bounds,
)
from regard.selection.bounds import binomial, hoeffding_epsilon

TINY = BoundSizes(
    num_candidates=(1, 7), num_examples=30, num_selections=23, num_rows=150, num_training=20, num_estimates=2
)


def test_candidates_that_are_alike_have_the_moments_of_shared_coins():
    n = 60
    counts = draw_similar(4_000, n, 3, np.random.default_rng(0))
    assert counts.mean() == pytest.approx(n * TRUE_SCORE, rel=0.01)
    covariance = np.cov(counts.T)
    variance = n * TRUE_SCORE * (1 - TRUE_SCORE)
    # Two share an answer with the chance s^2, and are independent else.
    assert np.diag(covariance) == pytest.approx([variance] * 3, rel=0.1)
    assert covariance[0, 1] == pytest.approx(SHARED_ANSWERS**2 * variance, rel=0.1)


def test_independent_coins_are_not_correlated():
    same, spread, _ = simulated_pools(4)
    counts = same.draw(4_000, 50, 3, np.random.default_rng(1))
    assert abs(np.corrcoef(counts.T)[0, 1]) < 0.06
    assert spread.truths[0] == TRUE_SCORE
    assert (np.diff(spread.truths) < 0).all()


def test_the_optimism_of_two_fair_winners_is_that_of_normal_theory():
    # Of two independent means with standard error e the larger exceeds its truth by e / sqrt(pi).
    pool = simulated_pools(2)[0]
    outcome = select_repeatedly(pool, 2, 400, 4_000, delta=0.05, rng=np.random.default_rng(2))
    expected = math.sqrt(TRUE_SCORE * (1 - TRUE_SCORE) / 400 / math.pi)
    mean, low, high = outcome.optimism
    assert low < mean < high
    assert mean == pytest.approx(expected, rel=0.08)


def test_failures_of_one_interval_are_those_that_the_binomial_distribution_has():
    pool, n = simulated_pools(1)[0], 40
    outcome = select_repeatedly(pool, 1, n, 4_000, delta=0.2, rng=np.random.default_rng(3))
    ends = interval_table(binomial, n, 1, 0.2)
    chances = [math.comb(n, k) * TRUE_SCORE**k * (1 - TRUE_SCORE) ** (n - k) for k in range(n + 1)]
    expected = sum(p for p, (low, high) in zip(chances, ends, strict=True) if not low <= TRUE_SCORE <= high)
    assert outcome.failures[UNCORRECTED] / 4_000 == pytest.approx(expected, abs=0.025)
    assert outcome.failures["exact binomial"] == outcome.failures[UNCORRECTED]
    assert outcome.any_failures["exact binomial"] == outcome.failures[UNCORRECTED]


def test_the_margin_of_hoeffding_is_its_epsilon_and_a_hold_out_does_not_depend_on_the_number_of_candidates():
    pool, rng = simulated_pools(50)[0], np.random.default_rng(4)
    few, many = (select_repeatedly(pool, m, 200, 300, delta=0.05, rng=rng) for m in (1, 50))
    assert many.margins["Hoeffding"] == pytest.approx(hoeffding_epsilon(200, num_candidates=50, delta=0.05))
    assert many.margins["exact binomial"] > 1.2 * few.margins["exact binomial"]
    assert many.margins[HOLD_OUT] == pytest.approx(few.margins[HOLD_OUT], rel=0.03)
    assert many.failures[UNCORRECTED] > 150
    assert all(many.any_failures[name] < 30 for name in UNIFORM_BOUNDS)


def test_one_selection_takes_the_best_and_keeps_its_truth():
    pool = CandidatePool("given", np.array([0.1, 0.5, 0.9]), lambda runs, n, m, rng: np.array([[3, 5, 9]])[:, :m])
    example = select_once(pool, 10, delta=0.05, rng=np.random.default_rng(5))
    assert example.winner == 2
    naive, *others = example.winner_bounds
    assert naive.num_candidates == 1
    assert {bound.num_candidates for bound in others} == {3}
    assert len(others) == len(UNIFORM_BOUNDS)


@pytest.mark.slow
def test_classifiers_are_better_than_chance_and_their_truth_is_the_mean_of_the_pool():
    pool = date_classifiers(12, num_rows=400, num_training=150, seed=0)
    assert pool.truths.mean() > 0.52
    counts = pool.draw(400, 100, 12, np.random.default_rng(6))
    assert counts.shape == (400, 12)
    # 40,000 draws: 0.01 is four standard errors.
    assert counts.mean(axis=0) / 100 == pytest.approx(pool.truths, abs=0.01)


def test_ngrams_are_counted():
    features = hashed_ngrams(["aaaa", "ab", "aaab"], num_features=97)
    assert features[:, 0].tolist() == [1.0, 1.0, 1.0]
    assert features[0, 1:].sum() == 2  # aaa, twice
    assert features[0, 1:].max() == 2
    assert features[1, 1:].sum() == 0
    assert features[2, 1:].sum() == 2


def test_a_violated_guarantee_is_detected():
    assert Coverage("", "", 5, 100).is_consistent(0.05)
    assert not Coverage("", "", 20, 100).is_consistent(0.05)
    assert Coverage("", "", 0, 100).share[:2] == (0.0, 0.0)


def test_multiple_tests_find_nothing_where_all_null_hypotheses_are_true():
    found = list(cover_tests(60, delta=0.1, rng=np.random.default_rng(7)))
    assert [each.name for each in found] == ["Holm", "Bonferroni"]
    assert all(each.is_consistent(0.1) for each in found)
    assert found[0].failures == found[1].failures  # where all are null the first rejection is the same


def test_unbounded_losses_have_estimates_only():
    assert all(each.is_estimate for each in cover_losses(2, delta=0.1, rng=np.random.default_rng(8)))


@pytest.mark.slow
def test_the_study_is_whole():
    study = study_bounds(sizes=TINY)
    missed, any_missed, room, example, coverage = study.tables
    assert len(missed.rows) == len(any_missed.rows) == len(room.rows) == 8
    assert [row[0] for row in example.rows] == [UNCORRECTED, *UNIFORM_BOUNDS]
    assert len(coverage.rows) == 9
    assert len(study.figure.axes) == 4
    assert "guarantees" in study.findings[1]
    again = study_bounds(sizes=TINY)
    assert again.findings == study.findings
