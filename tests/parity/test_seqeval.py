"""Our entities and their scores against seqeval's, over random tags."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.evaluation.metrics.classes import f1, precision, recall
from regard.evaluation.metrics.entities import Scheme, count_entities, entities_of

seqeval_metrics = pytest.importorskip("seqeval.metrics")
seqeval_scheme = pytest.importorskip("seqeval.scheme")
sequence_labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")

TYPES = ["", "A", "B-", "A-B", "I", "gene-or-gene-product"]
SCHEMES: dict[Scheme, tuple[str, str]] = {
    "IOB1": ("IOB1", "IB"),
    "BIO": ("IOB2", "IB"),
    "BIOES": ("IOBES", "IBES"),
    "BILOU": ("BILOU", "IBLU"),
}
MEASURES = [
    (precision, seqeval_metrics.precision_score),
    (recall, seqeval_metrics.recall_score),
    (f1, seqeval_metrics.f1_score),
]


def tags_of(prefixes: str, types: list[str]) -> st.SearchStrategy[str]:
    """`O`, and each prefix with each type; a prefix alone is a tag, too."""
    tags = [f"{prefix}-{type}" if type else prefix for prefix in prefixes for type in types]
    return st.sampled_from(["O", *tags])


def pairs(prefixes: str, types: list[str]) -> st.SearchStrategy[list[tuple[list[str], list[str]]]]:
    """Sentences, each with two taggings, which are often the same in places."""
    tag = tags_of(prefixes, types)
    word = st.one_of(tag.map(lambda both: (both, both)), st.tuples(tag, tag))
    sentence = st.lists(word, min_size=1, max_size=11)
    return st.lists(sentence.map(lambda words: ([a for a, _ in words], [b for _, b in words])), min_size=1, max_size=5)


def check_scores(sentences: list[tuple[list[str], list[str]]], ours: Scheme | None, **their_mode: object) -> None:
    predictions, references = [said for said, _ in sentences], [true for _, true in sentences]
    counts = count_entities(predictions, references, scheme=ours)
    # Theirs are in the order of the names, in which "_" stands for no type.
    labels = sorted(counts.labels, key=lambda label: str(label) or "_")
    for measure, theirs in MEASURES:
        compute = partial(theirs, references, predictions, zero_division=0, **their_mode)
        assert counts.micro(measure).value == pytest.approx(compute(average="micro"), abs=1e-12)
        if labels:
            assert counts.macro(measure).value == pytest.approx(compute(average="macro"), abs=1e-12)
            assert [counts.of(label, measure).value for label in labels] == pytest.approx(
                compute(average=None).tolist()
            )
        else:  # theirs is the mean of nothing
            assert counts.macro(measure).value == 0.0


@settings(max_examples=100)
@given(pairs("IBES", TYPES))
def test_scores_are_those_of_seqeval(sentences: list[tuple[list[str], list[str]]]):
    check_scores(sentences, None)


@pytest.mark.parametrize("ours", SCHEMES)
def test_strict_scores_are_those_of_its_strict_mode(ours: Scheme):
    name, prefixes = SCHEMES[ours]
    # In its strict mode seqeval takes hyphens off the ends of types.
    types = [type for type in TYPES if not type.endswith("-")]

    @settings(max_examples=100)
    @given(pairs(prefixes, types))
    def check(sentences: list[tuple[list[str], list[str]]]) -> None:
        check_scores(sentences, ours, mode="strict", scheme=getattr(seqeval_scheme, name))

    check()


@settings(max_examples=200)
@given(st.lists(tags_of("IBES", TYPES), max_size=17))
def test_entities_are_those_of_seqeval(tags: list[str]):
    theirs = [(type, start, end + 1) for type, start, end in sequence_labeling.get_entities(tags)]
    assert [(entity.type or "_", entity.start, entity.end) for entity in entities_of(tags)] == theirs
