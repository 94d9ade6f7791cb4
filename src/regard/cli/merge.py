"""`regard merge`: a run with LoRA as a run that needs no base."""

from typing import Annotated

import typer

from regard.cli.output import Json, Quiet, RunPath, argument, configure_logging, print_json
from regard.errors import RunExistsError


def merge_command(
    run: RunPath,
    out: Annotated[str, argument("OUT", "The run folder to create.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in OUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge the low-rank updates of a run with LoRA into the weights of its base, and write a run that needs no base.

    Examples:

      regard finetune minilm reviews.csv --lora --out runs/reviews

      regard merge runs/reviews runs/whole

      regard predict runs/whole "A film to remember."
    """
    configure_logging(quiet=quiet)
    from regard.cli.options import remedies
    from regard.runs.merge import merge

    with remedies({RunExistsError: "the option is --overwrite"}):
        made = merge(run, out, overwrite=overwrite)
    if json:
        print_json({"run": str(made)})
    else:
        print(made)
