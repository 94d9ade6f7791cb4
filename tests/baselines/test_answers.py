"""The linear ranking of spans: where answers are, what form they have, and when there is none."""

import numpy as np
import pytest

from regard.baselines.answers import fit_answers
from regard.errors import DataError

NAMES = ["Anna", "Boris", "Clara", "David", "Emil", "Frieda", "Gustav", "Hanna"]
CITIES = ["Rome", "Oslo", "Paris", "Tunis", "Lima", "Delhi", "Kyoto", "Quito"]


def make_questions(count: int, seed: int, *, unanswerable: int = 0) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Who, where and when, about one of several sentences; every `unanswerable`-th is about nobody in the text."""
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        names, cities = rng.permutation(NAMES)[:4].tolist(), rng.permutation(CITIES)[:3].tolist()
        years = rng.integers(1500, 2000, size=3).tolist()
        context = " ".join(
            f"In {year} {name} moved to {city}." for name, city, year in zip(names[:3], cities, years, strict=True)
        )
        who = int(rng.integers(3))
        answer, question = [
            (names[who], f"who moved to {cities[who]}?"),
            (str(years[who]), f"when did {names[who]} move?"),
            (cities[who], f"where did {names[who]} move to?"),
        ][number % 3]
        if unanswerable and number % unanswerable == 0:
            found.append((context, "which colors does an elephant prefer?", []))
        else:
            found.append((context, question, [(answer, context.index(answer))]))
    return found


def right(questions, outputs) -> float:
    return float(
        np.mean([out == (gold[0][0] if gold else "") for (_, _, gold), out in zip(questions, outputs, strict=True)])
    )


def test_answers_are_found_by_the_words_and_the_kind_of_the_question():
    baseline = fit_answers(make_questions(200, 0), separator="\t")
    others = make_questions(60, 1)
    outputs = baseline.predict([f"{question}\t{context}" for context, question, _ in others]).outputs
    assert right(others, outputs) > 0.9
    assert baseline.name_for(200) == "linear ranking of spans by overlapping words"


def test_an_answer_is_a_span_of_the_context_with_words_at_both_ends():
    baseline = fit_answers(make_questions(60, 0), separator="\t")
    context = "«Yes», said the queen -- and left; nobody\nknew (why), in 1701. 東京は日本の首都。"
    for question in ("who left?", "", "?", "首都", "when, in 1701?"):
        (found,) = baseline.predict([f"{question}\t{context}"]).outputs
        assert found in context
        assert found[0].isalnum()
        assert found[-1].isalnum()
    assert baseline.predict(["who?\t...", "who?\t"]).outputs == ["", ""]


def test_questions_without_an_answer_have_an_empty_one():
    baseline = fit_answers(make_questions(200, 0, unanswerable=4), separator="\t")
    others = make_questions(80, 1, unanswerable=4)
    outputs = baseline.predict([f"{question}\t{context}" for context, question, _ in others]).outputs
    assert right(others, outputs) > 0.9
    always = baseline_of_spans(others)
    assert "" not in always


def baseline_of_spans(others) -> list[str]:
    """The same questions by a ranking that has seen none without an answer."""
    baseline = fit_answers(make_questions(200, 0), separator="\t")
    return list(baseline.predict([f"{question}\t{context}" for context, question, _ in others]).outputs)


def test_without_answers_there_is_nothing_to_learn():
    with pytest.raises(DataError, match="no answer to 8 questions is a span of up to 8 words"):
        fit_answers(make_questions(8, 0, unanswerable=1), separator="\t")
