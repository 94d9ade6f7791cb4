"""The speed of generation, compared with transformers: models of the same shape with random weights.

    python benchmarks/generate.py [--device cpu|cuda] [--seconds N] [--json]

Each generates greedily, 256 tokens after a prompt of 32. The libraries are measured in turns of shuffled order; a
figure is the median. On a CPU each is measured with one thread and with all, and the better of the two counts. A
speedup above 1 means that regard is faster.

    regard              the engine, in the precision of the others
    regard, bfloat16    on a CPU, in bfloat16
    regard, 8 bits      on a CPU, with quantized weights
    dynamic, static     transformers' `generate`, with the cache that grows (its default) and with the static cache,
                        for which it compiles the model on a GPU

On a CPU a configuration that is much slower than the fastest of its library over the first tokens is not measured
further.
"""

import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common.harness import make_parser, parse, print_results, seconds_of
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.inference import prepare_for_inference

CACHES = ("dynamic", "static")
PROMPT_LENGTH, NEW_TOKENS, PROBE_TOKENS = 32, {"cpu": 256, "cuda": 256, "tiny": 6}, {"cpu": 16, "tiny": 3}
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
    """A model to generate with, and how many texts it generates at a time."""

    name: str
    settings: dict[str, Any]
    vocab_size: int
    batch_sizes: tuple[int, ...]


SMALL = {"num_layers": 6, "model_dim": 384, "num_heads": 6, "feedforward_dim": 1536}
LONG = {"num_layers": 30, "model_dim": 576, "num_heads": 9, "num_key_value_heads": 3, "feedforward_dim": 1536}
BASE = {"num_layers": 12, "model_dim": 768, "num_heads": 12, "feedforward_dim": 3072}
TINY = {"num_layers": 1, "model_dim": 16, "num_heads": 4, "num_key_value_heads": 2, "feedforward_dim": 32}
SHAPES = {
    "cpu": [
        Shape("GPT-2, 10.8 M", {**GPT2, **SMALL}, 65, (1,)),
        Shape("Llama, 135 M", {**LLAMA, **LONG}, 49_152, (1,)),
    ],
    "cuda": [Shape("GPT-2, 124 M, bfloat16", {**GPT2, **BASE}, 50_304, (1, 32, 256))],
    "tiny": [
        Shape("GPT-2, tiny", {**GPT2, **TINY, "num_key_value_heads": None}, 65, (2,)),
        Shape("Llama, tiny", {**LLAMA, **TINY}, 65, (1,)),
    ],
}
ALWAYS_MEASURED = ("regard", "transformers, dynamic")
MOST_TIMES_SLOWER = 1.5
"""A configuration that takes this many times as long as the fastest of its library is not measured further."""
Generate = Callable[[int], None]
"""Generates this number of tokens after each prompt."""
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


def ours(model: Transformer, prompts: list[list[int]]) -> Generate:
    engine = Engine(model, GenerationConfig(), end=None, num_slots=len(prompts))

    def generate(num_new: int) -> None:
        texts = engine.run([Request(prompt, limit=num_new) for prompt in prompts])
        assert all(len(text) == num_new for text in texts)

    return generate


def theirs(model: Any, prompts: list[list[int]], cache: str, device: str) -> Generate:
    tokens = torch.tensor(prompts, device=device)

    def generate(num_new: int) -> None:
        made = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=num_new, do_sample=False,
            cache_implementation=cache,
        )  # fmt: skip
        assert made.shape == (len(prompts), PROMPT_LENGTH + num_new)
        if device == "cuda":
            torch.cuda.synchronize()

    return generate


def contenders(shape: Shape, batch_size: int, device: str, caches: Sequence[str]) -> dict[str, Generate]:
    torch.manual_seed(0)
    prompts = torch.randint(shape.vocab_size, (batch_size, PROMPT_LENGTH)).tolist()
    model = Transformer(TransformerConfig.read(shape.settings), shape.vocab_size).to(device).eval()
    peer = peer_of(shape).to(device).eval()
    if device == "cuda":
        peer = peer.to(torch.bfloat16)
        made = {"regard": prepare_for_inference(model, "bfloat16")}
    else:
        made = {
            "regard": prepare_for_inference(model, "float32"),
            "regard, bfloat16": prepare_for_inference(model, "bfloat16"),
            "regard, 8 bits": prepare_for_inference(model, "float32", quantization="int8"),
        }
    found = {name: ours(one, prompts) for name, one in made.items()}
    return found | {f"transformers, {cache}": theirs(peer, prompts, cache, device) for cache in caches}


