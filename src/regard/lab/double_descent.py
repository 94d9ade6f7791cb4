r"""Double descent: the risk against capacity, through the point where a model can meet every label.

Belkin et al., "Reconciling modern machine-learning practice and the classical bias-variance trade-off" (2019).
https://arxiv.org/abs/1812.11118
Nakkiran et al., "Deep Double Descent: Where Bigger Models and More Data Hurt" (2019).
https://arxiv.org/abs/1912.02292

A model with far fewer numbers to fit than rows cannot meet the labels; one with
just as many can, in a single way, noise and all; one with more can in many ways,
and least squares or descent takes a small one of them. So the risk may fall, rise
to a peak where models begin to meet every label, and fall again.

Seen here for random features (`double_descent_features.py`), which end at a kernel
machine, and for perceptrons and Transformers (`double_descent_networks.py`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from regard.evaluation.means import mean_interval
from regard.lab import STUDIES
from regard.lab.double_descent_features import FeatureRisks, measure_features
from regard.lab.double_descent_figure import compose
from regard.lab.double_descent_networks import NetworkRisks, measure_perceptrons, measure_transformers
from regard.lab.double_descent_shape import describe
from regard.lab.random_features import Kind, median_around
from regard.lab.study import Cell, Study, Table

NOISES = (0.0, 0.1, 0.2)
"""Shares of labels turned round."""
KINDS: tuple[Kind, ...] = ("fourier", "relu")
IS_MET = 0.01
"""The mean squared error below which labels of -1 and 1 are said to be met."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the models are, and on how much they are tried."""

    feature_rows: int = 400
    feature_inputs: int = 50
    bandwidth: float = 1.5
    feature_widths: tuple[int, ...]
    feature_draws: int
    perceptron_rows: int = 120
    perceptron_inputs: int = 12
    perceptron_widths: tuple[int, ...]
    perceptron_epochs: int
    perceptron_rate: float = 0.02
    transformer_rows: int
    length: int = 5
    """Symbols of a sequence."""
    num_symbols: int = 12
    transformer_widths: tuple[int, ...]
    transformer_epochs: int
    transformer_rate: float = 0.005
    num_seeds: int
    """Of networks: each seed has its own rows and its own first weights."""
    num_fresh: int
    """Rows on which each model is judged."""


QUICK = Sizes(
    feature_widths=(5, 10, 20, 40, 80, 130, 200, 280, 340, 380, 400, 420, 460, 550, 700, 1000, 2000, 4000, 8000),
    feature_draws=10, perceptron_widths=(1, 2, 4, 6, 8, 10, 14, 20, 50, 128), perceptron_epochs=800,
    transformer_rows=100, transformer_widths=(2, 4, 6, 8, 12, 16, 32, 64), transformer_epochs=250, num_seeds=4,
    num_fresh=400,
)  # fmt: skip
FULL = Sizes(
    feature_widths=(
        5, 7, 10, 14, 20, 28, 40, 60, 80, 100, 130, 160, 200, 240, 280, 320, 350, 370, 385, 394, 400, 406, 415, 430,
        460, 500, 550, 620, 700, 850, 1000, 1400, 2000, 2800, 4000, 5600, 8000, 16_000,
    ),
    feature_draws=30, perceptron_widths=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 30, 50, 80, 128, 256, 512),
    perceptron_epochs=4_000, transformer_rows=200,
    transformer_widths=(2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128), transformer_epochs=2_000,
    num_seeds=6, num_fresh=2_000,
)  # fmt: skip


