"""Stability: pairs of trainings against loops written out, and bounds as bounds."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.errors import ConfigError
from regard.lab.networks import BinaryExamples, draw_networks
from regard.lab.stability.pairs import (
    ExampleSource,
    ParallelLinear,
    StabilitySizes,
    convex_distance_bound,
    convex_stability_bound,
    logistic_learner,
    measured_constants,
    network_learner,
    nonconvex_stability_bound,
    power_law_exponent,
    projected_step,
    recorded_steps,
    strongly_convex_distance_bound,
    study_stability,
    train_pairs,
)

TINY = StabilitySizes(runs=3, num_rows=7, num_inputs=3, steps=23, rates=(0.1, 1.0), row_counts=(5, 11),
             convexities=(0.1,),
             width=5, network_rates=(0.5,), scales=(0.5,))  # fmt: skip


def source(num_inputs: int = 5) -> ExampleSource:
    return ExampleSource(draw_networks(1, num_inputs, 3, rng=torch.Generator().manual_seed(7)), flipped=0.1)


def test_the_bounds_are_those_of_the_paper():
    known: Any = {"num_rows": 50, "lipschitz": 3.0, "smoothness": 0.5}
    assert convex_distance_bound([1.0, 2.0, 3.0], **known) == pytest.approx(2 * 3 * 6 / 50)
    assert convex_stability_bound([1.0, 2.0, 3.0], **known) == pytest.approx(2 * 9 * 6 / 50)
    assert strongly_convex_distance_bound(1.0, convexity=0.1, **known) == pytest.approx(2 * 3 / (0.1 * 50))
    # beta c = 3, so that 1 / (beta c), beta c and the exponents 1/4 and 3/4 all differ:
    # (1 + 1/3) / 49 * (2 c L^2)^(1/4) * T^(3/4), with 2 c L^2 = 108 and T = 625.
    expected = (4 / 3) / 49 * 108**0.25 * 125
    assert nonconvex_stability_bound(625, scale=6.0, **known) == pytest.approx(expected)
    # c alone differs from beta c: with beta = 1/6 and c = 2, beta c = 1/3.
    slow = nonconvex_stability_bound(16, scale=2.0, num_rows=11, lipschitz=3.0, smoothness=1 / 6)
    assert slow == pytest.approx((1 + 3) / 10 * 36**0.75 * 16**0.25)


NUMBERS = [(50, 3.0, 0.5, 0.1), (11, 0.7, 0.2, 0.03)]
"""Rows n, and the constants of Lipschitz, k, of smoothness, b, and of convexity."""
RATES = (0.5, 0.25, 1.0, 0.5)


def expanded(rates: Sequence[float], num_rows: int, lipschitz: float, convexity: float = 0.0) -> float:
    """The recursion of the proofs: a common example shrinks the distance, the replaced one adds 2 L at most."""
    distance = 0.0
    for rate in rates:
        distance = (1 - rate * convexity) * distance + 2 * rate * lipschitz / num_rows
    return distance


def late_exchange(steps: int, scale: float, num_rows: int, lipschitz: float, smoothness: float) -> float:
    """The proof of theorem 3.12 before its last step: the best time up to which the example was not drawn."""
    growth = smoothness * scale
    times = np.geomspace(1e-3, steps, 200_001)
    after = 2 * lipschitz**2 / smoothness * (steps / times) ** growth
    return float((times + after).min()) / (num_rows - 1)


def is_convex(bound: Callable[..., float]) -> bool:
    return all(bound(RATES, n, k) == pytest.approx(k * expanded(RATES, n, k)) for n, k, _, _ in NUMBERS)


def is_strongly_convex(bound: Callable[..., float]) -> bool:
    return all(bound(n, k, c) == pytest.approx(expanded([0.5] * 2_000, n, k, c)) for n, k, _, c in NUMBERS)


def is_nonconvex(bound: Callable[..., float]) -> bool:
    cases = [(steps, scale, n, k, b) for n, k, b, _ in NUMBERS for steps, scale in ((625, 6.0), (90, 2.0))]
    return all(bound(*case) == pytest.approx(late_exchange(*case), rel=1e-6) for case in cases)


def nonconvex(steps: int, c: float, n: int, lipschitz: float, beta: float, **changed: Any) -> float:
    q = changed.get("growth", beta * c)
    inner = changed.get("inner", 2 * c * lipschitz**2)
    powers = (1 / (q + 1), q / (q + 1))
    first, second = powers[::-1] if changed.get("swapped") else powers
    return changed.get("factor", 1 + 1 / q) / changed.get("rows", n - 1) * inner**first * steps**second


def test_the_bounds_follow_from_the_recursions_of_their_proofs():
    assert is_convex(lambda rates, n, k: convex_stability_bound(rates, num_rows=n, lipschitz=k, smoothness=0.2))
    assert is_strongly_convex(
        lambda n, k, c: strongly_convex_distance_bound(0.5, num_rows=n, lipschitz=k, smoothness=0.2, convexity=c)
    )
    assert is_nonconvex(
        lambda steps, c, n, k, b: nonconvex_stability_bound(steps, scale=c, num_rows=n, lipschitz=k, smoothness=b)
    )


@pytest.mark.parametrize(
    ("is_bound", "wrong"),
    [
        (is_convex, lambda rates, n, k: k**2 / n * sum(rates)),  # one of the two gradients
        (is_convex, lambda rates, n, k: 2 * k / n * sum(rates)),  # of weights, not of losses
        (is_convex, lambda rates, n, k: 2 * k**2 / (n - 1) * sum(rates)),
        (is_convex, lambda rates, n, k: 2 * k**2 / n * len(rates) * max(rates)),
        (is_strongly_convex, lambda n, k, c: k / (c * n)),
        (is_strongly_convex, lambda n, k, c: 2 * k / (c * (n - 1))),
        (is_strongly_convex, lambda n, k, c: 2 * k / (c**2 * n)),
        (is_strongly_convex, lambda n, k, c: 2 * k**2 / (c * n)),  # of losses, not of weights
        (is_nonconvex, lambda s, c, n, k, b: nonconvex(s, c, n, k, b, rows=n)),
        (is_nonconvex, lambda s, c, n, k, b: nonconvex(s, c, n, k, b, inner=c * k**2)),
        (is_nonconvex, lambda s, c, n, k, b: nonconvex(s, c, n, k, b, factor=1.0)),
        (is_nonconvex, lambda s, c, n, k, b: nonconvex(s, c, n, k, b, swapped=True)),
        (is_nonconvex, lambda s, c, n, k, b: nonconvex(s, c, n, k, b, growth=c)),
    ],
)
def test_bounds_with_other_constants_do_not_follow(is_bound: Callable[..., bool], wrong: Callable[..., float]):
    assert not is_bound(wrong)


def test_bounds_refuse_rates_for_which_they_do_not_hold():
    with pytest.raises(ConfigError, match="2 / smoothness"):
        convex_distance_bound([8.1], num_rows=5, lipschitz=1.0, smoothness=0.25)
    with pytest.raises(ConfigError, match="1 / smoothness"):
        strongly_convex_distance_bound(4.1, num_rows=5, lipschitz=1.0, smoothness=0.25, convexity=0.1)
    with pytest.raises(ConfigError, match="at least 2"):
        nonconvex_stability_bound(5, scale=1.0, num_rows=1, lipschitz=1.0, smoothness=1.0)


def test_pairs_are_what_a_loop_over_two_sets_gives():
    rates, runs, num_rows = [0.5, 0.4, 0.3, 0.2], 3, 4
    path = train_pairs(
        logistic_learner(5), source(), rates, num_rows=num_rows, runs=runs, records=[2, 4], num_test_rows=11, seed=0
    )
    rng = torch.Generator().manual_seed(0)
    first, other = source().draw(runs, num_rows, rng=rng), source().draw(runs, 1, rng=rng)
    new = source().draw(runs, 11, rng=rng)
    order = torch.randint(num_rows, (4, runs), generator=rng)
    for run in range(runs):
        weights = []
        for is_second in (False, True):
            inputs, labels = first.inputs[run].clone(), first.labels[run].clone()
            if is_second:
                inputs[0], labels[0] = other.inputs[run, 0], other.labels[run, 0]
            weight = torch.zeros(5)
            for rate, row in zip(rates, order[:, run], strict=True):
                weight = weight + rate * (labels[row] - torch.sigmoid(inputs[row] @ weight)) * inputs[row]
            weights.append(weight)
        losses = [
            F.binary_cross_entropy_with_logits(new.inputs[run] @ w, new.labels[run], reduction="none") for w in weights
        ]
        assert float(path.distances[-1, run]) == pytest.approx(float((weights[0] - weights[1]).norm()), abs=1e-12)
        assert float(path.loss_differences[-1, run]) == pytest.approx(
            float((losses[0] - losses[1]).abs().max()), abs=1e-12
        )
        assert float(path.test[-1, run]) == pytest.approx(float(losses[0].mean()))
    assert path.steps == [2, 4]
    assert float(path.distances.max()) > 0


def test_pairs_stay_together_until_the_exchanged_example_is_drawn():
    path = train_pairs(network_learner(5, 7), source(), [0.5] * 30, num_rows=10, runs=40, records=[1, 30], seed=0)
    together = float((path.distances[0] == 0).double().mean())
    assert together == pytest.approx(0.9, abs=0.15)
    assert float((path.distances[1] == 0).double().mean()) < 0.2


@pytest.mark.parametrize("rate", [0.3, 2.0, 8.0])
def test_convex_pairs_keep_to_their_bound(rate: float):
    path = train_pairs(logistic_learner(5), source(), [rate] * 60, num_rows=20, runs=200, records=[5, 20, 60], seed=0)
    for step, mean in zip(path.steps, path.distances.mean(dim=1).tolist(), strict=True):
        assert 0 < mean <= convex_distance_bound([rate] * step, num_rows=20, lipschitz=1.0, smoothness=0.25)


def test_a_pair_moves_apart_by_at_most_twice_the_rate_for_each_draw_of_the_exchanged_example():
    # Pair by pair, not on average: the lemma under theorem 3.8.
    rate, steps = 0.7, 40
    path = train_pairs(logistic_learner(5), source(), [rate] * steps, num_rows=10, runs=50, records=[steps], seed=0)
    rng = torch.Generator().manual_seed(0)
    for shape in ((50, 10), (50, 1), (50, 300)):
        source().draw(*shape, rng=rng)
    draws = (torch.randint(10, (steps, 50), generator=rng) == 0).sum(dim=0)
    assert (path.distances[-1] <= 2 * rate * draws + 1e-12).all()


def test_strongly_convex_pairs_keep_to_a_bound_that_does_not_grow():
    learner = logistic_learner(5, convexity=0.2, radius=2.0)
    path = train_pairs(learner, source(), [1.0] * 200, num_rows=20, runs=100, records=[20, 200], seed=0)
    bound = strongly_convex_distance_bound(1.0, num_rows=20, lipschitz=1.4, smoothness=0.45, convexity=0.2)
    assert (path.distances.mean(dim=1) <= bound).all()


def test_weights_are_brought_back_into_the_ball():
    models = ParallelLinear(torch.tensor([[3.0, 4.0], [0.3, 0.4]], requires_grad=True))
    projected_step(models, models.weight.sum(), rate=0.0, radius=1.0)
    torch.testing.assert_close(models.weight.detach(), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


@pytest.mark.slow
def test_the_loss_of_the_network_is_between_zero_and_one_and_its_constants_are_met():
    learner, place = network_learner(5, 7), source()
    rng = torch.Generator().manual_seed(0)
    examples = place.draw(3, 11, rng=rng)
    torch.testing.assert_close(examples.inputs.norm(dim=-1), torch.ones(3, 11))
    models = learner.make(3, rng)
    losses = learner.losses(models, examples)
    expected = (models(examples.inputs).sigmoid() - examples.labels) ** 2
    torch.testing.assert_close(losses, expected)
    assert 0 <= losses.min().item() <= losses.max().item() <= 1
    lipschitz, smoothness = measured_constants(learner, place, [0.5] * 3, num_rows=11, records=[3], seed=0)
    assert lipschitz > 0
    assert smoothness > 0


def test_the_constants_of_logistic_regression_are_below_the_known_ones():
    lipschitz, smoothness = measured_constants(
        logistic_learner(5), source(), [1.0] * 20, num_rows=30, records=[10, 20], seed=0
    )
    assert 0.5 <= lipschitz <= 1.0  # from weights of 0 every gradient is half as long as its input
    assert smoothness == pytest.approx(0.25)  # which is the curvature there


def test_new_examples_of_each_pair_are_its_own():
    drawn = source().draw(2, 5, rng=torch.Generator().manual_seed(0))
    assert isinstance(drawn, BinaryExamples)
    assert not torch.equal(drawn.inputs[0], drawn.inputs[1])


def test_the_slope_of_a_power_law_is_its_power():
    assert power_law_exponent({count: 3 * count**-1.5 for count in (2, 5, 11, 31)}) == pytest.approx(-1.5)
    assert math.isnan(power_law_exponent({2: 0.0, 3: 1.0}))


def test_pairs_are_recorded_on_a_logarithmic_scale():
    assert recorded_steps(100) == [10, 18, 32, 56, 100]
    assert recorded_steps(23) == [10, 18, 23]


@pytest.mark.slow
def test_the_study_is_whole():
    study = study_stability(sizes=TINY)
    pairs, counts = study.tables
    assert len(pairs.rows) == 2 + 1 + 1 + 1
    assert [row[0] for row in counts.rows] == ["5 examples", "11 examples"]
    assert len(study.figure.axes) == 6
    assert study_stability(sizes=TINY).findings == study.findings
