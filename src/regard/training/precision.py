"""The device, the precision and the number of CPU threads of a run, chosen for the hardware."""

import ctypes
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator

from regard.errors import ConfigError, DeviceError
from regard.nn.precision import cpu_has_bfloat16

PrecisionName = Literal["auto", "float32", "bfloat16"]

_MALLOC_OPTIONS = {-3: 1 << 25, -1: 1 << 30, -2: 1 << 26}
"""M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of mallopt(3), in bytes."""
_WIDE = 64
"""From this width on bfloat16 is faster than float32 on a CPU that has instructions for it: a step of a Transformer
takes two thirds of the time."""
_PROBE = 5
"""Steps for which a number of threads is measured."""
_HOLD = 200
"""Steps before the other number is measured again."""
_BETTER = 1.15
"""The smallest speedup for a change: the time of single steps varies by 10 %."""
_SLOW = 3.0
"""Steps this much slower than usual start a probe at once; a probe this much slower is aborted."""
_WATCHED_SECONDS = 0.3
"""How long the load of the cores is measured: the system counts in hundredths of a second."""
_NEGLIGIBLE = 0.5
"""Other programs that keep less than this part of a core busy leave it free."""
_IDLE = slice(3, 5)
"""The places of idle time, and of idle time while a disk is read, in a line of /proc/stat."""


def _is_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ConfigError(f"a device is auto, cpu, cuda or cuda:N, got {name!r}; {_describe_devices()}")
    return name


def _describe_devices() -> str:
    """The devices of this machine, and which one is used by default; PyTorch's `mps` is not supported here."""
    count = torch.cuda.device_count()
    devices = {0: "cpu", 1: "cpu and cuda"}.get(count, f"cpu and cuda:0 to cuda:{count - 1}")
    metal = " (mps is not supported)" if torch.backends.mps.is_available() else ""
    return f"this machine has {devices}{metal}, and auto is {'cuda' if count else 'cpu'}"


DeviceName = Annotated[str, AfterValidator(_is_device)]


@dataclass(frozen=True)
class Hardware:
    """A device, the precision of its matrix products, and why it was chosen."""

    device: torch.device
    precision: Literal["float32", "bfloat16"]
    reason: str
    threads: int | None = None
    """The threads that share an operation on a CPU; None for PyTorch's own number."""

    def autocast(self) -> AbstractContextManager:
        """Run matrix products in the chosen precision; weights and sums stay in float32.

        Where float64 is PyTorch's default dtype, everything is in float64, which autocast does not cast.
        """
        if self.precision == "float32" or torch.get_default_dtype() == torch.float64:
            return nullcontext()
        # Without the cache of cast weights, each of which is used once: a CUDA graph must not refer to it.
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def synchronize(self) -> None:
        """Wait until the queued work of a GPU is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def free_threads(self) -> AbstractContextManager:
        """Use the threads that are set; unset, on a CPU, one for each core that other programs leave free now."""
        is_measured = self.threads is None and self.device.type == "cpu"
        return threads(choose_threads()[0] if is_measured else self.threads or torch.get_num_threads())

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        number = self.threads or torch.get_num_threads()
        shared = f", {number} thread{'' if number == 1 else 's'}" if self.device.type == "cpu" else ""
        return f"{name}{shared}, {self.precision} ({self.reason})"


def choose_hardware(device: str, precision: PrecisionName, model_dim: int, *, threads: int | None = None) -> Hardware:
    """The requested device, or a GPU where there is one, and the faster safe precision on it."""
    found = _choose_precision(find_device(device), precision, model_dim)
    return found if threads is None or found.device.type != "cpu" else replace(found, threads=threads)


def _choose_precision(chosen: torch.device, precision: PrecisionName, model_dim: int) -> Hardware:
    if precision != "auto":
        return Hardware(chosen, precision, "as set")
    if chosen.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Hardware(chosen, "bfloat16", "supported by the GPU")
        return Hardware(chosen, "float32", "bfloat16 is not supported by the GPU")
    if model_dim >= _WIDE and cpu_has_bfloat16() and torch.get_default_dtype() == torch.float32:
        return Hardware(chosen, "bfloat16", f"supported by the CPU, and model_dim is at least {_WIDE}")
    return Hardware(chosen, "float32", "bfloat16 is not faster for this model on this CPU")


def find_device(name: str) -> torch.device:
    """The device called `name`; `auto` is a GPU where there is one."""
    if _is_device(name) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"device {name} does not exist: {_describe_devices()}")
    return torch.device(name)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error means that a device, or the machine, is out of memory."""
    is_on_cpu = any(text in str(error) for text in ("can't allocate memory", "not enough memory"))
    return isinstance(error, torch.OutOfMemoryError) or is_on_cpu


def num_cores() -> int:
    """The cores that this process may use, by its affinity and the quota of its container; a part counts as one."""
    cores = len(_own_cores())
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, math.ceil(int(quota) / int(period)))  # "max" is no number: there is no quota
    return max(1, cores)


