"""The quality of models that are trained for a few minutes, on public data with published results.

    python benchmarks/quality.py [--row multi30k-de-en] [--minutes N] [--seed 0] [--device cuda] [--json]

Multi30k: cased BLEU by sacrebleu with a beam of 5, one model, no other data, on test_2016_flickr and test_2017_flickr.
For comparison, measured elsewhere with transformers' Marian classes from scratch: en-de 39.1 / 31.5, de-en 41.9 / 37.6.

Penn Treebank by words: test perplexity without dynamic evaluation. Published: AWD-LSTM 57.3, Transformer-XL 54.5.

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
TRANSLATION: dict[str, Any] = {
    "train": {"optimizer": "muon", "learning_rate": 0.004, "schedule": "trapezoid", "rdrop": 5.0,
              "batch_tokens": 8192, "patience": 0},
}  # fmt: skip
QUICK = merge_tables(TRANSLATION, {"train": {"rdrop": 0.0}})
WORDS: dict[str, Any] = {
    "task": {"name": "language-modeling", "tokenizer": "words", "window": 128},
    "train": {"ema_decay": 0.995, "patience": 0},
}
GPT: dict[str, Any] = {
    "task": {"window": 256, "stride": 64},
    "model": {
        "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048, "dropout": 0.55, "token_dropout": 0.15,
        "attention_dropout": 0.1,
    },
    "train": {"rdrop": 4.0, "weight_decay": 0.5},
}  # fmt: skip
# As in Merity et al. (2017), but for AdamW with a decaying learning rate in place of averaged gradient descent.
LSTM: dict[str, Any] = {
    "task": {
        "window": 70, "carry_state": True, "window_jitter": 0.1, "activation_penalty": 2.0, "change_penalty": 0.6,
    },
    "model": {
        "num_layers": 3, "model_dim": 384, "hidden_dim": 1024, "locked_dropout": True, "weight_dropout": 0.5,
        "token_dropout": 0.1, "dropout": 0.4, "input_dropout": 0.4, "layer_dropout": 0.25,
    },
    "train": {
        "clip_norm": 0.25, "batch_tokens": 4480, "optimizer": "adamw", "learning_rate": 0.002, "schedule": "cosine",
        "warmup_steps": 300, "beta2": 0.99, "weight_decay": 0.02, "ema_decay": 0.999, "rdrop": 1.0,
        "evaluate_every": 3000, "checkpoint_every": 1_000_000,
    },
}  # fmt: skip
ROWS: dict[str, tuple[str, dict[str, Any], float]] = {
    # preset, settings, minutes
    "multi30k-de-en": ("small", merge_tables(TRANSLATION, {"data": {"columns": ["de", "en"]}}), 4.5),
    "multi30k-en-de": ("small", merge_tables(TRANSLATION, {"data": {"columns": ["en", "de"]}}), 4.5),
    "multi30k-de-en-quick": ("small", merge_tables(QUICK, {"data": {"columns": ["de", "en"]}}), 0.5),
    "multi30k-en-de-quick": ("small", merge_tables(QUICK, {"data": {"columns": ["en", "de"]}}), 0.5),
    "ptb-gpt": ("gpt-small", merge_tables(WORDS, GPT), 9.5),
    "ptb-lstm": ("lstm-small", merge_tables(WORDS, LSTM), 9.5),
}


TINY = {
    "transformer": {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 32},
    "recurrent": {"num_layers": 2, "model_dim": 16, "hidden_dim": 32},
}
"""The shape of each family in a tiny run; its other settings are those of its row."""
TINY_BUDGET: dict[str, Any] = {"max_steps": 2, "minutes": None, "batch_tokens": 512, "evaluate_every": 2}


def tiny_settings(name: str) -> dict[str, Any]:
    """What a tiny run of a row changes."""
    shape = TINY["recurrent" if "lstm" in name else "transformer"]
    windows = {"window": 16, "stride": 16} if name.startswith("ptb") else {}
    return {"model": shape, "task": windows, "train": TINY_BUDGET, "generate": {"max_tokens": 5}}


def run_row(name: str, data: Path, changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Trains a model and scores it on the test sets; None where the data is missing."""
    preset, settings, minutes = ROWS[name]
    folder = data / name.split("-")[0]
    if not folder.exists():
        return None
    settings = merge_tables(merge_tables(settings, {"preset": preset, "train": {"minutes": minutes}}), changes)
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
