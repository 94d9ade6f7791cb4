"""Double descent, against what is known of least squares, and networks trained side by side against one alone."""

import copy
import math

import pytest
import torch
from torch import nn

from regard.lab.double_descent import NOISES, Sizes, investigate, met_from
from regard.lab.double_descent_features import draw_rows, measure_features
from regard.lab.double_descent_networks import (
    NetworkRisks,
    Split,
    majority_split,
    measure_perceptrons,
    measure_transformers,
    perceptron_split,
    share_of_peak,
    spaced,
    train_together,
)
from regard.lab.double_descent_shape import MEAN, Peak, Shape, describe, find_peak
from regard.lab.random_features import draw_features, ridgeless

TINY = Sizes(feature_rows=13, feature_inputs=5, feature_widths=(3, 13, 31), feature_draws=3, perceptron_rows=7,
             perceptron_inputs=5, perceptron_widths=(1, 3), perceptron_epochs=4, transformer_rows=7,
             transformer_widths=(2, 4), transformer_epochs=3, num_seeds=2, num_fresh=11)  # fmt: skip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_labels_are_turned_round_as_often_as_is_said_and_nested():
    rows = draw_rows(20_011, 3, (0.0, 0.1, 0.2), rng=seeded())
    turned = rows.labels != rows.truth[:, None]
    shares = turned.double().mean(dim=0)
    assert shares[0] == 0
    # Four standard deviations of a share of so many rows.
    torch.testing.assert_close(shares[1:], torch.tensor([0.1, 0.2]), atol=0.012, rtol=0)
    assert (turned[:, 2] | ~turned[:, 1]).all()
    assert torch.equal(rows.truth > 0, rows.inputs[:, 0] > 0)


def test_as_many_features_as_rows_meet_every_label_and_fewer_do_not():
    rows = draw_rows(13, 5, (0.2,), rng=seeded())
    features = draw_features("fourier", 5, 31, bandwidth=1.5, rng=seeded(1))
    errors = {}
    for width in (11, 13, 31):
        made = features(rows.inputs, width)
        errors[width] = float((made @ ridgeless(made, rows.labels) - rows.labels).abs().max())
    assert errors[11] > 1e-3
    assert max(errors[13], errors[31]) < 1e-6


def test_random_features_peak_where_they_are_as_many_as_rows_and_end_at_the_kernel():
    risks = measure_features(
        "fourier", (5, 53, 101, 211, 6_007), (0.2,), num_rows=101, num_fresh=211, input_dim=23, bandwidth=1.5,
        seeds=range(4),
    )  # fmt: skip
    (shape,) = risks.shapes()
    assert shape.peak is not None
    assert risks.widths[shape.peak.top] == 101
    assert shape.middles[2] > 5 * shape.middles[[0, 4]].max()
    last, limit = shape.middles[-1], risks.limit_squared.median()
    assert abs(float(last - limit)) < 0.1 * float(limit)


def test_peaks_of_curves_worked_out_by_hand():
    assert find_peak(torch.tensor([5.0, 2.0, 3.0, 9.0, 4.0, 1.0])) == Peak(1, 3, 5)
    # Of two rises that which stands out more: 1 above 2 and 2 above 3.
    assert find_peak(torch.tensor([2.0, 3.0, 2.0, 4.0, 2.0])) == Peak(0, 3, 4)
    for no_peak in ([3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [1.0, 1.0, 1.0]):
        assert find_peak(torch.tensor(no_peak)) is None


def test_words_say_what_the_draws_say():
    draws = torch.tensor([-0.01, 0.0, 0.01])
    curve = torch.tensor([3.0, 2.0, 5.0, 1.0])
    clear = Shape((1, 2, 4, 8), curve[:, None] + draws, MEAN)
    assert clear.is_double
    assert describe(clear, "wide").endswith("a second minimum of 1 at 8 wide, below the first")
    # The same middles, from draws that do not agree on anything.
    noisy = Shape((1, 2, 4, 8), curve[:, None] + torch.tensor([[-9.0, 0, 9], [9, 0, -9], [-9, 9, 0], [0, 9, -9]]), MEAN)
    assert not noisy.is_double
    assert "not told apart from the first; the rise, the second descent or both are within the luck" in describe(
        noisy, "x"
    )
    assert describe(Shape((1, 2), torch.tensor([[2.0], [1.0]]), MEAN), "x").startswith("falls all the way")
    fall_and_rise = Shape((1, 2, 4), torch.tensor([[2.0], [1.0], [3.0]]), MEAN)
    assert describe(fall_and_rise, "x") == "falls to 1 at 2 x and rises to 3 at 4 x, with no second descent"


def test_models_trained_side_by_side_are_those_trained_alone():
    split = perceptron_split((0.0, 0.3), num_rows=7, num_fresh=5, input_dim=3, seeds=(0,))
    models = [nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1), nn.Flatten(0)) for _ in range(2)]
    together = train_together(models, split, measured=(1, 5), learning_rate=0.1, what="test")
    for i, model in enumerate(map(copy.deepcopy, models)):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for step in range(5):
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * step / 5)) / 2
            optimizer.zero_grad()
            (model(split.inputs[i]) - split.labels[i]).square().mean().backward()
            optimizer.step()
        expected = (model(split.fresh_inputs[i]) - split.fresh_labels[i]).square().mean()
        torch.testing.assert_close(together.fresh[i, -1], expected.detach())


