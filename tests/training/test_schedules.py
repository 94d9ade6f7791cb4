"""The learning rate at known points, and that it is continuous between them."""

import math
from itertools import pairwise
from typing import get_args

import pytest

from regard.training.schedules import ScheduleName, lr_multiplier

SCHEDULES = get_args(ScheduleName)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_warmup_is_linear(schedule: ScheduleName):
    for step in (1, 7, 50, 89):
        assert lr_multiplier(schedule, step=step, warmup_steps=100, progress=0.0) == step / 100


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("cosine", {0.0: 1.0, 0.25: (1 + math.sqrt(0.5)) / 2, 0.5: 0.5, 1.0: 0.0}),
        ("linear", {0.0: 1.0, 0.25: 0.75, 1.0: 0.0}),
        ("trapezoid", {0.0: 1.0, 0.5: 1.0, 0.7: 1.0, 0.85: 0.5, 1.0: 0.0}),
        ("constant", {0.0: 1.0, 1.0: 1.0}),
    ],
)
def test_the_rate_decays_with_the_budget(schedule: ScheduleName, values: dict[float, float]):
    for progress, factor in values.items():
        found = lr_multiplier(schedule, step=500, warmup_steps=100, progress=progress)
        assert found == pytest.approx(factor, abs=1e-15)
        assert lr_multiplier(schedule, step=500, warmup_steps=0, progress=progress) == found


def test_the_inverse_square_root_matches_the_paper():
    """Vaswani et al. (2017), equation 3, is the smaller of two terms, in units of its peak."""
    for step in (1, 37, 399, 400, 401, 1600, 100_000):
        paper = min(step**-0.5, step * 400**-1.5) / 400**-0.5
        assert lr_multiplier("inverse-sqrt", step=step, warmup_steps=400, progress=0.3) == pytest.approx(paper)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("num_steps", [1000, 150], ids=["long", "hardly longer than the warmup"])
def test_the_rate_is_continuous(schedule: ScheduleName, num_steps: int):
    factors = [
        lr_multiplier(schedule, step=step, warmup_steps=100, progress=(step - 1) / num_steps)
        for step in range(1, num_steps + 1)
    ]
    steepest = max(1 / 100, math.pi / 2 / num_steps, 1 / (0.3 * num_steps))
    jumps = [abs(after - before) for before, after in pairwise(factors)]
    assert max(jumps) <= steepest * (1 + 1e-9)
    assert 0.0 < min(factors) <= max(factors) <= 1.0


@pytest.mark.parametrize("schedule", ["cosine", "linear", "trapezoid"])
def test_a_budget_that_ends_within_the_warmup_still_decays_to_zero(schedule: ScheduleName):
    assert lr_multiplier(schedule, step=50, warmup_steps=100, progress=1.0) == 0.0


def test_under_a_time_limit_a_tenth_of_it_ends_the_warmup():
    timed = {"step": 20, "warmup_steps": 200, "is_timed": True}
    assert lr_multiplier("constant", progress=0.005, **timed) == 0.1, "by steps, where these are faster"
    assert lr_multiplier("constant", progress=0.05, **timed) == 0.5
    assert lr_multiplier("constant", progress=0.3, **timed) == 1.0
    assert lr_multiplier("inverse-sqrt", progress=0.3, **timed) == 1.0, "never above the peak"
    assert lr_multiplier("cosine", progress=0.5, **timed) == pytest.approx(0.5)
