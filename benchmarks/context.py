"""What length costs: training and writing against the length of the context.

    python benchmarks/context.py [--device cpu|cuda] [--draw FILE.png] [--json]

Trains a step on as many tokens at every length, in fewer and longer windows, and
writes a token behind a context of each length. Attention does work that grows
with the square of the length and needs memory that grows with the length.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable

import torch

from regard.generation.config import GenerationConfig
from regard.generation.graphs import MOST_STEPS, Batch, Room
from regard.generation.inference import ready
from regard.models.families import make_model
from regard.models.presets import preset
from regard.models.transformer import Transformer
from regard.models.transformer_states import TransformerSlots
from regard.tasks.language import Language, TextBatch
from regard.training.average import WeightAverage
from regard.training.optimizers import make_optimizer
from regard.training.precision import choose_hardware, keep_memory
from regard.training.settings import RunSettings
from regard.training.update import Updater

VOCAB = 8_192
NAME = {"cpu": "gpt-tiny", "cuda": "gpt-small"}
TRAINED = {"cpu": [256, 512, 1024, 2048, 4096], "cuda": [1024, 2048, 4096, 8192, 16384, 32768]}
WRITTEN = {"cpu": [256, 1024, 4096, 16384], "cuda": [1024, 4096, 16384, 65536, 131072]}


def timed(work: Callable[[], object], device: str, *, rounds: int) -> float:
    """The median time of `work`, after two turns that do not count."""
    times = []
    for number in range(rounds + 2):
        before = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= 2:
            times.append(time.perf_counter() - before)
    return statistics.median(times)


def training(device: str) -> list[dict[str, float]]:
    """Tokens a second, and the most memory held on a GPU, at each length."""
    settings = RunSettings.read({"task": "language", "model": preset(NAME[device])[1], "train": {"average": 0.0}})
    hardware = choose_hardware(device, "auto", settings.model.model_dim)
    most = max(TRAINED[device])
    results = []
    for length in TRAINED[device]:
        torch.manual_seed(0)
        model = make_model(settings.model, VOCAB).to(hardware.device)
        optimizer = make_optimizer("adamw", model, betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1)
        updater = Updater(model, Language(), optimizer, WeightAverage(model, 0.0), settings.train, hardware)
        tokens = torch.randint(4, VOCAB, (most // length, length), device=hardware.device)
        batch = TextBatch(tokens, tokens.roll(-1, 1), None, tokens.numel())
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds = timed(lambda: updater.update([batch], rate=1e-4, decay=0.0), device, rounds=4)  # noqa: B023
        memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
        results.append({"length": length, "tokens_per_s": tokens.numel() / seconds, "peak_gib": memory})
    return results


@torch.inference_mode()
def writing(device: str) -> list[dict[str, float]]:
    """Milliseconds for a token behind a context of each length, one text at a time, and the size of its state."""
    settings = RunSettings.read({"task": "language", "model": preset(NAME[device])[1]})
    model = ready(make_model(settings.model, VOCAB).to(device), "bfloat16" if device == "cuda" else "float32")
    assert isinstance(model, Transformer)
    results = []
    for length in WRITTEN[device]:
        blank = model.start()
        batch = Batch(model, GenerationConfig(), Room(1, length, 0), blank=blank, wants_graph=device == "cuda")
        slots = batch.slots
        assert isinstance(slots, TransformerSlots)

        def write(batch: Batch = batch, slots: TransformerSlots = slots, length: int = length) -> None:
            slots.lengths.fill_(length - MOST_STEPS)
            batch.run(MOST_STEPS, None)

        seconds = timed(write, device, rounds=5) / MOST_STEPS
        size = sum(part.numel() * part.element_size() for cache in slots.caches for part in (cache.keys, cache.values))
        results.append({"length": length, "ms_per_token": 1e3 * seconds, "state_mib": size / 2**20})
    return results


def draw(path: str, trained: list[dict[str, float]], written: list[dict[str, float]], machine: str) -> None:
    from matplotlib.figure import Figure

    lines = [
        (trained, "tokens_per_s", f"training: tokens/s, {max(row['length'] for row in trained):,.0f} a step"),
        (trained, "peak_gib", "training: peak memory, GiB"),
        (written, "ms_per_token", "writing: ms a token"),
        (written, "state_mib", "writing: state, MiB"),
    ]
    lines = [(rows, name, title) for rows, name, title in lines if rows and not math.isnan(rows[0][name])]
    figure = Figure(figsize=(3.2 * len(lines), 3.4), layout="constrained")
    for panel, (rows, name, title) in zip(figure.subplots(1, len(lines)), lines, strict=True):
        lengths = [row["length"] for row in rows]
        panel.plot(lengths, [row[name] for row in rows], marker="o", color="#2b6cb0")
        panel.set_xscale("log", base=2)
        panel.set_xticks(lengths, [f"{length // 1024}k" if length >= 1024 else str(length) for length in lengths])
        panel.set_ylim(0, 1.1 * max(row[name] for row in rows))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 10_000 else f"{value / 1e3:,.0f}k")
        panel.set_title(title, fontsize=10, loc="left")
        panel.set_xlabel("context length")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(machine, fontsize=9, color="#555555")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--draw", help="a PNG file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device: str = options.device
    if device == "cpu":
        keep_memory()
    trained, written = training(device), writing(device)
    machine = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    machine = f"{machine}, torch {torch.__version__}, {NAME[device]}"
    if options.draw:
        draw(options.draw, trained, written, machine)
    if options.json:
        print(json.dumps({"machine": machine, "training": trained, "writing": written}))
        return
    for row in trained:
        print(f"training at {row['length']:7,}: {row['tokens_per_s']:12,.0f} tokens/s  {row['peak_gib']:6.2f} GiB")
    for row in written:
        print(f"writing behind {row['length']:7,}: {row['ms_per_token']:8.2f} ms  state {row['state_mib']:8.1f} MiB")
    print(machine)


if __name__ == "__main__":
    main()
