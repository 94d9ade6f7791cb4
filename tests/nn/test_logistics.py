"""Mixtures of discretized logistic distributions."""

import math

import pytest
import torch
from torch.distributions import TransformedDistribution, Uniform
from torch.distributions.transforms import AffineTransform, SigmoidTransform

from regard.nn.logistics import mixture_distribution, mixture_log_probs, scale_levels

LEVELS, COMPONENTS = 11, 3


def logistic(mean: float, scale: float) -> TransformedDistribution:
    """The logistic distribution by its inverse transform, as PyTorch documents it."""
    return TransformedDistribution(
        Uniform(torch.zeros(()), torch.ones(())), [SigmoidTransform().inv, AffineTransform(mean, scale)]
    )


@pytest.fixture
def parameters() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weights, means, log_scales = torch.randn(3, 7, COMPONENTS)
    return weights, means, log_scales - 1


def test_the_probabilities_of_all_levels_sum_to_one(parameters):
    found = mixture_distribution(*parameters, LEVELS)
    torch.testing.assert_close(found.exp().sum(dim=-1), torch.ones(7))


def test_a_level_has_the_probability_of_its_interval(parameters):
    """Against the distribution functions of PyTorch's logistic distribution."""
    weights, means, log_scales = (part[0] for part in parameters)
    half, shares = 1 / (LEVELS - 1), weights.softmax(dim=0)
    for level in range(LEVELS):
        x = 2 * level / (LEVELS - 1) - 1
        expected = 0.0
        for share, mean, log_scale in zip(shares.tolist(), means.tolist(), log_scales.tolist(), strict=True):
            cdf = logistic(mean, math.exp(log_scale)).cdf
            low = 0.0 if level == 0 else float(cdf(torch.tensor(x - half)))
            high = 1.0 if level == LEVELS - 1 else float(cdf(torch.tensor(x + half)))
            expected += share * (high - low)
        found = mixture_log_probs(torch.tensor(level), weights, means, log_scales, LEVELS)
        assert float(found.exp()) == pytest.approx(expected)


def test_a_level_far_from_a_narrow_component_has_a_finite_gradient():
    means = torch.tensor([0.99], requires_grad=True)
    found = mixture_log_probs(torch.tensor(3), torch.zeros(1), means, torch.tensor([-7.0]), 256)
    found.backward()
    assert math.isfinite(float(found.detach()))
    assert found < -1_000
    assert means.grad is not None
    assert math.isfinite(float(means.grad))


def test_levels_are_scaled_to_both_ends():
    assert scale_levels(torch.tensor([0, 255]), 256).tolist() == [-1.0, 1.0]
