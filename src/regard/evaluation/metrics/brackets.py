"""Labeled brackets of constituency trees: precision, recall and F1, as EVALB counts them.

Black et al., "A Procedure for Quantitatively Comparing the Syntactic Coverage of English Grammars" (1991).
https://aclanthology.org/H91-1060
Collins, "Three Generative, Lexicalised Models for Statistical Parsing" (1997), section 4, and the parameter file
COLLINS.prm of EVALB: words whose tag is punctuation do not count, an outer `TOP` is no bracket, and `ADVP` is
`PRT`.
https://nlp.cs.nyu.edu/evalb

Which words are punctuation is decided by the tags of the reference, for both trees: a parser that predicts another tag
for a comma is scored on the same words. A bracket with punctuation alone does not count. A label that occurs twice over
the same words, as NP over NP, counts twice.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from regard.data.formats.trees import Constituent, Tree, constituents_of, parse_tree
from regard.errors import DataError
from regard.evaluation.counts import Counts, check_equal_lengths, count_right, ratio
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import LabelCounts, f1, precision, recall
from regard.evaluation.registry import PAIRS, Metric, on_pairs

PUNCTUATION = frozenset({",", ":", "``", "''", ".", "-NONE-"})
"""Tags of words that do not count."""
_UNCOUNTED = frozenset({"TOP", "ROOT", "S1", ""})
_SAME = {"PRT": "ADVP"}


def brackets_of(tree: Tree, is_counted: Sequence[bool]) -> Counter[Constituent]:
    """The brackets that count, by the words that do, and how often each occurs.

    Example:
        >>> tree = parse_tree("(S (NP (NNP Ada) (, ,)) (VP (VBD sang)) (. .))")
        >>> sorted(tuple(each) for each in brackets_of(tree, [True, False, True, False]))
        [('NP', 0, 1), ('S', 0, 2), ('VP', 1, 2)]
    """
    before = np.concatenate([[0], np.cumsum(is_counted)]).tolist()
    found = (
        Constituent(_SAME.get(each.label, each.label), before[each.start], before[each.end])
        for each in constituents_of(tree)
        if each.label not in _UNCOUNTED
    )
    return Counter(each for each in found if each.start < each.end)


def count_brackets(
    predictions: Sequence[str], references: Sequence[str], *, uncounted: frozenset[str] = PUNCTUATION
) -> LabelCounts:
    """For each sentence and label the number of correct, predicted and actual brackets.

    Args:
        predictions: The predicted trees, in brackets.
        references: The actual trees of the same words.
        uncounted: The tags of words that do not count.

    Raises:
        DataError: If predictions and references differ in sentences or words.

    Example:
        >>> counts = count_brackets(["(S (NP (DT a) (NN b)) (NN c))"], ["(S (DT a) (NP (NN b) (NN c)))"])
        >>> float(counts.micro(f1).value)
        0.5
    """
    check_equal_lengths(predictions, references)
    found: list[tuple[Counter[Constituent], Counter[Constituent]]] = []
    for row, (predicted, actual) in enumerate(zip(predictions, references, strict=True), 1):
        tree, gold = parse_tree(predicted), parse_tree(actual)
        leaves = gold.leaves()
        if [leaf.word for leaf in tree.leaves()] != [leaf.word for leaf in leaves]:
            raise DataError(f"trees must have the same words, and those of example {row:,} differ")
        is_counted = [leaf.label not in uncounted for leaf in leaves]
        found.append((brackets_of(tree, is_counted), brackets_of(gold, is_counted)))
    labels = tuple(sorted({each.label for both in found for some in both for each in some}))
    index = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(found), len(labels), 3), np.int32)
    for row, (given, gold) in enumerate(found):
        for column, brackets in enumerate((given & gold, given, gold)):
            for bracket, number in brackets.items():
                counts[row, index[bracket.label], column] += number
    return LabelCounts(labels=labels, counts=counts, settings={"rule": "collins"})


@lru_cache(maxsize=1)  # three metrics of a set of examples share one reading of its trees
def bracket_counts(examples: Examples) -> LabelCounts:
    """The counts of examples whose outputs and targets are trees."""
    return count_brackets(*examples.require(*PAIRS))


def count_tag_accuracy(outputs: Sequence[str], targets: Sequence[str]) -> Counts:
    """Words whose tag is right, of all words, punctuation included."""
    check_equal_lengths(outputs, targets)
    rows = []
    for output, target in zip(outputs, targets, strict=True):
        pairs = list(zip(parse_tree(output).leaves(), parse_tree(target).leaves(), strict=True))
        rows.append((sum(one.label == other.label for one, other in pairs), len(pairs)))
    return Counts(statistics=np.array(rows, np.int64), compute=ratio)


def count_exact_trees(outputs: Sequence[str], targets: Sequence[str]) -> Counts:
    """Sentences of which all brackets are right."""
    found = count_brackets(outputs, targets).counts.sum(axis=1)
    return count_right(((found[:, 0] == found[:, 1]) & (found[:, 0] == found[:, 2])).tolist(), {"rule": "collins"})


BRACKET_PRECISION = Metric(
    name="bracket_precision", label="Bracket precision", counter=lambda each: bracket_counts(each).micro(precision)
)
BRACKET_RECALL = Metric(
    name="bracket_recall", label="Bracket recall", counter=lambda each: bracket_counts(each).micro(recall)
)
BRACKET_F1 = Metric(
    name="bracket_f1",
    label="Bracket F1",
    counter=lambda each: bracket_counts(each).micro(f1),
    certified_by="exact_trees",
)
TAG_ACCURACY = Metric(name="tag_accuracy", label="Tag accuracy", counter=on_pairs(count_tag_accuracy))
EXACT_TREES = Metric(name="exact_trees", label="Exact trees", counter=on_pairs(count_exact_trees))
