"""`regard predict`: from text to the model's output."""

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, option, print_json, talk
from regard.errors import DataError

if TYPE_CHECKING:
    from regard.runs.run import Run

_LINES_AT_ONCE = 256


def predict(
    run: RunPath,
    texts: Annotated[list[str] | None, argument("[TEXT]...", "Inputs; unset, the lines of stdin.")] = None,
    beam: Beam = None,
    temperature: Annotated[float | None, option("Sample; 1 is the model's own distribution.")] = None,
    top_k: Annotated[int | None, option("Sample among the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, option("Sample among the tokens holding this probability.")] = None,
    min_p: Annotated[float | None, option("Sample among tokens at least this share as likely as the best.")] = None,
    max_length: Annotated[int | None, option("The most tokens to write.")] = None,
    seed: Annotated[int | None, option("The same seed gives the same sample.")] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Print the model's output for each input, a line each; a line break inside an output becomes a space.

    Examples:

      regard predict runs/dates "4 March 2025"

      cat inputs.txt | regard predict runs/dates --beam 5 > outputs.txt
    """
    talk(quiet=quiet)
    from regard.runs.run import load

    given = {"beam_size": beam, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
             "max_length": max_length, "seed": seed}  # fmt: skip
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    loaded = load(run, device=device)
    loaded.generation(**options)  # a wrong option is told before anything is read
    answers = _answers(loaded, [texts], options) if texts else _answers_to_lines(loaded, options)
    if json:
        print_json({"predictions": list(answers)})
        return
    for answer in answers:
        print(" ".join(answer["output"].splitlines()), flush=True)


def _answers(run: "Run", chunks: Iterable[list[str]], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for chunk in chunks:
        for prediction in run.predictions(chunk, **options):
            found = {"input": prediction.input, "output": prediction.output, "score": prediction.score}
            chances = prediction.probabilities
            yield found if chances is None else {**found, "probabilities": chances}


def _answers_to_lines(run: "Run", options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A blank line in gives a blank line out, so that the two stay aligned."""
    for lines in _chunks_of_stdin():
        answers = _answers(run, [[line for line in lines if line.strip()]], options)
        for line in lines:
            yield next(answers) if line.strip() else {"input": line, "output": "", "score": None}


def _chunks_of_stdin() -> Iterator[list[str]]:
    at_once = _LINES_AT_ONCE
    if sys.stdin.isatty():
        print("reading lines from the terminal; end with Ctrl-D", file=sys.stderr)
        at_once = 1
    lines = lines_of_stdin()
    while chunk := list(islice(lines, at_once)):
        yield chunk


def lines_of_stdin() -> Iterator[str]:
    """Lines as files of data have them: UTF-8, whatever the locale, and ended by nothing but a line feed."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(
                f"the input is not UTF-8: line {number:,}, byte {error.start + 1:,} is 0x{line[error.start]:02x}"
            ) from None
