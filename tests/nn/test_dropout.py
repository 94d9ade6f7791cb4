"""Dropout against its definition."""

import pytest
import torch
from scipy.stats import binomtest

from regard.nn.dropout import Dropout, LockedDropout, TokenDropout


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


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_a_locked_mask_is_the_same_at_all_positions_of_a_sequence_and_differs_between_sequences(probability: float):
    dropped = LockedDropout(probability)(torch.ones(211, 7, 503))
    assert (dropped == dropped[:, :1]).all()
    assert len({tuple(row) for row in (dropped[:, 0] == 0).tolist()}) == 211
    zeros = int((dropped[:, 0] == 0).sum())
    assert binomtest(zeros, 211 * 503, probability).pvalue > 1e-4
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.01)


def test_locked_dropout_is_a_product_with_its_mask():
    x, dropout = torch.randn(3, 5, 11, requires_grad=True), LockedDropout(0.4)
    torch.manual_seed(1)
    dropped = dropout(x)
    torch.manual_seed(1)
    torch.testing.assert_close(dropped, x * dropout(torch.ones(3, 5, 11)))
    dropped.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, dropped)


def test_a_dropped_token_is_dropped_at_each_occurrence():
    tokens = torch.randint(17, (13, 23))
    dropped = TokenDropout(0.4)(torch.ones(13, 23, 5), tokens, 17)
    for token in tokens.unique():
        values = dropped[tokens == token].unique()
        assert len(values) == 1
        assert float(values) == pytest.approx(0.0) or float(values) == pytest.approx(1 / 0.6, rel=1e-4)
    assert 0 < (dropped == 0).double().mean() < 1


def test_dropping_tokens_keeps_their_mean():
    tokens = torch.arange(40_000)[None]
    dropped = TokenDropout(0.3)(torch.ones(1, 40_000, 1), tokens, 40_000)
    assert binomtest(int((dropped == 0).sum()), 40_000, 0.3).pvalue > 1e-4
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.02)


def test_no_mask_is_drawn_outside_training_or_without_probability():
    x, tokens = torch.randn(3, 5, 11), torch.randint(7, (3, 5))
    for probability, is_training in ((0.5, False), (0.0, True)):
        assert LockedDropout(probability).train(is_training)(x) is x
        assert TokenDropout(probability).train(is_training)(x, tokens, 7) is x
