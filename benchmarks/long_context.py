"""Kinds of attention on long inputs: a training step, the memory of decoding, and perplexity at an equal budget.

    python benchmarks/long_context.py [--device cpu|cuda] [--data FILE] [--json]

A training step with windows is timed beside one with full attention, on one sequence of each length; on a GPU the model
of each preset and, at the longest, one with the shape of SmolLM2-135M, in bfloat16. The ratio is the time of full
attention by that of windows. Decoding is timed after a context of each length, and the bytes of the cache are counted;
their ratio is that to the shortest context. The perplexities are those of a small decoder of bytes that is trained for
the same number of steps with each kind of attention, on FILE, by default the training part of wikitext-2; their
intervals are over held-out windows. `--work` chooses among the three, `--length` one length of the training steps.
"""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.harness import make_parser, median_times, parse, print_results, regard_step
from lora_step import SMOLLM2
from regard.evaluation.intervals import mean_interval
from regard.interop.hf.llama import LLAMA
from regard.lab.context.kinds import ContextSizes, held_out_losses, kinds_of_attention, read_text, synthetic_text
from regard.models.family import build_model, read_model_config
from regard.models.presets import find_preset
from regard.models.transformer import Transformer
from regard.models.transformer.states import StaticCache
from regard.nn.inference import prepare_for_inference
from regard.tasks.language_modeling import WindowBatch
from regard.training.precision import choose_hardware

TEXT = Path(__file__).parents[2] / "shared/data/wikitext-2/wiki.train.tokens.xz"
PRESETS = {"cpu": "gpt-tiny", "cuda": "gpt-small", "tiny": "gpt-tiny"}
WINDOWS = {"cpu": 1_024, "cuda": 1_024, "tiny": 16}
# The longest first: FlexAttention is compiled for the first length, and for any length after that.
TRAINED = {
    "cpu": {"gpt-tiny": [8_192, 4_096, 2_048]},
    "cuda": {"gpt-small": [32_768, 16_384, 8_192], "smollm2": [32_768]},
    "tiny": {"gpt-tiny": [64, 32]},
}
DECODED = {"cpu": [2_048, 8_192, 32_768, 131_072], "cuda": [8_192, 32_768, 131_072], "tiny": [32, 64]}
MOST_FULL = 32_768
"""The longest context that full attention decodes: its cache takes gigabytes beyond."""
VOCAB = 4_096
ADAM = {"betas": (0.9, 0.95), "epsilon": 1e-8, "weight_decay": 0.1}
QUALITY = ContextSizes(text_length=512, text_steps=300, text_batch=4, num_windows=200, model_dim=64, learning_rate=3e-3)
TINY = ContextSizes(text_length=16, text_steps=2, text_batch=2, num_windows=5, model_dim=8, window=4)
WORKS = ("training", "decoding", "text")
Rows = list[dict[str, Any]]


def settings(size: str, kind: str, name: str) -> dict[str, Any]:
    """The settings of a preset, or of SmolLM2-135M, with one kind of attention."""
    own: dict[str, Any] = {"attention": kind, "dropout": 0.0}
    if kind == "window":
        own["window"] = WINDOWS[size]
    if name != "smollm2":
        return {**find_preset(name)[1], **own}
    return {**LLAMA.read_config({**SMOLLM2, "max_position_embeddings": 131_072}).model_dump(), **own}


def training(size: str, device: str, rounds: int, only: int | None = None) -> Rows:
    """Milliseconds of a training step on one sequence, with full attention and with windows, and the peak of memory."""
    results: Rows = []
    pairs = [(name, length) for name, lengths in TRAINED[size].items() for length in lengths]
    for name, length in (pair for pair in pairs if only in (None, pair[1])):
        seconds, peaks = {}, {}
        for kind in ("full", "window"):
            config = read_model_config(settings(size, kind, name))
            hardware = choose_hardware(device, "auto", config.model_dim)
            torch.manual_seed(0)
            tokens = torch.randint(4, VOCAB, (1, length), device=hardware.device)
            batch = WindowBatch(tokens, tokens.roll(-1, 1), None, tokens.numel())
            step = regard_step(build_model(config, VOCAB), config, "language-modeling", batch, hardware, ADAM)
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            seconds[kind] = median_times({"": step}, rounds=rounds, device=device, warm_up=2)[""]
            peaks[kind] = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
            del step
        results += [
            {"model": name, "attention": kind, "length": length, "ms": 1e3 * time, "mib": peaks[kind],
             "ratio": seconds["full"] / time}
            for kind, time in seconds.items()
        ]  # fmt: skip
    return results


