"""`regard certificate`: can this number be believed?"""

import shlex
from typing import Annotated

from regard.cli.output import Json, RunPath, option, print_json

_PIPED_WIDTH = 140
"""Columns of a table that nobody looks at in a terminal."""


def certificate(
    run: RunPath,
    metric: Annotated[str | None, option("Another score than the headline.")] = None,
    delta: Annotated[float, option("The chance with which a promise may fail.")] = 0.05,
    out: Annotated[str | None, option("Also write a figure (.png, .svg) or a page (.html).")] = None,
    json: Json = False,
) -> None:
    """Say what a run's score is worth: how often somebody looked, what can be promised, whether the test is sealed.

    Examples:

      regard certificate runs/de-en

      regard certificate runs/de-en --out certificate.html

      regard certificate runs/de-en --delta 0.01 --json
    """
    from regard.explanation.certificate import CertificateText, draw_certificate
    from regard.training.folder import RunFolder

    folder = RunFolder(run)
    folder.require()
    found = folder.certificate(metric, delta=delta)
    if out is not None:
        more = [] if metric is None else ["--metric", metric]
        draw_certificate(found, out, command=shlex.join(["regard", "certificate", run, *more]))
    if json:
        print_json({**found.to_json(), **({} if out is None else {"out": out})})
        return
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=_PIPED_WIDTH)).print(CertificateText(found), highlight=False)
    if out is not None:
        print(out)
