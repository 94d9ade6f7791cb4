"""The optimizers and their state."""

from typing import Any

import pytest
import torch
from torch import nn

from regard.training.optimizers import OPTIMIZER_TRAITS, make_optimizer, optimizer_tensors, restore_optimizer


def build(name, *, weight_decay: float = 0.1) -> tuple[nn.Linear, Any]:
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


STATE = {
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "nesterov": ("momentum_buffer",),
    "adagrad": ("step", "sum"),
    "rmsprop": ("step", "square_avg"),
}
REFERENCES = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.01),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01, eps=1e-9),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, alpha=0.98, eps=1e-9),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_each_optimizer_is_that_of_torch(name):
    model, optimizer = build(name)
    other, _ = build(name)
    decay = 0.1 if name in ("sgd", "momentum", "nesterov") else 0.0
    reference = REFERENCES[name]([{"params": [other.weight], "weight_decay": decay}, {"params": [other.bias]}])
    for seed in range(5):
        step(model, optimizer, seed)
        step(other, reference, seed)
    torch.testing.assert_close(model.weight, other.weight)
    torch.testing.assert_close(model.bias, other.bias)
    assert not torch.equal(model.bias, build(name)[0].bias)


def test_traits_name_the_settings_that_change_an_update():
    given = {"beta1": 0.5, "beta2": 0.6, "epsilon": 0.1, "weight_decay": 0.3}

    def updated(name, beta1=0.9, beta2=0.98, epsilon=1e-9, weight_decay=0.0) -> torch.Tensor:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        betas = (beta1, beta2)
        optimizer = make_optimizer(name, model, betas=betas, epsilon=epsilon, weight_decay=weight_decay)
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        for seed in range(3):
            torch.manual_seed(seed)
            model(torch.randn(7, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    for name, traits in OPTIMIZER_TRAITS.items():
        changed = {key for key, value in given.items() if not torch.equal(updated(name), updated(name, **{key: value}))}
        assert changed == traits.settings, name


@pytest.mark.parametrize("name", STATE)
def test_the_state_is_restored(name):
    model, optimizer = build(name)
    step(model, optimizer, 1)
    tensors = {key: value.clone() for key, value in optimizer_tensors(optimizer, model).items()}
    assert set(tensors) == {f"{p}/{k}" for p in ("weight", "bias") for k in STATE[name]}
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
