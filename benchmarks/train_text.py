"""Training a language model beside its peer: the same shape, data and machine, in one run.

    python benchmarks/train_text.py [--device cpu|cuda] [--seconds 10] [--json]

Measures a step (forward, backward, clipping, AdamW) of a decoder of GPT-2's
shape in regard and in transformers, both compiled where there is a GPU, on
windows of random tokens; there also with `train.float8`, the products with the
vocabulary in eight bits. Ratios above 1 say that regard is faster, in eight bits
where it has been measured so.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from regard.models.families import make_model
from regard.models.presets import preset
from regard.tasks.language import Language, TextBatch
from regard.training.average import WeightAverage
from regard.training.optimizers import make_optimizer
from regard.training.precision import choose_hardware, keep_memory
from regard.training.settings import RunSettings
from regard.training.update import Updater

VOCAB = {"cpu": 8_192, "cuda": 50_304}
SHAPES = {"cpu": [("gpt2-small", 8, 256)], "cuda": [("gpt2-base", 32, 1024), ("gpt2-base", 64, 1024)]}
"""Preset, windows in a batch, and positions in a window."""
ADAM = {"betas": (0.9, 0.95), "epsilon": 1e-8, "weight_decay": 0.1}


def regard_step(
    name: str, tokens: torch.Tensor, vocab_size: int, device: str, *, compiled: bool, float8: bool = False
) -> Callable[[], None]:
    _, shape = preset(name)
    shape = {**shape, "context_length": tokens.size(1), "dropout": 0.0}
    settings = RunSettings.read({"task": "language", "model": shape, "train": {"average": 0.0, "float8": float8}})
    hardware = choose_hardware(device, "auto", shape["model_dim"])
    model = make_model(settings.model, vocab_size).to(hardware.device)
    optimizer = make_optimizer("adamw", model, **ADAM)
    updater = Updater(
        model, Language(), optimizer, WeightAverage(model, 0.0), settings.train, hardware, is_compiled=compiled
    )
    batch = TextBatch(tokens, tokens.roll(-1, 1), None, tokens.numel())
    return lambda: void(updater.update([batch], rate=1e-4, decay=0.0))


def void(_: object) -> None:
    """Throw a result away."""


def transformers_step(
    name: str, tokens: torch.Tensor, vocab_size: int, device: str, *, compiled: bool
) -> Callable[[], None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    _, shape = preset(name)
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=tokens.size(1), n_embd=shape["model_dim"], n_layer=shape["num_layers"],
        n_head=shape["num_heads"], attn_implementation="sdpa", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        use_cache=False,
    )  # fmt: skip
    hardware = choose_hardware(device, "auto", shape["model_dim"])
    model = GPT2LMHeadModel(config).to(hardware.device).train()
    optimizer = make_optimizer("adamw", model, **ADAM)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    called = torch.compile(model) if compiled else model

    def step() -> None:
        with hardware.autocast():
            loss = called(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure(step: Callable[[], None], seconds: float, synchronize: Callable[[], None]) -> tuple[float, float]:
    """The median time of a step, and the time of the first."""
    start = time.perf_counter()
    step()
    synchronize()
    first = time.perf_counter() - start
    for _ in range(4):
        step()
    synchronize()
    times, begun = [], time.perf_counter()
    while time.perf_counter() - begun < seconds:
        before = time.perf_counter()
        for _ in range(3):
            step()
        synchronize()
        times.append((time.perf_counter() - before) / 3)
    return statistics.median(times), first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, action="append", help="batches of this many windows only")
    parser.add_argument("--seconds", type=float, default=10.0, help="measuring time for each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device: str = options.device
    if device == "cpu":
        keep_memory()
    else:
        torch.set_float32_matmul_precision("high")
    synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    results = []
    for name, batch_size, length in SHAPES[device]:
        if options.batch and batch_size not in options.batch:
            continue
        speeds: dict[str, float] = {}
        contenders = {"regard": regard_step, "transformers GPT2": transformers_step}
        if device == "cuda":
            contenders = {"regard, float8": partial(regard_step, float8=True), **contenders}
        for library, make in contenders.items():
            torch.manual_seed(0)
            torch.compiler.reset()
            tokens = torch.randint(4, VOCAB[device], (batch_size, length), device=device)
            seconds, first = measure(
                make(name, tokens, VOCAB[device], device, compiled=device == "cuda"), options.seconds, synchronize
            )
            speeds[library] = tokens.numel() / seconds
            memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
            figures = {"ms": 1e3 * seconds, "tokens_per_s": speeds[library], "first_step_s": first, "peak_gib": memory,
                       "regard_is_times_as_fast": next(iter(speeds.values())) / speeds[library]}  # fmt: skip
            results.append({"shape": f"{name} {batch_size}x{length}", "library": library, **figures})
            if not options.json:
                speed = f"{1e3 * seconds:9.1f} ms  {speeds[library]:9,.0f} tokens/s  first step {first:5.1f} s"
                print(
                    f"{name} {batch_size}x{length:<6} {library:20} {speed}  {figures['regard_is_times_as_fast']:5.2f}x"
                )
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    described = {"machine": machine, "torch": torch.__version__, "results": results}
    print(json.dumps(described) if options.json else f"{machine}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
