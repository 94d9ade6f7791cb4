"""The learning rate at known points, and no jump between them."""

import math
from itertools import pairwise
from typing import get_args

import pytest

from regard.training.schedules import ScheduleName, rate_factor

SCHEDULES = get_args(ScheduleName)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_rises_in_a_line(schedule: ScheduleName):
    for step in (1, 7, 50, 89):
        assert rate_factor(schedule, step=step, warmup_steps=100, progress=0.0) == step / 100


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("cosine", {0.0: 1.0, 0.25: (1 + math.sqrt(0.5)) / 2, 0.5: 0.5, 1.0: 0.0}),
        ("linear", {0.0: 1.0, 0.25: 0.75, 1.0: 0.0}),
        ("trapezoid", {0.0: 1.0, 0.5: 1.0, 0.7: 1.0, 0.85: 0.5, 1.0: 0.0}),
        ("constant", {0.0: 1.0, 1.0: 1.0}),
    ],
)
def test_the_rate_falls_with_the_budget(schedule: ScheduleName, values: dict[float, float]):
    for progress, factor in values.items():
        found = rate_factor(schedule, step=500, warmup_steps=100, progress=progress)
        assert found == pytest.approx(factor, abs=1e-15)
        assert rate_factor(schedule, step=500, warmup_steps=0, progress=progress) == found


def test_the_inverse_square_root_is_that_of_the_paper():
    """Vaswani et al. (2017), equation 3, is the smaller of two terms, in units of its peak."""
    for step in (1, 37, 399, 400, 401, 1600, 100_000):
        paper = min(step**-0.5, step * 400**-1.5) / 400**-0.5
        assert rate_factor("inverse-sqrt", step=step, warmup_steps=400, progress=0.3) == pytest.approx(paper)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("num_steps", [1000, 150], ids=["long", "hardly longer than the warm-up"])
def test_the_rate_never_jumps(schedule: ScheduleName, num_steps: int):
    factors = [
        rate_factor(schedule, step=step, warmup_steps=100, progress=(step - 1) / num_steps)
        for step in range(1, num_steps + 1)
    ]
    steepest = max(1 / 100, math.pi / 2 / num_steps, 1 / (0.3 * num_steps))
    jumps = [abs(after - before) for before, after in pairwise(factors)]
    assert max(jumps) <= steepest * (1 + 1e-9)
    assert 0.0 < min(factors) <= max(factors) <= 1.0


@pytest.mark.parametrize("schedule", ["cosine", "linear", "trapezoid"])
def test_a_budget_that_ends_within_the_warm_up_still_comes_to_rest(schedule: ScheduleName):
    assert rate_factor(schedule, step=50, warmup_steps=100, progress=1.0) == 0.0
