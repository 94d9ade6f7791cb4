"""Child processes that train: start, stop, progress bars, threads, and the lock of a folder.

A child is a module of this package, run by `python -m regard.startup`. It reads its request, one line of JSON, from
stdin and writes messages to a log file. When its parent ends, stdin ends too, and the child saves its state and exits.
"""

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from regard.errors import RegardError, RunError, StoppedError
from regard.logging import log_info
from regard.runs.launch import end_with_parent
from regard.training.interruption import Interruption, listen
from regard.training.precision import num_cores

_POLL_SECONDS = 0.3
_LOCK_SECONDS = 60.0
"""Enough for the children of a killed process to save their state and exit."""


class ProcessPool:
    """The child processes of one experiment; made by `process_pool`."""

    def __init__(self, interruption: Interruption, lock: int | None) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self._interruption, self._lock = interruption, lock

    def start(self, module: str, request: Any, log: Path, *, threads: int) -> subprocess.Popen[str]:
        """Run a module with a request that JSON can encode; the child inherits the lock of the folder."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "regard.startup", module],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                pass_fds=() if self._lock is None else (self._lock,),
                start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops its children
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        self.processes.append(process)
        return process

    def wait(self) -> None:
        """Wait for a moment; raises `StoppedError`, with the state of all children saved, if the user stops them."""
        time.sleep(_POLL_SECONDS)
        if self._interruption:
            assert self._interruption.signal is not None
            self.stop()
            raise StoppedError(
                "stopped; the state of every run is saved, and the same command continues from there",
                signal=self._interruption.signal,
            )

    def stop(self) -> None:
        """Ask each child to save its state, and wait until all have exited."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in list(self.processes):
            self.close(process)

    def close(self, process: subprocess.Popen[str]) -> None:
        """Wait until a child has exited, and forget it."""
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
        self.processes.remove(process)


@contextmanager
def process_pool(lock: int | None = None) -> Iterator[ProcessPool]:
    """A pool whose children are stopped at the end of the context; `lock` is the file descriptor of a folder's lock."""
    with listen() as interruption:
        pool = ProcessPool(interruption, lock)
        try:
            yield pool
        finally:
            pool.stop()


def serve_request(handle: Callable[[Any], None]) -> None:
    """Be a child process: handle the request on stdin, and exit with the code of its error."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        handle(request)
    except RegardError as error:
        print(error, file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))


def last_log_line(log: Path) -> str:
    """The last line of a log, and the path of the log."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'no message'} (see {log})"


def progress_bars(*, is_shown: bool) -> Progress:
    """Bars on stderr with the time left; nothing where stderr is no terminal."""
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


def split_cores(num_jobs: int, device: str, num_parallel: int | None = None) -> tuple[int, int]:
    """How many jobs run at a time, and how many threads each uses.

    Unset, there is one job for each core, or one on a GPU. Threads are those of OMP_NUM_THREADS where the user has set
    it, otherwise an equal share of the cores.

    Example:
        >>> split_cores(5, "cuda")[0]
        1
    """
    cores = num_cores()
    num_parallel = min(num_jobs, num_parallel or (1 if device == "cuda" else cores))
    chosen = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list gives the threads of nested regions
    threads = int(chosen) if chosen.isdecimal() else 0
    return num_parallel, threads or max(1, cores // num_parallel)


@contextmanager
def folder_lock(folder: Path) -> Iterator[int]:
    """Lock a folder for one experiment; yields the file descriptor, which child processes inherit.

    So the lock is free only when the children of a killed process have exited too.
    """
    with open(folder / ".lock", "a") as file:
        deadline, is_logged = time.monotonic() + _LOCK_SECONDS, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_logged:
                    log_info(f"waiting for another process to leave {folder}")
                    is_logged = True
                if time.monotonic() > deadline:
                    raise RunError(
                        f"another process is using {folder}: wait until it ends, or name another folder"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield file.fileno()
