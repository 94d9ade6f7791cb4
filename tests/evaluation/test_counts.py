"""Counts per example lose nothing of a score."""

import numpy as np
import pytest

from regard.errors import DataError
from regard.evaluation.counts import Counts
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import count_accuracy
from regard.evaluation.metrics.likelihood import count_perplexity
from regard.evaluation.metrics.text import count_bleu
from regard.evaluation.registry import find_metric

METRICS = ["exact_match", "accuracy", "bleu", "chrf"]
REFERENCES = ["der hund rennt laut", "eine katze sah den hund", "was?", "es ist 3.5 uhr und laut", "ja, das ist so"] * 3
PREDICTIONS = [
    *("der hund rennt laut", "eine katze sah den hund", "was?", "es ist 3.5 uhr laut", "ja, das ist so"),
    *("der hund rannte laut", "katze sah den hund hier", "was", "es ist 3.5 uhr und laut", "nein"),
    *("der hund", "eine katze sah den hund", "was ist das?", "uhr und laut ist es", "ja, das ist so"),
]


def count(name: str, predictions: list[str] = PREDICTIONS, references: list[str] = REFERENCES) -> Counts:
    return find_metric(name).count(Examples(outputs=predictions, targets=references))


@pytest.mark.parametrize("name", METRICS)
def test_the_value_and_the_settings_are_those_of_the_metric(name: str):
    counted = count(name)
    (score,) = find_metric(name).scores(Examples(outputs=PREDICTIONS, targets=REFERENCES))
    assert 0 < counted.value < 100
    assert (counted.name, counted.value, counted.digits) == (score.name, score.value, score.digits)
    assert counted.settings.items() <= score.settings.items()
    assert not {"n", "interval", "confidence", "resamples", "seed"} & set(counted.settings)


@pytest.mark.parametrize("name", METRICS)
def test_a_subset_scores_as_if_there_had_been_no_others(name: str):
    counted = count(name)
    rows = [13, 1, 5, 7, 1]
    expected = count(name, [PREDICTIONS[row] for row in rows], [REFERENCES[row] for row in rows]).value
    assert counted.subset(rows).value == counted.subset(np.array(rows)).value == expected
    assert len(counted.subset(rows)) == 5

    mask = np.arange(len(counted)) % 2 == 0
    assert counted.subset(mask).value == count(name, PREDICTIONS[::2], REFERENCES[::2]).value


@pytest.mark.parametrize("name", METRICS)
def test_many_sums_score_as_one_by_one(name: str):
    counted = count(name)
    sums = counted.statistics.astype(np.float64).reshape(3, 5, -1).cumsum(axis=1)
    scores = counted.compute_each(sums)
    assert scores.shape == (3, 5)
    assert scores.tolist() == [[counted.compute(row) for row in rows] for rows in sums]


def test_only_shares_of_right_examples_are_proportions():
    proportions = [name for name in METRICS if count(name).is_proportion]
    assert proportions == ["exact_match", "accuracy"]
    assert not count_perplexity([1.0, 2.0], [1, 1]).is_proportion


def test_settings_tell_tokenizers_apart():
    assert count("bleu").settings["tok"] == "13a"
    assert count_bleu(PREDICTIONS, REFERENCES, tokenizer="char").settings["tok"] == "char"


@pytest.mark.parametrize("rows", [[], np.zeros(15, dtype=bool)], ids=["none", "an empty mask"])
def test_an_empty_subset_has_no_score(rows: list[int] | np.ndarray):
    with pytest.raises(DataError, match="at least 1 example, got 0 of 15"):
        count("exact_match").subset(rows)


def test_a_label_has_one_right_answer():
    with pytest.raises(DataError, match=r"one right label for each prediction, got \['a', 'b'\] for prediction 1"):
        count_accuracy(["a", "a"], ["a", ["a", "b"]])  # pyright: ignore[reportArgumentType]  # that it is refused


def test_bleu_without_a_matching_4_gram_is_an_artifact():
    assert count("bleu").artifact is None
    short = count("bleu", ["der hund rennt", "die katze sah ihn"], ["der hund rennt nicht", "katze sah den hund"])
    assert 0 < short.value < 60
    assert "smoothing" in str(short.artifact)
    assert count("chrf", ["xyz"], ["abc"]).artifact is None
