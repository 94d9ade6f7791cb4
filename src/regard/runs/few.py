"""Few labels: the same model from a few rows of each label, drawn several times, and what that comes to on average.

Which rows are drawn is decided by their content and the number of the draw, not by the model: the draws of two trials
on the same data are the same. There is nothing to choose a model by, for whoever has 16 labels has no validation rows:
each run takes all its steps and keeps what it ends with. The test rows, the same for all runs, judge.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.preparation import Prepared
from regard.data.sources import Rows
from regard.errors import ConfigError, DataError, RunExistsError
from regard.evaluation.seeds import score_over_seeds
from regard.explanation.few import draw_few_curve
from regard.files import write_atomically
from regard.logging import log_info, quiet_logs
from regard.runs import finetune
from regard.runs.evidence import metrics_beside, tally_answers
from regard.runs.job import Job
from regard.runs.kept_plan import keep_plan
from regard.runs.launch import find_hardware, paths_or_rows, with_task
from regard.runs.plan import read_seeds, share_out
from regard.runs.pool import run_jobs
from regard.settings import merge
from regard.tasks import find_task
from regard.training.checkpoints import hash_of
from regard.training.finetuning import Method
from regard.training.folder import RunFolder
from regard.training.resolution import usual_preset, with_preset
from regard.training.settings import RunSettings
from regard.version import version

_TASKS = ("classification", "regression", "translation")
"""Tasks whose rows can be drawn one by one, and whose answers are scored row by row."""
_WHAT = "trial of few labels"
_ONE_LOOK = 1_000_000
"""Steps that no such run has: the validation rows are looked at when it ends, and choose nothing."""
_USUAL: dict[str, Any] = {"train": {"patience": 0, "evaluate_every": _ONE_LOOK}}
_COLUMNS = {2: ("text", "label"), 3: ("text1", "text2", "label")}
"""What the columns of rows in memory are called once they are in a file, by how many they are."""


@dataclass(frozen=True)
class FewShot:
    """What came out: `table` is few.json."""

    path: Path
    table: dict[str, Any]


def few_shot(
    data: str | os.PathLike[str] | Sequence[str] | Rows,
    few: int | Sequence[int],
    *,
    base: str | os.PathLike[str] | None = None,
    method: Method = "all",
    model: str | None = None,
    task: str | None = None,
    draws: int | Sequence[int] = 5,
    settings: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    jobs: int | None = None,
    show_progress: bool = True,
) -> FewShot:
    """Train on a few rows of each label, drawn several times; where rows have no labels, on a few rows in all.

    Args:
        data: As for `regard.train`.
        few: How many rows of each label; several numbers give a curve.
        base: The run folder to go on from; unset, models start from scratch.
        method: What of the base moves: all, head, top or lora.
        model: From scratch: the name of a preset.
        task: classification, regression or translation; unset, it is read off the data.
        draws: How many, or which. The number of a draw is the seed of its run, too.
        settings: Any setting, nested as in `run.toml`.
        out: The folder of the trial. One that was interrupted goes on.
        overwrite: Start anew.
        jobs: Runs at a time. Unset: one for each core, or one on a GPU.
        show_progress: Show progress bars on stderr.
    """
    numbers, chosen = sorted(set([few] if isinstance(few, int) else few)), read_seeds(draws)
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"at least one row of each label must be drawn, got {few}")
    paths, rows = paths_or_rows(data)
    if not paths and not rows:
        raise DataError("no data to draw from: name a file, a folder, or hand in rows")
    folder = Path(out if out is not None else _usual_folder(paths, base))
    given = (
        dict(settings or {}) | ({} if task is None else {"task": task}) | ({} if model is None else {"preset": model})
    )
    given = _with_paths(given, paths, rows, folder, overwrite=overwrite)
    given = merge(_USUAL, given if base is None else merge(given, {"finetune": _tuning(Path(base), method)}))
    prepared = {number: _prepare(base, given, number, chosen[0]) for number in numbers}
    data_of, first = prepared[numbers[0]]
    device = find_hardware(first).device.type
    at_once, threads = share_out(len(numbers) * len(chosen), device, jobs)
    planned = [
        Job(
            model=_name(number, first.task),
            seed=draw,
            path=str(folder / f"{number}-{draw}"),
            data=list(given["data"]["train"]),
            settings=merge(given, {"data": {"few": number, "draw": draw}, "train": {"seed": draw}}),
            threads=threads,
            base=None if base is None else str(base),
        )
        for number in numbers
        for draw in chosen
    ]
    keep_plan(folder, planned, data_of, what=_WHAT, is_cut_alike=False, overwrite=overwrite)
    log_info(f"{len(planned)} runs, {at_once} at a time, in {folder}")
    run_jobs(planned, num_at_once=at_once, logs=folder / "logs", show_progress=show_progress)
    sizes = [
        _size(number, len(prepared[number][0].train), [job for job in planned if job.settings["data"]["few"] == number])
        for number in numbers
    ]
    result = planned[0].result()
    table = {
        "data": ", ".join(Path(path).name for path in planned[0].data),
        "task": first.task,
        "model": _describe(first, base),
        "metric": result["metric"],
        "set": result["set"],
        "rows": len(result["outputs"]),
        "draws": chosen,
        "hardware": f"{result['hardware']}, {at_once} runs at a time",
        "version": version(),
        "few": sizes,
    }
    write_atomically(folder / "few.json", json.dumps(table, ensure_ascii=False).encode())
    if len(numbers) > 1:
        draw_few_curve(table, folder / "few.png")
    return FewShot(folder, table)


def _prepare(
    base: str | os.PathLike[str] | None, given: Mapping[str, Any], few: int, draw: int
) -> tuple[Prepared, RunSettings]:
    """The rows of one draw, and settings; whatever is wrong with them is told before any training."""
    given = merge(given, {"data": {"few": few, "draw": draw}})
    task = given.get("task")
    if task is not None and task not in _TASKS:
        raise ConfigError(f"few labels are drawn for {', '.join(_TASKS)}, got {task}")
    if given["data"].get("label_separator") is not None:
        raise ConfigError("few rows are drawn of each label, but rows of several labels have no one label")
    with quiet_logs():
        if base is not None:
            return finetune.prepare(Path(base), given)
        settings = with_preset(given, usual_preset(given))
        return find_task(settings.task).prepare(settings.data), settings


def _tuning(base: Path, method: Method) -> dict[str, Any]:
    """With the hash of the base's weights, so that a trial does not go on from others."""
    folder = RunFolder(base)
    folder.require()
    return {"base": str(base.absolute()), "base_hash": hash_of(folder.model_path), "method": method}


