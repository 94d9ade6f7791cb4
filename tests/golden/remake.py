"""Makes every golden run again and replaces the files in `runs/`: `python -m tests.golden.remake [NAME ...]`.

A commit that does so says which numbers it changes, and why.
"""

import json
import logging
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from tests.golden.cases import CASES

from regard.version import version

RUNS = Path(__file__).with_name("runs")
HEADER = "made_with"
"""The key of what is recorded besides the numbers, and compared with nothing."""


def read(name: str) -> dict[str, Any]:
    """What is recorded of a run."""
    return json.loads((RUNS / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, found: dict[str, Any]) -> None:
    made_with = {
        "regard": version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }
    text = json.dumps({HEADER: made_with, **found}, indent=1, ensure_ascii=False)
    (RUNS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    logging.getLogger("regard").setLevel(logging.ERROR)
    if unknown := set(names) - set(CASES):
        sys.exit(f"unknown golden runs: {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    if not names:
        for path in RUNS.glob("*.json"):
            path.unlink()
    RUNS.mkdir(exist_ok=True)
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["REGARD_CACHE"] = str(Path(folder) / "cache")
            write(name, CASES[name].observe(Path(folder) / "case"))
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
