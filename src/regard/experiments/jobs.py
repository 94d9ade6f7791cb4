"""One run of an experiment in a process of its own, and several of these at a time.

    python -m regard.startup regard.experiments.jobs      with a job on stdin

A process of its own has its own peak of memory and its own threads, and its failure ends nothing else.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, TaskID

from regard.errors import ConfigError, RunError
from regard.experiments.processes import folder_lock, last_log_line, process_pool, progress_bars, serve_request
from regard.files import load_json, write_atomically
from regard.logging import format_duration, log_info
from regard.settings import merge_tables

if TYPE_CHECKING:
    from regard.runs.run import Run

CHILD_SETTINGS: dict[str, Any] = {"train": {"baseline": False}}
"""Runs of an experiment are compared with each other: no run fits a baseline of its own, unless the user says so."""
_MAX_SAMPLES = 40
_TAIL_BYTES = 8_192
"""How much of the end of a metrics file is read: more than its last lines."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained, and where it is written."""

    label: str
    """What is trained, without its seed: the name of a model, a number of shots."""
    seed: int
    path: str
    data: list[str]
    settings: dict[str, Any]
    """As `regard.train` takes them."""
    threads: int
    train_rows: int | None = None
    """The size of the training set, in units of the task; None for all of it."""
    unit: str = "row"
    generation: dict[str, Any] = field(default_factory=dict)
    """Options of generation for the evaluation, where they differ from the settings."""
    base: str | None = None
    """The run folder to fine-tune; None to train from scratch."""
    is_evaluated: bool = True
    """Whether the trained model is evaluated, on its test rows where it has some; otherwise they stay sealed."""

    @property
    def name(self) -> str:
        size = "" if self.train_rows is None else f", {self.train_rows:,} {self.unit}s"
        return f"{self.label}, seed {self.seed}{size}"

    @property
    def result_path(self) -> Path:
        return Path(self.path) / "result.json"

    @property
    def is_done(self) -> bool:
        return self.result_path.is_file()

    def result(self) -> dict[str, Any]:
        """What the finished job wrote."""
        return load_json(self.result_path.read_text(encoding="utf-8"))


def read_seeds(seeds: int | Sequence[int], *, name: str = "seeds") -> list[int]:
    """The seeds that are listed, or the seeds 0, 1, ... where their number is given."""
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise ConfigError(f"{name} must be at least one, got {seeds}")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"{name} must differ: a repeated seed repeats its run, got {chosen}")
    return chosen


