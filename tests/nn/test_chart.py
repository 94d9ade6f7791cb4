"""Sums and maxima over binary trees, against an enumeration of all of them."""

from collections.abc import Iterator

import pytest
import torch

from regard.nn.chart import IMPOSSIBLE, best_trees, log_partition

SIZE = 7
LENGTHS = torch.tensor([7, 5, 2, 1])


def binary_trees(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """The spans of each binary tree over some words."""
    if first == last:
        yield [(first, last)]
        return
    for split in range(first, last):
        for left in binary_trees(first, split):
            for right in binary_trees(split + 1, last):
                yield [(first, last), *left, *right]


def enumerate_trees(scores: torch.Tensor, length: int) -> tuple[list[list[tuple[int, int]]], torch.Tensor]:
    trees = list(binary_trees(0, length - 1))
    return trees, torch.stack([sum(scores[span] for span in tree) for tree in trees])  # pyright: ignore


@pytest.fixture
def scores() -> torch.Tensor:
    return torch.randn(len(LENGTHS), SIZE, SIZE)


def test_the_number_of_binary_trees_is_catalans():
    assert log_partition(torch.zeros(1, SIZE, SIZE)).exp().item() == pytest.approx(132)


def test_the_log_partition_is_that_of_all_trees(scores: torch.Tensor):
    found = log_partition(scores, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        _, totals = enumerate_trees(scores[row], length)
        torch.testing.assert_close(found[row], totals.logsumexp(0))


def test_the_gradient_of_the_log_partition_are_the_probabilities_of_spans(scores: torch.Tensor):
    scores.requires_grad_()
    log_partition(scores, LENGTHS).sum().backward()
    assert scores.grad is not None
    for row, length in enumerate(LENGTHS.tolist()):
        trees, totals = enumerate_trees(scores[row].detach(), length)
        expected = torch.zeros(SIZE, SIZE)
        for tree, share in zip(trees, totals.softmax(0), strict=True):
            for span in tree:
                expected[span] += share
        torch.testing.assert_close(scores.grad[row], expected)


def test_cky_finds_the_best_of_all_trees(scores: torch.Tensor):
    for row, (found, length) in enumerate(zip(best_trees(scores, LENGTHS), LENGTHS.tolist(), strict=True)):
        trees, totals = enumerate_trees(scores[row], length)
        assert found.spans == trees[int(totals.argmax())]
        assert found.score == pytest.approx(totals.max().item())


def test_an_impossible_span_is_in_no_tree_and_has_no_gradient(scores: torch.Tensor):
    scores[:, 0, 2] = IMPOSSIBLE
    scores.requires_grad_()
    log_partition(scores).sum().backward()
    assert scores.grad is not None
    assert (scores.grad[:, 0, 2] == 0).all()
    assert torch.isfinite(scores.grad).all()
    assert all((0, 2) not in tree.spans for tree in best_trees(scores.detach()))
