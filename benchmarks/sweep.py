"""How long a sweep takes, with one worker and with several.

    python benchmarks/sweep.py [--trials 8] [--workers 1,2] [--steps 160] [--json]

Each sweep is over `dates` with a space of three settings, random and from one seed, so that all of them train the
same trials; the winner is not trained again. Run it on a machine that has nothing else to do.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import regard

SPACE = {
    "train": {"learning_rate": {"low": 1e-3, "high": 1e-2, "log": True}},
    "model": {"dropout": {"low": 0.0, "high": 0.3}, "num_layers": {"choices": [1, 2]}},
}


def timed(trials: int, workers: int, steps: int) -> dict[str, float]:
    """One sweep from nothing, data that is prepared already excepted."""
    with tempfile.TemporaryDirectory() as folder:
        before = time.perf_counter()
        found = regard.sweep(
            "dates", SPACE, trials=trials, workers=workers, steps=steps, sampler="random", again=0,
            out=Path(folder) / "sweep",
        )  # fmt: skip
        seconds = time.perf_counter() - before
    return {
        "workers": workers,
        "seconds": seconds,
        "per_trial": seconds / trials,
        "best": found.table["winner"]["value"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    timed(1, 1, 1)  # prepares the data
    results = [timed(arguments.trials, int(number), arguments.steps) for number in arguments.workers.split(",")]
    if arguments.json:
        print(json.dumps(results))
        return
    for one in results:
        faster = results[0]["seconds"] / one["seconds"]
        print(
            f"{one['workers']:.0f} workers: {one['seconds'] / 60:.1f} min for {arguments.trials} trials, "
            f"{one['per_trial']:.1f} s each, {faster:.2f} times as fast; best exact match {one['best']:.3f}"
        )


if __name__ == "__main__":
    main()
