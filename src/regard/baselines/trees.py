"""Trees by counts: how often a span between such tags is a constituent, and the best tree by CKY.

The score of a span is the logarithm of the odds of its most probable label against none.

The words have their most frequent tags. The label of a span depends on its first and last tag, and on those before and
after it; where such a span was rarely seen, more on its first and last tag alone. Klein and Manning, "A Generative
Constituent-Context Model for Improved Grammar Induction" (2002), count the same contexts.
https://aclanthology.org/P02-1017

Dimensions: `words` of a sentence, `labels` of spans.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float

from regard.baselines.baseline import Baseline, BaselinePredictions, limit_rows
from regard.baselines.tags import FrequentTags
from regard.data.codecs.trees import NO_LABEL, EncodedTree, LabeledSpan, TreeCodec
from regard.data.formats.trees import Tree
from regard.nn.chart import best_trees

_MOST_TREES, _LONGEST = 5_000, 60
"""Training trees, and the longest span that is counted or may have a label, except for a whole sentence."""
_PRIOR = 5.0
"""How many spans of the same context weigh as much as all with the same first and last tag."""
_LEAST = 1e-9
_BOUNDARY = "-"
"""The tag before the first word and after the last."""

_Key = tuple[str, ...]


def fit_span_counts(trees: Sequence[Tree]) -> Baseline:
    """The tree whose spans have the highest odds of a label by counts; inputs are words separated by spaces."""
    kept = limit_rows(trees, _MOST_TREES)
    parser = SpanCounts(kept)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        return BaselinePredictions([str(parser(text.split())) for text in inputs])

    return Baseline("counts of spans by their tags", predict, len(kept), "sentences")


class SpanCounts:
    """The counts of the labels of spans in training trees, by the tags at their ends."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._codec = TreeCodec.fit(trees)
        leaves = [tree.leaves() for tree in trees]
        self._tagger = FrequentTags(
            [([leaf.word or "" for leaf in some], [leaf.label for leaf in some]) for some in leaves]
        )
        self._counts: dict[_Key, Counter[int]] = defaultdict(Counter)
        for tree, some in zip(trees, leaves, strict=True):
            labels = {(start, end): label for start, end, label in self._codec.encode_tree(tree).spans}
            for start, end, keys in _contexts([leaf.label for leaf in some]):
                for key in keys:
                    self._counts[key][labels.get((start, end), NO_LABEL)] += 1

    def __call__(self, words: Sequence[str]) -> Tree:
        """The best tree of a sentence."""
        tags = self._tagger(words)
        known = {tag: number for number, tag in enumerate(self._codec.tags)}
        size = len(words)
        scores = np.zeros((size, size))
        labels = np.zeros((size, size), np.int64)
        for start, end, keys in _contexts(tags):
            shares = self._shares(keys)
            if size > 1 and (start, end) == (0, size):
                shares[NO_LABEL] = 0.0
            labels[start, end - 1] = shares.argmax()
            scores[start, end - 1] = np.log(shares.max() / max(shares[NO_LABEL], _LEAST))
        (best,) = best_trees(torch.from_numpy(scores)[None])
        spans = [LabeledSpan(start, end + 1, int(labels[start, end])) for start, end in best.spans]
        return self._codec.decode_tree(EncodedTree([known[tag] for tag in tags], spans), words)

    def _shares(self, keys: Sequence[_Key]) -> Float[np.ndarray, " labels"]:
        """The probability of each label, from the shortest context to the longest."""
        shares = np.full(self._codec.num_labels, 1e-6)
        for key in reversed(keys):
            counts = self._counts.get(key, Counter())
            found = _PRIOR * shares
            for label, count in counts.items():
                found[label] += count
            shares = found / found.sum()
        return shares


def _contexts(tags: Sequence[str]) -> Iterator[tuple[int, int, list[_Key]]]:
    """Each span, and what its label is counted by: the longest context first."""
    padded = [_BOUNDARY, *tags, _BOUNDARY]
    size = len(tags)
    for start in range(size):
        for end in range(start + 1, size + 1):
            if end - start > _LONGEST and end - start < size:
                continue
            width = "1" if end - start == 1 else "2"
            inside = (width, padded[start + 1], padded[end])
            yield start, end, [(*inside, padded[start], padded[end + 1]), inside]
