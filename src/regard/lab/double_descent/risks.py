r"""Risks against capacity: random features by their number, networks by their width and by epochs.

Belkin et al., "Reconciling modern machine-learning practice and the classical bias-variance trade-off" (2019).
https://arxiv.org/abs/1812.11118
Nakkiran et al., "Deep Double Descent: Where Bigger Models and More Data Hurt" (2019).
https://arxiv.org/abs/1912.02292
Mei and Montanari, "The generalization error of random features regression" (2019). https://arxiv.org/abs/1908.05355

A model with far fewer parameters than rows cannot interpolate the labels; one with
just enough does so in a single way, including the noise; one with more has many
ways, and least squares or gradient descent selects a solution of small norm. So the
risk may fall, rise to a peak where models begin to interpolate, and fall again.

Random features and perceptrons learn the label sign(x_1) of $x \sim \mathcal N(0, I_d)$.
Transformers read a few symbols, half of which vote for one label and half for the
other, and predict the majority. A fraction of the labels is flipped, in training and
test sets alike. Networks are trained on the squared error, which a model minimizes
by interpolating its labels, with all rows in each update, so that an update is an
epoch; all models of one width are trained in parallel.

Dimensions: as in `regard.lab.random_features`; `noise` fractions of flipped labels, `capacity` numbers of
features or widths, `epoch` of a measurement, `member` models trained in parallel, `draw` of data and weights.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.evaluation.intervals import Interval, mean_interval
from regard.lab.double_descent import DOUBLE_DESCENT
from regard.lab.drawing import COLORS, MUTED, add_figure_legend, label_axes, make_panels, plot_band
from regard.lab.own_data import LabeledRows, read_labeled_rows
from regard.lab.random_features import (
    FeatureKind,
    draw_random_features,
    limit_kernel,
    median_interval,
    min_norm_least_squares,
)
from regard.lab.study import Study, StudyCell, StudyTable
from regard.logging import log_info, progress_bar
from regard.models.heads import HeadConfig, SequenceClassifier
from regard.models.transformer import TransformerConfig

INTERPOLATION = 0.01
"""The training error (mean squared error of labels -1 and 1) below which labels count as interpolated."""
NOISES = (0.0, 0.1, 0.2)
"""Fractions of flipped labels."""
_KINDS: dict[FeatureKind, str] = {"fourier": "Fourier", "relu": "ReLU"}
_FLIPPED = [f"{100 * noise:.0f} % flipped" for noise in NOISES]


@dataclass(frozen=True, kw_only=True)
class DoubleDescentSizes:
    """Sizes of the models, and how much they are trained and tested on; the defaults are those of a quick run."""

    feature_rows: int = 400
    feature_inputs: int = 50
    bandwidth: float = 1.5
    feature_widths: tuple[int, ...] = (
        5, 10, 20, 40, 80, 130, 200, 280, 340, 380, 400, 420, 460, 550, 700, 1000, 2000, 4000, 8000,
    )  # fmt: skip
    feature_draws: int = 10
    perceptron_rows: int = 120
    perceptron_inputs: int = 12
    perceptron_widths: tuple[int, ...] = (1, 2, 4, 6, 8, 10, 14, 20, 50, 128)
    perceptron_epochs: int = 800
    perceptron_rate: float = 0.02
    transformer_rows: int = 100
    length: int = 5
    """Symbols of a sequence."""
    num_symbols: int = 12
    transformer_widths: tuple[int, ...] = (2, 4, 6, 8, 12, 16, 32, 64)
    transformer_epochs: int = 250
    transformer_rate: float = 0.005
    num_seeds: int = 4
    """Seeds of networks: each has its own rows and initial weights."""
    num_test_rows: int = 400


class CurvePeak(NamedTuple):
    """Indices of the lowest point before a peak, of its top, and of the lowest point after it."""

    before: int
    top: int
    after: int


def find_peak(curve: Float[Tensor, " capacity"]) -> CurvePeak | None:
    """The most prominent peak, by its height above the higher of the minima before and after; None if there is none.

    Example:
        >>> find_peak(torch.tensor([3.0, 2.0, 5.0, 1.0]))
        CurvePeak(before=1, top=2, after=3)
        >>> find_peak(torch.tensor([3.0, 2.0, 1.0])) is None
        True
    """
    best, height = None, 0.0
    for top in range(1, len(curve) - 1):
        before, after = int(curve[:top].argmin()), top + 1 + int(curve[top + 1 :].argmin())
        prominence = float(curve[top] - max(curve[before], curve[after]))
        if prominence > height:
            best, height = CurvePeak(before, top, after), prominence
    return best


@dataclass(frozen=True)
class RiskCurve:
    """Risks by capacity and draw, with the function that summarizes draws by an estimate and its interval."""

    capacities: Sequence[int]
    risks: Float[Tensor, "capacity draw"]
    summarize: Callable[[Tensor], Interval] = mean_interval

    @property
    def estimates(self) -> Float[Tensor, " capacity"]:
        return torch.tensor([self.summarize(draws)[0] for draws in self.risks], dtype=torch.float64)

    @property
    def peak(self) -> CurvePeak | None:
        return find_peak(self.estimates)

    def compare(self, one: int, other: int) -> int:
        """1 if the risk at index `one` is significantly above that at `other`, -1 if below, otherwise 0.

        Draws are paired: all capacities share the data of a draw.
        """
        _, low, high = self.summarize(self.risks[one] - self.risks[other])
        return int(low > 0) - int(high < 0)

    @property
    def is_double_descent(self) -> bool:
        """Whether both the rise and the second descent are significant."""
        peak = self.peak
        return peak is not None and self.compare(peak.top, peak.before) > 0 and self.compare(peak.after, peak.top) < 0


class SignExamples(NamedTuple):
    """Inputs with true labels, and with labels of which a fraction is flipped."""

    inputs: Float[Tensor, "row input"]
    truth: Float[Tensor, " row"]
    labels: Float[Tensor, "row noise"]


def draw_sign_examples(num_rows: int, input_dim: int, noises: Sequence[float], *, rng: torch.Generator) -> SignExamples:
    """Draw examples; a label that is flipped at one fraction is also flipped at every larger one."""
    inputs = torch.randn(num_rows, input_dim, generator=rng, dtype=torch.float64)
    truth = torch.where(inputs[:, 0] > 0, 1.0, -1.0).to(inputs)
    uniform = torch.rand(num_rows, generator=rng, dtype=torch.float64)
    labels = torch.stack([torch.where(uniform < noise, -truth, truth) for noise in noises], dim=1)
    return SignExamples(inputs, truth, labels)


DrawSigns = Callable[[int, int, Sequence[float], torch.Generator], tuple[SignExamples, SignExamples]]
"""From numbers of training and test rows and fractions of flipped labels to a training and a test set."""


def draw_normal_sets(input_dim: int) -> DrawSigns:
    """Training and test sets of `draw_sign_examples`."""

    def draw(
        num_rows: int, num_test: int, noises: Sequence[float], rng: torch.Generator
    ) -> tuple[SignExamples, SignExamples]:
        return (
            draw_sign_examples(num_rows, input_dim, noises, rng=rng),
            draw_sign_examples(num_test, input_dim, noises, rng=rng),
        )

    return draw


def draw_file_sets(rows: LabeledRows) -> DrawSigns:
    """Training and test sets of different rows of a file."""

    def draw(
        num_rows: int, num_test: int, noises: Sequence[float], rng: torch.Generator
    ) -> tuple[SignExamples, SignExamples]:
        chosen = torch.randperm(len(rows), generator=rng)[: num_rows + num_test]
        inputs, truth = rows.inputs[chosen], rows.signs[chosen]
        uniform = torch.rand(len(chosen), generator=rng, dtype=torch.float64)
        labels = torch.stack([torch.where(uniform < noise, -truth, truth) for noise in noises], dim=1)
        both = SignExamples(inputs, truth, labels)
        return SignExamples(*(part[:num_rows] for part in both)), SignExamples(*(part[num_rows:] for part in both))

    return draw


@dataclass(frozen=True)
class FeatureRisks:
    """Test risks of random features."""

    kind: FeatureKind
    widths: Sequence[int]
    squared: Float[Tensor, "noise capacity draw"]
    """Mean squared error on labels with the same noise."""
    errors: Float[Tensor, "noise capacity draw"]
    """Fraction of true labels that are predicted wrongly."""
    kernel_squared: Float[Tensor, "noise draw"]
    """Squared errors of the kernel machine, the limit of infinitely many features."""
    kernel_errors: Float[Tensor, "noise draw"]

    @property
    def curves(self) -> list[RiskCurve]:
        """The squared error by number of features, for each noise."""
        return [RiskCurve(self.widths, risks, median_interval) for risks in self.squared]


def measure_features(
    kind: FeatureKind, sizes: DoubleDescentSizes, noises: Sequence[float], *, seed: int, draw: DrawSigns | None = None
) -> FeatureRisks:
    """Fit each number of features in each draw of data and features, which all noises share."""
    widths, bandwidth, input_dim = sizes.feature_widths, sizes.bandwidth, sizes.feature_inputs
    draw = draw or draw_normal_sets(input_dim)
    risks, limits, seeds = [], [], range(seed, seed + sizes.feature_draws)
    for each in progress_bar(seeds, f"{kind} features", total=len(seeds)):
        rng = torch.Generator().manual_seed(each)
        rows, test = draw(sizes.feature_rows, sizes.num_test_rows, noises, rng)
        features = draw_random_features(kind, input_dim, max(widths), bandwidth=bandwidth, rng=rng)
        weights = (min_norm_least_squares(features(rows.inputs, width), rows.labels) for width in widths)
        fitted = [features(test.inputs, width) @ each for width, each in zip(widths, weights, strict=True)]
        risks.append(torch.stack([_risks(predicted, test) for predicted in fitted], dim=-1))
        gram, cross = (limit_kernel(kind, each.inputs, rows.inputs, bandwidth=bandwidth) for each in (rows, test))
        # Rows of a file may be equal, and their kernel singular.
        limits.append(_risks(cross @ min_norm_least_squares(gram, rows.labels), test))
    log_info(f"{kind} features: {len(widths)} widths, {len(seeds)} draws")
    return FeatureRisks(kind, widths, *torch.stack(risks, dim=-1), *torch.stack(limits, dim=-1))


def _risks(predicted: Float[Tensor, "row noise"], test: SignExamples) -> Float[Tensor, "2 noise"]:
    squared = (predicted - test.labels).square().mean(dim=0)
    errors = (predicted * test.truth[:, None] <= 0).double().mean(dim=0)
    return torch.stack([squared, errors])


class MemberData(NamedTuple):
    """Training and test rows of each member."""

    inputs: Shaped[Tensor, "member row place"]
    labels: Shaped[Tensor, "member row"]
    test_inputs: Shaped[Tensor, "member test place"]
    test_labels: Shaped[Tensor, "member test"]


@dataclass(frozen=True)
class NetworkRisks:
    """Risks of networks by width and epoch."""

    name: str
    widths: Sequence[int]
    num_parameters: Sequence[int]
    epochs: Sequence[int]
    train: Float[Tensor, "noise capacity epoch draw"]
    test: Float[Tensor, "noise capacity epoch draw"]

    @property
    def curves(self) -> list[RiskCurve]:
        """The test risk by width after the last epoch, for each noise."""
        return [RiskCurve(self.widths, risks[:, -1]) for risks in self.test]

    @property
    def epoch_curves(self) -> list[RiskCurve]:
        """The test risk of the widest networks by epoch, for each noise."""
        return [RiskCurve(self.epochs, risks[-1]) for risks in self.test]

    def interpolates_from(self, noise: int) -> int | None:
        """The index of the smallest width from which on all interpolate their labels; None if there is none."""
        errors = self.train[noise, :, -1].mean(dim=-1)
        above = torch.nonzero(errors >= INTERPOLATION).flatten()
        first = int(above.max()) + 1 if len(above) else 0
        return first if first < len(errors) else None


def measure_perceptrons(
    sizes: DoubleDescentSizes, noises: Sequence[float], *, seed: int, draw: DrawSigns | None = None
) -> NetworkRisks:
    """Perceptrons with one hidden ReLU layer."""

    def build(width: int) -> nn.Module:
        hidden = nn.Linear(sizes.perceptron_inputs, width)
        return nn.Sequential(hidden, nn.ReLU(), nn.Linear(width, 1), nn.Flatten(0))

    seeds = range(seed, seed + sizes.num_seeds)
    data, epochs, rate = sign_data(sizes, noises, seeds, draw), sizes.perceptron_epochs, sizes.perceptron_rate
    return _measure("perceptrons", build, sizes.perceptron_widths, data, epochs, rate, seeds, len(noises))


def measure_transformers(sizes: DoubleDescentSizes, noises: Sequence[float], *, seed: int) -> NetworkRisks:
    """Encoders with one layer and a classification head with one output."""

    def build(width: int) -> nn.Module:
        config = TransformerConfig(
            encoder_layers=1, decoder_layers=0, model_dim=width, num_heads=2, feedforward_dim=2 * width,
            block="pre-norm", dropout=0.0,
        )  # fmt: skip
        head = HeadConfig(pooling="mean", dropout=0.0)
        return nn.Sequential(SequenceClassifier(config, head, sizes.num_symbols, 1), nn.Flatten(0))

    seeds = range(seed, seed + sizes.num_seeds)
    data, epochs, rate = majority_data(sizes, noises, seeds), sizes.transformer_epochs, sizes.transformer_rate
    return _measure("Transformers", build, sizes.transformer_widths, data, epochs, rate, seeds, len(noises))


def sign_data(
    sizes: DoubleDescentSizes, noises: Sequence[float], seeds: Sequence[int], draw: DrawSigns | None = None
) -> MemberData:
    """Signs of the first coordinate, or what `draw` returns, for each seed and noise."""
    draw = draw or draw_normal_sets(sizes.perceptron_inputs)
    members = []
    for seed in seeds:
        rng = torch.Generator().manual_seed(seed)
        rows, test = draw(sizes.perceptron_rows, sizes.num_test_rows, noises, rng)
        members += [(rows.inputs, rows.labels[:, i], test.inputs, test.labels[:, i]) for i in range(len(noises))]
    return MemberData(*(torch.stack(parts).to(torch.get_default_dtype()) for parts in zip(*members, strict=True)))


def majority_data(sizes: DoubleDescentSizes, noises: Sequence[float], seeds: Sequence[int]) -> MemberData:
    """Sequences of symbols whose label is 1 if most are from the first half of the symbols, otherwise -1."""
    assert sizes.length % 2 == 1, "an even number of symbols may have no majority"
    members, n = [], sizes.transformer_rows
    for seed in seeds:
        rng = torch.Generator().manual_seed(seed)
        symbols = torch.randint(sizes.num_symbols, (n + sizes.num_test_rows, sizes.length), generator=rng)
        truth = torch.where((symbols < sizes.num_symbols // 2).sum(dim=1) > sizes.length // 2, 1.0, -1.0)
        uniform = torch.rand(len(symbols), generator=rng)
        for noise in noises:
            labels = torch.where(uniform < noise, -truth, truth)
            members.append((symbols[:n], labels[:n], symbols[n:], labels[n:]))
    return MemberData(*map(torch.stack, zip(*members, strict=True)))


def train_members(
    models: Sequence[nn.Module], data: MemberData, *, measured: Sequence[int], learning_rate: float, description: str
) -> tuple[Float[Tensor, "member epoch"], Float[Tensor, "member epoch"]]:
    """Train each model on its own rows with Adam; returns training and test errors at the `measured` epochs.

    The weights of all models are stacked, so that a step costs little more than one of
    a single small model. The gradient of the sum of their losses contains the gradient
    of each, and Adam's updates are elementwise, so the models do not affect each other.
    """
    weights, _ = stack_module_state(list(models))
    skeleton = copy.deepcopy(models[0])
    predict = vmap(lambda own, inputs: functional_call(skeleton, own, (inputs,)))

    def squared_errors(inputs: Tensor, labels: Tensor) -> Float[Tensor, " member"]:
        return (predict(weights, inputs) - labels).square().mean(dim=1)

    optimizer = torch.optim.Adam(weights.values(), lr=learning_rate)
    last = measured[-1]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_cosine(step, last))
    train, test = [], []
    with sdpa_kernel(SDPBackend.MATH):  # vmap does not support the fused kernels
        for epoch in progress_bar(range(1, last + 1), description, total=last):
            optimizer.zero_grad()
            squared_errors(data.inputs, data.labels).sum().backward()
            optimizer.step()
            schedule.step()
            if epoch in measured:
                with torch.no_grad():
                    train.append(squared_errors(data.inputs, data.labels))
                    test.append(squared_errors(data.test_inputs, data.test_labels))
    return torch.stack(train, dim=1), torch.stack(test, dim=1)


def warmup_cosine(step: int, steps: int) -> float:
    """The learning rate over its peak: linear warmup over the first tenth of the steps, times a cosine to 0."""
    warmup = max(1, steps // 10)
    return min(1.0, (step + 1) / warmup) * (1 + math.cos(math.pi * step / steps)) / 2


def log_spaced(last: int, *, per_decade: int = 4) -> list[int]:
    """Log-spaced integers from 1 to `last`.

    Example:
        >>> log_spaced(100, per_decade=3)
        [1, 2, 5, 10, 22, 46, 100]
    """
    steps = math.ceil(per_decade * math.log10(last))
    return sorted({round(last ** (i / steps)) for i in range(steps + 1)}) if steps else [1]


def _measure(
    name: str, build: Callable[[int], nn.Module], widths: Sequence[int], data: MemberData, epochs: int,
    learning_rate: float, seeds: Sequence[int], num_noises: int,
) -> NetworkRisks:  # fmt: skip
    """Train all widths, with the same data and, for one seed, the same initial weights for every noise."""
    measured = log_spaced(epochs)
    risks, counts = [], []
    for width in widths:
        models = []
        for seed in seeds:
            torch.manual_seed(seed)
            first = build(width)
            models += [first, *(copy.deepcopy(first) for _ in range(num_noises - 1))]
        description = f"{name}, width {width}"
        risks.append(
            train_members(models, data, measured=measured, learning_rate=learning_rate, description=description)
        )
        counts.append(sum(weight.numel() for weight in models[0].parameters()))
        train, test = (float(errors[:, -1].mean()) for errors in risks[-1])
        log_info(f"{description}: squared error {train:.3f} in training, {test:.3f} in test")

    def arrange(parts: tuple[Tensor, ...]) -> Float[Tensor, "noise capacity epoch draw"]:
        return torch.stack(parts).unflatten(1, (len(seeds), num_noises)).permute(2, 0, 3, 1)

    return NetworkRisks(name, widths, counts, measured, *map(arrange, zip(*risks, strict=True)))


_FULL = DoubleDescentSizes(
    feature_widths=(
        5, 7, 10, 14, 20, 28, 40, 60, 80, 100, 130, 160, 200, 240, 280, 320, 350, 370, 385, 394, 400, 406, 415, 430,
        460, 500, 550, 620, 700, 850, 1000, 1400, 2000, 2800, 4000, 5600, 8000, 16_000,
    ),
    feature_draws=30, perceptron_widths=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 30, 50, 80, 128, 256, 512),
    perceptron_epochs=4_000, transformer_rows=200,
    transformer_widths=(2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96), transformer_epochs=1_200,
    num_seeds=6, num_test_rows=2_000,
)  # fmt: skip


def study_double_descent(
    *, quick: bool = False, seed: int = 0, data: str | None = None, sizes: DoubleDescentSizes | None = None
) -> Study:
    """Measure the risk of three kinds of models past the point where they interpolate their labels.

    With a file, `data`, of random features and perceptrons on its rows.
    """
    sizes = sizes or (DoubleDescentSizes() if quick else _FULL)
    if data is not None:
        return _study_file(read_labeled_rows(data, study=DOUBLE_DESCENT.name, seed=seed), sizes, seed)
    features = [measure_features(kind, sizes, NOISES, seed=seed) for kind in _KINDS]
    perceptrons = measure_perceptrons(sizes, NOISES, seed=seed)
    transformers = measure_transformers(sizes, NOISES, seed=seed)
    curves = {
        **{f"{_KINDS[risks.kind]} features": risks.curves for risks in features},
        "perceptrons": perceptrons.curves,
        "Transformers": transformers.curves,
        f"Transformers of width {transformers.widths[-1]}, by epoch": transformers.epoch_curves,
    }
    findings = [
        *(_curve_finding(name, each) for name, each in curves.items()),
        _interpolation_finding(perceptrons, sizes.perceptron_rows),
        _interpolation_finding(transformers, sizes.transformer_rows),
    ]
    tables = [
        *map(_feature_table, features),
        *map(_network_table, (perceptrons, transformers)),
        StudyTable(
            f"Transformers of width {transformers.widths[-1]}: squared test error by epoch", ["epochs", *_FLIPPED],
            [[epoch, *map(mean_interval, transformers.test[:, -1, i])] for i, epoch in enumerate(transformers.epochs)],
            "The learning rate rises over the first tenth of the epochs, and then falls to 0 as a cosine.",
        ),
        _error_table(features, sizes.feature_rows),
        _curve_table(curves),
    ]  # fmt: skip
    figure = _draw(features, perceptrons, transformers, sizes.feature_rows)
    return DOUBLE_DESCENT.result(sizes, [(findings, tables)], figure, noises=NOISES)


def fit_sizes(rows: LabeledRows, sizes: DoubleDescentSizes) -> DoubleDescentSizes:
    """The sizes for the rows of a file: at most half of them for training, and widths around their number."""
    num_rows = min(sizes.feature_rows, len(rows) // 2)
    widths = sorted({max(2, round(width * num_rows / sizes.feature_rows)) for width in sizes.feature_widths})
    few = min(sizes.perceptron_rows, len(rows) // 2)
    num_inputs = rows.inputs.size(1)
    # Half of the parameters of a hidden unit, one for each input, fit a label each.
    hidden = sorted({max(1, round(width * sizes.perceptron_inputs / num_inputs * few / sizes.perceptron_rows))
                     for width in sizes.perceptron_widths} | set(sizes.perceptron_widths))  # fmt: skip
    return replace(
        sizes, feature_rows=num_rows, feature_widths=tuple(widths), feature_inputs=num_inputs,
        perceptron_inputs=num_inputs, perceptron_rows=few, perceptron_widths=tuple(hidden), bandwidth=1.0,
        num_test_rows=min(sizes.num_test_rows, len(rows) - num_rows),
    )  # fmt: skip


def _study_file(rows: LabeledRows, sizes: DoubleDescentSizes, seed: int) -> Study:
    sizes, draw = fit_sizes(rows, sizes), draw_file_sets(rows)
    features = [measure_features(kind, sizes, NOISES, seed=seed, draw=draw) for kind in _KINDS]
    perceptrons = measure_perceptrons(sizes, NOISES, seed=seed, draw=draw)
    curves = {f"{_KINDS[risks.kind]} features": risks.curves for risks in features}
    curves["perceptrons"] = perceptrons.curves
    findings = [
        *(_curve_finding(name, each) for name, each in curves.items()),
        _interpolation_finding(perceptrons, sizes.perceptron_rows),
    ]
    tables = [
        *map(_feature_table, features), _network_table(perceptrons), _error_table(features, sizes.feature_rows),
        _curve_table(curves),
    ]  # fmt: skip
    figure, axes = make_panels(2, 2, height=3.5)
    _draw_features(axes[:3], features, sizes.feature_rows)
    _draw_widths(axes[3], perceptrons)
    add_figure_legend(figure, axes[0], "outside lower center")
    return DOUBLE_DESCENT.result(sizes, [(findings, tables)], figure, noises=NOISES, rows=rows.description)


def _curve_finding(name: str, curves: Sequence[RiskCurve]) -> str:
    parts = []
    for flipped, curve in zip(_FLIPPED, curves, strict=True):
        if curve.peak is not None and curve.is_double_descent:
            order = curve.compare(curve.peak.after, curve.peak.before)
            relation = {-1: "below", 0: "not significantly different from", 1: "above"}[order]
            parts.append(f"{flipped} ({relation} the first minimum)")
    text = ", ".join(parts) or "none of the noise levels"
    return f"{name[0].upper()}{name[1:]}: rise and second descent are significant with {text}."


def _interpolation_finding(risks: NetworkRisks, num_rows: int) -> str:
    first = [risks.interpolates_from(noise) for noise in range(len(NOISES))]
    widths = ["none" if i is None else f"{risks.widths[i]} ({risks.num_parameters[i]:,} parameters)" for i in first]
    return (
        f"{risks.name[0].upper()}{risks.name[1:]} interpolate {num_rows} labels (training error below "
        f"{INTERPOLATION:g}) from a width of "
        f"{', '.join(f'{width} with {flipped}' for width, flipped in zip(widths, _FLIPPED, strict=True))}."
    )


def _feature_table(risks: FeatureRisks) -> StudyTable:
    rows = [[width, *map(median_interval, risks.squared[:, i])] for i, width in enumerate(risks.widths)]
    return StudyTable(
        f"random {_KINDS[risks.kind]} features: squared test error", ["features", *_FLIPPED],
        [*rows, ["kernel machine", *map(median_interval, risks.kernel_squared)]],
        f"Medians over {risks.squared.size(-1)} draws of rows and features, with a distribution-free 95 % interval of "
        "the median; test labels are flipped as often as training labels.",
    )  # fmt: skip


def _network_table(risks: NetworkRisks) -> StudyTable:
    return StudyTable(
        f"{risks.name}: squared test and training error",
        ["width", "parameters", *_FLIPPED, *(f"training, {flipped}" for flipped in _FLIPPED)],
        [[width, risks.num_parameters[i], *map(mean_interval, risks.test[:, i, -1]),
          *risks.train[:, i, -1].mean(dim=-1).tolist()] for i, width in enumerate(risks.widths)],
        f"Means over {risks.test.size(-1)} seeds, each with its own rows and initial weights, with Student's 95 % "
        f"interval, after {risks.epochs[-1]:,} epochs.",
    )  # fmt: skip


def _error_table(features: Sequence[FeatureRisks], num_rows: int) -> StudyTable:
    rows: list[list[StudyCell]] = []
    for risks in features:
        num_fewer = sum(width < num_rows for width in risks.widths)
        for flipped, widths, kernel in zip(_FLIPPED, risks.errors, risks.kernel_errors, strict=True):
            errors = [median_interval(draws)[0] for draws in widths]
            rows.append([_KINDS[risks.kind], flipped, min(errors[:num_fewer]), errors[-1], median_interval(kernel)[0]])
    widest = f"{features[0].widths[-1]:,} features"
    columns = ["features", "labels", f"lowest below {num_rows} features", widest, "kernel machine"]
    return StudyTable("random features: error rate on true labels", columns, rows)


def _curve_table(curves: Mapping[str, Sequence[RiskCurve]]) -> StudyTable:
    rows: list[list[StudyCell]] = []
    for name, several in curves.items():
        for flipped, curve in zip(_FLIPPED, several, strict=True):
            estimates, peak = curve.estimates, curve.peak
            indices = [peak.before, peak.top, peak.after] if peak else [int(estimates.argmin())]
            found = [value for i in indices for value in (float(estimates[i]), curve.capacities[i])]
            rows.append([name, flipped, *found, *[None] * (6 - len(found))])
    return StudyTable(
        "minima and peaks of the squared test error",
        ["model", "labels", "first minimum", "at", "peak", "at", "second minimum", "at"],
        rows,
        "At: the number of features, the width or the epoch. A curve without a peak has one minimum.",
    )  # fmt: skip


def _draw(
    features: Sequence[FeatureRisks], perceptrons: NetworkRisks, transformers: NetworkRisks, num_rows: int
) -> Figure:
    figure, axes = make_panels(3, 3, height=3.5)
    _draw_features(axes[:3], features, num_rows)
    for panel, risks in ((axes[3], perceptrons), (axes[4], transformers)):
        _draw_widths(panel, risks)
    _draw_curves(axes[5], transformers.epochs, transformers.test[:, -1], mean_interval, fits=True)
    title = f"Transformers of width {transformers.widths[-1]}"
    label_axes(axes[5], title, "epochs", "squared test error")
    add_figure_legend(figure, axes[0], "outside lower center")
    return figure


def _draw_features(axes: Sequence[Axes], features: Sequence[FeatureRisks], num_rows: int) -> None:
    fourier, relu = features
    for panel, risks, curves, limits, title, y in (
        (axes[0], fourier, fourier.squared, fourier.kernel_squared, "Random Fourier features", "squared test error"),
        (axes[1], fourier, fourier.errors, fourier.kernel_errors, "The same; dashed: kernel machine", "error rate"),
        (axes[2], relu, relu.squared, relu.kernel_squared, "Random ReLU features", "squared test error"),
    ):
        _draw_curves(panel, risks.widths, curves, median_interval)
        for draws, color in zip(limits, COLORS, strict=False):
            panel.axhline(median_interval(draws)[0], color=color, linewidth=1, linestyle="--")
        panel.axvline(num_rows, color=MUTED, linewidth=0.9, linestyle=":")
        label_axes(panel, title, "features; dotted: as many as rows", y)
    for panel in (axes[0], axes[2]):
        panel.set(yscale="log", ylim=(0.3, 30))


def _draw_widths(panel: Axes, risks: NetworkRisks) -> None:
    _draw_curves(panel, risks.widths, risks.test[:, :, -1], mean_interval, fits=True)
    for curve, color in zip(risks.train[:, :, -1].mean(dim=-1), COLORS, strict=False):
        panel.plot(risks.widths, curve, color=color, linewidth=1, linestyle="--")
    ticks = [width for width in risks.widths if width & (width - 1) == 0 or width == risks.widths[-1]]
    panel.set_xticks(ticks, labels=[str(width) for width in ticks])
    label_axes(panel, f"{risks.name.capitalize()}; dashed: training error", "width", "squared test error")


def _draw_curves(
    axes: Axes, places: Sequence[int], curves: Float[Tensor, "noise capacity draw"],
    summarize: Callable[[Tensor], Interval], *, fits: bool = False,
) -> None:  # fmt: skip
    """One curve per noise, with its interval as a band; `fits` shows all of the curves, and of the bands what fits."""
    for curve, flipped, color, marker in zip(curves, _FLIPPED, COLORS, "osD", strict=False):
        plot_band(
            axes, places, [summarize(draws) for draws in curve], f"{marker}-", color=color, floor=1e-6, markersize=3,
            linewidth=1.3, label=f"{flipped} labels",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.minorticks_off()
    if fits:
        axes.set_ylim(-0.05, 1.25 * float(curves.mean(dim=-1).max()))
