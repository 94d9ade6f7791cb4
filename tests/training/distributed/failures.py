"""What processes of a test do wrong, or say."""

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import regard
from regard.errors import ConfigError, WriteError
from regard.logging import log_info, log_warning
from regard.training import checkpoints
from regard.training.distributed import joined, started_processes


def fail_on_the_second() -> None:
    with joined("cpu") as group:
        if group.rank == 1:
            raise ConfigError("the second process says no")
        group.wait()


def die_on_the_second() -> None:
    with joined("cpu") as group:
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.wait()


def warn(text: str) -> list[int]:
    with joined("cpu") as group:
        log_info("information")
        log_warning(text)
        if group.rank:
            print("a line of a library", file=sys.stderr)
        return group.gather(group.rank)


def train_with_a_slow_disk(data: str, out: str, settings: dict[str, Any]) -> None:
    """The second process writes each checkpoint more slowly than the first trains to the next one."""
    write = checkpoints.write_atomically

    def write_slowly(path: Path, parts: Iterable[bytes | memoryview]) -> None:
        def slow() -> Iterable[bytes | memoryview]:
            time.sleep(0.3)
            yield from parts

        write(path, slow())

    if started_processes().rank == 1:
        checkpoints.write_atomically = write_slowly  # pyright: ignore[reportPrivateLocalImportUsage]
    regard.train(data, out=out, task="seq2seq", model="transformer-tiny", steps=8, settings=settings)


def fill_the_disk_of_the_second(data: str, out: str, settings: dict[str, Any]) -> None:
    """The second process cannot write its third checkpoint."""
    write, calls = checkpoints.write_atomically, []

    def fail(path: Path, parts: Iterable[bytes | memoryview]) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise WriteError(f"cannot write {path}: No space left on device")
        write(path, parts if isinstance(parts, bytes) else list(parts))

    if started_processes().rank == 1:
        checkpoints.write_atomically = fail  # pyright: ignore[reportPrivateLocalImportUsage]
    regard.train(data, out=out, task="seq2seq", model="transformer-tiny", steps=40, settings=settings)
