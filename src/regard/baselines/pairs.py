"""Pairs of texts without a model: the source itself, or the target of the most similar training source.

Similarity is the cosine of TF-IDF vectors of n-grams of 1 to 4 characters inside words, as in a translation memory.
Which of the two is used is decided on training rows that are held back. Texts that belong together are found by the
same similarity of the texts themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from regard.baselines.baseline import Baseline, BaselinePredictions, limit_rows
from regard.errors import DataError
from regard.evaluation.examples import Examples
from regard.evaluation.registry import Metric

_MOST_SOURCES, _MOST_CHARACTERS = 30_000, 4_000_000
_HELD_BACK, _COMPARED = 300, 5_000
"""Training rows that decide between the two, at most a fifth of them, and sources that these are compared with."""
_QUERIES_AT_ONCE = 64
"""Bounds the memory of similarities to 15 MB."""
_LONGEST_NGRAM = 4

_FEATURES: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (1, _LONGEST_NGRAM), "sublinear_tf": True}

Pair = tuple[str, str]


class NearestTarget:
    """The target of the training source that is most similar to an input."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        sources, self._targets = zip(*pairs, strict=True)
        self._features: Any = TfidfVectorizer(**_FEATURES)
        self._sources = self._features.fit_transform(sources).T.tocsr()

    def __call__(self, inputs: Sequence[str]) -> list[str]:
        queries = self._features.transform(inputs)
        found: list[str] = []
        for start in range(0, len(inputs), _QUERIES_AT_ONCE):
            similarities = (queries[start : start + _QUERIES_AT_ONCE] @ self._sources).toarray()
            found += [self._targets[best] for best in similarities.argmax(axis=1)]
        return found


@dataclass(frozen=True)
class TextSimilarity(Baseline):
    """A baseline that compares texts, and predicts no outputs."""

    compare: Callable[[Sequence[str], Sequence[str]], Float[np.ndarray, "texts others"]] = lambda texts, others: (
        np.zeros((len(texts), len(others)))
    )
    """The cosine of each of some texts with each of others."""


def fit_similarity(pairs: Sequence[Pair]) -> TextSimilarity:
    """The cosine of TF-IDF vectors, with frequencies of n-grams in both texts of training pairs."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    most = max(2, len(pairs) * _MOST_CHARACTERS // max(_MOST_CHARACTERS, sum(len(a) + len(b) for a, b in pairs)))
    used = limit_rows(pairs, min(_MOST_SOURCES, most))
    features: Any = TfidfVectorizer(**_FEATURES).fit([text for pair in used for text in pair])

    def compare(texts: Sequence[str], others: Sequence[str]) -> Float[np.ndarray, "texts others"]:
        return (features.transform(texts) @ features.transform(others).T).toarray()

    return TextSimilarity("cosine of TF-IDF vectors", lambda inputs: BaselinePredictions(), len(used), compare=compare)


def fit_pairs(sources: Sequence[str], targets: Sequence[str], *, metric: Metric) -> Baseline:
    """Copy the source, or take the target of the nearest training source: what `metric` finds better.

    Raises:
        DataError: If there are fewer than two pairs.
    """
    if len(sources) < 2:
        raise DataError(f"the nearest training source needs at least 2 pairs, got {len(sources)}")
    num_characters = sum(map(len, sources))
    most = max(2, len(sources) * _MOST_CHARACTERS // max(_MOST_CHARACTERS, num_characters))
    pairs = limit_rows(list(zip(sources, targets, strict=True)), min(_MOST_SOURCES, most))
    if _is_copy_better(pairs, metric):
        return Baseline("copy of the source", lambda inputs: BaselinePredictions(list(inputs)))
    nearest = NearestTarget(pairs)
    name = "target of the nearest training source"
    return Baseline(name, lambda inputs: BaselinePredictions(nearest(inputs)), len(pairs))


def _is_copy_better(pairs: Sequence[Pair], metric: Metric) -> bool:
    order = np.random.default_rng(0).permutation(len(pairs))
    size = max(1, min(_HELD_BACK, len(pairs) // 5))
    held_back, others = ([pairs[index] for index in some] for some in (order[:size], order[size : size + _COMPARED]))
    sources, targets = ([pair[side] for pair in held_back] for side in (0, 1))
    outputs = (sources, NearestTarget(others)(sources))
    copied, nearest = (metric.count(Examples(outputs=some, targets=targets)).value for some in outputs)
    return metric.is_better(copied, nearest)
