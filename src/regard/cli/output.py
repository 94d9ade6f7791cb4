"""What all commands share: results on stdout, messages on stderr, options with one name and meaning."""

import inspect
import json
import logging
import re
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from regard.errors import ConfigError
from regard.logging import MessageFormatter

_LINE_ENDS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\u0085\u2028\u2029"}
"""Characters that are valid in JSON and that some programs take for line breaks."""

_TYPE = re.compile(r"<(?:list\[)?(\w+)(?: range)?\]?>")
_TYPES = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "file": "FILE"}
"""The words for types that help texts have, by the names of Python's types."""


class Command(TyperCommand):
    """A command whose help has the types of options in words, and each example on a line of its own, to be copied."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            for number, paragraph in enumerate(paragraphs):
                if paragraph.startswith("  "):
                    formatter.write(f"{' ' * formatter.current_indent}{paragraph}\n")
                    continue
                if number:
                    formatter.write_paragraph()
                formatter.write_text(paragraph)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_argument = parameter.param_type_name == "argument"
                name = _TYPE.sub("" if is_argument else lambda found: _TYPES.get(found[1], "TEXT"), record[0])
                sections["Arguments" if is_argument else "Options"].append((name.strip(), record[1]))
        for title, records in {**sections, **self.more_options()}.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def more_options(self) -> dict[str, list[tuple[str, str]]]:
        """Further sections of options for the help: titles, and the name and the help of each option."""
        return {}


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


def fail(error: Exception) -> int:
    """Print an error as one line, with the remedies that a command added; return the exit code."""
    remedies = getattr(error, "__notes__", [])
    message = "; ".join([str(error), *remedies])
    print(f"regard: {' '.join(message.split())}", file=sys.stderr)
    return getattr(error, "exit_code", 2)
