"""The progress line of training: step, loss, speed, time left."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from regard.logging import log_info

_PLAIN_SECONDS = 15.0
"""Without a terminal, the interval between lines."""


class TrainingDisplay:
    """Displays training figures on stderr: a live line in a terminal, plain lines elsewhere."""

    def __init__(self, *, is_shown: bool = True) -> None:
        console = Console(stderr=True)
        self._is_shown, self._is_live = is_shown, is_shown and console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._is_live,
        )
        self._figures: dict[str, Any] = {}
        self._bar = self._progress.add_task("training", total=1.0)
        self._last_plain = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, line: Mapping[str, Any], used: float) -> None:
        """Display new figures; `used` is the share of the budget that is used."""
        self._figures.update(line)
        self._progress.update(self._bar, completed=used, description=self._text())
        is_time = time.monotonic() - self._last_plain > _PLAIN_SECONDS
        if self._is_shown and not self._is_live and is_time:
            self._last_plain = time.monotonic()
            log_info(f"{self._text()} · {100 * used:.0f} %")

    def _text(self) -> str:
        figures = self._figures
        parts = [f"step {figures['step']:,}"]
        if "loss" in figures:
            parts.append(f"loss {figures['loss']:.3f}")
        if "valid_loss" in figures:
            parts.append(f"validation {figures['valid_loss']:.3f}")
        if "tokens_per_second" in figures:
            parts.append(f"{figures['tokens_per_second']:,.0f} tokens/s")
        return " · ".join(parts)
