"""Scores of numbers, against scipy's and by hand."""

import math

import numpy as np
import pytest
import scipy.stats

from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.regression import (
    count_pearson,
    count_r_squared,
    count_rmse,
    score_spearman,
)
from regard.evaluation.registry import score_examples
from regard.evaluation.scores import Score

ROWS = 101


def score_numbers(predictions: list[float], references: list[float]) -> list[Score]:
    examples = Examples(outputs=predictions, targets=references)
    return score_examples(("pearson", "spearman", "rmse", "r_squared"), examples)


def numbers(*, has_ties: bool = False, offset: float = 0.0, seed: int = 0) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    references = rng.normal(size=ROWS)
    predictions = 0.7 * references + 0.5 * rng.normal(size=ROWS)
    if has_ties:
        references, predictions = references.round(), predictions.round()
    return (predictions + offset).tolist(), (references + offset).tolist()


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e6], ids=["", "far from zero"])
def test_correlations_are_those_of_scipy(has_ties: bool, offset: float):
    predictions, references = numbers(has_ties=has_ties, offset=offset)
    pearson, rank, *_ = score_numbers(predictions, references)
    assert pearson.value == pytest.approx(scipy.stats.pearsonr(predictions, references)[0])
    assert rank.value == pytest.approx(scipy.stats.spearmanr(predictions, references)[0])


def test_errors_are_those_of_the_definition():
    predictions, references = numbers()
    x, y = np.array(predictions), np.array(references)
    *_, rmse, r_squared = score_numbers(predictions, references)
    assert rmse.value == pytest.approx(math.sqrt(((x - y) ** 2).mean()))
    assert r_squared.value == pytest.approx(1 - ((x - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    reference = pytest.importorskip("sklearn.metrics")
    assert r_squared.value == pytest.approx(reference.r2_score(references, predictions))


@pytest.mark.parametrize("has_ties", [False, True])
def test_the_interval_of_ranks_is_that_of_resamples_ranked_one_by_one(has_ties: bool):
    predictions, references = (np.array(values) for values in numbers(has_ties=has_ties))
    rng = np.random.Generator(np.random.PCG64(5))
    resamples = (rng.integers(ROWS, size=ROWS) for _ in range(200))
    found = [scipy.stats.spearmanr(predictions[rows], references[rows])[0] for rows in resamples]
    score = score_spearman(predictions.tolist(), references.tolist(), num_resamples=200, seed=5)
    assert score.interval == pytest.approx(tuple(np.quantile(found, [0.025, 0.975])))


@pytest.mark.parametrize("make", [count_pearson, count_rmse, count_r_squared])
def test_a_resample_scores_as_its_rows_do(make):
    predictions, references = numbers()
    rows = np.random.default_rng(3).integers(ROWS, size=7)
    alone = make([predictions[row] for row in rows], [references[row] for row in rows])
    assert make(predictions, references).subset(rows).value == pytest.approx(alone.value)


def test_every_score_lies_in_its_interval():
    scores = score_numbers(*numbers())
    assert [score.name for score in scores] == ["pearson", "spearman", "rmse", "r_squared"]
    for score in scores:
        assert score.interval is not None
        assert score.interval[0] < score.value < score.interval[1]
        made = {"n": ROWS, "interval": "bootstrap", "confidence": 0.95, "resamples": 1000, "seed": 0}
        assert score.settings == made


def test_constants_correlate_with_nothing():
    for values in ([0.1] * 3, [1e9] * 3):
        pearson, rank, *_ = score_numbers(values, [1.0, 2.0, 3.0])
        assert pearson.value == rank.value == 0.0
        assert pearson.interval == (0.0, 0.0)
    assert count_r_squared([2.0, 2.0], [2.0, 2.0]).value == 1.0
    assert count_r_squared([2.0, 3.0], [2.0, 2.0]).value == 0.0


def test_perfect_predictions():
    pearson, rank, rmse, r_squared = score_numbers([1.0, 2.0, 7.0], [1.0, 2.0, 7.0])
    assert (pearson.value, rank.value, rmse.value, r_squared.value) == (pytest.approx(1), pytest.approx(1), 0.0, 1.0)


def test_one_row_has_no_interval():
    for score in score_numbers([1.0], [2.0]):
        assert score.interval is None
        assert score.settings["interval"] == "none"


def test_small_errors_are_printed_with_three_significant_digits():
    rmse = score_numbers([0.0001, 0.0002], [0.0, 0.0])[2]
    assert " = 0.000158 " in str(rmse)


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(DataError, match="equal lengths of at least 1, got 1 and 2"):
        score_numbers([1.0], [1.0, 2.0])
    with pytest.raises(DataError, match="references must be finite, got inf for row 1"):
        score_numbers([1.0, 2.0], [1.0, float("inf")])
    with pytest.raises(ConfigError, match="num_resamples must be positive"):
        score_spearman([1.0, 2.0], [1.0, 2.0], num_resamples=0)
