"""The cost of checkpoints: how long training waits for one, and its share of the time between two.

    python benchmarks/checkpointing.py [--models transformer-tiny transformer-small] [--rounds 5]

Trains each model on `dates` and saves its state as a run does. `wait` is the time of the call that copies the state and
starts the thread that writes it; `write` is the time that the thread takes, and `work` the processor time of the whole
process meanwhile, steps left out. The shares are of the time of 500 steps, the default distance of two checkpoints:
`waited` of what training waits, `worked` of all processor time, which training gives up only where no core is idle, and
`synchronous` of waiting for the whole write, as without a thread. Each is the median of the rounds.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.harness import make_parser, parse, print_results
from regard.runs.train import set_up
from regard.training.checkpoints import save_checkpoint
from regard.training.loop import Trainer
from regard.training.writing import BackgroundWriter

INTERVAL = 500
"""Steps between checkpoints, where `train.checkpoint_every` is unset."""
STEPS = {"cpu": 10, "tiny": 2}
"""Steps of a round, after which there is a checkpoint."""
ROWS = {"cpu": 5_000, "tiny": 100}
MODELS = {"cpu": ["transformer-tiny", "transformer-small"], "tiny": ["transformer-tiny"]}


def make(model: str, size: str) -> Trainer:
    values = {
        "task": {"name": "seq2seq", "tokenizer": "characters"},
        "preset": model,
        "data": {"train": ["dates"], "num_rows": ROWS[size]},
        "train": {"max_steps": 10**6, "device": "cpu"},
    }
    return set_up(values)[2]


def measure(model: str, rounds: int, size: str) -> dict[str, Any]:
    """The medians of the rounds of a model, in seconds, and the shares that follow."""
    trainer = make(model, size)
    for _ in range(STEPS[size]):
        trainer.advance()
    steps, waits, writes, works = [], [], [], []
    with tempfile.TemporaryDirectory() as name, BackgroundWriter() as writer:
        for _ in range(rounds + 1):
            before = time.perf_counter()
            for _ in range(STEPS[size]):
                trainer.advance()
            step = (time.perf_counter() - before) / STEPS[size]
            before, cpu = time.perf_counter(), time.process_time()
            note, number = trainer.progress_note(), trainer.progress.step
            writer.submit(
                "checkpoint",
                trainer.tensors(),
                lambda copies, note=note, number=number: save_checkpoint(Path(name), number, copies, note),
            )
            wait = time.perf_counter() - before
            writer.wait()
            writes.append(time.perf_counter() - before)
            works.append(time.process_time() - cpu)
            steps.append(step)
            waits.append(wait)
        megabytes = max(path.stat().st_size for path in Path(name).iterdir()) / 1e6
    # In the first round the memory of the copy is new.
    step, wait, write, work = (statistics.median(figures[1:]) for figures in (steps, waits, writes, works))
    return {
        "model": model,
        "megabytes": megabytes,
        "step_s": step,
        "wait_s": wait,
        "write_s": write,
        "work_s": work,
        "waited_steps": wait / step,
        "waited": wait / (INTERVAL * step),
        "worked": work / (INTERVAL * step),
        "synchronous": write / (INTERVAL * step),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, has_device=False)
    parser.add_argument("--models", nargs="+", default=None, help="presets; two sizes of the Transformer by default")
    parser.add_argument("--rounds", type=int, default=5)
    options = parse(parser, arguments)
    results = []
    for model in options.models or MODELS[options.size]:
        results.append(measure(model, 2 if options.tiny else options.rounds, options.size))
        if not options.json:
            row = results[-1]
            shares = ", ".join(f"{name} {100 * row[name]:.3f} %" for name in ("waited", "worked", "synchronous"))
            print(
                f"{model}, {row['megabytes']:.1f} MB: a step {1e3 * row['step_s']:.1f} ms, training waits for "
                f"{1e3 * row['wait_s']:.1f} ms ({row['waited_steps']:.2f} steps) of {1e3 * row['write_s']:.0f} ms; "
                f"of {INTERVAL} steps: {shares}",
                flush=True,
            )
    print_results(options, results)


if __name__ == "__main__":
    main()
