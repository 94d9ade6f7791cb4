"""Minima, saddle points, paths and the drop of one step, against exact cases."""

from collections.abc import Callable

import pytest
import torch

from regard.lab.landscape.surfaces import (
    LandscapeSizes,
    TanhSurface,
    align_units,
    barriers,
    bezier,
    count_negative,
    find_critical_points,
    find_minima,
    learn_bend,
    make_surface,
    measure_drops,
    predicted_drop,
    study_landscape,
    tanh_outputs,
)
from regard.lab.networks import ParallelNetworks

TINY = LandscapeSizes(num_rows=13, widths=(2, 3), num_starts=5, adam_steps=3, polish_steps=3, num_critical=7,
                      critical_steps=5, path_widths=(3, 5), num_pairs=2, curve_steps=2, num_points=5,
                      multiples=(0.1, 1.2))  # fmt: skip


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def surface(width: int = 5) -> TanhSurface:
    return make_surface(LandscapeSizes(num_rows=23), width, seed=3)


def test_the_vector_of_weights_is_a_network():
    some = surface()
    weights = some.draw(3, rng())
    hidden, bias, output = weights.split([10, 5, 5], dim=1)
    networks = ParallelNetworks(hidden.view(3, 2, 5), bias[:, None], output[..., None])
    expected = networks(some.inputs.expand(3, -1, -1))
    torch.testing.assert_close(torch.stack([tanh_outputs(each, some.inputs, 5) for each in weights]), expected)
    torch.testing.assert_close(some.losses(weights), 0.5 * (expected - some.targets).square().mean(dim=1))


def test_gradients_and_hessians_are_those_of_autograd():
    some = surface(3)
    weights = some.draw(2, rng())
    for number, each in enumerate(weights):
        exact = torch.autograd.functional.hessian(some.loss, each)
        torch.testing.assert_close(some.hessians(weights)[number], exact)
        torch.testing.assert_close(some.gradients(weights)[number], torch.autograd.functional.jacobian(some.loss, each))


WRONG_DROPS: list[Callable[[float, float, float], float]] = [
    lambda rate, square, curvature: rate * square * (1 - rate * curvature),
    lambda rate, square, curvature: rate * square * (1 + rate * curvature / 2),
    lambda rate, square, curvature: rate * square**0.5 * (1 - rate * curvature / 2),
    lambda rate, square, curvature: square * (1 - rate * curvature / 2),
    lambda rate, square, curvature: rate * square * (1 - rate * curvature / 4),
]


def test_the_drop_of_a_quadratic_is_exactly_the_predicted_one_and_no_other_form():
    curvatures, weights, rate = torch.tensor([0.5, 2.0, 3.0]), torch.tensor([1.0, -2.0, 0.7]), 0.13
    gradient = curvatures * weights
    square = float(gradient @ gradient)
    along = float(gradient @ (curvatures * gradient)) / square

    def value(at: torch.Tensor) -> float:
        return float(0.5 * at @ (curvatures * at))

    drop = value(weights) - value(weights - rate * gradient)
    assert drop == pytest.approx(predicted_drop(rate, square, along))
    for wrong in WRONG_DROPS:
        assert drop != pytest.approx(wrong(rate, square, along), rel=1e-3)
    # One weight: a step of 1 / f'' is the best, and one of 2 / f'' has no effect.
    assert predicted_drop(2 / 3.0, 5.0, 3.0) == pytest.approx(0.0)
    assert predicted_drop(1 / 3.0, 5.0, 3.0) == pytest.approx(5.0 / 6)


def test_small_steps_of_a_network_drop_as_predicted():
    some = surface()
    predicted, measured = measure_drops(some, some.draw(7, rng()), (1e-3, 0.5))
    torch.testing.assert_close(measured[0], predicted[0], rtol=1e-2, atol=0)
    assert (predicted[1] > predicted[0]).all()


def test_an_alignment_undoes_a_permutation_and_inversions():
    some = surface()
    weights = some.draw(1, rng())[0]
    order, signs = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([1.0, -1, -1, 1, -1])
    changed = (weights.view(4, 5)[:, order] * signs).flatten()
    torch.testing.assert_close(tanh_outputs(changed, some.inputs, 5), tanh_outputs(weights, some.inputs, 5))
    assert not torch.allclose(changed, weights)
    torch.testing.assert_close(align_units(weights, changed, 5), weights)


def test_a_curve_meets_its_ends_and_is_a_segment_where_its_bend_is_halfway():
    start, end = torch.randn(3, 7), torch.randn(3, 7)
    t = torch.tensor([0.0, 0.3, 1.0])
    points = bezier(start, torch.randn(3, 7), end, t)
    torch.testing.assert_close(points[0], start)
    torch.testing.assert_close(points[2], end)
    torch.testing.assert_close(bezier(start, (start + end) / 2, end, t)[1], 0.7 * start + 0.3 * end)


def test_a_barrier_is_the_excess_over_the_line_between_the_ends():
    losses = torch.tensor([[1.0, 0.0], [5.0, 0.5], [3.0, 1.0]])
    assert barriers(losses).tolist() == [3.0, 0.0]


def test_negative_eigenvalues_are_counted_without_rounding_errors():
    assert count_negative(torch.tensor([[-2.0, -1e-9, 0.0, 3.0], [1.0, 2.0, 3.0, 4.0]])).tolist() == [1.0, 0.0]


def test_descent_ends_at_minima_and_the_teacher_is_among_them():
    wide, narrow = surface(8), surface(2)
    found = find_minima(wide, wide.draw(12, rng()), adam_steps=150, polish_steps=60)
    assert float(wide.losses(found).min()) < 1e-8
    found = find_minima(narrow, narrow.draw(12, rng()), adam_steps=150, polish_steps=400)
    settled = found[narrow.gradients(found).norm(dim=1) < 1e-7]
    assert len(settled) >= 6
    assert float(count_negative(torch.linalg.eigvalsh(narrow.hessians(settled))).max()) == 0
    assert float(narrow.losses(settled).min()) > 1e-3


def test_a_search_for_critical_points_finds_saddle_points():
    some = surface(2)
    found = find_critical_points(some, some.draw(30, rng(1)), steps=100)
    assert len(found) >= 3
    assert float(some.gradients(found).norm(dim=1).max()) < 1e-6
    assert float(count_negative(torch.linalg.eigvalsh(some.hessians(found))).max()) >= 1


def test_a_learned_curve_has_a_lower_barrier_than_the_segment():
    some = surface(8)
    minima = find_minima(some, some.draw(4, rng()), adam_steps=150, polish_steps=0)
    one, other, t = minima[::2], minima[1::2], torch.linspace(0, 1, 11)
    bend = learn_bend(some, one, other, steps=80, rng=rng())
    straight = barriers(some.losses(bezier(one, (one + other) / 2, other, t)))
    assert (barriers(some.losses(bezier(one, bend, other, t))) < straight).all()


def test_the_study_is_whole():
    study = study_landscape(sizes=TINY)
    minima, critical, drops, paths = study.tables
    assert [row[0] for row in minima.rows] == [2, 3]
    assert len(drops.rows) == len(paths.rows) == 2
    assert len(study.findings) == 4
    assert critical.columns[0] == "negative eigenvalues"
