"""The result of training on a few rows per label, as a summary, and a curve over the number of rows.

A result is the content of `few_shot.json`: for each number of shots the mean score over the shot seeds, with an
interval over rows and seeds, and the score of each run, with an interval over rows.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.evaluation.registry import score_label
from regard.explanation.report.formatting import format_score
from regard.explanation.report.summary import Summary, SummaryTable


def few_shot_summary(result: Mapping[str, Any]) -> Summary:
    """Returns the scores of the runs and their means."""
    sizes, name = result["sizes"], score_label(result["metric"])
    digits = 2 if max(abs(size["score"]["value"]) for size in sizes) >= 10 else 3
    rows, means = [], []
    for size in sizes:
        for number, run in enumerate(size["runs"]):
            rows.append(["" if number else f"{size['shots']:,}", str(run["shot_seed"]), _format(run["score"], digits)])
        means.append(len(rows))
        rows.append(["", "mean", _format(size["score"], digits)])
    numbers = ", ".join(f"{size['shots']:,}" for size in sizes)
    return Summary(
        title=f"{result['model']}: {numbers} {unit_of(result)} of {result['data']}",
        subtitle=f"{name} on the same {result['rows']:,} {result['set']} rows",
        findings=(),
        tables=[
            SummaryTable(
                name="runs", columns=[unit_of(result), "seed", name], rows=rows, left=(1,), names=(), bold=means
            )
        ],
        footnote="brackets: 95 % intervals; for a run over rows, for a mean over rows and seeds",
    )


def unit_of(result: Mapping[str, Any]) -> str:
    """Returns what the shots count."""
    return "rows per label" if result["is_per_label"] else "rows"


def draw_few_curve(result: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a PNG or SVG figure of the score over the number of rows."""
    from regard.explanation.figures import save_figure
    from regard.explanation.report.plots import plot_few_shot

    save_figure(plot_few_shot(result), Path(path))


def _format(score: Mapping[str, Any], digits: int) -> str:
    return format_score(score["value"], score["interval"], digits)