def _with_paths(
    given: dict[str, Any], paths: list[str], rows: Rows | None, folder: Path, *, overwrite: bool
) -> dict[str, Any]:
    """The settings with the files to draw from, and the task; rows in memory become a file that every run can read."""
    if rows is None:
        return dict(with_task(merge(given, {"data": {"train": paths}})))
    task = with_task(given, rows)["task"]
    width = len(rows[0])
    if width not in _COLUMNS or any(len(row) != width for row in rows):
        raise DataError("rows must all be a text, or all be two texts, and a label behind")
    path, columns = folder / "rows.jsonl", list(_COLUMNS[width])
    lines = "".join(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
    if path.exists() and path.read_bytes() != lines.encode() and not overwrite:
        raise RunExistsError(f"{folder} holds a {_WHAT} on other rows: overwrite it, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lines.encode())
    return merge({**given, "task": task}, {"data": {"train": [str(path)], "columns": columns}})


def _size(few: int, num_rows: int, jobs: Sequence[Job]) -> dict[str, Any]:
    """What so few rows come to: over the draws, and in each."""
    results = [job.result() for job in jobs]
    metric, answers = results[0]["metric"], [result["outputs"] for result in results]
    held_out = RunFolder(jobs[0].path).read_rows(results[0]["set"])
    targets = [row[-1].strip() if jobs[0].settings["task"] == "classification" else row[-1] for row in held_out]
    scores = {name: score_over_seeds(tally_answers(name, answers, targets)) for name in metrics_beside(metric)}
    return {
        "few": few,
        "train_rows": num_rows,
        "score": scores[metric].to_json(),
        "scores": {name: score.to_json() for name, score in scores.items() if name != metric},
        "draws": [
            {
                "draw": job.seed,
                "score": result["scores"][metric],
                "steps": result["steps"],
                "seconds": result["seconds"],
                "run": job.path,
            }
            for job, result in zip(jobs, results, strict=True)
        ],
    }


def _describe(settings: RunSettings, base: str | os.PathLike[str] | None) -> str:
    if base is None or settings.finetune is None:
        return f"{settings.preset}, from scratch"
    return f"{Path(base).name}, {settings.finetune.method}"


def _name(few: int, task: str) -> str:
    return f"{few:,} of each label" if task == "classification" else f"{few:,} rows"


def _usual_folder(paths: Sequence[str], base: str | os.PathLike[str] | None) -> Path:
    stem = (Path(paths[0]).absolute().name.split(".")[0] if paths else "") or "rows"
    return Path("runs") / f"few-{stem}-{'scratch' if base is None else Path(base).absolute().name}"
