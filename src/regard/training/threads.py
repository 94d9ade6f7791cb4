"""How many threads: as many as there are cores, or one, whichever is faster just now.

PyTorch's threads wait for each other in a spin. On a machine one has to oneself
that is fast; as soon as another program wants a core, each wait lasts until the
system has run that program, and a step takes thirty times as long. One thread
then loses little.
"""

import statistics
from collections.abc import Callable

import torch

_PROBE = 5
"""Steps that a number of threads is tried for."""
_HOLD = 200
"""Steps before the other is tried again."""
_BETTER = 1.15
"""A change must gain this much: single steps of a machine vary by a tenth."""
_SLOW = 3.0
"""A step this much slower than usual has the other tried at once; a probe this much slower is broken off."""


class ThreadChooser:
    """Is told of each step, and sets the number of threads for the next ones.

    It begins with one thread, which nobody can hold up. A number that had to be
    broken off is left alone for twice as long as the last time.

    Sums come out otherwise with another number of threads, so this is for runs
    that need not be the same bit for bit.
    """

    def __init__(self, most: int, *, set_threads: Callable[[int], None] = torch.set_num_threads) -> None:
        self.current, self._other = 1, most
        self._set_threads = set_threads
        self._hold = _PROBE
        """Steps before the other number is tried."""
        self._patience = _HOLD
        """What `_hold` becomes after a probe."""
        self._is_probing = False
        self._speeds: list[float] = []
        """Of the steps since the last change, newest last."""
        self._usual: float | None = None
        """The speed of the number of threads that is kept."""
        if most > 1:
            set_threads(1)

    def note(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        if self.current == self._other:
            return
        self._speeds.append(tokens / max(seconds, 1e-9))
        if self._is_probing:
            self._judge_probe()
        elif self._has_slowed():
            self._usual = statistics.median(self._speeds[-_PROBE:])
            self._switch(is_probing=True)
        elif len(self._speeds) >= self._hold:
            self._usual = statistics.median(self._speeds[-4 * _PROBE :])
            self._switch(is_probing=True)

    def _has_slowed(self) -> bool:
        recent = self._speeds[-_PROBE:]
        return self._usual is not None and len(recent) == _PROBE and statistics.median(recent) * _SLOW < self._usual

    def _judge_probe(self) -> None:
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
