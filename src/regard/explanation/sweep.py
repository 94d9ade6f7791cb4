"""A sweep as a person reads it: a table for the terminal, a figure, and a page to keep.

A sweep is what `result.json` holds: its `trials`, best first, the `winner` beside the same settings with other
seeds, the `importance` of each setting, and N, M and the bound.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.explanation.open_table import open_table
from regard.explanation.sweep_words import columns_of, command_of, findings_of, lead_of, rows_of, title_of
from regard.logging import format_duration

MOST_SHOWN = 12
"""Trials that the terminal shows; the page has all."""


@dataclass(frozen=True, eq=False)
class SweepTable:
    """The best trials, and what follows, for a rich console."""

    table: Mapping[str, Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(title_of(self.table), style="bold")
        yield Text(lead_of(self.table), style="dim")
        yield Text()
        drawn = open_table(name.rpartition(".")[2] for name in columns_of(self.table))
        for number, row in enumerate(rows_of(self.table)):
            if number < MOST_SHOWN:
                drawn.add_row(*map(Text, row), style="bold" if number == 0 else "")
        yield drawn
        if (more := self.table["num_trials"] - MOST_SHOWN) > 0:
            yield Text(f"and {more:,} more", style="dim")
        yield Text()
        for sentence in findings_of(self.table):
            yield Text(f"- {sentence}")


def draw_sweep(table: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a PNG or SVG picture: the trials as lines through their settings, and what became of the winner."""
    # Imported here, since matplotlib takes longer to load than a table takes to print.
    from regard.explanation.figures import save
    from regard.explanation.sweep_figure import compose

    save(compose(table), Path(path))


def write_sweep(path: str | os.PathLike[str], table: Mapping[str, Any]) -> None:
    """Write the sweep as one HTML file that needs nothing else."""
    from regard.explanation.figure_page import write_figure_page
    from regard.explanation.sweep_figure import compose

    trials = {"name": "trials, best first", "columns": columns_of(table), "rows": list(rows_of(table)), "note": ""}
    shares = sorted(table["importance"].items(), key=lambda item: -item[1])
    importance = {
        "name": "importance of each setting",
        "columns": ["setting", "share"],
        "rows": [[name, f"{100 * share:.1f} %"] for name, share in shares],
        "note": "How much it decides whether a trial is among the best quarter (PED-ANOVA).",
    }
    write_figure_page(
        Path(path),
        compose(table),
        title=title_of(table),
        claim=lead_of(table),
        findings=list(findings_of(table)),
        tables=[trials, *([importance] if shares else [])],
        settings=[(name, str(value)) for name, value in _facts(table).items()],
        command=command_of(table, Path(path).parent),
        time=f"{format_duration(sum(trial['seconds'] or 0.0 for trial in table['trials']))} of training",
    )


def _facts(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "validation rows, N": f"{table['rows']:,}",
        "looks, M": f"{table['hypotheses']:,}",
        "surely told apart": f"by more than {table['smallest_difference']:.3f}",
        "sampler": table["sampler"],
        "pruner": table["pruner"],
        "budget": table["budget"],
        "seed": table["seed"],
        "last link of the ledger": table["ledger"][:16],
    }
