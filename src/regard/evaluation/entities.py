"""Entities written as tags of words: what the tags mean, whether they can be, and how well entities were found.

A tag is `O`, outside of any entity, or a prefix and a type, as `B-PER`. The prefixes
say where entities begin and end, in one of several schemes:

    IO      I for every word: entities of one type that touch are one
    IOB1    I, but B where an entity begins right behind another of its type (the files of CoNLL-2003)
    BIO     B for the first word, I for the others (also called IOB2)
    BIOES   B first, E last, I between; S for an entity of one word
    BILOU   the same with L for E and U for S

Ramshaw and Marcus, "Text Chunking using Transformation-Based Learning" (1995). https://aclanthology.org/W95-0107
Tjong Kim Sang and De Meulder, "Introduction to the CoNLL-2003 Shared Task" (2003), section 2.4: an entity is right
where its bounds and its type are. https://aclanthology.org/W03-0419
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from regard.errors import ConfigError, DataError
from regard.evaluation.classes import LabelCounts, f1, precision, recall
from regard.evaluation.metrics import score_tally
from regard.evaluation.scores import Score
from regard.settings import nearest

Scheme = Literal["IO", "IOB1", "BIO", "BIOES", "BILOU"]
"""What prefixes mean."""

Tags = Sequence[str]
"""Those of the words of one sentence."""

OUTSIDE = "O"

_PREFIXES: dict[Scheme, str] = {"IO": "IO", "IOB1": "IOB", "BIO": "BIO", "BIOES": "BIOES", "BILOU": "BILOU"}
_AS_BIOES = {"L": "E", "U": "S"}
_FAULTS_TO_LIST = 3


class Entity(NamedTuple):
    """Some words that are one thing."""

    type: str
    """Empty where tags are prefixes alone."""
    start: int
    """Its first word, counted from 0."""
    end: int
    """The word behind its last."""


class Fault(NamedTuple):
    """Two tags side by side that cannot be in a scheme; None is the boundary of the sentence."""

    sentence: int
    """Counted from 0."""
    position: int
    """Of the second tag, counted from 0; behind the last word where the sentence must not end so."""
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """Counted from 1, as lines of files are: `sentence 2, word 3: I-PER behind O`."""
        if self.after is None:
            return f"sentence {self.sentence + 1:,}: {self.before} at the end"
        where = "at the beginning" if self.before is None else f"behind {self.before}"
        return f"sentence {self.sentence + 1:,}, word {self.position + 1:,}: {self.after} {where}"


def entities_of(tags: Tags, scheme: Scheme | None = None) -> list[Entity]:
    """The entities that the tags of a sentence write, in order.

    Without a scheme tags are read as the script of CoNLL reads them, which makes
    something of any sequence: an entity begins with B or S, or where another type
    or nothing went before, and ends with E or S, or where the next cannot go on
    with it. It reads all of the schemes rightly. With a scheme only what is written
    by its rules counts: in BIO an `I-PER` behind `O` is no entity.

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
        if start is not None and not _goes_on(before, after):
            if _ends(before, after, scheme):
                found.append(Entity(before[1], start, position))
            start = None
        if start is None and _begins(before, after, scheme):
            start = position
    return found


def convert_tags(tags: Tags, scheme: Scheme) -> list[str]:
    """The same entities, read as `entities_of` does without a scheme, written in another.

    To IO and back entities of one type that touch become one.

    Example:
        >>> convert_tags(["I-PER", "I-PER", "B-PER", "O", "I-LOC"], "BIO")
        ['B-PER', 'I-PER', 'B-PER', 'O', 'B-LOC']
        >>> convert_tags(["I-PER", "I-PER", "B-PER", "O", "I-LOC"], "BIOES")
        ['B-PER', 'E-PER', 'S-PER', 'O', 'S-LOC']
    """
    written = [OUTSIDE] * len(tags)
    last = Entity("", -1, -1)
    for entity in entities_of(tags):
        is_touching = entity.start == last.end and entity.type == last.type
        prefixes = _written(entity.end - entity.start, scheme, is_touching=is_touching)
        ending = f"-{entity.type}" if entity.type else ""
        written[entity.start : entity.end] = [f"{prefix}{ending}" for prefix in prefixes]
        last = entity
    return written


