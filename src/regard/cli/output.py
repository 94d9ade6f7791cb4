"""What every command shares: results on stdout, talk on stderr, options of one name and meaning."""

import json
import logging
import sys
from typing import Annotated, Any

import typer

from regard.errors import ConfigError

_LINE_ENDS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\u0085\u2028\u2029"}
"""Signs that JSON leaves as they are and some programs end a line at."""


def option(help: str, *names: str, **more: Any) -> Any:
    """An option that is unset unless it is given."""
    return typer.Option(*names, help=help, show_default=False, **more)


def argument(metavar: str, help: str) -> Any:
    """An argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, on the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but warnings and errors.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", show_default=True)]
Beam = Annotated[int | None, typer.Option("--beam", min=1, help="Hypotheses of beam search; 1 is greedy.")]
RunPath = Annotated[str, argument("RUN", "The folder of a run.")]


def numbers(name: str, text: str) -> list[int]:
    """Whole numbers with commas between, as the option `name` was given them."""
    try:
        return [int(part.strip().replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} takes whole numbers, separated by commas, got {text!r}") from None


def talk(*, quiet: bool) -> None:
    """Send what the library says to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Talk())
    logger = logging.getLogger("regard")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False


def print_json(value: Any) -> None:
    """One object, on one line, however the reader counts lines."""
    print(json.dumps(value, ensure_ascii=False).translate(_LINE_ENDS), flush=True)


def fail(error: Exception) -> int:
    """Print an error as one line, with the remedies that a command noted on it; returns the exit code."""
    remedies = getattr(error, "__notes__", [])
    message = "; ".join([str(error), *remedies])
    print(f"regard: {' '.join(message.split())}", file=sys.stderr)
    return getattr(error, "exit_code", 2)


class _Talk(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        return prefix + record.getMessage()
