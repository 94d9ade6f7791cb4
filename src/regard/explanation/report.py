"""The report of a run: one page to look at, to keep and to send."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.errors import ConfigError
from regard.explanation.highlights import Highlights
from regard.explanation.maps import AttentionMaps
from regard.explanation.templates import write_page


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the page tells; whatever is left empty has no section on it."""

    title: str
    summary: Mapping[str, str] = field(default_factory=dict)
    """Label to text: model, parameters, rows, device, time."""
    scores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name to `value` and, where there are, `interval` (95 %) and `signature`; the first is shown large."""
    curves: Sequence[Mapping[str, Any]] = ()
    """Lines of `metrics.jsonl`: each has a `step`, those of training a `loss`, of validation a `valid_loss`."""
    settings: str = ""
    """The resolved `run.toml`."""
    samples: Sequence[Mapping[str, Any]] = ()
    """`source`, `prediction` and, where they are known, `target` and `right`."""
    certificate: Mapping[str, Any] | None = None
    """What the score is worth, as `report_part` has it."""
    confusion: Mapping[str, Any] | None = None
    """`labels`, and `counts`: how often each (a row) was taken for each (a column)."""
    highlights: Sequence[Highlights] = ()
    """Texts with the words that mattered."""
    attention: AttentionMaps | Sequence[AttentionMaps] | None = None
    notes: Sequence[str] = ()
    """What was guessed, counted or passed over, one sentence each."""


def write_report(path: str | os.PathLike[str], report: Report) -> None:
    """Write the report as one HTML file that needs nothing else."""
    for name, score in report.scores.items():
        if "value" not in score:
            raise ConfigError(f"a score must have a value, got {name!r} with {', '.join(score) or 'nothing'}")
    attention = [] if report.attention is None else report.attention
    examples = [attention] if isinstance(attention, AttentionMaps) else attention
    data = {
        "title": report.title,
        "summary": list(report.summary.items()),
        "scores": [{"name": name, **score} for name, score in report.scores.items()],
        "curves": _merged(report.curves),
        "settings": report.settings,
        "samples": list(report.samples),
        "certificate": report.certificate,
        "confusion": report.confusion,
        "highlights": [example.to_dict() for example in report.highlights],
        "attention": [maps.to_dict() for maps in examples],
        "notes": list(report.notes),
    }
    write_page(
        path,
        "report.html",
        title=report.title,
        data=data,
        styles=["style.css", "report.css", "highlights.css"],
        scripts=["common.js", "attention.js", "charts.js", "highlights.js", "report.js", "report_start.js"],
    )


def _merged(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line per step, in order.

    A run that was resumed has written some steps twice: the later line holds.
    """
    steps: dict[int, dict[str, Any]] = {}
    for line in lines:
        if "step" not in line:
            raise ConfigError(f"a line of curves must have a step, got {', '.join(line) or 'nothing'}")
        steps.setdefault(line["step"], {}).update(line)
    return [steps[step] for step in sorted(steps)]
