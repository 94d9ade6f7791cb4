"""`regard merge`: a run with LoRA as a run that needs no base."""

from typing import Annotated

import typer

from regard.cli.output import Json, Quiet, RunPath, argument, print_json, talk
from regard.errors import RunExistsError


def merge(
    run: RunPath,
    out: Annotated[str, argument("OUT", "The run folder to make.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in OUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add the corrections of a run with LoRA to the weights of its base, and write a run that stands alone.

    Examples:

      regard finetune minilm reviews.csv --lora --out runs/reviews

      regard merge runs/reviews runs/whole

      regard predict runs/whole "A film to remember."
    """
    talk(quiet=quiet)
    from regard.cli.training_options import remedies
    from regard.runs.merging import merge as start

    with remedies({RunExistsError: "the option is --overwrite"}):
        made = start(run, out, overwrite=overwrite)
    if json:
        print_json({"run": str(made)})
    else:
        print(made)
