"""The report of a run: its page, and the facts that a reader needs first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.data.formats.messages import format_count
from regard.data.prepare import Prepared
from regard.evaluation.registry import find_metric
from regard.evaluation.tables import label_cells, main_scores
from regard.explanation.graphs import graph_svg
from regard.explanation.report import Report, certificate_summary, write_report
from regard.logging import format_duration
from regard.runs.attention import maps_for_report
from regard.runs.baseline import BaselineResult
from regard.runs.commands import next_commands
from regard.runs.evaluation import Evaluation
from regard.runs.run import Run
from regard.selection.releases import read_release
from regard.tasks.capabilities import GraphReader, TrainingReporter
from regard.tasks.content import ReportContent, Section
from regard.tasks.task import EvaluationData, Task
from regard.training.checkpoints import note_of
from regard.training.precision import threads

_FEWEST_ROWS = 20
"""On fewer rows a model that has learned something can score 0: one that is right in a tenth of all cases does so on 20
rows with a probability of 0.12."""
_MOST_DRAWN_NODES = 60
"""A larger graph is a tangle in the width of a sample."""


def summarize(run: Run, content: ReportContent | None = None) -> dict[str, str]:
    """Facts about a run: its model, data, training and hardware."""
    settings, provenance, metrics = run.settings, run.folder.read_provenance(), run.folder.read_metrics()
    trained = [line for line in metrics if "loss" in line]
    evaluations = [line for line in metrics if "valid_loss" in line]
    depths = [depth for depth in (settings.model.encoder_depth, settings.model.decoder_depth) if depth]
    layers = format_count(sum(depths), "layer").removeprefix(str(sum(depths)))
    facts = {
        "model": f"{settings.preset}, {'+'.join(map(str, depths)) or 0}{layers}, {settings.model.model_dim} wide",
        "parameters": f"{provenance.num_parameters:,}",
        "data": ", ".join(Path(name).name for name in settings.data.train),
        **(run.task.facts() if content is None else content.facts),
    }
    if trained:
        speeds = sorted(line["tokens_per_second"] for line in trained)
        facts["trained"] = f"{trained[-1]['step']:,} steps in {format_duration(trained[-1]['seconds'])}"
        facts["speed"] = f"{speeds[len(speeds) // 2]:,.0f} {run.task.token_unit}/s"
    if returns := [line for line in metrics if "rolled_back_from" in line]:
        facts["diverged"] = "; ".join(_rolled_back(line) for line in returns)
    if evaluations:
        note = note_of(run.folder.model_path)
        of_model = note.get("step"), note.get("rollbacks", 0)
        kept = [line for line in evaluations if (line["step"], line.get("rollbacks", 0)) == of_model]
        best = kept[-1] if kept else min(evaluations, key=lambda line: line["valid_loss"])
        facts["best"] = f"step {best['step']:,}, {_evaluated(best)}"
    if (tuned := settings.finetune) is not None:
        start = "" if not tuned.probe else ", a linear probe" if settings.is_probe_alone else " after a linear probe"
        facts["fine-tuned"] = f"from {Path(tuned.base).name}, {tuned.method}{start}"
    return {**facts, "hardware": provenance.hardware}


def _rolled_back(line: Mapping[str, Any]) -> str:
    """Why training has returned to a checkpoint, and how it has continued."""
    return f"{line['reason']}, continued from step {line['step']:,} at {line['learning_rate_factor']:g} x learning rate"


def _evaluated(line: Mapping[str, Any]) -> str:
    """The figures of an evaluation during training."""
    loss = f"validation loss {line['valid_loss']:.4f}"
    if "valid_score" not in line:
        return loss
    metric = find_metric(line["valid_metric"])
    return f"{loss}, {metric.in_text} {metric.format(line['valid_score'])}"


def describe_failure(run: Run, evaluation: Evaluation, baseline: BaselineResult | None = None) -> str:
    """A warning that the model has learned nothing; empty where it has.

    It has what to try, unless a comparison with a baseline has that already.
    """
    reason = run.task.failure(evaluation.scores, evaluation.label_counts, evaluation.headline)
    if not reason or len(evaluation.rows) < _FEWEST_ROWS:
        return ""
    is_other = run.task.tokenizer_kind not in ("", "characters")
    tokenizer = ", another tokenizer (characters for single words)" if is_other else ""
    found = f"the model has not learned the task: {reason} ({len(evaluation.rows):,} rows)"
    if baseline is not None and baseline.advice:
        return f"{found}; check that the right columns were read"
    return (
        f"{found}. Try a longer budget, another learning rate{tokenizer}, or another model; check that the right "
        "columns were read"
    )


def write_run_report(
    run: Run,
    evaluation: Evaluation,
    *,
    evaluated_on: str = "Validation",
    baseline: BaselineResult | None = None,
    training: Prepared | None = None,
) -> Path:
    """Write `report.html`.

    Args:
        run: The run.
        evaluation: The scores, and what they were computed from.
        evaluated_on: The name of the evaluated set.
        baseline: Another one than the run's.
        training: The training data, where outputs are compared with it.
    """
    counts, baseline = evaluation.label_counts, baseline or run.baseline
    shown = [score.name for score in main_scores(evaluation.scores, has_labels=counts is not None)]
    order = [evaluation.headline, *(name for name in shown if name != evaluation.headline)]
    data = EvaluationData(evaluation.rows, evaluation.predictions, evaluation.likelihoods, training)
    with threads(1):
        content = run.task.report(run.model, data)
    report = Report(
        title=f"{run.path.name}: {run.task.description}",
        summary=summarize(run, content),
        scores={name: evaluation.scores[name].to_json() for name in order},
        warning=describe_failure(run, evaluation, baseline),
        labels=[] if counts is None else label_cells(counts),
        evaluated_on=evaluated_on,
        num_rows=len(evaluation.rows) if evaluation.has_rows else None,
        baseline=_baseline(baseline, evaluation),
        curves=[] if run.settings.is_probe_alone else run.folder.read_metrics(),
        kept_step=note_of(run.folder.model_path).get("step"),
        settings=run.folder.settings_path.read_text(encoding="utf-8"),
        samples=with_drawings(run.task, content.samples),
        sample_names=content.sample_names,
        certificate=certificate_summary(run.certificate()),
        confusion=content.confusion,
        attention=maps_for_report(run.task, run.model, content),
        sections=[*_training_sections(run), *content.sections],
        notes=run.folder.read_provenance().notes,
        commands=next_commands(run),
    )
    write_report(run.folder.report_path, report)
    return run.folder.report_path


def with_drawings(task: Task[Any], samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Samples whose source is a small graph, with a drawing of it; others as they are."""
    if not isinstance(task, GraphReader):
        return [dict(sample) for sample in samples]
    drawings = [task.drawing(sample["source"]) for sample in samples]
    return [
        {**sample, **({"svg": graph_svg(drawing)} if 0 < len(drawing.names) <= _MOST_DRAWN_NODES else {})}
        for sample, drawing in zip(samples, drawings, strict=True)
    ]


