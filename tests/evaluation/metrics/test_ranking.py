"""The area under the ROC curve equals that of scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from regard.errors import DataError
from regard.evaluation import Examples, find_metric
from regard.evaluation.metrics import ranking
from regard.evaluation.metrics.ranking import count_auroc

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("decimals", [1, 12])
def test_one_label_equals_scikit_learn_with_and_without_ties(decimals: int):
    targets = RNG.integers(0, 2, 211)
    scores = (targets + RNG.normal(size=211)).round(decimals)
    expected = roc_auc_score(targets, scores)
    assert count_auroc(scores[:, None], targets[:, None].astype(float)).value == pytest.approx(expected, rel=1e-12)


def test_several_labels_have_the_mean_over_those_that_are_known():
    targets = RNG.integers(0, 2, (83, 3)).astype(float)
    targets[RNG.random((83, 3)) < 0.2] = np.nan
    scores = RNG.random((83, 3))
    areas = [
        roc_auc_score(targets[known, label], scores[known, label]) for label, known in enumerate(~np.isnan(targets).T)
    ]
    assert count_auroc(scores, targets).value == pytest.approx(np.mean(areas), rel=1e-12)
    rows = [[None if np.isnan(each) else int(each) for each in row] for row in targets]
    found = find_metric("auroc").scores(Examples(outputs=scores.tolist(), targets=rows, labels=["a", "b", "c"]))
    assert [score.name for score in found] == ["auroc", "auroc_a", "auroc_b", "auroc_c"]
    assert [score.value for score in found[1:]] == pytest.approx(areas, rel=1e-12)


def test_many_scores_in_bins_change_the_area_little(monkeypatch: pytest.MonkeyPatch):
    targets = RNG.integers(0, 2, 1_000)
    scores = targets + 2 * RNG.normal(size=1_000)
    monkeypatch.setattr(ranking, "_MOST_COUNTS", 2 * 1_000 * 200)
    found = count_auroc(scores[:, None], targets[:, None].astype(float))
    assert found.statistics.shape[1] == 2 * 200
    assert found.value == pytest.approx(roc_auc_score(targets, scores), abs=1e-3)


def test_confidences_of_two_labels_are_scores_of_the_last():
    examples = Examples(
        outputs=["no", "yes", "yes", "no"], targets=["no", "no", "yes", "yes"], labels=["no", "yes"],
        confidences=[0.9, 0.6, 0.8, 0.7],
    )  # fmt: skip
    assert find_metric("auroc").value(examples) == roc_auc_score([0, 0, 1, 1], [0.1, 0.6, 0.8, 0.3])


def test_a_label_with_one_value_is_left_out_and_nothing_is_chance():
    scores, targets = np.array([[0.1, 0.9], [0.8, 0.4]]), np.array([[0.0, 1.0], [1.0, 1.0]])
    assert count_auroc(scores, targets).value == 1.0
    assert count_auroc(scores[:, 1:], targets[:, 1:]).value == 0.5


def test_counts_of_two_models_are_comparable_whatever_their_ties():
    targets = RNG.integers(0, 2, (31, 1)).astype(float)
    one, other = (count_auroc(RNG.random((31, 1)).round(digits), targets) for digits in (1, 9))
    assert other.compute(one.statistics.sum(axis=0)) == one.value


def test_three_labels_are_refused():
    examples = Examples(outputs=["a"], targets=["a"], labels=["a", "b", "c"], confidences=[1.0])
    with pytest.raises(DataError, match="labels of two kinds, got 3"):
        find_metric("auroc").value(examples)
