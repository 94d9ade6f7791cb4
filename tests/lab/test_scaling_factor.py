"""Why scores are divided: the variance, the entropy and the slope, against theory."""

import math

import pytest
import torch

from regard.lab.scaling_factor.attention_scores import (
    SCALED,
    UNSCALED,
    ScalingFactorSizes,
    attention_entropy,
    jacobian_norm,
    measure_scores,
    study_scaling_factor,
)

TINY = ScalingFactorSizes(key_dims=(3, 7, 300), num_keys=11, num_samples=60, head_dims=(2, 48), num_models=1,
             trained_head_dims=(4,), steps=5, num_seeds=2, vocab_size=5, length=7)  # fmt: skip


@pytest.mark.parametrize("dim", [5, 64, 257])
def test_the_variance_of_an_inner_product_is_its_width(dim: int):
    rng = torch.Generator().manual_seed(0)
    without, scaled = (
        measure_scores(name, dim, num_keys=53, num_samples=1_000, rng=rng) for name in (UNSCALED, SCALED)
    )
    # Scores that share a query hang together: of its squared length the mean over 1,000 has this relative spread.
    spread = math.sqrt(2 / dim / 1_000) + math.sqrt(2 / (53 * 1_000))
    assert without.variance == pytest.approx(dim, rel=5 * spread)
    assert scaled.variance == pytest.approx(1.0, rel=5 * spread)


def test_the_norm_is_that_of_the_jacobian():
    scores = torch.randn(7)
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(dim=-1), scores)
    assert isinstance(jacobian, torch.Tensor)
    torch.testing.assert_close(jacobian_norm(scores.softmax(dim=-1)), jacobian.norm())


def test_a_certain_choice_has_no_slope_and_an_even_one_has_the_largest():
    assert float(jacobian_norm(torch.tensor([1.0, 0.0, 0.0]))) == 0.0
    assert float(jacobian_norm(torch.tensor([0.5, 0.5, 0.0]))) == pytest.approx(0.5)


def test_without_the_factor_softmax_closes_and_with_it_stays():
    rng = torch.Generator().manual_seed(0)
    without, scaled = (measure_scores(name, 512, num_keys=31, num_samples=400, rng=rng) for name in (UNSCALED, SCALED))
    assert without.entropy < 0.3
    assert scaled.entropy == pytest.approx(math.log(31) - 0.5, abs=0.1)
    assert without.jacobian[1] < 0.05 * scaled.jacobian[1]


def test_an_untrained_model_shows_the_same():
    wide, narrow = (attention_entropy(UNSCALED, dim, TINY, seed=0) for dim in (64, 2))
    assert wide < narrow
    assert attention_entropy(SCALED, 64, TINY, seed=0) > 2 * wide


def test_the_study_is_whole():
    study = study_scaling_factor(sizes=TINY)
    random, models, losses = study.tables
    assert [row[0] for row in random.rows] == [3, 7, 300]
    assert [row[0] for row in models.rows] == [2, 48]
    assert [row[0] for row in losses.rows] == [4]
    assert len(study.figure.axes) == 6
    assert len(study.findings) == 3
