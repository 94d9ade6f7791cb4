"""Ctrl-C and SIGTERM: finish the step, save and exit. A second Ctrl-C exits at once."""

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
    """Record Ctrl-C and SIGTERM inside the context, instead of ending the process."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # Python handles signals in the main thread only
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interruption:
            raise KeyboardInterrupt
        interruption.signal = signal.Signals(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
