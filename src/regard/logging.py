"""Messages and progress bars, on stderr, so that results on stdout can be piped.

Messages go through the standard `logging` module (the logger `regard`). Where a
program has not configured logging, they are printed: what was detected, chosen
and written is part of a result, from Python and in notebooks as well. Progress
bars are shown only where stderr is a terminal.
"""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from regard.errors import one_line

logger = logging.getLogger("regard")
_recorded: ContextVar[list[str] | None] = ContextVar("recorded", default=None)

Item = TypeVar("Item")


class MessageFormatter(logging.Formatter):
    """The message alone; a warning is marked as one."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        return prefix + one_line(record.getMessage())


class _StderrHandler(logging.Handler):
    """Prints to what `sys.stderr` is when a message arrives: notebooks and tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def print_messages_by_default() -> None:
    """Print messages, unless the program has configured the logger or logging as a whole."""
    if logger.handlers or logger.level != logging.NOTSET or logging.getLogger().handlers:
        return
    handler = _StderrHandler()
    handler.setFormatter(MessageFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def log_info(message: str) -> None:
    """Log what was done or chosen."""
    print_messages_by_default()
    _record(message)
    logger.info(message)


def log_warning(message: str) -> None:
    """Log what a user should know before trusting a result."""
    print_messages_by_default()
    _record(message)
    logger.warning(message)


def _record(message: str) -> None:
    if (messages := _recorded.get()) is not None and message not in messages:
        messages.append(message)


@contextmanager
def recorded_messages() -> Iterator[list[str]]:
    """Collect what is logged inside the context, each message once, whether or not it is printed."""
    messages: list[str] = []
    token = _recorded.set(messages)
    try:
        yield messages
    finally:
        _recorded.reset(token)


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Suppress messages below a warning inside the context, for work that is only a trial."""
    print_messages_by_default()
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    token = _recorded.set(None)
    try:
        yield
    finally:
        _recorded.reset(token)
        logger.setLevel(level)


def format_duration(seconds: float) -> str:
    """Format a number of seconds.

    Example:
        >>> format_duration(7.4), format_duration(125)
        ('7 s', '2 min 05 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.0f} s"


def progress_bar(items: Iterable[Item], what: str, *, total: int | None = None) -> Iterator[Item]:
    """Yield `items` and show a progress bar with the time left, where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    print_messages_by_default()
    console = Console(stderr=True)
    if not console.is_terminal or not logger.isEnabledFor(logging.INFO):
        yield from items
        return
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    columns += [TimeRemainingColumn()] if total else [TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        yield from bar.track(items, total=total, description=what)
