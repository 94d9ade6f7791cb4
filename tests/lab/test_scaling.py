"""The language's entropy, the laws from points that lie on them, and the study from end to end."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from regard.errors import DataError
from regard.evaluation.intervals import percentile_interval
from regard.lab.scaling.laws import (
    MarkovLanguage,
    ScalingLaw,
    ScalingSizes,
    bootstrap_fits,
    compute_frontier,
    count_step_flops,
    fit_power_law,
    fit_scaling_law,
    lack_of_fit,
    make_language,
    study_scaling,
)
from regard.models.transformer import Transformer, TransformerConfig

TINY = ScalingSizes(widths=(4, 8, 12), steps=(2, 4, 8), larger_width=16, larger_steps=(8, 11), num_seeds=1, length=17,
             batch_size=3, vocab_size=13, num_test_rows=5, num_resamples=7)  # fmt: skip
LAW = ScalingLaw(1.3, 41.0, 0.45, 130.0, 0.31)


def language_of() -> MarkovLanguage:
    return make_language(23, context_weight=0.4, exponent=1.1, rng=torch.Generator().manual_seed(1))


def grid(law: ScalingLaw = LAW) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    points = [(n, d) for n in (1e3, 3e3, 1e4, 5e4) for d in (1e4, 5e4, 2e5, 1e6)]
    parameters, tokens = np.array(points).T
    return parameters, tokens, np.array([law.loss(*point) for point in points])


def test_probabilities_sum_to_one_and_mix_a_ranking_of_each_character_with_the_common_one():
    language = language_of()
    torch.testing.assert_close(language.following.sum(dim=1), torch.ones(23))
    own = (language.following - 0.6 * language.first) / 0.4
    torch.testing.assert_close(own.sort(dim=1, descending=True).values, language.first.expand(23, -1))
    assert len(own.argsort(dim=1).unique(dim=0)) == 23
    assert language.first[0] / language.first[9] == pytest.approx(10**1.1)


def test_the_entropy_of_a_sample_is_the_loss_of_the_rules():
    language = language_of()
    sample = language.draw(29, 37, torch.Generator().manual_seed(1))
    inputs, targets = sample.batch
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    loss = F.cross_entropy(language.following[inputs].log().flatten(0, 1), targets.flatten())
    assert sample.entropy == pytest.approx(float(loss))


def test_the_entropy_of_long_text_is_that_of_the_language():
    language = language_of()
    samples = [language.draw(1, 199, torch.Generator().manual_seed(seed)).entropy for seed in range(19)]
    around = 4 * float(np.std(samples, ddof=1)) / math.sqrt(19)
    assert abs(float(np.mean(samples)) - language.entropy) < around < 0.2


def test_a_language_without_context_has_the_entropy_of_zipfs_law():
    language = make_language(23, context_weight=0.0, exponent=1.1, rng=torch.Generator())
    assert language.entropy == pytest.approx(float(torch.distributions.Categorical(language.first).entropy()))


def test_the_first_character_is_as_common_as_it_is_probable():
    language = language_of()
    firsts = language.draw(4_001, 1, torch.Generator().manual_seed(1)).batch.inputs[:, 0]
    for number, chance in enumerate(language.first[:3].tolist()):
        share = float((firsts == number).double().mean())
        assert abs(share - chance) < 4 * math.sqrt(chance * (1 - chance) / 4_001)


def test_a_law_is_found_again_from_points_on_it():
    law = fit_scaling_law(*grid())
    found = [law.floor, law.size_factor, law.size_exponent, law.data_factor, law.data_exponent]
    # The search ends where the Huber loss no longer falls, which is flat along a valley of all five.
    assert found == pytest.approx([1.3, 41.0, 0.45, 130.0, 0.31], rel=2e-2)
    assert law.loss(2e5, 4e6) == pytest.approx(LAW.loss(2e5, 4e6), rel=1e-3)


def test_what_a_law_leaves_is_held_against_what_seeds_leave():
    law = ScalingLaw(1.0, 1.0, 1.0, 1.0, 1.0)
    cells = [(float(n), float(d)) for n in (1, 2, 4) for d in (1, 2)]
    shift = dict(zip(cells, (0.1, 0.0, 0.0, 0.0, 0.0, 0.0), strict=True))
    runs = [(*cell, law.loss(*cell) * math.exp(shift[cell] + luck)) for cell in cells for luck in (-0.02, 0.02)]
    found = lack_of_fit(runs, law)
    assert found is not None
    assert found.residual == pytest.approx(math.sqrt(0.1**2 / 6))
    assert found.spread == pytest.approx(math.sqrt(2) * 0.02)
    # F = (2 * 0.1^2 / (6 - 5)) / (12 * 0.02^2 / (12 - 6)) = 25, with 1 and 6 degrees of freedom.
    assert found.p_value == pytest.approx(float(stats.f.sf(25, 1, 6)))


def test_a_form_that_holds_is_seldom_rejected_and_one_that_does_not_is():
    rng = np.random.default_rng(0)
    parameters, tokens, losses = (np.repeat(values, 3) for values in grid())

    def p_value(truth: np.ndarray) -> float:
        seen = truth * np.exp(rng.normal(scale=3e-4, size=len(truth)))
        found = lack_of_fit(
            list(zip(parameters, tokens, seen, strict=True)), fit_scaling_law(parameters, tokens, seen, start=LAW)
        )
        assert found is not None
        return found.p_value

    rejected = sum(p_value(losses) < 0.05 for _ in range(200))
    assert stats.binomtest(rejected, 200, 0.05).pvalue > 1e-3
    assert p_value(losses * (1 + 0.01 * (parameters > tokens / 20))) < 1e-6


def test_without_other_seeds_nothing_is_said_of_the_form():
    assert lack_of_fit(list(zip(*grid(), strict=True)), LAW) is None
    assert lack_of_fit([(1.0, 1.0, 3.0)] * 4, LAW) is None


def test_one_bad_run_decides_nothing():
    parameters, tokens, losses = grid()
    losses[5] *= 1.5
    law = fit_scaling_law(parameters, tokens, losses)
    assert law.loss(2e5, 4e6) == pytest.approx(LAW.loss(2e5, 4e6), rel=5e-3)


def test_a_fit_from_a_start_nearby_is_that_from_many():
    parameters, tokens, losses = grid()
    losses *= np.exp(0.01 * np.random.default_rng(0).standard_normal(len(losses)))
    whole = fit_scaling_law(parameters, tokens, losses)
    again = fit_scaling_law(parameters, tokens, losses, start=LAW)
    assert again.loss(2e4, 4e5) == pytest.approx(whole.loss(2e4, 4e5), rel=1e-2)


def test_the_best_size_is_where_the_loss_is_least():
    for compute in (1e9, 1e12):
        sizes = LAW.optimal_size(compute) * np.exp([-1e-2, 0.0, 1e-2])
        before, least, after = (LAW.loss(size, compute / 6 / size) for size in sizes.tolist())
        assert least < min(before, after)
        # At the bottom of a valley both sides rise alike, but for a third order.
        assert before - least == pytest.approx(after - least, rel=0.02)
    growth = math.log(LAW.optimal_size(1e12) / LAW.optimal_size(1e9)) / math.log(1e3)
    assert growth == pytest.approx(LAW.compute_exponent)


def test_a_power_law_is_found_again():
    x = np.array([1e3, 2e4, 7e5])
    law = fit_power_law(x, 3.7 * x**-0.21)
    assert (law.factor, law.exponent, law.loss(1e9)) == pytest.approx((3.7, 0.21, 3.7 * 1e9**-0.21))


def test_the_frontier_leaves_out_whatever_costs_more_for_less():
    compute, losses = np.array([4.0, 1.0, 2.0, 3.0, 2.0]), np.array([1.0, 5.0, 3.0, 3.5, 2.0])
    assert compute_frontier(compute, losses) == [1, 4, 0]


def test_intervals_from_resampling_cover_as_often_as_they_say():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(100):
        values = rng.standard_normal(60)
        means = bootstrap_fits(lambda drawn: float(values[drawn].mean()), 60, num_resamples=100, rng=rng,  # noqa: B023
                          is_sufficient=lambda drawn: len(set(drawn)) > 2)  # fmt: skip
        low, high = percentile_interval(np.array(means), 0.95)
        covered += low <= 0.0 <= high
    # 95 % but for three standard deviations of 100 trials and what the bootstrap lacks at 60 values.
    assert covered / 100 > 0.86


def test_runs_that_are_never_enough_are_said_to_be_too_few():
    with pytest.raises(DataError, match="use more runs"):
        bootstrap_fits(sum, 3, num_resamples=2, rng=np.random.default_rng(0), is_sufficient=lambda drawn: False)


def test_operations_are_those_of_the_matrices_and_of_attention():
    width, rows, length, layers = 12, 3, 17, 2
    config = TransformerConfig(encoder_layers=0, decoder_layers=layers, model_dim=width, num_heads=2,
                               feedforward_dim=4 * width, block="pre-norm", positions="rotary")  # fmt: skip
    matrices = layers * 12 * width**2 + width * 13
    attention = layers * 2 * length * width
    expected = 3 * 2 * rows * length * (matrices + attention)
    assert count_step_flops(Transformer(config, 13), rows, length) == expected


@pytest.mark.slow
def test_the_study_is_whole_and_the_same_again():
    study = study_scaling(sizes=TINY, seed=3)
    laws, larger, runs = study.tables
    assert (len(laws.rows), len(larger.rows), len(runs.rows)) == (7, 2, 9)
    assert [row[1] for row in larger.rows] == [8 * 3 * 17, 11 * 3 * 17]
    for _, number in laws.rows:
        assert isinstance(number, tuple)
        assert number[1] <= number[2]
    assert len(study.figure.axes) == 4
    assert study_scaling(sizes=TINY, seed=3).findings == study.findings
