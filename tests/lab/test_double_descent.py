"""Double descent against properties of least squares, and models trained in parallel against models trained alone."""

import copy
import math

import pytest
import torch
from torch import nn

from regard.lab.double_descent.risks import (
    NOISES,
    CurvePeak,
    DoubleDescentSizes,
    MemberData,
    NetworkRisks,
    RiskCurve,
    draw_sign_examples,
    find_peak,
    log_spaced,
    majority_data,
    measure_features,
    measure_perceptrons,
    measure_transformers,
    sign_data,
    study_double_descent,
    train_members,
    warmup_cosine,
)
from regard.lab.random_features import draw_random_features, min_norm_least_squares

TINY = DoubleDescentSizes(feature_rows=13, feature_inputs=5, feature_widths=(3, 13, 31), feature_draws=3,
             perceptron_rows=7,
             perceptron_inputs=5, perceptron_widths=(1, 3), perceptron_epochs=4, transformer_rows=7,
             transformer_widths=(2, 4), transformer_epochs=3, num_seeds=2, num_test_rows=11)  # fmt: skip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_labels_are_flipped_as_often_as_asked_and_nested():
    rows = draw_sign_examples(20_011, 3, (0.0, 0.1, 0.2), rng=seeded())
    is_flipped = rows.labels != rows.truth[:, None]
    shares = is_flipped.double().mean(dim=0)
    assert shares[0] == 0
    # Four standard deviations of a share of so many rows.
    torch.testing.assert_close(shares[1:], torch.tensor([0.1, 0.2]), atol=0.012, rtol=0)
    assert (is_flipped[:, 2] | ~is_flipped[:, 1]).all()
    assert torch.equal(rows.truth > 0, rows.inputs[:, 0] > 0)


def test_as_many_features_as_rows_interpolate_every_label_and_fewer_do_not():
    rows = draw_sign_examples(13, 5, (0.2,), rng=seeded())
    features = draw_random_features("fourier", 5, 31, bandwidth=1.5, rng=seeded(1))
    errors = {}
    for width in (11, 13, 31):
        made = features(rows.inputs, width)
        errors[width] = float((made @ min_norm_least_squares(made, rows.labels) - rows.labels).abs().max())
    assert errors[11] > 1e-3
    assert max(errors[13], errors[31]) < 1e-6


def test_random_features_peak_where_they_are_as_many_as_rows_and_end_at_the_kernel():
    sizes = DoubleDescentSizes(
        feature_widths=(5, 53, 101, 211, 6_007), feature_rows=101, num_test_rows=211, feature_inputs=23, feature_draws=4
    )
    risks = measure_features("fourier", sizes, (0.2,), seed=0)
    (shape,) = risks.curves
    assert shape.peak is not None
    assert risks.widths[shape.peak.top] == 101
    assert shape.estimates[2] > 5 * shape.estimates[[0, 4]].max()
    last, limit = shape.estimates[-1], risks.kernel_squared.median()
    assert abs(float(last - limit)) < 0.1 * float(limit)


def test_peaks_of_curves_computed_by_hand():
    assert find_peak(torch.tensor([5.0, 2.0, 3.0, 9.0, 4.0, 1.0])) == CurvePeak(1, 3, 5)
    # Of two peaks the more prominent one: 1 above 2 and 2 above 3.
    assert find_peak(torch.tensor([2.0, 3.0, 2.0, 4.0, 2.0])) == CurvePeak(0, 3, 4)
    for no_peak in ([3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [1.0, 1.0, 1.0]):
        assert find_peak(torch.tensor(no_peak)) is None


def test_a_curve_is_a_double_descent_only_if_rise_and_fall_are_significant():
    draws = torch.tensor([-0.01, 0.0, 0.01])
    curve = torch.tensor([3.0, 2.0, 5.0, 1.0])
    clear = RiskCurve((1, 2, 4, 8), curve[:, None] + draws)
    assert clear.is_double_descent
    assert [clear.compare(3, 1), clear.compare(2, 1), clear.compare(1, 1)] == [-1, 1, 0]
    # The same means, from draws that agree on nothing.
    noisy = RiskCurve((1, 2, 4, 8), curve[:, None] + torch.tensor([[-9.0, 0, 9], [9, 0, -9], [-9, 9, 0], [0, 9, -9]]))
    assert noisy.peak == clear.peak
    assert not noisy.is_double_descent
    assert noisy.compare(3, 1) == 0
    assert not RiskCurve((1, 2, 4), torch.tensor([[2.0, 2.1], [1.0, 1.1], [3.0, 3.1]])).is_double_descent


def test_models_trained_in_parallel_equal_those_trained_alone():
    sizes = DoubleDescentSizes(perceptron_rows=7, perceptron_inputs=3, num_test_rows=5)
    split = sign_data(sizes, (0.0, 0.3), seeds=(0,))
    models = [nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1), nn.Flatten(0)) for _ in range(2)]
    _, together = train_members(models, split, measured=(1, 5), learning_rate=0.1, description="test")
    for i, model in enumerate(map(copy.deepcopy, models)):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for step in range(5):
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * step / 5)) / 2
            optimizer.zero_grad()
            (model(split.inputs[i]) - split.labels[i]).square().mean().backward()
            optimizer.step()
        expected = (model(split.test_inputs[i]) - split.test_labels[i]).square().mean()
        torch.testing.assert_close(together[i, -1], expected.detach())


