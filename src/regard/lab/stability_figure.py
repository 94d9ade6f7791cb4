"""What the study of stability has measured, and its figure: six panels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard.evaluation.means import Around, mean_interval
from regard.lab.drawing import COLORS, MUTED, label, legend, panels
from regard.lab.stability_twins import Path


@dataclass(frozen=True)
class Bounded:
    """Pairs of trainings, and what theorems say of them at the same steps; where they say nothing, nothing."""

    path: Path
    distance: Sequence[float] = field(default=())
    stability: Sequence[float] = field(default=())
    lipschitz: float | None = None
    smoothness: float | None = None

    def at_end(self, what: Tensor) -> Around:
        """The mean over the pairs after the last step, with its interval."""
        return mean_interval(what[-1])


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All that was measured."""

    convex: Mapping[float, Bounded]
    """By rate."""
    counts: Mapping[int, Bounded]
    """By the number of training examples, at one rate."""
    strongly: Mapping[float, Bounded]
    """By convexity, at that rate."""
    network: Mapping[float, Bounded]
    """By rate."""
    falling: Mapping[float, Bounded]
    """By c, at rates c / t."""


def compose(measured: Measured) -> Figure:
    figure, axes = panels(3, 3, height=3.5)
    _draw_distances(axes[0], {f"rate {rate:g}": found for rate, found in measured.convex.items()})
    label(axes[0], "Logistic regression", "step", "distance of the weights; dotted, bound")
    _draw_distances(axes[1], {f"convexity {gamma:g}": found for gamma, found in measured.strongly.items()})
    label(axes[1], "... with its weights drawn to 0", "step", "distance of the weights; dotted, bound")
    _draw_counts(axes[2], measured.counts)
    _draw_distances(axes[3], {f"rate {rate:g}": found for rate, found in measured.network.items()})
    label(axes[3], "Network", "step", "distance of the weights")
    _draw_falling(axes[4], measured.falling)
    _draw_gaps(axes[5], measured.network)
    return figure


def _draw_distances(axes: Axes, paths: Mapping[str, Bounded]) -> None:
    for (name, found), color in zip(paths.items(), COLORS, strict=False):
        _draw_band(axes, found.path.steps, found.path.distances, color=color, name=name)
        if found.distance:
            axes.plot(found.path.steps, found.distance, color=color, linewidth=1.2, linestyle=":")
    _make_room(axes)
    legend(axes, loc="upper left")


def _draw_counts(axes: Axes, counts: Mapping[int, Bounded]) -> None:
    rows = list(counts)
    for name, color, what in (
        ("largest difference of losses", COLORS[0], lambda found: found.path.apart),
        ("new less training", COLORS[1], lambda found: found.path.gaps),
    ):
        middle, low, high = zip(*(found.at_end(what(found)) for found in counts.values()), strict=True)
        axes.plot(rows, middle, color=color, marker="o", markersize=3.5, label=name)
        axes.fill_between(rows, [max(part, 1e-6) for part in low], high, color=color, alpha=0.18, linewidth=0)
    axes.plot(
        rows, [found.stability[-1] for found in counts.values()], color=MUTED, linestyle=":", label="bound of both"
    )
    _make_room(axes)
    axes.set_xticks(rows, labels=[str(count) for count in rows])
    axes.minorticks_off()
    label(axes, "Logistic regression by size of the set", "training examples", "loss, nats")
    legend(axes, loc="upper right")


def _draw_falling(axes: Axes, falling: Mapping[float, Bounded]) -> None:
    for (scale, found), color in zip(falling.items(), COLORS, strict=False):
        _draw_band(axes, found.path.steps, found.path.apart, color=color, name=f"rates {scale:g} / t")
        axes.plot(found.path.steps, found.stability, color=color, linewidth=1.2, linestyle=":")
    axes.axhline(1, color=MUTED, linewidth=1)
    _make_room(axes)
    label(axes, "Network at falling rates", "step", "difference of losses; dotted, bound")
    legend(axes, loc="upper left")


def _draw_gaps(axes: Axes, paths: Mapping[float, Bounded]) -> None:
    for (rate, found), color in zip(paths.items(), COLORS, strict=False):
        _draw_band(axes, found.path.steps, found.path.gaps, color=color, name=f"rate {rate:g}")
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    label(axes, "Network: new less training examples", "step", "difference of the mean losses")
    legend(axes, loc="upper left")


def _draw_band(axes: Axes, steps: Sequence[int], values: Tensor, *, color: str, name: str) -> None:
    """The mean over the pairs and its interval."""
    middle, low, high = zip(*(mean_interval(row) for row in values), strict=True)
    axes.plot(steps, middle, color=color, label=name)
    axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)


def _make_room(axes: Axes) -> None:
    """Logarithmic axes, and a place for names above the lines."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    # Below the lowest line, not the lowest band: one that reaches 0 would have no end.
    drawn = [float(value) for line in axes.get_lines() for value in np.asarray(line.get_ydata()) if value > 0]
    low, high = min(drawn) / 3, max(drawn)
    axes.set_ylim(low, high * (high / low) ** 0.4)
