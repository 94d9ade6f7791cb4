"""The figure of the study of bias and variance: the parts of three risks, their sums, and the best of K functions."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard.evaluation.means import mean_interval
from regard.lab.bias_variance_risks import Parts
from regard.lab.bias_variance_selection import Choice, Family
from regard.lab.drawing import COLORS, INK, MUTED, label, legend, panels


def compose(
    curves: Mapping[str, Sequence[Parts]],
    capacities: Mapping[str, str],
    choices: Mapping[Family, Sequence[Choice]],
    *,
    feature_rows: int,
) -> Figure:
    """Draw all that was measured.

    Args:
        curves: The parts of the risk of each learner, by capacity.
        capacities: What the capacity of each learner is.
        choices: What choosing among functions came to, for each family.
        feature_rows: How many rows random features were fitted to.
    """
    figure, axes = panels(3, 3, height=3.5)
    titles = {"polynomials": "Polynomials", "ridge": "Ridge regression", "random features": "Random features"}
    for panel, (name, curve) in zip(axes[:3], curves.items(), strict=True):
        _draw_parts(panel, curve)
        label(panel, titles[name], capacities[name], "squared error")
    axes[1].set_xscale("log")
    axes[2].set_xscale("log")
    for panel in axes[1:3]:
        panel.minorticks_off()
    axes[2].axvline(feature_rows, color=MUTED, linewidth=1, linestyle=":")
    axes[2].text(1.1 * feature_rows, 1.3e-3, "as many as rows", fontsize=8, color=MUTED)
    legend(axes[2], loc="lower left", fontsize=8)
    _draw_sums(axes[3], curves)
    _draw_choices(axes[4], choices["coins"], "The best of K independent coins")
    _draw_choices(axes[5], choices["thresholds"], "The best of K thresholds")
    return figure


def _draw_parts(axes: Axes, curve: Sequence[Parts]) -> None:
    places = [parts.capacity for parts in curve]
    _draw_line(axes, places, [parts.bias for parts in curve], COLORS[0], "bias²")
    _draw_line(axes, places, [parts.variance for parts in curve], COLORS[1], "variance")
    axes.axhline(curve[0].noise, color=MUTED, linewidth=1, linestyle="--", label="noise")
    axes.plot(places, [float(parts.total.mean()) for parts in curve], color=INK, linewidth=1.4, label="their sum")
    risks = [float(parts.risk.mean()) for parts in curve]
    axes.plot(places, risks, "o", color=COLORS[2], markersize=5, markerfacecolor="none", label="measured risk")
    axes.set_yscale("log")
    axes.set_ylim(bottom=1e-3)


def _draw_line(axes: Axes, places: Sequence[float], batches: Sequence[Tensor], color: str, name: str) -> None:
    """A line where the interval lies above 0, and the interval as a band."""
    middle, low, high = zip(*map(mean_interval, batches), strict=True)
    sure = [value if end > 0 else math.nan for value, end in zip(middle, low, strict=True)]
    axes.plot(places, sure, color=color, linewidth=1.4, label=name)
    axes.fill_between(places, [max(value, 1e-9) for value in low], high, color=color, alpha=0.2, linewidth=0)


def _draw_sums(axes: Axes, curves: Mapping[str, Sequence[Parts]]) -> None:
    """The difference between the sum and the risk, in parts of the risk, with its interval."""
    place = 0
    for (name, curve), color, marker in zip(curves.items(), COLORS, "osD", strict=False):
        places = range(place, place + len(curve))
        around = [mean_interval((parts.total - parts.risk) / parts.risk.mean()) for parts in curve]
        middle, low, high = zip(*around, strict=True)
        reach = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
        axes.errorbar(places, middle, yerr=reach, fmt=marker, color=color, markersize=3.5, elinewidth=0.9, label=name)
        place += len(curve) + 1
    axes.axhline(0, color=INK, linewidth=0.9)
    axes.set_xticks([])
    most = max(abs(end) for end in axes.get_ylim())
    axes.set_ylim(-most, 1.7 * most)
    label(axes, "Do the parts make the risk?", "capacities, from small to large", "(sum - risk) / risk, 95 %")
    legend(axes, loc="upper left", fontsize=8)


def _draw_choices(axes: Axes, choices: Sequence[Choice], title: str) -> None:
    sizes = sorted({choice.num_examples for choice in choices})
    for n, color, marker in zip(sizes, COLORS, "osD^vP", strict=False):
        line = [choice for choice in choices if choice.num_examples == n]
        middle, low, high = zip(*(mean_interval(choice.optimism) for choice in line), strict=True)
        reach = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
        scales = [choice.scale for choice in line]
        axes.errorbar(scales, middle, yerr=reach, fmt=f"{marker}-", color=color, markersize=4, linewidth=1.1,
                      elinewidth=0.9, label=f"n = {n:,}")  # fmt: skip
    most = max(choice.scale for choice in choices)
    axes.plot([0, most], [0, most / 2**0.5], color=INK, linewidth=1.1, linestyle=":", label="bound, √(ln K / 2n)")
    label(axes, title, "√(ln K / n), K rising along each line", "risk - error on the examples")
    legend(axes, loc="upper left", fontsize=8)
