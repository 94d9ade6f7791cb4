"""The memory of training against the size of the data file: it must not grow.

    python benchmarks/memory.py [--megabytes 20 200 2000] [--folder .]

Writes a file of pairs of each size, trains a small model on it for a few steps in a process of its own, and prints the
peak of memory of that process: its own (anonymous) pages, and pages of mapped files, which the system frees when it
needs them.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.harness import make_parser, parse, print_results

WORDS = 5_000
STEPS = {"cpu": 40, "tiny": 2}
ROWS_AT_ONCE = {"cpu": 10_000, "tiny": 200}
MEASURED = ("RssAnon", "RssFile", "VmHWM")


def write_pairs(path: Path, num_bytes: int, size: str) -> int:
    """Writes random sentences and their reversals; returns the number of rows."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(WORDS)]
    written = rows = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < num_bytes:
            lines = []
            for _ in range(ROWS_AT_ONCE[size]):
                sentence = rng.choices(words, k=rng.randint(3, 25))
                lines.append(f"{' '.join(sentence)}\t{' '.join(reversed(sentence))}\n")
            written += file.write("".join(lines))
            rows += len(lines)
    return rows


def train_on(path: Path, out: Path, size: str) -> None:
    import regard

    regard.train(
        path,
        out=out,
        overwrite=True,
        settings={
            "task": {"name": "seq2seq", "tokenizer": "words", "vocab_size": 6_000},
            "model": {"model_dim": 32, "num_heads": 2, "feedforward_dim": 64, "num_layers": 1},
            "train": {"max_steps": STEPS[size], "evaluate_every": STEPS[size], "device": "cpu"},
        },
        show_progress=False,
    )


def watch(process: subprocess.Popen[bytes], peaks: dict[str, int]) -> None:
    """Keeps the peak of each kind of memory, in KiB, while the process runs."""
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it ended before the file was opened, or read
            return
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in MEASURED:
                peaks[name] = max(peaks.get(name, 0), int(value.split()[0]))
        time.sleep(0.05)


def measure(folder: Path, megabytes: float, size: str) -> dict[str, Any]:
    """The peaks of memory of a training run on a file of this size."""
    path, peaks = folder / "pairs.tsv", {}
    rows = write_pairs(path, int(megabytes * 1_000_000), size)
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", str(path), str(folder / "run"), *(["--tiny"] if size == "tiny" else [])],
        env={**os.environ, "REGARD_CACHE": str(folder / "cache")},
    )
    watcher = threading.Thread(target=watch, args=(process, peaks))
    watcher.start()
    code = process.wait()
    watcher.join()
    if code:
        sys.exit(code)
    mebibytes = {f"{name}_mib": kib / 1024 for name, kib in peaks.items()}
    return {"megabytes": megabytes, "rows": rows, "seconds": time.perf_counter() - start, **mebibytes}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, has_device=False)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[20, 200, 2000])
    parser.add_argument("--folder", type=Path, default=None, help="for the files; a temporary folder by default")
    parser.add_argument("--child", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parse(parser, arguments)
    if options.child:
        train_on(*options.child, options.size)
        return
    results = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for megabytes in [0.01] if options.tiny else options.megabytes:
            results.append(measure(Path(folder), megabytes, options.size))
            if not options.json:
                peaks = ", ".join(f"{name} {results[-1][f'{name}_mib']:.0f} MiB" for name in MEASURED)
                print(f"{megabytes:,g} MB, {results[-1]['rows']:,} rows: {peaks}", flush=True)
    print_results(options, results)


if __name__ == "__main__":
    main()