def choose_threads() -> tuple[int, str]:
    """The threads for a run whose number of threads stays, and why they are fewer than the cores; the load is measured.

    Threads wait for each other after each operation, by spinning: one that shares a core with another program delays
    all of them.
    """
    most = torch.get_num_threads()
    return _threads_beside(0.0 if most == 1 else _busy_cores(), most=most, cores=num_cores(), shared=len(_own_cores()))


def _threads_beside(busy: float, *, most: int, cores: int, shared: int) -> tuple[int, str]:
    """The threads, of `most`, for `cores` of those that are shared with other programs, which keep `busy` of them busy.

    Example:
        >>> _threads_beside(0.2, most=2, cores=2, shared=2)
        (2, '')
        >>> _threads_beside(1.0, most=8, cores=8, shared=8)
        (7, 'other programs keep 1.0 of 8 cores busy')
        >>> _threads_beside(30.0, most=64, cores=2, shared=64)  # the quota of a container
        (2, 'this process may use 2 cores')
    """
    number = max(1, min(most, cores, math.floor(shared - busy + _NEGLIGIBLE)))
    if number == most:
        return number, ""
    if number == min(most, cores):
        return number, f"this process may use {cores} {'core' if cores == 1 else 'cores'}"
    return number, f"other programs keep {busy:.1f} of {shared} cores busy"


def _busy_cores() -> float:
    """How many of its cores are in use while this process waits; 0 on a system that does not count it."""
    try:
        before = _core_times()
        time.sleep(_WATCHED_SECONDS)
        after = _core_times()
    except (OSError, ValueError):
        return 0.0
    used = 0.0
    for core in before.keys() & after.keys():
        spent = [new - old for new, old in zip(after[core], before[core], strict=True)]
        used += 1 - sum(spent[_IDLE]) / max(1, sum(spent))
    return used


def _core_times() -> dict[int, list[int]]:
    """The time that each core of this process has spent in each state since the system was started."""
    lines = [line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()]
    cores = {f"cpu{core}": core for core in _own_cores()}
    # Time of guests, after the eighth figure, is part of the first two.
    return {cores[line[0]]: [int(each) for each in line[1:9]] for line in lines if line and line[0] in cores}


def _own_cores() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not on this system
        return set(range(os.cpu_count() or 1))


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of PyTorch's CPU threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_memory() -> None:
    """Configure glibc to keep freed memory; other C libraries are not changed.

    By default glibc returns each large block to the system, and every training step
    then needs new pages: 10 % of the time of a small model.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        for option, value in _MALLOC_OPTIONS.items():
            library.mallopt(option, value)


class ThreadChooser:
    """Measures each step, and sets the number of threads of the next ones: one per core, or one in total.

    PyTorch's threads wait for each other after each operation, by spinning. On a machine
    without other load that is short; if other programs use the cores, a wait lasts until
    they are descheduled. A single thread is hardly affected.

    It starts with one thread. After an aborted probe, the time until the next one
    is doubled.

    Sums depend on the number of threads, so this is only for runs that need not be
    reproducible bit for bit.
    """

    def __init__(self, most: int, *, set_threads: Callable[[int], None] = torch.set_num_threads) -> None:
        self.current, self._other = 1, most
        self._set_threads = set_threads
        self._hold = _PROBE
        """Steps before the next probe."""
        self._patience = _HOLD
        """The value of `_hold` after the next probe."""
        self._is_probing = False
        self._speeds: list[float] = []
        """Tokens per second of the steps since the last change."""
        self._usual: float | None = None
        """The speed with the number of threads in use."""
        if most > 1:
            set_threads(1)

    def note(self, tokens: int, seconds: float) -> None:
        """Record the time of a step."""
        if self.current == self._other:
            return
        self._speeds.append(tokens / max(seconds, 1e-9))
        if self._is_probing:
            self._evaluate_probe()
        elif self._has_slowed():
            self._usual = statistics.median(self._speeds[-_PROBE:])
            self._switch(is_probing=True)
        elif len(self._speeds) >= self._hold:
            self._usual = statistics.median(self._speeds[-4 * _PROBE :])
            self._switch(is_probing=True)

    def _has_slowed(self) -> bool:
        recent = self._speeds[-_PROBE:]
        return self._usual is not None and len(recent) == _PROBE and statistics.median(recent) * _SLOW < self._usual

    def _evaluate_probe(self) -> None:
        assert self._usual is not None
        speed = statistics.median(self._speeds)
        if speed * _SLOW < self._usual:
            self._hold, self._patience = self._patience, 2 * self._patience
            self._switch(is_probing=False)
        elif len(self._speeds) >= _PROBE:
            self._hold = self._patience = _HOLD
            if speed > _BETTER * self._usual:
                self._usual, self._is_probing, self._speeds = speed, False, []
            else:
                self._switch(is_probing=False)

    def _switch(self, *, is_probing: bool) -> None:
        self.current, self._other = self._other, self.current
        self._is_probing, self._speeds = is_probing, []
        self._set_threads(self.current)
