"""What a run has to show: its page, and the facts that a reader wants first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.evaluation.classes import confusion
from regard.explanation.certificate import report_part
from regard.explanation.highlights import Highlights
from regard.explanation.maps import AttentionMaps
from regard.explanation.record import attends, explain_pair, explain_text
from regard.explanation.report import Report, write_report
from regard.logging import format_duration
from regard.models.families import longest_sequence
from regard.runs.run import Evaluation, Run, highlighted
from regard.tasks.aspects import Aspects
from regard.tasks.embedding import Embedding
from regard.tasks.masked import Masked
from regard.training.precision import threads

_LONGEST_DRAWN = 60
"""An attention map with more tokens on a side cannot be read."""
_SAMPLES = 200
_EXPLAINED = ("translation", "language")
"""Tasks whose attention a report draws."""
_HIGHLIGHTED = 24
"""Texts whose words the report shades."""
_MOST_CONFUSED = 30
"""A table of more labels than these cannot be read."""
_CONTINUED, _PROMPT_CHARACTERS = 8, 60
"""Beginnings that the report has a language model continue, and how long they are."""


def continuations(run: Run, rows: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Beginnings from held-out text, how they go on, and how the model would have them go on."""
    texts = [row[0] for row in rows if len(row[0]) > 2 * _PROMPT_CHARACTERS]
    places = [(text, len(text) * part // _CONTINUED) for part in range(_CONTINUED) for text in texts[:_CONTINUED]]
    samples = []
    for text, place in places[:_CONTINUED]:
        start = place + text[place:].find(" ") + 1
        middle, end = (_word_end(text, start + length * _PROMPT_CHARACTERS, start) for length in (1, 4))
        prompt = _readable(run, text[start:middle])
        middle = start + len(prompt)
        if prompt.strip():
            samples.append({"source": prompt, "target": text[middle:end]})
    with threads(1):
        write = run.writer(run.generation(temperature=0.8, max_length=100))
        found = write([sample["source"] for sample in samples])
    return [{**sample, "prediction": each.output} for sample, each in zip(samples, found, strict=True)]


def summary(run: Run) -> dict[str, str]:
    """What a reader wants to know of the run first."""
    settings, record, metrics = run.settings, run.settings.record, run.folder.read_metrics()
    assert record is not None, "a run folder has a record"
    trained = [line for line in metrics if "loss" in line]
    looks = [line for line in metrics if "valid_loss" in line]
    depths = [depth for depth in (settings.model.encoder_depth, settings.model.decoder_depth) if depth]
    facts = {
        "model": f"{settings.preset}, {'+'.join(map(str, depths)) or 0} layers, {settings.model.model_dim} wide",
        "parameters": f"{record.num_parameters:,}",
        "data": ", ".join(Path(name).name for name in settings.data.train),
        **_units(run),
    }
    if trained:
        speeds = sorted(line["tokens_per_second"] for line in trained)
        facts["trained"] = f"{trained[-1]['step']:,} steps in {format_duration(trained[-1]['seconds'])}"
        facts["speed"] = f"{speeds[len(speeds) // 2]:,.0f} tokens/s"
    if looks:
        best = min(looks, key=lambda line: line["valid_loss"])
        facts["best"] = f"step {best['step']:,}, validation loss {best['valid_loss']:.4f}"
    if (tuned := settings.finetune) is not None:
        facts["fine-tuned"] = f"from {Path(tuned.base).name}, {tuned.method}"
    return {**facts, "hardware": record.hardware}


def _units(run: Run) -> dict[str, str]:
    """What the model reads: tokens of a vocabulary, or patches of pictures."""
    data = run.settings.data
    if run.task.name == "recognition":
        form = data.picture
        return {"pictures": f"{form.size} x {form.size} pixels in patches of {form.patch_size} x {form.patch_size}"}
    return {"vocabulary": f"{run.tokenizer.vocab_size:,} tokens ({Path(data.tokenizer or '').name})"}


def write_run_report(run: Run, evaluation: Evaluation) -> Path:
    """Write `report.html`, the page to look at."""
    assert run.settings.record is not None, "a run folder has a record"
    order = [evaluation.headline, *(name for name in evaluation.scores if name != evaluation.headline)]
    report = Report(
        title=f"{run.path.name}: {run.task.description}",
        summary=summary(run),
        scores={name: evaluation.scores[name].to_json() for name in order},
        curves=run.folder.read_metrics(),
        settings=run.folder.settings_path.read_text(encoding="utf-8"),
        samples=_samples(run, evaluation),
        certificate=report_part(run.certificate()),
        confusion=_confusion(run, evaluation),
        highlights=_judged(run, evaluation),
        attention=_drawable(run, evaluation),
        notes=run.settings.record.notes,
    )
    write_report(run.folder.report_path, report)
    return run.folder.report_path


def _confusion(run: Run, evaluation: Evaluation) -> dict[str, Any] | None:
    """How often each label was taken for each, where a text has one of a few."""
    data = run.settings.data
    is_labelled = run.task.name in ("classification", "aspects", "recognition") and data.label_separator is None
    if not is_labelled or len(data.labels) > _MOST_CONFUSED:
        return None
    found = confusion(evaluation.outputs, [row[-1].strip() for row in evaluation.rows], labels=data.labels)
    return {"labels": list(found.labels), "counts": found.counts.tolist()}


def _judged(run: Run, evaluation: Evaluation) -> list[Highlights]:
    """Some rows with the words that mattered, where aspects are judged: wrong ones first, then right ones."""
    if run.task.name != Aspects.name:
        return []
    pairs = list(zip(evaluation.rows, evaluation.outputs, strict=True))
    wrong = [row for row, output in pairs if row[-1].strip() != output]
    right = [row for row, output in pairs if row[-1].strip() == output]
    chosen = [*wrong[: _HIGHLIGHTED // 2], *right[: _HIGHLIGHTED // 2]]
    found = run.answered([run.task.question(row) for row in chosen], run.generation())
    return [highlighted([each], row[-1].strip()) for each, row in zip(found, chosen, strict=True)]


def _samples(run: Run, evaluation: Evaluation) -> list[dict[str, Any]]:
    if run.task.has_answers:
        return _answers(run, evaluation)
    if isinstance(run.task, Masked | Embedding):
        model: Any = run.model
        return run.task.samples(model, run.tokenizer, evaluation.rows, run.settings.data)
    return continuations(run, evaluation.rows)


def _answers(run: Run, evaluation: Evaluation) -> list[dict[str, Any]]:
    """What was asked, wanted and written: wrong ones first, then right ones."""
    samples = [
        {"source": run.task.question(row), "target": row[-1], "prediction": output, "right": row[-1] == output}
        for row, output in zip(evaluation.rows, evaluation.outputs, strict=True)
    ]
    wrong, right = [s for s in samples if not s["right"]], [s for s in samples if s["right"]]
    return [*wrong[: _SAMPLES // 2], *right[: _SAMPLES // 2]]


def _readable(run: Run, text: str) -> str:
    """As much of the beginning of a text as leaves half of the model's positions free, where they end."""
    limit = longest_sequence(run.settings.model)
    return text if limit is None else run.tokenizer.decode([run.tokenizer.encode([text])[0][: limit // 2]])[0]


def _drawable(run: Run, evaluation: Evaluation) -> AttentionMaps | None:
    if run.task.name not in _EXPLAINED or not attends(run.model):
        return None
    model: Any = run.model
    if not run.task.has_answers:
        text = _readable(run, " ".join(evaluation.rows[0][0][: 2 * _LONGEST_DRAWN].split())[:_LONGEST_DRAWN])
        return explain_text(model, run.tokenizer, text) if text.strip() else None
    for row, output in zip(evaluation.rows, evaluation.outputs, strict=True):
        lengths = [len(ids) for ids in run.tokenizer.encode([row[0], output])]
        if min(lengths) > 0 and max(lengths) < _LONGEST_DRAWN:
            return explain_pair(model, run.tokenizer, row[0], output)
    return None


def _word_end(text: str, place: int, start: int) -> int:
    """The last end of a word up to `place`; `place` itself where there is none behind `start`.

    Example:
        >>> _word_end("to be or not", 7, 0), _word_end("to be or not", 8, 0), _word_end("honorificabilitudinitas", 7, 0)
        (5, 8, 7)
    """
    space = text.rfind(" ", start + 1, place + 1)
    return place if space < 0 else space
