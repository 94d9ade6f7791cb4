"""Gradient descent, its curvature and its noise, against what can be worked out."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from regard.lab.descent.noise import (
    NARROW,
    compare_batch_sizes,
    example_gradients,
    measure_noise_floor,
    noise_curvature,
    noise_floor,
    step_noise,
)
from regard.lab.descent.rates import (
    DescentProblem,
    best_heavy_ball,
    descend_quadratic,
    escape_saddle,
    predicted_delay,
    predicted_steps,
    quadratic_changes,
    rise_crossing,
    steps_until,
    switch_rates,
    take_single_step,
    tanh_regression,
    transformer_copy,
)
from regard.lab.descent.report import DescentSizes, study_descent
from regard.lab.hessian import flat_gradient, flat_weights, hessian_product, set_flat_weights, top_curvature
from regard.lab.networks import BinaryExamples, draw_examples, draw_networks, logistic_losses

TINY = DescentSizes(num_seeds=2, multiples=(0.5, 1.5), slow_steps=5, fast_steps=7, num_rows=11, num_inputs=3, width=5,
             num_layers=2, sequence_length=5, model_dim=4, rates=(0.1, 0.2), tracked_steps=6, every=3,
             conditions=(3.0, 10.0), fraction=1e-2, scales=(1e-1, 1e-2), floor_rates=(0.3, 1.0), floor_batches=(1, 2),
             floor_runs=50, noise_multiples=(0.1,), num_draws=5, batch_sizes=(2, 512), wide_batch_sizes=(3, 128),
             batch_steps=4, batch_runs=2)  # fmt: skip


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(num_layers: int = 1) -> DescentProblem:
    return tanh_regression(num_rows=13, num_inputs=3, width=5, num_layers=num_layers, rng=rng())


def exact_hessian(problem: DescentProblem) -> torch.Tensor:
    """All second derivatives, row by row."""
    gradient = flat_gradient(problem.loss(), problem.parameters, create_graph=True)
    rows = [flat_gradient(entry, problem.parameters, create_graph=True).detach() for entry in gradient]
    return torch.stack(rows)


class Bowl(nn.Module):
    """Half a quadratic form of one row of weights."""

    def __init__(self, hessian: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(len(hessian)))
        self.hessian = hessian

    def forward(self) -> torch.Tensor:
        return 0.5 * self.weight @ self.hessian @ self.weight


def bowl(*eigenvalues: float) -> DescentProblem:
    """A quadratic with these curvatures along random directions."""
    turned = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues))).Q
    model = Bowl(turned @ torch.tensor(eigenvalues).diag() @ turned.T)
    return DescentProblem("bowl", model, lambda model: model()[None])


def test_a_product_with_the_hessian_is_that_of_all_second_derivatives():
    problem = small(num_layers=2)
    vector = torch.randn(len(flat_weights(problem.parameters)))
    product = hessian_product(problem.loss, problem.parameters)(vector)
    torch.testing.assert_close(product, exact_hessian(problem) @ vector)


@pytest.mark.parametrize("sign", [1, -1])
def test_power_iteration_finds_both_ends_of_the_spectrum(sign: int):
    problem = small(num_layers=2)
    eigenvalues = torch.linalg.eigvalsh(sign * exact_hessian(problem))
    found = top_curvature(
        lambda: sign * problem.loss(), problem.parameters, rng=rng(), tolerance=1e-7, max_products=9000
    )
    assert found.value == pytest.approx(float(eigenvalues[-1]), rel=1e-6)
    assert found.residual <= 1e-6 * max(abs(found.value), abs(float(eigenvalues[0])))


def test_the_largest_eigenvalue_counts_signs():
    problem = bowl(-5.0, 1.0, 2.0)
    assert top_curvature(problem.loss, problem.parameters, rng=rng(), tolerance=1e-8).value == pytest.approx(2.0)
    assert top_curvature(lambda: -problem.loss(), problem.parameters, rng=rng(), tolerance=1e-8).value == pytest.approx(
        5
    )


def test_the_curvature_of_a_transformer_is_that_of_finite_differences():
    problem = transformer_copy(num_rows=3, length=5, width=4, rng=rng())
    start, vector = flat_weights(problem.parameters), torch.randn(len(flat_weights(problem.parameters)))
    vector /= vector.norm()
    product = hessian_product(problem.loss, problem.parameters)(vector)
    h, ends = 1e-5, []
    for sign in (1, -1):
        set_flat_weights(problem.parameters, start + sign * h * vector)
        ends.append(flat_gradient(problem.loss(), problem.parameters))
    # Differences of gradients are known to about 1e-16 / h and h squared.
    torch.testing.assert_close((ends[0] - ends[1]) / (2 * h), product, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("share", "falls"), [(0.3, True), (0.99, True), (1.01, False), (1.4, False)])
def test_a_quadratic_makes_progress_iff_the_rate_is_below_two_over_the_curvature(share: float, falls: bool):
    losses = descend_quadratic(torch.tensor([7.0]), share * 2 / 7, 0.0, steps=5)
    torch.testing.assert_close(losses, (1 - 2 * share) ** (2 * torch.arange(1.0, 6)))
    assert bool((losses < 1).all()) == falls


def test_two_curvatures_take_the_steps_of_the_formula():
    eigenvalues = torch.tensor([1.0, 17.0])
    losses = descend_quadratic(eigenvalues, *best_heavy_ball(17.0, 1.0, has_momentum=False), steps=9)
    torch.testing.assert_close(losses, (16 / 18) ** (2 * torch.arange(1.0, 10)))
    assert steps_until(17.0, 1e-4, has_momentum=False, num_coordinates=2) == math.ceil(
        predicted_steps(17.0, 1e-4, has_momentum=False)
    )


def test_momentum_takes_about_the_root_of_the_steps():
    plain, faster = (steps_until(1000.0, 1e-6, has_momentum=has) for has in (False, True))
    assert faster < plain / 12
    assert best_heavy_ball(9.0, 9.0, has_momentum=True) == (pytest.approx(1 / 9), 0.0)


@pytest.mark.parametrize(("rate", "batch_size"), [(0.1, 1), (0.5, 3), (1.0, 7), (1.7, 2)])
def test_the_noise_floor_is_that_of_the_formula(rate: float, batch_size: int):
    mean, low, high = measure_noise_floor(rate, batch_size, runs=20_000, rng=rng())
    expected = noise_floor(rate, batch_size)
    # Twice the interval: the test is not to fail once in twenty seeds.
    assert abs(mean - expected) < high - low
    assert high - low < 0.1 * expected


def is_noise_floor(floor: Callable[..., float]) -> bool:
    """Whether a step keeps the variance of the weight that it stands for: v = (1 - rate h)^2 v + rate^2 s^2 / B."""
    for rate, batch, sigma, h in ((0.1, 1, 1.0, 1.0), (0.3, 4, 2.0, 3.0), (1.5, 2, 0.5, 0.7)):
        variance = 2 * floor(rate, batch, sigma=sigma, curvature=h) / h
        kept = (1 - rate * h) ** 2 * variance + rate**2 * sigma**2 / batch
        if kept != pytest.approx(variance):
            return False
    return True


def test_the_noise_floor_is_where_a_step_keeps_the_variance():
    assert is_noise_floor(noise_floor)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rate, batch, sigma, curvature: rate * sigma**2 / batch / (2 - rate * curvature),
        lambda rate, batch, sigma, curvature: rate * sigma**2 / batch / 4,  # of small rates
        lambda rate, batch, sigma, curvature: rate * sigma / batch / (2 * (2 - rate * curvature)),
        lambda rate, batch, sigma, curvature: rate * sigma**2 / batch**2 / (2 * (2 - rate * curvature)),
        lambda rate, batch, sigma, curvature: rate**2 * sigma**2 / batch / (2 * (2 - rate * curvature)),
        lambda rate, batch, sigma, curvature: rate * sigma**2 / batch / (2 * (1 - rate * curvature / 4)),
    ],
)
def test_other_noise_floors_are_rejected(wrong: Callable[..., float]):
    assert not is_noise_floor(wrong)


def slowest(condition: float, *, has_momentum: bool) -> float:
    """The factor of a step at the best rate and momentum, as the largest eigenvalue of its matrix."""
    rate, momentum = best_heavy_ball(condition, 1.0, has_momentum=has_momentum)
    return max(
        float(torch.linalg.eigvals(torch.tensor([[1 - rate * h + momentum, -momentum], [1.0, 0.0]])).abs().max())
        for h in (1.0, condition)
    )


def is_number_of_steps(steps: Callable[..., float]) -> bool:
    cases = [(condition, 1e-4, has) for condition in (3.0, 17.0, 400.0) for has in (False, True)]
    return all(
        steps(condition, fraction, has_momentum=has)
        == pytest.approx(math.log(fraction) / (2 * math.log(slowest(condition, has_momentum=has))), rel=1e-3)
        for condition, fraction, has in cases
    )


def test_the_predicted_steps_are_those_of_the_slowest_coordinate():
    assert is_number_of_steps(predicted_steps)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda k, fraction, has_momentum: 2 * predicted_steps(k, fraction, has_momentum=has_momentum),
        lambda k, fraction, has_momentum: predicted_steps(k, fraction, has_momentum=False),
        lambda k, fraction, has_momentum: predicted_steps(k**2, fraction, has_momentum=has_momentum),
        lambda k, fraction, has_momentum: math.log(fraction) / (2 * math.log(1 - 1 / k)),  # at a rate of 1 / largest
    ],
)
def test_other_numbers_of_steps_are_rejected(wrong: Callable[..., float]):
    assert not is_number_of_steps(wrong)


def test_there_is_no_floor_beyond_the_largest_rate():
    assert noise_floor(2.0, 1) == math.inf
    assert noise_floor(1.0, 1) == pytest.approx(0.5)


def test_one_step_of_a_quadratic_lies_on_the_parabola():
    problem = bowl(1.0, 3.0)
    top = top_curvature(problem.loss, problem.parameters, rng=rng(), tolerance=1e-10)
    with torch.no_grad():
        problem.model.get_parameter("weight").copy_(1e-9 * top.direction)
    before = flat_weights(problem.parameters)
    multiples = torch.tensor([0.2, 0.9, 1.1])
    changes = take_single_step(problem, top, multiples)
    torch.testing.assert_close(changes, quadratic_changes(multiples))
    assert rise_crossing(multiples, changes) == pytest.approx(1.0, abs=0.02)
    assert math.isnan(rise_crossing(multiples, -changes.abs()))
    assert torch.equal(flat_weights(problem.parameters), before)


def test_many_steps_of_a_quadratic_hold_below_the_largest_rate_only():
    problem = bowl(1.0, 3.0, 4.0)
    top = top_curvature(problem.loss, problem.parameters, rng=rng(), tolerance=1e-10)
    switch = switch_rates(problem, top, (0.9, 0.99, 1.05, 1.2), steps=100)
    assert [max(losses) <= 1 for losses in switch.values()] == [True, True, False, False]


def test_a_saddle_is_left_as_its_least_curvature_says():
    problem = tanh_regression(num_rows=31, num_inputs=3, width=5, num_layers=1, rng=rng())
    least, steps = escape_saddle(problem, (1e-4, 1e-5, 1e-6), learning_rate=0.1, max_steps=5000, rng=rng())
    set_flat_weights(problem.parameters, torch.zeros_like(flat_weights(problem.parameters)))
    assert float(flat_gradient(problem.loss(), problem.parameters).norm()) < 1e-12
    assert least == pytest.approx(float(torch.linalg.eigvalsh(exact_hessian(problem))[0]), rel=1e-2)
    for near, far in ((1e-5, 1e-4), (1e-6, 1e-5)):
        expected = predicted_delay(near, far, learning_rate=0.1, least_curvature=least)
        assert steps[near] - steps[far] == pytest.approx(expected, rel=0.05, abs=1)


def test_the_noise_of_one_step_is_the_trace_of_curvature_and_covariance():
    problem = small()
    gradients = example_gradients(problem)
    torch.testing.assert_close(gradients.mean(dim=0), flat_gradient(problem.loss(), problem.parameters))
    covariance = torch.cov(gradients.T, correction=0)
    trace = noise_curvature(problem, gradients)
    assert trace == pytest.approx(float((exact_hessian(problem) * covariance).sum()))
    before = flat_weights(problem.parameters)
    mean, low, high = step_noise(problem, gradients, 1e-2, 3, num_draws=400, rng=rng())
    assert abs(mean - 1e-4 * trace / 6) < high - low
    assert torch.equal(flat_weights(problem.parameters), before)


def test_networks_side_by_side_move_as_each_would_alone():
    networks = draw_networks(3, 5, 7, rng=rng())
    alone = [
        type(networks)(*(p.detach()[i : i + 1].clone().requires_grad_() for p in networks.parameters)) for i in range(3)
    ]
    examples = draw_examples(3, 11, 5, teacher=draw_networks(3, 5, 2, rng=rng()), flipped=0.2, rng=rng(1))
    networks.update(logistic_losses(networks(examples.inputs), examples), learning_rate=0.3)
    for i, each in enumerate(alone):
        own = BinaryExamples(examples.inputs[i : i + 1], examples.labels[i : i + 1])
        each.update(logistic_losses(each(own.inputs), own), learning_rate=0.3)
        for ours, theirs in zip(networks.parameters, each.parameters, strict=True):
            torch.testing.assert_close(ours[i : i + 1], theirs)


def test_labels_are_turned_over_as_often_as_asked():
    teacher = draw_networks(2, 3, 2, rng=rng())
    examples = draw_examples(2, 5000, 3, teacher=teacher, flipped=0.3, rng=rng(1))
    wrong = ((teacher(examples.inputs) > 0) != (examples.labels > 0.5)).double().mean()
    assert float(wrong) == pytest.approx(0.3, abs=0.02)


def test_whole_batches_are_plain_gradient_descent():
    twice = [compare_batch_sizes((512,), NARROW, steps=3, runs=2, seed=seed)[0] for seed in (5, 5)]
    assert torch.equal(twice[0].losses, twice[1].losses)
    small_batches, whole = compare_batch_sizes((3, 512), NARROW, steps=3, runs=2, seed=5)
    assert torch.equal(whole.losses, twice[0].losses)
    assert not torch.equal(small_batches.losses, whole.losses)


@pytest.mark.slow
def test_the_study_is_whole():
    study = study_descent(sizes=TINY)
    switches, edges, conditions, noise, narrow, wide = study.tables
    assert len(switches.rows) == 4
    assert [row[0] for row in edges.rows] == [0.1, 0.2]
    assert len(conditions.rows) == 4
    assert len(noise.rows) == 4 + 3
    assert [row[0] for row in narrow.rows] == [2, 512]
    assert [row[0] for row in wide.rows] == [3, 128]
    assert len(study.figure.axes) == 9
    assert study_descent(sizes=TINY).findings == study.findings
