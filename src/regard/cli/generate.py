"""`regard generate` and `regard score`: text from a prompt, or images, and the log-probability of a text."""

import sys
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.output import Beam, Device, Json, Quiet, RunPath, argument, configure_logging, option, print_json
from regard.cli.predict import lines_of_stdin
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.runs.run import Run


def generate_command(
    run: RunPath,
    prompt: Annotated[str, argument("PROMPT", "The beginning of the text; unset, an empty one.")] = "",
    max_tokens: Annotated[int | None, option("The largest number of new tokens; unset, 200.")] = None,
    temperature: Annotated[
        float | None, option("0: greedy; 1: the model's distribution. Unset: 0.8 for text, 1 for images.")
    ] = None,
    top_k: Annotated[int | None, option("Sample among the k most probable tokens.")] = None,
    top_p: Annotated[float | None, option("Sample among the fewest tokens whose probabilities sum to P.")] = None,
    min_p: Annotated[float | None, option("Sample among tokens with at least P times the top probability.")] = None,
    beam: Beam = None,
    length_penalty: Annotated[
        float | None, option("Beam search ranks by log-probability / length ** P; 0: by log-probability alone.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="The number of texts, each with the next seed.")] = 1,
    best_of: Annotated[int | None, option("Print the best of so many texts, by --reward.")] = None,
    reward: Annotated[str | None, option("With --best-of: a run of a reward model, or module:function.")] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="Molecules: validity, uniqueness, novelty.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Answer the prompt, formatted by the chat template.")] = False,
    label: Annotated[str | None, typer.Option("--class", help="Class of generated images; unset, all.")] = None,
    count: Annotated[int | None, option("The number of images; unset, 16.")] = None,
    out: Annotated[str | None, option("Images as a grid (.png), or beside training images on a page (.html).")] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Generate text from a prompt, or answer it, printed as it is generated; with a model of images, images.

    Examples:

      regard generate runs/shakespeare "ROMEO:"

      regard generate runs/shakespeare "ROMEO:" --temperature 0.5 --max-tokens 500 --seed 7

      regard generate runs/shakespeare --samples 3 --json

      regard generate runs/shakespeare "ROMEO:" --beam 5 --length-penalty 0.6

      regard generate runs/smiles --samples 100 --max-tokens 100 --metrics --json

      regard generate smollm2 --chat "What is the capital of France?" --temperature 0

      regard generate runs/base "Dear customer," --best-of 16 --reward runs/reward

      regard generate runs/digits --class 3 --count 16 --out grid.png
    """
    configure_logging(quiet=quiet)
    from regard.evaluation.tables import format_scores
    from regard.runs.run import load
    from regard.tasks.capabilities import ImageGenerator

    loaded = load(run, device=device)
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "max_tokens": max_tokens,
             "beam_size": beam, "length_penalty": length_penalty}  # fmt: skip
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if isinstance(loaded.task, ImageGenerator) or label is not None or count is not None or out is not None:
        if prompt or chat or samples != 1 or max_tokens is not None or beam is not None:
            raise ConfigError(
                "an image has no prompt: --class, --count and --out are for images, and no text with them"
            )
        _draw(loaded, 16 if count is None else count, label, out, {**options, "seed": seed}, json=json)
        return
    is_beam = beam is not None and beam > 1
    if is_beam and (chat or samples != 1 or best_of is not None):
        raise ConfigError(
            "beam search gives one continuation of a prompt: --beam is without --samples, --best-of and --chat"
        )
    if length_penalty is not None and not is_beam:
        raise ConfigError(f"--length-penalty needs --beam of at least 2, got {length_penalty:g} without it")
    if not is_beam:
        options.setdefault("temperature", 0.8)
    if best_of is not None or reward is not None:
        if best_of is None or reward is None:
            raise ConfigError("--best-of and --reward belong together: a number of texts, and what ranks them")
        if chat or metrics:
            raise ConfigError("--best-of is for a prompt: it has no effect with --chat and --metrics")
        _print_best(loaded, prompt, best_of, reward, samples, {**options, "seed": seed}, json=json)
        return
    texts = []
    for number in range(samples):
        stream = loaded.chat if chat else loaded.stream
        pieces = (
            iter([loaded.generate(prompt, **options)]) if is_beam else stream(prompt, seed=seed + number, **options)
        )
        if json:
            texts.append("".join(pieces))
            continue
        first = next(pieces, "")  # so that an error is reported before anything is printed
        if number:
            print("---")
        sys.stdout.write("" if chat or loaded.task.answers_prompts else prompt)
        text = ""
        for piece in chain([first], pieces):
            sys.stdout.write(piece)
            sys.stdout.flush()
            text += piece
        texts.append(text)
        print()
    scores = loaded.score_samples([prompt + text for text in texts]) if metrics else []
    if json:
        found = [{"seed": seed + number, "text": text} for number, text in enumerate(texts)]
        measured = {"scores": {score.name: score.to_json() for score in scores}} if metrics else {}
        print_json({"prompt": prompt, "texts": found, **measured})
    elif scores:
        print(format_scores({score.name: score for score in scores}, None, num_rows=len(texts)))


def _print_best(
    run: "Run", prompt: str, best_of: int, reward: str, samples: int, options: dict[str, Any], *, json: bool
) -> None:
    """Print the best of several texts, as often as samples are wanted."""
    found = [
        {"seed": options["seed"] + number * best_of, **vars(best)}
        for number in range(samples)
        for best in [
            run.best_of(prompt, best_of, reward=reward, **{**options, "seed": options["seed"] + number * best_of})
        ]
    ]
    if json:
        print_json({"prompt": prompt, "best_of": best_of, "reward": reward, "texts": found})
        return
    for number, each in enumerate(found):
        if number:
            print("---")
        print(f"{prompt}{each['text']}")


def _draw(run: "Run", count: int, label: str | None, out: str | None, options: dict[str, Any], *, json: bool) -> None:
    """Write images to a file."""
    from regard.tasks.capabilities import ImageGenerator

    if out is None and isinstance(run.task, ImageGenerator):
        raise ConfigError("images are written to a file: --out grid.png, or --out page.html")
    run.draw(count, label=label, out=out, **options)
    if json:
        print_json({"out": out, "class": label, "count": count})
    else:
        print(out)


def score_command(
    run: RunPath,
    texts: Annotated[list[str] | None, argument("TEXT", "Texts; unset, the lines of stdin.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also the probability of each token.")] = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Print the log-probability of each text, its end included, by the chain rule.

    A line of the output is the log-probability in nats, the perplexity, the bits per byte, and the text.

    Examples:

      regard score runs/shakespeare "To be, or not to be"

      regard score runs/shakespeare "to be" "be to" --tokens --json
    """
    configure_logging(quiet=quiet)
    from regard.runs.run import load

    given = texts or [line for line in lines_of_stdin() if line.strip()]
    if not given:
        raise ConfigError("there is no text to score")
    scores = load(run, device=device).score(given)
    if json:
        rows = [
            each.to_json()
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
