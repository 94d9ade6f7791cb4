"""The quality of models that are trained for a few minutes, on public data with published results.

    python benchmarks/quality.py [--row multi30k-de-en] [--minutes N] [--seed 0] [--device cuda] [--json]

Multi30k: cased BLEU by sacrebleu with a beam of 5, one model, no other data, on test_2016_flickr and test_2017_flickr.
For comparison, measured elsewhere with transformers' Marian classes from scratch: en-de 39.1 / 31.5, de-en 41.9 / 37.6.

Penn Treebank by words, which are chosen since the text marks rare words: test perplexity without dynamic evaluation.
Published: AWD-LSTM 57.3, Transformer-XL 54.5.

Each row has a budget, a seed and a device; the other settings are the defaults, which are printed.

The data is read from the shared folder beside this project; a row whose data is missing is not measured.
"""

import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regard
from common.harness import make_parser, parse, print_results
from common.tiny import write_multi30k, write_ptb
from regard.settings import merge_tables

DATA = Path(__file__).parents[2] / "shared" / "data"
ROWS: dict[str, tuple[dict[str, Any], float]] = {
    # what is trained, and minutes; all else is the default
    "multi30k-de-en": ({"data": {"columns": ["de", "en"]}}, 3.5),
    "multi30k-en-de": ({"data": {"columns": ["en", "de"]}}, 3.5),
    "multi30k-de-en-quick": ({"data": {"columns": ["de", "en"]}}, 0.5),
    "multi30k-en-de-quick": ({"data": {"columns": ["en", "de"]}}, 0.5),
    "ptb-gpt": ({"task": {"name": "language-modeling"}}, 9.5),
    "ptb-lstm": ({"task": {"name": "language-modeling"}, "preset": "lstm"}, 9.5),
}


TINY = {
    "transformer": {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 32},
    "recurrent": {"num_layers": 2, "model_dim": 16},
}
"""The shape of each family in a tiny run."""
TINY_BUDGET: dict[str, Any] = {"max_steps": 2, "minutes": None, "batch_tokens": 512, "evaluate_every": 2}


def tiny_settings(name: str) -> dict[str, Any]:
    """What a tiny run of a row changes."""
    shape = TINY["recurrent" if "lstm" in name else "transformer"]
    windows = {"window": 16} if name.startswith("ptb") else {}
    return {"model": shape, "task": windows, "train": TINY_BUDGET, "generate": {"max_tokens": 5}}


def run_row(name: str, data: Path, changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Trains a model and scores it on the test sets; None where the data is missing."""
    settings, minutes = ROWS[name]
    folder = data / name.split("-")[0]
    if not folder.exists():
        return None
    settings = merge_tables(merge_tables(settings, {"train": {"minutes": minutes}}), changes)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        run = regard.train(str(folder), out=f"{out}/run", settings=settings, show_progress=False)
        trained = time.perf_counter() - start
        if name.startswith("multi30k"):
            # The first of the two is the test set of the folder, which is sealed: only `test` reads it.
            other = [folder / f"test_2017_flickr.{column}.xz" for column in settings["data"]["columns"]]
            found = {"test_2016_flickr": run.test(beam_size=5), "test_2017_flickr": run.evaluate(other, beam_size=5)}
            scores = {stem: evaluation.scores["bleu"] for stem, evaluation in found.items()}
        else:
            scores = {"test": run.test().scores["perplexity"]}
    return {"row": name, "seconds_of_training": trained, "scores": {key: s.to_json() for key, s in scores.items()}}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(device="cuda")
    parser.add_argument("--row", choices=list(ROWS), action="append", help="this row only")
    parser.add_argument("--minutes", type=float, help="of training, in place of each row's own")
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, arguments)
    logging.basicConfig(level=logging.ERROR)
    given: dict[str, Any] = {"train": {"seed": options.seed, "device": options.device}}
    if options.minutes:
        given["train"]["minutes"] = options.minutes
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data" if options.tiny else DATA
        if options.tiny:
            write_multi30k(data / "multi30k")
            write_ptb(data / "ptb")
        for name in options.row or ROWS:
            found = run_row(name, data, merge_tables(given, tiny_settings(name)) if options.tiny else given)
            if found is None:
                print(f"{name}: not measured, its data is missing")
                continue
            results.append(found)
            if not options.json:
                told = ", ".join(
                    f"{key} {value['value']:.2f} [{value['interval'][0]:.2f}, {value['interval'][1]:.2f}]"
                    for key, value in found["scores"].items()
                )
                print(f"{name}: {told} after {found['seconds_of_training']:.0f} s", flush=True)
    print_results(options, results)


if __name__ == "__main__":
    main()