def test_the_majority_is_what_one_counts():
    split = majority_split((0.0, 0.5), num_rows=31, num_fresh=7, length=5, num_symbols=6, seeds=(0, 1))
    assert split.inputs.shape == (4, 31, 5)
    for symbols, label in zip(split.inputs[2], split.labels[2], strict=True):
        assert label == (1 if sum(symbol < 3 for symbol in symbols.tolist()) >= 3 else -1)
    assert torch.equal(split.inputs[0], split.inputs[1])
    assert 5 < int((split.labels[0] != split.labels[1]).sum()) < 26


def test_every_width_has_the_same_first_weights_for_every_noise():
    risks = measure_transformers(
        (2, 4), (0.0, 0.0), num_rows=5, num_fresh=7, length=3, num_symbols=4, epochs=3, learning_rate=0.01, seeds=(0, 1)
    )
    # Equal noises: all else must be equal too.
    torch.testing.assert_close(risks.fresh[0], risks.fresh[1])
    assert not torch.allclose(risks.fresh[:, :, :, 0], risks.fresh[:, :, :, 1])


def test_risks_stand_where_their_noise_and_width_do():
    risks = measure_perceptrons(
        (1, 16), (0.0, 0.5), num_rows=31, num_fresh=7, input_dim=3, epochs=100, learning_rate=0.05, seeds=(0, 1)
    )
    assert risks.num_parameters == [6, 81]
    errors = risks.trained[:, :, -1]
    # Labels that are half turned round are the harder ones, and the wider network the nearer to them.
    assert (errors[1] > errors[0]).all()
    assert (errors[:, 1] < errors[:, 0]).all()
    assert (risks.trained[:, :, 0] > errors).all()


@pytest.mark.slow
def test_a_wide_transformer_meets_turned_labels():
    risks = measure_transformers(
        (32,), (0.3,), num_rows=23, num_fresh=5, length=3, num_symbols=12, epochs=200, learning_rate=5e-3, seeds=(0, 1)
    )
    assert float(risks.trained[:, :, -1].max()) < 0.01


def test_labels_are_met_from_the_width_that_all_wider_ones_follow():
    def risks(*errors: float) -> NetworkRisks:
        trained = torch.tensor(errors)[None, :, None, None]
        return NetworkRisks("test", range(len(errors)), range(len(errors)), (1,), trained, trained)

    assert met_from(risks(0.5, 0.0, 0.5, 0.001, 0.0), 0) == 3
    assert met_from(risks(0.0, 0.0), 0) == 0
    assert met_from(risks(0.0, 0.5), 0) is None


def test_the_rate_rises_and_falls():
    shares = [share_of_peak(step, 100) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert shares.index(max(shares)) == 9
    assert shares[50] == pytest.approx(0.5)
    assert shares[-1] < 0.001


def test_epochs_are_spread_evenly_to_the_last():
    assert spaced(1) == [1]
    assert spaced(10_000, per_decade=1) == [1, 10, 100, 1000, 10_000]
    assert spaced(250)[-1] == 250


def test_the_study_is_whole():
    study = investigate(TINY, seed=0)
    assert [len(table.rows) for table in study.tables] == [4, 4, 2, 2, 3]
    assert len(study.findings) == 2 * (len(NOISES) + 1) + 3 * len(NOISES)
    assert len(study.figure.axes) == 6


def test_a_split_keeps_what_is_learnt_from_what_is_judged():
    split: Split = perceptron_split(NOISES, num_rows=7, num_fresh=5, input_dim=3, seeds=(0,))
    assert not (split.inputs[0][:, None] == split.fresh_inputs[0][None]).all(dim=-1).any()
