"""Ctrl-C and SIGTERM: finish the step, save, leave. A second Ctrl-C leaves at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Whether, and by which signal, the user asked to stop."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def listen() -> Iterator[Interruption]:
    """Note Ctrl-C and SIGTERM instead of dying of them, while the block runs."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # Python lets only the main thread handle signals
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
