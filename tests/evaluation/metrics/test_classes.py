"""Scores of labels, against scikit-learn's and by hand."""

from typing import Any

import numpy as np
import pytest

from regard.errors import DataError
from regard.evaluation.examples import Examples
from regard.evaluation.intervals import clopper_pearson, resampled_sums
from regard.evaluation.metrics.classes import (
    NUM_BINS,
    confusion,
    count_calibration_error,
    count_classes,
    count_label_sets,
    count_matthews,
    count_tags,
    f1,
    label_checksum,
    precision,
    recall,
)
from regard.evaluation.paired import compare_all
from regard.evaluation.registry import score_examples
from regard.evaluation.scores import Score, score_counts

LABELS = ["joy", "anger", "fear", "none", "love"]
ROWS = 211
CLASS_METRICS, SET_METRICS = ("accuracy", "macro_f1", "matthews"), ("micro_f1", "macro_f1", "subset_accuracy")
MEASURES = {"precision": precision, "recall": recall, "f1": f1}


def score_classes(predictions: list[Any], references: list[Any]) -> list[Score]:
    return score_examples(CLASS_METRICS, Examples(outputs=predictions, targets=references))


def score_label_sets(predictions: list[set[str]], references: list[set[str]]) -> list[Score]:
    return score_examples(SET_METRICS, Examples(outputs=predictions, targets=references))


def rows_of_labels(*, num_labels: int = 5, skill: float = 0.5, seed: int = 0) -> tuple[list[str], list[str]]:
    """Predictions and references; some labels are never predicted."""
    rng = np.random.default_rng(seed)
    references = rng.choice(num_labels, size=ROWS, p=np.arange(1, num_labels + 1) / sum(range(1, num_labels + 1)))
    guesses = rng.integers(1, num_labels, size=ROWS)
    predictions = np.where(rng.random(ROWS) < skill, np.maximum(references, 1), guesses)
    return [LABELS[label] for label in predictions], [LABELS[label] for label in references]


def rows_of_sets(seed: int = 0) -> tuple[list[set[str]], list[set[str]]]:
    """Any number of labels a row, none among them; the last is never right."""
    rng = np.random.default_rng(seed)
    gold = rng.random((ROWS, 5)) < [0.5, 0.3, 0.2, 0.1, 0.1]
    said = np.where(rng.random((ROWS, 5)) < 0.7, gold, rng.random((ROWS, 5)) < 0.4)
    said[:, 4] = False
    predictions, references = (
        [{LABELS[label] for label in np.flatnonzero(row)} for row in rows] for rows in (said, gold)
    )
    return predictions, references


@pytest.mark.parametrize("skill", [0.0, 0.5, 0.95])
def test_scores_of_classes_are_those_of_scikit_learn(skill: float):
    reference = pytest.importorskip("sklearn.metrics")
    predictions, references = rows_of_labels(skill=skill)
    accuracy, macro_f1, matthews = score_classes(predictions, references)
    assert accuracy.value == reference.accuracy_score(references, predictions)
    assert macro_f1.value == pytest.approx(reference.f1_score(references, predictions, average="macro"))
    assert matthews.value == pytest.approx(reference.matthews_corrcoef(references, predictions))
    counts = count_classes(predictions, references)
    theirs = reference.precision_recall_fscore_support(references, predictions, zero_division=0)
    for (name, measure), expected in zip(MEASURES.items(), theirs[:3], strict=True):
        assert [counts.of(label, measure).value for label in counts.labels] == pytest.approx(expected), name
    assert np.array_equal(
        confusion(predictions, references).counts, reference.confusion_matrix(references, predictions)
    )


def test_scores_of_label_sets_are_those_of_scikit_learn():
    reference = pytest.importorskip("sklearn.metrics")
    predictions, references = rows_of_sets()
    said, gold = ([[label in row for label in sorted(LABELS)] for row in rows] for rows in (predictions, references))
    micro_f1, macro_f1, subset_accuracy = score_label_sets(predictions, references)
    assert micro_f1.value == pytest.approx(reference.f1_score(gold, said, average="micro"))
    assert macro_f1.value == pytest.approx(reference.f1_score(gold, said, average="macro", zero_division=0))
    assert subset_accuracy.value == reference.accuracy_score(gold, said)


