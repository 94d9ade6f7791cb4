"""The report of a run: its page, and the facts that a reader needs first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.data.prepare import Prepared
from regard.evaluation.registry import find_metric
from regard.evaluation.tables import label_cells, main_scores
from regard.explanation.attention import (
    AttentionMaps,
    causal_attention_maps,
    cross_attention_maps,
    encoder_attention_maps,
    has_attention,
)
from regard.explanation.report import Report, certificate_summary, write_report
from regard.explanation.trees import draw_as_svg
from regard.logging import format_duration
from regard.runs.baseline import BaselineResult
from regard.runs.run import Evaluation, Run, highlights_of
from regard.tasks.task import EvaluationData, ReportContent
from regard.training.checkpoints import note_of
from regard.training.precision import threads

_MOST_PICTURES = 8
"""Pictures whose attention a report shows."""
_MOST_TOKENS = 60
"""An attention map with more tokens on a side cannot be read."""


_FEWEST_ROWS = 20
"""On fewer rows a model that has learned something can score 0: one that is right in a tenth of all cases does so on 20
rows with a probability of 0.12."""


def summarize(run: Run, content: ReportContent | None = None) -> dict[str, str]:
    """Facts about a run: its model, data, training and hardware."""
    settings, provenance, metrics = run.settings, run.folder.read_provenance(), run.folder.read_metrics()
    trained = [line for line in metrics if "loss" in line]
    evaluations = [line for line in metrics if "valid_loss" in line]
    depths = [depth for depth in (settings.model.encoder_depth, settings.model.decoder_depth) if depth]
    facts = {
        "model": f"{settings.preset}, {'+'.join(map(str, depths)) or 0} layers, {settings.model.model_dim} wide",
        "parameters": f"{provenance.num_parameters:,}",
        "data": ", ".join(Path(name).name for name in settings.data.train),
        **(run.task.facts() if content is None else content.facts),
    }
    if trained:
        speeds = sorted(line["tokens_per_second"] for line in trained)
        facts["trained"] = f"{trained[-1]['step']:,} steps in {format_duration(trained[-1]['seconds'])}"
        facts["speed"] = f"{speeds[len(speeds) // 2]:,.0f} tokens/s"
    if evaluations:
        step = note_of(run.folder.model_path).get("step")
        kept = [line for line in evaluations if line["step"] == step]
        best = kept[-1] if kept else min(evaluations, key=lambda line: line["valid_loss"])
        facts["best"] = f"step {best['step']:,}, {_evaluated(best)}"
    if (tuned := settings.finetune) is not None:
        start = "" if not tuned.probe else ", a linear probe" if settings.is_probe_alone else " after a linear probe"
        facts["fine-tuned"] = f"from {Path(tuned.base).name}, {tuned.method}{start}"
    return {**facts, "hardware": provenance.hardware}


def _evaluated(line: Mapping[str, Any]) -> str:
    """The figures of an evaluation during training."""
    loss = f"validation loss {line['valid_loss']:.4f}"
    if "valid_score" not in line:
        return loss
    metric = find_metric(line["valid_metric"])
    return f"{loss}, {metric.in_text} {metric.format(line['valid_score'])}"


def describe_failure(run: Run, evaluation: Evaluation) -> str:
    """A warning that the model has learned nothing, with what to try; empty where it has."""
    reason = run.task.failure(evaluation.scores, evaluation.label_counts, evaluation.headline)
    if not reason or len(evaluation.rows) < _FEWEST_ROWS:
        return ""
    is_other = run.task.tokenizer_kind not in ("", "characters")
    tokenizer = ", another tokenizer (characters for single words)" if is_other else ""
    return (
        f"the model has not learned the task: {reason} ({len(evaluation.rows):,} rows). Try a longer budget, another "
        f"learning rate{tokenizer}, or another model; check that the right columns were read"
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
    counts = evaluation.label_counts
    shown = [score.name for score in main_scores(evaluation.scores, has_labels=counts is not None)]
    order = [evaluation.headline, *(name for name in shown if name != evaluation.headline)]
    data = EvaluationData(evaluation.rows, evaluation.predictions, evaluation.likelihoods, training)
    with threads(1):
        content = run.task.report(run.model, data)
    report = Report(
        title=f"{run.path.name}: {run.task.description}",
        summary=summarize(run, content),
        scores={name: evaluation.scores[name].to_json() for name in order},
        warning=describe_failure(run, evaluation),
        labels=[] if counts is None else label_cells(counts),
        evaluated_on=evaluated_on,
        num_rows=len(evaluation.rows) if run.task.has_targets else None,
        baseline=_baseline(baseline or run.baseline, evaluation),
        curves=[] if run.settings.is_probe_alone else run.folder.read_metrics(),
        kept_step=note_of(run.folder.model_path).get("step"),
        settings=run.folder.settings_path.read_text(encoding="utf-8"),
        samples=content.samples,
        certificate=certificate_summary(run.certificate()),
        confusion=content.confusion,
        highlights=[highlights_of(predictions, target) for predictions, target in content.predictions],
        attention=_attention_maps(run, content),
        forecasts=_forecasts(content),
        timelines=_timelines(content),
        drawn=content.drawn,
        trees=[{"caption": caption, "svg": draw_as_svg(tree)} for caption, tree in content.trees],
        drawn_note=content.drawn_note,
        notes=run.folder.read_provenance().notes,
    )
    write_report(run.folder.report_path, report)
    return run.folder.report_path


def _baseline(found: BaselineResult | None, evaluation: Evaluation) -> dict[str, Any] | None:
    """What the page shows of the baseline, where it was scored by the same metric."""
    if found is None or found.headline != evaluation.headline:
        return None
    return {
        "name": found.name,
        "score": {"name": found.headline, **found.scores[found.headline]},
        "sentence": f"{found.sentence[0].upper()}{found.sentence[1:]}.",
        "is_beaten": found.is_beaten,
        "advice": list(found.advice),
    }


def _forecasts(content: ReportContent) -> str:
    """A drawing of the forecasts, as SVG."""
    if not content.forecasts:
        return ""
    from regard.explanation.figures import to_svg
    from regard.explanation.series import plot_forecasts

    return to_svg(plot_forecasts(content.forecasts, coverage=content.coverage))


def _timelines(content: ReportContent) -> str:
    """A drawing of subjects with their events and risks, as SVG."""
    if not content.timelines:
        return ""
    from regard.explanation.events import plot_timelines
    from regard.explanation.figures import to_svg

    return to_svg(plot_timelines(content.timelines))


def _attention_maps(run: Run, content: ReportContent) -> list[AttentionMaps]:
    """The attention maps of the first input that is short enough to be drawn."""
    kind = run.task.attention_kind
    if kind == "picture":
        return [run.maps_over_picture(*pair) for pair in content.attention_inputs[:_MOST_PICTURES] if pair[1]]
    model: Any = run.model
    if kind not in ("cross", "causal", "encoder") or not has_attention(model.body if kind == "encoder" else model):
        return []
    inputs = content.attention_inputs or [(each["source"], each["prediction"]) for each in content.samples]
    for source, output in inputs:
        if (drawing := run.task.drawing(source)) is not None:
            if len(drawing.names) < _MOST_TOKENS:
                return [run.attention(source)]
            continue
        lengths = [len(ids) for ids in run.tokenizer.encode([source] if kind == "encoder" else [source, output])]
        if min(lengths) > 0 and max(lengths) < _MOST_TOKENS:
            return [_maps_of(run, source, output)]
    return []


def _maps_of(run: Run, source: str, output: str) -> AttentionMaps:
    model: Any = run.model
    if run.task.attention_kind == "encoder":
        return encoder_attention_maps(model.body, run.tokenizer, source, lambda: run.task.output_for(model, source))
    if run.task.attention_kind == "causal":
        return causal_attention_maps(model, run.tokenizer, source)
    return cross_attention_maps(model, run.task.target_tokenizer, source, output, source_tokenizer=run.tokenizer)
