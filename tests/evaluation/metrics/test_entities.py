"""Entities in tags: schemes, what cannot be, and scores."""

from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.evaluation.intervals import bootstrap_interval
from regard.evaluation.metrics.classes import f1
from regard.evaluation.metrics.entities import (
    Entity,
    Scheme,
    convert_tags,
    count_entities,
    describe_faults,
    detect_scheme,
    entities_of,
    find_faults,
    may_follow,
)
from regard.evaluation.registry import score_examples
from regard.nn.crf import ConditionalRandomField, transition_mask

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
ENTITIES = [Entity("PER", 0, 2), Entity("PER", 2, 3), Entity("LOC", 3, 4), Entity("gene-or-product", 5, 8)]
WRITTEN: dict[Scheme, str] = {
    "IOB1": "I-PER I-PER B-PER I-LOC O I-gene-or-product I-gene-or-product I-gene-or-product",
    "BIO": "B-PER I-PER B-PER B-LOC O B-gene-or-product I-gene-or-product I-gene-or-product",
    "BIOES": "B-PER E-PER S-PER S-LOC O B-gene-or-product I-gene-or-product E-gene-or-product",
    "BILOU": "B-PER L-PER U-PER U-LOC O B-gene-or-product I-gene-or-product L-gene-or-product",
}


@st.composite
def taggings(draw: st.DrawFn) -> list[str]:
    """Any entities of three types, which may touch, in BIO."""
    tags: list[str] = []
    for type, length in draw(
        st.lists(st.tuples(st.sampled_from(["O", "A", "B-C", ""]), st.integers(1, 3)), max_size=7)
    ):
        written = [f"{prefix}-{type}" if type else prefix for prefix in "B" + "I" * (length - 1)]
        tags += ["O"] * length if type == "O" else written
    return tags


@pytest.mark.parametrize("scheme", WRITTEN)
def test_every_scheme_writes_the_same_entities(scheme: Scheme):
    tags = WRITTEN[scheme].split()
    assert entities_of(tags) == entities_of(tags, scheme) == ENTITIES
    assert detect_scheme([tags]) == scheme
    assert find_faults([tags], scheme) == []
    for other, written in WRITTEN.items():
        assert convert_tags(tags, other) == written.split()


@given(taggings())
def test_conversion_loses_nothing_but_what_io_cannot_say(tags: list[str]):
    for scheme in SCHEMES:
        there = convert_tags(tags, scheme)
        assert find_faults([there], scheme) == []
        assert entities_of(there, scheme) == entities_of(there)
        if scheme != "IO":
            assert entities_of(there) == entities_of(tags)
            assert convert_tags(there, "BIO") == tags


@given(st.lists(st.sampled_from(["O", "I-A", "B-A", "E-A", "S-A", "I-B", "B-B", "E-B", "S-B"]), max_size=9))
def test_what_is_read_from_any_tags_can_be_written(tags: list[str]):
    """And if nothing is wrong with the tags, strict reading finds what lenient reading does."""
    assert entities_of(convert_tags(tags, "BIOES"), "BIOES") == entities_of(tags)
    if not find_faults([tags], "BIOES"):
        assert entities_of(tags, "BIOES") == entities_of(tags)


def test_in_io_entities_that_touch_are_one():
    assert convert_tags(["B-A", "B-A", "I-B"], "IO") == ["I-A", "I-A", "I-B"]
    assert detect_scheme([["I-A", "I-A", "O"]]) == "IO"


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        ([["B-A", "I-A", "O"], ["O"]], "BIO"),
        ([["B-A", "O"]], "BIO"),
        ([["B", "I", "O"]], "BIO"),
        ([["I-A", "B-A"], ["O", "I-A"]], "IOB1"),
        ([["I-A", "O"]], "IO"),
        ([["O", "O"]], "IO"),
        ([["S-A", "O"]], "BIOES"),
        ([["O", "U-A"]], "BILOU"),
        ([["B-A", "O"], ["B-A", "O"], ["O", "I-A"]], "BIO"),
        ([["B-A", "O"], ["O", "I-A"]], "BIO"),
        ([["I-A", "O"], ["B-A", "O"], ["O", "I-A"]], "IOB1"),
        ([["DET", "NOUN", "O"]], None),
        ([["B-A", "person"]], None),
        ([["B-A", "U-A", "S-A"]], None),
    ],
    ids=str,
)
def test_the_scheme_is_detected_from_prefixes_and_their_order(sentences: list[list[str]], scheme: Scheme | None):
    assert detect_scheme(sentences) == scheme


