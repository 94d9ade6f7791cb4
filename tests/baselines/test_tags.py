"""The linear CRF and the most frequent tag of each word."""

import itertools

import numpy as np
import pytest
import torch

from regard.baselines import fit_tagger
from regard.baselines import tags as module
from regard.baselines.tags import FrequentTags, word_features
from regard.errors import DataError
from regard.evaluation.metrics.entities import may_follow

FIRST, LAST = ["Ada", "Alan", "Grace", "Kurt", "Emmy"], ["Byron", "Turing", "Hopper", "Godel", "Noether"]
PLACES = ["Rome", "Bern", "Oslo", "Lima"]


def sentence(rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Names may be of places too: the words around them decide."""
    number, name = str(rng.integers(1000)), [str(rng.choice(FIRST)), str(rng.choice(LAST))]
    place = str(rng.choice([*PLACES, *LAST]))
    if rng.random() < 0.5:
        return [*name, "left", place, number], ["B-PER", "I-PER", "O", "B-LOC", "O"]
    return ["from", place, "came", *name, "."], ["O", "B-LOC", "O", "B-PER", "I-PER", "O"]


def sentences(number: int, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    rng = np.random.default_rng(seed)
    rows = [sentence(rng) for _ in range(number)]
    return [words for words, _ in rows], [tags for _, tags in rows]


def share(outputs: list[str], tags: list[list[str]]) -> float:
    pairs = [
        pair for output, some in zip(outputs, tags, strict=True) for pair in zip(output.split(), some, strict=True)
    ]
    return sum(found == tag for found, tag in pairs) / len(pairs)


def rule(before: str | None, after: str | None) -> bool:
    return may_follow(before, after, scheme="BIO")


def test_a_crf_is_better_than_the_most_frequent_tag():
    words, tags = sentences(200, seed=1)
    baseline = fit_tagger(words, tags, may_follow=rule)
    assert baseline.name == "linear CRF"
    held_out, expected = sentences(100, seed=2)
    inputs = [" ".join(some) for some in held_out]
    frequent = FrequentTags(list(zip(words, tags, strict=True)))
    by_word = share([" ".join(frequent(some)) for some in held_out], expected)
    assert by_word < 0.95 < share(list(baseline.predict(inputs).outputs), expected)


def test_a_forbidden_transition_is_never_predicted():
    words, tags = sentences(60, seed=1)
    outputs = fit_tagger(words, tags, may_follow=rule).predict(["Byron Byron Byron . came Rome", "Turing"]).outputs
    for output in outputs:
        found = [None, *output.split(), None]
        assert all(rule(before, after) for before, after in itertools.pairwise(found))


def test_the_same_rows_give_the_same_tagger_and_leave_the_generator_of_torch_alone():
    words, tags = sentences(50, seed=4)
    state = torch.get_rng_state()
    one, other = (fit_tagger(words, tags, may_follow=None).predict(["Ada from Oslo left Lima 7"]) for _ in range(2))
    assert one == other
    assert torch.equal(torch.get_rng_state(), state)


def test_few_sentences_get_the_most_frequent_tag_of_each_word():
    words, tags = [["a", "cat"], ["the", "cat"], ["a", "dog"]], [["D", "N"], ["D", "N"], ["D", "V"]]
    baseline = fit_tagger(words, tags, may_follow=None)
    assert baseline.name == "most frequent tag of each word"
    assert list(baseline.predict(["the dog", "a bird", ""]).outputs) == ["D V", "D D", ""]


def test_a_word_has_the_same_features_in_every_text():
    together = word_features([["Ada", "left"], ["Rome"], []])
    assert torch.equal(together[1], word_features([["Rome"]])[0])
    assert [len(some) for some in together] == [2, 1, 0]
    assert together[0].max() < module._NUM_BUCKETS


def test_features_depend_on_the_neighbors():
    (one,), (other,) = word_features([["Ada", "left", "Rome"]]), word_features([["Ada", "saw", "Rome"]])
    differ = (one != other).any(dim=1)
    assert differ.tolist() == [True, True, True]
    assert (one[0] == other[0]).sum() > one.size(1) / 2


def test_many_sentences_are_sampled_and_the_name_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MOST_SENTENCES", 30)
    words, tags = sentences(80, seed=1)
    assert fit_tagger(words, tags, may_follow=None).name_for(80) == "linear CRF on 30 of 80 sentences"


def test_one_tag_alone_is_an_error_that_names_it():
    with pytest.raises(DataError, match="at least two tags, got O"):
        fit_tagger([["a"], ["b"]], [["O"], ["O"]], may_follow=None)
