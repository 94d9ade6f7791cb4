"""Every benchmark that has a row for a GPU, one after the other, beside its peers.

    python benchmarks/gpu.py [--data FOLDER]

FOLDER holds `tinyshakespeare/input.txt`; without it that row is left out. Each
script can be run by itself and has `--help` and `--json`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROWS = [
    ["train_text.py", "--device", "cuda", "--seconds", "4"],
    ["train_step.py", "--device", "cuda", "--compile", "--shape", "base", "--seconds", "6"],
    ["generate.py", "--device", "cuda", "--seconds", "3"],
    ["translate.py", "--device", "cuda"],
    ["recurrent_step.py", "--device", "cuda", "--seconds", "5"],
    ["context.py", "--device", "cuda"],
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of public data sets")
    options = parser.parse_args()
    rows = list(ROWS)
    if options.data is not None:
        text = options.data / "tinyshakespeare" / "input.txt"
        rows.append(["shakespeare.py", str(text), "--device", "cuda", "--seeds", "5"])
    failed = []
    for script, *arguments in rows:
        print(f"== {script} {' '.join(arguments)}", flush=True)
        if subprocess.run([sys.executable, str(HERE / script), *arguments], check=False).returncode:
            failed.append(script)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
