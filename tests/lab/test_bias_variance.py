"""Bias, variance and the best of K functions, against closed forms."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from regard.evaluation.intervals import mean_interval
from regard.lab.bias_variance.risks import (
    FLIPPED,
    FUNCTION_FAMILIES,
    BiasVarianceSizes,
    FunctionSelection,
    RegressionProblem,
    RiskDecomposition,
    decompose_risk,
    feature_learner,
    legendre,
    optimism_exponent,
    optimism_slope,
    polynomial_learner,
    select_function,
    study_bias_variance,
    sum_differs,
)

TINY = BiasVarianceSizes(num_rows=11, degrees=(0, 3), strengths=(1.0, 0.1), feature_rows=7, widths=(3, 13), num_draws=5,
             num_points=17, num_functions=(2, 11), num_examples=(13, 31), num_choices=19,
             hidden_units=(1, 3), network_steps=3)  # fmt: skip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_legendre_polynomials_are_uncorrelated():
    x = (torch.arange(10_000) + 0.5) / 5_000 - 1
    features = legendre(x, 7)
    # The midpoint rule errs by about 1 over the square of the number of points.
    torch.testing.assert_close(features.T @ features / len(x), torch.eye(8), atol=1e-4, rtol=0)


def test_the_mean_has_the_variance_that_one_works_out():
    # A polynomial of degree 0 is the mean of n targets: bias^2 E f^2, variance (E f^2 + s^2) / n.
    problem = RegressionProblem(lambda inputs: inputs[..., 0], 1, 0.5)
    fitted = polynomial_learner(0, strength=1e-12)
    parts = decompose_risk(problem, fitted, 0, num_rows=7, num_draws=200, num_points=211, rng=seeded())
    for measured, expected in (
        (parts.bias, 1 / 3),
        (parts.variance, (1 / 3 + 0.25) / 7),
        (parts.risk, 1 / 3 + (1 / 3 + 0.25) / 7 + 0.25),
    ):
        middle, low, high = mean_interval(measured)
        # Twice the interval of 95 %, which a right measurement leaves once in a thousand times.
        assert abs(middle - expected) < high - low


def test_few_training_sets_do_not_make_variance_look_like_bias():
    problem = RegressionProblem(lambda inputs: inputs[..., 0] ** 2, 1, 0.3)

    def right_on_average(inputs: Any, targets: Any, points: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        truth = problem.truth(points)
        return truth + torch.randn(truth.shape, generator=rng)

    parts = decompose_risk(problem, right_on_average, 2, num_rows=2, num_draws=3, num_points=1009, rng=seeded())
    # Means over 10 x 1009 points, known to some 0.01; that of 3 draws varies by 1/3.
    assert float(parts.bias.mean()) == pytest.approx(0, abs=0.05)
    assert float(parts.variance.mean()) == pytest.approx(1, abs=0.05)
    assert float(parts.risk.mean()) == pytest.approx(1.09, abs=0.05)


def test_a_wrong_sum_is_seen():
    risk = 1 + 0.01 * torch.randn(10)
    right = RiskDecomposition(0, torch.full((10,), 0.4), torch.full((10,), 0.35), 0.25, risk)
    assert not sum_differs(right)
    assert sum_differs(RiskDecomposition(0, right.bias, right.variance, 0.2, risk))


def test_coins_behave_as_functions_that_guess():
    # The same by functions: K rows of guesses beside n labels.
    rng, k, n = seeded(), 11, 13
    errors = torch.rand(4_000, k, n, generator=rng) < 0.5
    guessed = 0.5 - errors.double().mean(dim=2).amin(dim=1)
    drawn = select_function("coins", k, n, num_draws=4_000, rng=rng).optimism
    spread = math.sqrt(float(guessed.var() + drawn.var()) / 4_000)
    assert abs(float(guessed.mean() - drawn.mean())) < 4 * spread


def test_thresholds_are_counted_as_one_counts_them():
    choice = select_function("thresholds", 7, 5, num_draws=1, rng=seeded(3))
    rng = seeded(3)
    x = torch.rand(1, 5, generator=rng, dtype=torch.float64).sort(dim=1).values[0]
    flipped = torch.rand(1, 5, generator=rng, dtype=torch.float64)[0] < FLIPPED
    labels = (x >= 0.5) ^ flipped
    places = [(k + 0.5) / 7 for k in range(7)]
    shares = [float(((x >= place) != labels).double().mean()) for place in places]
    risks = [FLIPPED + (1 - 2 * FLIPPED) * abs(place - 0.5) for place in places]
    best = shares.index(min(shares))
    assert float(choice.optimism) == pytest.approx(risks[best] - shares[best])
    assert float(choice.excess) == pytest.approx(risks[best] - min(risks))
    assert float(choice.deviation) == pytest.approx(max(abs(a - b) for a, b in zip(risks, shares, strict=True)))


@pytest.mark.parametrize("family", FUNCTION_FAMILIES)
def test_the_bounds_hold(family: Any):
    for k, n in ((2, 31), (101, 31), (101, 311)):
        choice = select_function(family, k, n, num_draws=500, rng=seeded())
        assert mean_interval(choice.optimism)[1] <= choice.bound
        # Of 500 draws 5 % are to be left at most; 8 % would be three standard deviations above.
        assert choice.violations <= 0.08


def expected_optimism(num_functions: int, num_examples: int) -> float:
    """Of the best of independent coins, exactly: 1/2 minus the expected smallest of K shares of errors."""
    above = binom.sf(np.arange(num_examples), num_examples, 0.5) ** num_functions
    return 0.5 - float(above.sum()) / num_examples


def is_sharp(bound: Callable[[int, int], float]) -> bool:
    """Whether a bound on the optimism holds, and is near it where K and n are large."""
    holds = all(expected_optimism(k, n) <= bound(k, n) for k in (2, 30, 10**4) for n in (50, 4_000))
    return holds and bound(10**9, 10**6) < 1.1 * expected_optimism(10**9, 10**6)


def test_the_bound_of_the_optimism_is_sharp():
    empty = torch.zeros(1)
    assert is_sharp(lambda k, n: FunctionSelection("coins", k, n, empty, empty, empty).bound)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda k, n: math.sqrt(math.log(k) / n),
        lambda k, n: math.sqrt(math.log(k) / (4 * n)),
        lambda k, n: math.sqrt(2 * math.log(k) / n),
        lambda k, n: math.sqrt(math.log(2 * k) / n),
        lambda k, n: math.log(k) / (2 * n),
        lambda k, n: math.sqrt(math.log2(k) / (2 * n)),
    ],
)
def test_bounds_of_the_optimism_with_other_constants_fail_or_are_not_sharp(wrong: Callable[[int, int], float]):
    assert not is_sharp(wrong)


def test_the_gap_of_coins_goes_with_the_root_of_n():
    choices = [select_function("coins", 1009, n, num_draws=200, rng=seeded(n)) for n in (53, 211, 839)]
    assert optimism_exponent(choices) == pytest.approx(-0.5, abs=0.03)
    assert 0.5 < optimism_slope(choices) < math.sqrt(0.5)


def test_random_features_are_drawn_with_each_training_set():
    problem = RegressionProblem(lambda inputs: inputs[..., 0], 3, 0.0)
    rng = seeded()
    inputs = problem.draw(1, 5, rng=rng).expand(2, -1, -1)
    said = feature_learner(2, bandwidth=1.0, strength=0.1)(inputs, problem.truth(inputs), inputs, rng)
    assert not torch.allclose(said[0], said[1])


@pytest.mark.slow
def test_the_study_is_whole():
    study = study_bias_variance(sizes=TINY)
    assert [len(table.rows) for table in study.tables] == [2, 2, 2, 2, 4, 4]
    row: Any
    for row in study.tables[0].rows:
        _, bias, variance, noise, total, *_ = row
        assert total == pytest.approx(bias + variance + noise)
    assert len(study.figure.axes) == 7
    for table in study.tables[:3]:
        assert table.columns[1] == "bias² (unbiased estimate)"
        assert "can be negative" in table.note
    assert study_bias_variance(sizes=TINY).to_json()["tables"] == study.to_json()["tables"]
    assert study_bias_variance(sizes=TINY, seed=1).to_json()["tables"] != study.to_json()["tables"]
