"""The formulas of adaptive optimizers against PyTorch's, and the comparison on tiny problems."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from regard.lab.optimizers.comparison import (
    OPTIMIZERS,
    MatrixQuadratic,
    OptimizerSizes,
    TrainingProblem,
    final_loss,
    optimize,
    study_optimizers,
    training_problems,
    tune_optimizer,
)
from regard.lab.optimizers.formulas import adagrad_step, adam_step, rmsprop_step, update_sizes, zero_moments

TINY = OptimizerSizes(rates=(1e-3, 1e-2, 1e-1), num_seeds=2, side=3, condition=10.0, quadratic_steps=12, steps=4,
             length=5,
             batch_size=2, vocab_size=5, model_dim=4, num_layers=1)  # fmt: skip


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ours(name: str, weight: torch.Tensor, gradients: torch.Tensor, **settings: Any) -> torch.Tensor:
    """The weights after a step with each gradient, by our formulas."""
    moments = zero_moments(weight)
    for step, gradient in enumerate(gradients, start=1):
        match name:
            case "adagrad":
                weight, moments = adagrad_step(weight, gradient, moments, **settings)
            case "rmsprop":
                weight, moments = rmsprop_step(weight, gradient, moments, **settings)
            case _:
                weight, moments = adam_step(weight, gradient, moments, step=step, **settings)
    return weight


def theirs(kind: Any, weight: torch.Tensor, gradients: torch.Tensor, **settings: Any) -> torch.Tensor:
    """The same by an optimizer of PyTorch."""
    parameter = nn.Parameter(weight.clone())
    optimizer = kind([parameter], **settings)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize(
    ("name", "kind", "our_settings", "their_settings"),
    [
        ("adagrad", torch.optim.Adagrad, {"rate": 0.3}, {"lr": 0.3}),
        ("rmsprop", torch.optim.RMSprop, {"rate": 0.03, "decay": 0.9}, {"lr": 0.03, "alpha": 0.9}),
        ("adam", torch.optim.Adam, {"rate": 0.1}, {"lr": 0.1}),
        (
            "adam",
            torch.optim.Adam,
            {"rate": 0.1, "betas": (0.7, 0.8), "epsilon": 0.1},
            {"lr": 0.1, "betas": (0.7, 0.8), "eps": 0.1},
        ),
    ],
)
def test_the_formulas_are_those_of_torch(name: str, kind: Any, our_settings: Any, their_settings: Any):
    weight, gradients = torch.randn(3, 5), torch.randn(17, 3, 5)
    expected = theirs(kind, weight, gradients, **their_settings)
    torch.testing.assert_close(ours(name, weight, gradients, **our_settings), expected)


def test_bias_correction_is_what_makes_the_first_step_as_long_as_the_rate():
    sizes = update_sizes(num_steps=50)
    steps = torch.arange(1.0, 51)
    torch.testing.assert_close(torch.tensor(sizes["Adam"]), torch.ones(50))
    expected = (1 - 0.9**steps) / (1 - 0.999**steps).sqrt()
    torch.testing.assert_close(torch.tensor(sizes["Adam, not corrected"]), expected, rtol=1e-5, atol=0)  # epsilon
    torch.testing.assert_close(torch.tensor(sizes["AdaGrad"]), steps.rsqrt())
    torch.testing.assert_close(torch.tensor(sizes["RMSProp"]), (1 - 0.99**steps).rsqrt(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("is_rotated", [False, True])
def test_a_quadratic_has_the_curvatures_asked_for_and_starts_at_one(is_rotated: bool):
    quadratic = MatrixQuadratic(3, 100.0, is_rotated=is_rotated, rng=rng())
    eigenvalues = torch.linalg.eigvalsh(quadratic.hessian)
    torch.testing.assert_close(eigenvalues, torch.logspace(-2, 0, 9))
    assert quadratic().item() == pytest.approx(1.0)
    assert torch.equal(quadratic.hessian, quadratic.hessian.diag().diag()) != is_rotated
    with torch.no_grad():
        quadratic.weight.copy_(quadratic.minimum.view(3, 3))
    assert quadratic().item() == 0.0


def test_plain_descent_does_not_care_how_a_quadratic_is_turned():
    along, turned, _ = training_problems(TINY)
    for name in ("SGD", "momentum"):
        torch.testing.assert_close(*(torch.tensor(optimize(name, task, 0.5, seed=3)) for task in (along, turned)),
                                   rtol=1e-9, atol=1e-9)  # fmt: skip


def test_rates_of_their_own_help_along_the_axes_more_than_turned():
    sizes = OptimizerSizes(rates=(0.1,), num_seeds=2, side=5, condition=1000.0, quadratic_steps=150, steps=1)
    along, turned, _ = training_problems(sizes)
    for name in ("AdaGrad", "Adam"):
        rate = {"AdaGrad": 1.0, "Adam": 0.3}[name]
        assert final_loss(optimize(name, along, rate, seed=0)) < 0.2 * final_loss(optimize(name, turned, rate, seed=0))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_a_quadratic(name: str):
    along, _, _ = training_problems(
        OptimizerSizes(rates=(0.1,), num_seeds=2, side=3, condition=10.0, quadratic_steps=150, steps=1)
    )
    losses = optimize(name, along, 0.1, seed=0)
    assert losses[0] == pytest.approx(1.0)
    assert final_loss(losses) < 0.05


def test_the_rate_that_ends_lowest_is_the_one_that_is_run():
    along, _, _ = training_problems(TINY)
    found = tune_optimizer("SGD", along, TINY, seed=0)
    assert found.rate == min(found.tried, key=lambda rate: found.tried[rate]) == 0.1
    assert found.is_at_edge
    assert found.losses.shape == (2, 12)
    assert found.losses[0].tolist() == optimize("SGD", along, 0.1, seed=1)


def test_a_diverged_run_is_stopped():
    bowl = TrainingProblem("bowl", training_problems(TINY)[0].make, lambda model: model(), 40, 1.0)
    losses = optimize("SGD", bowl, 10.0, seed=0)
    assert len(losses) == 40
    assert losses[-1] == 100.0
    assert all(map(math.isfinite, losses))


@pytest.mark.slow
def test_the_study_is_whole():
    study = study_optimizers(sizes=TINY)
    assert [table.name for table in study.tables] == ["axis-aligned quadratic", "rotated quadratic", "Transformer"]
    for table in study.tables:
        assert [row[0] for row in table.rows] == list(OPTIMIZERS)
    assert len(study.figure.axes) == 5
    assert study_optimizers(sizes=TINY).findings == study.findings
