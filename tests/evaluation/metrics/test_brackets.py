"""Labeled brackets against PYEVALB, and by the rules of EVALB that it does not have."""

import json
from pathlib import Path

import numpy as np
import pytest

from regard.errors import DataError
from regard.evaluation import find_metric
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.brackets import count_brackets
from regard.evaluation.metrics.classes import f1, precision, recall

ROWS = json.loads(Path(__file__).with_name("brackets.json").read_text(encoding="utf-8"))["rows"]
GOLD = "(S (NP (NNP Ada) (, ,)) (VP (VBD sang) (ADVP (RB well))) (. .))"


def test_the_counts_of_each_sentence_are_those_of_pyevalb():
    found = count_brackets([row["predicted"] for row in ROWS], [row["gold"] for row in ROWS])
    assert found.counts.sum(axis=1).tolist() == [row["counts"] for row in ROWS]


def test_precision_recall_and_f1_follow_from_the_sums():
    right, given, gold = np.sum([row["counts"] for row in ROWS], axis=0)
    found = count_brackets([row["predicted"] for row in ROWS], [row["gold"] for row in ROWS])
    assert found.micro(precision).value == pytest.approx(right / given)
    assert found.micro(recall).value == pytest.approx(right / gold)
    assert found.micro(f1).value == pytest.approx(2 * right / (given + gold))


@pytest.mark.parametrize(
    ("predicted", "counts"),
    [
        (GOLD, (4, 4, 4)),
        # Punctuation may be attached anywhere, and have any tag.
        ("(S (NP (NNP Ada)) (NN ,) (VP (VBD sang) (ADVP (RB well)) (. .)))", (4, 4, 4)),
        ("(TOP (S (NP (NNP Ada)) (NN ,) (VP (VBD sang) (ADVP (RB well)) (. .))))", (4, 4, 4)),
        # ADVP equals PRT, and a bracket around punctuation alone is none.
        ("(S (NP (NNP Ada)) (NP (, ,)) (VP (VBD sang) (PRT (RB well))) (. .))", (4, 4, 4)),
        ("(S (NP (NP (NNP Ada)) (, ,)) (VP (VBD sang) (ADVP (RB well))) (. .))", (4, 5, 4)),
        ("(S (VP (NNP Ada)) (, ,) (VP (VBD sang)) (ADVP (RB well)) (. .))", (2, 4, 4)),
    ],
)
def test_the_rules_of_collins_decide_what_counts(predicted: str, counts: tuple[int, int, int]):
    assert tuple(count_brackets([predicted], [GOLD]).counts.sum(axis=(0, 1))) == counts


def test_a_label_that_occurs_twice_over_the_same_words_counts_twice():
    twice, once = "(S (NP (NP (NN a))) (VB b))", "(S (NP (NN a)) (VB b))"
    assert tuple(count_brackets([twice], [twice]).counts.sum(axis=(0, 1))) == (3, 3, 3)
    assert tuple(count_brackets([once], [twice]).counts.sum(axis=(0, 1))) == (2, 2, 3)


def test_trees_of_other_words_are_an_error():
    with pytest.raises(DataError, match="same words, and those of example 2 differ"):
        count_brackets([GOLD, "(NN a)"], [GOLD, "(NN b)"])


def test_tags_and_whole_trees_are_scored_too():
    examples = Examples(outputs=[GOLD, "(S (NN Ada) (VBD sang))"], targets=[GOLD, "(S (NNP Ada) (VP (VBD sang)))"])
    assert find_metric("tag_accuracy").value(examples) == pytest.approx(6 / 7)
    assert find_metric("exact_trees").value(examples) == 0.5
