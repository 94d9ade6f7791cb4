"""The quality of models that are fine-tuned from a pretrained one, compared with models from scratch, on public data.

    python benchmarks/finetune.py --base minilm [--row sst2-lora] [--seeds 5] [--jobs 8] [--device cuda] [--json]

`--base` is a run folder that `regard import` made of all-MiniLM-L6-v2. Runs are processes of their own, `--jobs` at a
time. A score is the mean over seeds, with Student's 95 % interval for the mean; where few labels are taken, the seed
also samples them, the same for every model. A row has a budget, a seed and a device, and `lora` a method; the other
settings are the defaults. These were chosen on rows held out of the training files, never on the rows that are scored
here. `scratch` is a model without the base, `embeddings` one that is initialized with the base's token embeddings.

    sst2       67,349 phrases with two labels; accuracy on the 872 sentences of the development set
    few        a few of these sentences only
    conll      entities of CoNLL-2003; F1 on testb
    semeval    sentiment about food, service and so on (three labels); accuracy on the gold test file
    squad      SQuAD's development set: 38 articles for training, 10 for evaluation; F1 of the answers

The peers are transformers' own recipes with the same weights, in Hugging Face's layout in `minilm-hf` beside the base:
AdamW at 5e-5, three epochs, batches of 32; for SQuAD windows of 384 tokens that overlap by 128, batches of 12. With few
sentences the peer is scikit-learn's logistic regression on the vectors of the base.

The data is read from the shared folder beside this project; a row whose data is missing is not measured.
"""

import json
import logging
import lzma
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sklearn.linear_model import LogisticRegression

from common.harness import make_parser, parse, print_results
from common.tiny import make_bert, write_labelled
from regard.evaluation.intervals import mean_interval
from regard.settings import merge_tables
from regard.training.finetuning import Method

DATA = Path(__file__).parents[2] / "shared" / "data"
TESTED_ARTICLES = 10

Settings = dict[str, Any]
Found = dict[str, float]
"""Scores and the seconds of training."""


class Workspace:
    """The data, the base, the seed and the device of a row, and a folder for its run."""

    def __init__(self, data: Path, base: str, seed: int, device: str) -> None:
        self.data, self.base, self.seed, self.device = data, base, seed, device
        self.scratch = tempfile.TemporaryDirectory()
        self.theirs = Path(base).with_name("minilm-hf")
        self.run: Any = None

    def train(
        self,
        rows: Any,
        /,
        *,
        task: str,
        is_new: bool = False,
        method: Method = "all",
        settings: Settings | None = None,
        **given: Any,
    ) -> Any:
        """Trains on a file, or on rows: from scratch where `is_new`, otherwise from the base."""
        import regard

        given |= {"task": task, "seed": self.seed, "device": self.device, "out": f"{self.scratch.name}/run"}
        if is_new:
            self.run = regard.train(rows, **given, settings=settings, show_progress=False)
        else:
            self.run = regard.finetune(self.base, rows, **given, method=method, settings=settings, show_progress=False)
        return self.run

    def on_validation(self, names: Iterable[str]) -> Found:
        """The scores on the validation rows, by which settings were chosen."""
        if self.run is None:
            return {}
        reported = [line for line in self.run.folder.read_ledger() if line["event"] == "report"][-1]["scores"]
        return {f"validation_{name}": reported[name]["value"] for name in names if name in reported}


def sst2(workspace: Workspace, *, metric: str = "accuracy", **how: Any) -> Found:
    run = workspace.train(str(workspace.data / "sst/sst2-glue.train.tsv.xz"), task="text-classification", **how)
    return scores_of(run.evaluate(str(workspace.data / "sst/sst2-glue.dev.tsv.xz")), metric)


def few(workspace: Workspace, *, count: int, scored_on: str = "dev", **how: Any) -> Found:
    """A few sentences; settings are chosen by `others`, which were not sampled."""
    rows, others = sample(workspace, count)
    run = workspace.train(rows, task="text-classification", **how)
    tested = others if scored_on == "others" else table(workspace.data / "sst/stsa.binary.dev.xz")
    return scores_of(run.evaluate_rows(tested), "accuracy")


def few_peer(workspace: Workspace, *, count: int) -> Found:
    """Logistic regression on the vectors of the base, which are not trained."""
    import regard

    rows, _ = sample(workspace, count)
    base, tested = regard.load(workspace.base), table(workspace.data / "sst/stsa.binary.dev.xz")
    texts, labels = zip(*rows, strict=True)
    model = LogisticRegression(max_iter=1_000).fit(base.embed(texts), labels)
    return {"accuracy": float(model.score(base.embed([text for text, _ in tested]), [label for _, label in tested]))}