@torch.inference_mode()
def decoding(size: str, device: str, rounds: int) -> Rows:
    """Milliseconds for a token after a context of each length, and the bytes of the cache."""
    results: Rows = []
    for kind in ("full", "window", "linear"):
        built = build_model(read_model_config(settings(size, kind, PRESETS[size])), VOCAB).to(device)
        model = prepare_for_inference(built, "bfloat16" if device == "cuda" else "float32").for_inference()
        assert isinstance(model, Transformer)
        token = torch.zeros(1, 1, dtype=torch.long, device=device)
        shortest = 0
        for length in DECODED[size]:
            if kind == "full" and length > MOST_FULL:
                continue
            state = model.static_state(1, length)
            seconds = median_times({"": partial(decode_one, model, token, state)}, rounds=rounds, device=device,
                                   warm_up=2)[""]  # fmt: skip
            shortest = shortest or state.num_bytes
            results.append(
                {"attention": kind, "length": length, "ms_per_token": 1e3 * seconds, "cache_bytes": state.num_bytes,
                 "ratio": state.num_bytes / shortest}
            )  # fmt: skip
    return results


def decode_one(model: Transformer, token: Tensor, state: StaticCache) -> None:
    """Process a token at the last position."""
    state.lengths.fill_(state.capacity - 1)
    model.step(token, state)


def perplexities(sizes: ContextSizes, path: Path | None) -> Rows:
    """The perplexity of a byte after the same number of steps, and the difference of the losses to full attention."""
    text = synthetic_text(4_000, seed=0) if path is None else read_text(str(path))
    results: Rows = []
    losses = {name: held_out_losses(values, text, sizes, seed=0) for name, values in kinds_of_attention(sizes).items()}
    for name, values in losses.items():
        middle, low, high = (math.exp(end) for end in mean_interval(values.tolist()))
        difference = mean_interval((values - losses["full"]).tolist())
        results.append({"attention": name, "perplexity": middle, "low": low, "high": high, "difference": difference})
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", metavar="FILE", help="a text file, by default that of wikitext-2")
    parser.add_argument("--work", choices=WORKS, action="append", help="this work only")
    parser.add_argument("--length", type=int, metavar="N", help="training steps at this length only")
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    options = parse(parser, arguments)
    size, device, works = options.size, options.device, options.work or WORKS
    path = Path(options.data) if options.data else None if options.tiny else TEXT
    found: dict[str, Rows] = {}
    if "training" in works:
        found["training"] = training(size, device, rounds=1 if options.tiny else 5, only=options.length)
    if "decoding" in works:
        found["decoding"] = decoding(size, device, rounds=1 if options.tiny else 9)
    if "text" in works:
        found["text"] = perplexities(TINY if options.tiny else QUALITY, path)
    for row in [] if options.json else found.get("training", []):
        name = f"{row['model']}, {row['attention']} at {row['length']:,}"
        print(f"training, {name:32}: {row['ms']:10,.1f} ms, {row['mib']:8,.0f} MiB, {row['ratio']:.2f} x full")
    for row in [] if options.json else found.get("decoding", []):
        name, ratio = f"{row['attention']} after {row['length']:,}", row["ratio"]
        print(
            f"decoding, {name:20}: {row['ms_per_token']:8.2f} ms, cache {row['cache_bytes']:13,} bytes, {ratio:.2f} x"
        )
    for row in [] if options.json else found.get("text", []):
        middle, low, high = row["difference"]
        score = f"{row['perplexity']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        print(f"text, {row['attention']:14}: perplexity {score}, loss {middle:+.4f} [{low:+.4f}, {high:+.4f}]")
    results = [{"work": work, **row} for work, rows in found.items() for row in rows]
    if options.out:
        Path(options.out).write_text(json.dumps({"torch": torch.__version__, "results": results}), encoding="utf-8")
    print_results(options, results, model=PRESETS[size])


if __name__ == "__main__":
    main()
