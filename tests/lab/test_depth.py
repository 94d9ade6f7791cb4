"""Signals in random blocks against the theory of wide networks, and training losses by depth."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from regard.lab.depth import degradation as module
from regard.lab.depth.degradation import (
    VARIANTS,
    BlockVariant,
    DepthLosses,
    DepthSizes,
    SignalState,
    StackedBlocks,
    degradation,
    measure_losses,
    measure_signal,
    predict_signal,
    relu_cosine,
    residual_gain,
    study_depth,
    train_perceptrons,
    train_transformers,
)
from regard.models.transformer import Transformer

TINY = DepthSizes(
    signal_width=7, signal_depth=3, signal_draws=2, num_inputs=3, num_rows=11, width=8, perceptron_depths=(1, 2),
    perceptron_steps=2, perceptron_rates=(1e-3, 1e-2), num_seeds=2, num_sequences=5, length=7, vocab_size=5,
    model_dim=8, transformer_depths=(1, 2), transformer_steps=2, transformer_rates=(1e-3,), batch_size=3,
    num_transformer_seeds=2,
)  # fmt: skip
START, DEPTH, GAIN = 0.2, 4, 0.8


def measured_states() -> dict[str, list[tuple[SignalState, SignalState]]]:
    """For each variant the state after each block, and its standard error, over 40 draws of width 211."""
    found = {}
    for name, variant in VARIANTS.items():
        rng = torch.Generator().manual_seed(1)
        squares, cosines = measure_signal(
            variant, width=211, depth=DEPTH, gain=GAIN, cosine=START, num_draws=40, rng=rng
        )
        means = zip(squares.mean(dim=0).tolist(), cosines.mean(dim=0).tolist(), strict=True)
        errors = zip(squares.std(dim=0).tolist(), cosines.std(dim=0).tolist(), strict=True)
        found[name] = [
            (SignalState(*mean), SignalState(*(each / math.sqrt(40) for each in error)))
            for mean, error in zip(means, errors, strict=True)
        ]
    return found


STATES: dict[str, list[tuple[SignalState, SignalState]]] = {}


def agrees(name: str, theory: Sequence[SignalState]) -> bool:
    """Whether the measured states are those of the theory, but for four standard errors and 2 % of a finite width."""
    if not STATES:
        STATES.update(measured_states())
    return all(
        abs(measured - expected) <= 4 * error + 0.02 * max(abs(expected), 0.1)
        for (mean, errors), state in zip(STATES[name], theory, strict=True)
        for measured, error, expected in zip(mean, errors, state, strict=True)
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_wide_random_blocks_follow_the_theory(name: str):
    assert agrees(name, predict_signal(VARIANTS[name], gain=GAIN, cosine=START, depth=DEPTH))


def iterate(step: Callable[[float, float], tuple[float, float]]) -> list[SignalState]:
    states = [SignalState(1.0, START)]
    for _ in range(DEPTH):
        states.append(SignalState(*step(*states[-1])))
    return states


def without_pi(cosine: float) -> float:
    angle = math.acos(cosine)
    return math.sin(angle) / math.pi + (1 - angle / math.pi / 2) * cosine


G = GAIN**2
WRONG: dict[str, tuple[str, Callable[[float, float], tuple[float, float]]]] = {
    "plain: no gain": ("plain", lambda q, c: (q, relu_cosine(c))),
    "plain: the gain once": ("plain", lambda q, c: (GAIN * q, relu_cosine(c))),
    "plain: half of the variance": ("plain", lambda q, c: (G * q / 2, relu_cosine(c))),
    "plain: half of the kernel": ("plain", lambda q, c: (G * q, relu_cosine(c) / 2)),
    "plain: the angle halved": ("plain", lambda q, c: (G * q, without_pi(c))),
    "plain: the cosine is kept": ("plain", lambda q, c: (G * q, c)),
    "norm: as without": ("norm", lambda q, c: (G * q, relu_cosine(c))),
    "norm: no gain": ("norm", lambda q, c: (1.0, relu_cosine(c))),
    "norm: the cosine is kept": ("norm", lambda q, c: (G, c)),
    "residual: the gain once": ("residual", lambda q, c: ((1 + GAIN) * q, (c + GAIN * relu_cosine(c)) / (1 + GAIN))),
    "residual: added, not multiplied": ("residual", lambda q, c: (q + G, (q * c + G * relu_cosine(c)) / (q + G))),
    "residual: amplitudes": ("residual", lambda q, c: ((1 + GAIN) ** 2 * q, (c + G * relu_cosine(c)) / (1 + G))),
    "residual: equal parts": ("residual", lambda q, c: ((1 + G) * q, (c + relu_cosine(c)) / 2)),
    "both: multiplied": ("residual + norm", lambda q, c: ((1 + G) * q, (c + G * relu_cosine(c)) / (1 + G))),
    "both: no gain": ("residual + norm", lambda q, c: (q + 1, (q * c + relu_cosine(c)) / (q + 1))),
    "both: equal parts": ("residual + norm", lambda q, c: (q + G, (c + G * relu_cosine(c)) / (1 + G))),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_forms_of_the_theory_are_rejected(wrong: str):
    name, step = WRONG[wrong]
    assert not agrees(name, iterate(step))


def test_inputs_become_alike_without_residual_connections_and_slowly_with_them():
    ends = {name: predict_signal(variant, gain=1.0, cosine=0.0, depth=64)[-1] for name, variant in VARIANTS.items()}
    assert ends["plain"].cosine == ends["norm"].cosine > 0.99
    assert ends["residual"].cosine < ends["plain"].cosine
    assert ends["residual + norm"].cosine < 0.9
    assert ends["residual"].square == 2.0**64
    assert ends["residual + norm"].square == 65


@pytest.mark.parametrize("name", VARIANTS)
def test_stacked_blocks_are_the_networks_that_one_writes_down(name: str):
    variant, rng = VARIANTS[name], torch.Generator().manual_seed(0)
    model = StackedBlocks(3, 5, 7, 2, variant, gain=0.5, rng=rng)
    with torch.no_grad():
        for bias in [*model.first_bias, *model.second_bias, model.output_bias]:
            bias.normal_()
    inputs = torch.randn(3, 11, 5)
    state = inputs[1] @ model.project[1]
    for i in range(2):
        normalized = F.layer_norm(state, (7,)) if variant.has_norm else state
        hidden = (normalized @ model.first[i][1] + model.first_bias[i][1]).relu()
        change = hidden @ model.second[i][1] + model.second_bias[i][1]
        state = state + change if variant.has_residual else change
    state = F.layer_norm(state, (7,)) if variant.has_norm else state
    expected = (state @ model.output[1] + model.output_bias[1])[:, 0]
    torch.testing.assert_close(model(inputs)[1], expected)


def test_blocks_of_a_residual_network_are_scaled_by_its_depth():
    assert residual_gain(VARIANTS["plain"], 16) == 1
    state = predict_signal(VARIANTS["residual"], gain=residual_gain(VARIANTS["residual"], 1009), cosine=0.0, depth=1009)
    assert state[-1].square == pytest.approx(math.e, rel=1e-3)


@pytest.mark.parametrize("name", VARIANTS)
def test_transformers_are_built_from_blocks_that_leave_out_residuals_or_norms(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    built: list[Any] = []

    def build(config: Any, vocab_size: int) -> Transformer:
        built.append(config)
        return Transformer(config, vocab_size)

    monkeypatch.setattr(module, "Transformer", build)
    losses = train_transformers(VARIANTS[name], 2, 1e-3, TINY, seed=0)
    assert losses.shape == (2,)
    assert len(built) == 2
    assert {(config.residual, config.norm != "none") for config in built} == {tuple(VARIANTS[name])}
    assert {config.decoder_depth for config in built} == {2}


def test_the_best_learning_rate_is_kept_and_what_diverges_is_infinite():
    def train(variant: BlockVariant, depth: int, rate: float, sizes: DepthSizes, *, seed: int) -> torch.Tensor:
        return torch.tensor([math.nan, 1.0]) if rate > 0.1 else torch.tensor([depth + rate, depth - rate])

    curves = measure_losses(train, (3, 5), (0.01, 0.1, 1.0), TINY, seed=0, name="")
    assert list(curves) == list(VARIANTS)
    assert [each.depth for each in curves["plain"]] == [3, 5]
    assert [each.mean for each in curves["plain"]] == pytest.approx([3.0, 5.0])
    assert all(each.learning_rate <= 0.1 for each in curves["plain"])


def test_degradation_is_the_difference_from_the_best_depth():
    curve = [DepthLosses(depth, 0.1, torch.tensor(losses)) for depth, losses in
             ((1, [2.0, 2.2, 2.1]), (2, [1.0, 1.1, 1.3]), (4, [3.0, 3.2, 3.3]))]  # fmt: skip
    best, deepest, (mean, low, high) = degradation(curve)
    assert (best.depth, deepest.depth) == (2, 4)
    assert mean == pytest.approx(2.0 + 1 / 30)
    assert 1.8 < low < mean < high < 2.3


@pytest.mark.parametrize("name", VARIANTS)
def test_perceptrons_of_every_variant_learn_more_than_the_mean(name: str):
    sizes = DepthSizes(perceptron_steps=40, num_seeds=3, num_rows=53)
    losses = train_perceptrons(VARIANTS[name], 2, 0.004, sizes, seed=0)
    assert losses.shape == (3,)
    assert float(losses.max()) < 0.9  # the targets have a variance of 1
    assert torch.equal(losses, train_perceptrons(VARIANTS[name], 2, 0.004, sizes, seed=0))


@pytest.mark.slow
def test_deep_plain_transformers_do_not_learn_what_shallow_and_residual_ones_do():
    sizes = DepthSizes(transformer_steps=200, num_transformer_seeds=1)
    plain, deep, residual = (
        float(train_transformers(VARIANTS[name], depth, 0.004, sizes, seed=0))
        for name, depth in (("plain", 1), ("plain", 4), ("residual", 4))
    )
    assert plain < 0.3
    assert residual < 0.3
    assert deep > 1.0


def test_the_study_is_whole():
    study = study_depth(sizes=TINY)
    assert [len(table.rows) for table in study.tables] == [4 * 3, 4 * 2, 4 * 2]
    assert len(study.findings) == 3
    assert len(study.figure.axes) == 4
    assert study_depth(sizes=TINY).to_json()["tables"] == study.to_json()["tables"]
    assert study_depth(sizes=TINY, seed=1).to_json()["tables"] != study.to_json()["tables"]
