"""`regard export`: write the model of a run in the format of another library."""

from typing import Annotated, Any

import typer

from regard.cli.output import Json, Quiet, RunPath, configure_logging, print_json
from regard.errors import RunExistsError


def export_command(
    run: RunPath,
    to: Annotated[str, typer.Option(help="hf, gguf, onnx, ctranslate2, or peft (only the adapter).")],
    out: Annotated[str, typer.Option(help="The folder to create; for gguf a file.")],
    number_type: Annotated[
        str | None, typer.Option(help="For gguf: F32, F16 or Q8_0. Unset: F16.", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the export in --out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Export a model to transformers, llama.cpp, ONNX Runtime, CTranslate2 or peft.

    The export is read back and its outputs are compared with those of the model; the largest difference is printed. If
    they are not the same, the export is removed. A setting that the format cannot represent is an error that names it.

    Examples:

      regard export runs/pairs --to ctranslate2 --out pairs-ct2

      regard export runs/text --to gguf --number-type Q8_0 --out text.gguf

      regard export runs/reviews --to onnx --out reviews-onnx
    """
    configure_logging(quiet=quiet)
    from regard.cli.options import remedies
    from regard.runs.export import export_model

    options: dict[str, Any] = {"to": to, "number_type": number_type}
    with remedies({RunExistsError: "the option is --overwrite"}):
        exported = export_model(run, out, **options, overwrite=overwrite)
    if json:
        print_json(exported.to_json())
    else:
        print(exported.path)
