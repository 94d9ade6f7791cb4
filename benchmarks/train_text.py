"""The time of a training step of a language model, compared with transformers' GPT-2.

    python benchmarks/train_text.py [--device cpu|cuda] [--seconds 10] [--json]

A step is forward, backward, clipping and AdamW on windows of random tokens, with the same shape and data; on a GPU
both models are compiled, and regard is measured with `train.float8` too, which computes the logits in float8. A
speedup above 1 means that the first row, which is regard's fastest configuration, is faster.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from common.harness import Step, make_parser, parse, plain_step, print_results, regard_step, seconds_of
from regard.models.family import ModelConfig, build_model, read_model_config
from regard.models.presets import find_preset
from regard.tasks.language_modeling import WindowBatch
from regard.training.precision import choose_hardware

VOCAB = {"cpu": 8_192, "cuda": 50_304, "tiny": 64}
SHAPES = {
    "cpu": [("gpt2-small", 8, 256)],
    "cuda": [("gpt2-base", 32, 1024), ("gpt2-base", 64, 1024)],
    "tiny": [("gpt2-tiny", 2, 8)],
}
"""Preset, windows in a batch, and positions in a window."""
ADAM = {"betas": (0.9, 0.95), "epsilon": 1e-8, "weight_decay": 0.1}


def ours(
    name: str, tokens: torch.Tensor, vocab_size: int, device: str, *, compiled: bool, float8: bool = False
) -> Step:
    config = model_config(name, tokens.size(1))
    hardware = choose_hardware(device, "auto", config.model_dim)
    model = build_model(config, vocab_size)
    batch = WindowBatch(tokens, tokens.roll(-1, 1), None, tokens.numel())
    return regard_step(model, config, "language-modeling", batch, hardware, ADAM, compiled=compiled, float8=float8)


def model_config(name: str, length: int) -> ModelConfig:
    """The shape of a preset without dropout, for windows of this length."""
    values = {**find_preset(name)[1], "context_length": length, "dropout": 0.0}
    return read_model_config(values)


def theirs(name: str, tokens: torch.Tensor, vocab_size: int, device: str, *, compiled: bool) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    _, shape = find_preset(name)
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=tokens.size(1), n_embd=shape["model_dim"], n_layer=shape["num_layers"],
        n_head=shape["num_heads"], attn_implementation="sdpa", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    hardware = choose_hardware(device, "auto", shape["model_dim"])
    model = GPT2LMHeadModel(config).to(hardware.device).train()
    called = torch.compile(model) if compiled else model
    return plain_step(model, lambda: called(input_ids=tokens, labels=tokens).loss, hardware, ADAM)


def measure(step: Step, seconds: float, device: str) -> tuple[float, float]:
    """The median time of a step, and the time of the first, which compiles."""
    first = seconds_of(step, device=device)
    seconds_of(step, device=device, calls=4)
    times, begun = [], time.perf_counter()
    while not times or time.perf_counter() - begun < seconds:
        times.append(seconds_of(step, device=device, calls=3))
    return statistics.median(times), first


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, seconds=10.0)
    parser.add_argument("--batch", type=int, action="append", help="batches of this many windows only")
    options = parse(parser, arguments)
    device, size, is_gpu = options.device, options.size, options.device == "cuda"
    results = []
    for name, batch_size, length in SHAPES[size]:
        if options.batch and batch_size not in options.batch:
            continue
        contenders: dict[str, Callable[..., Step]] = {"regard": ours, "transformers GPT2": theirs}
        if is_gpu:
            contenders = {"regard, float8": partial(ours, float8=True), **contenders}
        fastest = None
        for library, make in contenders.items():
            torch.manual_seed(0)
            torch.compiler.reset()
            tokens = torch.randint(4, VOCAB[size], (batch_size, length), device=device)
            step = make(name, tokens, VOCAB[size], device, compiled=is_gpu)
            seconds, first = measure(step, options.seconds, device)
            fastest = fastest or seconds
            speed, speedup = tokens.numel() / seconds, seconds / fastest
            memory = torch.cuda.max_memory_allocated() / 2**30 if is_gpu else None
            figures = {"ms": 1e3 * seconds, "tokens_per_s": speed, "first_step_s": first, "peak_gib": memory,
                       "speedup": speedup}  # fmt: skip
            results.append({"shape": f"{name} {batch_size}x{length}", "library": library, **figures})
            if not options.json:
                told = f"{1e3 * seconds:9.1f} ms  {speed:9,.0f} tokens/s  first step {first:5.1f} s"
                print(f"{name} {batch_size}x{length:<6} {library:20} {told}  {speedup:5.2f}x")
            if is_gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
    print_results(options, results)


if __name__ == "__main__":
    main()
