"""`few_shot`: a model trained on a few rows of each label, several times, and its mean score.

Which rows are drawn depends on their content and on the shot seed, not on the model: two experiments on the same data
draw the same rows. With 16 labels there are no validation rows to select a model by, so each run takes all its steps
and keeps its last weights. The scores are on the test rows, which are the same for all runs.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.prepare import Prepared
from regard.data.sources import Rows
from regard.errors import ConfigError
from regard.evaluation.registry import find_metric
from regard.evaluation.seeds import score_over_seeds
from regard.experiments.compare.results import aligned_examples
from regard.experiments.jobs import Job, read_seeds, run_jobs
from regard.experiments.manifest import default_folder, shared_values, with_data, write_manifest
from regard.experiments.processes import split_cores
from regard.explanation.report.few_shot import draw_few_curve
from regard.files import write_atomically
from regard.logging import log_info, quiet_logs
from regard.runs.finetune import prepare_finetuning
from regard.runs.folder import RunFolder
from regard.settings import merge_tables
from regard.tasks.registry import TASKS, find_task, make_task
from regard.training.checkpoints import hash_of
from regard.training.defaults import draft, find_hardware
from regard.training.finetuning import Method
from regard.training.settings import DraftSettings
from regard.version import version

_WHAT = "few-shot experiment"
_DEFAULTS: dict[str, Any] = {"train": {"patience": 0, "evaluate_every": 1_000_000}}
"""More steps than any run has: the validation rows are evaluated once, at the end, and select nothing."""


@dataclass(frozen=True)
class FewShot:
    """A finished experiment: `table` is the content of few_shot.json."""

    path: Path
    table: dict[str, Any]


def few_shot(
    data: str | os.PathLike[str] | Sequence[str] | Rows,
    shots: int | Sequence[int],
    *,
    base: str | os.PathLike[str] | None = None,
    method: Method = "all",
    model: str | None = None,
    task: str | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    tokenizer: str | None = None,
    device: str | None = None,
    shot_seeds: int | Sequence[int] = 5,
    settings: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    jobs: int | None = None,
    show_progress: bool = True,
) -> FewShot:
    """Train on a few rows of each label, drawn with several seeds; of rows without labels, on a few rows in all.

    Args:
        data: As for `regard.train`.
        shots: The number of rows of each label; several numbers give a curve.
        base: The run folder to fine-tune; unset, models are trained from scratch.
        method: Which parameters of the base are trained: all, head, top or lora.
        model: Without a base, the name of a preset.
        task: The name of a task; unset, it is detected from the data.
        columns: The columns to use, by name or by position from 1.
        encoding: The encoding of text files, such as windows-1252; unset, it is detected.
        tokenizer: Without a base: bpe, unigram, characters, bytes, words, wordpunct, or the path of a
            tokenizer.json.
        device: auto, cpu, cuda or cuda:N.
        shot_seeds: The number of draws, or a list of their seeds. A shot seed is also the training seed of its run.
        settings: Any setting, nested as in `run.toml`.
        out: The folder of the experiment. An interrupted experiment is continued.
        overwrite: Replace the experiment in `out`.
        jobs: Runs at a time. Unset: one for each core, or one on a GPU.
        show_progress: Show progress bars on stderr.

    Example:
        found = regard.few_shot("reviews.csv", [4, 16], base="minilm", method="lora", shot_seeds=5)
        [size["score"]["value"] for size in found.table["sizes"]]
    """
    sizes, seeds = sorted({shots} if isinstance(shots, int) else set(shots)), read_seeds(shot_seeds, name="shot_seeds")
    if not sizes or sizes[0] < 1:
        raise ConfigError(f"shots must be at least 1, got {shots}")
    suffix = f"-{'scratch' if base is None else Path(base).absolute().name}"
    folder = Path(out if out is not None else default_folder("few-shot", data, suffix))
    given = shared_values(task=task, columns=columns, encoding=encoding, tokenizer=tokenizer, device=device)
    given |= {} if model is None else {"preset": model}
    given = with_data(
        merge_tables(settings or {}, given), data, folder, what=_WHAT, overwrite=overwrite, is_tuned=base is not None
    )
    given = merge_tables(
        _DEFAULTS, given if base is None else merge_tables(given, {"finetune": _finetuning(Path(base), method)})
    )
    prepared = {size: _prepare(base, given, size, seeds[0]) for size in sizes}
    first_data, first = prepared[sizes[0]]
    is_per_label = make_task(first.task).has_labels
    num_parallel, threads = split_cores(len(sizes) * len(seeds), find_hardware(first).device.type, jobs)
    planned = {
        size: [
            Job(
                label=f"{size:,} {'of each label' if is_per_label else 'rows'}",
                seed=seed,
                path=str(folder / f"{size}-{seed}"),
                data=list(given["data"]["train"]),
                settings=merge_tables(_with_shots(given, size, seed), {"train": {"seed": seed}}),
                threads=threads,
                base=None if base is None else str(base),
            )
            for seed in seeds
        ]
        for size in sizes
    }
    every = [job for some in planned.values() for job in some]
    write_manifest(folder, every, first_data, what=_WHAT, shares_tokenizer=False, overwrite=overwrite)
    log_info(f"{len(every)} runs, {num_parallel} at a time, in {folder}")
    run_jobs(every, folder=folder, num_parallel=num_parallel, show_progress=show_progress)
    result = every[0].result()
    table = {
        "data": ", ".join(Path(path).name for path in every[0].data),
        "task": first.task.name,
        "model": _describe(first, base),
        "metric": result["metric"],
        "set": result["set"],
        "rows": len(result["examples"]["outputs"]),
        "is_per_label": is_per_label,
        "shot_seeds": seeds,
        "hardware": f"{result['hardware']}, {num_parallel} runs at a time",
        "version": version(),
        "sizes": [_size(size, len(prepared[size][0].train), planned[size]) for size in sizes],
    }
    write_atomically(folder / "few_shot.json", json.dumps(table, ensure_ascii=False).encode())
    if len(sizes) > 1:
        draw_few_curve(table, folder / "few_shot.png")
    return FewShot(folder, table)


def _with_shots(settings: Mapping[str, Any], shots: int, shot_seed: int) -> dict[str, Any]:
    return merge_tables(settings, {"data": {"shots": shots, "shot_seed": shot_seed}})


def _prepare(
    base: str | os.PathLike[str] | None, given: Mapping[str, Any], shots: int, shot_seed: int
) -> tuple[Prepared, DraftSettings]:
    """The rows of one draw, and settings; raises if they are wrong, before any training."""
    name = given["task"]["name"]
    if not find_task(name).supports_shots:
        supported = ", ".join(task.name for task in TASKS if task.supports_shots)
        raise ConfigError(f"few-shot experiments are for {supported}, got {name}")
    if given["task"].get("label_separator") is not None:
        raise ConfigError(
            "shots are drawn for each label, which rows with several labels (label_separator) do not have"
        )
    given = _with_shots(given, shots, shot_seed)
    with quiet_logs():
        if base is not None:
            return prepare_finetuning(Path(base), given)
        settings = draft(given)
        return make_task(settings.task).prepare(settings.data), settings


def _finetuning(base: Path, method: Method) -> dict[str, Any]:
    """With the hash of the base's weights, so that an experiment is not continued from other weights."""
    folder = RunFolder(base)
    folder.require()
    return {"base": str(base.absolute()), "base_hash": hash_of(folder.model_path), "method": method}


def _size(shots: int, num_rows: int, jobs: Sequence[Job]) -> dict[str, Any]:
    """The scores of one number of shots: over all draws, and of each."""
    results = [job.result() for job in jobs]
    metric, *others = results[0]["metrics"]
    task = make_task(RunFolder(jobs[0].path).read_settings().task)
    examples = aligned_examples(task, results)
    scores = {
        name: score_over_seeds([find_metric(name).count(each) for each in examples]).to_json()
        for name in (metric, *others)
    }
    return {
        "shots": shots,
        "train_rows": num_rows,
        "score": scores[metric],
        "scores": {name: scores[name] for name in others},
        "runs": [
            {
                "shot_seed": job.seed,
                "score": result["scores"][metric],
                "steps": result["steps"],
                "seconds": result["seconds"],
                "path": job.path,
            }
            for job, result in zip(jobs, results, strict=True)
        ],
    }


def _describe(settings: DraftSettings, base: str | os.PathLike[str] | None) -> str:
    if base is None or settings.finetune is None:
        return f"{settings.preset}, from scratch"
    return f"{Path(base).name}, {settings.finetune.method}"
