"""Instruction tuning: a strict format of answers, learned from generated instructions, and what is forgotten by it.

`instructions` tunes an imported chat model (`--base`, a run folder) by LoRA on up to 1,000 instructions whose answers
are one line of JSON. Measured on held-out prompts: the share of answers in the format, and of right ones; and the
perplexity on other text, the beginning of the test text of wikitext-2, before and after.
"""

import json
import lzma
import random
from pathlib import Path
from typing import Any

import torch

import regard

GOALS = {"format": 0.95, "perplexity_change": 0.02}
ROWS = TINY_ROWS = ("instructions",)
FORMAT = r'\{"kind": "[a-z]+", "answer": "[^"\n]*"\}'
OTHER_TEXT = Path(__file__).parents[3] / "shared" / "data" / "wikitext-2" / "wiki.test.tokens.xz"
NUM_CHARACTERS = 40_000
WORDS = (
    "river", "stone", "garden", "window", "letter", "bridge", "forest", "candle", "mirror", "basket", "planet",
    "silver", "winter", "summer", "doctor", "farmer", "violin", "pepper", "market", "castle", "island", "engine",
    "button", "ladder", "pillow", "rocket", "saddle", "tunnel", "velvet", "wagon",
)  # fmt: skip


def add_options(parser: Any) -> None:
    parser.add_argument("--base", help="the run folder of an imported model with a chat template")


def generate_instructions(count: int, seed: int) -> list[tuple[str, str]]:
    """Distinct prompts of six kinds, each with its answer in the format."""
    rng = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        one, other, first, second = rng.randint(10, 999), rng.randint(10, 999), rng.choice(WORDS), rng.choice(WORDS)
        kind, prompt, answer = rng.choice(
            [
                ("compare", f"Which number is larger, {one} or {other}?", str(max(one, other))),
                ("upper", f"Write the words {first} and {second} in capital letters.", f"{first} {second}".upper()),
                ("count", f"How many letters does {first}{one} have, digits not counted?", str(len(first))),
                ("join", f"Join {first} and {second} with a hyphen.", f"{first}-{second}"),
                ("first", f"What is the first letter of {first}, the word before {one}?", first[0]),
                ("order", f"Put {second}, {first} and {one} in alphabetical order, the number first.",
                 " ".join([str(one), *sorted([first, second])])),
            ]
        )  # fmt: skip
        found[prompt] = json.dumps({"kind": kind, "answer": answer})
    return list(found.items())


def measure(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
    """Tune, and measure the format and the perplexity; None without a base."""
    base, text = options.base, ""
    if options.tiny:
        base, text = tiny_base(folder), "a river and a stone. " * 30
    elif base is not None and OTHER_TEXT.is_file():
        text = lzma.open(OTHER_TEXT, "rt", encoding="utf-8").read(NUM_CHARACTERS)
    else:
        return None
    pairs = generate_instructions(60 if options.tiny else 1_000, options.seed)
    budget: dict[str, Any] = {"steps": 2, "device": "cpu"} if options.tiny else {"steps": options.steps}
    run = regard.finetune(
        base, [{"prompt": prompt, "completion": answer} for prompt, answer in pairs], out=folder / "tuned",
        method="lora", seed=options.seed, baseline=False, show_progress=False, **budget,
        settings={"task": {"format": FORMAT, "compare_answers": True, **({"max_length": 400} if options.tiny else {})},
                  "data": {"splits": [0.86, 0.04, 0.1]}},
    )  # fmt: skip
    before, after = (perplexity_of(base, each, text) for each in (regard.load(base).model, run.model))
    scores = run.test(max_tokens=8 if options.tiny else 60).scores
    return {
        "row": row,
        "instructions": len(pairs),
        "format": scores["format_match"].value,
        "interval": scores["format_match"].interval,
        "exact_match": scores["exact_match"].value,
        "answer_perplexity": scores["perplexity"].value,
        "perplexity_before": before,
        "perplexity_after": after,
        "perplexity_change": after / before - 1,
        "goals": GOALS,
    }


def perplexity_of(base: Any, model: Any, text: str) -> float:
    """The perplexity of a text by a model, in windows of the base's task."""
    task = regard.load(base).task
    found = task.likelihoods(model, task.row_batches([(text,)]), next(model.parameters()).device)
    return float(torch.tensor(found.mean).exp())


def tiny_base(folder: Path) -> Path:
    """A language model of a few weights, trained for one step."""
    regard.train(
        [(f"{word} and a {word}.",) for word in WORDS], out=folder / "base", task="language-modeling", model="gpt-tiny",
        tokenizer="bytes", steps=1, device="cpu", baseline=False, show_progress=False,
        settings={"task": {"window": 16}, "model": {"num_layers": 1, "model_dim": 16, "num_heads": 2}},
    )  # fmt: skip
    return folder / "base"


def row_text(found: dict[str, Any]) -> str:
    low, high = found["interval"] or (found["format"], found["format"])
    return (
        f"{found['row']}: format {found['format']:.3f} [{low:.3f}, {high:.3f}] (goal {GOALS['format']}), exact match "
        f"{found['exact_match']:.3f}; perplexity on other text {found['perplexity_before']:.3f} -> "
        f"{found['perplexity_after']:.3f} ({100 * found['perplexity_change']:+.2f} %, goal within 2 %)"
    )