def write_released_report(run: Run, metric: str) -> Path:
    """Write `report.html` of a run whose validation scores are released: no output for a validation row is shown."""
    report = run.last_report()
    assert report is not None, "the release is recorded before"
    write_report(
        run.folder.report_path,
        Report(
            title=f"{run.path.name}: {run.task.description}",
            summary=summarize(run),
            scores={metric: report["scores"][metric]},
            evaluated_on="Released validation",
            num_rows=report["rows"],
            curves=run.folder.read_metrics(),
            kept_step=note_of(run.folder.model_path).get("step"),
            settings=run.folder.settings_path.read_text(encoding="utf-8"),
            certificate=certificate_summary(run.certificate()),
            notes=run.folder.read_provenance().notes,
            commands=next_commands(run),
        ),
    )
    return run.folder.report_path


def describe_release(metric: str, release: Mapping[str, Any]) -> str:
    """What a mechanism has released, with its parameter."""
    score = find_metric(metric)
    is_ranked = read_release(release).rank is not None
    no_better = "" if is_ranked else ", the best of others: these weights are no better by a step"
    mechanism = f"{release['mechanism']} {release['parameter']:g}, evaluation {release['query']:,}"
    return f"{score.in_text} {score.format(release['value'])} ({mechanism}{no_better})"


def _baseline(found: BaselineResult | None, evaluation: Evaluation) -> dict[str, Any] | None:
    """What the page shows of the baseline, where it was scored by the same metric."""
    if found is None or found.headline != evaluation.headline:
        return None
    return {
        "name": found.name,
        "score": {
            "name": found.headline,
            "digits": find_metric(found.headline).digits_for(found.score),
            **found.scores[found.headline],
        },
        "sentence": f"{found.sentence[0].upper()}{found.sentence[1:]}.",
        "is_beaten": found.is_beaten,
        "advice": list(found.advice),
    }


def _training_sections(run: Run) -> list[Section]:
    """What the task measured at the evaluations of training."""
    return run.task.training_sections(run.folder.read_metrics()) if isinstance(run.task, TrainingReporter) else []
