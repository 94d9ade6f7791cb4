"""Ctrl-C, SIGTERM and SIGHUP: finish the step, save and exit. A second Ctrl-C exits without saving.

A scheduler may send SIGTERM more than once before it kills: the state is saved all the same. SIGHUP, which a process
gets when its terminal is closed, stays ignored under `nohup`.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """The signal that interrupts training, if there was one."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def listen() -> Iterator[Interruption]:
    """Record Ctrl-C, SIGTERM and SIGHUP inside the context, instead of ending the process."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # Python handles signals in the main thread only
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interruption and number == signal.SIGINT:
            raise KeyboardInterrupt
        interruption.signal = interruption.signal or signal.Signals(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
