"""The report of a run: its page, and the facts that a reader needs first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.evaluation.registry import find_metric
from regard.explanation.attention import AttentionMaps, causal_attention_maps, cross_attention_maps, has_attention
from regard.explanation.report import Report, certificate_summary, write_report
from regard.logging import format_duration
from regard.runs.run import Evaluation, Run, highlights_of
from regard.tasks.task import EvaluationData, ReportContent
from regard.training.checkpoints import note_of
from regard.training.precision import threads

_MOST_TOKENS = 60
"""An attention map with more tokens on a side cannot be read."""


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


def write_run_report(run: Run, evaluation: Evaluation, *, evaluated_on: str = "Validation") -> Path:
    """Write `report.html`; `evaluated_on` is the name of the evaluated set."""
    order = [evaluation.headline, *(name for name in evaluation.scores if name != evaluation.headline)]
    data = EvaluationData(evaluation.rows, evaluation.predictions, evaluation.likelihoods)
    with threads(1):
        content = run.task.report(run.model, data)
    report = Report(
        title=f"{run.path.name}: {run.task.description}",
        summary=summarize(run, content),
        scores={name: evaluation.scores[name].to_json() for name in order},
        evaluated_on=evaluated_on,
        num_rows=len(evaluation.rows) if run.task.has_targets else None,
        baseline=_baseline(run, evaluation),
        curves=[] if run.settings.is_probe_alone else run.folder.read_metrics(),
        kept_step=note_of(run.folder.model_path).get("step"),
        settings=run.folder.settings_path.read_text(encoding="utf-8"),
        samples=content.samples,
        certificate=certificate_summary(run.certificate()),
        confusion=content.confusion,
        highlights=[highlights_of(predictions, target) for predictions, target in content.predictions],
        attention=_attention_maps(run, content),
        notes=run.folder.read_provenance().notes,
    )
    write_report(run.folder.report_path, report)
    return run.folder.report_path


def _baseline(run: Run, evaluation: Evaluation) -> dict[str, Any] | None:
    """What the page shows of the baseline, where it was scored by the same metric."""
    found = run.baseline
    if found is None or found.headline != evaluation.headline:
        return None
    return {
        "name": found.name,
        "score": {"name": found.headline, **found.scores[found.headline]},
        "sentence": f"{found.sentence[0].upper()}{found.sentence[1:]}.",
        "is_beaten": found.is_beaten,
        "advice": list(found.advice),
    }


def _attention_maps(run: Run, content: ReportContent) -> list[AttentionMaps]:
    """The attention maps of the first input that is short enough to be drawn."""
    if run.task.attention_kind not in ("cross", "causal") or not has_attention(run.model):
        return []
    model: Any = run.model
    for source, output in content.attention_inputs:
        lengths = [len(ids) for ids in run.tokenizer.encode([source, output])]
        if min(lengths) == 0 or max(lengths) >= _MOST_TOKENS:
            continue
        if run.task.attention_kind == "causal":
            return [causal_attention_maps(model, run.tokenizer, source)]
        maps = cross_attention_maps(model, run.task.target_tokenizer, source, output, source_tokenizer=run.tokenizer)
        return [maps]
    return []