def test_accuracies_have_the_exact_interval():
    predictions, references = rows_of_labels()
    right = sum(said == true for said, true in zip(predictions, references, strict=True))
    accuracy = score_classes(predictions, references)[0]
    assert accuracy.interval == clopper_pearson(right, ROWS)
    sets, gold = rows_of_sets()
    subset_accuracy = score_label_sets(sets, gold)[2]
    assert subset_accuracy.interval == clopper_pearson(round(subset_accuracy.value * ROWS), ROWS)


@pytest.mark.parametrize("index", [1, 2], ids=["macro_f1", "matthews"])
def test_a_resample_scores_as_its_rows_do(index: int):
    predictions, references = rows_of_labels()
    counts = [count_classes(predictions, references).macro(f1), count_matthews(predictions, references)][index - 1]
    rows = np.random.default_rng(3).integers(ROWS, size=7)
    alone = score_classes([predictions[row] for row in rows], [references[row] for row in rows])[index]
    assert counts.subset(rows).value == pytest.approx(alone.value)


def test_every_score_lies_in_its_interval_and_says_how_it_was_made():
    predictions, references = rows_of_labels()
    confidences = np.random.default_rng(0).uniform(0.3, 0.9, size=ROWS).tolist()
    examples = Examples(outputs=predictions, targets=references, confidences=confidences)
    scores = [*score_examples((*CLASS_METRICS, "calibration_error"), examples), *score_label_sets(*rows_of_sets())]
    names = ["accuracy", "macro_f1", "matthews", "calibration_error", "micro_f1", "macro_f1", "subset_accuracy"]
    assert [score.name for score in scores] == names
    for score in scores:
        assert score.interval is not None
        assert score.interval[0] < score.value < score.interval[1]
        assert score.settings["n"] == ROWS
    assert scores[3].settings.items() >= {"bins": 15, "widths": "equal", "norm": 1}.items()


def test_numbers_may_be_labels():
    names = [score.value for score in score_classes(["b", "a", "a"], ["b", "b", "a"])]
    assert [score.value for score in score_classes([1, 0, 0], [1, 1, 0])] == names


@pytest.mark.parametrize(
    ("predictions", "references", "expected"),
    [
        (["a", "b", "a", "b"], ["a", "b", "a", "b"], 1.0),
        (["b", "a", "b", "a"], ["a", "b", "a", "b"], -1.0),
        (["a", "a", "a", "a"], ["a", "b", "a", "b"], 0.0),
        (["a", "b", "a", "b"], ["a", "a", "a", "a"], 0.0),
        (["a", "a", "a", "a"], ["a", "a", "a", "a"], 0.0),
    ],
)
def test_matthews_correlation_of_extremes(predictions: list[str], references: list[str], expected: float):
    assert count_matthews(predictions, references).value == expected


def test_the_calibration_error_by_hand():
    """Two bins are filled: 0.62 and 0.66 with one of two right, 0.9 and 0.92 with two of two."""
    counts = count_calibration_error([0.62, 0.66, 0.9, 0.92], [True, False, True, True])
    assert counts.value == pytest.approx((abs(0.62 + 0.66 - 1) + abs(0.9 + 0.92 - 2)) / 4)


def test_a_bin_ends_with_its_upper_end():
    """Three fifteenths go with 0.19, of which the one is too sure and the other not sure enough, and not with 0.25."""
    counts = count_calibration_error([3 / 15, 0.19, 0.25], [False, True, False])
    assert counts.value == pytest.approx((abs(0.2 + 0.19 - 1) + 0.25) / 3)


