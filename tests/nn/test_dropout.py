"""Dropout against its definition."""

import pytest
import torch
from scipy.stats import binomtest

from regard.nn.dropout import Dropout


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_numbers_are_dropped_with_the_probability_and_the_rest_enlarged(probability: float):
    dropped = Dropout(probability)(torch.ones(401, 503))
    zeros = int((dropped == 0).sum())
    assert binomtest(zeros, dropped.numel(), probability).pvalue > 1e-4
    torch.testing.assert_close(dropped[dropped != 0], torch.full((dropped.numel() - zeros,), 1 / (1 - probability)),
                               rtol=1e-4, atol=0.0)  # fmt: skip


def test_neighbours_are_dropped_independently():
    kept = (Dropout(0.5)(torch.ones(1000, 401)) != 0).double() - 0.5
    for distance in (1, 2, 3, 4, 5):
        correlation = 4 * (kept[:, distance:] * kept[:, :-distance]).mean()
        assert abs(correlation) < 5 / 400_000**0.5


def test_the_gradient_passes_where_the_number_did():
    x = torch.randn(7, 11, requires_grad=True)
    dropped = Dropout(0.4)(x)
    dropped.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, dropped)


def test_nothing_is_dropped_outside_training_or_without_probability():
    x = torch.randn(7, 11)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
