"""The figure of a sweep: a line for each trial through its settings to what it reached, and below it the winner.

Inselberg, "The Plane with Parallel Coordinates" (1985): each setting is an upright axis, each trial crosses all.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from regard.explanation.comparison_words import is_finite, metric_name
from regard.explanation.figure_page import COLORS, GRID
from regard.explanation.figures import INK, MUTED
from regard.explanation.sweep_words import digits_of, lead_of, say_setting, say_value, title_of

WINNER, OTHERS = COLORS[1], COLORS[0]
SHADES = (0.24, 0.42, 0.62, 0.85)
"""How much of the colour shows, from the worst trials to those behind the winner."""
WIDTH, TOP, BOTTOM, GAP, HEAD = 11.0, 3.6, 2.3, 0.95, 0.95
"""In inches: the whole, the lines, the panels below them, what lies between, and the title."""
SPREAD = 0.07
"""How far apart trials of the same choice cross its axis, or they would be one line."""
MOST_NAMES = 12
"""Choices that an axis names."""


def compose(table: Mapping[str, Any]) -> Figure:
    """The lines above; below what decides, what the winner reaches again, and the front of several objectives."""
    panels = [_draw_importance] if table["importance"] else []
    panels += [_draw_winner]
    panels += [_draw_front] if len(table["objectives"]) > 1 else []
    height = HEAD + TOP + GAP + BOTTOM
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    axes = figure.add_axes((0.0, (BOTTOM + GAP) / height, 1.0, TOP / height))
    _draw_lines(axes, table)
    share = 1.0 / len(panels)
    for place, draw in enumerate(panels):
        inset = 0.11 if draw is _draw_importance else 0.045
        left, width = place * share + inset, share - inset - (0.03 if len(panels) > 1 else 0.0)
        panel = figure.add_axes((left, 0.0, width, BOTTOM / height))
        _clear(panel)
        draw(panel, table)
    figure.text(-0.045, 1.0, title_of(table), fontsize=13, color=INK, va="top")
    figure.text(-0.045, 1.0 - 0.27 / height, lead_of(table), fontsize=9.5, color=MUTED, va="top")
    return figure


def _draw_lines(axes: Axes, table: Mapping[str, Any]) -> None:
    """Parallel coordinates; the better a trial, the darker, and the winner in a colour of its own."""
    scales = [_Scale.of_setting(name, one) for name, one in table["space"].items()]
    goals = [goal["name"] for goal in table["objectives"]]
    scales += [_Scale.of_goal(goal, table) for goal in goals]
    finished = [trial for trial in table["trials"] if trial["state"] == "finished"]
    lost = [trial for trial in table["trials"] if trial["state"] != "finished"]
    for trial in lost:
        heights = [scale.height(trial["settings"].get(scale.name)) for scale in scales[: -len(goals)]]
        heights = [
            height - SPREAD if scale.is_choice else height for scale, height in zip(scales, heights, strict=False)
        ]
        axes.plot(range(len(heights)), heights, color=MUTED, alpha=0.5, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    for place, trial in reversed(list(enumerate(finished))):
        values = [trial["settings"].get(scale.name) for scale in scales[: -len(goals)]]
        heights = [scale.height(v) for scale, v in zip(scales, [*values, *trial["values"].values()], strict=True)]
        beside = SPREAD * (0.5 - place / len(finished))
        heights = [height + beside * scale.is_choice for scale, height in zip(scales, heights, strict=True)]
        is_winner = trial["number"] == table["winner"]["number"]
        shade = SHADES[len(SHADES) - 1 - place * len(SHADES) // len(finished)]
        others = {"color": OTHERS, "alpha": shade, "linewidth": 1.3}
        look = {"color": WINNER, "linewidth": 2.4} if is_winner else others
        axes.plot(range(len(heights)), heights, zorder=4 if is_winner else 3 - place / len(finished), **look)
    for place, scale in enumerate(scales):
        is_goal = place >= len(scales) - len(goals)
        _draw_axis(axes, place, scale, is_goal=is_goal, is_last=place == len(scales) - 1)
    axes.set(xlim=(-0.02, len(scales) - 1 + 0.02), ylim=(-0.05, 1.08), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    told = "orange: the winner; the darker, the better" + ("; dashed: pruned or failed" if lost else "")
    axes.text(-0.045, -0.01, told, transform=axes.transAxes, fontsize=8.5, color=MUTED, va="top")


class _Scale:
    """Where the values of a setting, or of an objective, lie on an upright axis from 0 to 1."""

    def __init__(
        self, name: str, title: str, ticks: Sequence[tuple[float, str]], place: Any, *, is_choice: bool = False
    ) -> None:
        self.name, self.title, self.ticks, self._place = name, title, ticks, place
        self.is_choice = is_choice

    def height(self, value: Any) -> float:
        return math.nan if value is None else self._place(value)

    @classmethod
    def of_setting(cls, name: str, one: Mapping[str, Any]) -> "_Scale":
        if "choices" in one:
            choices = [repr(choice) for choice in one["choices"]]
            heights = {c: (i + 0.5) / len(choices) for i, c in enumerate(choices)}
            shown = one["choices"][:: max(1, math.ceil(len(choices) / MOST_NAMES))]
            ticks = [(heights[repr(choice)], say_setting(choice)) for choice in shown]
            return cls(name, name, ticks, lambda v: heights[repr(v)], is_choice=True)
        low, high = float(one["low"]), float(one["high"])
        if one.get("log"):
            middle = math.sqrt(low * high)
            span = math.log(high / low)
            ticks = [(h, f"{value:.2g}") for h, value in ((0.0, low), (0.5, middle), (1.0, high))]
            return cls(name, name, ticks, lambda v: math.log(v / low) / span)
        ticks = [(h, f"{low + h * (high - low):.3g}") for h in (0.0, 0.5, 1.0)]
        return cls(name, name, ticks, lambda v: (v - low) / (high - low))

    @classmethod
    def of_goal(cls, goal: str, table: Mapping[str, Any]) -> "_Scale":
        """Better is higher, whichever way that is."""
        is_maximized = next(g["direction"] == "maximize" for g in table["objectives"] if g["name"] == goal)
        values = [trial["values"][goal] for trial in table["trials"] if is_finite(trial["values"][goal])]
        low, high = min(values), max(values)
        span = (high - low) or 1.0

        def place(value: float) -> float:
            share = (value - low) / span if high > low else 0.5
            return share if is_maximized else 1.0 - share

        ticks = [(place(v), say_value(v, goal, digits_of(table))) for v in sorted({low, (low + high) / 2, high})]
        return cls(goal, metric_name(goal) + ("" if is_maximized else "\n(lower is better)"), ticks, place)


def _draw_axis(axes: Axes, place: int, scale: _Scale, *, is_goal: bool, is_last: bool) -> None:
    """An axis with its numbers beside it, those of the last one where no line goes."""
    halo = [withStroke(linewidth=2.5, foreground="#ffffff")]
    axes.vlines(place, 0.0, 1.0, color=INK if is_goal else MUTED, linewidth=1.6 if is_goal else 0.9, zorder=5)
    for height, text in scale.ticks:
        axes.annotate(
            text, (place, height), xytext=(6 if is_last else -5, 0), textcoords="offset points", va="center",
            ha="left" if is_last else "right", fontsize=8.5, color=INK if is_goal else MUTED, path_effects=halo,
            zorder=6, annotation_clip=False,
        )  # fmt: skip
    section, _, name = scale.title.rpartition(".")
    text = f"{section}\n{name}" if section else scale.title
    axes.annotate(
        text, (place, 1.0), xytext=(0, 9), textcoords="offset points", ha="center", va="bottom", fontsize=9, color=INK,
        annotation_clip=False,
    )  # fmt: skip


def _draw_importance(axes: Axes, table: Mapping[str, Any]) -> None:
    shares = sorted(table["importance"].items(), key=lambda item: item[1])
    axes.barh(range(len(shares)), [share for _, share in shares], color=OTHERS, height=0.55)
    for place, (_, share) in enumerate(shares):
        axes.annotate(f"{100 * share:.0f} %", (share, place), xytext=(4, 0), textcoords="offset points", va="center",
                      fontsize=8.5, color=MUTED)  # fmt: skip
    axes.set_yticks(range(len(shares)), labels=[name for name, _ in shares])
    axes.set_ylim(-0.6, len(shares) - 0.4)
    axes.set_xlim(0.0, 1.15 * max(share for _, share in shares))
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.set_title("What decides", loc="left", fontsize=10.5, color=INK, pad=9)


def _draw_winner(axes: Axes, table: Mapping[str, Any]) -> None:
    """What won, what the same settings reach with other seeds, and where the true score lies."""
    winner, goal, bound = table["winner"], table["objectives"][0]["name"], table["bound"]
    places = ["the trial that won"]
    if bound is not None:
        axes.hlines(0, bound["lower"], bound["upper"], color=WINNER, linewidth=1.4, alpha=0.6)
    axes.plot([winner["value"]], [0], "o", color=WINNER, markersize=8, markeredgecolor="#ffffff", zorder=4)
    if winner["again"]:
        places.append("again, other seeds")
        if winner["interval"] is not None:
            axes.hlines(-1, *winner["interval"], color=OTHERS, linewidth=1.4, alpha=0.6)
        axes.plot(winner["again"], [-1] * len(winner["again"]), "o", color=OTHERS, markersize=4.5, alpha=0.8)
        axes.plot([winner["mean"]], [-1], "D", color=OTHERS, markersize=7, markeredgecolor="#ffffff", zorder=4)
    for place, (name, value) in enumerate(zip(places, (winner["value"], winner["mean"]), strict=False)):
        axes.annotate(
            f"{name}: {say_value(value, goal, digits_of(table))}", (value, -place), xytext=(0, 11), ha="center",
            textcoords="offset points", fontsize=9, color=INK,
        )  # fmt: skip
    axes.set(yticks=[], ylim=(-len(places) + 0.35, 0.75))
    axes.margins(x=0.18)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    bars = [f"bar above: bound for all M = {table['hypotheses']:,} looks"] if bound is not None else []
    bars += ["bar below: 95 % interval of the mean over seeds"] if winner["interval"] is not None else []
    axes.set_xlabel("\n".join([metric_name(goal), *bars]), fontsize=8.5, color=MUTED, loc="left")
    axes.set_title("The winner's curse", loc="left", fontsize=10.5, color=INK, pad=9)


def _draw_front(axes: Axes, table: Mapping[str, Any]) -> None:
    """The first two objectives against each other, and the trials that none beats in both."""
    first, second = (goal["name"] for goal in table["objectives"][:2])
    finished = [trial for trial in table["trials"] if trial["state"] == "finished"]
    places = [(trial["values"][second], trial["values"][first]) for trial in finished]
    axes.plot(*zip(*places, strict=True), "o", color=OTHERS, alpha=SHADES[1], markersize=4.5)
    front = sorted(place for place, trial in zip(places, finished, strict=True) if trial["is_front"])
    axes.plot(*zip(*front, strict=True), "o-", color=OTHERS, markersize=6, linewidth=1.3, markeredgecolor="#ffffff")
    for axis, goal, most in ((axes.xaxis, second, 4), (axes.yaxis, first, 5)):
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda v, _, goal=goal: say_value(v, goal, 2)))
    axes.set_xlabel(metric_name(second), fontsize=8.5, color=MUTED, loc="left")
    axes.set_title(
        f"The front: {metric_name(first)} by {metric_name(second)}", loc="left", fontsize=10.5, color=INK, pad=9
    )


def _clear(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=8.5, labelcolor=MUTED, pad=5)