def sample(workspace: Workspace, count: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """`count` sentences by the seed, the same number of each label, and 2,000 of the others."""
    sentences = table(workspace.data / "sst/stsa.binary.train.xz")
    rng = random.Random(workspace.seed)
    rng.shuffle(sentences)
    rows: list[tuple[str, str]] = []
    for label in sorted({label for _, label in sentences}):
        rows += [row for row in sentences if row[1] == label][: count // 2]
    rng.shuffle(rows)
    chosen = set(rows)
    return rows, [row for row in sentences if row not in chosen][:2_000]


def conll(workspace: Workspace, **how: Any) -> Found:
    folder = workspace.data / "conll2003"
    files = [str(folder / f"eng.{part}.xz") for part in ("train", "testa", "testb")]
    run = workspace.train(files[0], valid=files[1], task="token-classification", **how)
    return scores_of(run.evaluate(files[2]), "entity_f1")


def semeval(workspace: Workspace, **how: Any) -> Found:
    """From scratch, the model is initialized with the embeddings of the base."""
    train, test = (str(workspace.data / f"semeval14/Restaurants_{part}.xml.xz") for part in ("Train_v2", "Test_Gold"))
    if "is_new" in how:
        how = merge_tables(how, {"settings": {"task": {"embeddings": workspace.base}}})
    run = workspace.train(train, test=test, task="aspect-sentiment", **how)
    return scores_of(run.test(), "accuracy")


def squad(workspace: Workspace, **how: Any) -> Found:
    train, test = (Path(workspace.scratch.name) / f"{part}.json" for part in ("train", "test"))
    for path, articles in zip((train, test), split_articles(workspace.data), strict=True):
        path.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    run = workspace.train(str(train), task="question-answering", **how)
    return scores_of(run.evaluate(str(test)), "answer_f1", "answer_exact_match")


def sst2_peer(workspace: Workspace, *, rate: float) -> Found:
    """The recipe of transformers on the same rows, with the same weights."""
    from peers.labels import labels_by_transformers

    files = [workspace.data / f"sst/sst2-glue.{part}.tsv.xz" for part in ("train", "dev")]
    train, test = (table(path, separator="\t")[1:] for path in files)
    answers = labels_by_transformers(
        workspace.theirs, train, [text for text, _ in test], workspace.seed, workspace.device, rate
    )
    return {"accuracy": statistics.fmean(found == true for found, (_, true) in zip(answers, test, strict=True))}


def conll_peer(workspace: Workspace, *, rate: float) -> Found:
    from seqeval.metrics import f1_score

    from peers.labels import tags_by_transformers

    train, test = (sentences(workspace.data / f"conll2003/eng.{part}.xz") for part in ("train", "testb"))
    answers = tags_by_transformers(
        workspace.theirs, train, [words for words, _ in test], workspace.seed, workspace.device, rate
    )
    return {"entity_f1": float(f1_score([tags for _, tags in test], answers))}


def squad_peer(workspace: Workspace) -> Found:
    """The recipe of transformers on the same articles, with the same weights, scored by the same rules."""
    from peers.squad import answers_of_transformers
    from regard.evaluation.examples import Examples
    from regard.evaluation.registry import find_metric

    train, test = split_articles(workspace.data)
    start = time.perf_counter()
    answers, references = answers_of_transformers(workspace.theirs, train, test, workspace.seed, workspace.device)
    examples = Examples(outputs=answers, targets=references)
    found = {name: find_metric(name).count(examples).value for name in ("answer_exact_match", "answer_f1")}
    return {**found, "seconds": time.perf_counter() - start}


ROWS: dict[str, tuple[Callable[..., Found], Settings]] = {
    # What is trained and for how long; all else is the default.
    "sst2-full": (sst2, {"epochs": 6.0}),
    "sst2-lora": (sst2, {"epochs": 8.0, "method": "lora"}),
    "sst2-scratch": (sst2, {"is_new": True, "minutes": 0.8}),
    **{f"few-{count}": (few, {"count": count}) for count in (16, 100, 1_000)},
    **{
        f"few-{count}-scratch": (few, {"count": count, "is_new": True, "minutes": 0.4})
        for count in (16, 100, 1_000, 5_000)
    },
    "few-16-head": (few, {"count": 16, "method": "head"}),
    "few-1000-lora": (few, {"count": 1_000, "method": "lora", "minutes": 2.0}),
    **{f"few-{count}-peer": (few_peer, {"count": count}) for count in (16, 1_000)},
    "sst2-peer": (sst2_peer, {"rate": 5e-5}),
    "conll-peer": (conll_peer, {"rate": 5e-5}),
    "conll-full": (conll, {"epochs": 16.0}),
    "conll-scratch": (conll, {"is_new": True, "minutes": 1.2}),
    "semeval-full": (semeval, {}),
    "semeval-embeddings": (semeval, {"is_new": True, "steps": 700}),
    "squad-full": (squad, {}),
    "squad-peer": (squad_peer, {}),
}


def table(path: Path, separator: str = " ") -> list[tuple[str, str]]:
    """Sentences and labels of a file whose lines start with the label."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [(text.rstrip("\n"), label) for label, _, text in (line.partition(separator) for line in lines)]


def sentences(path: Path) -> list[tuple[list[str], list[str]]]:
    """Words and tags of a file in CoNLL's layout."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        blocks = [[line.split() for line in block.splitlines()] for block in file.read().split("\n\n")]
    full = [block for block in blocks if block and block[0] and block[0][0] != "-DOCSTART-"]
    return [([line[0] for line in block], [line[-1] for line in block]) for block in full]


def split_articles(data: Path) -> tuple[list[Any], list[Any]]:
    """The articles for training, and those for evaluation."""
    with lzma.open(data / "squad/dev-v1.1.json.xz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return articles[:-TESTED_ARTICLES], articles[-TESTED_ARTICLES:]


def scores_of(evaluation: Any, *names: str) -> Found:
    return {name: evaluation.scores[name].value for name in names}


def run_one(name: str, workspace: Workspace, changes: Settings) -> Found:
    function, settings = ROWS[name]
    start = time.perf_counter()
    with workspace.scratch:
        found = function(workspace, **merge_tables(settings, changes))
        return {"seconds": time.perf_counter() - start, **found, **workspace.on_validation(found)}


def summary(found: list[Found]) -> dict[str, tuple[float, float]]:
    """For each score its mean over the seeds, and half the width of Student's 95 % interval."""
    result = {}
    for name in found[0]:
        mean, _, high = mean_interval([each[name] for each in found])
        result[name] = (mean, high - mean)
    return result


def describe(name: str, mean: float, half: float) -> str:
    """A mean over seeds, with half the width of its interval where there are several."""
    if name == "seconds":
        return f"{mean:.0f} s"
    return f"{name} {mean:.4g}" + ("" if math.isnan(half) else f" ± {half:.2g}")


TINY_SHAPE = {"num_layers": 1, "model_dim": 16, "dropout": 0.0}
TINY: Settings = {"steps": 2, "minutes": None, "epochs": None, "settings": {"train": {"batch_tokens": 400}}}


def tiny_changes(name: str) -> Settings:
    """The settings that a tiny run of a row replaces; the peers have none."""
    if name.endswith("-peer"):
        return {}
    return merge_tables(TINY, {"settings": {"model": TINY_SHAPE}}) if "is_new" in ROWS[name][1] else TINY


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(device="cuda")
    parser.add_argument("--base", default="minilm", help="the run folder of the imported model")
    parser.add_argument("--row", choices=list(ROWS), action="append", help="these rows only")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--set", default="{}", help="arguments that replace a row's own, as JSON")
    parser.add_argument("--one", type=int, metavar="SEED", help="run one row with this seed here, and print JSON")
    options = parse(parser, arguments)
    logging.basicConfig(level=logging.ERROR)
    if options.one is not None:
        workspace = Workspace(options.data, options.base, options.one, options.device)
        print(json.dumps(run_one(options.row[0], workspace, json.loads(options.set))))
        return

    def run(name: str, seed: int) -> Found | None:
        """One run in a process of its own."""
        given = ["--base", options.base, "--data", str(options.data), "--device", options.device, "--set", options.set]
        command = [sys.executable, __file__, "--row", name, "--one", str(seed), *given]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}, seed {seed}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return None
        return json.loads(done.stdout.splitlines()[-1])

    def run_here(name: str, seed: int) -> Found:
        """One tiny run in this process, since starting another takes longer."""
        return run_one(name, Workspace(options.data, options.base, seed, options.device), tiny_changes(name))

    names, results = options.row or list(ROWS), []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        if options.tiny:
            options.seeds, options.data, options.base = 1, Path(scratch) / "data", f"{scratch}/minilm"
            make_tiny(Path(scratch))
        one = run_here if options.tiny else run
        futures = {name: [pool.submit(one, name, seed) for seed in range(options.seeds)] for name in names}
        for name, some in futures.items():
            found = [each for each in (future.result() for future in some) if each is not None]
            if not found:
                continue
            means = summary(found)
            results.append({"row": name, "seeds": found, "means": {key: mean for key, (mean, _) in means.items()}})
            if not options.json:
                described = ", ".join(describe(key, *both) for key, both in means.items())
                print(f"{name:16} {len(found)} seed{'s' if len(found) > 1 else ''}: {described}", flush=True)
    print_results(options, results)


def make_tiny(scratch: Path) -> None:
    """Tiny data, and a tiny base in both layouts."""
    import regard

    write_labelled(scratch / "data")
    regard.import_model(make_bert(scratch / "minilm-hf"), scratch / "minilm")


if __name__ == "__main__":
    main()
