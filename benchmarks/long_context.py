"""Kinds of attention on long inputs: a training step, the memory of decoding, and perplexity at an equal budget.

    python benchmarks/long_context.py [--device cpu|cuda] [--data FILE] [--json]

A training step with windows is timed beside one with full attention, on one sequence of each length. Decoding is timed
after a context of each length, and the bytes of the cache are counted. The perplexities are those of a small decoder of
bytes that is trained for the same number of steps with each kind of attention, on FILE, by default the training part of
wikitext-2; their intervals are over held-out windows.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.harness import make_parser, median_times, parse, print_results, regard_step
from regard.evaluation.intervals import mean_interval
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
TRAINED = {"cpu": [2_048, 4_096, 8_192], "cuda": [8_192, 16_384, 32_768], "tiny": [32, 64]}
DECODED = {"cpu": [2_048, 8_192, 32_768, 131_072], "cuda": [8_192, 32_768, 131_072], "tiny": [32, 64]}
MOST_FULL = 32_768
"""The longest context that full attention decodes: its cache takes gigabytes beyond."""
VOCAB = 4_096
ADAM = {"betas": (0.9, 0.95), "epsilon": 1e-8, "weight_decay": 0.1}
QUALITY = ContextSizes(text_length=512, text_steps=300, text_batch=4, num_windows=200, model_dim=64, learning_rate=3e-3)
TINY = ContextSizes(text_length=16, text_steps=2, text_batch=2, num_windows=5, model_dim=8, window=4)
Rows = list[dict[str, Any]]


def settings(size: str, kind: str) -> dict[str, Any]:
    """The settings of a preset with one kind of attention."""
    own = {"attention": kind, "window": WINDOWS[size]} if kind == "window" else {"attention": kind}
    return {**find_preset(PRESETS[size])[1], **own}


def training(size: str, device: str, rounds: int) -> Rows:
    """Milliseconds of a training step on one sequence, with full attention and with windows."""
    results: Rows = []
    for length in TRAINED[size]:
        steps = {}
        for kind in ("full", "window"):
            config = read_model_config(settings(size, kind))
            hardware = choose_hardware(device, "auto", config.model_dim)
            torch.manual_seed(0)
            tokens = torch.randint(4, VOCAB, (1, length), device=hardware.device)
            batch = WindowBatch(tokens, tokens.roll(-1, 1), None, tokens.numel())
            model = build_model(config, VOCAB)
            steps[kind] = regard_step(model, config, "language-modeling", batch, hardware, ADAM)
        seconds = median_times(steps, rounds=rounds, device=device, warm_up=1)
        results += [
            {"attention": kind, "length": length, "ms": 1e3 * time, "speedup": seconds["full"] / time}
            for kind, time in seconds.items()
        ]
    return results


@torch.inference_mode()
def decoding(size: str, device: str, rounds: int) -> Rows:
    """Milliseconds for a token after a context of each length, and the bytes of the cache."""
    results: Rows = []
    for kind in ("full", "window", "linear"):
        built = build_model(read_model_config(settings(size, kind)), VOCAB).to(device)
        model = prepare_for_inference(built, "bfloat16" if device == "cuda" else "float32").for_inference()
        assert isinstance(model, Transformer)
        token = torch.zeros(1, 1, dtype=torch.long, device=device)
        for length in DECODED[size]:
            if kind == "full" and length > MOST_FULL:
                continue
            state = model.static_state(1, length)

            step = partial(decode_one, model, token, state)
            seconds = median_times({"": step}, rounds=rounds, device=device, warm_up=2)[""]
            results.append(
                {"attention": kind, "length": length, "ms_per_token": 1e3 * seconds, "cache_bytes": state.num_bytes}
            )
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
    options = parse(parser, arguments)
    size, device = options.size, options.device
    trained = training(size, device, rounds=1 if options.tiny else 3)
    decoded = decoding(size, device, rounds=1 if options.tiny else 9)
    path = Path(options.data) if options.data else None if options.tiny else TEXT
    scored = perplexities(TINY if options.tiny else QUALITY, path)
    if not options.json:
        for row in trained:
            name = f"{row['attention']} at {row['length']:,}"
            print(f"training, {name:20}: {row['ms']:10,.0f} ms, {row['speedup']:.2f} x full")
        for row in decoded:
            name = f"{row['attention']} after {row['length']:,}"
            print(f"decoding, {name:20}: {row['ms_per_token']:8.2f} ms, cache {row['cache_bytes']:13,} bytes")
        for row in scored:
            middle, low, high = row["difference"]
            found = f"{row['perplexity']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
            print(f"text, {row['attention']:14}: perplexity {found}, loss {middle:+.4f} [{low:+.4f}, {high:+.4f}]")
    works = {"training": trained, "decoding": decoded, "text": scored}
    print_results(options, [{"work": work, **row} for work, rows in works.items() for row in rows], model=PRESETS[size])


if __name__ == "__main__":
    main()
