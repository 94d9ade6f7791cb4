"""Softmax between its two limits."""

import math
from typing import Any

import pytest
import torch

from regard.lab.softmax.temperature import (
    SoftmaxSizes,
    categorical_entropy,
    random_entropy,
    random_entropy_limit,
    softmax_at,
    study_softmax,
)

SCORES = torch.tensor([3.0, 2.0, 2.0, -1.0, 3.0], dtype=torch.float64)


def test_at_one_it_is_softmax():
    tempered = softmax_at(SCORES, torch.ones(1))
    torch.testing.assert_close(tempered[0], SCORES.softmax(dim=0))


def test_cold_the_best_share_all_alike():
    tempered = softmax_at(SCORES, torch.tensor([1e-3]))
    torch.testing.assert_close(tempered[0], torch.tensor([0.5, 0.0, 0.0, 0.0, 0.5]))
    assert float(categorical_entropy(tempered)[0]) == pytest.approx(math.log(2))


def test_warm_all_are_alike():
    tempered = softmax_at(SCORES, torch.tensor([1e9]))
    assert float(categorical_entropy(tempered)[0]) == pytest.approx(math.log(5))
    assert float(tempered.amax()) == pytest.approx(1 / 5)


def test_the_slope_of_the_entropy_is_the_variance_of_the_scores_over_the_cubed_temperature():
    # dH/dT = Var(s) / T^3, the heat capacity over the temperature.
    t, h = 0.7, 1e-5
    tempered = softmax_at(SCORES, torch.tensor([t - h, t, t + h]))
    p, entropy = tempered[1], categorical_entropy(tempered)
    variance = (p * SCORES**2).sum() - (p * SCORES).sum() ** 2
    slope = (entropy[2] - entropy[0]) / (2 * h)
    assert float(slope) == pytest.approx(float(variance) / t**3, rel=1e-6)


def test_random_scores_follow_the_theory_where_there_are_many():
    temperatures = torch.tensor([0.8, 1.0, 2.0, 5.0])
    rng = torch.Generator().manual_seed(0)
    measured = random_entropy(20_000, temperatures, num_draws=5, rng=rng)
    torch.testing.assert_close(measured, random_entropy_limit(20_000, temperatures), atol=0.02, rtol=0.0)


def test_the_study_says_what_its_tables_hold():
    study = study_softmax(sizes=SoftmaxSizes(num_temperatures=21, num_choices=(5, 50), num_draws=3))
    assert len(study.tables) == 4
    by_temperature: dict[Any, Any] = {row[0]: row[1:] for row in study.tables[0].rows}
    entropy, largest, choices = by_temperature[1.0]
    assert largest == pytest.approx(float(torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0]).softmax(dim=0)[0]))
    assert choices == pytest.approx(math.exp(entropy))
    assert "never decreases" in study.findings[1]


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    sizes = SoftmaxSizes(num_temperatures=21, num_choices=(5,), num_draws=3)
    first, again, other = (study_softmax(sizes=sizes, seed=seed).tables[-1].rows for seed in (1, 1, 2))
    assert first == again
    assert first != other
