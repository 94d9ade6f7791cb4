"""A part of a network in float16: its gradients are those of float32, however small they are."""

import pytest
import torch

from regard.nn.precision import HalfPrecision


def through(x: torch.Tensor, weight: torch.Tensor, *, is_half: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if not is_half:
        return (x @ weight).tanh(), x.square()
    half = HalfPrecision()
    x, weight = half.enter(x, weight)
    made, other = half.leave((x @ weight).tanh(), x.square())
    return made, other


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 5).float().requires_grad_(), torch.randn(5, 4).float().requires_grad_()]


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e6])
@pytest.mark.parametrize("parts", [(0,), (0, 1)])
def test_gradients_are_those_of_float32(inputs, scale: float, parts: tuple[int, ...]):
    found = []
    for is_half in (False, True):
        made = through(*inputs, is_half=is_half)
        loss = sum((scale * made[part].sum() for part in parts), torch.zeros(()))
        found.append([made[0], *torch.autograd.grad(loss, inputs)])
    for theirs, ours in zip(*found, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours / theirs.abs().max(), theirs / theirs.abs().max(), rtol=0.0, atol=2e-3)


def test_gradients_of_zero_stay_zero_and_those_that_are_no_numbers_show(inputs):
    for scale in (0.0, float("nan")):
        made, _ = through(*inputs, is_half=True)
        gradients = torch.autograd.grad((scale * made).sum(), inputs)
        wanted = torch.tensor(scale)
        assert all(
            torch.equal(gradient, wanted.expand_as(gradient)) or gradient.isnan().all() for gradient in gradients
        )
        assert all(bool(gradient.isnan().any()) == bool(wanted.isnan()) for gradient in gradients)


def test_what_asks_for_no_gradient_gets_none(inputs):
    x, weight = inputs
    half = HalfPrecision()
    inner, other = half.enter(x, weight.detach())
    assert inner.dtype == other.dtype == torch.float16
    assert not half.enter(weight.detach())[0].requires_grad
    (made,) = half.leave(inner @ other)
    made.sum().backward()
    assert x.grad is not None
    assert weight.grad is None