def run_job(job: Job) -> None:
    """Train, or resume training; evaluate; write the result."""
    import torch

    from regard.runs.finetune import finetune
    from regard.runs.folder import RunFolder
    from regard.runs.train import train

    torch.set_num_threads(job.threads)
    settings = merge_tables(CHILD_SETTINGS, job.settings)
    if RunFolder(job.path).exists:
        run = train(out=job.path, resume=True, show_progress=False)
    elif job.base is not None:
        run = finetune(job.base, job.data, out=job.path, settings=settings, show_progress=False)
    else:
        run = train(job.data, out=job.path, settings=settings, show_progress=False)
    speeds = sorted(line["tokens_per_second"] for line in run.folder.read_metrics() if "loss" in line)
    last = last_metrics(run.path)
    provenance = run.folder.read_provenance()
    result = {
        **(_evaluate(run, job.generation) if job.is_evaluated else {}),
        "params": provenance.num_parameters,
        "hardware": provenance.hardware,
        "preset": run.settings.preset,
        "train_rows": job.train_rows,
        "steps": last["step"],
        "seconds": last["seconds"],
        "tokens_per_s": speeds[len(speeds) // 2] if speeds else None,  # a linear probe has no steps
        "memory_mib": _peak_memory(run.device.type) / 2**20,
    }
    write_atomically(job.result_path, json.dumps(result, ensure_ascii=False).encode())


def _evaluate(run: "Run", generation: dict[str, Any]) -> dict[str, Any]:
    """The scores on the test rows, or on the validation rows where there are none, and what they are computed from."""
    from regard.tasks.task import EvaluationData

    role = "test" if run.folder.has_test else "valid"
    found = run.test(reason="comparison", **generation) if role == "test" else run.evaluate(**generation)
    metrics = run.task.comparison_metrics(found.headline)
    data = EvaluationData(
        found.rows[:_MAX_SAMPLES] if run.task.has_targets else found.rows,
        found.predictions[:_MAX_SAMPLES],
        found.likelihoods,
    )
    return {
        "set": role,
        "scores": {name: score.to_json() for name, score in found.scores.items()},
        "metric": metrics[0],
        "metrics": list(metrics),
        "examples": found.examples.to_json(),
        "samples": run.task.samples(run.model, data),
    }


def _peak_memory(device: str) -> int:
    """The most bytes in use at once: of the GPU's memory where one is used, otherwise of the machine's."""
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[str]
    log: Path
    start: float
    bar: TaskID


def run_jobs(
    jobs: Sequence[Job], *, folder: Path, num_parallel: int, show_progress: bool = True, lock: int | None = None
) -> None:
    """Finish all jobs that are not done, `num_parallel` at a time, with logs in `folder/logs`.

    Raises `RunError` if one fails, and `StoppedError` if the user stops them, with the state of all of them saved.
    `lock` is that of the folder, where the caller has locked it.
    """
    waiting = [job for job in jobs if not job.is_done]
    if len(waiting) < len(jobs):
        log_info(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are already finished")
    if not waiting:
        return
    running: list[_Running] = []
    with (
        folder_lock(folder) if lock is None else nullcontext(lock) as held,
        process_pool(held) as pool,
        progress_bars(is_shown=show_progress) as progress,
    ):
        total = progress.add_task(f"{len(waiting)} runs", total=len(waiting))
        while waiting or running:
            while waiting and len(running) < num_parallel:
                job = waiting.pop(0)
                log = folder / "logs" / f"{Path(job.path).name}.log"
                process = pool.start("regard.experiments.jobs", asdict(job), log, threads=job.threads)
                bar = progress.add_task(job.name, total=1.0)
                running.append(_Running(job, process, log, time.monotonic(), bar))
            pool.wait()
            for each in list(running):
                _show(each, progress)
                if each.process.poll() is not None:
                    running.remove(each)
                    pool.close(each.process)
                    progress.remove_task(each.bar)
                    _log_result(each)
                    progress.advance(total)


def _log_result(each: _Running) -> None:
    if each.process.returncode != 0 or not each.job.is_done:
        raise RunError(f"{each.job.name} failed: {last_log_line(each.log)}")
    result = each.job.result()
    score = f"{result['metric']} {result['scores'][result['metric']]['value']:.3f} after " if "scores" in result else ""
    log_info(f"{each.job.name}: {score}{result['steps']:,} steps, {format_duration(time.monotonic() - each.start)}")


def _show(each: _Running, progress: Progress) -> None:
    from regard.runs.folder import RunFolder

    folder = RunFolder(each.job.path)
    if folder.metrics_path.exists():
        done = budget_fraction(folder.path, folder.read_settings().train.model_dump())
        step = last_metrics(folder.path)["step"]
        progress.update(each.bar, completed=done, description=f"{each.job.name}, step {step:,}")


def budget_fraction(path: Path, train: Mapping[str, Any]) -> float:
    """How much of the budget in the settings `train` the run in a folder has used, from 0 to 0.99."""
    last = last_metrics(path)
    used = [last["step"] / train["max_steps"]] if train.get("max_steps") else []
    used += [last["seconds"] / (60 * train["minutes"])] if train.get("minutes") else []
    return min(0.99, max(used, default=0.0))


def format_minutes(minutes: float) -> str:
    """Format a number of minutes.

    Example:
        >>> format_minutes(5.0), format_minutes(0.185714), format_minutes(1.3)
        ('5 minutes', '11 s', '1 min 18 s')
    """
    if minutes == int(minutes):
        return f"{minutes:.0f} minute{'' if minutes == 1 else 's'}"
    return format_duration(60 * minutes)


def last_metrics(path: Path) -> dict[str, Any]:
    """The last complete line of training metrics of the run in a folder; step 0 where there is none."""
    try:
        with open(path / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        lines = []
    for line in reversed(lines):
        try:
            metrics = load_json(line)
        except ValueError:
            continue
        if isinstance(metrics, dict) and "step" in metrics and "seconds" in metrics:
            return metrics
    return {"step": 0, "seconds": 0.0}


if __name__ == "__main__":
    serve_request(lambda values: run_job(Job(**values)))