def test_the_majority_is_what_one_counts():
    sizes = DoubleDescentSizes(transformer_rows=31, num_test_rows=7, num_symbols=6)
    split = majority_data(sizes, (0.0, 0.5), seeds=(0, 1))
    assert split.inputs.shape == (4, 31, 5)
    for symbols, label in zip(split.inputs[2], split.labels[2], strict=True):
        assert label == (1 if sum(symbol < 3 for symbol in symbols.tolist()) >= 3 else -1)
    assert torch.equal(split.inputs[0], split.inputs[1])
    assert 5 < int((split.labels[0] != split.labels[1]).sum()) < 26


def test_every_width_has_the_same_first_weights_for_every_noise():
    sizes = DoubleDescentSizes(
        transformer_widths=(2, 4), transformer_rows=5, num_test_rows=7, length=3, num_symbols=4, transformer_epochs=3,
        transformer_rate=0.01, num_seeds=2,
    )  # fmt: skip
    risks = measure_transformers(sizes, (0.0, 0.0), seed=0)
    # Equal noises: all else must be equal too.
    torch.testing.assert_close(risks.test[0], risks.test[1])
    assert not torch.allclose(risks.test[:, :, :, 0], risks.test[:, :, :, 1])


def test_risks_stand_where_their_noise_and_width_do():
    sizes = DoubleDescentSizes(
        perceptron_widths=(1, 16), perceptron_rows=31, num_test_rows=7, perceptron_inputs=3, perceptron_epochs=100,
        perceptron_rate=0.05, num_seeds=2,
    )  # fmt: skip
    risks = measure_perceptrons(sizes, (0.0, 0.5), seed=0)
    assert risks.num_parameters == [6, 81]
    errors = risks.train[:, :, -1]
    # Half of the labels flipped is harder, and the wider network is closer to its labels.
    assert (errors[1] > errors[0]).all()
    assert (errors[:, 1] < errors[:, 0]).all()
    assert (risks.train[:, :, 0] > errors).all()


@pytest.mark.slow
def test_a_wide_transformer_interpolates_flipped_labels():
    sizes = DoubleDescentSizes(
        transformer_widths=(32,), transformer_rows=23, num_test_rows=5, length=3, transformer_epochs=200, num_seeds=2
    )
    risks = measure_transformers(sizes, (0.3,), seed=0)
    assert float(risks.train[:, :, -1].max()) < 0.01


def test_the_width_of_interpolation_is_one_that_all_wider_networks_share():
    def risks(*errors: float) -> NetworkRisks:
        trained = torch.tensor(errors)[None, :, None, None]
        return NetworkRisks("test", range(len(errors)), range(len(errors)), (1,), trained, trained)

    assert risks(0.5, 0.0, 0.5, 0.001, 0.0).interpolates_from(0) == 3
    assert risks(0.0, 0.0).interpolates_from(0) == 0
    assert risks(0.0, 0.5).interpolates_from(0) is None


def test_the_rate_rises_and_falls():
    shares = [warmup_cosine(step, 100) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert shares.index(max(shares)) == 9
    assert shares[50] == pytest.approx(0.5)
    assert shares[-1] < 0.001


def test_epochs_are_spread_evenly_to_the_last():
    assert log_spaced(1) == [1]
    assert log_spaced(10_000, per_decade=1) == [1, 10, 100, 1000, 10_000]
    assert log_spaced(250)[-1] == 250


def test_the_study_is_whole():
    study = study_double_descent(sizes=TINY)
    assert [len(table.rows) for table in study.tables] == [4, 4, 2, 2, 3, 2 * len(NOISES), 5 * len(NOISES)]
    assert len(study.findings) == 5 + 2
    assert len(study.figure.axes) == 6


def test_training_and_test_rows_are_disjoint():
    split: MemberData = sign_data(
        DoubleDescentSizes(perceptron_rows=7, perceptron_inputs=3, num_test_rows=5), NOISES, seeds=(0,)
    )
    assert not (split.inputs[0][:, None] == split.test_inputs[0][None]).all(dim=-1).any()
