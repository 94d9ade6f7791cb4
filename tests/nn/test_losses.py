"""Our cross-entropy against PyTorch's, value and gradient."""

import pytest
import torch
import torch.nn.functional as F

from regard.nn.losses import IGNORED, cross_entropy

TOKENS, VOCAB = 13, 7


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_value_and_gradient_are_pytorchs(smoothing: float):
    scores = torch.randn(TOKENS, VOCAB, requires_grad=True)
    targets = torch.randint(VOCAB, (TOKENS,))
    targets[[2, 5]] = IGNORED
    ours = cross_entropy(scores, targets, label_smoothing=smoothing)
    theirs = F.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs)
    (3 * ours).backward()
    (expected,) = torch.autograd.grad(3 * theirs, scores)
    torch.testing.assert_close(scores.grad, expected)
    assert (scores.grad[[2, 5]] == 0).all()


def test_the_gradient_is_that_of_finite_differences():
    scores = torch.randn(TOKENS, VOCAB, requires_grad=True)
    targets = torch.randint(VOCAB, (TOKENS,))
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, targets, label_smoothing=0.2), scores)


def test_half_precision_scores_are_summed_in_single_precision():
    scores = torch.randn(TOKENS, 10_007).bfloat16().requires_grad_()
    targets = torch.randint(10_007, (TOKENS,))
    ours = cross_entropy(scores, targets, label_smoothing=0.1)
    assert ours.dtype == torch.float32
    expected = F.cross_entropy(scores.double(), targets, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=0.0)
    ours.backward()
    assert scores.grad.dtype == torch.bfloat16
