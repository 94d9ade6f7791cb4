"""From the start of the process to the first answer, beside transformers, each in processes of their own.

    python benchmarks/load.py --minilm FOLDER [--smollm2 FILE.gguf] [--rounds 5] [--json]

`--minilm` is a folder in Hugging Face's layout, `--smollm2` a GGUF file; both are
imported for regard before the clock starts, as a user does once, and the second is
exported to transformers' own layout. Files are in the
system's cache: one turn of each library goes by before those that count. The answer
is the vector of a sentence, and the eight tokens behind a prompt. Ratios below 1 say that
regard is there first.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VECTOR_OURS = """
import regard
print(regard.load("{path}", device="cpu").embed(["a film to remember"])[0][:3])
"""
VECTOR_THEIRS = """
import torch
from transformers import AutoModel, AutoTokenizer
tokenizer, model = AutoTokenizer.from_pretrained("{path}"), AutoModel.from_pretrained("{path}").eval()
with torch.no_grad():
    states = model(**tokenizer(["a film to remember"], return_tensors="pt")).last_hidden_state
print(torch.nn.functional.normalize(states.mean(1))[0][:3])
"""
TEXT_OURS = """
import regard
print(regard.load("{path}", device="cpu").generate("The capital of France is", temperature=0.0, max_length=8))
"""
TEXT_THEIRS = """
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer, model = AutoTokenizer.from_pretrained("{path}"), AutoModelForCausalLM.from_pretrained("{path}").eval()
inputs = tokenizer(["The capital of France is"], return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, do_sample=False, max_new_tokens=8)[0]))
"""


def seconds_of(program: str) -> float:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, help="a folder of all-MiniLM-L6-v2")
    parser.add_argument("--smollm2", type=Path, help="a GGUF file of SmolLM2-135M-Instruct")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.minilm is None and options.smollm2 is None:
        print("left out: neither --minilm nor --smollm2 is named")
        return
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        programs = {}
        if options.minilm is not None:
            imported(options.minilm, f"{scratch}/minilm")
            theirs = VECTOR_THEIRS.format(path=options.minilm)
            programs["MiniLM, a vector"] = (VECTOR_OURS.format(path=f"{scratch}/minilm"), theirs)
        if options.smollm2 is not None:
            imported(options.smollm2, f"{scratch}/smollm2")
            saved = f"{scratch}/smollm2-theirs"
            command = [sys.executable, "-m", "regard", "export", f"{scratch}/smollm2", "--to", "hf", "--out", saved]
            subprocess.run(command, check=True, capture_output=True)
            programs["SmolLM2, eight tokens"] = (
                TEXT_OURS.format(path=f"{scratch}/smollm2"),
                TEXT_THEIRS.format(path=saved),
            )
        for name, both in programs.items():
            turns = [[seconds_of(program) for program in both] for _ in range(options.rounds + 1)][1:]
            ours, theirs = (statistics.median(each) for each in zip(*turns, strict=True))
            results[name] = {"regard": ours, "transformers": theirs, "ratio": ours / theirs}
            if not options.json:
                print(f"{name:22} regard {ours:5.2f} s  transformers {theirs:5.2f} s  {ours / theirs:5.2f}x")
    if options.json:
        print(json.dumps(results))


def imported(source: Path, out: str) -> None:
    subprocess.run([sys.executable, "-m", "regard", "import", str(source), out, "--quiet"], check=True)


if __name__ == "__main__":
    main()
