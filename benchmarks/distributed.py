"""Training steps of a language model in one process and in two, whole and sharded.

    python benchmarks/distributed.py [--device cpu|cuda] [--seconds 20] [--turns 3] [--json]

A step is that of the trainer: the batch, forward, backward, the sum over processes, clipping, AdamW and the moving
average. The batch is the same in all forms. On a CPU each process has one thread: one process, two, two whose gradients
are summed by torch's DistributedDataParallel instead, and two whose model is sharded by FSDP2. On a GPU one process
trains the model as it is, and by both in a world of one, without CUDA graphs. The forms are measured in turns; a figure
is the median.
"""

import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from common.harness import make_parser, parse, print_results
from regard.data.sources import IN_MEMORY
from regard.runs.launch import launch
from regard.runs.train import make_trainer
from regard.tasks.registry import make_task
from regard.training.defaults import draft, resolve
from regard.training.distributed import Processes, joined
from regard.training.loop import Trainer
from regard.training.sharding import ShardedLoss

SHAPES = {
    "tiny": {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 32},
    "cpu": {"num_layers": 4, "model_dim": 256, "num_heads": 4, "feedforward_dim": 1024},
    "cuda": {"num_layers": 12, "model_dim": 768, "num_heads": 12, "feedforward_dim": 3072},
}
WINDOW, BATCH = {"tiny": 8, "cpu": 128, "cuda": 1024}, {"tiny": 64, "cpu": 4_096, "cuda": 65_536}
WORDS, CHARACTERS = 2_000, {"tiny": 5_000, "cpu": 400_000, "cuda": 4_000_000}
WARMUP = 3
"""Steps that are not measured: the first ones allocate."""
FORMS = {
    "cpu": {
        "one process": (1, "none"),
        "two processes": (2, "none"),
        "two processes, torch's DDP": (2, "ddp"),
        "two processes, sharded": (2, "full"),
    },
    "cuda": {
        "one process": (1, "none"),
        "one process, torch's DDP": (1, "ddp"),
        "one process, sharded": (1, "full"),
    },
}
"""Of each form the number of processes, and how the gradients of the processes are summed."""


def text(num_characters: int) -> list[tuple[str]]:
    """Documents of random words."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(WORDS)]
    return [(" ".join(rng.choices(words, k=120)),) for _ in range(max(20, num_characters // 780))]


def use_ddp(trainer: Trainer) -> None:
    """Let torch's DistributedDataParallel average the gradients within the backward pass, as costly as their sum."""
    loss, updater = ShardedLoss(trainer.model, trainer.task.loss), trainer.updater
    ddp = DistributedDataParallel(loss, gradient_as_bucket_view=True)
    updater._loss = lambda model, batch, objective: ddp(batch, objective)
    updater._sum_over_processes = lambda total: total


def measure(size: str, device: str, sharding: str, seconds: float) -> dict[str, float]:
    """The seconds of a step, and its tokens, in each of the processes that call this."""
    torch.set_num_threads(1)
    with joined(device, is_group_of_one=sharding != "none") as group:
        # In a function of its own: DDP must be gone before the group is. The last reference to a group would else be
        # that of DDP, which is dropped with Python's lock held, for which the threads of the group may be waiting.
        return measure_steps(group, size, device, sharding, seconds)


def measure_steps(group: Processes, size: str, device: str, sharding: str, seconds: float) -> dict[str, float]:
    settings = draft({
        "preset": "gpt-tiny",
        "task": {"name": "language-modeling", "window": WINDOW[size], "tokenizer": "words", "ngrams": 0},
        "model": {**SHAPES[size], "dropout": 0.0},
        "data": {"train": [IN_MEMORY]},
        "train": {"max_steps": 1_000_000, "batch_tokens": BATCH[size], "device": device,
                  "sharding": "full" if sharding == "full" else "none", "cuda_graphs": False, "compile": "never",
                  "optimizer": "adamw"},
    })  # fmt: skip
    data = make_task(settings.task).prepare(settings.data, text(CHARACTERS[size]))
    trainer = make_trainer(resolve(settings, data), data)
    if sharding == "ddp":
        use_ddp(trainer)
    times: list[float] = []
    while len(times) < WARMUP + 3 or group.any(sum(times[WARMUP:]) < seconds):
        before = time.perf_counter()
        trainer.advance()
        trainer.hardware.synchronize()
        group.wait()
        times.append(time.perf_counter() - before)
    _, _, tokens = trainer.progress.window[-1]
    return {"seconds": statistics.median(times[WARMUP:]), "tokens": float(tokens)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, seconds=20.0)
    parser.add_argument("--turns", type=int, default=3, help="how often each form is measured")
    options = parse(parser, arguments)
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["OMP_NUM_THREADS"] = "1"
    turns = 1 if options.tiny else options.turns
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in FORMS[options.device]}
    for turn in range(turns):
        for name in random.Random(turn).sample(list(measured), len(measured)):
            num_processes, sharding = FORMS[options.device][name]
            given = {"size": options.size, "device": options.device, "sharding": sharding, "seconds": options.seconds}
            measured[name].append(launch("distributed:measure", given, num_processes))
    rows: list[dict[str, Any]] = []
    seconds = {name: statistics.median(each["seconds"] for each in found) for name, found in measured.items()}
    whole = "two processes" if options.device == "cpu" else "one process"
    for name, found in measured.items():
        row: dict[str, Any] = {
            "form": name,
            "seconds": seconds[name],
            "tokens_per_s": found[0]["tokens"] / seconds[name],
        }
        row["speedup"] = seconds["one process"] / seconds[name]
        row["slower_than_whole"] = seconds[name] / seconds[whole] - 1 if "," in name else 0.0
        rows.append(row)
        more = f", {row['slower_than_whole']:+.1%} beside {whole}" if "," in name else ""
        if not options.json:
            print(f"{name}: {row['seconds'] * 1e3:,.1f} ms a step, {row['speedup']:.2f} times one process{more}")
    print_results(options, rows, processes=str(max(size for size, _ in FORMS[options.device].values())))


if __name__ == "__main__":
    main(sys.argv[1:])
