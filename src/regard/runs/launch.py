"""Several processes of this machine that compute one thing together: started, watched and ended as one.

    python -m regard.startup regard.runs.launch      with a request on stdin

Each process has the environment that torchrun would give it. Rank 0 writes to the terminal; lines of the others have
their rank before them. The first error of a process ends all, and is raised here.
"""

import importlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

import torch.distributed as dist

from regard import errors
from regard.data.formats.messages import format_count
from regard.errors import ConfigError, ProcessError, RegardError, RunError, StoppedError
from regard.logging import log_warning, logger, print_messages_by_default
from regard.runs.run import Run
from regard.training.distributed import started_processes
from regard.training.interruption import Interruption, listen
from regard.training.precision import num_cores

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 20.0
"""How long the others have, after one has failed, to notice it and to end; then they are killed."""
_PREFIX = "result: "
"""Begins the line on stdout with which a process answers."""


def launch(function: str, arguments: Mapping[str, Any], size: int, *, show_progress: bool = False) -> Any:
    """Call a function in `size` processes that have joined each other; returns what rank 0 returns.

    Args:
        function: `module:name`. It gets `arguments`, joins by `regard.training.distributed.joined`, and returns what
            JSON can encode, or a run, of which the path is returned.
        arguments: Values that JSON can encode, or `os.PathLike`.
        size: The number of processes.
        show_progress: Whether rank 0 shares the terminal of this process.
    """
    if size < 1:
        raise ConfigError(f"num_processes must be at least 1, got {size}")
    if size > (cores := num_cores()):
        log_warning(f"{size} processes share {format_count(cores, 'core')}: more processes than cores are slower")
    if (started := started_processes()).size > 1:
        raise ConfigError(f"torchrun has started {started.size} processes already: num_processes must be 1")
    try:
        request = json.dumps({"function": function, "arguments": arguments, "level": _level()}, default=_encode)
    except TypeError as error:
        raise ConfigError(
            f"what several processes are given must be files or rows of text and numbers: {error}"
        ) from None
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]  documented as public
    with listen() as interruption, _children(request, size, store.port, is_shared=show_progress) as children:
        _watch(children, interruption)
    answers = [child.answer() for child in children]
    failed = [answer for answer in answers if "error" in answer]
    first = next((answer for answer in failed if answer["kind"] != ProcessError.__name__), None)
    if interruption and (first is None or first["kind"] == StoppedError.__name__):
        assert interruption.signal is not None
        raise StoppedError(first["error"] if first else "stopped", signal=interruption.signal)
    if failed:
        raise _error_of(first or failed[0])
    return answers[0]["result"]


class _Child:
    """A process, and the threads that read what it prints."""

    def __init__(self, rank: int, process: subprocess.Popen[str]) -> None:
        self.rank, self.process = rank, process
        self._answer: dict[str, Any] | None = None
        assert process.stdout is not None
        self._readers = [threading.Thread(target=self._read_answer, args=(process.stdout,), daemon=True)]
        if process.stderr is not None:
            self._readers.append(threading.Thread(target=self._forward, args=(process.stderr,), daemon=True))
        for reader in self._readers:
            reader.start()

    def _read_answer(self, lines: IO[str]) -> None:
        for line in lines:
            if line.startswith(_PREFIX):
                self._answer = json.loads(line.removeprefix(_PREFIX))
            else:
                print(line, end="", flush=True)

    def _forward(self, lines: IO[str]) -> None:
        mark = f"rank {self.rank}: "
        for line in lines:
            print(line if self.rank == 0 or mark in line else f"{mark}{line}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Wait until it has ended, and all that it printed is read."""
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def answer(self) -> dict[str, Any]:
        """What it returned, or its error, once it is closed."""
        code = self.process.returncode
        if self._answer is not None:
            return self._answer
        how = f"was killed by signal {-code}" if code < 0 else f"has ended with exit code {code}"
        return {"error": f"the process of rank {self.rank} {how}", "kind": RunError.__name__}


@contextmanager
def _children(request: str, size: int, port: int, *, is_shared: bool) -> Iterator[list[_Child]]:
    """The processes, which are killed where the context ends before they do."""
    children: list[_Child] = []
    try:
        for rank in range(size):
            has_terminal = rank == 0 and is_shared and sys.stderr.isatty()
            process = subprocess.Popen(
                [sys.executable, "-m", "regard.startup", "regard.runs.launch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if has_terminal else subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**os.environ, **_environment(rank, size, port)},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others
            )
            children.append(_Child(rank, process))
            assert process.stdin is not None
            process.stdin.write(request + "\n")
            process.stdin.flush()
        yield children
    finally:
        for child in children:
            if child.process.poll() is None:
                child.process.kill()
            child.close()


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    threads = max(1, num_cores() // size)
    given = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    if "lo" in (name for _, name in socket.if_nameindex()):
        given["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return {
        **given,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is that of this process
    }


def _watch(children: Sequence[_Child], interruption: Interruption) -> None:
    """Wait until all have ended; a signal is passed on, and the failure of one ends the others."""
    is_told, deadline = False, None
    while any(child.process.poll() is None for child in children):
        if interruption and not is_told:
            is_told = True
            for child in children:
                child.process.send_signal(signal.SIGTERM)
        if deadline is None and any(child.process.poll() for child in children):
            deadline = time.monotonic() + _GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)


def _error_of(answer: Mapping[str, Any]) -> RegardError:
    kind = getattr(errors, answer["kind"])
    if issubclass(kind, StoppedError):
        return StoppedError(answer["error"], signal=answer["exit_code"] - 128)
    return kind.__new__(kind, answer["error"])  # some are made of several parts; what counts is their message


def _level() -> int:
    print_messages_by_default()
    return logger.getEffectiveLevel()


def _encode(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"got {type(value).__name__}")


def end_with_parent() -> None:
    """Be stopped by SIGTERM when stdin ends, which happens when the process that started this one does."""
    while os.read(sys.stdin.fileno(), 1):  # readline would block the lock that Python needs when it exits
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _main() -> int:
    request = json.loads(sys.stdin.readline())
    print_messages_by_default()
    logger.setLevel(max(request["level"], logging.INFO))
    threading.Thread(target=end_with_parent, daemon=True).start()
    module, _, name = request["function"].partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(**request["arguments"])
    except RegardError as error:
        code = getattr(error, "exit_code", 2)
        _answer({"error": str(error), "kind": type(error).__name__, "exit_code": code})
        return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    _answer({"result": str(result.path) if isinstance(result, Run) else result})
    return 0


def _answer(values: Mapping[str, Any]) -> None:
    print(f"{_PREFIX}{json.dumps(values, default=_encode)}", flush=True)


if __name__ == "__main__":
    sys.exit(_main())
