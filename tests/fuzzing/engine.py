"""Fuzzing one reader: a corpus that grows, limits of time and memory, and findings.

An input that makes a reader answer as none did before, by the text of its error without names and numbers or by what it
returns, is added to the corpus: without instrumentation, this is what leads to deeper code.
"""

import faulthandler
import gc
import json
import mmap
import os
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzzing.guard import EscapeError, Guard
from tests.fuzzing.mutation import MAX_BYTES, mutate

from regard.errors import RegardError

MAX_SECONDS = 5.0
"""CPU time of an input of at most 64 KiB."""
MAX_MEMORY = 1 << 30
"""Memory that reading an input may add."""
MAX_MESSAGE = 2_000
"""Characters of an error."""
_MOST_KEPT = 400
_HEAD = struct.Struct("<qq")
"""What parent and child share before an input: the number of executions, and the length of the input."""
_SPARED = re.compile(r"'[^']*'|\"[^\"]*\"|[\d.,_e+-]*\d|/\S+|\s+\S{40,}")


@dataclass(frozen=True)
class FuzzedReader:
    """What reads an input, and valid inputs that are changed."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], object]
    """Reads an input, in a folder to write it to, and returns what distinguishes its result from others."""
    words: Sequence[bytes] = ()
    """Words of the format."""
    is_text: bool = True
    weight: int = 20
    """Its share of the executions: in proportion to its speed, so that all readers get about the same time."""
    readable: tuple[str, ...] = ()
    """Paths outside the folder that it may read."""


@dataclass(kw_only=True)
class Finding:
    """An input that broke a rule."""

    reader: str
    kind: str
    """The exception and where it was raised, or the rule."""
    detail: str
    count: int = 1
    path: str = ""
    """The file with the input."""


@dataclass(kw_only=True)
class Report:
    """What became of the executions of one reader."""

    reader: str
    executions: int = 0
    seeds: int = 0
    corpus: int = 0
    results: int = 0
    """Executions that returned; the others raised a `RegardError`, or are findings."""
    seconds: float = 0.0
    slowest: float = 0.0
    """CPU time of the slowest input."""
    findings: list[Finding] = field(default_factory=list)


class TooSlowError(BaseException):
    """The time limit of an input; no reader catches it."""


def fuzz(
    reader: FuzzedReader, executions: int, *, seed: int, out: Path | None = None, seconds: float | None = None
) -> Report:
    """Run a reader in processes of its own, so that one that ends the process is a finding, too.

    Args:
        reader: The reader.
        executions: The number of inputs.
        seed: The same seed gives the same inputs.
        out: A folder for the inputs that are findings.
        seconds: Stop after this time.
    """
    report = Report(reader=reader.name)
    end = None if seconds is None else time.monotonic() + seconds
    attempt = 0
    while report.executions < executions and (end is None or time.monotonic() < end):
        left = None if end is None else end - time.monotonic()
        part = _run_process(reader, executions - report.executions, f"{seed}.{attempt}", out, left)
        attempt += 1
        for name in ("executions", "results", "seconds"):
            setattr(report, name, getattr(report, name) + getattr(part, name))
        report.seeds, report.corpus = part.seeds or report.seeds, max(report.corpus, part.corpus)
        report.slowest = max(report.slowest, part.slowest)
        _merge(report.findings, part.findings)
        if not part.executions:
            break
    return report


def _merge(findings: list[Finding], more: Sequence[Finding]) -> None:
    for one in more:
        same = next((each for each in findings if each.kind == one.kind), None)
        if same is None:
            findings.append(one)
        else:
            same.count += one.count


def _run_process(reader: FuzzedReader, executions: int, seed: str, out: Path | None, seconds: float | None) -> Report:
    """Fork, fuzz in the child, and read its report; if it ended without one, the last input is a finding."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=base))
    shared = mmap.mmap(-1, _HEAD.size + MAX_BYTES)
    result = folder / "report.json"
    work = folder / "work"
    work.mkdir()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            code = 1
            gc.freeze()  # a collection writes to each object, and thereby copies the memory of the parent
            faulthandler.disable()  # an end without a report is a finding, and not an error of the tests
            try:
                report = fuzz_here(reader, executions, seed=seed, out=out, folder=work, seconds=seconds, shared=shared)
                result.write_text(json.dumps(asdict(report)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(process, 0)
        if result.is_file():
            values = json.loads(result.read_text())
            return Report(**{**values, "findings": [Finding(**each) for each in values["findings"]]})
        count, length = _HEAD.unpack(shared[: _HEAD.size])
        code = os.waitstatus_to_exitcode(status)
        what = f"the process ended: {signal.Signals(-code).name}" if code < 0 else f"the process ended with code {code}"
        data = shared[_HEAD.size : _HEAD.size + length]
        found = Finding(reader=reader.name, kind=what, detail=what, path=_keep(out, reader.name, what, data))
        return Report(reader=reader.name, executions=count, findings=[found])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fuzz_here(
    reader: FuzzedReader, executions: int, *, seed: str, folder: Path, out: Path | None = None,
    seconds: float | None = None, shared: mmap.mmap | None = None,
) -> Report:  # fmt: skip
    """Fuzz in this process."""
    warnings.simplefilter("ignore")
    rng = Random(f"{reader.name}:{seed}")
    seeds = list(reader.seeds())
    corpus = list(seeds)
    report = Report(reader=reader.name, seeds=len(seeds))
    guard = Guard(str(folder), reader.readable)
    prepare(reader, folder)
    gc.collect()
    _run(reader, executions, rng, folder, guard, report, corpus, seconds=seconds, out=out, shared=shared)
    report.corpus = len(corpus)
    return report


def _run(
    reader: FuzzedReader, executions: int, rng: Random, folder: Path, guard: Guard, report: Report, corpus: list[bytes],
    *, seconds: float | None, out: Path | None, shared: mmap.mmap | None,
) -> None:  # fmt: skip
    seeds, known = list(corpus), set[Any]()
    start = time.monotonic()
    for number in range(executions):
        if seconds is not None and number % 16 == 0 and time.monotonic() - start > seconds:
            break
        data = seeds[number] if number < len(seeds) else _next(rng, reader, corpus)
        if shared is not None:
            kept = data[:MAX_BYTES]
            shared[: _HEAD.size + len(kept)] = _HEAD.pack(number + 1, len(kept)) + kept
        outcome, kind, detail, used = execute(reader, data, folder, guard)
        report.executions += 1
        report.slowest = max(report.slowest, used)
        if kind:
            path = _keep(out, reader.name, kind, data)
            _merge(report.findings, [Finding(reader=reader.name, kind=kind, detail=detail[:500], path=path)])
        else:
            report.results += outcome[0] == "result"
            if outcome not in known:
                known.add(outcome)
                if number >= len(seeds):
                    corpus.append(data)
                    if len(corpus) > len(seeds) + _MOST_KEPT:
                        del corpus[rng.randrange(len(seeds), len(corpus))]
    report.seconds = time.monotonic() - start


def prepare(reader: FuzzedReader, folder: Path) -> None:
    """Read the first corpus, so that what is imported or made lazily is so before it is watched."""
    for data in reader.seeds():
        with suppress(RegardError):
            reader.read(data, folder)


def _next(rng: Random, reader: FuzzedReader, corpus: Sequence[bytes]) -> bytes:
    return mutate(rng, rng.choice(corpus), corpus, reader.words, is_text=reader.is_text)


def fuzz_by_coverage(reader: FuzzedReader, executions: int, *, seed: int, out: Path) -> None:
    """Fuzz a reader with atheris, which keeps inputs that reach new branches; it ends the process when it is done.

    Findings are kept as files in `out` and printed, and the corpus in a folder of it.
    """
    import atheris  # pyright: ignore[reportMissingImports]

    work, corpus = Path(tempfile.mkdtemp(prefix="fuzz-")), out / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(reader.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    guard, known = Guard(str(work), reader.readable), set[str]()
    prepare(reader, work)

    def one_input(data: bytes) -> None:
        _, kind, detail, _ = execute(reader, data, work, guard)
        if kind and kind not in known:
            known.add(kind)
            print(f"{reader.name}: {kind}: {detail[:160]} {_keep(out, reader.name, kind, data)}", file=sys.stderr)

    options = [f"-runs={executions}", f"-seed={seed + 1}", f"-max_len={MAX_BYTES}", "-timeout=60", str(corpus)]
    atheris.Setup([sys.argv[0], *options], one_input, enable_python_coverage=True)
    atheris.Fuzz()


def execute(reader: FuzzedReader, data: bytes, folder: Path, guard: Guard) -> tuple[tuple[str, Any], str, str, float]:
    """Read an input: what distinguishes the outcome, the kind of a finding or nothing, its detail, and the CPU time."""
    start = time.process_time()
    kind = detail = ""
    outcome: tuple[str, Any] = ("", None)
    try:
        with guard.watched(data), _limits():
            outcome = ("result", reader.read(data, folder))
    except RegardError as error:
        text = str(error)
        outcome = (type(error).__name__, _SPARED.sub("_", text)[:120])
        if "\n" in text or "\r" in text:
            kind, detail = f"an error of several lines at {_place(error)}", text
        elif len(text) > MAX_MESSAGE:
            kind, detail = f"an error of more than {MAX_MESSAGE:,} characters at {_place(error)}", text
    except TooSlowError as error:
        kind, detail = f"more than {MAX_SECONDS:g} s at {_place(error)}", ""
    except EscapeError as error:
        kind, detail = f"{str(error)[:60]} at {_place(error)}", str(error)
    except BaseException as error:
        kind = f"{type(error).__name__} at {_place(error)}"
        detail = " ".join(str(error).split())[:300]
        if isinstance(error, KeyboardInterrupt):
            raise
    used = time.process_time() - start
    if not kind and guard.escape:
        kind, detail = f"{guard.escape[:60]} (caught)", guard.escape
    if not kind and used > MAX_SECONDS:
        kind, detail = f"more than {MAX_SECONDS:g} s", f"{used:.1f} s"
    return outcome, kind, detail, used


def _place(error: BaseException) -> str:
    """The innermost line of regard in a traceback, and the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/regard/" in frame.filename]
    frame = (own or frames)[-1]
    path = Path(frame.filename)
    return f"{path.parent.name}/{path.name}:{frame.lineno} ({frame.name})"


@contextmanager
def _limits() -> Iterator[None]:
    """Raise after the time limit, in CPU time of the process, and where more memory than allowed is asked for."""
    before = signal.signal(signal.SIGPROF, _stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_size() + MAX_MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _stop(_number: int, _frame: object) -> None:
    raise TooSlowError


def _data_size() -> int:
    """The bytes of private memory that the limit counts."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[5]) * mmap.PAGESIZE


def _keep(out: Path | None, reader: str, kind: str, data: bytes) -> str:
    """Keep the shortest input of a kind."""
    if out is None:
        return ""
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{reader}-{kind}").strip("-")[:120]
    path = out / name
    if not path.is_file() or path.stat().st_size > len(data):
        out.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(path)
