r"""Metrics of answers to questions, as SQuAD is scored.

Answers are compared in a normalized form: lower case, without punctuation, without
the articles *a*, *an* and *the*, with single spaces. Punctuation is that of ASCII,
and articles are those of English, in any language: the official scripts do so, and
published numbers are computed with them.

A question may have several right answers, of which the best match counts; and it
may have none, where only an empty prediction is right. An answer that is an article
alone counts as none, as in the script of version 2.0.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), section 6.1.
https://arxiv.org/abs/1606.05250
Rajpurkar et al., "Know What You Don't Know: Unanswerable Questions for SQuAD" (2018). https://arxiv.org/abs/1806.03822
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from regard.errors import DataError
from regard.evaluation.counts import Counts, check_equal_lengths, count_right, ratio
from regard.evaluation.examples import Examples
from regard.evaluation.registry import PAIRS, Metric, on_pairs

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SETTINGS = {"normal": "squad"}


def normalize_answer(text: str) -> str:
    """The form in which answers are compared; it may be empty.

    Example:
        >>> normalize_answer("The  U.S. Army!"), normalize_answer("a"), normalize_answer("“the” dog")
        ('us army', '', '“ ” dog')
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def answer_exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Whether a prediction equals one of the right answers in normalized form; without answers, whether it is empty.

    Example:
        >>> answer_exact_match("the Broncos.", ["Denver Broncos", "Broncos"]), answer_exact_match("Broncos", [])
        (True, False)
    """
    return normalize_answer(prediction) in _accepted(answers)


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
    """The overlap of words with the best right answer, as the harmonic mean of precision and recall.

    Repeated words count repeatedly. Where either side is empty it is 1 if both are, else 0.

    Example:
        >>> answer_f1("Denver", ["the Denver Broncos", "Broncos"])
        0.6666666666666666
    """
    words = normalize_answer(prediction).split()
    return max(_word_f1(words, answer.split()) for answer in _accepted(answers))


def count_answer_exact_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
    """Count the correctly answered questions; `references` has the right answers of each, an empty list for none.

    The interval holds for independent questions: several about one paragraph are
    not quite independent, and the interval is slightly too narrow.
    """
    check_equal_lengths(predictions, references)
    return count_right([answer_exact_match(*pair) for pair in zip(predictions, references, strict=True)], _SETTINGS)


def count_answer_f1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
    """The F1 of each question, of which the score is the mean."""
    check_equal_lengths(predictions, references)
    found = [answer_f1(*pair) for pair in zip(predictions, references, strict=True)]
    return Counts(statistics=np.column_stack([found, np.ones(len(found))]), compute=ratio, settings=_SETTINGS)


def _by_answerability(
    count: Callable[[Sequence[str], Sequence[Sequence[str]]], Counts], parts: Sequence[str]
) -> Callable[[Examples], dict[str, Counts]]:
    """The counts of questions with and without an answer, where some have none."""

    def breakdown(examples: Examples) -> dict[str, Counts]:
        outputs, targets = examples.require(*PAIRS)
        is_answerable = np.array([len(answers) > 0 for answers in targets])
        if is_answerable.all():
            return {}
        masks = {"answerable": is_answerable, "unanswerable": ~is_answerable}
        return {part: count(outputs, targets).subset(masks[part]) for part in parts if masks[part].any()}

    return breakdown


ANSWER_EXACT_MATCH = Metric(
    name="answer_exact_match",
    label="Answer exact match",
    counter=on_pairs(count_answer_exact_match),
    breakdown=_by_answerability(count_answer_exact_match, ("answerable", "unanswerable")),
)
ANSWER_F1 = Metric(
    name="answer_f1",
    label="Answer F1",
    counter=on_pairs(count_answer_f1),
    breakdown=_by_answerability(count_answer_f1, ("answerable",)),  # without an answer F1 equals exact match
    is_bounded_mean=True,
)


def _accepted(answers: Sequence[str]) -> list[str]:
    """The right answers in normalized form, without empty ones; if there are none, the empty answer."""
    if isinstance(answers, str):  # also a sequence of strings, its characters
        raise DataError(f"the right answers of a question must be a list, got {answers!r}")
    return [normal for answer in answers if (normal := normalize_answer(answer))] or [""]


def _word_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    return 2 * (Counter(predicted) & Counter(gold)).total() / (len(predicted) + len(gold))
