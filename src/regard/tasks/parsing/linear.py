"""Trees as sequences of actions, and the constraint under which every sequence is a tree over the input's words.

Vinyals et al., "Grammar as a Foreign Language" (2015), section 2.1. https://arxiv.org/abs/1412.7449
Vaswani et al., "Attention Is All You Need" (2017), section 6.3. https://arxiv.org/abs/1706.03762

The tree (S (NP (NNP Ada)) (VP (VBD sang))) is the sequence

    (S  (NP  NNP  )  (VP  VBD  )  )

of opening brackets with a label, tags, each of which takes the next word, and closing brackets. After any prefix,
`TreeConstraint` allows exactly the actions that can be continued to a tree of all words within the limit: a word where
words are left, a closing bracket where the open one has something inside and the outermost one all words, an opening
bracket where words are left and the limit leaves room for all that it then needs, and the end after the last bracket.

Dimensions: `rows` sequences, `actions` of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.data.codecs.trees import CHAIN, EncodedTree, LabeledSpan, TreeCodec
from regard.data.formats.trees import Constituent, Tree, build_tree

PADDING, START, END, CLOSE = range(4)
_FIRST_LABEL = 4
_ACTIONS_PER_WORD, _MORE_ACTIONS = 6, 16
"""The limit of a sequence: trees of the Penn Treebank have at most 5 actions for each word of ten or more."""


@dataclass(frozen=True)
class Actions:
    """The vocabulary of actions: labels that are opened, and after them the tags of words."""

    labels: tuple[str, ...]
    tags: tuple[str, ...]

    @classmethod
    def of(cls, codec: TreeCodec) -> Self:
        """Those of training trees, whose unary chains are taken apart."""
        labels = dict.fromkeys(label for chain in codec.labels for label in chain.split(CHAIN))
        return cls(tuple(labels), tuple(codec.tags))

    def __len__(self) -> int:
        return self.first_tag + len(self.tags)

    @property
    def first_tag(self) -> int:
        return _FIRST_LABEL + len(self.labels)

    def linearize(self, tree: EncodedTree, chains: Sequence[str]) -> list[int]:
        """The actions of a tree, without start and end; `chains` are the labels of spans by their indices.

        A tag that training did not see is the most frequent one.
        """
        found: list[int] = []
        ends: list[int] = []
        rest = list(reversed(tree.spans))
        for place, tag in enumerate(tree.tags):
            while rest and rest[-1].start == place:
                span = rest.pop()
                opened = chains[span.label].split(CHAIN)
                found += [_FIRST_LABEL + self.labels.index(label) for label in opened]
                ends += [span.end] * len(opened)
            found.append(self.first_tag + (tag if tag < len(self.tags) else 0))
            while ends and ends[-1] == place + 1:
                ends.pop()
                found.append(CLOSE)
        return found

    def tree(self, actions: Sequence[int], words: Sequence[str]) -> Tree:
        """The tree of a complete sequence of actions over these words."""
        constituents: list[Constituent] = []
        open_ones: list[int] = []
        leaves: list[Tree] = []
        for action in actions:
            if action == CLOSE:
                number = open_ones.pop()
                constituents[number] = constituents[number]._replace(end=len(leaves))
            elif action < self.first_tag:
                open_ones.append(len(constituents))
                constituents.append(Constituent(self.labels[action - _FIRST_LABEL], len(leaves), -1))
            else:
                leaves.append(Tree(self.tags[action - self.first_tag], word=words[len(leaves)]))
        return build_tree(constituents, leaves)


def action_limit(num_words: int) -> int:
    """The most actions of a tree over so many words, its end included."""
    return _ACTIONS_PER_WORD * num_words + _MORE_ACTIONS


@dataclass(frozen=True)
class TreeConstraint:
    """What remains of each tree: a `regard.generation.Constraint`."""

    num_words: Int[Tensor, " rows"]
    """Words that have no tag yet."""
    depth: Int[Tensor, " rows"]
    """Open brackets."""
    num_left: Int[Tensor, " rows"]
    """Actions up to the limit."""
    is_new: Bool[Tensor, " rows"]
    """Whether the newest bracket has nothing inside."""
    is_begun: Bool[Tensor, " rows"]
    kinds: Int[Tensor, " actions"]
    """1 for a closing bracket, 2 for an opening one, 3 for a tag, 4 for the end, 0 for what is never generated."""

    @classmethod
    def initial(cls, num_words: Int[Tensor, " rows"], actions: Actions) -> Self:
        """Before the first action of trees over so many words."""
        kinds = torch.full((len(actions),), 2, device=num_words.device)
        kinds[[PADDING, START]], kinds[END], kinds[CLOSE], kinds[actions.first_tag :] = 0, 4, 1, 3
        limits = torch.tensor([action_limit(count) for count in num_words.tolist()], device=num_words.device)
        no = torch.zeros_like(num_words, dtype=torch.bool)
        return cls(num_words, torch.zeros_like(num_words), limits, no, no, kinds)

    def allowed(self) -> Bool[Tensor, "rows actions"]:
        """Which actions may come next in each row."""
        has_words, is_open = self.num_words > 0, self.depth > 0
        is_complete = self.is_begun & ~is_open
        # After an opening bracket there is room for all words, for all closing brackets and for the end.
        has_room = self.num_left - 1 >= self.num_words + self.depth + 2
        by_kind = torch.stack(
            [
                torch.zeros_like(has_words),
                is_open & ~self.is_new & ((self.depth > 1) | ~has_words),
                has_words & has_room & (is_open | ~self.is_begun),
                has_words & (is_open | (~self.is_begun & (self.num_words == 1))),
                is_complete,
            ],
            dim=1,
        )
        return by_kind[:, self.kinds]

    def advance(self, tokens: Int[Tensor, " rows"]) -> Self:
        """After the action that was chosen in each row."""
        kind = self.kinds[tokens]
        is_label = kind == 2
        return type(self)(
            num_words=self.num_words - (kind == 3).long(),
            depth=self.depth + is_label.long() - (kind == 1).long(),
            num_left=self.num_left - 1,
            is_new=is_label,
            is_begun=torch.ones_like(self.is_begun),
            kinds=self.kinds,
        )

    def select(self, rows: Int[Tensor, " chosen"]) -> Self:
        """The state of these rows, in this order; a row may occur twice."""
        parts = {each.name: getattr(self, each.name) for each in fields(self)}
        return type(self)(**{name: part if name == "kinds" else part[rows] for name, part in parts.items()})


def empty_tree(num_words: int) -> EncodedTree:
    """A placeholder for the tree of an input."""
    return EncodedTree([0] * num_words, [LabeledSpan(0, num_words, 1)])
