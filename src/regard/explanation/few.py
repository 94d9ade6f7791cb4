"""What few labels come to: a table for the terminal, and a curve over how many there are.

A trial is what `few.json` holds: for each number of rows of a label the mean score over the draws, with an interval
over rows and draws, and the score of each draw, with one over rows.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from regard.explanation.comparison_words import metric_name, say_score

COLOR = "#3450b8"


@dataclass(frozen=True, eq=False)
class FewTable:
    """The draws of a trial and their means, for a rich console."""

    trial: Mapping[str, Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        trial = self.trial
        yield Text(title_of(trial), style="bold")
        yield Text(f"{metric_name(trial['metric'])} on the same {trial['rows']:,} {trial['set']} rows", style="dim")
        yield Text()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        for header in (unit_of(trial), "draw", metric_name(trial["metric"])):
            table.add_column(Text(header), no_wrap=True, justify="left" if header == "draw" else "right")
        digits = _digits(trial)
        for size in trial["few"]:
            for number, draw in enumerate(size["draws"]):
                table.add_row("" if number else f"{size['few']:,}", str(draw["draw"]), _said(draw["score"], digits))
            table.add_row("", "mean", _said(size["score"], digits), style="bold", end_section=True)
        yield table
        yield Text()
        yield Text("brackets: 95 % intervals; of a draw over rows, of a mean over rows and draws", style="dim")


def title_of(trial: Mapping[str, Any]) -> str:
    """Which model learned from how little of what."""
    numbers = ", ".join(f"{size['few']:,}" for size in trial["few"])
    return f"{trial['model']}: {numbers} {unit_of(trial)} of {trial['data']}"


def unit_of(trial: Mapping[str, Any]) -> str:
    """What is drawn: so many of each label, or so many in all."""
    return "rows of each label" if trial["task"] == "classification" else "rows"


def draw_few_curve(trial: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a PNG or SVG picture of the score over the number of rows: means with intervals, and dots for draws."""
    # Imported here, since matplotlib takes longer to load than a table takes to print.
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    from regard.explanation.figures import INK, MUTED, save

    figure = Figure(figsize=(5.2, 3.4), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    numbers = [size["few"] for size in trial["few"]]
    axes.plot(
        numbers, [size["score"]["value"] for size in trial["few"]], color=COLOR, linewidth=1.6,
        marker="o", markersize=5.5, markeredgecolor="white", markeredgewidth=0.7, zorder=3,
    )  # fmt: skip
    for size in trial["few"]:
        if size["score"]["interval"] is not None:
            axes.vlines(size["few"], *size["score"]["interval"], color=COLOR, linewidth=1.4, alpha=0.55)
        values = [draw["score"]["value"] for draw in size["draws"]]
        axes.plot([size["few"] * 1.06] * len(values), values, ".", color=COLOR, markersize=3.5, alpha=0.75)
    axes.set_xscale("log")
    axes.set_xticks(numbers, labels=[f"{number:,}" for number in numbers])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", color="#e8e8e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=8.5, labelcolor=MUTED, pad=6)
    axes.set_xlabel(f"{unit_of(trial)}; bars: 95 % intervals; small dots: draws", fontsize=8.5, color=MUTED, loc="left")
    metric = f"{metric_name(trial['metric'])} on {trial['rows']:,} {trial['set']} rows"
    axes.set_title(f"{trial['model']} on {trial['data']}\n{metric}", loc="left", fontsize=10, color=INK, pad=10)
    save(figure, Path(path))


def _said(score: Mapping[str, Any], digits: int) -> str:
    return say_score(score["value"], score["interval"], digits)


def _digits(trial: Mapping[str, Any]) -> int:
    return 2 if max(abs(size["score"]["value"]) for size in trial["few"]) >= 10 else 3
