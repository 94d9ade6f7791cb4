"""Writing beside transformers: models of the same shape, on the same machine, in one run.

    python benchmarks/generate.py [--device cpu|cuda] [--seconds N] [--json]

Each writes greedily, 256 tokens behind a prompt of 32, with random weights. The
contenders take turns in a shuffled order, so that a machine that slows down
slows all of them down; a figure is the median. On a CPU each takes its turns with
one thread and with all, and has the better of the two. Ratios above 1 say that
regard is faster.

    regard              the engine, with a model that `ready` made, in the precision of the others
    regard, bfloat16    on a CPU, the same in half the precision
    regard, 8 bits      on a CPU, with quantised weights
    dynamic, static     transformers' `generate`, with the cache that grows (its default) and with the one of fixed
                        size, for which it compiles the model on a GPU by itself

On a CPU those that are far slower than their like over the first few tokens are left out of the rest.
"""

import argparse
import json
import platform
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.generation.inference import ready
from regard.generation.quantization import quantized
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.precision import keep_memory

CACHES = ("dynamic", "static")
PROMPT, NEW, PROBED = 32, 256, 16
GPT2 = {
    "encoder_layers": 0, "positions": "learned", "activation": "gelu-tanh", "block": "pre-norm", "dropout": 0.0,
    "scale_embeddings": False, "context_length": 1024,
}  # fmt: skip
LLAMA = {
    "encoder_layers": 0, "positions": "rotary", "activation": "swiglu", "block": "pre-norm", "norm": "rms",
    "bias": False, "dropout": 0.0, "scale_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A model to write with, and how many texts it writes at a time."""

    name: str
    settings: dict[str, Any]
    vocab_size: int
    batch_sizes: tuple[int, ...]


SMALL = {"num_layers": 6, "model_dim": 384, "num_heads": 6, "feedforward_dim": 1536}
LONG = {"num_layers": 30, "model_dim": 576, "num_heads": 9, "num_key_value_heads": 3, "feedforward_dim": 1536}
BASE = {"num_layers": 12, "model_dim": 768, "num_heads": 12, "feedforward_dim": 3072}
SHAPES = {
    "cpu": [
        Shape("GPT-2, 10.8 M", {**GPT2, **SMALL}, 65, (1,)),
        Shape("Llama, 135 M", {**LLAMA, **LONG}, 49_152, (1,)),
    ],
    "cuda": [Shape("GPT-2, 124 M, bfloat16", {**GPT2, **BASE}, 50_304, (1, 32, 256))],
}
FIRST = ("regard", "transformers, dynamic")
"""They have their turns in any case."""
WORTH_A_TURN = 1.5
"""What takes longer than this many times the fastest of its library has no further turn."""
Write = Callable[[int], None]
"""Writes so many tokens behind each prompt."""
Contender = tuple[str, int]
"""A name, and a number of threads."""


def peer_of(shape: Shape) -> Any:
    """The model of transformers that has this shape."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    wanted, tokens = shape.settings, {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    if wanted["positions"] == "learned":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=shape.vocab_size, n_positions=wanted["context_length"], n_embd=wanted["model_dim"],
                n_layer=wanted["num_layers"], n_head=wanted["num_heads"], n_inner=wanted["feedforward_dim"], **tokens,
            )
        )  # fmt: skip
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab_size, hidden_size=wanted["model_dim"], num_hidden_layers=wanted["num_layers"],
            num_attention_heads=wanted["num_heads"], num_key_value_heads=wanted["num_key_value_heads"],
            intermediate_size=wanted["feedforward_dim"], tie_word_embeddings=True, **tokens,
        )
    )  # fmt: skip


def ours(model: Transformer, prompts: list[list[int]]) -> Write:
    engine = Engine(model, GenerationConfig(), end=None, num_slots=len(prompts))

    def write(num_new: int) -> None:
        texts = engine.run([Request(prompt, limit=num_new) for prompt in prompts])
        assert all(len(text) == num_new for text in texts)

    return write


def theirs(model: Any, prompts: list[list[int]], cache: str, device: str) -> Write:
    tokens = torch.tensor(prompts, device=device)

    def write(num_new: int) -> None:
        made = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=num_new, do_sample=False,
            cache_implementation=cache,
        )  # fmt: skip
        assert made.shape == (len(prompts), PROMPT + num_new)
        if device == "cuda":
            torch.cuda.synchronize()

    return write


def contenders(shape: Shape, batch_size: int, device: str, caches: Sequence[str]) -> dict[str, Write]:
    torch.manual_seed(0)
    prompts = torch.randint(shape.vocab_size, (batch_size, PROMPT)).tolist()
    model = Transformer(TransformerConfig.read(shape.settings), shape.vocab_size).to(device).eval()
    peer = peer_of(shape).to(device).eval()
    if device == "cuda":
        peer = peer.to(torch.bfloat16)
        made = {"regard": ready(model, "bfloat16")}
    else:
        made = {
            "regard": ready(model, "float32"),
            "regard, bfloat16": ready(model, "bfloat16"),
            "regard, 8 bits": quantized(model),
        }
    writers = {name: ours(one, prompts) for name, one in made.items()}
    return writers | {f"transformers, {cache}": theirs(peer, prompts, cache, device) for cache in caches}


def on_threads(writers: dict[str, Write], numbers: Iterable[int]) -> dict[Contender, Write]:
    """Each with each number of threads."""

    def threaded(write: Write, number: int) -> Write:
        def written(num_new: int) -> None:
            torch.set_num_threads(number)
            write(num_new)

        return written

    return {(name, number): threaded(write, number) for name, write in writers.items() for number in numbers}


def promising(writers: dict[Contender, Write]) -> dict[Contender, Write]:
    """Those that may be the fastest of their library; these with one thread in any case, which nobody can hold up."""
    times: dict[Contender, float] = {}
    for contender, write in writers.items():
        write(2)
        times[contender] = min(_timed(write, PROBED) for _ in range(3))
    kept = {}
    for (name, number), write in writers.items():
        alike = {other: t for other, t in times.items() if other[0].partition(",")[0] == name.partition(",")[0]}
        mine = min(t for other, t in alike.items() if other[0] == name)
        enough = WORTH_A_TURN * min(alike.values())
        if times[name, number] < enough or (number == 1 and (name in FIRST or mine < enough)):
            kept[name, number] = write
    return kept


def measure(writers: dict[Contender, Write], seconds: float) -> dict[Contender, float]:
    """The median time for all tokens of each, taken in turns; each has one turn at least."""
    times: dict[Contender, list[float]] = {contender: [] for contender in writers}
    rng, start, contenders = random.Random(0), time.perf_counter(), list(writers)
    while time.perf_counter() - start < seconds or not times[contenders[0]]:
        for contender in rng.sample(contenders, len(contenders)):
            times[contender].append(_timed(writers[contender], NEW))
    return {contender: statistics.median(values) for contender, values in times.items()}


def _timed(write: Write, num_new: int) -> float:
    before = time.perf_counter()
    write(num_new)
    return time.perf_counter() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, action="append", help="batches of this many texts only")
    parser.add_argument("--cache", choices=CACHES, action="append", help="of transformers, one only")
    parser.add_argument("--seconds", type=float, default=60.0, help="measuring time for each shape and batch size")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device: str = options.device
    most_threads = torch.get_num_threads()
    if device == "cpu":
        keep_memory()
    else:
        torch.set_float32_matmul_precision("high")
    warnings.filterwarnings("ignore", module="transformers")
    results = []
    for shape, batch_size in [(each, size) for each in SHAPES[device] for size in each.batch_sizes]:
        if options.batch and batch_size not in options.batch:
            continue
        writers = contenders(shape, batch_size, device, options.cache or CACHES)
        if device == "cpu":
            taking_part = promising(on_threads(writers, sorted({1, most_threads})))
        else:
            taking_part = on_threads(writers, [1])
            for write in taking_part.values():
                write(NEW)  # records graphs, and compiles
        times = measure(taking_part, options.seconds)
        ours_best = min(seconds for (name, _), seconds in times.items() if name == "regard")
        for name in writers:
            mine = {number: seconds for (other, number), seconds in times.items() if other == name}
            if not mine:
                continue
            threads = min(mine, key=lambda number: mine[number])
            seconds = mine[threads]
            ratio, speed = seconds / ours_best, batch_size * NEW / seconds
            figures = {"ms_per_step": 1e3 * seconds / NEW, "tokens_per_s": speed, "regard_is_times_as_fast": ratio}
            results.append(
                {"shape": shape.name, "batch_size": batch_size, "library": name, "threads": threads, **figures}
            )
            if not options.json:
                with_what = f"{threads} thread(s)" if device == "cpu" else ""
                line = f"{shape.name:22} B={batch_size:<4} {name:22} {1e3 * seconds / NEW:8.2f} ms a step"
                print(f"{line}  {speed:9,.0f} tokens/s  {ratio:5.2f}x  {with_what}", flush=True)
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {most_threads} cores"
    import transformers

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(
        json.dumps({"machine": machine, **versions, "results": results}) if options.json else f"{machine}, {versions}"
    )


if __name__ == "__main__":
    main()
