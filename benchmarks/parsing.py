"""Constituency parsing on the sample of the Penn Treebank, by plain defaults.

    python benchmarks/parsing.py [--minutes 10 | --steps 1200] [--row scratch] [--base MINILM] [--seed 0] [--json]

Trees wsj_0001 to 0159 are for training, 0160 to 0179 for validation and 0180 to 0199 for the test (README of the data).
`scratch` is `regard train`, `linear` the same with a decoder of linearized trees, `pretrained` is `regard finetune` of
an imported encoder, such as all-MiniLM-L6-v2 (`--base`, the folder that `regard import` wrote). The score is the F1 of
labeled brackets on the test sentences; beside it is the share of outputs that are trees over exactly the words of the
sentence. A row whose data is missing is not measured.
"""

import logging
import lzma
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import regard
from common.harness import make_parser, parse, print_results
from common.tiny import make_bert
from regard.data.formats.trees import parse_tree, tree_table
from regard.errors import DataError

TREEBANK = Path(__file__).parents[2] / "shared" / "data" / "treebank" / "wsj_0001-0199.mrg.xz"
ROWS = ("scratch", "linear", "pretrained")
GOALS = {"scratch": 0.75, "linear": 0.75, "pretrained": 0.85}
_LAST = {"train": 159, "valid": 179, "test": 199}
"""The last file of each set."""
_TINY_TREES = 40


def write_splits(folder: Path, *, is_tiny: bool) -> dict[str, Path]:
    """The three files of trees."""
    if is_tiny:
        trees = [
            f"(S (NP (NN {'abcde'[row % 5]})) (VP (VBZ {'xyz'[row % 3]}) (ADVP (RB w)))) " for row in range(_TINY_TREES)
        ]
        texts = {"train": trees[:30], "valid": trees[30:35], "test": trees[35:]}
    else:
        texts = {name: [] for name in _LAST}
        with lzma.open(TREEBANK, "rt", encoding="utf-8") as file:
            parts = re.split(r"^# file wsj_(\d+)\.mrg$", file.read(), flags=re.MULTILINE)
        for number, text in zip(parts[1::2], parts[2::2], strict=True):
            texts[next(name for name, last in _LAST.items() if int(number) <= last)].append(text)
    paths = {name: folder / f"{name}.mrg" for name in texts}
    for name, some in texts.items():
        paths[name].write_text("\n".join(some) + "\n", encoding="utf-8")
    return paths


def measure(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
    """Train one row, and evaluate it on the test sentences."""
    if row == "pretrained" and options.base is None and not options.tiny:
        return None
    paths = write_splits(folder, is_tiny=options.tiny)
    budget = {"steps": options.steps} if options.steps else {"minutes": options.minutes}
    common: dict[str, Any] = {"valid": str(paths["valid"]), "out": folder / row, "seed": options.seed,
                              "device": options.device, "show_progress": False, **budget}  # fmt: skip
    started, used = time.perf_counter(), time.process_time()
    if row == "pretrained":
        if options.tiny:
            regard.import_model(make_bert(folder / "bert"), folder / "base")
        run = regard.finetune(folder / "base" if options.tiny else options.base, paths["train"], **common)
    else:
        decoder = {"settings": {"task": {"decoder": "transformer"}}} if row == "linear" else {}
        run = regard.train(paths["train"], **common, **decoder)
    seconds, processor = time.perf_counter() - started, time.process_time() - used
    evaluation = run.evaluate(paths["test"])
    sentences = [sentence.values[0] for sentence in tree_table(paths["test"])]
    score = evaluation.scores["bracket_f1"]
    return {
        "row": row,
        "f1": score.value,
        "interval": score.interval,
        "goal": GOALS[row],
        "well_formed": sum(map(is_well_formed, sentences, evaluation.outputs)) / len(sentences),
        "tag_accuracy": evaluation.scores["tag_accuracy"].value,
        "baseline_f1_on_validation": None if run.baseline is None else run.baseline.scores["bracket_f1"]["value"],
        "seconds": seconds,
        "processor_seconds": processor,
    }


def is_well_formed(sentence: str, tree: str) -> bool:
    """Whether an output is one tree whose words are those of the sentence."""
    try:
        return parse_tree(tree).words() == sentence.split(" ")
    except DataError:
        return False


def measure_all(options: Any) -> Iterator[dict[str, Any]]:
    for row in options.row or ROWS:
        if not (options.tiny or TREEBANK.is_file()):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = measure(row, Path(folder), options)
        if found is None:
            continue
        if not options.json:
            low, high = found["interval"]
            print(
                f"{row:11} F1 {found['f1']:.3f} [{low:.3f}, {high:.3f}], goal {found['goal']:.2f}, well-formed "
                f"{found['well_formed']:.1%}, {found['processor_seconds'] / 60:.1f} min of a core",
                flush=True,
            )
        yield found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=None, help="steps instead of minutes")
    parser.add_argument("--base", default=None, help="the run folder of an imported encoder")
    parser.add_argument("--row", action="append", choices=ROWS, help="only this row; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, arguments)
    logging.basicConfig(level=logging.ERROR)
    if options.tiny:
        options.steps = 2
    print_results(options, list(measure_all(options)))


if __name__ == "__main__":
    main()
