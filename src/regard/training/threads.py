"""The number of CPU threads: one per core, or one in total, whichever is currently faster.

PyTorch's threads wait for each other by spinning. On a machine without other load
that is fast; if another program uses a core, each wait lasts until that program
is descheduled, and a step takes thirty times as long. A single thread is then
hardly affected.
"""

import statistics
from collections.abc import Callable

import torch

_PROBE = 5
"""Steps for which a number of threads is measured."""
_HOLD = 200
"""Steps before the other number is measured again."""
_BETTER = 1.15
"""The smallest speedup for a change: the time of single steps varies by 10 %."""
_SLOW = 3.0
"""Steps this much slower than usual start a probe at once; a probe this much slower is aborted."""


class ThreadChooser:
    """Measures each step, and sets the number of threads of the next ones.

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
