"""How good models get in a few minutes, on public data with published results.

    python benchmarks/quality.py [--row multi30k-de-en] [--minutes N] [--seed 0] [--device cuda] [--json]

Multi30k: cased BLEU by sacrebleu with a beam of 5, one model, no other data, on
test_2016_flickr and test_2017_flickr. Seen elsewhere for transformers' Marian
classes from scratch: en-de 39.1 / 31.5, de-en 41.9 / 37.6.

Penn Treebank by words: test perplexity without dynamic evaluation. Published:
AWD-LSTM 57.3, Transformer-XL 54.5.

The data is read from the shared folder beside this project; rows whose data is
not there are left out.
"""

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import regard
from regard.settings import merge

DATA = Path(__file__).parents[2] / "shared" / "data"
TRANSLATION: dict[str, Any] = {
    "train": {"optimizer": "muon", "learning_rate": 0.004, "schedule": "trapezoid", "consistency": 5.0,
              "batch_tokens": 8192, "patience": 0},
}  # fmt: skip
QUICK = merge(TRANSLATION, {"train": {"consistency": 0.0}})
WORDS: dict[str, Any] = {
    "task": "language",
    "data": {"train": [str(DATA / "ptb")], "tokenizer": "words", "window": 128},
    "train": {"average": 0.995, "patience": 0},
}
GPT: dict[str, Any] = {
    "data": {"window": 256, "stride": 64},
    "model": {
        "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048, "dropout": 0.55, "token_dropout": 0.15,
        "attention_dropout": 0.1,
    },
    "train": {"consistency": 4.0, "weight_decay": 0.5},
}  # fmt: skip
# As Merity et al. (2017) have it, with AdamW whose rate falls in place of averaged gradient descent.
LSTM: dict[str, Any] = {
    "data": {"window": 70},
    "model": {
        "num_layers": 3, "model_dim": 384, "hidden_dim": 1024, "locked_dropout": True, "weight_dropout": 0.5,
        "token_dropout": 0.1, "dropout": 0.4, "input_dropout": 0.4, "layer_dropout": 0.25,
    },
    "train": {
        "carry_state": True, "window_jitter": 0.1, "activation_penalty": 2.0, "change_penalty": 0.6, "clip_norm": 0.25,
        "batch_tokens": 4480, "optimizer": "adamw", "learning_rate": 0.002, "schedule": "cosine", "warmup_steps": 300,
        "beta2": 0.99, "weight_decay": 0.02, "average": 0.999, "consistency": 1.0, "evaluate_every": 3000,
        "checkpoint_every": 1_000_000,
    },
}  # fmt: skip
ROWS: dict[str, tuple[str, dict[str, Any], float]] = {
    # preset, settings, minutes
    "multi30k-de-en": ("small", merge(TRANSLATION, {"data": {"columns": ["de", "en"]}}), 4.5),
    "multi30k-en-de": ("small", merge(TRANSLATION, {"data": {"columns": ["en", "de"]}}), 4.5),
    "multi30k-de-en-quick": ("small", merge(QUICK, {"data": {"columns": ["de", "en"]}}), 0.5),
    "multi30k-en-de-quick": ("small", merge(QUICK, {"data": {"columns": ["en", "de"]}}), 0.5),
    "ptb-gpt": ("gpt-small", merge(WORDS, GPT), 9.5),
    "ptb-lstm": ("lstm-small", merge(WORDS, LSTM), 9.5),
}


def run_row(name: str, minutes: float | None, seed: int, device: str) -> dict[str, Any] | None:
    """Train, and score on the test sets; None where the data is missing."""
    preset, settings, usual = ROWS[name]
    folder = DATA / name.split("-")[0]
    if not folder.exists():
        return None
    own = {"preset": preset, "train": {"minutes": minutes or usual, "seed": seed, "device": device}}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        run = regard.train(str(folder), out=f"{out}/run", settings=merge(settings, own), show_progress=False)
        trained = time.perf_counter() - start
        if name.startswith("multi30k"):
            columns = settings["data"]["columns"]
            tests = {
                stem: [folder / f"{stem}.{column}.xz" for column in columns]
                for stem in ("test_2016_flickr", "test_2017_flickr")
            }
            scores = {stem: run.evaluate(paths, beam_size=5).scores["bleu"] for stem, paths in tests.items()}
        else:
            scores = {"test": run.test().scores["perplexity"]}
    return {"row": name, "seconds_of_training": trained, **{key: score.to_json() for key, score in scores.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=list(ROWS), action="append", help="one of the rows only")
    parser.add_argument("--minutes", type=float, help="of training, in place of each row's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    results = []
    for name in options.row or ROWS:
        found = run_row(name, options.minutes, options.seed, options.device)
        if found is None:
            print(f"{name}: left out, its data is not there")
            continue
        results.append(found)
        if not options.json:
            scores = {key: value for key, value in found.items() if isinstance(value, dict)}
            told = ", ".join(
                f"{key} {value['value']:.2f} [{value['interval'][0]:.2f}, {value['interval'][1]:.2f}]"
                for key, value in scores.items()
            )
            print(f"{name}: {told} after {found['seconds_of_training']:.0f} s", flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
