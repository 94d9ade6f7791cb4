"""What the study of gradient descent has measured, and its figure: eight panels in three rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from regard.evaluation.means import Around, mean_interval
from regard.lab.descent_noise import NARROW, WIDE, Outcome
from regard.lab.descent_rates import Escapes, OneStep, Sharpening, Switch, expected_changes
from regard.lab.drawing import COLORS, INK, MUTED, label, legend, panels


@dataclass(frozen=True)
class Noise:
    """What noise adds to one step of a network."""

    rate: float
    batch_size: int
    added: Around
    expected: float

    @property
    def ratio(self) -> Around:
        """Measured over expected."""
        mean, low, high = self.added
        return mean / self.expected, low / self.expected, high / self.expected


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All that was measured."""

    firsts: Sequence[OneStep]
    """Of the tanh network, seed by seed."""
    switches: Mapping[str, Sequence[Switch]]
    """By the network, seed by seed."""
    sharpening: Sequence[Sharpening]
    steps: Mapping[tuple[float, bool], tuple[int, float]]
    """Steps taken and expected, by condition number and whether there is momentum."""
    escapes: Escapes
    floors: Mapping[tuple[float, int], tuple[Around, float]]
    """Measured and expected, by rate and batch size."""
    noise: Sequence[Noise]
    narrow: Sequence[Outcome]
    wide: Sequence[Outcome]


def compose(measured: Measured, *, fraction: float) -> Figure:
    figure, axes = panels(3, 3, 3, height=3.2)
    _draw_one_step(axes[0], measured.firsts)
    for panel, (name, switches) in zip(axes[1:3], measured.switches.items(), strict=True):
        _draw_switch(panel, name, switches[0])
    _draw_sharpening(axes[3], measured.sharpening)
    _draw_conditions(axes[4], measured.steps, fraction)
    _draw_saddle(axes[5], measured.escapes)
    _draw_floors(axes[6], measured.floors)
    _draw_noise(axes[7], measured.noise)
    _draw_batches(axes[8], measured)
    return figure


def _draw_one_step(axes: Axes, firsts: Sequence[OneStep]) -> None:
    for number, (first, color) in enumerate(zip(firsts, COLORS, strict=False)):
        # Every seed at other rates, so that points that lie together can be told apart.
        some = slice(number % 3, None, 3)
        axes.plot(
            first.multiples[some], first.changes[some], "o", color=color, markersize=4, label=f"seed {number + 1}"
        )
    grid = torch.linspace(0, 1.6, 81)
    axes.plot(grid, expected_changes(grid), color=INK, linewidth=1, label="quadratic")
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.axvline(1, color=MUTED, linewidth=0.8, linestyle=":")
    label(axes, "Tanh network: one step", "rate / (2 / λmax)", "change of the loss, scaled")
    legend(axes, loc="upper left")


def _draw_switch(axes: Axes, name: str, switch: Switch) -> None:
    for (multiple, losses), color in zip(switch.losses.items(), COLORS, strict=False):
        style = "-" if multiple < 1 else "--"
        axes.semilogy(losses, color=color, linewidth=1.3, linestyle=style, label=f"{multiple:g}")
    axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
    label(axes, f"{name[0].upper()}{name[1:]}: rate / (2 / λmax)", "steps since the rate changed", "loss, relative")
    axes.tick_params(which="minor", labelsize=8, labelcolor=MUTED)
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, 1e4) * (min(high, 1e4) / low) ** 0.4)
    legend(axes, loc="upper center", ncols=3, columnspacing=1.2)


def _draw_sharpening(axes: Axes, sharpening: Sequence[Sharpening]) -> None:
    for found, color in zip(sharpening, COLORS, strict=False):
        axes.plot(found.steps, found.curvatures, color=color, label=f"rate {found.rate:g}")
        axes.axhline(found.edge, color=color, linewidth=0.9, linestyle=":")
    axes.set_ylim(0, 1.5 * max(max(found.curvatures) for found in sharpening))
    label(axes, "Deeper network: curvature; dotted, 2 / rate", "step", "largest eigenvalue of the Hessian")
    legend(axes, loc="upper right", ncols=2)


