"""Retrieval: ranks by hand, and the scores that they have."""

from typing import Any

import numpy as np
import pytest

from regard.errors import DataError
from regard.evaluation.examples import Examples
from regard.evaluation.intervals import clopper_pearson
from regard.evaluation.metrics import retrieval
from regard.evaluation.metrics.retrieval import rank_matches
from regard.evaluation.registry import score_examples
from regard.evaluation.scores import Score

ROWS, WIDTH = 37, 5


def score_ranks(ranks: Any) -> list[Score]:
    return score_examples(("recall_at_1", "recall_at_10", "mean_reciprocal_rank"), Examples(extras={"ranks": ranks}))


def vectors(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, WIDTH))


@pytest.mark.parametrize("at_once", [1, 5 * ROWS, 1 << 20])
def test_a_rank_is_a_position_in_the_order_of_products(monkeypatch, at_once: int):
    monkeypatch.setattr(retrieval, "_PRODUCTS_AT_ONCE", at_once)
    queries, candidates = vectors(0), vectors(1)
    expected = []
    for row, query in enumerate(queries):
        order = sorted(range(ROWS), key=lambda other: -float(query @ candidates[other]))
        expected.append(order.index(row) + 1)
    assert rank_matches(queries, candidates).tolist() == expected
    assert max(expected) > 20


def test_what_matches_itself_is_found():
    unit = vectors(0) / np.linalg.norm(vectors(0), axis=1, keepdims=True)
    assert (rank_matches(unit, unit) == 1).all()


def test_of_equal_candidates_the_own_one_is_last():
    same = np.ones((7, 3))
    assert rank_matches(same, same).tolist() == [7] * 7


def test_duplicates_do_not_compete():
    same = np.ones((5, 3))
    duplicates = np.array([[0, 0, 1, 2, 3], [7, 8, 9, 9, 6]])
    assert rank_matches(same, same, duplicates=duplicates).tolist() == [4, 4, 4, 4, 5]


def test_scores_are_shares_and_a_mean():
    ranks = np.random.default_rng(3).integers(1, 30, size=101)
    first, ten, reciprocal = score_ranks(ranks)
    assert first.value == pytest.approx((ranks == 1).mean())
    assert ten.value == pytest.approx((ranks <= 10).mean())
    assert reciprocal.value == pytest.approx((1 / ranks).mean())
    assert first.interval == clopper_pearson(int((ranks == 1).sum()), 101)
    for score in (first, ten, reciprocal):
        assert score.interval is not None
        assert score.interval[0] < score.value < score.interval[1]
        assert "candidates:101" in score.signature
    assert "interval:bootstrap" in reciprocal.signature


def test_chance_finds_one_in_as_many_as_there_are():
    rng = np.random.default_rng(0)
    ranks = np.concatenate([rank_matches(rng.normal(size=(20, 7)), rng.normal(size=(20, 7))) for _ in range(200)])
    low, high = clopper_pearson(int((ranks == 1).sum()), len(ranks), confidence=1 - 1e-6)
    assert low < 1 / 20 < high


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="same shape and at least 1 row"):
        rank_matches(np.ones((3, 2)), np.ones((4, 2)))
    with pytest.raises(DataError, match="ranks must be at least 1"):
        score_ranks([1, 0])
    with pytest.raises(DataError, match="at least one, got"):
        score_ranks([])
