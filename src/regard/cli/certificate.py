"""`regard certificate`: how far a run's score can be trusted."""

import shlex
from typing import Annotated

from regard.cli.output import Json, RunPath, option, print_json

_PIPED_WIDTH = 140
"""Columns of a table that is not printed to a terminal."""


def certificate_command(
    run: RunPath,
    metric: Annotated[str | None, option("The score to certify; by default the headline score.")] = None,
    delta: Annotated[float, option("The probability with which a bound may fail.")] = 0.05,
    out: Annotated[str | None, option("Also write a figure (.png, .svg) or a page (.html).")] = None,
    json: Json = False,
) -> None:
    """Print bounds on a run's true score, how many candidates were evaluated, and whether the test set is sealed.

    Examples:

      regard certificate runs/de-en

      regard certificate runs/de-en --out certificate.html

      regard certificate runs/de-en --delta 0.01 --json
    """
    from regard.explanation.report import certificate_summary
    from regard.runs.folder import RunFolder

    folder = RunFolder(run)
    folder.require()
    found = folder.certificate(metric, delta=delta)
    more = [] if metric is None else ["--metric", metric]
    summary = certificate_summary(found, command=shlex.join(["regard", "certificate", run, *more]))
    if out is not None:
        summary.save(out)
    if json:
        print_json({**found.to_json(), **({} if out is None else {"out": out})})
        return
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=_PIPED_WIDTH)).print(summary, highlight=False)
    if out is not None:
        print(out)
