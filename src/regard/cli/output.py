"""What all commands share: results on stdout, messages on stderr, options with one name and meaning."""

import json
import logging
import os
import sys
from typing import Annotated, Any

import typer

from regard.errors import ConfigError, ProcessError, StoppedError
from regard.logging import MessageFormatter

_LINE_ENDS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\u0085\u2028\u2029"}
"""Characters that are valid in JSON and that some programs take for line breaks."""


def option(help: str, *names: str, **more: Any) -> Any:
    """An option without a default."""
    return typer.Option(*names, help=help, show_default=False, **more)


def argument(metavar: str, help: str) -> Any:
    """An argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, on the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors on stderr.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", show_default=True)]
Beam = Annotated[int | None, typer.Option("--beam", min=1, help="Beam size; 1 is greedy decoding.")]
RunPath = Annotated[str, argument("RUN", "A run folder.")]


def numbers(name: str, text: str) -> list[int]:
    """Integers separated by commas, the value of the option `name`."""
    try:
        return [int(part.strip().replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} must be integers separated by commas, got {text!r}") from None


def configure_logging(*, quiet: bool) -> None:
    """Send the messages of the library to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MessageFormatter())
    logger = logging.getLogger("regard")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False


def print_json(value: Any) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(value, ensure_ascii=False).translate(_LINE_ENDS), flush=True)


def process_rank() -> int:
    """The rank of this process among those that torchrun has started; 0 for a process alone."""
    rank = os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"
    return int(rank) if rank.isdecimal() else 0


def fail(error: Exception) -> int:
    """Print an error as one line, with the remedies that a command added; return the exit code.

    Of several processes, each has its rank in the line, and only the first one says that all were stopped.
    """
    remedies, rank = getattr(error, "__notes__", []), process_rank()
    message = "; ".join([str(error), *remedies])
    if not rank or not isinstance(error, StoppedError | ProcessError):
        mark = f"rank {rank}: " if rank else ""
        print(f"regard: {mark}{' '.join(message.split())}", file=sys.stderr)
    return getattr(error, "exit_code", 2)
