"""How good models get that go on from a pretrained one, beside models from scratch, on public data.

    python benchmarks/finetune.py --base minilm [--row sst2-lora] [--seeds 5] [--jobs 8] [--device cuda] [--json]

`--base` is a folder that `regard import` made of all-MiniLM-L6-v2. Runs are
processes of their own, `--jobs` at a time. A score is the mean over seeds, with
Student's 95 % interval for the mean; a seed also draws the labels where few are
taken, the same for every model. Settings were chosen on rows held out of the
training file, never on the rows that are scored here.

    sst2       67,349 phrases with two labels; accuracy on the 872 sentences of the development set
    few        so many of these sentences only
    conll      entities of CoNLL-2003; F1 on testb
    semeval    what is said about food, service and so on (three ways); accuracy on the gold test file
    squad      SQuAD's development set: 38 articles to learn from, 10 to be judged by; F1 of the answers

The peers are transformers' own recipes with the same weights, which lie in
Hugging Face's layout in `minilm-hf` beside the base: AdamW at 5e-5, three passes,
batches of 32; for SQuAD windows of 384 tokens that overlap by 128, batches of 12.

The data is read from the shared folder beside this project; rows whose data is
not there are left out.
"""

import argparse
import json
import logging
import lzma
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from regard.evaluation.means import mean_interval

DATA = Path(__file__).parents[2] / "shared" / "data"
TESTED_ARTICLES = 10

Settings = dict[str, Any]
Found = dict[str, float]
"""Scores and the seconds of training."""


class Place:
    """What a row is run with."""

    def __init__(self, data: Path, base: str, seed: int, device: str) -> None:
        self.data, self.base, self.seed, self.device = data, base, seed, device
        self.scratch = tempfile.TemporaryDirectory()
        self.theirs = Path(base).with_name("minilm-hf")
        self.run: Any = None

    def trained(
        self,
        rows: Any,
        /,
        *,
        task: str,
        model: str | None = None,
        method: str = "all",
        shape: Settings | None = None,
        **settings: Any,
    ) -> Any:
        """A run on a file, or on rows: from scratch where a model is named, otherwise from the base."""
        import regard

        own = {**settings, "train": {**settings.get("train", {}), "seed": self.seed, "device": self.device}}
        if shape is not None:
            own["model"] = shape
        out = f"{self.scratch.name}/run"
        if model is not None:
            own["task"] = task
            self.run = regard.train(rows, out=out, model=model, settings=own, show_progress=False)
        else:
            self.run = regard.finetune(
                self.base, rows, out=out, task=task, method=method, settings=own, show_progress=False
            )
        return self.run

    def on_validation(self, names: Iterable[str]) -> Found:
        """What the run reported on its validation rows, by which settings were chosen."""
        if self.run is None:
            return {}
        reported = [line for line in self.run.folder.read_looks() if line["what"] == "report"][-1]["scores"]
        return {f"validation_{name}": reported[name]["value"] for name in names if name in reported}


def sst2(place: Place, *, metric: str = "accuracy", **how: Any) -> Found:
    run = place.trained(str(place.data / "sst/sst2-glue.train.tsv.xz"), task="classification", **how)
    return scores_of(run.evaluate(str(place.data / "sst/sst2-glue.dev.tsv.xz")), metric)


