"""`regard export`: a run's model in the formats of others."""

from typing import Annotated, Any

import typer

from regard.cli.output import Json, Quiet, RunPath, print_json, talk
from regard.errors import RunExistsError


def export(
    run: RunPath,
    to: Annotated[str, typer.Option(help="hf, gguf, onnx, ctranslate2, or peft: the adapter alone.")],
    out: Annotated[str, typer.Option(help="The folder to make; of gguf a file.")],
    number_type: Annotated[
        str | None, typer.Option(help="Of gguf: F32, F16 or Q8_0. Unset: F16.", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the export in --out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a run's model for others to load: transformers, llama.cpp, ONNX Runtime, CTranslate2, peft.

    What was written is read back, and the largest difference of its scores is said; where they are not those of the
    model, nothing is left. A shape that a format has no words for is refused by the setting that stands in the way.

    Examples:

      regard export runs/pairs --to ctranslate2 --out pairs-ct2

      regard export runs/text --to gguf --number-type Q8_0 --out text.gguf

      regard export runs/reviews --to onnx --out reviews-onnx
    """
    talk(quiet=quiet)
    from regard.cli.training_options import remedies
    from regard.runs.export import export_model

    given: dict[str, Any] = {"to": to, "number_type": number_type}
    with remedies({RunExistsError: "the option is --overwrite"}):
        made = export_model(run, out, **given, overwrite=overwrite)
    if json:
        print_json(made.to_json())
    else:
        print(made.path)
