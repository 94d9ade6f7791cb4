"""`regard chat`: a conversation in the terminal, or one answer for each line of stdin."""

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.output import Device, Json, Quiet, RunPath, argument, configure_logging, option, print_json
from regard.errors import ConfigError, RegardError
from regard.logging import log_warning

if TYPE_CHECKING:
    from regard.runs.conversation import Conversation

_HELP = """\
/retry         another answer to the last message
/system TEXT   set the system message; without a text, remove it
/save FILE     write the conversation as JSON lines, which training reads
/help          this list
/quit          leave; so does the end of the input
Ctrl-C stops an answer; what was written until then stays part of the conversation."""
_COMMANDS = ("/retry", "/system", "/save", "/help", "/quit")


def chat_command(
    run: RunPath,
    message: Annotated[str | None, argument("MESSAGE", "One message to answer; unset, a conversation.")] = None,
    system: Annotated[str | None, option("The system message.")] = None,
    max_tokens: Annotated[int | None, option("The largest number of new tokens of an answer; unset, 200.")] = None,
    temperature: Annotated[float, typer.Option(help="0: greedy; 1: the model's distribution.")] = 0.0,
    top_k: Annotated[int | None, option("Sample among the k most probable tokens.")] = None,
    top_p: Annotated[float | None, option("Sample among the fewest tokens whose probabilities sum to P.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers.")] = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Chat with a model: an imported one with a chat template, or one trained on conversations or on pairs.

    In a terminal, /help lists the commands. Otherwise each line of stdin is a message, and its answer is printed.

    Examples:

      regard chat runs/chats

      regard chat smollm2 --system "Answer in one word." --temperature 0.7

      regard chat smollm2 "What is the capital of France?"

      printf 'What is the capital of France?\\nAnd of Italy?\\n' | regard chat smollm2
    """
    configure_logging(quiet=quiet)
    from regard.runs.run import load

    given = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    talk = load(run, device=device).conversation(system=system, **options)
    if message is not None:
        _print_answer(talk.ask(message), talk, json=json)
        return
    is_terminal = sys.stdin.isatty() and not json
    if is_terminal:
        print("/help lists the commands, /quit leaves", file=sys.stderr)
    lines = _typed_lines() if is_terminal else (line.rstrip("\n") for line in sys.stdin)
    _converse(talk, lines, json=json, goes_on=is_terminal)


def _converse(talk: "Conversation", lines: Iterable[str], *, json: bool, goes_on: bool) -> None:
    """Answer each line; in a terminal an error does not end the conversation."""
    for line in lines:
        if not line.strip():
            continue
        try:
            if not _follow(talk, line.strip(), json=json):
                return
        except RegardError as error:
            if not goes_on:
                raise
            log_warning(" ".join(str(error).split()))


def _follow(talk: "Conversation", line: str, *, json: bool) -> bool:
    """Run a command, or answer a message; returns whether the conversation continues."""
    name, _, rest = line.partition(" ")
    match name:
        case "/quit" | "/exit":
            return False
        case "/help":
            print(_HELP, file=sys.stderr)
        case "/system":
            talk.set_system(rest)
        case "/save":
            if not rest.strip():
                raise ConfigError("/save needs the name of a file")
            talk.save(rest.strip())
            print(f"saved to {rest.strip()}", file=sys.stderr)
        case "/retry":
            _print_answer(talk.retry(), talk, json=json)
        case _ if name.startswith("/") and name[1:].isalpha() and not rest:
            raise ConfigError(f"unknown command {name}: {', '.join(_COMMANDS)}")
        case _:
            _print_answer(talk.ask(line), talk, json=json)
    return True


def _print_answer(pieces: Iterator[str], talk: "Conversation", *, json: bool) -> None:
    """Print an answer as it is generated; Ctrl-C ends it, and not the program."""
    text = ""
    try:
        first = next(pieces, "")  # so that an error is reported before anything is printed
        for piece in chain([first], pieces):
            text += piece
            if not json:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        pieces.close()  # pyright: ignore[reportAttributeAccessIssue]  it is a generator
        print("\nstopped", file=sys.stderr)
    if json:
        print_json({"answer": text, "messages": len(talk.messages)})
    else:
        print(flush=True)


def _typed_lines() -> Iterator[str]:
    """The lines of a terminal; Ctrl-C discards the current one."""
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n/quit leaves", file=sys.stderr)
