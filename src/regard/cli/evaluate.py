"""`regard evaluate` and `regard test`: scores with confidence intervals."""

from typing import TYPE_CHECKING, Annotated, Any

from regard.cli.options import Encoding, Given, remedies
from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, configure_logging, option, print_json

if TYPE_CHECKING:
    from regard.runs.run import Evaluation


def evaluate_command(
    run: RunPath,
    data: Annotated[Given, argument("[DATA]...", "A file, or two aligned; unset, the validation rows.")] = None,
    encoding: Encoding = None,
    beam: Beam = None,
    stride: Annotated[int | None, option("For running text: the distance between evaluation windows.")] = None,
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
    configure_logging(quiet=quiet)
    from regard.runs.run import load

    with remedies():
        found = load(run, device=device).evaluate(data or None, encoding=encoding, stride=stride, **_options(beam))
    _print(found, json)


def test_command(
    run: RunPath,
    beam: Beam = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Open the sealed test set of a run, score the run on it, and record that in the ledger.

    Example:

      regard test runs/de-en --beam 5
    """
    configure_logging(quiet=quiet)
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
