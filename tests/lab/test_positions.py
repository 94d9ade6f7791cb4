"""The drawings of positions are what the modules say, and the counts are what the models answer."""

import math
from typing import Any, get_args

import pytest
import torch

from regard.evaluation.intervals import clopper_pearson
from regard.lab.positions.extrapolation import (
    ENCODINGS,
    PositionSizes,
    accuracy_interval,
    bias_by_distance,
    count_correct_at,
    keys_by_distance,
    position_vectors,
    rotary_scores,
    study_positions,
    train_encoding,
)
from regard.nn.positions import (
    ALiBi,
    Learned,
    Positions,
    RelativeBias,
    RelativeKeys,
    Rotary,
    Sinusoidal,
    alibi_slopes,
)

TINY = PositionSizes(length=5, distances=(1, 2), vocab_size=3, num_layers=1, model_dim=8, num_heads=2, steps=2,
             batch_size=3, num_seeds=2, num_sequences=7)  # fmt: skip


def test_all_schemes_are_tried():
    assert set(ENCODINGS) == set(get_args(Positions))


def test_added_vectors_are_those_of_the_modules():
    sines = position_vectors(Sinusoidal(6), 7)
    angles = torch.arange(7)[:, None] / 10_000 ** (torch.tensor([0, 2, 4]) / 6)
    torch.testing.assert_close(sines[:, 0::2], angles.sin())
    torch.testing.assert_close(sines[:, 1::2], angles.cos())
    learned = Learned(11, 6)
    torch.testing.assert_close(position_vectors(learned, 7), learned.table.weight[:7].detach())


def test_a_turned_vector_meets_itself_by_the_mean_of_cosines():
    scores = rotary_scores(Rotary(6), 13)
    angles = torch.arange(13)[:, None] / 10_000 ** (torch.tensor([0, 2, 4]) / 6)
    torch.testing.assert_close(scores, angles.cos().mean(dim=-1))


def test_biases_are_those_of_the_modules():
    slopes = torch.tensor(alibi_slopes(3))
    torch.testing.assert_close(bias_by_distance(ALiBi(3), 7), -slopes[:, None] * torch.arange(7))
    relative = RelativeBias(3, is_causal=True)
    bias = bias_by_distance(relative, 7)
    # Short distances have a bucket each.
    torch.testing.assert_close(bias, relative.table.weight[:7].T.detach())


def test_relative_keys_are_one_vector_beyond_the_furthest():
    module = RelativeKeys(6, max_distance=3)
    keys = keys_by_distance(module, 7)
    expected = module.table.weight[[3, 2, 1, 0, 0, 0, 0]].detach()
    torch.testing.assert_close(keys, expected)


def test_one_seed_has_an_interval_and_several_a_range():
    assert accuracy_interval([19], 20) == (0.95, *clopper_pearson(19, 20))
    assert accuracy_interval([10, 20, 15], 20) == pytest.approx((0.75, 0.5, 1.0))


def test_answers_are_counted_over_all_batches():
    sizes = PositionSizes(length=5, distances=(1,), vocab_size=1, num_layers=1, model_dim=8, num_heads=2, steps=1,
                  batch_size=3, num_seeds=1, num_sequences=107)  # fmt: skip
    # With one token in the world every answer is right.
    assert count_correct_at(train_encoding("rotary", 1, sizes, seed=0), 9, 1, sizes) == 107


@pytest.mark.slow
def test_a_model_learns_and_its_positions_decide_how_far():
    sizes = PositionSizes(length=18, distances=(1,), vocab_size=4, num_layers=1, model_dim=16, num_heads=2, steps=120,
                  batch_size=8, num_seeds=1, num_sequences=100, learning_rate=1e-2)  # fmt: skip
    near = {encoding: train_encoding(encoding, 1, sizes, seed=0) for encoding in ("shaw", "learned")}
    assert count_correct_at(near["shaw"], 18, 1, sizes) == 100
    assert count_correct_at(near["shaw"], 72, 1, sizes) > 85
    assert count_correct_at(near["learned"], 72, 1, sizes) < 60


@pytest.mark.slow
def test_the_study_is_whole():
    study = study_positions(sizes=TINY)
    assert len(study.tables) == 2
    for table in study.tables:
        assert [row[0] for row in table.rows] == list(ENCODINGS)
        cells: list[Any] = [cell for row in table.rows for cell in row[1:]]
        for middle, low, high in cells:
            assert 0.0 <= low <= middle <= high <= 1.0
    assert len(study.figure.axes) == 8
    assert str(8 * TINY.length) in study.findings[-1]
    assert math.isclose(study.settings["learning_rate"], TINY.learning_rate)
