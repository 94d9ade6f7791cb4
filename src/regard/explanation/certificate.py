"""A certificate as a person reads it: sentences and a table in the terminal, a figure, a page."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.explanation.bounds import check_ending
from regard.explanation.open_table import open_table
from regard.selection.certificate import Certificate, Judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("rows", "looked at", "bound", "from", "to")
CLAIM = "Can this number be believed?"


@dataclass(frozen=True, eq=False)
class CertificateText:
    """A certificate for a rich console."""

    certificate: Certificate

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{self.certificate.name}: {CLAIM[0].lower()}{CLAIM[1:]}", style="bold")
        yield Text()
        for sentence in self.certificate.sentences():
            yield Text(f"- {sentence}")
        rows = list(rows_of(self.certificate))
        if rows:
            yield Text()
            table = open_table(COLUMNS, left=(0, 2))
            for row, is_best in rows:
                table.add_row(*(Text(cell, style="bold" if is_best else "") for cell in row))
            yield table
        yield Text()
        yield Text(f"last link of the ledger: {self.certificate.head}", style="dim")


def rows_of(certificate: Certificate) -> Iterator[tuple[list[str], bool]]:
    """A row for each bound, as `COLUMNS` has it, and whether it is the one to report."""
    for judged in certificate.shown:
        where = f"{judged.num_examples:,} {judged.rows_called}"
        for bound in judged.bounds:
            low, high = bound.interval
            is_best = judged.best is not None and bound.name == judged.best.name
            yield [where, f"{judged.num_hypotheses:,}", bound.name, f"{low:.4f}", f"{high:.4f}"], is_best


def report_part(certificate: Certificate) -> dict[str, Any]:
    """What the report of a run shows of it."""
    return {
        "claim": CLAIM,
        "sentences": certificate.sentences(),
        "columns": list(COLUMNS),
        "rows": [{"cells": cells, "best": is_best} for cells, is_best in rows_of(certificate)],
        "is_sealed": certificate.is_sealed,
        "head": certificate.head,
    }


def draw_certificate(certificate: Certificate, path: str | os.PathLike[str], *, command: str) -> None:
    """Write the figure as .png or .svg, or a page of all as .html, by the ending of `path`."""
    path = check_ending(path)
    # Imported here, since matplotlib takes longer to load than sentences take to print.
    from regard.explanation.figure_page import write_figure_page
    from regard.explanation.figures import save

    figure = _figure(certificate)
    if path.suffix.lower() != ".html":
        save(figure, path)
        return
    rows = [cells for cells, _ in rows_of(certificate)]
    write_figure_page(
        Path(path),
        figure,
        title=certificate.name,
        claim=CLAIM,
        findings=certificate.sentences(),
        tables=[{"name": "bounds", "columns": list(COLUMNS), "rows": rows, "note": ""}] if rows else [],
        settings=[
            ("may fail with a chance of", f"{certificate.delta:g}"),
            ("looks at validation rows", f"{certificate.num_looks:,}"),
            ("openings of the test set", f"{len(certificate.openings):,}"),
            ("ledger", certificate.head[:16]),
        ],
        command=command,
    )


def _figure(certificate: Certificate) -> "Figure":
    """A line from end to end for each bound, and a point for what was measured."""
    from matplotlib.figure import Figure

    from regard.explanation.figure_page import COLORS, GRID
    from regard.explanation.figures import INK, MUTED

    lines = [(judged, *_interval) for judged in certificate.shown for _interval in _lines(judged)]
    figure = Figure(figsize=(8.2, 0.62 * max(1, len(lines)) + 1.5), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    for place, (judged, name, low, high, is_best) in enumerate(lines):
        color = COLORS[0] if is_best else MUTED
        axes.plot([low, high], [-place, -place], color=color, linewidth=7 if is_best else 3, solid_capstyle="butt")
        axes.plot([judged.value], [-place], "o", color=INK, markersize=6)
        axes.annotate(name, (low, -place), (0, 9), textcoords="offset points", fontsize=9, color=INK)
    sets = ", ".join(f"{each.num_examples:,} {each.rows_called}" for each in certificate.shown)
    metric = next((each.metric.replace("_", " ") for each in certificate.shown), "no score")
    axes.set_title(f"{metric} on {sets or 'no rows'}: measured (point), and where the truth lies", loc="left",
                   fontsize=11, color=INK, pad=14)  # fmt: skip
    axes.set_ylim(-len(lines) + 0.4, 0.75)
    axes.set_yticks([])
    axes.tick_params(labelsize=9, labelcolor=MUTED, color=MUTED, length=3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines[["bottom"]].set_color(GRID)
    axes.grid(color=GRID, linewidth=0.7, axis="x")
    axes.set_axisbelow(True)
    return figure


def _lines(judged: Judged) -> Iterator[tuple[str, float, float, bool]]:
    where = judged.rows_called
    if judged.interval is not None:
        yield f"{where}: as if nobody had looked before", *judged.interval, judged.best is None
    for bound in judged.bounds:
        is_best = judged.best is not None and bound.name == judged.best.name
        name = f"{where}: {bound.name}, {judged.num_hypotheses:,} judged"
        yield f"{name}: this one to report" if is_best else name, *bound.interval, is_best
