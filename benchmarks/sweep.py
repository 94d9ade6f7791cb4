"""The time of a sweep, with one worker and with several.

    python benchmarks/sweep.py [--trials 8] [--workers 1,2] [--steps 160] [--json]

Each sweep is over `dates` with a space of three settings, sampled at random from one seed, so that all of them train
the same trials; the winner is not trained again. Run it on a machine without other work.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regard
from common.harness import make_parser, parse, print_results

SPACE = {
    "train": {"learning_rate": {"low": 1e-3, "high": 1e-2, "log": True}},
    "model": {"dropout": {"low": 0.0, "high": 0.3}, "num_layers": {"choices": [1, 2]}},
}
TINY: dict[str, Any] = {
    "model": {"model_dim": 16, "num_heads": 2, "feedforward_dim": 32},
    "data": {"num_rows": 120},
    "train": {"batch_tokens": 200, "device": "cpu"},
    "generate": {"max_tokens": 5},
}


def measure(trials: int, workers: int, steps: int, settings: Mapping[str, Any]) -> dict[str, float]:
    """One sweep from the start, with data that is prepared already."""
    with tempfile.TemporaryDirectory() as folder:
        before = time.perf_counter()
        found = regard.sweep(
            "dates", SPACE, trials=trials, workers=workers, steps=steps, sampler="random", repeats=0,
            settings=settings, show_progress=False, out=Path(folder) / "sweep",
        )  # fmt: skip
        seconds = time.perf_counter() - before
    best = found.table["winner"]["value"]
    return {
        "workers": workers,
        "trials": trials,
        "seconds": seconds,
        "seconds_per_trial": seconds / trials,
        "best": best,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, has_device=False)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--steps", type=int, default=160)
    options = parse(parser, arguments)
    if options.tiny:
        results = [measure(2, 1, 2, TINY)]
    else:
        measure(1, 1, 1, {})  # prepares the data
        numbers = [int(number) for number in options.workers.split(",")]
        results = [measure(options.trials, number, options.steps, {}) for number in numbers]
    for row in results:
        row["speedup"] = results[0]["seconds"] / row["seconds"]
        if not options.json:
            total = f"{row['seconds'] / 60:.1f} min for {row['trials']} trials, {row['seconds_per_trial']:.1f} s each"
            print(f"{row['workers']} workers: {total}, {row['speedup']:.2f}x; best exact match {row['best']:.3f}")
    print_results(options, results)


if __name__ == "__main__":
    main()