def few(place: Place, *, count: int, judged_by: str = "dev", **how: Any) -> Found:
    """So many sentences, half of them of each label; settings are chosen by `others`, which were not drawn."""
    sentences = table(place.data / "sst/stsa.binary.train.xz")
    drawn = random.Random(place.seed)
    drawn.shuffle(sentences)
    rows: list[tuple[str, str]] = []
    for label in sorted({label for _, label in sentences}):
        rows += [row for row in sentences if row[1] == label][: count // 2]
    drawn.shuffle(rows)
    run = place.trained(rows, task="classification", **how)
    others = [row for row in sentences if row not in set(rows)][:2_000]
    tested = others if judged_by == "others" else table(place.data / "sst/stsa.binary.dev.xz")
    return scores_of(run.judge(tested), "accuracy")


def conll(place: Place, **how: Any) -> Found:
    folder = place.data / "conll2003"
    settings = how.pop("data", {})
    files = {**settings, "valid": [str(folder / "eng.testa.xz")]}
    run = place.trained(str(folder / "eng.train.xz"), task="tagging", data=files, **how)
    return scores_of(run.evaluate(str(folder / "eng.testb.xz")), "entity_f1")


def semeval(place: Place, **how: Any) -> Found:
    folder = place.data / "semeval14"
    if "model" in how:
        how = merged({"data": {"vectors": place.base}}, how)
    run = place.trained(str(folder / "Restaurants_Train_v2.xml.xz"), task="aspects", **how)
    return scores_of(run.evaluate(str(folder / "Restaurants_Test_Gold.xml.xz")), "accuracy")


def squad(place: Place, **how: Any) -> Found:
    train, test = (Path(place.scratch.name) / f"{part}.json" for part in ("train", "test"))
    for path, articles in zip((train, test), divided(place.data), strict=True):
        path.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    run = place.trained(str(train), task="answering", **how)
    return scores_of(run.evaluate(str(test)), "answer_f1", "answer_exact_match")


def sst2_peer(place: Place, *, rate: float) -> Found:
    """The recipe of transformers on the same rows, with the same weights."""
    from peers.labels import labels_by_transformers

    files = [place.data / f"sst/sst2-glue.{part}.tsv.xz" for part in ("train", "dev")]
    train, test = (table(path, separator="\t")[1:] for path in files)
    answers = labels_by_transformers(place.theirs, train, [text for text, _ in test], place.seed, place.device, rate)
    return {"accuracy": statistics.fmean(said == true for said, (_, true) in zip(answers, test, strict=True))}


def conll_peer(place: Place, *, rate: float) -> Found:
    from seqeval.metrics import f1_score

    from peers.labels import tags_by_transformers

    train, test = (sentences(place.data / f"conll2003/eng.{part}.xz") for part in ("train", "testb"))
    answers = tags_by_transformers(place.theirs, train, [words for words, _ in test], place.seed, place.device, rate)
    return {"entity_f1": float(f1_score([tags for _, tags in test], answers))}


def squad_peer(place: Place) -> Found:
    """The recipe of transformers on the same articles, with the same weights, scored by the same rules."""
    from peers.squad import answers_of_transformers
    from regard.evaluation.answers import score_answers

    train, test = divided(place.data)
    start = time.perf_counter()
    answers, references = answers_of_transformers(place.theirs, train, test, place.seed, place.device)
    found = {score.name: score.value for score in score_answers(answers, references)}
    return {**found, "seconds": time.perf_counter() - start}


LSTM_WORDS: Settings = {"data": {"tokenizer": "words"}, "train": {"minutes": 0.8}}
SEMEVAL_LSTM: Settings = {
    "model": "lstm-tiny",
    "shape": {"num_layers": 1, "model_dim": 384, "dropout": 0.4, "token_dropout": 0.2},
    "head": {"dropout": 0.5},
    "train": {"max_steps": 700, "label_smoothing": 0.1, "learning_rate": 0.0015},
}
ROWS: dict[str, tuple[Callable[..., Found], Settings]] = {
    "sst2-full": (
        sst2,
        {"train": {"consistency": 4.0, "average": 0.998, "max_epochs": 6.0}, "finetune": {"layer_decay": 0.85}},
    ),
    "sst2-lora": (
        sst2,
        {
            "method": "lora",
            "finetune": {"lora": {"rank": 4}},
            "train": {"consistency": 4.0, "average": 0.998, "max_epochs": 8.0},
        },
    ),
    "sst2-lstm": (sst2, {"model": "lstm-small", **LSTM_WORDS}),
    **{f"few-{count}": (few, {"count": count}) for count in (16, 100, 1_000)},
    **{
        f"few-{count}-lstm": (few, {"count": count, "model": "lstm", "train": {"minutes": 0.4}})
        for count in (16, 100, 1_000, 5_000)
    },
    "sst2-peer": (sst2_peer, {"rate": 5e-5}),
    "conll-peer": (conll_peer, {"rate": 5e-5}),
    "conll-full": (
        conll,
        {
            "head": {"crf": True, "hidden": True},
            "finetune": {"layer_decay": 0.85},
            "train": {"max_epochs": 16.0, "batch_tokens": 2_048, "average": 0.998},
        },
    ),
    "conll-lstm-crf": (conll, {"model": "lstm-small", "head": {"crf": True}, "train": {"minutes": 1.2}}),
    # The test file is another: of the training file more can choose the weights.
    "semeval-full": (semeval, {"data": {"splits": [0.85, 0.15, 0.0]}, "train": {"average": 0.99}}),
    "semeval-lstm": (semeval, SEMEVAL_LSTM),
    "squad-full": (squad, {"train": {"consistency": 1.0}}),
    "squad-peer": (squad_peer, {}),
}


def table(path: Path, separator: str = " ") -> list[tuple[str, str]]:
    """Sentences and labels of a file with the label first."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [(text.rstrip("\n"), label) for label, _, text in (line.partition(separator) for line in lines)]


def sentences(path: Path) -> list[tuple[list[str], list[str]]]:
    """Words and tags of a file in CoNLL's columns."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        blocks = [[line.split() for line in block.splitlines()] for block in file.read().split("\n\n")]
    full = [block for block in blocks if block and block[0] and block[0][0] != "-DOCSTART-"]
    return [([line[0] for line in block], [line[-1] for line in block]) for block in full]


def divided(data: Path) -> tuple[list[Any], list[Any]]:
    """The articles to learn from, and those to be judged by."""
    with lzma.open(data / "squad/dev-v1.1.json.xz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return articles[:-TESTED_ARTICLES], articles[-TESTED_ARTICLES:]


def scores_of(evaluation: Any, *names: str) -> Found:
    return {name: evaluation.scores[name].value for name in names}


def run_one(name: str, place: Place, changes: Settings) -> Found:
    function, settings = ROWS[name]
    start = time.perf_counter()
    found = function(place, **merged(settings, changes))
    return {"seconds": time.perf_counter() - start, **found, **place.on_validation(found)}


def merged(settings: Settings, changes: Settings) -> Settings:
    both = {key: merged(settings[key], value) if isinstance(settings.get(key), dict) else value
            for key, value in changes.items()}  # fmt: skip
    return {**settings, **both}


def summary(found: list[Found]) -> dict[str, tuple[float, float]]:
    """For each score its mean over the seeds, and half the width of Student's 95 % interval."""
    result = {}
    for name in found[0]:
        mean, _, high = mean_interval([each[name] for each in found])
        result[name] = (mean, high - mean)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="minilm", help="the folder of the imported model")
    parser.add_argument("--row", choices=list(ROWS), action="append", help="some of the rows only")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", default="{}", help="settings that replace a row's own, as JSON")
    parser.add_argument("--one", type=int, metavar="SEED", help="run one row with this seed here, and print JSON")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    if options.one is not None:
        place = Place(options.data, options.base, options.one, options.device)
        print(json.dumps(run_one(options.row[0], place, json.loads(options.set))))
        return
    names = options.row or list(ROWS)

    def run(name: str, seed: int) -> Found | None:
        given = ["--base", options.base, "--data", str(options.data), "--device", options.device, "--set", options.set]
        command = [sys.executable, __file__, "--row", name, "--one", str(seed), *given]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}, seed {seed}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return None
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {name: [pool.submit(run, name, seed) for seed in range(options.seeds)] for name in names}
        results = {}
        for name, futures in waiting.items():
            found = [each for each in (future.result() for future in futures) if each is not None]
            if not found:
                continue
            results[name] = {"seeds": found}
            if not options.json:
                told = ", ".join(
                    f"{key} {mean:.4g} ± {half:.2g}" if key != "seconds" else f"{mean:.0f} s"
                    for key, (mean, half) in summary(found).items()
                )
                print(f"{name:16} {len(found)} seeds: {told}", flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