def study(*, quick: bool, seed: int) -> Study:
    """Follow the risk of three kinds of models past the point where they meet every label."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    features: dict[Kind, FeatureRisks] = {kind: _measure_kind(kind, sizes, seed) for kind in KINDS}
    seeds = range(seed, seed + sizes.num_seeds)
    perceptrons = measure_perceptrons(
        sizes.perceptron_widths, NOISES, num_rows=sizes.perceptron_rows, num_fresh=sizes.num_fresh,
        input_dim=sizes.perceptron_inputs, epochs=sizes.perceptron_epochs, learning_rate=sizes.perceptron_rate,
        seeds=seeds,
    )  # fmt: skip
    transformers = measure_transformers(
        sizes.transformer_widths, NOISES, num_rows=sizes.transformer_rows, num_fresh=sizes.num_fresh,
        length=sizes.length, num_symbols=sizes.num_symbols, epochs=sizes.transformer_epochs,
        learning_rate=sizes.transformer_rate, seeds=seeds,
    )  # fmt: skip
    networks = [(perceptrons, sizes.perceptron_rows), (transformers, sizes.transformer_rows)]
    return Study(
        name="double-descent",
        title="Double descent",
        claim=STUDIES["double-descent"],
        findings=[
            *(finding for kind in KINDS for finding in _feature_findings(features[kind], sizes)),
            *(finding for each, num_rows in networks for finding in _network_findings(each, num_rows)),
            *_epoch_findings(transformers),
        ],
        tables=[
            *map(_feature_table, features.values()),
            *(_network_table(each) for each, _ in networks),
            _epoch_table(transformers),
        ],
        figure=compose(features, perceptrons, transformers, noises=NOISES, feature_rows=sizes.feature_rows),
        settings={"noises": NOISES, **asdict(sizes)},
    )


def met_from(risks: NetworkRisks, noise: int) -> int | None:
    """The place of the first width that meets its labels, and that all wider ones follow in it; None if none does."""
    errors = risks.trained[noise, :, -1].mean(dim=-1)
    unmet = torch.nonzero(errors >= IS_MET).flatten()
    first = int(unmet.max()) + 1 if len(unmet) else 0
    return first if first < len(errors) else None


def _measure_kind(kind: Kind, sizes: Sizes, seed: int) -> FeatureRisks:
    return measure_features(
        kind, sizes.feature_widths, NOISES, num_rows=sizes.feature_rows, num_fresh=sizes.num_fresh,
        input_dim=sizes.feature_inputs, bandwidth=sizes.bandwidth,
        seeds=range(seed, seed + sizes.feature_draws),
    )  # fmt: skip


def _percent(noise: float) -> str:
    return f"with {100 * noise:.0f} % of labels turned round" if noise else "with true labels"


def _feature_findings(risks: FeatureRisks, sizes: Sizes) -> list[str]:
    findings = []
    for noise, shape, limit in zip(NOISES, risks.shapes(), risks.limit_squared, strict=True):
        findings.append(
            f"Random {_name(risks.kind)} features on {sizes.feature_rows} rows, {_percent(noise)}: the median squared "
            f"error on fresh rows {describe(shape, 'features')}; the kernel machine has {median_around(limit)[0]:.3g}."
        )
    parts = []
    for noise, shape, limit in zip(NOISES, risks.shapes(of_wrong=True), risks.limit_wrong, strict=True):
        fewer = [place for place, width in enumerate(risks.widths) if width < sizes.feature_rows]
        lowest = min(fewer, key=lambda place: float(shape.middles[place]))
        parts.append(
            f"{float(shape.middles[lowest]):.3f}, {float(shape.middles[-1]):.3f} and {median_around(limit)[0]:.3f} "
            f"{_percent(noise)}"
        )
    findings.append(
        f"The share of true labels that they miss is, at the best width below {sizes.feature_rows}, at "
        f"{risks.widths[-1]:,} features and by the kernel machine: {'; '.join(parts)}."
    )
    return findings


def _network_findings(risks: NetworkRisks, num_rows: int) -> list[str]:
    findings = []
    for i, (noise, shape) in enumerate(zip(NOISES, risks.shapes(), strict=True)):
        met = met_from(risks, i)
        when = "no width meets its labels" if met is None else (
            f"labels are met (a squared error below {IS_MET:g}) from a width of {risks.widths[met]} on, which is "
            f"{risks.num_parameters[met]:,} weights for {num_rows} rows"
        )  # fmt: skip
        findings.append(
            f"{risks.name.capitalize()}, {_percent(noise)}: the mean squared error on fresh rows "
            f"{describe(shape, 'wide')}; {when}."
        )
    return findings


def _epoch_findings(risks: NetworkRisks) -> list[str]:
    width = risks.widths[-1]
    return [
        f"{risks.name} {width} wide, {_percent(noise)}, as they learn: the mean squared error on fresh rows "
        f"{describe(shape, 'epochs')}."
        for noise, shape in zip(NOISES, risks.courses(width), strict=True)
    ]


def _name(kind: Kind) -> str:
    return "Fourier" if kind == "fourier" else "ReLU"


def _headings(first: Sequence[str]) -> list[str]:
    return [*first, *(f"{100 * noise:.0f} % turned round" for noise in NOISES)]


def _feature_table(risks: FeatureRisks) -> Table:
    rows: list[list[Cell]] = [
        [width, *(median_around(draws) for draws in risks.squared[:, place])]
        for place, width in enumerate(risks.widths)
    ]
    rows.append(["kernel machine", *(median_around(draws) for draws in risks.limit_squared)])
    return Table(
        name=f"random {_name(risks.kind)} features: squared error on fresh rows",
        columns=_headings(["features"]),
        rows=rows,
        note=f"Medians over {risks.squared.size(-1)} draws of rows and features, each with a 95 % interval of the "
        "median that holds for any distribution; fresh labels are turned round as often as those that were learnt.",
    )


def _network_table(risks: NetworkRisks) -> Table:
    return Table(
        name=f"{risks.name}: squared error on fresh rows, and on those learnt",
        columns=[*_headings(["width", "weights"]), *(f"learnt, {100 * noise:.0f} %" for noise in NOISES)],
        rows=[
            [
                width, risks.num_parameters[place], *(mean_interval(draws) for draws in risks.fresh[:, place, -1]),
                *risks.trained[:, place, -1].mean(dim=-1).tolist(),
            ]
            for place, width in enumerate(risks.widths)
        ],
        note=f"Means over {risks.fresh.size(-1)} seeds, each with its own rows and first weights, with Student's 95 % "
        f"interval, after {risks.epochs[-1]:,} epochs.",
    )  # fmt: skip


def _epoch_table(risks: NetworkRisks) -> Table:
    return Table(
        name=f"{risks.name} {risks.widths[-1]} wide: squared error on fresh rows by epochs",
        columns=_headings(["epochs"]),
        rows=[
            [epoch, *(mean_interval(draws) for draws in risks.fresh[:, -1, place])]
            for place, epoch in enumerate(risks.epochs)
        ],
        note="The learning rate rises over the first tenth of the epochs, and then falls to 0 as a cosine.",
    )
