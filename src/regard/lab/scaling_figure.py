"""The figure of the study of scaling: the loss by data, by parameters and by compute, and a larger model foretold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from regard.lab.drawing import COLORS, INK, MUTED, label, legend, panels
from regard.lab.scaling_laws import frontier, interval

if TYPE_CHECKING:
    from regard.lab.scaling import Laws, Trained

LARGER = COLORS[1]
"""The colour of what no law was fitted to."""


def compose(
    runs: "Sequence[Trained]", larger: "Sequence[Trained]", laws: "Laws", drawn: "Sequence[Laws]", *, entropy: float
) -> Figure:
    """Draw all runs with the laws fitted to them.

    Args:
        runs: Those that the laws are fitted to.
        larger: Those that they are tried on.
        laws: The laws.
        drawn: The laws fitted to resampled runs.
        entropy: The least loss there can be.
    """
    figure, (by_data, by_size, by_compute, foretold) = panels(2, 2, height=3.6)
    _draw_slices(by_data, runs, larger, laws, across="characters", along="parameters")
    _draw_slices(by_size, runs, larger, laws, across="parameters", along="characters")
    _draw_compute(by_compute, runs, larger, laws)
    for axes in (by_data, by_size, by_compute):
        axes.axhline(entropy, color=MUTED, linewidth=1, linestyle=":")
        axes.set_xscale("log")
    _round_ticks(by_data, sorted({run.characters for run in (*runs, *larger)}))
    _round_ticks(by_size, sorted({run.parameters for run in (*runs, *larger)}))
    _round_ticks(by_compute)
    label(by_data, "By data; dashed, the fit; dotted, the language's entropy", "characters read, D", "loss, nats")
    label(by_size, "By parameters", "parameters, N", "loss, nats")
    label(by_compute, "By compute: one power law for the best runs", "compute, C = 6 N D", "loss, nats")
    for axes in (by_data, by_size):
        legend(axes, fontsize=7.5, ncols=2, loc="upper right")
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom, top + 0.32 * (top - bottom))
    legend(by_compute, loc="upper right")
    _draw_foretold(foretold, runs, larger, laws, drawn)
    return figure


def _draw_slices(
    axes: Axes, runs: "Sequence[Trained]", larger: "Sequence[Trained]", laws: "Laws", *, across: str, along: str
) -> None:
    """Runs alike in `along`, one colour each, by `across`; and what the law says of them."""
    everything = [getattr(run, across) for run in (*runs, *larger)]
    grid = np.geomspace(min(everything), max(everything), 60)
    values = sorted({getattr(run, along) for run in (*runs, *larger)})
    fitted = {getattr(run, along) for run in runs}
    colors = [color for color in COLORS if color != LARGER]
    for i, value in enumerate(values):
        color = colors[i % len(colors)] if value in fitted else LARGER
        laid = [laws.whole.loss(**{"parameters": x, "tokens": value} if across == "parameters" else
                                {"parameters": value, "tokens": x}) for x in grid]  # fmt: skip
        axes.plot(grid, laid, color=color, linewidth=1, linestyle="--")
        for some, style in ((runs, "o"), (larger, "*")):
            mine = [run for run in some if getattr(run, along) == value]
            if mine:
                name = f"{_short(value)} {along}" if style == "o" or value not in fitted else None
                places = [getattr(run, across) for run in mine]
                size = 4.5 if style == "o" else 9
                axes.plot(places, [run.loss for run in mine], style, color=color, markersize=size, label=name)


def _draw_compute(axes: Axes, runs: "Sequence[Trained]", larger: "Sequence[Trained]", laws: "Laws") -> None:
    compute, losses = np.array([run.compute for run in runs]), np.array([run.loss for run in runs])
    best = frontier(compute, losses)
    axes.plot(compute, losses, "o", color=MUTED, markersize=4, alpha=0.6, label="runs")
    axes.plot(compute[best], losses[best], "o", color=COLORS[0], markersize=5, label="none of less compute is better")
    axes.plot([run.compute for run in larger], [run.loss for run in larger], "*", color=LARGER, markersize=10,
              label="larger model, not fitted to")  # fmt: skip
    grid = np.geomspace(compute.min(), max(run.compute for run in larger), 60)
    axes.plot(grid, [laws.by_compute.loss(x) for x in grid], "--", color=COLORS[0], linewidth=1,
              label=f"power law, exponent {laws.by_compute.exponent:.2f}")  # fmt: skip
    optimal = [laws.whole.loss(n := laws.whole.best_size(x), x / (6 * n)) for x in grid]
    axes.plot(grid, optimal, color=INK, linewidth=1, label="the fit of N and D, at the best N")


def _draw_foretold(
    axes: Axes, runs: "Sequence[Trained]", larger: "Sequence[Trained]", laws: "Laws", drawn: "Sequence[Laws]"
) -> None:
    """Foretold against measured: on the line, both are the same."""
    every = [run.loss for run in (*runs, *larger)]
    ends = [0.96 * min(every), 1.03 * max(every)]
    axes.plot(ends, ends, color=MUTED, linewidth=1)
    fitted = [laws.whole.loss(run.parameters, run.characters) for run in runs]
    axes.plot([run.loss for run in runs], fitted, "o", color=COLORS[0], markersize=4.5, label="fitted to, by N and D")
    for law, color, name in (
        (lambda of, run: of.whole.loss(run.parameters, run.characters), LARGER, "larger model, by N and D"),
        (lambda of, run: of.by_compute.loss(run.compute), COLORS[2], "larger model, by compute alone"),
    ):
        middle = [law(laws, run) for run in larger]
        around = [interval([law(each, run) for each in drawn]) for run in larger]
        bars = np.array(
            [[max(0.0, m - low), max(0.0, high - m)] for m, (low, high) in zip(middle, around, strict=True)]
        )
        axes.errorbar([run.loss for run in larger], middle, yerr=bars.T, fmt="*", color=color, markersize=9,
                      elinewidth=1, capsize=3, label=name)  # fmt: skip
    label(axes, "Foretold against measured; bars, 95 % intervals", "measured loss, nats", "loss by the law, nats")
    legend(axes, loc="upper left")


def _round_ticks(axes: Axes, places: Sequence[int] = ()) -> None:
    if places:
        axes.set_xticks(places)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def _short(value: float) -> str:
    """A number as few letters as will do.

    Example:
        >>> _short(51_200), _short(1_976), _short(2.5e6), _short(3e10)
        ('51k', '2k', '2.5M', '30G')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.2g}{unit}" if value < 99.5 * size else f"{value / size:.0f}{unit}"
    return f"{value:.3g}"
