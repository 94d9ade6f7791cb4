"""The study of double descent: its sizes, findings, tables and figure.

A model with far fewer parameters than rows cannot interpolate the labels; one with
just enough does so in a single way, including the noise; one with more has many
ways, and least squares or gradient descent selects a solution of small norm. So the
risk may fall, rise to a peak where models begin to interpolate, and fall again.
"""

from collections.abc import Callable, Mapping, Sequence

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard.evaluation.intervals import Interval, mean_interval
from regard.lab.double_descent import DOUBLE_DESCENT
from regard.lab.double_descent.risks import (
    INTERPOLATION,
    DoubleDescentSizes,
    FeatureRisks,
    NetworkRisks,
    RiskCurve,
    measure_features,
    measure_perceptrons,
    measure_transformers,
)
from regard.lab.drawing import COLORS, MUTED, add_figure_legend, label_axes, make_panels, plot_band
from regard.lab.random_features import FeatureKind, median_interval
from regard.lab.study import Study, StudyCell, StudyTable

NOISES = (0.0, 0.1, 0.2)
"""Fractions of flipped labels."""
_KINDS: dict[FeatureKind, str] = {"fourier": "Fourier", "relu": "ReLU"}
_FLIPPED = [f"{100 * noise:.0f} % flipped" for noise in NOISES]


_FULL = DoubleDescentSizes(
    feature_widths=(
        5, 7, 10, 14, 20, 28, 40, 60, 80, 100, 130, 160, 200, 240, 280, 320, 350, 370, 385, 394, 400, 406, 415, 430,
        460, 500, 550, 620, 700, 850, 1000, 1400, 2000, 2800, 4000, 5600, 8000, 16_000,
    ),
    feature_draws=30, perceptron_widths=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 30, 50, 80, 128, 256, 512),
    perceptron_epochs=4_000, transformer_rows=200,
    transformer_widths=(2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128), transformer_epochs=2_000,
    num_seeds=6, num_test_rows=2_000,
)  # fmt: skip


def study_double_descent(*, quick: bool = False, seed: int = 0, sizes: DoubleDescentSizes | None = None) -> Study:
    """Measure the risk of three kinds of models past the point where they interpolate their labels."""
    sizes = sizes or (DoubleDescentSizes() if quick else _FULL)
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
    fourier, relu = features
    figure, axes = make_panels(3, 3, height=3.5)
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
    for panel, risks in ((axes[3], perceptrons), (axes[4], transformers)):
        _draw_curves(panel, risks.widths, risks.test[:, :, -1], mean_interval, fits=True)
        for curve, color in zip(risks.train[:, :, -1].mean(dim=-1), COLORS, strict=False):
            panel.plot(risks.widths, curve, color=color, linewidth=1, linestyle="--")
        ticks = [width for width in risks.widths if width & (width - 1) == 0 or width == risks.widths[-1]]
        panel.set_xticks(ticks, labels=[str(width) for width in ticks])
        label_axes(panel, f"{risks.name.capitalize()}; dashed: training error", "width", "squared test error")
    _draw_curves(axes[5], transformers.epochs, transformers.test[:, -1], mean_interval, fits=True)
    title = f"Transformers of width {transformers.widths[-1]}"
    label_axes(axes[5], title, "epochs", "squared test error")
    add_figure_legend(figure, axes[0], "outside lower center")
    return figure


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
