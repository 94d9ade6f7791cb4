"""`regard import`: write a pretrained model as a run folder."""

from typing import Annotated

import typer

from regard.cli.output import Json, Quiet, argument, configure_logging, option, print_json
from regard.errors import BaseMissingError, RunExistsError


def import_command(
    path: Annotated[
        str, argument("PATH", "A Hugging Face folder, a GGUF or llama2.c file, or a LoRA adapter of peft.")
    ],
    out: Annotated[str, argument("OUT", "The run folder to create.")],
    format: Annotated[
        str | None, option("The importer, such as hf or gguf. Unset: the one that recognizes PATH.")
    ] = None,
    base: Annotated[str | None, option("The run folder that an adapter was trained on.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in OUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Import a pretrained model with its tokenizer and chat template.

    Supported architectures: BERT, RoBERTa, DistilBERT, GPT-2, Llama, Mistral, Qwen, T5, BART, Marian and ViT. Pickled
    checkpoints are rejected, since loading one can run any code. Installed packages can add formats.

    Examples:

      regard import all-MiniLM-L6-v2/ minilm

      regard import SmolLM2-135M-Instruct.Q4_1.gguf smollm2

      regard finetune minilm reviews.csv --lora

      regard import their-adapter/ runs/theirs --base smollm2
    """
    configure_logging(quiet=quiet)
    from regard.cli.options import remedies
    from regard.runs.importing import import_model

    options = {RunExistsError: "the option is --overwrite", BaseMissingError: "the option is --base"}
    with remedies(options):
        folder = import_model(path, out, format=format, base=base, overwrite=overwrite)
    if json:
        print_json({"run": str(folder)})
    else:
        print(folder)
