"""Processes that train beside this one: started with an order on their stdin, stopped in order, shown by bars."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


def start_process(
    module: str, order: str, log: Path, *, threads: int, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[str]:
    """Run a module of ours, which reads its order as a line and writes what it has to say to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others in order
        )
    assert process.stdin is not None
    process.stdin.write(order + "\n")
    process.stdin.flush()
    return process


def close_process(process: subprocess.Popen[str]) -> None:
    """Wait until it is gone, and let go of the pipe to it."""
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def stop_processes(processes: Iterable[subprocess.Popen[str]]) -> None:
    """Ask each to save and leave, and wait until it has."""
    processes = list(processes)
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        close_process(process)


def last_words(log: Path) -> str:
    """The last line of a log, and where the others are."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'it said nothing'} (see {log})"


def progress_bars(*, is_shown: bool) -> Progress:
    """Bars on stderr with the time left, where somebody looks."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        transient=True,
        disable=not (is_shown and console.is_terminal),
    )
