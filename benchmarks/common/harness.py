"""Options, timing, training steps and output of the benchmark scripts.

Every script has `--json`, which prints one object with the machine, the versions and a list of results, and `--tiny`,
which replaces sizes, data and budget so that the script ends in seconds on a CPU without anything from outside. A tiny
run shows that a script works; its numbers have no meaning.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.family import ModelConfig
from regard.tasks.registry import make_task
from regard.tasks.task import Batch
from regard.training.defaults import draft
from regard.training.ema import WeightAverage
from regard.training.optimizers import make_optimizer
from regard.training.precision import Hardware, keep_memory
from regard.training.update import Updater

Work = Callable[[], object]
Step = Callable[[], None]
Adam = Mapping[str, Any]
"""The betas, the epsilon and the weight decay of AdamW."""
LEARNING_RATE = 1e-4


def make_parser(
    description: str | None, *, has_device: bool = True, seconds: float | None = None
) -> argparse.ArgumentParser:
    """A parser with the options that all scripts have; `seconds` is the default of `--seconds` where there is one."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if has_device:
        default = "cuda" if torch.cuda.is_available() else "cpu"
        parser.add_argument("--device", choices=["cpu", "cuda"], default=default)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="time to measure each configuration for")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on the CPU, to test that the script works")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; `size` is the key of the tables of sizes: cpu, cuda or tiny."""
    options = parser.parse_args(arguments)
    if options.tiny or "device" not in options:
        options.device = "cpu"
    options.size = "tiny" if options.tiny else options.device
    if options.tiny and "seconds" in options:
        options.seconds = 0.0
    if options.device == "cpu":
        keep_memory()
    else:
        torch.set_float32_matmul_precision("high")
    return options


def describe_machine(device: str) -> str:
    """The name of the GPU, or the architecture of the CPU and the number of threads."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def print_results(options: argparse.Namespace, results: Sequence[Mapping[str, Any]], **described: Any) -> None:
    """The last line: the results as JSON, or the machine and the versions under rows that are printed already."""
    about = {"machine": describe_machine(options.device), "torch": torch.__version__, **described}
    if options.json:
        print(json.dumps({**about, "results": list(results)}))
    else:
        print(", ".join(value if name == "machine" else f"{name} {value}" for name, value in about.items()))


def median_times(
    works: Mapping[str, Work], seconds: float = 0.0, *, rounds: int = 1, device: str = "cpu", warm_up: int = 3
) -> dict[str, float]:
    """The median time of each, measured in turns of shuffled order, so that a slower minute affects all of them.

    Each has `warm_up` turns that do not count, then `rounds` at least, and more until `seconds` have passed.
    """
    for work in works.values():
        for _ in range(warm_up):
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    rng, start, names = random.Random(0), time.perf_counter(), list(works)
    while len(times[names[0]]) < rounds or time.perf_counter() - start < seconds:
        for name in rng.sample(names, len(names)):
            times[name].append(seconds_of(works[name], device=device))
    return {name: statistics.median(values) for name, values in times.items()}


def seconds_of(work: Work, *, device: str = "cpu", calls: int = 1) -> float:
    """How long a call takes, as a mean over several in a row, until the device has finished."""
    before = time.perf_counter()
    for _ in range(calls):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - before) / calls


def regard_step(
    model: nn.Module,
    config: ModelConfig,
    task: str,
    batch: Batch,
    hardware: Hardware,
    adam: Adam,
    *,
    compiled: bool = False,
    **train: Any,
) -> Step:
    """A step of regard's trainer on one batch; on a GPU it is recorded as a CUDA graph and replayed."""
    model.to(hardware.device).train()
    optimizer = make_optimizer("adamw", model, **adam)
    values = {"ema_decay": 0.0, "label_smoothing": 0.0, **train}
    settings = draft({"task": {"name": task}, "model": config.model_dump(), "train": values})
    bound = make_task(settings.task)
    updater = Updater(model, bound, optimizer, WeightAverage(model, 0.0), settings, hardware, is_compiled=compiled)

    def step() -> None:
        updater.update([batch], learning_rate=LEARNING_RATE, decay=0.0)

    return step


def plain_step(model: nn.Module, loss: Callable[[], Tensor], hardware: Hardware, adam: Adam) -> Step:
    """A step of a training loop as one writes it by hand: forward, backward, clipping, AdamW."""
    optimizer = make_optimizer("adamw", model, **adam)
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE

    def step() -> None:
        with hardware.autocast():
            value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
