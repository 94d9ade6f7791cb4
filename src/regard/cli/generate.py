"""`regard generate` and `regard score`: what a language model writes, and how probable it holds a text."""

import sys
from itertools import chain
from typing import Annotated, Any

import typer

from regard.cli.output import Device, Json, Quiet, RunPath, argument, option, print_json, talk
from regard.cli.predict import lines_of_stdin
from regard.errors import ConfigError


def generate(
    run: RunPath,
    prompt: Annotated[str, argument("[PROMPT]", "How the text begins; unset, the model begins it.")] = "",
    max_length: Annotated[int | None, option("The most tokens to write; unset, 200.")] = None,
    temperature: Annotated[float, typer.Option(help="0: the likeliest token; 1: as the model has it.")] = 0.8,
    top_k: Annotated[int | None, option("Sample among the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, option("Sample among the tokens holding this probability.")] = None,
    min_p: Annotated[float | None, option("Sample among tokens at least this share as likely as the best.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="How many texts to write, each with the next seed.")] = 1,
    chat: Annotated[bool, typer.Option("--chat", help="Answer the prompt as a question.")] = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Let a language model go on from a prompt, or answer it; the text appears as it is written.

    Examples:

      regard generate runs/shakespeare "ROMEO:"

      regard generate runs/shakespeare "ROMEO:" --temperature 0.5 --max-length 500 --seed 7

      regard generate runs/shakespeare --samples 3 --json

      regard generate smollm2 --chat "What is the capital of France?" --temperature 0
    """
    talk(quiet=quiet)
    from regard.runs.run import load

    loaded = load(run, device=device)
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "max_length": max_length}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    texts = []
    for number in range(samples):
        write = loaded.chat if chat else loaded.stream
        pieces = write(prompt, seed=seed + number, **options)
        if json:
            texts.append({"seed": seed + number, "text": "".join(pieces)})
            continue
        first = next(pieces, "")  # whatever is wrong is told before anything is printed
        if number:
            print("---")
        for piece in chain([first if chat else prompt + first], pieces):
            sys.stdout.write(piece)
            sys.stdout.flush()
        print()
    if json:
        print_json({"prompt": prompt, "texts": texts})


def score(
    run: RunPath,
    texts: Annotated[list[str] | None, argument("[TEXT]...", "Texts; unset, the lines of stdin.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also the probability of each token.")] = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Print the log-probability of each text, from its beginning to its end, by the chain rule.

    A line of the output is the log-probability in nats, the perplexity, the bits per byte, and the text.

    Examples:

      regard score runs/shakespeare "To be, or not to be"

      regard score runs/shakespeare "to be" "be to" --tokens --json
    """
    talk(quiet=quiet)
    from regard.runs.run import load

    given = texts or [line for line in lines_of_stdin() if line.strip()]
    if not given:
        raise ConfigError("there is no text to score")
    scores = load(run, device=device).score(given)
    if json:
        rows = [
            {"text": each.text, "log_probability": each.log_probability, "perplexity": each.perplexity,
             "bits_per_byte": each.bits_per_byte}
            | ({"tokens": each.tokens, "log_probabilities": each.log_probabilities} if tokens else {})
            for each in scores
        ]  # fmt: skip
        print_json({"scores": rows})
        return
    for each in scores:
        text = " ".join(each.text.splitlines())
        print(f"{each.log_probability:.4f}\t{each.perplexity:.3f}\t{each.bits_per_byte:.4f}\t{text}")
        if tokens:
            for piece, value in zip(each.tokens, each.log_probabilities, strict=True):
                print(f"  {value:9.4f}  {piece!r}")
