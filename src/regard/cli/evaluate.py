"""`regard evaluate` and `regard test`: how good is it?"""

from typing import TYPE_CHECKING, Annotated, Any

from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, option, print_json, talk

if TYPE_CHECKING:
    from regard.runs.run import Evaluation

Given = list[str] | None


def evaluate(
    run: RunPath,
    data: Annotated[Given, argument("[DATA]...", "A file, or two aligned; unset, the validation rows.")] = None,
    beam: Beam = None,
    stride: Annotated[int | None, option("Of windows over running text; less gives each token more context.")] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Score a run on a file: each score with its 95 % interval and its signature.

    Examples:

      regard evaluate runs/de-en test.tsv --beam 5

      regard evaluate runs/de-en test.de test.en --json

      regard evaluate runs/shakespeare more.txt --stride 64
    """
    talk(quiet=quiet)
    from regard.runs.run import load

    _print(load(run, device=device).evaluate(data or None, stride=stride, **_options(beam)), json)


def test(
    run: RunPath,
    beam: Beam = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a run on its own test rows, which nothing has looked at, and write that down.

    Example:

      regard test runs/de-en --beam 5
    """
    talk(quiet=quiet)
    from regard.runs.run import load

    _print(load(run, device=device).test(**_options(beam)), json)


def _options(beam: int | None) -> dict[str, Any]:
    return {} if beam is None else {"beam_size": beam}


def _print(evaluation: "Evaluation", as_json: bool) -> None:
    if as_json:
        print_json(evaluation.to_json())
        return
    for score in evaluation.scores.values():
        print(score)
