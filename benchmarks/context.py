"""The cost of a long context: training and generation against its length.

    python benchmarks/context.py [--device cpu|cuda] [--draw FILE.png] [--json]

Trains a step on the same number of tokens at every length, in fewer and longer windows, and generates a token after a
context of each length. The work of attention grows with the square of the length, and its memory with the length.
"""

import math
from collections.abc import Sequence

import torch

from common.harness import describe_machine, make_parser, median_times, parse, print_results, regard_step
from regard.generation.batch import MAX_STEPS, BatchShape, DecodingBatch
from regard.generation.config import GenerationConfig
from regard.models.family import build_model, read_model_config
from regard.models.presets import find_preset
from regard.models.transformer import Transformer
from regard.models.transformer.states import StaticCache
from regard.nn.inference import prepare_for_inference
from regard.tasks.language_modeling import WindowBatch
from regard.training.precision import choose_hardware

VOCAB = {"cpu": 8_192, "cuda": 8_192, "tiny": 64}
PRESETS = {"cpu": "gpt-tiny", "cuda": "gpt-small", "tiny": "gpt-tiny"}
TRAINED = {
    "cpu": [256, 512, 1024, 2048, 4096],
    "cuda": [1024, 2048, 4096, 8192, 16384, 32768],
    "tiny": [8, 16],
}
GENERATED = {
    "cpu": [256, 1024, 4096, 16384],
    "cuda": [1024, 4096, 16384, 65536, 131072],
    "tiny": [2 * MAX_STEPS, 4 * MAX_STEPS],
}
ADAM = {"betas": (0.9, 0.95), "epsilon": 1e-8, "weight_decay": 0.1}
Row = dict[str, float | None]


def training(size: str, device: str, rounds: int) -> list[Row]:
    """Tokens per second, and the peak of memory on a GPU, at each length."""
    config = read_model_config(find_preset(PRESETS[size])[1])
    hardware = choose_hardware(device, "auto", config.model_dim)
    results: list[Row] = []
    for length in TRAINED[size]:
        torch.manual_seed(0)
        tokens = torch.randint(4, VOCAB[size], (max(TRAINED[size]) // length, length), device=hardware.device)
        batch = WindowBatch(tokens, tokens.roll(-1, 1), None, tokens.numel())
        step = regard_step(build_model(config, VOCAB[size]), config, "language-modeling", batch, hardware, ADAM)
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds = median_times({"step": step}, rounds=rounds, device=device, warm_up=2)["step"]
        memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
        results.append({"length": length, "tokens_per_s": tokens.numel() / seconds, "peak_gib": memory})
    return results


@torch.inference_mode()
def generation(size: str, device: str, rounds: int) -> list[Row]:
    """Milliseconds for a token after a context of each length, one text at a time, and the size of the cache."""
    config = read_model_config(find_preset(PRESETS[size])[1])
    prepared = prepare_for_inference(
        build_model(config, VOCAB[size]).to(device), "bfloat16" if device == "cuda" else "float32"
    )
    model = prepared.for_inference()
    assert isinstance(model, Transformer)
    results: list[Row] = []
    for length in GENERATED[size]:
        room = BatchShape(1, length, 0)
        batch = DecodingBatch(
            model, GenerationConfig(), room, initial_state=model.initial_state(), use_cuda_graph=device == "cuda"
        )
        state = batch.state
        assert isinstance(state, StaticCache)

        def generate(batch: DecodingBatch = batch, state: StaticCache = state, length: int = length) -> None:
            state.lengths.fill_(length - MAX_STEPS)
            batch.run(MAX_STEPS, None)

        seconds = median_times({"": generate}, rounds=rounds, device=device, warm_up=2)[""] / MAX_STEPS
        results.append({"length": length, "ms_per_token": 1e3 * seconds, "cache_mib": state.num_bytes / 2**20})
    return results


def draw(path: str, trained: list[Row], generated: list[Row], machine: str) -> None:
    """Plots each figure against the length."""
    from matplotlib.figure import Figure

    lines = [
        (trained, "tokens_per_s", f"training: tokens/s, {max(row['length'] or 0 for row in trained):,.0f} per step"),
        (trained, "peak_gib", "training: peak memory, GiB"),
        (generated, "ms_per_token", "generation: ms per token"),
        (generated, "cache_mib", "generation: KV cache, MiB"),
    ]
    lines = [(rows, name, title) for rows, name, title in lines if rows and rows[0][name] is not None]
    figure = Figure(figsize=(3.2 * len(lines), 3.4), layout="constrained")
    for panel, (rows, name, title) in zip(figure.subplots(1, len(lines)), lines, strict=True):
        lengths, values = ([row[key] or math.nan for row in rows] for key in ("length", name))
        panel.plot(lengths, values, marker="o", color="#2b6cb0")
        panel.set_xscale("log", base=2)
        panel.set_xticks(lengths, [f"{length // 1024}k" if length >= 1024 else str(length) for length in lengths])
        panel.set_ylim(0, 1.1 * max(values))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 10_000 else f"{value / 1e3:,.0f}k")
        panel.set_title(title, fontsize=10, loc="left")
        panel.set_xlabel("context length")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(machine, fontsize=9, color="#555555")
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--draw", metavar="FILE", help="plot the figures to a PNG file")
    options = parse(parser, arguments)
    size, device = options.size, options.device
    trained = training(size, device, rounds=1 if options.tiny else 4)
    generated = generation(size, device, rounds=1 if options.tiny else 5)
    if options.draw:
        machine = f"{describe_machine(device)}, torch {torch.__version__}, {PRESETS[size]}"
        draw(options.draw, trained, generated, machine)
    if not options.json:
        for row in trained:
            memory = "" if row["peak_gib"] is None else f"  {row['peak_gib']:6.2f} GiB"
            print(f"training at {row['length']:7,}: {row['tokens_per_s']:12,.0f} tokens/s{memory}")
        for row in generated:
            cache = f"KV cache {row['cache_mib']:8.1f} MiB"
            print(f"generation after {row['length']:7,}: {row['ms_per_token']:8.2f} ms  {cache}")
    results = [{"work": "training", **row} for row in trained] + [{"work": "generation", **row} for row in generated]
    print_results(options, results, model=PRESETS[size])


if __name__ == "__main__":
    main()
