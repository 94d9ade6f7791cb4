"""Talk and progress, on stderr, so that results on stdout can be piped.

The library says what it does through `logging` (the logger `regard`); bars
show only where stderr is a terminal.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

logger = logging.getLogger("regard")

Item = TypeVar("Item")


def say(message: str) -> None:
    """Tell the user what was done or decided."""
    logger.info(message)


def warn(message: str) -> None:
    """Tell the user what they would want to know before trusting the result."""
    logger.warning(message)


@contextmanager
def hushed() -> Iterator[None]:
    """Say nothing meanwhile, warnings excepted: for what is only tried."""
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)


def duration(seconds: float) -> str:
    """A time a person can read.

    Example:
        >>> duration(7.4), duration(125)
        ('7 s', '2 min 05 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.0f} s"


def track(items: Iterable[Item], what: str, *, total: int | None = None) -> Iterator[Item]:
    """Yield `items` under a bar with the time left, where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal or not logger.isEnabledFor(logging.INFO):
        yield from items
        return
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    columns += [TimeRemainingColumn()] if total else [TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        yield from bar.track(items, total=total, description=what)
