"""Every benchmark that has a row for a GPU, one after the other, beside its peers.

    python benchmarks/gpu.py

Each script can be run by itself and has `--help` and `--json`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
ROWS = [
    ["train_text.py", "--device", "cuda", "--seconds", "4"],
    ["train_step.py", "--device", "cuda", "--compile", "--shape", "base", "--seconds", "6"],
    ["generate.py", "--device", "cuda", "--seconds", "3"],
    ["translate.py", "--device", "cuda"],
    ["recurrent_step.py", "--device", "cuda", "--seconds", "5"],
    ["context.py", "--device", "cuda"],
    ["shakespeare.py", "--device", "cuda", "--seeds", "5"],
    ["quality.py", "--device", "cuda"],
]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if not torch.cuda.is_available():
        print("left out: there is no GPU")
        return
    failed = []
    for script, *arguments in ROWS:
        print(f"== {script} {' '.join(arguments)}", flush=True)
        if subprocess.run([sys.executable, str(HERE / script), *arguments], check=False).returncode:
            failed.append(script)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