def _draw_conditions(axes: Axes, steps: Mapping[tuple[float, bool], tuple[int, float]], fraction: float) -> None:
    for has_momentum, name, color in ((False, "best rate", COLORS[0]), (True, "best rate and momentum", COLORS[1])):
        conditions = [condition for condition, kind in steps if kind == has_momentum]
        taken, expected = zip(*(steps[condition, has_momentum] for condition in conditions), strict=True)
        axes.loglog(conditions, taken, "o", color=color, markersize=4, label=name)
        axes.loglog(conditions, expected, color=color, linewidth=1, linestyle=":")
    label(axes, f"Quadratic: steps until {fraction:g} of the loss", "condition number", "steps; dotted, formula")
    legend(axes, loc="upper left")


def _draw_saddle(axes: Axes, escapes: Escapes) -> None:
    scales, steps = list(escapes.steps), list(escapes.steps.values())
    axes.semilogx(scales, steps, "o", color=COLORS[0], markersize=4, label="measured")
    expected = [steps[0] + escapes.expected(scale, scales[0]) for scale in scales]
    axes.semilogx(scales, expected, color=COLORS[0], linewidth=1, linestyle=":", label="ln(scale) / ln(1 + η |λmin|)")
    label(axes, "Leaving a saddle: a network near 0", "scale of the first weights", "steps until half is lost")
    axes.set_ylim(0, 1.3 * max(steps))
    legend(axes, loc="upper right")


def _draw_floors(axes: Axes, floors: Mapping[tuple[float, int], tuple[Around, float]]) -> None:
    for batch, color in zip(sorted({batch for _, batch in floors}), COLORS, strict=False):
        rates = [rate for rate, size in floors if size == batch]
        found = [floors[rate, batch][0] for rate in rates]
        _with_bars(axes, rates, found, color=color, label=f"batch {batch}")
        axes.plot(rates, [floors[rate, batch][1] for rate in rates], color=color, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    label(axes, "Quadratic: noise floor; dotted, formula", "rate", "loss at the end")
    axes.set_ylim(top=12 * max(found[0] for found, _ in floors.values()))
    legend(axes, loc="upper left", ncols=3, columnspacing=1.0, handletextpad=0.3)


def _draw_noise(axes: Axes, noise: Sequence[Noise]) -> None:
    for batch, color in zip(sorted({each.batch_size for each in noise}), COLORS, strict=False):
        some = [each for each in noise if each.batch_size == batch]
        rates = [each.rate for each in some]
        _with_bars(axes, rates, [each.added for each in some], color=color, label=f"batch {batch}")
        axes.plot(rates, [each.expected for each in some], color=color, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    label(axes, "Tanh network: noise in one step", "rate", "added to the loss; dotted, formula")
    legend(axes, loc="upper left")


def _draw_batches(axes: Axes, measured: Measured) -> None:
    kinds = ((measured.narrow, f"{NARROW.width} units"), (measured.wide, f"{WIDE.width} units"))
    for (outcomes, name), color in zip(kinds, COLORS, strict=False):
        sizes = [outcome.batch_size for outcome in outcomes]
        new, known = ([mean_interval(100 * part) for part in parts] for parts in zip(
            *((outcome.test, outcome.train) for outcome in outcomes), strict=True))  # fmt: skip
        _with_bars(axes, sizes, new, color=color, label=f"{name}: new", linestyle="-")
        axes.plot(sizes, [each[0] for each in known], "x--", color=color, markersize=4, linewidth=1,
                  label=f"{name}: training")  # fmt: skip
    axes.set_xscale("log", base=2)
    sizes = sorted({outcome.batch_size for outcomes in (measured.narrow, measured.wide) for outcome in outcomes})
    axes.set_xticks(sizes, labels=[str(size) for size in sizes], minor=False)
    axes.set_ylim(-2, 1.75 * axes.get_ylim()[1])
    label(axes, "Error after equally many steps", "batch size", "wrong answers, %")
    legend(axes, loc="upper right", ncols=2, columnspacing=1.0)


def _with_bars(
    axes: Axes, x: Sequence[float], found: Sequence[Around], *, color: str, label: str, linestyle=""
) -> None:
    """Means with their intervals."""
    middle, low, high = zip(*found, strict=True)
    around = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
    axes.errorbar(x, middle, yerr=around, color=color, marker="o", markersize=3.5, elinewidth=0.9, linewidth=1.3,
                  linestyle=linestyle, label=label)  # fmt: skip
