"""Spans of a context that answer a question: a linear ranking of spans by the words around them and by their form.

Richardson et al., "MCTest: A Challenge Dataset for the Open-Domain Machine Comprehension of Text" (2013), section 4,
for words of the question in a window around a span, weighted by their rarity and their distance; Rajpurkar et al.,
"SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), section 5.2, for a linear model of such features.
https://arxiv.org/abs/1606.05250

Candidates are spans of a few words in the sentences that share most with the question. What a question begins with
decides which form of a span is likely: a number after "how many", a capitalized word after "who".

Dimensions: `spans` of a context, `features` of each.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from regard.baselines.baseline import Baseline, BaselinePredictions, limit_rows
from regard.baselines.linear import quiet
from regard.errors import DataError
from regard.evaluation.metrics.answers import answer_f1

_MOST_QUESTIONS, _NEGATIVES = 2_000, 40
"""Questions that the ranking is fitted on, and wrong spans of each."""
_QUESTIONS_FOR_THRESHOLD = 500
"""Questions by which it is decided when there is no answer."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+(?:[-'\u2019.]\w+)*|[^\w\s]|\n")
"""Japanese and Chinese characters are words of their own."""
_SENTENCE_ENDS = frozenset(".!?\n\u3002\uff01\uff1f\u061f\u0964")  # those of Chinese, Arabic and Hindi, too
_STEM = 6
"""Characters by which words of a question and of a context are compared: *invaded* and *invasion* begin alike."""
_SENTENCES, _LONGEST, _REACH = 3, 8, 6
"""Sentences that have candidates, words of the longest one, and words on either side that are compared."""
_FIRST_WORDS = 15
"""The most frequent first words of questions, by which kinds of questions are known."""
_FREQUENT = 0.02
"""A word in so many of the sentences is a function word."""
_INVERSE_PENALTY = 1.0

Gold = Sequence[tuple[str, int]]
"""The answers to a question, each with the offset of its first character."""


@dataclass(frozen=True)
class _Candidates:
    """The spans of a context, by characters, and their features."""

    bounds: list[tuple[int, int]]
    features: Float[np.ndarray, "spans features"]


