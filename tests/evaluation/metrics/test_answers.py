"""Answers, by the rules of SQuAD's official scripts."""

from typing import Any

import pytest

from regard.errors import DataError
from regard.evaluation.examples import Examples
from regard.evaluation.intervals import clopper_pearson
from regard.evaluation.metrics.answers import (
    answer_exact_match,
    answer_f1,
    count_answer_exact_match,
    count_answer_f1,
    normalize_answer,
)
from regard.evaluation.registry import score_examples
from regard.evaluation.scores import Score


def score_answers(predictions: list[str], references: list[Any]) -> list[Score]:
    return score_examples(("answer_exact_match", "answer_f1"), Examples(outputs=predictions, targets=references))


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Denver Broncos", "denver broncos"),
        ("the Denver  Broncos.", "denver broncos"),
        ("An apple, a pear and THE plum!", "apple pear and plum"),
        ("theatre and another", "theatre and another"),
        ("U.S.A.", "usa"),
        ("well-known", "wellknown"),
        ("$1,000,000", "1000000"),
        ("it's", "its"),
        ("a.b", "ab"),
        ("the-cat", "thecat"),
        ("the_cat", "thecat"),
        ("\tline one\nline two\u00a0end ", "line one line two end"),
        ("", ""),
        ("the", ""),
        ("A", ""),
        ("?!…", "…"),
        ("“quoted”", "“quoted”"),
        ("1999\u20132001", "1999\u20132001"),
        ("the “a” list", "“ ” list"),
        ("«Le Monde»", "«le monde»"),
        ("¿Qué?", "¿qué"),
        ("İstanbul", "i̇stanbul"),
        ("Straße", "straße"),
        ("die Straße", "die straße"),
        ("東京、日本", "東京、日本"),
    ],
)
def test_the_normal_form(text: str, normal: str):
    assert normalize_answer(text) == normal
    assert normalize_answer(normal) == normal


@pytest.mark.parametrize(
    ("prediction", "answers", "is_right", "f1"),
    [
        ("The Broncos", ["broncos!"], True, 1.0),
        ("Denver", ["Denver Broncos"], False, 2 / 3),
        ("Denver", ["Broncos", "Denver Broncos", "Denver, Colorado in the US"], False, 2 / 3),
        ("Broncos", ["Denver Broncos", "the Broncos"], True, 1.0),
        ("Carolina Panthers", ["Denver Broncos"], False, 0.0),
        ("New York New York", ["New York"], False, 2 * 2 / 6),
        ("York New", ["New York"], False, 1.0),
        ("dog dog cat", ["dog dog"], False, 2 * 2 / 5),
        ("", ["Denver"], False, 0.0),
        ("the", ["Denver"], False, 0.0),
        ("“Denver”", ["Denver"], False, 0.0),
        ("", [], True, 1.0),
        ("the", [], True, 1.0),
        ("Denver", [], False, 0.0),
        ("", ["the"], True, 1.0),
        ("A", ["A"], True, 1.0),
        ("Denver", ["the", "Denver"], True, 1.0),
        ("", ["the", "Denver"], False, 0.0),
    ],
)
def test_the_best_of_the_right_answers_counts(prediction: str, answers: list[str], is_right: bool, f1: float):
    assert answer_exact_match(prediction, answers) is is_right
    assert answer_f1(prediction, answers) == pytest.approx(f1)


PREDICTIONS = ["Paris", "", "in 1999", "a dog", "", "cat"]
REFERENCES = [["Paris", "Paris, France"], [], ["1999"], [], ["Rome"], ["the cat"]]


def test_scores_of_a_set_without_unanswerable_questions():
    exact, f1 = score_answers(["Paris", "in 1999"], [["paris"], ["1999"]])
    assert (exact.name, exact.value) == ("answer_exact_match", 0.5)
    assert exact.interval == clopper_pearson(1, 2)
    assert (f1.name, f1.value) == ("answer_f1", pytest.approx((1 + 2 / 3) / 2))
    assert f1.settings["interval"] == "bootstrap"
    assert f1.settings["normal"] == exact.settings["normal"] == "squad"


def test_scores_of_a_set_with_unanswerable_questions():
    scores = {score.name: score for score in score_answers(PREDICTIONS, REFERENCES)}
    assert {name: score.value for name, score in scores.items()} == {
        "answer_exact_match": 3 / 6,
        "answer_f1": pytest.approx((1 + 1 + 2 / 3 + 0 + 0 + 1) / 6),
        "answer_exact_match_answerable": 2 / 4,
        "answer_f1_answerable": pytest.approx((1 + 2 / 3 + 0 + 1) / 4),
        "answer_exact_match_unanswerable": 1 / 2,
    }
    assert scores["answer_exact_match_unanswerable"].interval == clopper_pearson(1, 2)
    assert scores["answer_f1_answerable"].settings["n"] == 4


def test_scores_of_unanswerable_questions_alone():
    names = [score.name for score in score_answers(["", "a dog"], [[], []])]
    assert names == ["answer_exact_match", "answer_exact_match_unanswerable", "answer_f1"]


def test_counts_keep_the_questions_apart():
    exact, f1 = count_answer_exact_match(PREDICTIONS, REFERENCES), count_answer_f1(PREDICTIONS, REFERENCES)
    assert exact.is_proportion
    assert not f1.is_proportion
    assert exact.statistics[:, 0].tolist() == [1, 1, 0, 0, 0, 1]
    assert f1.subset([2, 5]).value == pytest.approx((2 / 3 + 1) / 2)


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(DataError, match="equal lengths of at least 1, got 1 and 2"):
        score_answers(["a"], [["a"], ["b"]])
    with pytest.raises(DataError, match="right answers of a question must be a list, got 'Paris'"):
        score_answers(["Paris"], ["Paris"])