def on_threads(generators: dict[str, Generate], numbers: Iterable[int]) -> dict[Contender, Generate]:
    """Each with each number of threads."""

    def threaded(generate: Generate, number: int) -> Generate:
        def generated(num_new: int) -> None:
            torch.set_num_threads(number)
            generate(num_new)

        return generated

    return {(name, number): threaded(each, number) for name, each in generators.items() for number in numbers}


def promising(generators: dict[Contender, Generate], num_probed: int) -> dict[Contender, Generate]:
    """Those that may be the fastest of their library, and those of `ALWAYS_MEASURED` with one thread."""
    times: dict[Contender, float] = {}
    for contender, generate in generators.items():
        generate(2)
        times[contender] = min(seconds_of(lambda each=generate: each(num_probed)) for _ in range(3))
    kept = {}
    for (name, number), generate in generators.items():
        library = name.partition(",")[0]
        alike = {other: t for other, t in times.items() if other[0].partition(",")[0] == library}
        mine = min(t for other, t in alike.items() if other[0] == name)
        limit = MOST_TIMES_SLOWER * min(alike.values())
        if times[name, number] < limit or (number == 1 and (name in ALWAYS_MEASURED or mine < limit)):
            kept[name, number] = generate
    return kept


def measure(generators: dict[Contender, Generate], num_new: int, seconds: float) -> dict[Contender, float]:
    """The median time for all tokens of each, measured in turns; each has one turn at least."""
    times: dict[Contender, list[float]] = {contender: [] for contender in generators}
    rng, start, names = random.Random(0), time.perf_counter(), list(generators)
    while time.perf_counter() - start < seconds or not times[names[0]]:
        for contender in rng.sample(names, len(names)):
            times[contender].append(seconds_of(lambda each=generators[contender]: each(num_new)))
    return {contender: statistics.median(values) for contender, values in times.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, seconds=60.0)
    parser.add_argument("--batch", type=int, action="append", help="batches of this many texts only")
    parser.add_argument("--cache", choices=CACHES, action="append", help="this cache of transformers only")
    options = parse(parser, arguments)
    device, num_new, most_threads = options.device, NEW_TOKENS[options.size], torch.get_num_threads()
    warnings.filterwarnings("ignore", module="transformers")
    results = []
    for shape, batch_size in [(each, size) for each in SHAPES[options.size] for size in each.batch_sizes]:
        if options.batch and batch_size not in options.batch:
            continue
        generators = contenders(shape, batch_size, device, options.cache or CACHES)
        if device == "cpu":
            measured = promising(on_threads(generators, sorted({1, most_threads})), PROBE_TOKENS[options.size])
        else:
            measured = on_threads(generators, [1])
            for generate in measured.values():
                generate(num_new)  # records graphs, and compiles
        times = measure(measured, num_new, options.seconds)
        torch.set_num_threads(most_threads)
        fastest = min(seconds for (name, _), seconds in times.items() if name == "regard")
        for name in generators:
            by_threads = {number: seconds for (other, number), seconds in times.items() if other == name}
            if not by_threads:
                continue
            threads = min(by_threads, key=lambda number: by_threads[number])
            seconds = by_threads[threads]
            speedup, speed = seconds / fastest, batch_size * num_new / seconds
            figures = {"ms_per_step": 1e3 * seconds / num_new, "tokens_per_s": speed, "speedup": speedup}
            row = {"shape": shape.name, "batch_size": batch_size, "library": name, "threads": threads, **figures}
            results.append(row)
            if not options.json:
                with_what = f"{threads} thread(s)" if device == "cpu" else ""
                line = f"{shape.name:22} B={batch_size:<4} {name:22} {1e3 * seconds / num_new:8.2f} ms per step"
                print(f"{line}  {speed:9,.0f} tokens/s  {speedup:5.2f}x  {with_what}", flush=True)
    import transformers

    print_results(options, results, transformers=transformers.__version__)


if __name__ == "__main__":
    main()