@pytest.mark.parametrize(
    ("scheme", "tags", "faults"),
    [
        ("BIO", "O I-A", "sentence 2, word 2: I-A after O"),
        ("BIO", "I-A O", "sentence 2, word 1: I-A at the beginning"),
        ("BIO", "B-A I-B", "sentence 2, word 2: I-B after B-A"),
        ("BIO", "B-A S-B B-A", "sentence 2, word 2: S-B after B-A; sentence 2, word 3: B-A after S-B"),
        ("IOB1", "O B-A", "sentence 2, word 2: B-A after O"),
        ("IOB1", "I-A B-B", "sentence 2, word 2: B-B after I-A"),
        ("BIOES", "O B-A", "sentence 2: B-A at the end"),
        ("BIOES", "B-A O S-A", "sentence 2, word 2: O after B-A"),
        ("BIOES", "S-A E-A", "sentence 2, word 2: E-A after S-A"),
        ("BIOES", "B-A E-B", "sentence 2, word 2: E-B after B-A"),
        ("BILOU", "U-A L-A", "sentence 2, word 2: L-A after U-A"),
        ("IO", "I-A B-A", "sentence 2, word 2: B-A after I-A; sentence 2: B-A at the end"),
    ],
)
def test_what_is_not_allowed_is_named_by_its_place(scheme: Scheme, tags: str, faults: str):
    sentences = [["O", "O"], tags.split(), ["O"]]
    assert "; ".join(map(str, find_faults(sentences, scheme))) == faults


