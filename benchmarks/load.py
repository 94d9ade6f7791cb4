"""The time from the start of the process to the first prediction, compared with transformers.

    python benchmarks/load.py --minilm FOLDER [--smollm2 FILE.gguf] [--rounds 5] [--json]

`--minilm` is a folder in Hugging Face's layout, `--smollm2` a GGUF file. Both are imported for regard beforehand, as a
user does once, and the second is exported to transformers' own layout. Each library runs in processes of its own; one
turn of each that does not count brings the files into the system's cache. The prediction is the vector of a sentence,
or the eight tokens after a prompt. A speedup above 1 means that regard is faster.
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import regard
from common.harness import make_parser, parse, print_results, seconds_of
from common.tiny import make_bert, make_llama

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
print(torch.nn.functional.normalize(states.mean(1))[0][:3].numpy())
"""
TEXT_OURS = """
import regard
print(regard.load("{path}", device="cpu").generate("The capital of France is", temperature=0.0, max_tokens=8))
"""
TEXT_THEIRS = """
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer, model = AutoTokenizer.from_pretrained("{path}"), AutoModelForCausalLM.from_pretrained("{path}").eval()
inputs = tokenizer(["The capital of France is"], return_tensors="pt")
made = model.generate(**inputs, do_sample=False, max_new_tokens=8)[0][inputs["input_ids"].size(1):]
print(tokenizer.decode(made))
"""


def output_of(program: str) -> str:
    """What a Python program prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.strip()


def output_here(program: str) -> str:
    """What a Python program prints in this process."""
    with redirect_stdout(StringIO()) as printed:
        exec(program, {})
    return printed.getvalue().strip()


def make_programs(scratch: Path, minilm: Path | None, smollm2: Path | None) -> dict[str, dict[str, str]]:
    """For each prediction the program of each library."""
    programs = {}
    if minilm is not None:
        ours = regard.import_model(minilm, scratch / "minilm")
        programs["MiniLM, a vector"] = {
            "regard": VECTOR_OURS.format(path=ours),
            "transformers": VECTOR_THEIRS.format(path=minilm),
        }
    if smollm2 is not None:
        ours = regard.import_model(smollm2, scratch / "smollm2")
        regard.export_model(ours, scratch / "smollm2-hf", to="hf")
        programs["SmolLM2, eight tokens"] = {
            "regard": TEXT_OURS.format(path=ours),
            "transformers": TEXT_THEIRS.format(path=scratch / "smollm2-hf"),
        }
    return programs


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, has_device=False)
    parser.add_argument("--minilm", type=Path, help="a folder of all-MiniLM-L6-v2")
    parser.add_argument("--smollm2", type=Path, help="a GGUF file of SmolLM2-135M-Instruct")
    parser.add_argument("--rounds", type=int, default=5)
    options = parse(parser, arguments)
    if not (options.minilm or options.smollm2 or options.tiny):
        print("not measured: neither --minilm nor --smollm2 is given")
        return
    # Starting processes takes most of the time of a tiny run, whose times have no meaning.
    rounds, run = (1, output_here) if options.tiny else (options.rounds, output_of)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if options.tiny:
            options.minilm, options.smollm2 = make_bert(scratch / "bert"), make_llama(scratch)
        for name, programs in make_programs(scratch, options.minilm, options.smollm2).items():
            outputs = {library: run(program) for library, program in programs.items()}  # the turn that does not count
            times: dict[str, list[float]] = {library: [] for library in programs}
            for _ in range(rounds):
                for library, program in programs.items():
                    times[library].append(seconds_of(lambda program=program: run(program)))
            medians = {library: statistics.median(values) for library, values in times.items()}
            for library, seconds in medians.items():
                row = {"work": name, "library": library, "seconds": seconds, "output": outputs[library]}
                results.append({**row, "speedup": seconds / medians["regard"]})
            if not options.json:
                told = "  ".join(f"{library} {seconds:5.2f} s" for library, seconds in medians.items())
                print(f"{name:22} {told}  {results[-1]['speedup']:5.2f}x")
    print_results(options, results)


if __name__ == "__main__":
    main()
