"""`regard predict`: from text to the model's output."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, option, print_json, talk

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
    """Print the model's output for each input, a line each.

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
    everything = []
    for lines in [texts] if texts else _chunks_of_stdin():
        predictions = iter(loaded.predictions([line for line in lines if line.strip()], **options))
        for line in lines:
            # A blank line in gives a blank line out, so that the two stay aligned.
            prediction = next(predictions) if line.strip() else None
            if json:
                score = None if prediction is None else prediction.score
                everything.append({"input": line, "output": prediction.output if prediction else "", "score": score})
            else:
                print(prediction.output if prediction else "", flush=True)
    if json:
        print_json({"predictions": everything})


def _chunks_of_stdin() -> Iterator[list[str]]:
    if sys.stdin.isatty():
        print("reading lines from the terminal; end with Ctrl-D", file=sys.stderr)
        for line in sys.stdin:
            yield [line.rstrip("\n")]
        return
    while chunk := [line.rstrip("\n") for line in islice(sys.stdin, _LINES_AT_ONCE)]:
        yield chunk