def test_many_faults_are_counted_and_the_first_named():
    sentences = [["I-A", "O", "I-A"]] * 4
    assert describe_faults(find_faults(sentences, "BIO"), "BIO") == (
        "4 sentences have tags that BIO does not allow: sentence 1, word 1: I-A at the beginning; "
        "sentence 1, word 3: I-A after O; sentence 2, word 1: I-A at the beginning; …"
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_random_field_with_the_rules_writes_nothing_that_cannot_be(scheme: Scheme):
    prefixes = {"IO": "I", "IOB1": "IB", "BIO": "BI", "BIOES": "BIES", "BILOU": "BILU"}[scheme]
    tags = ["O", *(f"{prefix}-{type}" for prefix in prefixes for type in ("A", "B", "C"))]
    field = ConditionalRandomField(len(tags), allowed=transition_mask(tags, partial(may_follow, scheme=scheme)))
    torch.nn.init.normal_(field.transitions)
    written = [[tags[tag] for tag in path.tags] for path in field.viterbi(10 * torch.randn(97, 7, len(tags)))]
    assert find_faults(written, scheme) == []
    assert all(entities_of(each) == entities_of(each, scheme) for each in written)


REFERENCES = [["B-PER", "I-PER", "O"], ["O", "B-LOC"], ["O"], ["B-PER", "B-LOC", "I-LOC", "O"], ["O", "O"]]
PREDICTIONS = [["B-PER", "I-PER", "O"], ["O", "B-PER"], ["B-ORG"], ["B-PER", "B-LOC", "O", "O"], ["O", "O"]]


def test_counts_are_kept_by_sentence_and_type():
    counts = count_entities(PREDICTIONS, REFERENCES)
    assert counts.labels == ("LOC", "ORG", "PER")
    assert counts.totals == {"LOC": (0, 1, 2), "ORG": (0, 1, 0), "PER": (2, 3, 2)}
    assert counts.counts[1].tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_scores_with_intervals_over_sentences():
    names = ("entity_precision", "entity_recall", "entity_macro_f1", "entity_f1")
    found = score_examples(names, Examples(outputs=PREDICTIONS, targets=REFERENCES))
    scores = {score.name: score for score in found}
    assert scores["entity_precision"].value == 2 / 5
    assert scores["entity_recall"].value == 2 / 4
    assert scores["entity_f1"].value == pytest.approx(4 / 9)
    assert scores["entity_macro_f1"].value == pytest.approx((0 + 0 + 4 / 5) / 3)
    assert scores["entity_f1_PER"].value == 4 / 5
    assert list(scores)[4:] == ["entity_f1_LOC", "entity_f1_ORG", "entity_f1_PER"]
    micro = scores["entity_f1"]
    assert micro.settings["rule"] == "conlleval"
    assert micro.settings["n"] == 5
    assert micro.settings["interval"] == "bootstrap"
    statistics = count_entities(PREDICTIONS, REFERENCES).counts.sum(axis=1)
    assert micro.interval == bootstrap_interval(statistics, lambda sums: float(f1(sums)))
    assert micro.interval is not None
    assert micro.interval[0] < micro.value < micro.interval[1]


def test_a_subset_scores_as_if_there_had_been_no_others():
    counts = count_entities(PREDICTIONS, REFERENCES).macro(f1)
    rows = [3, 0, 3]
    alone = count_entities([PREDICTIONS[row] for row in rows], [REFERENCES[row] for row in rows])
    assert alone.labels == ("LOC", "PER")
    assert counts.subset(rows).value == alone.macro(f1).value
    assert count_entities([["O"]], [["O"]]).macro(f1).value == count_entities([["O"]], [["O"]]).micro(f1).value == 0.0


def test_strict_scores_leave_out_what_is_against_the_rules():
    lenient = count_entities([["I-A", "O", "B-A"]], [["B-A", "O", "B-A"]])
    strict = count_entities([["I-A", "O", "B-A"]], [["B-A", "O", "B-A"]], scheme="BIO")
    assert lenient.totals == {"A": (2, 2, 2)}
    assert strict.totals == {"A": (1, 1, 2)}
    assert strict.micro(f1).settings["rule"] == "strict-BIO"


def test_given_types_make_counts_of_several_models_comparable():
    types = ("LOC", "MISC", "ORG", "PER")
    ours, theirs = (count_entities(tags, REFERENCES, types=types) for tags in (PREDICTIONS, REFERENCES))
    assert ours.macro(f1).settings == theirs.macro(f1).settings
    assert ours.macro(f1).value == count_entities(PREDICTIONS, REFERENCES).macro(f1).value
    assert np.array_equal(ours.counts[..., 2], theirs.counts[..., 2])
    assert count_entities(PREDICTIONS, REFERENCES, types=("LOC", "PER")).labels == ("LOC", "ORG", "PER")


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(DataError, match="the same number of sentences, at least 1, got 1 and 2"):
        count_entities([["O"]], [["O"], ["O"]])
    with pytest.raises(DataError, match="a tag for each word, got 1 for 2 in sentence 2"):
        count_entities([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(DataError, match="O, or a prefix and a type as in B-PER, got 'NOUN'"):
        entities_of(["O", "NOUN"])
    with pytest.raises(DataError, match="BIO has the prefixes B, I, O, got the tag 'S-PER'"):
        entities_of(["O", "S-PER"], "BIO")
    with pytest.raises(ConfigError, match="unknown scheme 'BOI'; did you mean BIO"):
        entities_of(["O"], "BOI")  # pyright: ignore[reportArgumentType]  # that it is refused
