"""The figure of a calculation: epsilon over the hypotheses and over the examples, and where one stands."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from regard.errors import ConfigError
from regard.explanation.figure_page import COLORS, GRID
from regard.explanation.figures import INK, MUTED
from regard.selection.bound_calculator import Calculation
from regard.selection.bound_means import hoeffding_epsilon

EXAMPLES = (100, 1_000, 10_000, 100_000)
HYPOTHESES = (1, 1_000, 1_000_000, 1_000_000_000)
MOST = 10**30
"""Hypotheses, beyond which a drawing has no room."""


def compose(calculation: Calculation) -> Figure:
    """Lines for several numbers of examples and of hypotheses, those that were given among them, and a point."""
    m, n = _place(calculation)
    figure = Figure(figsize=(11.0, 4.2), facecolor="white")
    left, right = (figure.add_axes((x, 0.0, 0.38, 0.85)) for x in (0.0, 0.56))
    delta = calculation.delta
    most = 10 ** math.ceil(math.log10(max(HYPOTHESES[-1], 10 * m)))
    _lines(left, _grid(1, most), _around(n, EXAMPLES), lambda x, line: _epsilon(x, line, delta), n, "N = {:,}")
    for line, each in zip(left.lines, _around(n, EXAMPLES), strict=True):
        _name_end(left, f"N = {each:,}", float(np.asarray(line.get_ydata())[-1]), is_given=each == n)
    _label(left, "Over the hypotheses looked at", "hypotheses, M", (1, most))
    least, largest = max(1, min(100, n // 2)), max(10**6, 10 * n)
    _lines(
        right, _grid(least, largest), _around(m, HYPOTHESES), lambda x, line: _epsilon(line, x, delta), m, "M = {:,}"
    )
    handles = list(reversed(right.lines))
    right.legend(handles=handles, loc="upper right", fontsize=8.5, frameon=False, labelcolor=INK, handlelength=1.6)
    _label(right, "Over the examples they are scored on", "examples, N", (least, largest))
    reached = _epsilon(m, n, delta)
    for axes, x in ((left, m), (right, n)):
        _mark(axes, x, reached, None if calculation.answers is None else calculation.answers.epsilon)
    title = f"How far a measured score can be from the true one: sqrt(ln(2M/delta) / 2N), delta = {delta:g}"
    figure.text(-0.035, 1.0, title, fontsize=12.5, color=INK, va="top")
    return figure


def _epsilon(num_hypotheses: int, num_examples: int, delta: float) -> float:
    return hoeffding_epsilon(num_examples, num_hypotheses=num_hypotheses, delta=delta)


def _grid(first: int, last: int) -> list[int]:
    """Whole numbers, evenly far apart where the scale is logarithmic."""
    return sorted({round(x) for x in np.logspace(math.log10(first), math.log10(last), 200)})


def _place(c: Calculation) -> tuple[int, int]:
    """Where one stands; what was left open is what the answers say it may be."""
    m, n = c.num_hypotheses, c.num_examples
    if m is None and c.answers is not None and c.answers.num_hypotheses is not None:
        m = max(1, int(min(c.answers.num_hypotheses, MOST)))
    if n is None and c.answers is not None:
        n = c.answers.num_examples
    assert m is not None
    assert n is not None
    if m > MOST:
        raise ConfigError(f"a drawing has room for up to {MOST:.0e} hypotheses, got {len(str(m))} digits")
    return m, n


def _around(given: int, usual: Sequence[int]) -> list[int]:
    """The usual numbers and the one given, which takes the place of any that is nearly the same."""
    return sorted([given, *(each for each in usual if abs(math.log10(each / given)) > 0.3)])


def _lines(
    axes: Axes,
    over: Sequence[int],
    numbers: Sequence[int],
    compute: Callable[[int, int], float],
    given: int,
    name: str,
) -> None:
    """A line for each number, that of the given one in colour."""
    for shade, number in zip(np.linspace(0.75, 0.45, len(numbers)), numbers, strict=True):
        look = {"color": COLORS[0], "linewidth": 2.2} if number == given else {"color": str(shade), "linewidth": 1.3}
        text = name.format(number) if number < 10**12 else f"{name[:4]}{number:.1e}"
        axes.plot([float(x) for x in over], [compute(x, number) for x in over], label=text, **look)


def _name_end(axes: Axes, text: str, y: float, *, is_given: bool) -> None:
    axes.annotate(
        text, (1.0, y), xycoords=axes.get_yaxis_transform(), xytext=(5, 0), textcoords="offset points", va="center",
        fontsize=8.5, color=COLORS[0] if is_given else MUTED,
    )  # fmt: skip


def _mark(axes: Axes, x: int, reached: float, wished: float | None) -> None:
    """Where one stands, and where one would like to."""
    color, halo = COLORS[1], [withStroke(linewidth=3, foreground="#ffffff")]
    axes.plot([float(x)], [reached], "o", color=color, markersize=8, markeredgecolor="#ffffff", zorder=5)
    axes.annotate(
        f"{reached:.4f}", (float(x), reached), xytext=(7, 9), textcoords="offset points", fontsize=10, color=color,
        path_effects=halo,
    )  # fmt: skip
    if wished is None or wished == reached:
        return
    axes.axhline(wished, color=color, linewidth=1, linestyle=":")
    axes.text(0.02, wished, f"wished for: {wished:g}", transform=axes.get_yaxis_transform(), va="bottom", fontsize=8.5,
              color=color, path_effects=halo)  # fmt: skip


def _label(axes: Axes, title: str, x: str, limits: tuple[int, int]) -> None:
    axes.set(xscale="log", yscale="log", xlim=tuple(map(float, limits)))
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=9)
    axes.set_xlabel(x, fontsize=9, color=MUTED)
    axes.set_ylabel("epsilon", fontsize=9, color=MUTED)
    axes.xaxis.set_major_locator(LogLocator(numticks=10))
    axes.xaxis.set_major_formatter(FuncFormatter(_power))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=8.5, labelcolor=MUTED, color=MUTED, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _power(value: float, _: object) -> str:
    """1, 10, 100 as they are, and powers from a thousand on by a word or by their exponent."""
    words = {1e3: "1k", 1e4: "10k", 1e5: "100k", 1e6: "1M", 1e7: "10M", 1e8: "100M", 1e9: "1G", 1e10: "10G"}
    return words.get(round(value, 6), f"{value:g}")
