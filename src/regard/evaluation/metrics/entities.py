"""Entities tagged word by word: tagging schemes, their rules, and the metrics of entities.

A tag is `O`, outside of any entity, or a prefix and a type, as `B-PER`. The prefixes
mark where entities begin and end, in one of several schemes:

    IO      I for every word: adjacent entities of one type are one
    IOB1    I, but B where an entity directly follows another of its type (the files of CoNLL-2003)
    BIO     B for the first word, I for the others (also called IOB2)
    BIOES   B first, E last, I between; S for an entity of one word
    BILOU   the same with L for E and U for S

Ramshaw and Marcus, "Text Chunking using Transformation-Based Learning" (1995). https://aclanthology.org/W95-0107
Tjong Kim Sang and De Meulder, "Introduction to the CoNLL-2003 Shared Task" (2003), section 2.4: an entity is right
where its bounds and its type are. https://aclanthology.org/W03-0419
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from regard.errors import ConfigError, DataError
from regard.evaluation.counts import Counts
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import LabelCounts, check_same_words, f1, precision, recall
from regard.evaluation.registry import PAIRS, Metric
from regard.settings import nearest

Scheme = Literal["IO", "IOB1", "BIO", "BIOES", "BILOU"]
"""The meaning of prefixes."""

Tags = Sequence[str]
"""The tags of the words of one sentence."""

OUTSIDE = "O"

_PREFIXES: dict[Scheme, str] = {"IO": "IO", "IOB1": "IOB", "BIO": "BIO", "BIOES": "BIOES", "BILOU": "BILOU"}
_AS_BIOES = {"L": "E", "U": "S"}
_FAULTS_TO_LIST = 3


class Entity(NamedTuple):
    """An entity: its type and its words, `start` to `end - 1`, counted from 0."""

    type: str
    """Empty where tags are prefixes alone."""
    start: int
    end: int


class Fault(NamedTuple):
    """Two consecutive tags that a scheme does not allow; None is the boundary of the sentence."""

    sentence: int
    """Counted from 0."""
    position: int
    """The index of the second tag, from 0; the number of words where the sentence must not end like this."""
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """Counted from 1, as lines of files are: `sentence 2, word 3: I-PER after O`."""
        if self.after is None:
            return f"sentence {self.sentence + 1:,}: {self.before} at the end"
        where = "at the beginning" if self.before is None else f"after {self.before}"
        return f"sentence {self.sentence + 1:,}, word {self.position + 1:,}: {self.after} {where}"


def entities_of(tags: Tags, scheme: Scheme | None = None) -> list[Entity]:
    """The entities that the tags of a sentence encode, in order.

    Without a scheme tags are read as by CoNLL's evaluation script, which accepts any
    sequence: an entity begins with B or S, or where another type or no entity
    precedes, and ends with E or S, or where the next tag cannot continue it. This
    reads all of the schemes correctly. With a scheme only entities that follow its
    rules count: in BIO an `I-PER` after `O` is not an entity.

    Example:
        >>> entities_of(["O", "I-PER", "I-PER", "B-LOC"])
        [Entity(type='PER', start=1, end=3), Entity(type='LOC', start=3, end=4)]
        >>> entities_of(["O", "I-PER", "I-PER", "B-LOC"], "BIO")
        [Entity(type='LOC', start=3, end=4)]
    """
    parts = [_split(tag, scheme) for tag in tags]
    found: list[Entity] = []
    start = None
    for position, (before, after) in enumerate(pairwise([(OUTSIDE, ""), *parts, (OUTSIDE, "")])):
        if start is not None and not _continues(before, after):
            if _ends(before, after, scheme):
                found.append(Entity(before[1], start, position))
            start = None
        if start is None and _begins(before, after, scheme):
            start = position
    return found


def convert_tags(tags: Tags, scheme: Scheme) -> list[str]:
    """The same entities, read as by `entities_of` without a scheme, in another scheme.

    Converting to IO merges adjacent entities of one type.

    Example:
        >>> convert_tags(["I-PER", "I-PER", "B-PER", "O", "I-LOC"], "BIO")
        ['B-PER', 'I-PER', 'B-PER', 'O', 'B-LOC']
        >>> convert_tags(["I-PER", "I-PER", "B-PER", "O", "I-LOC"], "BIOES")
        ['B-PER', 'E-PER', 'S-PER', 'O', 'S-LOC']
    """
    written = [OUTSIDE] * len(tags)
    last = Entity("", -1, -1)
    for entity in entities_of(tags):
        is_adjacent = entity.start == last.end and entity.type == last.type
        prefixes = _prefixes(entity.end - entity.start, scheme, is_adjacent=is_adjacent)
        ending = f"-{entity.type}" if entity.type else ""
        written[entity.start : entity.end] = [f"{prefix}{ending}" for prefix in prefixes]
        last = entity
    return written


def detect_scheme(sentences: Iterable[Tags]) -> Scheme | None:
    """The scheme that sentences are tagged in, or None where the tags are not of entities, such as parts of speech.

    BIO and IOB1 have the same prefixes. Where sentences break the rules of both,
    it is the one whose rules are broken less often.

    Example:
        >>> detect_scheme([["I-PER", "O", "I-LOC", "B-LOC"]]), detect_scheme([["DET", "NOUN"]])
        ('IOB1', None)
    """
    steps: Counter[tuple[str, str]] = Counter()
    for tags in sentences:
        steps.update(pairwise([OUTSIDE, *tags]))
    if any(_prefix_and_type(tag) is None for _, tag in steps):
        return None
    prefixes = {tag[0] for _, tag in steps}
    for scheme in ("IO", "BIOES", "BILOU"):
        if prefixes <= set(_PREFIXES[scheme]) and (scheme == "IO" or prefixes - set("BIO")):
            return scheme
    if not prefixes <= set("BIO"):
        return None
    faults = {
        scheme: sum(count for step, count in steps.items() if not may_follow(*step, scheme=scheme))
        for scheme in ("BIO", "IOB1")
    }
    return "IOB1" if faults["IOB1"] < faults["BIO"] else "BIO"


def may_follow(before: str | None, after: str | None, *, scheme: Scheme) -> bool:
    """Whether a scheme allows a tag after another; None is the boundary of a sentence.

    A tag that is not in the scheme is not allowed anywhere.

    Example:
        >>> may_follow("B-PER", "I-PER", scheme="BIO"), may_follow("B-PER", "I-LOC", scheme="BIO")
        (True, False)
    """
    if not all(_is_in(tag, scheme) for tag in (before, after) if tag is not None):
        return False
    left, right = ((OUTSIDE, "") if tag is None else _split(tag, scheme) for tag in (before, after))
    continues = _continues(left, right)
    if scheme == "BIO":
        return right[0] != "I" or continues
    if scheme == "IOB1":
        return right[0] != "B" or (left[0] in "BI" and left[1] == right[1])
    if scheme in ("BIOES", "BILOU"):
        return continues or (left[0] not in "BI" and right[0] not in "IE")
    return True


def find_faults(sentences: Iterable[Tags], scheme: Scheme) -> list[Fault]:
    """Every place where a sentence breaks the rules of the scheme.

    Example:
        >>> print(*find_faults([["B-PER", "I-PER"], ["O", "I-PER", "I-PER"]], "BIO"))
        sentence 2, word 2: I-PER after O
    """
    is_allowed: dict[tuple[str | None, str | None], bool] = {}
    faults: list[Fault] = []
    for number, tags in enumerate(sentences):
        for position, step in enumerate(pairwise([None, *tags, None])):
            if step not in is_allowed:
                is_allowed[step] = may_follow(*step, scheme=scheme)
            if not is_allowed[step]:
                faults.append(Fault(number, position, *step))
    return faults


def describe_faults(faults: Sequence[Fault], scheme: Scheme) -> str:
    """The number of sentences with faults and the first of them, for an error or a warning."""
    num_sentences = len({fault.sentence for fault in faults})
    listed = "; ".join(map(str, faults[:_FAULTS_TO_LIST])) + ("; …" if len(faults) > _FAULTS_TO_LIST else "")
    has = "sentence has" if num_sentences == 1 else "sentences have"
    return f"{num_sentences:,} {has} tags that {scheme} does not allow: {listed}"


def count_entities(
    predictions: Sequence[Tags],
    references: Sequence[Tags],
    *,
    scheme: Scheme | None = None,
    types: Sequence[str] | None = None,
) -> LabelCounts:
    """For each sentence and type of entity the number of correct, predicted and actual entities.

    An entity is correct where its boundaries and its type are. Without a scheme the
    resulting scores are those of CoNLL's script and of seqeval; with one those of
    seqeval's strict mode.

    Args:
        predictions: The predicted tags of each sentence.
        references: The actual tags.
        scheme: Count only entities that follow its rules; unset, tags are read as by `entities_of`.
        types: Types to count even if they do not occur, so that several models have the same columns.

    Raises:
        DataError: If predictions and references differ in sentences or words.

    Example:
        >>> float(count_entities([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC"]]).micro(f1).value)
        0.5
    """
    check_same_words(predictions, references)
    found = [
        [set(entities_of(tags, scheme)) for tags in sentences]
        for sentences in (predictions, references)
    ]  # fmt: skip
    seen = {entity.type for sentences in found for entities in sentences for entity in entities}
    types = tuple(sorted(seen.union(types or ())))
    index = {type: number for number, type in enumerate(types)}
    counts = np.zeros((len(references), len(types), 3), np.int32)
    for row, (predicted, gold) in enumerate(zip(*found, strict=True)):
        for column, entities in enumerate((predicted & gold, predicted, gold)):
            for entity in entities:
                counts[row, index[entity.type], column] += 1
    rule = "conlleval" if scheme is None else f"strict-{scheme}"
    return LabelCounts(labels=types, counts=counts, settings={"rule": rule})


@lru_cache(maxsize=1)  # the four metrics of a set of examples share one reading of its tags
def _entities(examples: Examples) -> LabelCounts:
    outputs, targets = examples.require(*PAIRS)
    parts = [_prefix_and_type(str(tag)) for tag in examples.labels or ()]
    types = {part[1] for part in parts if part is not None and part[0] != OUTSIDE}
    return count_entities(outputs, targets, types=None if examples.labels is None else sorted(types))


def _f1_by_type(examples: Examples) -> dict[str, Counts]:
    counts = _entities(examples)
    return {str(type): counts.of(type, f1) for type in counts.labels}


ENTITY_PRECISION = Metric(
    name="entity_precision", label="Entity precision", counter=lambda examples: _entities(examples).micro(precision)
)
ENTITY_RECALL = Metric(
    name="entity_recall", label="Entity recall", counter=lambda examples: _entities(examples).micro(recall)
)
ENTITY_F1 = Metric(
    name="entity_f1",
    label="Entity F1",
    counter=lambda examples: _entities(examples).micro(f1),
    breakdown=_f1_by_type,
)
ENTITY_MACRO_F1 = Metric(
    name="entity_macro_f1", label="Entity macro F1", counter=lambda examples: _entities(examples).macro(f1)
)


def _prefix_and_type(tag: str) -> tuple[str, str] | None:
    prefix, _, type = tag.partition("-")
    if tag == OUTSIDE:
        return OUTSIDE, ""
    return (prefix, type) if prefix in ("B", "I", "E", "S", "L", "U") else None


def _is_in(tag: str, scheme: Scheme) -> bool:
    if scheme not in _PREFIXES:
        raise ConfigError(f"unknown scheme {scheme!r}{nearest(scheme, list(_PREFIXES))}")
    parts = _prefix_and_type(tag)
    return parts is not None and parts[0] in _PREFIXES[scheme]


def _split(tag: str, scheme: Scheme | None) -> tuple[str, str]:
    """Prefix and type, the prefix as in BIOES."""
    parts = _prefix_and_type(tag)
    if parts is None:
        raise DataError(f"tags of entities must be O, or a prefix and a type as in B-PER, got {tag!r}")
    if scheme is not None and not _is_in(tag, scheme):
        raise DataError(f"{scheme} has the prefixes {', '.join(_PREFIXES[scheme])}, got the tag {tag!r}")
    prefix, type = parts
    return _AS_BIOES.get(prefix, prefix), type


def _continues(before: tuple[str, str], after: tuple[str, str]) -> bool:
    """Whether the tag after may continue the entity of the tag before."""
    return before[0] in "BI" and after[0] in "IE" and before[1] == after[1]


def _begins(before: tuple[str, str], after: tuple[str, str], scheme: Scheme | None) -> bool:
    """Whether an entity begins with the tag after, given that none continues."""
    if scheme is None:
        return after[0] != OUTSIDE
    if scheme == "IOB1":
        return after[0] == "I" or (after[0] == "B" and before[0] in "BI" and before[1] == after[1])
    return after[0] in ("I" if scheme == "IO" else "BS")


def _ends(before: tuple[str, str], after: tuple[str, str], scheme: Scheme | None) -> bool:
    """Whether an entity may end with the tag before, given that it does not continue."""
    if scheme in ("BIOES", "BILOU"):
        return before[0] in "ES"
    # IOB1 does not allow a B of another type; in seqeval it invalidates a B before it, but not an I.
    return scheme != "IOB1" or not (before[0] == after[0] == "B" and before[1] != after[1])


def _prefixes(length: int, scheme: Scheme, *, is_adjacent: bool) -> str:
    """The prefixes of an entity of `length` words; `is_adjacent` if one of its type ends directly before it."""
    if scheme in ("IO", "IOB1"):
        return ("B" if scheme == "IOB1" and is_adjacent else "I") + "I" * (length - 1)
    if scheme == "BIO":
        return "B" + "I" * (length - 1)
    first, last, single = "BES" if scheme == "BIOES" else "BLU"
    return single if length == 1 else first + "I" * (length - 2) + last
