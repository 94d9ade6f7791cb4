"""The optimizers and their state."""

import pytest
import torch
from torch import nn

from regard.training.optimizers import make_optimizer, optimizer_tensors, restore_optimizer


def build(name, *, weight_decay: float = 0.1) -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Linear(3, 5)
    with torch.no_grad():
        model.bias.copy_(torch.randn(5))
    optimizer = make_optimizer(name, model, betas=(0.9, 0.98), epsilon=1e-9, weight_decay=weight_decay)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    return model, optimizer


def step(model: nn.Linear, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    model(torch.randn(7, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_state_is_restored(name):
    model, optimizer = build(name)
    step(model, optimizer, 1)
    tensors = {key: value.clone() for key, value in optimizer_tensors(optimizer, model).items()}
    assert set(tensors) == {f"{p}/{k}" for p in ("weight", "bias") for k in ("step", "exp_avg", "exp_avg_sq")}
    other, fresh = build(name)
    other.load_state_dict(model.state_dict())
    restore_optimizer(fresh, other, tensors)
    for each in (2, 3):
        step(model, optimizer, each)
        step(other, fresh, each)
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(model.bias, other.bias)


def test_weight_decay_applies_to_matrices_only_and_adam_has_none():
    for name, decay, factor in (("adamw", 0.5, 1 - 0.01 * 0.5), ("adam", 0.5, 1.0)):
        model, optimizer = build(name, weight_decay=decay)
        weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        torch.testing.assert_close(model.weight.detach(), weight * factor)
        assert torch.equal(model.bias, bias)
