"""`regard import`: a model that others have trained, as a run folder."""

from typing import Annotated

import typer

from regard.cli.output import Json, Quiet, argument, option, print_json, talk
from regard.errors import BaseMissingError, RunExistsError


def import_(
    path: Annotated[str, argument("PATH", "A folder in Hugging Face's layout or peft's, a GGUF or llama2.c file.")],
    out: Annotated[str, argument("OUT", "The run folder to make.")],
    base: Annotated[str | None, option("The run folder that an adapter of peft is for.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in OUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Bring a pretrained model in: weights, tokenizer and chat template, checked and under our names.

    Known are BERT, RoBERTa, DistilBERT, GPT-2, Llama, Mistral, Qwen, T5, BART, Marian and ViT; pickled checkpoints
    are refused, for reading one runs whatever code its author put there.

    Examples:

      regard import all-MiniLM-L6-v2/ minilm

      regard import SmolLM2-135M-Instruct.Q4_1.gguf smollm2

      regard finetune minilm reviews.csv --lora

      regard import their-adapter/ runs/theirs --base smollm2
    """
    talk(quiet=quiet)
    from regard.cli.training_options import remedies
    from regard.interop.importing import import_model

    given = {RunExistsError: "the option is --overwrite", BaseMissingError: "the option is --base"}
    with remedies(given):
        made = import_model(path, out, base=base, overwrite=overwrite)
    if json:
        print_json({"run": str(made)})
    else:
        print(made)
