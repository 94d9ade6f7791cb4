"""The figure of the study of double descent: risks by capacity, one colour for each share of turned labels."""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard.lab.double_descent_features import FeatureRisks
from regard.lab.double_descent_networks import NetworkRisks
from regard.lab.double_descent_shape import MEAN, MEDIAN, Middle
from regard.lab.drawing import COLORS, INK, MUTED, label, panels
from regard.lab.random_features import Kind


def compose(
    features: Mapping[Kind, FeatureRisks],
    perceptrons: NetworkRisks,
    transformers: NetworkRisks,
    *,
    noises: Sequence[float],
    feature_rows: int,
) -> Figure:
    """Draw all that was measured.

    Args:
        features: The risks of random features, by kind.
        perceptrons: The risks of perceptrons.
        transformers: And of Transformers.
        noises: Shares of labels turned round.
        feature_rows: To how many rows features were fitted.
    """
    figure, axes = panels(3, 3, height=3.5)
    fourier, relu = features["fourier"], features["relu"]
    for panel, risks, curves, limits in (
        (axes[0], fourier, fourier.squared, fourier.limit_squared),
        (axes[1], fourier, fourier.wrong, fourier.limit_wrong),
        (axes[2], relu, relu.squared, relu.limit_squared),
    ):
        _draw_lines(panel, risks.widths, curves, MEDIAN, noises)
        _draw_limits(panel, limits)
        panel.axvline(feature_rows, color=MUTED, linewidth=0.9, linestyle=":")
    for panel in (axes[0], axes[2]):
        panel.set_yscale("log")
        panel.set_ylim(0.3, 30)
    label(axes[0], "Random Fourier features", "features; dotted, as many as rows", "squared error on fresh rows")
    label(axes[1], "The same; dashed, the kernel machine", "features; dotted, as many as rows", "true labels missed")
    label(axes[2], "Random ReLU features", "features; dotted, as many as rows", "squared error on fresh rows")
    _draw_widths(axes[3], perceptrons, noises)
    _draw_widths(axes[4], transformers, noises)
    last = transformers.widths[-1]
    _draw_lines(axes[5], transformers.epochs, transformers.fresh[:, -1], MEAN, noises)
    _fit(axes[5], transformers.fresh[:, -1])
    label(axes[5], f"Transformers {last} wide, as they learn", "epochs", "squared error on fresh rows")
    lines, names = axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _draw_lines(
    axes: Axes,
    places: Sequence[int],
    curves: Float[Tensor, "noise capacity draw"],
    around: Middle,
    noises: Sequence[float],
) -> None:
    """The middle of each curve, and its interval as a band."""
    for curve, noise, color, marker in zip(curves, noises, COLORS, "osD", strict=False):
        middle, low, high = zip(*map(around, curve), strict=True)
        name = f"{100 * noise:.0f} % of labels turned round"
        axes.plot(places, middle, f"{marker}-", color=color, markersize=3, linewidth=1.3, label=name)
        axes.fill_between(places, [max(value, 1e-6) for value in low], high, color=color, alpha=0.18, linewidth=0)
    axes.set_xscale("log")
    axes.minorticks_off()


def _draw_limits(axes: Axes, limits: Float[Tensor, "noise draw"]) -> None:
    for draws, color in zip(limits, COLORS, strict=False):
        axes.axhline(MEDIAN(draws)[0], color=color, linewidth=1, linestyle="--")


def _draw_widths(axes: Axes, risks: NetworkRisks, noises: Sequence[float]) -> None:
    """Risks on fresh rows as lines, on those learnt as dashes."""
    _draw_lines(axes, risks.widths, risks.fresh[:, :, -1], MEAN, noises)
    for curve, color in zip(risks.trained[:, :, -1].mean(dim=-1), COLORS, strict=False):
        axes.plot(risks.widths, curve, color=color, linewidth=1, linestyle="--")
    _fit(axes, risks.fresh[:, :, -1])
    ticks = [width for width in risks.widths if width & (width - 1) == 0 or width == risks.widths[-1]]
    axes.set_xticks(ticks, labels=[str(width) for width in ticks])
    title = f"{risks.name.capitalize()}; dashed, on the rows learnt"
    label(axes, title, "width", "squared error on fresh rows")


def _fit(axes: Axes, curves: Float[Tensor, "noise capacity draw"]) -> None:
    """Show the curves whole, and of their bands what there is room for."""
    axes.set_ylim(-0.05, 1.25 * float(curves.mean(dim=-1).max()))
