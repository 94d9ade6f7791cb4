"""The gradient through time, against cases that can be worked out by hand."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from regard.lab.exercises import draw_first_token_recall
from regard.lab.gradients.through_time import (
    GradientSizes,
    RecurrentTagger,
    gradient_profile,
    half_distance,
    radius_profile,
    sequence_models,
    study_gradients,
)

TINY = GradientSizes(length=7, width=8, num_symbols=2, num_sequences=5, steps=3, batch_size=3, radius_length=11,
             clipped_length=5, clipped_symbols=2, clipped_steps=6, num_seeds=2)  # fmt: skip


@pytest.mark.parametrize("radius", [0.7, 1.0, 1.3])
def test_a_linear_network_gives_the_power_of_the_radius(radius: float):
    profile = radius_profile(radius, length=13, width=11)
    expected = profile[0] * radius ** torch.arange(13)
    torch.testing.assert_close(profile, expected)


def test_tanh_takes_from_every_step():
    for radius in (0.7, 1.0):
        torch.manual_seed(0)
        linear = radius_profile(radius, length=13, width=11)
        torch.manual_seed(0)
        bent = radius_profile(radius, length=13, width=11, activation=torch.tanh)
        assert (bent / bent[0] <= linear / linear[0] + 1e-12).all()


def test_half_distances_of_powers():
    distances = torch.arange(17)
    assert half_distance(0.5**distances) == pytest.approx(1.0)
    assert half_distance(0.5 ** (distances / 3)) == pytest.approx(3.0)
    assert half_distance(torch.ones(17)) == math.inf
    assert half_distance(2.0**distances) == math.inf
    # The last position does not count.
    apart = 0.5 ** (distances / 3)
    apart[0] = 100.0
    assert half_distance(apart) == pytest.approx(3.0)


def test_the_profile_of_a_network_of_one_number_is_what_one_works_out():
    # h_t = tanh(e_t + u h_{t-1}); with all embeddings 0 every state is 0 and tanh' is 1, so the gradient is g u^k.
    model = RecurrentTagger(nn.RNN(1, 1, batch_first=True, bias=False), 4)
    with torch.no_grad():
        model.embedding.weight.zero_()
        model.layer.get_parameter("weight_ih_l0").fill_(1.0)
        model.layer.get_parameter("weight_hh_l0").fill_(0.6)
    profile = gradient_profile(model, draw_first_token_recall(3, 9, num_symbols=2))
    torch.testing.assert_close(profile / profile[0], 0.6 ** torch.arange(9))


@pytest.mark.parametrize("name", sequence_models(8, 6, 9))
def test_the_gradient_is_that_of_finite_differences(name: str):
    model = sequence_models(8, 6, 9)[name]()
    inputs, targets = batch = draw_first_token_recall(1, 9, num_symbols=3)
    embedding = model.get_submodule("embedding")

    def loss_with(nudge: torch.Tensor) -> float:
        """The loss when the embedding of the first position is moved by `nudge`."""
        offset = torch.cat([nudge[None], torch.zeros(8, 8)])
        with embedding.register_forward_hook(lambda *called: called[2] + offset), torch.no_grad():
            return float(nn.functional.cross_entropy(model(inputs)[:, -1], targets[:, -1]))

    h = 1e-5
    slopes = [(loss_with(h * axis) - loss_with(-h * axis)) / (2 * h) for axis in torch.eye(8)]
    # Differences of numbers near 1 are known to 1e-16 / h.
    assert float(gradient_profile(model, batch)[-1]) == pytest.approx(math.hypot(*slopes), rel=1e-5, abs=1e-9)


def test_an_open_gate_keeps_more_of_the_gradient():
    builders = sequence_models(16, 8, 21)
    batch = draw_first_token_recall(13, 21, num_symbols=4)
    ratios = {}
    for name in ("LSTM", "LSTM, open forget gate"):
        torch.manual_seed(0)
        profile = gradient_profile(builders[name](), batch)
        ratios[name] = float(profile[-1] / profile[0])
    assert ratios["LSTM, open forget gate"] > 100 * ratios["LSTM"]


def test_the_study_is_whole():
    study = study_gradients(sizes=TINY)
    models, radii, clipping = study.tables
    assert len(models.rows) == 12
    assert [row[0] for row in radii.rows] == [0.8, 1.0, 1.25]
    for _, theory, linear, _ in radii.rows:
        assert linear == pytest.approx(theory)
    after: Any = clipping.rows[1][4]
    assert after <= TINY.clip_norm
    assert len(study.figure.axes) == 5
