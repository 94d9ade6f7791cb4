"""Validity, uniqueness and novelty of lists that are counted by hand."""

import pytest

from regard.evaluation import Examples, find_metric

pytest.importorskip("rdkit")
GENERATED = ["CCO", "OCC", "C1CC", "c1ccccc1", "CCN", "CC(", "CCN"]
"""Five of seven are molecules, three of these are different: two are spelled twice."""


def test_hand_made_lists():
    examples = Examples(outputs=GENERATED, extras={"references": ["NCC", "CCCC"]})
    assert find_metric("validity").value(examples) == pytest.approx(5 / 7)
    assert find_metric("uniqueness").value(examples) == pytest.approx(3 / 5)
    assert find_metric("novelty").value(examples) == pytest.approx(2 / 3)  # CCN is known as NCC


def test_nothing_valid_is_neither_unique_nor_novel():
    examples = Examples(outputs=["C1CC", "("], extras={"references": ["CCO"]})
    assert [find_metric(name).value(examples) for name in ("validity", "uniqueness", "novelty")] == [0.0, 0.0, 0.0]
