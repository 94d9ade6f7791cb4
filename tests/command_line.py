"""The command line inside the test's process: a tenth of a second where a process of its own takes four."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from regard.cli.main import main


@dataclass(frozen=True)
class Answer:
    """What a command printed, and how it ended."""

    out: str
    err: str
    code: int | str | None

    def fails_with(self, *parts: str) -> None:
        """It failed with one line on stderr that contains all of `parts`, and printed nothing."""
        assert self.code == 2, (self.code, self.err)
        assert self.out == ""
        assert self.err.startswith("regard: ")
        assert self.err.count("\n") == 1, self.err
        for part in parts:
            assert part in self.err, self.err

    def succeeds(self) -> "Answer":
        assert self.code == 0, (self.code, self.err)
        return self


@contextmanager
def same_logger() -> Iterator[None]:
    """A command logs to a stream that is closed after it: what it has configured is undone."""
    logger = logging.getLogger("regard")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def call(*arguments: object, stdin: str | bytes = "") -> Answer:
    """Run `regard` with these arguments."""
    given = stdin if isinstance(stdin, bytes) else stdin.encode()
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, same_logger(), redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
        try:
            main()
            code = None
        except SystemExit as leaving:
            code = leaving.code
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # pyright: ignore
    return Answer(printed, said, code)