def test_the_calibration_error_is_that_of_a_loop_over_bins():
    rng = np.random.default_rng(0)
    confidences, right = np.append(rng.random(ROWS), [0.0, 1.0, 0.2, 0.4]), rng.random(ROWS + 4) < 0.6
    expected = 0.0
    for number in range(NUM_BINS):
        low, high = np.linspace(0, 1, NUM_BINS + 1)[[number, number + 1]]
        inside = (confidences > low) & (confidences <= high) | ((confidences == 0) & (number == 0))
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidences[inside].mean())
    assert count_calibration_error(confidences.tolist(), right.tolist()).value == pytest.approx(expected)


def test_a_sure_model_that_is_right_is_calibrated():
    assert count_calibration_error([1.0, 1.0, 0.0], [True, True, False]).value == 0.0


def test_resampling_needs_sums_only():
    """The interval is computed from the sums that the bootstrap draws."""
    predictions, references = rows_of_labels()
    counts = count_matthews(predictions, references)
    sums = list(resampled_sums(counts.statistics.astype(float), 1000, np.random.Generator(np.random.PCG64(0))))
    low, high = np.quantile([counts.compute(row) for row in sums], [0.025, 0.975])
    assert score_counts(counts).interval == pytest.approx((low, high))


def test_models_compare_where_their_labels_are_the_same():
    predictions, references = rows_of_labels()
    better, _ = rows_of_labels(skill=0.9)
    one, other = (count_classes(said, references, labels=LABELS).macro(f1) for said in (better, predictions))
    assert compare_all({"one": [one], "other": [other]})[0].p < 0.01
    stray = count_classes(["calm", *predictions[1:]], references).macro(f1)
    with pytest.raises(DataError, match="equal settings"):
        compare_all({"one": [one], "stray": [stray]})


def test_a_label_that_was_only_predicted_counts_in_the_mean():
    assert count_classes(["a", "c"], ["a", "b"]).macro(f1).value == pytest.approx(1 / 3)


def test_labels_that_never_occur_change_nothing():
    predictions, references = rows_of_labels()
    assert count_classes(predictions, references, labels=[*LABELS, "calm"]).macro(f1).value == pytest.approx(
        count_classes(predictions, references).macro(f1).value
    )
    assert label_checksum(["a", "b"]) != label_checksum(["b", "a"])


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(DataError, match="equal lengths of at least 1, got 0 and 0"):
        score_classes([], [])
    with pytest.raises(DataError, match="equal lengths of at least 1, got 1 and 2"):
        score_label_sets([{"a"}], [{"a"}, {"b"}])
    with pytest.raises(DataError, match="labels must be among the 2 known ones, got 'c'"):
        count_classes(["a"], ["c"], labels=["a", "b"])
    with pytest.raises(DataError, match=r"confidences must be in \[0, 1\], got nan for row 1"):
        count_calibration_error([0.5, float("nan")], [True, True])
    with pytest.raises(DataError, match="confidences and is_right must have equal lengths"):
        count_calibration_error([0.5], [True, True])


def test_a_label_counts_once_however_often_it_is_named():
    counts = count_label_sets([["a", "a"], []], [["a"], ["b"]])
    assert counts.totals == {"a": (1, 1, 1), "b": (0, 0, 1)}


def test_tags_of_words_are_counted_by_sentences():
    given, gold = [["N", "V"], ["N"], ["V", "V", "N"]], [["N", "N"], ["N"], ["V", "N", "N"]]
    accuracy, macro_f1 = score_examples(("accuracy", "macro_f1"), Examples(outputs=given, targets=gold))
    assert accuracy.value == 4 / 6
    assert macro_f1.value == pytest.approx((2 * 3 / 8 + 2 * 1 / 4) / 2)
    assert accuracy.settings.items() >= {"unit": "sentence", "n": 3, "interval": "bootstrap"}.items()
    assert macro_f1.settings["unit"] == "sentence"
    with pytest.raises(DataError, match="got 1 for 2 in sentence 1"):
        count_tags([["N"]], [["N", "N"]])
