r"""Answers to questions, scored as SQuAD is.

An answer is compared in a normal form: lower case, without punctuation, without
the articles *a*, *an* and *the*, with single spaces. Punctuation is that of ASCII,
and articles are those of English: so the official scripts have it, whatever the
language, and so published numbers are made.

A question may have several right answers, of which the one that fits best counts;
and it may have none, where only an empty prediction is right. An answer that is an
article alone counts as none, as in the script of version 2.0.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), section 6.1.
https://arxiv.org/abs/1606.05250
Rajpurkar et al., "Know What You Don't Know: Unanswerable Questions for SQuAD" (2018). https://arxiv.org/abs/1806.03822
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from regard.errors import DataError
from regard.evaluation.metrics import score_tally
from regard.evaluation.scores import Score
from regard.evaluation.tallies import Tally, share

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """The form in which answers are compared; it may be empty.

    Example:
        >>> normalize_answer("The  U.S. Army!"), normalize_answer("a"), normalize_answer("“the” dog")
        ('us army', '', '“ ” dog')
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def answer_exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Whether a prediction equals one of the right answers in normal form; of none, whether it is empty.

    Example:
        >>> answer_exact_match("the Broncos.", ["Denver Broncos", "Broncos"]), answer_exact_match("Broncos", [])
        (True, False)
    """
    return normalize_answer(prediction) in _accepted(answers)


def answer_f1(prediction: str, answers: Sequence[str]) -> float:
    """How many words a prediction shares with a right answer, as the harmonic mean of precision and recall.

    Words are counted as often as they occur. Of several answers the best counts.
    Where either side is empty it is 1 if both are, else 0.

    Example:
        >>> answer_f1("Denver", ["the Denver Broncos", "Broncos"])
        0.6666666666666666
    """
    said = normalize_answer(prediction).split()
    return max(_shared_words(said, answer.split()) for answer in _accepted(answers))


def tally_answer_exact_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Tally:
    """Which questions are answered rightly; `references` are the right answers of each, none where it has none."""
    _check_pairs(predictions, references)
    right = [answer_exact_match(said, answers) for said, answers in zip(predictions, references, strict=True)]
    statistics = np.column_stack([right, np.ones(len(right))]).astype(np.int64)
    return Tally(name="answer_exact_match", statistics=statistics, compute=share, settings={"normal": "squad"})


def tally_answer_f1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Tally:
    """The mean over questions of how many words they share with a right answer."""
    _check_pairs(predictions, references)
    found = [answer_f1(said, answers) for said, answers in zip(predictions, references, strict=True)]
    return Tally(
        name="answer_f1",
        statistics=np.column_stack([found, np.ones(len(found))]),
        compute=lambda sums: float(sums[0] / sums[1]),
        settings={"normal": "squad"},
    )


def score_answers(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[Score]:
    """Exact match and F1 in [0, 1]; where some questions have no answer, the two of those with one, and the others'.

    What an empty prediction says of a question is that it has no answer. The
    intervals speak of independent questions: several about one paragraph are not
    quite, and the intervals somewhat too narrow.

    Example:
        >>> for score in score_answers(["Paris", "", "1999"], [["Paris", "in Paris"], [], ["in 1999"]]):
        ...     print(score.name, round(score.value, 3))
        answer_exact_match 0.667
        answer_f1 0.889
        answer_exact_match_answerable 0.5
        answer_f1_answerable 0.833
        answer_exact_match_unanswerable 1.0
    """
    both = [tally_answer_exact_match(predictions, references), tally_answer_f1(predictions, references)]
    scores = [score_tally(tally) for tally in both]
    is_answerable = np.array([len(answers) > 0 for answers in references])
    if is_answerable.all():
        return scores
    parts = [(both[0], ~is_answerable, "unanswerable")]  # where the F1 is the exact match
    if is_answerable.any():
        parts = [*((tally, is_answerable, "answerable") for tally in both), *parts]
    return scores + [_renamed(score_tally(tally.subset(rows)), ending) for tally, rows, ending in parts]


def _accepted(answers: Sequence[str]) -> list[str]:
    """The right answers in normal form. Those that come out empty are none; without any it is the empty one."""
    if isinstance(answers, str):  # which is a sequence of strings too, and would be taken apart
        raise DataError(f"the right answers of a question must be a list, got {answers!r}")
    return [normal for answer in answers if (normal := normalize_answer(answer))] or [""]


def _shared_words(said: list[str], true: list[str]) -> float:
    if not said or not true:
        return float(said == true)
    return 2 * (Counter(said) & Counter(true)).total() / (len(said) + len(true))


def _renamed(score: Score, ending: str) -> Score:
    return replace(score, name=f"{score.name}_{ending}")


def _check_pairs(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(predictions) != len(references) or len(references) == 0:
        told = f"got {len(predictions)} and {len(references)}"
        raise DataError(f"predictions and references must be equally many and at least one, {told}")
