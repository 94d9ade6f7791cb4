"""The calculator of `regard plan` beside what is measured: peak memory and time of a step on this device.

    python benchmarks/plan.py [--device cpu|cuda] [--seconds 1] [--no-compile] [--json]

For each shape a step of regard's trainer is measured, with AdamW and without an average of the weights, and computed by
`regard.plan`. A ratio above 1 means that the calculator predicts more. Below are the rates of single kernels as shares
of the data sheet, which `regard.training.plan.accelerators` states for each device: products, attention at two lengths,
and a sum of two large tensors. On a CPU memory is not measured, and everything runs on one thread.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from common.harness import make_parser, median_times, parse, print_results, regard_step
from regard.models.family import build_model, read_model_config
from regard.models.presets import find_preset
from regard.tasks.language_modeling import WindowBatch
from regard.tasks.seq2seq import PairBatch
from regard.training.plan import ACCELERATORS, Accelerator, plan
from regard.training.precision import choose_hardware


@dataclass(frozen=True)
class Shape:
    """What is measured: so many rows of so many tokens."""

    preset: str
    rows: int
    length: int
    vocab_size: int
    model: dict[str, Any] = field(default_factory=dict)
    compiled: bool = False


_BASE = {"num_layers": 6, "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048}
SHAPES = {
    "cuda": [
        Shape("gpt2-base", 8, 1024, 50_304, {"dropout": 0.0}),
        Shape("gpt2-base", 64, 1024, 50_304, {"dropout": 0.0}),
        Shape("gpt-base", 16, 1024, 32_000),
        Shape("llama-big", 16, 1024, 32_000),
        Shape("llama-big", 16, 1024, 32_000, {"num_layers": 32, "model_dim": 2048, "feedforward_dim": 5632}),
        Shape("gpt-small", 32, 1024, 8_192),
        Shape("gpt-small", 1, 32_768, 8_192),
        Shape("base", 256, 64, 32_000, _BASE),
        Shape("lstm-small", 32, 64, 32_000),
        Shape("gpt2-base", 64, 1024, 50_304, {"dropout": 0.0}, compiled=True),
    ],
    "cpu": [
        Shape("gpt2-tiny", 8, 128, 8_192),
        Shape("gpt2-small", 4, 256, 8_192, {"dropout": 0.0}),
        Shape("tiny", 32, 32, 8_000),
        Shape("lstm", 32, 32, 8_000),
    ],
    "tiny": [Shape("gpt2-tiny", 2, 8, 64), Shape("tiny", 2, 8, 64)],
}
ADAM = {"betas": (0.9, 0.95), "epsilon": 1e-8, "weight_decay": 0.1}
PRODUCT, ATTENTION, NUMBERS = (
    {"cuda": 8192, "cpu": 1024, "tiny": 16},
    {"cuda": [1024, 16_384], "cpu": [256, 1024], "tiny": [8, 16]},
    {"cuda": 1 << 28, "cpu": 1 << 24, "tiny": 1 << 8},
)
_GIB = 2**30


def find_device(device: str) -> Accelerator:
    """The entry of this device; the H200 for a GPU that has none."""
    name = torch.cuda.get_device_name().lower().replace(" ", "") if device == "cuda" else "cpu"
    return next((each for key, each in ACCELERATORS.items() if key in name), ACCELERATORS["h200"])


def measure(shape: Shape, device: str, seconds: float, rounds: int) -> dict[str, Any]:
    """One shape: measured, computed, and the ratio."""
    config = read_model_config({**find_preset(shape.preset)[1], **shape.model})
    hardware = choose_hardware(device, "auto", config.model_dim)
    torch.manual_seed(0)
    tokens = torch.randint(4, shape.vocab_size, (shape.rows, shape.length), device=hardware.device)
    count = tokens.numel()
    if config.encoder_depth:
        batch, task = PairBatch(tokens, None, tokens, tokens.roll(-1, 1), count, 2 * count), "seq2seq"
    else:
        batch, task = WindowBatch(tokens, tokens.roll(-1, 1), None, count), "language-modeling"
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    with torch.device(hardware.device):  # where a billion weights are initialized in no time
        model = build_model(config, shape.vocab_size)
    step = regard_step(model, config, task, batch, hardware, ADAM, compiled=shape.compiled)
    took = median_times({"step": step}, seconds, rounds=rounds, device=device)["step"]
    peak = torch.cuda.max_memory_allocated() - before if device == "cuda" else None
    accelerator = find_device(device)
    computed = plan(
        shape.preset, gpus=1, hardware=accelerator.name, settings={"model": shape.model}, vocab_size=shape.vocab_size,
        batch_tokens=count, context=shape.length, precision=hardware.precision, ema=False, compile=shape.compiled,
    ).rows[0]  # fmt: skip
    return {
        "shape": f"{shape.preset} {config.model_dim} wide, {shape.rows} x {shape.length}",
        "compiled": shape.compiled,
        "precision": hardware.precision,
        "ms": 1e3 * took,
        "planned_ms": 1e3 * computed.time.total,
        "time_ratio": computed.time.total / took,
        "limit": computed.time.limit,
        "peak_gib": None if peak is None else peak / _GIB,
        "planned_gib": computed.memory.peak / _GIB,
        "memory_ratio": None if peak is None else computed.memory.peak / peak,
        "tokens_per_s": count / took,
    }


def rates(size: str, device: str, seconds: float, rounds: int) -> dict[str, float]:
    """The rates of single kernels, as shares of the data sheet."""
    accelerator, precision = find_device(device), "bfloat16" if device == "cuda" else "float32"
    dtype, width = getattr(torch, precision), PRODUCT[size]
    best = accelerator.flops[precision]
    one, other = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    numbers = torch.randn(NUMBERS[size], device=device)
    found = {}

    def timed(name: str, work: Any, amount: float) -> None:
        found[name] = amount / median_times({name: work}, seconds, rounds=rounds, device=device)[name]

    timed("product_share", lambda: one @ other, 2 * width**3 / best)
    timed("bandwidth_share", lambda: torch.add(numbers, numbers), 2 * numbers.nbytes / accelerator.bandwidth)
    for length in ATTENTION[size]:
        heads = max(1, ATTENTION[size][-1] // length)
        q, k, v = (torch.randn(heads, 12, length, 64, device=device, dtype=dtype) for _ in range(3))
        work = 2 * q.numel() * length  # two products, half of which is masked
        timed(
            f"attention_share_at_{length}",
            lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            work / best,
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, seconds=1.0)
    parser.add_argument("--no-compile", action="store_true", help="leave out the shape that is compiled")
    options = parse(parser, arguments)
    size, device = options.size, options.device
    if device == "cpu":
        torch.set_num_threads(1)
    rounds = 1 if options.tiny else 4
    results = []
    for shape in SHAPES[size]:
        if shape.compiled and options.no_compile:
            continue
        row = measure(shape, device, options.seconds, rounds)
        results.append(row)
        if not options.json:
            memory = ""
            if row["peak_gib"] is not None:
                memory = f"  {row['peak_gib']:7.2f} GiB, planned {row['planned_gib']:7.2f} ({row['memory_ratio']:.2f})"
            name = row["shape"] + (", compiled" if shape.compiled else "")
            print(f"{name:42} {row['ms']:9.2f} ms, planned {row['planned_ms']:9.2f} ({row['time_ratio']:.2f}, "
                  f"{row['limit']}){memory}", flush=True)  # fmt: skip
    accelerator = find_device(device)
    found = rates(size, device, min(1.0, options.seconds), rounds)
    if not options.json:
        for name, share in found.items():
            length = int(name.rpartition("_")[2]) if name.startswith("attention") else 0
            stated = accelerator.attention_share_at(length) if length else getattr(accelerator, name)
            print(f"{name:28} {share:.3f}, stated {stated:.3f}")
    print_results(options, results, hardware=accelerator.name, **({"rates": found} if options.json else {}))


if __name__ == "__main__":
    main()
