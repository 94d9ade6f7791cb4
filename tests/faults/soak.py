"""Train, evaluate and generate in a loop, and require that memory stays flat.

    python tests/faults/soak.py --minutes 60

Each round trains a small model with checkpoints, stops it, resumes it, evaluates it on its validation rows and
generates from it, in one process. After each round the resident memory of the process and the number of Python objects
are measured, once unused memory was returned to the system. Rounds of the first third are warm-up: caches
fill. From then on the median of the last rounds must not exceed that of the first ones by more than the tolerance.
"""

import argparse
import ctypes
import gc
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import regard
from regard.data.builtin import find_builtin
from regard.runs.run import Run

SETTINGS: dict[str, Any] = {
    "task": {"tokenizer": "bytes"},
    "model": {"model_dim": 32, "num_heads": 2, "feedforward_dim": 64, "num_layers": 2},
    "train": {"evaluate_every": 10, "checkpoint_every": 5, "device": "cpu", "batch_tokens": 512},
    "generate": {"max_tokens": 16},
}
TOLERANCE = 0.01
WARM_UP = 1 / 3


def resident() -> float:
    """The resident memory of this process in MB, without what the C library keeps for later."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def one_round(rows: list[tuple[str, str]], folder: Path, steps: int) -> None:
    """Everything that a user does with a run, once."""
    shutil.rmtree(folder, ignore_errors=True)
    regard.train(rows, out=folder, settings=SETTINGS, steps=steps // 2, show_progress=False)
    run = regard.train(rows, out=folder, resume=True, steps=steps, show_progress=False)
    run.evaluate()
    loaded = Run(folder, device="cpu")
    loaded.predict([source for source, _ in rows[:20]])
    loaded.predict([source for source, _ in rows[:5]], beam_size=3)


def soak(*, minutes: float, steps: int, least_rounds: int) -> list[dict[str, float]]:
    """The memory after each round."""
    rows = list(find_builtin("dates").generate(200, 0))
    measured: list[dict[str, float]] = []
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as name:
        os.environ["REGARD_CACHE"] = str(Path(name) / "cache")
        while time.monotonic() < end or len(measured) < least_rounds:
            one_round(rows, Path(name) / "run", steps)
            measured.append({"megabytes": resident(), "objects": float(len(gc.get_objects()))})
            print(f"round {len(measured)}: {measured[-1]['megabytes']:.1f} MB, {measured[-1]['objects']:,.0f} objects",
                  flush=True)  # fmt: skip
    return measured


def growth(measured: list[dict[str, float]], what: str) -> float:
    """The relative growth from the first rounds after the warm-up to the last ones: medians of a third of them each."""
    values = [each[what] for each in measured[int(len(measured) * WARM_UP) :]]
    part = max(1, len(values) // 3)
    first, last = statistics.median(values[:part]), statistics.median(values[-part:])
    return last / first - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=40, help="of each round")
    parser.add_argument("--rounds", type=int, default=9, help="at least")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    options = parser.parse_args()
    logging.getLogger("regard").setLevel(logging.ERROR)
    measured = soak(minutes=options.minutes, steps=options.steps, least_rounds=options.rounds)
    found = {what: growth(measured, what) for what in ("megabytes", "objects")}
    print(f"{len(measured)} rounds; " + ", ".join(f"{what} {100 * value:+.2f} %" for what, value in found.items()))
    sys.exit(any(value > options.tolerance for value in found.values()))


if __name__ == "__main__":
    main()
