"""Metrics against the libraries that define them, and their intervals against simulation."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sacrebleu
import scipy.stats
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.errors import ConfigError, DataError
from regard.evaluation.counts import Counts
from regard.evaluation.metrics.classes import count_accuracy
from regard.evaluation.metrics.likelihood import count_perplexity
from regard.evaluation.metrics.text import (
    count_bleu,
    count_character_errors,
    count_chrf,
    count_exact_match,
    count_word_errors,
    levenshtein_distance,
    make_bleu,
)
from regard.evaluation.scores import Score, score_counts

NUM_SIMULATIONS = 400
WORDS = ["der", "hund", "rennt", "über", "straße", "und", "bellt", "laut", ",", "weil", "3.5", "katzen", "sah", "?"]


def scored(count: Callable[..., Counts]) -> Callable[..., Score]:
    """The score of what `count` counts; options are those of the interval."""

    def score(predictions: Any, references: Any, **options: int) -> Score:
        return score_counts(count(predictions, references), **options)

    return score


exact_match, accuracy, bleu, chrf = map(scored, (count_exact_match, count_accuracy, count_bleu, count_chrf))
PAIRED = [exact_match, accuracy, bleu, chrf]
SACREBLEU: list[tuple[Callable[..., Score], type[Metric]]] = [(bleu, BLEU), (chrf, CHRF)]


def corpus(num_sentences: int, *, seed: int, num_references: int = 1) -> tuple[list[str], list[list[str]]]:
    """Random sentences, and for each its references: itself with some words exchanged."""
    rng = np.random.default_rng(seed)
    predictions = [list(rng.choice(WORDS, size=rng.integers(3, 17))) for _ in range(num_sentences)]
    references = [
        [
            " ".join(str(rng.choice(WORDS)) if rng.random() < 0.2 else word for word in prediction)
            for _ in range(num_references)
        ]
        for prediction in predictions
    ]
    return [" ".join(prediction) for prediction in predictions], references


@pytest.mark.parametrize(("ours", "theirs"), SACREBLEU)
@pytest.mark.parametrize("num_sentences", [1, 2, 61])
def test_the_value_is_sacrebleus_to_the_last_bit(
    ours: Callable[..., Score], theirs: Callable[..., Metric], num_sentences: int
):
    predictions, references = corpus(num_sentences, seed=num_sentences)
    single = [accepted[0] for accepted in references]
    score = ours(predictions, single, num_resamples=10)
    assert 20 < score.value < 95
    assert score.value == theirs().corpus_score(predictions, [single]).score
    assert ours(predictions, references, num_resamples=10) == score


@pytest.mark.parametrize(("ours", "theirs"), SACREBLEU)
def test_several_references_are_sacrebleus_too(ours: Callable[..., Score], theirs: Callable[..., Metric]):
    predictions, references = corpus(31, seed=3, num_references=3)
    streams: list[list[str | None]] = [[accepted[number] for accepted in references] for number in range(3)]
    score = ours(predictions, references, num_resamples=10)
    assert score.value == theirs().corpus_score(predictions, streams).score  # pyright: ignore[reportArgumentType]
    assert score.settings["nrefs"] == 3

    fewer = [accepted[:2] if number % 2 else accepted for number, accepted in enumerate(references)]
    streams[2] = [None if number % 2 else line for number, line in enumerate(streams[2])]
    score = ours(predictions, fewer, num_resamples=10)
    assert score.value == theirs().corpus_score(predictions, streams).score  # pyright: ignore[reportArgumentType]
    assert score.settings["nrefs"] == "var"


@pytest.mark.parametrize("tokenizer", ["13a", "intl", "zh", "char", "none"])
def test_bleu_uses_the_tokenizer_it_is_given(tokenizer):
    predictions, references = corpus(7, seed=4)
    streams = [[accepted[0] for accepted in references]]
    score = count_bleu(predictions, references, tokenizer=tokenizer)
    assert score.value == BLEU(tokenize=tokenizer).corpus_score(predictions, streams).score
    assert score.settings["tok"] == tokenizer


@pytest.mark.parametrize(("ours", "theirs"), SACREBLEU)
def test_the_signature_has_every_field_of_sacrebleus(ours: Callable[..., Score], theirs: Callable[..., Metric]):
    predictions, references = corpus(5, seed=5)
    metric = theirs()
    metric.corpus_score(predictions, [[accepted[0] for accepted in references]])
    score = ours(predictions, references, num_resamples=20, seed=9)
    expected = {key: value for key, value in metric.get_signature().info.items() if value is not None}
    assert expected.pop("version") == score.settings["sacrebleu"] == sacrebleu.__version__
    made = {"n": 5, "interval": "bootstrap", "confidence": 0.95, "resamples": 20, "seed": 9}
    assert expected.items() | made.items() <= score.settings.items()


def test_the_signature_of_chrf_has_its_beta():
    assert chrf(["ab"], ["ab"]).settings["beta"] == 2


@pytest.mark.parametrize("metric", [exact_match, accuracy])
def test_the_signature_of_a_proportion_has_the_kind_of_its_interval(metric: Callable[..., Score]):
    score = metric(["a", "b"], ["a", "c"])
    assert {"n": 2, "interval": "clopper-pearson", "confidence": 0.95}.items() <= score.settings.items()
    assert "interval:clopper-pearson|n:2" in score.signature


def test_exact_match_and_accuracy_are_proportions_with_exact_intervals():
    predictions, references = list("aabbc") * 7, list("aabcd") * 7
    expected = scipy.stats.binomtest(21, 35).proportion_ci(0.95, method="exact")
    for score in (exact_match(predictions, references), accuracy(predictions, references)):
        assert score.value == 21 / 35
        assert score.interval is not None
        np.testing.assert_allclose(score.interval, (expected.low, expected.high), rtol=1e-9)


@pytest.mark.parametrize(("prediction", "right"), [("Hund", True), ("hund", False), ("Hund ", False), ("Hun", False)])
def test_exact_match_compares_characters(prediction: str, right: bool):
    assert exact_match([prediction], ["Hund"]).value == right


def test_exact_match_accepts_any_of_several_references():
    score = exact_match(["ja", "nein", "nie"], [["ja", "jawohl"], ["ne", "nein"], ["nicht"]])
    assert score.value == 2 / 3
    assert score.settings["nrefs"] == "var"


def test_all_right_is_not_certainty():
    score = exact_match(["a"] * 59, ["a"] * 59)
    assert score.interval is not None
    assert score.value == score.interval[1] == 1.0
    assert score.interval[0] == pytest.approx(0.025 ** (1 / 59))


def test_accuracy_counts_numbers_too():
    assert accuracy([3, 1, 2], [3, 2, 2]).value == 2 / 3


@pytest.mark.parametrize("metric", PAIRED)
def test_the_order_of_examples_does_not_change_the_value(metric: Callable[..., Score]):
    predictions, references = corpus(43, seed=6)
    single = [accepted[0] for accepted in references]
    order = np.random.default_rng(7).permutation(43)
    shuffled = metric([predictions[i] for i in order], [single[i] for i in order])
    assert shuffled.value == metric(predictions, single).value
    assert shuffled.signature == metric(predictions, single).signature


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_a_seed_fixes_the_interval(metric: Callable[..., Score]):
    predictions, references = corpus(23, seed=9)
    assert metric(predictions, references, seed=1) == metric(predictions, references, seed=1)
    assert metric(predictions, references, seed=1).interval != metric(predictions, references, seed=2).interval


@pytest.mark.parametrize(
    ("metric", "example"), [(bleu, ("a b c d", "a b c d")), (chrf, ("ab", "ab")), (scored(count_perplexity), (2.0, 3))]
)
def test_one_example_has_no_bootstrap_interval(metric: Callable[..., Score], example: tuple):
    score = metric([example[0]], [example[1]])
    assert score.interval is None
    assert json.loads(json.dumps(score.to_json()))["interval"] is None
    assert "interval:none|n:1" in score.signature
    assert "seed" not in score.settings


def test_the_interval_of_exact_match_covers_the_truth():
    rng = np.random.default_rng(10)
    covered = 0
    for _ in range(NUM_SIMULATIONS):
        predictions = ["right" if right else "wrong" for right in rng.random(101) < 0.97]
        covered += covers(exact_match(predictions, ["right"] * 101), 0.97)
    assert covered >= fewest_covered(), covered


@pytest.mark.parametrize("metric", [BLEU(), CHRF()])
def test_the_interval_of_bleu_and_chrf_covers_the_truth(metric: BLEU | CHRF):
    """The truth is the score of a finite population, from which test sets are drawn with replacement."""
    predictions, references = corpus(499, seed=12)
    streams = [[accepted[0] for accepted in references]]
    population = np.array(metric._extract_corpus_statistics(predictions, streams))
    truth = metric.corpus_score(predictions, streams).score

    def compute(sums: np.ndarray) -> float:
        return metric._compute_score_from_stats(sums.tolist()).score

    rng = np.random.default_rng(13)
    covered = 0
    for simulation in range(NUM_SIMULATIONS):
        drawn = population[rng.integers(len(population), size=101)]
        counts = Counts(statistics=drawn, compute=compute)
        score = score_counts(counts, num_resamples=200, seed=simulation)
        covered += covers(score, truth)
    assert fewest_covered() <= covered <= most_covered(), covered


@pytest.mark.parametrize("metric", PAIRED)
@pytest.mark.parametrize(("num_predictions", "num_references"), [(0, 0), (3, 2), (0, 1)])
def test_lengths_that_do_not_fit_are_refused(metric: Callable[..., Score], num_predictions: int, num_references: int):
    with pytest.raises(DataError, match=f"predictions and references .* got {num_predictions} and {num_references}$"):
        metric(["a"] * num_predictions, ["a"] * num_references)


@pytest.mark.parametrize("metric", PAIRED)
def test_one_string_is_not_a_list_of_them(metric: Callable[..., Score]):
    with pytest.raises(DataError, match="must be lists"):
        metric("abc", "abc")


@pytest.mark.parametrize("metric", [exact_match, bleu, chrf])
def test_a_prediction_without_references_is_refused(metric: Callable[..., Score]):
    with pytest.raises(DataError, match="got none for prediction 1"):
        metric(["a", "b"], [["a"], []])


def test_an_unknown_tokenizer_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="one of 13a, intl, zh, char, none, got '13b'"):
        count_bleu(["a"], ["a"], tokenizer="13b")  # pyright: ignore[reportArgumentType]  # that it is refused is the point


def covers(score: Score, truth: float) -> bool:
    assert score.interval is not None
    return score.interval[0] <= truth <= score.interval[1]


def fewest_covered() -> int:
    """Of the simulations a 95 % interval covers at least so many, but for one seed in a thousand."""
    return int(scipy.stats.binom.ppf(0.001, NUM_SIMULATIONS, 0.95))


def most_covered() -> int:
    return int(scipy.stats.binom.ppf(0.999, NUM_SIMULATIONS, 0.95))


def slow_distance(first: list[str], second: list[str]) -> int:
    """The edit distance by its definition, row by row."""
    row = list(range(len(second) + 1))
    for one, item in enumerate(first, start=1):
        before, row = row, [one]
        for two, other in enumerate(second, start=1):
            row.append(min(before[two] + 1, row[-1] + 1, before[two - 1] + (item != other)))
    return row[-1]


def test_the_edit_distance_is_that_of_its_definition():
    rng = np.random.default_rng(0)
    for _ in range(300):
        first, second = (rng.choice(list("abcd"), size=rng.integers(0, 90)).tolist() for _ in range(2))
        assert levenshtein_distance(first, second) == slow_distance(first, second)


def test_error_rates_are_of_all_words_and_of_the_best_reference():
    outputs = ["a b c", "x", ""]
    words = count_word_errors(outputs, [["a b d", "a b c e"], ["x"], ["y z"]])
    assert words.statistics.tolist() == [[1, 4], [0, 1], [2, 2]]
    assert words.value == pytest.approx(3 / 7)
    assert count_character_errors(["ab", "c"], ["ax", "cd"]).value == pytest.approx(2 / 4)


def test_bleu_prints_no_advice_of_another_library(caplog: pytest.LogCaptureFixture):
    outputs = ["a dog runs home ."] * 200
    assert count_bleu(outputs, outputs).value == pytest.approx(100)
    assert caplog.records == []


@pytest.mark.parametrize("tokenizer", ["13a", "intl", "none"])
def test_scores_by_bleu_share_a_tokenizer_whose_cache_lives_as_long_as_the_process(tokenizer):
    assert make_bleu(tokenizer=tokenizer).tokenizer is make_bleu(tokenizer=tokenizer, longest=1).tokenizer
    assert make_bleu(tokenizer=tokenizer).tokenizer is not make_bleu(tokenizer="char").tokenizer
