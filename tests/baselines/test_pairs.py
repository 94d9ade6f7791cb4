"""The nearest training source and the copy of a source."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from regard.baselines import fit_pairs
from regard.baselines import pairs as module
from regard.errors import DataError
from regard.evaluation import find_metric

COLORS, THINGS = ["red", "blue", "green", "black"], ["cat", "dog", "house", "sea", "tree", "stone"]
SOURCES = [f"the {color} {thing}" for color in COLORS for thing in THINGS]
TARGETS = [f"{thing} {color}" for color in COLORS for thing in THINGS]


def test_the_target_is_that_of_the_most_similar_source():
    baseline = fit_pairs(SOURCES, TARGETS, metric=find_metric("exact_match"))
    assert baseline.name == "target of the nearest training source"
    inputs = ["red cat", "a black stone", "the greenhouse"]
    features = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True).fit(SOURCES)
    nearest = cosine_similarity(features.transform(inputs), features.transform(SOURCES)).argmax(axis=1)
    assert list(baseline.predict(inputs).outputs) == [TARGETS[index] for index in nearest]
    assert list(baseline.predict(SOURCES).outputs) == TARGETS


def test_a_source_is_copied_where_that_scores_better():
    words = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in ("lm", "rt", "nd")]
    targets = [word if number % 5 else word.upper() for number, word in enumerate(words)]
    baseline = fit_pairs(words, targets, metric=find_metric("exact_match"))
    assert baseline.name == "copy of the source"
    assert list(baseline.predict(["unseen", "word"]).outputs) == ["unseen", "word"]


def test_more_inputs_than_are_compared_at_once_keep_their_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_QUERIES_AT_ONCE", 5)
    order = np.random.default_rng(0).permutation(len(SOURCES))
    baseline = fit_pairs(SOURCES, TARGETS, metric=find_metric("bleu"))
    assert list(baseline.predict([SOURCES[index] for index in order]).outputs) == [TARGETS[index] for index in order]


def test_many_sources_are_sampled_and_the_name_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MOST_SOURCES", 10)
    found = fit_pairs(SOURCES, TARGETS, metric=find_metric("exact_match"))
    assert found.name_for(24) == "target of the nearest training source on 10 of 24 rows"


def test_a_single_pair_is_an_error():
    with pytest.raises(DataError, match="at least 2 pairs, got 1"):
        fit_pairs(["a"], ["b"], metric=find_metric("exact_match"))
