"""Random features, their kernels and least squares, against references."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad
from scipy.spatial.distance import cdist

from regard.lab.random_features import (
    draw_random_features,
    limit_kernel,
    median_interval,
    min_norm_least_squares,
    ridge_regression,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_fourier_kernel_is_gaussian_with_one_half_in_the_exponent():
    left, right, bandwidth = torch.randn(3, 5), torch.randn(2, 5), 1.3
    # exp(-|u|^2 / 2) with u = bandwidth (x - x') / sqrt(5).
    expected = np.exp(-cdist(left.numpy(), right.numpy(), "sqeuclidean") * bandwidth**2 / 5 / 2)
    found = limit_kernel("fourier", left, right, bandwidth=bandwidth)
    torch.testing.assert_close(found, torch.from_numpy(expected))
    assert float(found.min()) < 0.5  # far enough apart for the factor to matter


def test_the_relu_kernel_is_the_mean_product_of_two_half_planes():
    # E max(0, w.x) max(0, w.y) for standard normal w in the plane of x and y, by numerical integration.
    left, right, bandwidth = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 1.1]]), 1.3
    (x, y) = (bandwidth / math.sqrt(2) * vector[0].numpy() for vector in (left, right))

    def integrand(b: float, a: float) -> float:
        density = math.exp(-(a * a + b * b) / 2) / (2 * math.pi)
        return max(0.0, a * x[0] + b * x[1]) * max(0.0, a * y[0] + b * y[1]) * density

    # The integrand vanishes for a < 0, and for b below the line that is normal to y.
    expected = dblquad(integrand, 0.0, 9.0, lambda a: -a * y[0] / y[1], 9.0)[0]
    found = float(limit_kernel("relu", left, right, bandwidth=bandwidth))
    assert found == pytest.approx(expected, rel=1e-6)


def test_fourier_and_relu_features_tend_to_their_kernels():
    left, right = torch.randn(3, 5), torch.randn(2, 5)
    for kind in ("fourier", "relu"):
        features = draw_random_features(kind, 5, 400_000, bandwidth=1.3, rng=seeded())
        expected = limit_kernel(kind, left, right, bandwidth=1.3)
        # The mean of 400,000 products of size 1 is known to some 0.002.
        torch.testing.assert_close(features(left) @ features(right).T, expected, atol=0.01, rtol=0)


def test_the_first_features_are_those_of_a_narrower_model():
    features = draw_random_features("fourier", 5, 11, bandwidth=1.0, rng=seeded())
    x = torch.randn(3, 5)
    torch.testing.assert_close(features(x, 7), features(x)[:, :7] * math.sqrt(11 / 7))


@pytest.mark.parametrize("width", [5, 7, 13])
def test_ridgeless_is_the_pseudoinverse_and_the_limit_of_ridge(width: int):
    features, targets = torch.randn(7, width), torch.randn(7, 2)
    expected = torch.linalg.pinv(features) @ targets
    torch.testing.assert_close(min_norm_least_squares(features, targets), expected)
    # Ridge differs by its strength over the square of the smallest singular value.
    torch.testing.assert_close(ridge_regression(features, targets, strength=1e-10), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [5, 13])
def test_both_forms_of_ridge_are_where_the_slope_is_nothing(width: int):
    features, targets = torch.randn(3, 7, width), torch.randn(3, 7, 2)
    weights = ridge_regression(features, targets, strength=0.3)
    slope_there = features.mT @ (features @ weights - targets) / 7 + 0.3 * weights
    torch.testing.assert_close(slope_there, torch.zeros_like(weights))


def test_intervals_of_the_median_cover_as_often_as_they_say():
    draws = torch.randn(1000, 10, generator=seeded()).exp()
    covered = sum(low <= 1 <= high for _, low, high in map(median_interval, draws))
    assert covered >= 950
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