def detect_scheme(sentences: Iterable[Tags]) -> Scheme | None:
    """The scheme that sentences are tagged in, or None where the tags write no entities, as parts of speech do not.

    BIO and IOB1 have the same prefixes. Where some sentences can be neither, it is
    the one that fewer entities break the rules of.

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
    """Whether a tag may stand behind another in a scheme; None is the boundary of a sentence.

    A tag that the scheme does not have may stand nowhere.

    Example:
        >>> may_follow("B-PER", "I-PER", scheme="BIO"), may_follow("B-PER", "I-LOC", scheme="BIO")
        (True, False)
    """
    if not all(_is_in(tag, scheme) for tag in (before, after) if tag is not None):
        return False
    left, right = ((OUTSIDE, "") if tag is None else _split(tag, scheme) for tag in (before, after))
    goes_on = _goes_on(left, right)
    if scheme == "BIO":
        return right[0] != "I" or goes_on
    if scheme == "IOB1":
        return right[0] != "B" or (left[0] in "BI" and left[1] == right[1])
    if scheme in ("BIOES", "BILOU"):
        return goes_on or (left[0] not in "BI" and right[0] not in "IE")
    return True


def find_faults(sentences: Iterable[Tags], scheme: Scheme) -> list[Fault]:
    """Every place where a sentence cannot be in the scheme.

    Example:
        >>> print(*find_faults([["B-PER", "I-PER"], ["O", "I-PER", "I-PER"]], "BIO"))
        sentence 2, word 2: I-PER behind O
    """
    can_be: dict[tuple[str | None, str | None], bool] = {}
    faults: list[Fault] = []
    for number, tags in enumerate(sentences):
        for position, step in enumerate(pairwise([None, *tags, None])):
            if step not in can_be:
                can_be[step] = may_follow(*step, scheme=scheme)
            if not can_be[step]:
                faults.append(Fault(number, position, *step))
    return faults


def describe_faults(faults: Sequence[Fault], scheme: Scheme) -> str:
    """One sentence that names the first of the faults, for an error or a warning."""
    num_sentences = len({fault.sentence for fault in faults})
    told = "; ".join(map(str, faults[:_FAULTS_TO_LIST])) + ("; …" if len(faults) > _FAULTS_TO_LIST else "")
    has = "sentence has" if num_sentences == 1 else "sentences have"
    return f"{num_sentences:,} {has} tags that cannot be in {scheme}: {told}"


def check_tags(sentences: Iterable[Tags], scheme: Scheme) -> None:
    """Refuse sentences that cannot be in the scheme.

    Raises:
        DataError: If there are any; it names the first of them.

    Example:
        >>> check_tags([["O", "I-PER"]], "BIO")
        Traceback (most recent call last):
        regard.errors.DataError: 1 sentence has tags that cannot be in BIO: sentence 1, word 2: I-PER behind O
    """
    if faults := find_faults(sentences, scheme):
        raise DataError(describe_faults(faults, scheme))


def count_entities(
    predictions: Sequence[Tags],
    references: Sequence[Tags],
    *,
    scheme: Scheme | None = None,
    types: Sequence[str] | None = None,
) -> LabelCounts:
    """For each sentence and type of entity how many were found, predicted, and are there.

    Args:
        predictions: The tags of each sentence, as predicted.
        references: As they should be.
        scheme: Count only entities that follow its rules; unset, read as `entities_of` does.
        types: All there can be; unset, all that occur.

    Raises:
        DataError: If predictions and references differ in sentences or words, or a type is not among the `types`.
    """
    _check_alike(predictions, references)
    found = [
        [set(entities_of(tags, scheme)) for tags in sentences]
        for sentences in (predictions, references)
    ]  # fmt: skip
    seen = sorted({entity.type for sentences in found for entities in sentences for entity in entities})
    if types is not None and (unknown := set(seen) - set(types)):
        raise DataError(f"types of entities must be among {', '.join(types)}, got {', '.join(sorted(unknown))}")
    types = tuple(seen if types is None else types)
    place = {type: number for number, type in enumerate(types)}
    counts = np.zeros((len(references), len(types), 3), np.int32)
    for row, (predicted, gold) in enumerate(zip(*found, strict=True)):
        for column, entities in enumerate((predicted & gold, predicted, gold)):
            for entity in entities:
                counts[row, place[entity.type], column] += 1
    rule = "conlleval" if scheme is None else f"strict-{scheme}"
    return LabelCounts(labels=types, counts=counts, kind="entity_", settings={"rule": rule})


def score_entities(
    predictions: Sequence[Tags],
    references: Sequence[Tags],
    *,
    scheme: Scheme | None = None,
    types: Sequence[str] | None = None,
) -> list[Score]:
    """Precision, recall and F1 of entities, the mean F1 over types, and the F1 of each type, resampled by sentences.

    An entity is right where its bounds and its type are. Without a scheme they are
    the scores of CoNLL's script and of seqeval; with one those of seqeval's strict mode.

    Example:
        >>> for score in score_entities([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC"]])[:3]:
        ...     print(score.name, score.value)
        entity_precision 0.5
        entity_recall 0.5
        entity_f1 0.5
    """
    counts = count_entities(predictions, references, scheme=scheme, types=types)
    tallies = [counts.micro(precision), counts.micro(recall), counts.micro(f1), counts.macro(f1)]
    return [score_tally(tally) for tally in [*tallies, *(counts.of(type, f1) for type in counts.labels)]]


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
    """Prefix and type, the prefix as BIOES has it."""
    parts = _prefix_and_type(tag)
    if parts is None:
        raise DataError(f"tags of entities are O, or a prefix and a type as B-PER, got {tag!r}")
    if scheme is not None and not _is_in(tag, scheme):
        raise DataError(f"{scheme} has the prefixes {', '.join(_PREFIXES[scheme])}, got the tag {tag!r}")
    prefix, type = parts
    return _AS_BIOES.get(prefix, prefix), type


def _goes_on(before: tuple[str, str], after: tuple[str, str]) -> bool:
    """Whether the entity of the tag before may go on in the tag after."""
    return before[0] in "BI" and after[0] in "IE" and before[1] == after[1]


def _begins(before: tuple[str, str], after: tuple[str, str], scheme: Scheme | None) -> bool:
    """Whether an entity begins with the tag after, given that none goes on."""
    if scheme is None:
        return after[0] != OUTSIDE
    if scheme == "IOB1":
        return after[0] == "I" or (after[0] == "B" and before[0] in "BI" and before[1] == after[1])
    return after[0] in ("I" if scheme == "IO" else "BS")


def _ends(before: tuple[str, str], after: tuple[str, str], scheme: Scheme | None) -> bool:
    """Whether an entity may end with the tag before, given that it does not go on."""
    if scheme in ("BIOES", "BILOU"):
        return before[0] in "ES"
    # In IOB1 a B of another type cannot be, and seqeval has it spoil the B before, but not an I.
    return scheme != "IOB1" or not (before[0] == after[0] == "B" and before[1] != after[1])


def _written(length: int, scheme: Scheme, *, is_touching: bool) -> str:
    """The prefixes of an entity of so many words; `is_touching` if one of its type ends right before it."""
    if scheme in ("IO", "IOB1"):
        return ("B" if scheme == "IOB1" and is_touching else "I") + "I" * (length - 1)
    if scheme == "BIO":
        return "B" + "I" * (length - 1)
    first, last, single = "BES" if scheme == "BIOES" else "BLU"
    return single if length == 1 else first + "I" * (length - 2) + last


def _check_alike(predictions: Sequence[Tags], references: Sequence[Tags]) -> None:
    if len(predictions) != len(references) or len(references) == 0:
        told = f"got {len(predictions)} and {len(references)}"
        raise DataError(f"predictions and references must be equally many sentences and at least one, {told}")
    for number, (said, true) in enumerate(zip(predictions, references, strict=True)):
        if len(said) != len(true):
            raise DataError(
                f"a sentence needs a tag for each word, got {len(said)} for {len(true)} in sentence {number + 1}"
            )
