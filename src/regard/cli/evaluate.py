"""`regard evaluate` and `regard test`: scores with confidence intervals."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Columns, Encoding, Given, SkipBad, remedies, split_names
from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, configure_logging, option, print_json

if TYPE_CHECKING:
    from regard.runs.evaluation import Evaluation


def evaluate_command(
    run: RunPath,
    data: Annotated[Given, argument("DATA", "A file, or two aligned; unset, the validation rows.")] = None,
    columns: Columns = None,
    encoding: Encoding = None,
    skip_bad: SkipBad = None,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Score rows of the sealed test set too; the ledger records it.")
    ] = False,
    beam: Beam = None,
    stride: Annotated[int | None, option("For running text: the distance between evaluation windows.")] = None,
    paths: Annotated[int | None, option("For events: simulated continuations of each subject.")] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Score a run on a file, and print each score with its 95 % interval.

    Where targets are labels or entities, a second table has precision, recall, F1 and support of each. The signatures
    of the scores, which state what they depend on, are in --json and in the report.

    Examples:

      regard evaluate runs/de-en test.tsv --beam 5

      regard evaluate runs/de-en test.de test.en --json

      regard evaluate runs/reviews more.csv --columns review,stars --skip-bad

      regard evaluate runs/shakespeare more.txt --stride 64

      regard evaluate runs/patients --paths 200
    """
    configure_logging(quiet=quiet)
    from regard.runs.run import load

    with remedies():
        found = load(run, device=device).evaluate(
            data or None,
            columns=split_names(columns),
            encoding=encoding,
            skip_bad=skip_bad,
            all_rows=all_rows,
            stride=stride,
            num_paths=paths,
            **_options(beam),
        )
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
        labels = {each.pop("label"): each for each in evaluation.label_records()}
        print_json({**evaluation.to_json(), **({"labels": labels} if labels else {})})
    else:
        print(evaluation)
