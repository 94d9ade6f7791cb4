"""Every benchmark that has a row for a GPU, one after the other, compared with other libraries.

    python benchmarks/gpu.py [--script NAME ...]

Each script can be run by itself and has `--help` and `--json`.
"""

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from common.harness import make_parser, parse

HERE = Path(__file__).parent
ROWS = {
    "train_text": ["--seconds", "4"],
    "train_step": ["--compile", "--shape", "base", "--seconds", "6"],
    "generate": ["--seconds", "3"],
    "translate": [],
    "recurrent_step": ["--seconds", "5"],
    "vit_step": ["--seconds", "6"],
    "context": [],
    "plan": [],
    "shakespeare": ["--seeds", "5"],
    "quality": [],
}
"""For each script its options."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--script", choices=list(ROWS), action="append", help="this script only")
    options = parse(parser, arguments)
    if not (torch.cuda.is_available() or options.tiny):
        print("not measured: there is no GPU")
        return
    failed = []
    for name in options.script or ROWS:
        own = [*ROWS[name], *(["--json"] if options.json else [])]
        if not options.json:
            print(f"== {name}.py {' '.join(own)}", flush=True)
        if options.tiny:  # in this process: starting others takes longer than all the rest
            importlib.import_module(name).main(["--tiny", *own])
        elif subprocess.run(
            [sys.executable, str(HERE / f"{name}.py"), "--device", "cuda", *own], check=False
        ).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
