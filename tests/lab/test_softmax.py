"""Softmax between its two limits."""

import math
from typing import Any

import pytest
import torch

from regard.lab.softmax import Sizes, investigate, random_entropy, random_entropy_limit, temper

SCORES = torch.tensor([3.0, 2.0, 2.0, -1.0, 3.0], dtype=torch.float64)


def test_at_one_it_is_softmax():
    tempered = temper(SCORES, torch.ones(1))
    torch.testing.assert_close(tempered.probabilities[0], SCORES.softmax(dim=0))


def test_cold_the_best_share_all_alike():
    tempered = temper(SCORES, torch.tensor([1e-3]))
    torch.testing.assert_close(tempered.probabilities[0], torch.tensor([0.5, 0.0, 0.0, 0.0, 0.5]))
    assert float(tempered.entropy[0]) == pytest.approx(math.log(2))
    assert float(tempered.choices[0]) == pytest.approx(2.0)


def test_warm_all_are_alike():
    tempered = temper(SCORES, torch.tensor([1e9]))
    assert float(tempered.entropy[0]) == pytest.approx(math.log(5))
    assert float(tempered.largest[0]) == pytest.approx(1 / 5)


def test_the_slope_of_the_entropy_is_the_variance_of_the_scores_over_the_cubed_temperature():
    # dH/dT = Var(s) / T^3, the heat capacity over the temperature.
    t, h = 0.7, 1e-5
    tempered = temper(SCORES, torch.tensor([t - h, t, t + h]))
    p = tempered.probabilities[1]
    variance = (p * SCORES**2).sum() - (p * SCORES).sum() ** 2
    slope = (tempered.entropy[2] - tempered.entropy[0]) / (2 * h)
    assert float(slope) == pytest.approx(float(variance) / t**3, rel=1e-6)


def test_random_scores_follow_the_theory_where_there_are_many():
    temperatures = torch.tensor([0.8, 1.0, 2.0, 5.0])
    rng = torch.Generator().manual_seed(0)
    measured = random_entropy(20_000, temperatures, num_draws=5, rng=rng)
    torch.testing.assert_close(measured, random_entropy_limit(20_000, temperatures), atol=0.02, rtol=0.0)


def test_the_study_says_what_its_tables_hold():
    study = investigate(Sizes(num_temperatures=21, num_choices=(5, 50), num_draws=3), seed=0)
    assert len(study.tables) == 4
    by_temperature: dict[Any, Any] = {row[0]: row[1:] for row in study.tables[0].rows}
    entropy, largest, choices = by_temperature[1.0]
    assert f"{largest:.3f}" in study.findings[2]
    assert choices == pytest.approx(math.exp(entropy))
    assert "never falls" in study.findings[4]


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
    sizes = Sizes(num_temperatures=21, num_choices=(5,), num_draws=3)
    first, again, other = (investigate(sizes, seed=seed).tables[-1].rows for seed in (1, 1, 2))
    assert first == again
    assert first != other