class SpanRanking:
    """Ranks the spans of a context as answers to a question.

    Args:
        questions: A context, a question and its answers each.

    Raises:
        DataError: If no question has an answer of a few words.
    """

    def __init__(self, questions: Sequence[tuple[str, str, Gold]]) -> None:
        contexts = list(dict.fromkeys(context for context, _, _ in questions))
        sentences = [sentence for context in contexts for sentence in _Context(context).sentence_stems()]
        self._counts = Counter(stem for sentence in sentences for stem in set(sentence))
        self._num_sentences = len(sentences)
        first = Counter(words[0] for _, question, _ in questions if (words := _stems(question)))
        self._kinds = {word: number for number, (word, _) in enumerate(first.most_common(_FIRST_WORDS), start=1)}
        self._weights = np.zeros(0)
        self._threshold = -math.inf
        self._fit(questions)

    def answer(self, context: str, question: str) -> str:
        """The best span; empty where none is good enough."""
        found = self._candidates(_Context(context), question)
        if not found.bounds:
            return ""
        scores = found.features @ self._weights
        best = int(scores.argmax())
        start, end = found.bounds[best]
        return context[start:end] if scores[best] >= self._threshold else ""

    def _fit(self, questions: Sequence[tuple[str, str, Gold]]) -> None:
        from sklearn.linear_model import LogisticRegression

        rng, rows, are_right = np.random.default_rng(0), list[Any](), list[Any]()
        for context, question, gold in questions:
            found = self._candidates(_Context(context), question)
            if not found.bounds:
                continue
            wanted = {(start, start + len(text)) for text, start in gold}
            is_right = np.array([bounds in wanted for bounds in found.bounds], bool)
            wrong = np.flatnonzero(~is_right)
            drawn = rng.choice(wrong, min(_NEGATIVES, len(wrong)), replace=False)
            chosen = np.concatenate([np.flatnonzero(is_right), drawn])
            rows.append(found.features[chosen])
            are_right.append(is_right[chosen])
        targets = np.concatenate([[], *are_right])
        if len(np.unique(targets)) < 2:
            raise DataError(f"no answer to {len(questions):,} questions is a span of up to {_LONGEST} words")
        model: Any = LogisticRegression(C=_INVERSE_PENALTY, fit_intercept=False)
        with quiet():
            self._weights = model.fit(np.concatenate(rows), targets).coef_[0]
        if any(not gold for _, _, gold in questions):
            self._threshold = self._best_threshold(questions[:_QUESTIONS_FOR_THRESHOLD])

    def _best_threshold(self, questions: Sequence[tuple[str, str, Gold]]) -> float:
        """The score from which on a span is an answer, with the highest F1 on these questions."""
        found: list[tuple[float, float]] = []
        for context, question, gold in questions:
            candidates = self._candidates(_Context(context), question)
            if candidates.bounds:
                scores = candidates.features @ self._weights
                start, end = candidates.bounds[int(scores.argmax())]
                texts = [text for text, _ in gold]
                gain = answer_f1(context[start:end], texts) - answer_f1("", texts)
                found.append((float(scores.max()), gain))
        found.sort(reverse=True)
        gains = np.cumsum([0.0, *(gain for _, gain in found)])
        return math.inf if (best := int(gains.argmax())) == 0 else found[best - 1][0]

    def _candidates(self, context: "_Context", question: str) -> _Candidates:
        asked = _stems(question)
        wanted = {stem: self._rarity(stem) for stem in asked}
        kind = self._kinds.get(asked[0], 0) if asked else 0
        overlaps = [sum(wanted[stem] for stem in set(some) & wanted.keys()) for some in context.sentence_stems()]
        order = sorted(range(len(overlaps)), key=lambda number: -overlaps[number])[:_SENTENCES]
        most = sum(wanted.values()) or 1.0
        bounds, features = list[tuple[int, int]](), list[list[float]]()
        for rank, number in enumerate(order):
            first, end = context.sentences[number]
            shared = [wanted.get(stem, 0.0) / most for stem in context.stems[first:end]]
            for start in range(end - first):
                if not context.is_word(first + start):
                    continue
                for length in range(1, min(_LONGEST, end - first - start) + 1):
                    last = start + length - 1
                    if not context.is_word(first + last):
                        continue
                    bounds.append((context.offsets[first + start][0], context.offsets[first + last][1]))
                    near = sum(
                        share / (start - place if place < start else place - last)
                        for place in range(max(0, start - _REACH), min(end - first, last + 1 + _REACH))
                        if (share := shared[place]) and not start <= place <= last
                    )
                    inside = sum(share > 0 for share in shared[start : last + 1])
                    features.append(
                        [overlaps[number] / most, float(rank == 0), near, float(inside), inside / length,
                         length / _LONGEST,
                         *self._form(context, first + start, first + last, is_first=start == 0, kind=kind)]
                    )  # fmt: skip
        return _Candidates(bounds, np.array(features))

    def _form(self, context: "_Context", first: int, last: int, *, is_first: bool, kind: int) -> list[float]:
        """Features of a span's form: those of any question, then those of its kind of question."""
        words = context.words[first : last + 1]
        capitals = sum(word[:1].isupper() for word in words)
        shape = [
            float(any(word[:1].isdigit() for word in words)),
            float(words[0][:1].isupper() and not is_first),
            float(capitals == len(words)),
            float(capitals == 0),
            1.0,
            len(words) / _LONGEST,
        ]
        before, after = context.words[first - 1] if first else ".", context.words[last + 1 : last + 2] or ["."]
        plain = [
            float(self._is_frequent(context.stems[first])),
            float(self._is_frequent(context.stems[last])),
            float(any(not word[0].isalnum() for word in words)),
            float(not before[0].isalnum()),
            float(not after[0][0].isalnum()),
            float(before[:1].isupper() and words[0][:1].isupper()),
            float(after[0][:1].isupper() and words[-1][:1].isupper()),
            float(self._is_frequent(before[:_STEM].lower())),
            float(self._is_frequent(after[0][:_STEM].lower())),
        ]
        found = [0.0] * (len(shape) * (1 + _FIRST_WORDS))
        found[kind * len(shape) : (kind + 1) * len(shape)] = shape
        return [*plain, *shape, *found]

    def _rarity(self, stem: str) -> float:
        return math.log((1 + self._num_sentences) / (1 + self._counts[stem])) if stem[0].isalnum() else 0.0

    def _is_frequent(self, stem: str) -> bool:
        return self._counts[stem] > _FREQUENT * self._num_sentences


class _Context:
    """The words of a text, where they are, and its sentences as ranges of words."""

    def __init__(self, text: str) -> None:
        found = list(_WORD.finditer(text))
        self.words = [match[0] for match in found]
        self.offsets = [match.span() for match in found]
        self.stems = [word[:_STEM].lower() for word in self.words]

    def is_word(self, place: int) -> bool:
        return self.words[place][0].isalnum()

    @cached_property
    def sentences(self) -> list[tuple[int, int]]:
        ends = [place + 1 for place, word in enumerate(self.words) if word in _SENTENCE_ENDS]
        return [(first, end) for first, end in pairwise([0, *ends, len(self.words)]) if first < end]

    def sentence_stems(self) -> list[list[str]]:
        return [self.stems[first:end] for first, end in self.sentences]


def _stems(text: str) -> list[str]:
    return [match[0][:_STEM].lower() for match in _WORD.finditer(text) if match[0][0].isalnum()]


def fit_answers(questions: Sequence[tuple[str, str, Gold]], *, separator: str) -> Baseline:
    """A linear ranking of spans; inputs are a question and a context, separated by `separator`.

    Args:
        questions: A context, a question and its answers each.
        separator: Between the question and the context of an input.
    """
    used = limit_rows(questions, _MOST_QUESTIONS)
    ranking = SpanRanking(used)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        pairs = (text.split(separator, 1) for text in inputs)
        return BaselinePredictions([ranking.answer(context, question) for question, context in pairs])

    return Baseline("linear ranking of spans by overlapping words", predict, len(used), "questions")
