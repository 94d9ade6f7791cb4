"""Several runs side by side, each in its own process, under one set of progress bars."""

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from regard.errors import RunError, StoppedError
from regard.logging import format_duration, log_info
from regard.runs.job import Job
from regard.runs.processes import close_process, last_words, progress_bars, start_process, stop_processes
from regard.training.folder import RunFolder
from regard.training.interruption import listen

_POLL_SECONDS = 0.3
_TAIL_BYTES = 2_048


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[str]
    log: Path
    start: float
    bar: TaskID


def run_jobs(jobs: Sequence[Job], *, num_at_once: int, logs: Path, show_progress: bool = True) -> None:
    """Finish all jobs that are not done; raise if one fails, or if the user stops them, with all state saved."""
    waiting = [job for job in jobs if not job.is_done]
    if len(waiting) < len(jobs):
        log_info(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are there already")
    running: list[_Running] = []
    with listen() as interruption, progress_bars(is_shown=show_progress) as progress:
        whole = progress.add_task(f"{len(waiting)} runs", total=max(1, len(waiting)))
        try:
            while waiting or running:
                while waiting and len(running) < num_at_once and not interruption:
                    running.append(_start(waiting.pop(0), logs, progress))
                time.sleep(_POLL_SECONDS)
                for each in list(running):
                    _show(each, progress)
                    if each.process.poll() is not None:
                        running.remove(each)
                        close_process(each.process)
                        progress.remove_task(each.bar)
                        if not interruption:
                            _finish(each)
                            progress.advance(whole)
                if interruption:
                    assert interruption.signal is not None
                    stop_processes(each.process for each in running)
                    raise StoppedError(
                        "stopped; every run has saved its state, and the same command goes on from there",
                        signal=interruption.signal,
                    )
        finally:
            stop_processes(each.process for each in running)


def _start(job: Job, logs: Path, progress: Progress) -> _Running:
    log = logs / f"{Path(job.path).name}.log"
    process = start_process("regard.runs.job", job.to_json(), log, threads=job.threads)
    return _Running(job, process, log, time.monotonic(), progress.add_task(job.name, total=1.0))


def _finish(each: _Running) -> None:
    if each.process.returncode != 0 or not each.job.is_done:
        raise RunError(f"{each.job.name} failed: {last_words(each.log)}")
    result = each.job.result()
    score = result["scores"][result["metric"]]["value"]
    took = format_duration(time.monotonic() - each.start)
    log_info(f"{each.job.name}: {result['metric']} {score:.3f} after {result['steps']:,} steps, {took}")


def _show(each: _Running, progress: Progress) -> None:
    line = _last_line(Path(each.job.path) / "metrics.jsonl")
    if line is not None:
        train = RunFolder(each.job.path).read_settings().train
        shares = [line["step"] / steps for steps in [train.max_steps] if steps]
        shares += [line["seconds"] / (60 * minutes) for minutes in [train.minutes] if minutes]
        progress.update(
            each.bar,
            completed=min(1.0, max(shares, default=0.0)),
            description=f"{each.job.name}, step {line['step']:,}",
        )


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of figures of training."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            figures = json.loads(line)
        except ValueError:
            continue
        if "seconds" in figures:
            return figures
    return None
