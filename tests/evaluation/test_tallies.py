"""A tally keeps what a score is made of, and loses nothing of it."""

from collections.abc import Callable

import numpy as np
import pytest

from regard.errors import ConfigError, DataError
from regard.evaluation.metrics import accuracy, bleu, chrf, exact_match
from regard.evaluation.scores import Score
from regard.evaluation.tallies import tally, tally_bleu, tally_perplexity

METRICS: dict[str, Callable[..., Score]] = {
    "exact_match": exact_match,
    "accuracy": accuracy,
    "bleu": bleu,
    "chrf": chrf,
}
REFERENCES = ["der hund rennt laut", "eine katze sah den hund", "was?", "es ist 3.5 uhr und laut", "ja, das ist so"] * 3
PREDICTIONS = [
    *("der hund rennt laut", "eine katze sah den hund", "was?", "es ist 3.5 uhr laut", "ja, das ist so"),
    *("der hund rannte laut", "katze sah den hund hier", "was", "es ist 3.5 uhr und laut", "nein"),
    *("der hund", "eine katze sah den hund", "was ist das?", "uhr und laut ist es", "ja, das ist so"),
]


@pytest.mark.parametrize("name", METRICS)
def test_the_value_and_the_settings_are_those_of_the_metric(name: str):
    counted, score = tally(name, PREDICTIONS, REFERENCES), METRICS[name](PREDICTIONS, REFERENCES)
    assert 0 < counted.value < 100
    assert (counted.name, counted.value, counted.digits) == (score.name, score.value, score.digits)
    assert counted.settings.items() <= score.settings.items()
    assert not {"n", "interval", "confidence", "resamples", "seed"} & set(counted.settings)


@pytest.mark.parametrize("name", METRICS)
def test_a_subset_scores_as_if_there_had_been_no_others(name: str):
    counted = tally(name, PREDICTIONS, REFERENCES)
    rows = [13, 1, 5, 7, 1]
    expected = METRICS[name]([PREDICTIONS[row] for row in rows], [REFERENCES[row] for row in rows]).value
    assert counted.subset(rows).value == counted.subset(np.array(rows)).value == expected
    assert len(counted.subset(rows)) == 5

    mask = np.arange(len(counted)) % 2 == 0
    assert counted.subset(mask).value == METRICS[name](PREDICTIONS[::2], REFERENCES[::2]).value


@pytest.mark.parametrize("name", METRICS)
def test_many_sums_score_as_one_by_one(name: str):
    counted = tally(name, PREDICTIONS, REFERENCES)
    sums = counted.statistics.astype(np.float64).reshape(3, 5, -1).cumsum(axis=1)
    scores = counted.compute_each(sums)
    assert scores.shape == (3, 5)
    assert scores.tolist() == [[counted.compute(row) for row in rows] for rows in sums]


def test_only_shares_of_right_examples_are_proportions():
    proportions = [name for name in METRICS if tally(name, PREDICTIONS, REFERENCES).is_proportion]
    assert proportions == ["exact_match", "accuracy"]
    assert not tally_perplexity([1.0, 2.0], [1, 1]).is_proportion


def test_settings_tell_tokenizers_apart():
    assert tally("bleu", PREDICTIONS, REFERENCES).settings["tok"] == "13a"
    assert tally_bleu(PREDICTIONS, REFERENCES, tokenizer="char").settings["tok"] == "char"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("exactmatch", "did you mean exact_match"), ("rouge", "known: exact_match, accuracy, bleu, chrf")],
)
def test_an_unknown_metric_is_refused_with_the_nearest(name: str, hint: str):
    with pytest.raises(ConfigError, match=f"unknown metric '{name}'; {hint}"):
        tally(name, PREDICTIONS, REFERENCES)


@pytest.mark.parametrize("rows", [[], np.zeros(15, dtype=bool)], ids=["none", "an empty mask"])
def test_an_empty_subset_has_no_score(rows: list[int] | np.ndarray):
    with pytest.raises(DataError, match="at least 1 of the examples, got 0 of 15"):
        tally("exact_match", PREDICTIONS, REFERENCES).subset(rows)


def test_a_label_has_one_right_answer():
    with pytest.raises(DataError, match=r"one right label for each prediction, got \['a', 'b'\] for prediction 1"):
        tally("accuracy", ["a", "a"], ["a", ["a", "b"]])  # pyright: ignore[reportArgumentType]  # that it is refused
