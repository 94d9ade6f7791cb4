"""Memory against the size of the data file: it must not grow.

    python benchmarks/memory.py [--megabytes 20 200 2000] [--folder .]

Writes a file of pairs of each size, trains a small model on it for a few steps
in a process of its own, and prints the most memory that process held: its own
(anonymous) pages, and pages of mapped files, which the system takes back when
it needs them.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WORDS = 5_000
STEPS = 40


def write_pairs(path: Path, num_bytes: int) -> int:
    """A file of random sentences and their reversals; returns the number of rows."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(WORDS)]
    written = rows = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < num_bytes:
            lines = []
            for _ in range(10_000):
                sentence = rng.choices(words, k=rng.randint(3, 25))
                lines.append(f"{' '.join(sentence)}\t{' '.join(reversed(sentence))}\n")
            written += file.write("".join(lines))
            rows += len(lines)
    return rows


def train_on(path: Path, out: Path) -> None:
    import regard

    regard.train(
        path,
        out=out,
        overwrite=True,
        settings={
            "data": {"tokenizer": "words", "vocab_size": 6_000},
            "model": {"model_dim": 32, "num_heads": 2, "feedforward_dim": 64, "num_layers": 1},
            "train": {"max_steps": STEPS, "evaluate_every": STEPS, "device": "cpu"},
        },
        show_progress=False,
    )


def watch(process: subprocess.Popen[bytes], peaks: dict[str, int]) -> None:
    """Keep the largest of each kind of memory, in KiB, while the process lives."""
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except FileNotFoundError:
            return
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssFile", "VmHWM"):
                peaks[name] = max(peaks.get(name, 0), int(value.split()[0]))
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[20, 200, 2000])
    parser.add_argument("--folder", type=Path, default=None, help="where the files go; a temporary folder by default")
    parser.add_argument("--child", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train_on(*options.child)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for megabytes in options.megabytes:
            path = Path(folder) / "pairs.tsv"
            rows = write_pairs(path, megabytes * 1_000_000)
            peaks: dict[str, int] = {}
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, __file__, "--child", str(path), str(Path(folder) / "run")],
                env={**os.environ, "REGARD_CACHE": str(Path(folder) / "cache")},
            )
            watcher = threading.Thread(target=watch, args=(process, peaks))
            watcher.start()
            code = process.wait()
            watcher.join()
            figures = {"megabytes": megabytes, "rows": rows, "seconds": round(time.perf_counter() - start, 1),
                       **{name: f"{kib / 1024:.0f} MiB" for name, kib in peaks.items()}}  # fmt: skip
            print(json.dumps(figures), flush=True)
            if code:
                sys.exit(code)


if __name__ == "__main__":
    main()
