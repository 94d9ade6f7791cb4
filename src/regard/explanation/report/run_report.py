"""The report of a run: one page with its scores, learning curves, samples and settings."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.evaluation.registry import find_metric, find_metric_of, score_label
from regard.evaluation.tables import LABEL_HEADER
from regard.explanation.pages import page_data, write_page
from regard.explanation.report.formatting import label_of
from regard.explanation.report.summary import Summary

if TYPE_CHECKING:  # importing attention imports torch, which certificates and bounds do not need
    from regard.explanation.attention import AttentionMaps
    from regard.tasks.content import Section


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of the page; a section whose content is empty is left out."""

    title: str
    summary: Mapping[str, str] = field(default_factory=dict)
    """Names and texts: model, parameters, rows, device, time."""
    scores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Metric to `value` and, where known, `interval` (95 %) and `signature`; the first one is shown large."""
    warning: str = ""
    """What a reader should know before anything else."""
    labels: Sequence[Sequence[str]] = ()
    """For each label, or type of entity, the cells of `LABEL_HEADER`."""
    evaluated_on: str = "Validation"
    """The set of the scores, which precedes the name of the first one."""
    num_rows: int | None = None
    """How many rows the scores are computed on."""
    baseline: Mapping[str, Any] | None = None
    """The result of a simple model on the same rows: its `name`, its `score` by the first metric with `value` and
    `interval`, a `sentence` on the difference, whether it `is_beaten`, and where it is not, the `advice`."""
    curves: Sequence[Mapping[str, Any]] = ()
    """The lines of `metrics.jsonl`: each has a `step`, those of training a `loss`, of validation a `valid_loss` and,
    where weights are selected by score, a `valid_score` and the name of its metric, `valid_metric`."""
    kept_step: int | None = None
    """The step of the weights that were kept."""
    settings: str = ""
    """The resolved `run.toml`."""
    samples: Sequence[Mapping[str, Any]] = ()
    """`source`, `prediction` and, where known, `target` and `right`; with `kind` "tags", texts of tags; with `svg`, a
    drawing of the source."""
    sample_names: tuple[str, str, str] = ("input", "expected", "predicted")
    """What a source, a target and a prediction are called."""
    certificate: Summary | None = None
    confusion: Mapping[str, Any] | None = None
    """`labels`, and `counts`: how often each label (a row) was predicted as each (a column)."""
    attention: "Sequence[AttentionMaps]" = ()
    sections: "Sequence[Section]" = ()
    """What the task shows, below the learning curves."""
    notes: Sequence[str] = ()
    """What was detected, chosen, counted or left out before training, one sentence each."""
    commands: Sequence[tuple[str, str]] = ()
    """What can be done next: commands, each with what it gives."""


def write_report(path: str | os.PathLike[str], report: Report) -> None:
    """Writes the report as one HTML file."""
    selected_by = next((line["valid_metric"] for line in report.curves if "valid_metric" in line), None)
    metric = None if selected_by is None else find_metric(selected_by)
    data = {
        "title": report.title,
        "summary": list(report.summary.items()),
        "warning": report.warning,
        "scores": _scores(report),
        "baseline": report.baseline,
        "labels": [{"columns": LABEL_HEADER, "rows": report.labels}] if report.labels else [],
        "curves": _merged(report.curves),
        "kept_step": report.kept_step,
        "score_label": None if metric is None else label_of(metric.name),
        "score_digits": None if metric is None else metric.digits,
        "settings": report.settings,
        "samples": list(report.samples),
        "sample_names": list(report.sample_names),
        "certificate": None if report.certificate is None else report.certificate.to_json(),
        "confusion": report.confusion,
        "attention": [maps.to_page_data() for maps in report.attention],
        "sections": [_section(section) for section in report.sections],
        "notes": list(report.notes),
        "commands": [list(command) for command in report.commands],
    }
    write_page(path, "report", title=report.title, data=data)


def update_report(path: str | os.PathLike[str], *, certificate: Summary, commands: Sequence[tuple[str, str]]) -> None:
    """Replaces what an evaluation changes in a report; a file that is not a report is left as it is."""
    data = page_data(path) if Path(path).exists() else None
    if data is not None:
        found = {"certificate": certificate.to_json(), "commands": [list(command) for command in commands]}
        write_page(path, "report", title=data["title"], data={**data, **found})


def _section(section: "Section") -> dict[str, Any]:
    """What the page shows of a section; a plot is drawn here, as SVG."""
    from regard.explanation.attribution import Highlights

    figure = ""
    if section.plot is not None and section.plot.panels:
        from regard.explanation.figures import to_svg
        from regard.explanation.panels import draw_plot

        figure = to_svg(draw_plot(section.plot))
    return {
        "title": section.title,
        "lead": section.lead,
        "figure": figure,
        "description": "" if section.plot is None else section.plot.description,
        "drawings": [asdict(drawing) for drawing in section.drawings],
        "images": [asdict(image) for image in section.images],
        "texts": [Highlights(text, attributions).to_json() for text, attributions in section.texts],
        "table": {"columns": list(section.columns), "rows": [list(row) for row in section.rows]},
        "note": section.note,
    }


def _scores(report: Report) -> list[dict[str, Any]]:
    """The scores with their labels; that of the first one names its set, for example "Validation BLEU (500 rows)"."""
    found = []
    for number, (name, score) in enumerate(report.scores.items()):
        if "value" not in score:
            raise ConfigError(f"a score must have a value, got {name!r} with {', '.join(score) or 'nothing'}")
        rows = "" if report.num_rows is None else f" ({report.num_rows:,} rows)"
        label = label_of(name) if number else f"{report.evaluated_on} {score_label(name)}{rows}"
        found.append({"name": name, "label": label, "digits": _digits(name, score["value"]), **score})
    return found


def _digits(name: str, value: float) -> int | None:
    """The decimals of a score of a metric; None for other values."""
    try:
        return find_metric_of(name).digits_for(value)
    except ConfigError:
        return None


def _merged(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line per step, in order; of a step that a resumed run has logged twice, the later line counts."""
    steps: dict[int, dict[str, Any]] = {}
    for line in lines:
        if "step" not in line:
            raise ConfigError(f"a line of curves must have a step, got {', '.join(line) or 'nothing'}")
        steps.setdefault(line["step"], {}).update(line)
    return [steps[step] for step in sorted(steps)]
