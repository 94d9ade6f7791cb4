"""Constituency trees to tags of words and labeled spans, and back.

Constituents with the same words, a unary chain such as S over VP, are one span whose label is all of theirs.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

from regard.data.codecs.codec import Codec, checked_codec
from regard.data.codecs.labels import format_frequencies
from regard.data.formats.messages import format_count
from regard.data.formats.trees import Constituent, Tree, build_tree, constituents_of, parse_tree
from regard.errors import DataError
from regard.files import load_json

NO_LABEL = 0
"""The index of the label of a span that is no constituent, and only part of a binary tree."""
CHAIN = " "
"""Between the labels of a unary chain, none of which has a space."""


class LabeledSpan(NamedTuple):
    """A span of words, `start` to `end - 1`, and the index of its label."""

    start: int
    end: int
    label: int


class EncodedTree(NamedTuple):
    """The tags of the words of a tree, and its spans, each before those inside it."""

    tags: list[int]
    """`len(codec.tags)` for a tag that training did not see."""
    spans: list[LabeledSpan]


@dataclass(frozen=True)
class TreeCodec(Codec):
    """The tags of words and the labels of spans in training trees, each with its count, most frequent first."""

    tags: dict[str, int]
    labels: dict[str, int]
    """Labels of spans, from index 1: those of unary chains are joined by a space."""

    @classmethod
    def fit(cls, trees: Iterable[Tree]) -> Self:
        """Collect tags and labels."""
        tags: Counter[str] = Counter()
        labels: Counter[str] = Counter()
        for tree in trees:
            tags.update(leaf.label for leaf in tree.leaves())
            labels.update(each.label for each in collapse_chains(constituents_of(tree)))
        if not labels:
            raise DataError("a parser needs trees with constituents, and all of these have a single word")
        return cls(*(dict(sorted(some.items(), key=lambda item: (-item[1], item[0]))) for some in (tags, labels)))

    @property
    def num_labels(self) -> int:
        """With that of a span that is no constituent."""
        return 1 + len(self.labels)

    def encode_tree(self, tree: Tree, num_words: int | None = None) -> EncodedTree:
        """The tags and the spans of a tree, as far as they are among the first `num_words` words.

        A chain that training did not see is encoded as its topmost label, or as the most frequent one.
        """
        indices, known = {tag: index for index, tag in enumerate(self.tags)}, self._label_indices()
        leaves = tree.leaves()[:num_words]
        cut = [each._replace(end=min(each.end, len(leaves))) for each in constituents_of(tree)]
        spans = [
            LabeledSpan(each.start, each.end, known.get(each.label) or known.get(each.label.split(CHAIN)[0]) or 1)
            for each in collapse_chains([each for each in cut if each.start < each.end])
        ]
        return EncodedTree([indices.get(leaf.label, len(self.tags)) for leaf in leaves], spans)

    def decode_tree(self, encoded: EncodedTree, words: Sequence[str]) -> Tree:
        """The tree over these words; spans without a label are left out."""
        tags, labels = list(self.tags), ["", *self.labels]
        constituents = [
            Constituent(label, span.start, span.end)
            for span in encoded.spans
            if span.label != NO_LABEL
            for label in labels[span.label].split(CHAIN)
        ]
        leaves = [Tree(tags[tag], word=word) for tag, word in zip(encoded.tags, words, strict=True)]
        return build_tree(constituents, leaves)

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        """The labels of the spans of each tree in brackets."""
        return [[span.label for span in self.encode_tree(parse_tree(value)).spans] for value in values]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        """The labels of some spans."""
        labels = ["", *self.labels]
        return [[labels[index] for index in some] for some in ids]

    def describe(self) -> str:
        """One line for the log."""
        kinds = f"{format_count(len(self.tags), 'tag')}, {format_count(len(self.labels), 'label')} of spans"
        return f"{kinds}: {format_frequencies(self.labels)}"

    def to_json(self) -> str:
        return json.dumps({"tags": self.tags, "labels": self.labels}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = load_json(text)
        return checked_codec(cls, values)

    def _label_indices(self) -> dict[str, int]:
        return {label: index for index, label in enumerate(self.labels, 1)}


def collapse_chains(constituents: Iterable[Constituent]) -> list[Constituent]:
    """Constituents with the same words as one.

    Example:
        >>> [tuple(each) for each in collapse_chains([Constituent("S", 0, 2), Constituent("VP", 0, 2)])]
        [('S VP', 0, 2)]
    """
    chains = groupby(constituents, key=lambda each: (each.start, each.end))
    return [Constituent(CHAIN.join(each.label for each in chain), *span) for span, chain in chains]
