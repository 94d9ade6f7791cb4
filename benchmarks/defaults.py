"""Plain defaults against simple baselines: every labeled, tagged, paired and plain-text data set of the shared folder.

    python benchmarks/defaults.py [--minutes 2] [--row trec] [--jobs 2] [--quick] [--by-hand] [--seed 0] [--json]

Each row is `regard.train(FILE, minutes=N)` without any other setting. The model and the task's baseline, which is
fitted on the same training rows, are scored on the same test rows, and their difference is tested: `better` and `worse`
are significant. `--quick` is half a minute for the rows on which settings were chosen.

`--by-hand` also trains, for as long, what one would choose by hand for such data (`BY_HAND`). Of these and the default,
the one with the best validation score is taken, and the regret is what the default loses to it on the test rows, as a
share of its score.

Settings were chosen on the validation rows of trec, mr, conll2000, conll2003, multi30k, scan-jump and lemmas; two
families were also tried on scan-length, whose test rows were seen then. Runs on a CPU have one
thread each. A row whose data is missing is not measured; numbers, whose rows num2words makes, has a goal at 3 minutes.
"""

import functools
import logging
import lzma
import multiprocessing
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import regard
from common.harness import make_parser, parse, print_results
from common.numbers import number_names
from common.tiny import sentences
from regard.evaluation.registry import find_metric
from regard.runs.baseline import compare_with_baseline
from regard.settings import merge_tables
from regard.tasks.registry import make_task

DATA = Path(__file__).parents[2] / "shared" / "data"
CHOSEN_ON = ("trec", "mr", "conll2000", "conll2003", "multi30k", "scan-jump", "lemmas")
Files = dict[str, list[tuple[str, ...]]]
"""Rows by the name of their set: train, and valid and test where the data has them."""


def lines(data: Path, name: str) -> list[str]:
    with lzma.open(data / f"{name}.xz", "rt", encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def label_first(data: Path, **names: str) -> Files:
    """Lines of a label, a space and a text; in a shuffled order, since some files are sorted by label."""
    found = {
        role: [(text.strip(), label) for label, _, text in (line.partition(" ") for line in lines(data, name)) if text]
        for role, name in names.items()
    }
    random.Random(0).shuffle(found["train"])
    return found


def table(data: Path, text: int, label: int, *, skip: int = 0, **names: str) -> Files:
    """Tab-separated tables with these columns."""
    cells = {role: [line.split("\t") for line in lines(data, name)[skip:]] for role, name in names.items()}
    return {
        role: [(row[text], row[label]) for row in rows if len(row) > max(text, label)] for role, rows in cells.items()
    }


def aspects(data: Path, domain: str) -> Files:
    """SemEval-2014: three lines an example, a sentence with the place of its aspect, the aspect and its sentiment."""

    def read(part: str) -> list[tuple[str, ...]]:
        cells = [line.strip() for line in lines(data, f"semeval14/{domain}_{part}.xml.seg")]
        examples = zip(cells[::3], cells[1::3], cells[2::3], strict=True)
        return [(text.replace("$T$", aspect), aspect, label) for text, aspect, label in examples]

    return {"train": read("Train"), "test": read("Test_Gold")}


def tagged(data: Path, column: int, **names: str) -> Files:
    """Sentences of one word a line, as rows of words and of the tags in this column."""

    def read(name: str) -> Iterator[tuple[str, ...]]:
        words: list[tuple[str, str]] = []
        for line in [*lines(data, name), ""]:
            cells = line.split(" ")
            if len(cells) > column and not line.startswith("-DOCSTART-"):
                words.append((cells[0], cells[column]))
            elif not line.strip() and words:
                yield tuple(" ".join(part) for part in zip(*words, strict=True))
                words = []

    return {role: list(read(name)) for role, name in names.items()}


def universal(data: Path, column: int) -> Iterator[tuple[str, list[list[str]]]]:
    """The words of each set of a Universal Dependencies treebank, by their columns."""
    for role, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        cells = [line.split("\t") for line in lines(data, f"ud-en-ewt/en_ewt-ud-{name}.conllu")]
        yield role, [row for row in cells if len(row) <= 1 or (row[0].isdigit() and len(row) > column)]


def universal_tags(data: Path) -> Files:
    found: Files = {}
    for role, rows in universal(data, 3):
        found[role], words = [], []
        for row in [*rows, [""]]:
            if len(row) > 1:
                words.append((row[1].replace(" ", "_"), row[3]))
            elif words and row == [""]:
                found[role].append(tuple(" ".join(part) for part in zip(*words, strict=True)))
                words = []
    return found


def lemmas(data: Path) -> Files:
    return {
        role: [(f"{row[1]} {row[3]}", row[2]) for row in rows if len(row) > 1 and row[2] != "_"]
        for role, rows in universal(data, 3)
    }


def aligned(data: Path, source: str, target: str, **names: str) -> Files:
    return {
        role: list(zip(lines(data, f"{name}.{source}"), lines(data, f"{name}.{target}"), strict=True))
        for role, name in names.items()
    }


def commands(data: Path, split: str) -> Files:
    """SCAN: commands and actions."""
    return {
        role: [
            tuple(line.removeprefix("IN: ").split(" OUT: ")) for line in lines(data, f"scan/tasks_{role}_{split}.txt")
        ]
        for role in ("train", "test")
    }


def texts(data: Path, **names: str) -> Files:
    return {role: [("\n".join(lines(data, name)),)] for role, name in names.items()}


def shakespeare(data: Path) -> Files:
    return {"train": [((data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8"),)]}


ROWS: dict[str, tuple[str, Callable[[Path], Files]]] = {
    # the folder of the data, if it is not generated, and how it is read
    "sst2": ("sst", functools.partial(table, text=1, label=0, skip=1, train="sst/sst2-glue.train.tsv",
                                      test="sst/sst2-glue.dev.tsv")),
    "sst5": ("sst", functools.partial(label_first, train="sst/stsa.fine.train", valid="sst/stsa.fine.dev",
                                      test="sst/stsa.fine.test")),
    "mr": ("sent-classification", functools.partial(label_first, train="sent-classification/rt-polarity.all")),
    "subj": ("sent-classification", functools.partial(label_first, train="sent-classification/subj.all")),
    "cr": ("sent-classification", functools.partial(label_first, train="sent-classification/custrev.all")),
    "mpqa": ("sent-classification", functools.partial(label_first, train="sent-classification/mpqa.all")),
    "trec": ("sent-classification", functools.partial(label_first, train="sent-classification/TREC.train.all",
                                                      test="sent-classification/TREC.test.all")),
    "imdb": ("imdb-small", functools.partial(table, text=3, label=0, skip=1, train="imdb-small/imdb-small.train.tsv",
                                             test="imdb-small/imdb-small.test.tsv")),
    "cola": ("cola", functools.partial(table, text=3, label=1, train="cola/in_domain_train.tsv",
                                       test="cola/in_domain_dev.tsv")),
    "restaurants": ("semeval14", functools.partial(aspects, domain="Restaurants")),
    "laptops": ("semeval14", functools.partial(aspects, domain="Laptops")),
    "conll2000": ("conll2000", functools.partial(tagged, column=2, train="conll2000/train.txt",
                                                 test="conll2000/test.txt")),
    "conll2003": ("conll2003", functools.partial(tagged, column=3, train="conll2003/eng.train",
                                                 valid="conll2003/eng.testa", test="conll2003/eng.testb")),
    "ud-tags": ("ud-en-ewt", universal_tags),
    "lemmas": ("ud-en-ewt", lemmas),
    "multi30k": ("multi30k", functools.partial(aligned, source="de", target="en", train="multi30k/train",
                                               valid="multi30k/val", test="multi30k/test_2016_flickr")),
    "tatoeba": ("tatoeba-en-de", functools.partial(table, text=0, label=1, train="tatoeba-en-de/deu.txt")),
    "wmt": ("wmt-ende-opennmt", functools.partial(aligned, source="en", target="de",
                                                  train="wmt-ende-opennmt/train10k.tok",
                                                  valid="wmt-ende-opennmt/newstest2012-3000.tok",
                                                  test="wmt-ende-opennmt/newstest2014.tok")),
    "numbers": ("", lambda _: number_names()),
    "scan-length": ("scan", functools.partial(commands, split="length")),
    "scan-jump": ("scan", functools.partial(commands, split="addprim_jump")),
    "shakespeare": ("tinyshakespeare", shakespeare),
    "ptb": ("ptb", functools.partial(texts, train="ptb/ptb.train.txt", valid="ptb/ptb.valid.txt",
                                     test="ptb/ptb.test.txt")),
    "wikitext": ("wikitext-2", functools.partial(texts, train="wikitext-2/wiki.train.tokens",
                                                 valid="wikitext-2/wiki.valid.tokens",
                                                 test="wikitext-2/wiki.test.tokens")),
}  # fmt: skip
TAGGED = ("conll2000", "conll2003", "ud-tags")
ASPECTS = ("restaurants", "laptops")
LABELED = ("sst2", "sst5", "mr", "subj", "cr", "mpqa", "trec", "imdb", "cola", *ASPECTS)
TEXTS = ("shakespeare", "ptb", "wikitext")
BY_HAND: dict[str, dict[str, dict[str, Any]]] = {
    # options of `regard.train` by the kind of data: other families, larger models, other learning rates and tokenizers
    "labels": {
        "lstm-small": {"model": "lstm-small"},
        "convolution": {"model": "convolution-tiny"},
        "transformer, slow": {"model": "tiny", "settings": {"train": {"learning_rate": 3e-4}}},
    },
    "tags": {
        "lstm-small": {"model": "lstm-small"},
        "gru, fast": {"model": "gru-tiny", "settings": {"train": {"learning_rate": 4e-3}}},
        "transformer": {"model": "tiny"},
    },
    "pairs": {
        "transformer": {"model": "tiny"},
        "lstm-attention": {"model": "lstm-attention-tiny"},
        "lstm-attention-small": {"model": "lstm-attention-small"},
    },
    "text": {
        "lstm": {"model": "lstm-tiny"},
        "gpt-small": {"model": "gpt-small"},
        "llama, fast": {"model": "llama-tiny", "settings": {"train": {"learning_rate": 4e-3}}},
    },
}


def kind_of(name: str) -> str:
    return "labels" if name in LABELED else "tags" if name in TAGGED else "text" if name in TEXTS else "pairs"


def columns_of(name: str) -> tuple[str, ...]:
    if name in ASPECTS:
        return "text", "aspect", "label"
    return ("text", "label") if name in LABELED else ("source", "target")


def write_files(name: str, files: Files, folder: Path) -> dict[str, str]:
    """The rows as files that anyone could have: tables with a header, tagged words, plain text."""
    suffix = ".conll" if name in TAGGED else ".txt" if len(files["train"][0]) == 1 else ".tsv"
    found = {}
    for role, rows in files.items():
        path = folder / f"{role}{suffix}"
        if suffix == ".conll":
            words = (zip(row[0].split(" "), row[1].split(" "), strict=True) for row in rows)
            content = "\n".join("".join(f"{word} {tag}\n" for word, tag in some) for some in words)
        elif suffix == ".txt":
            content = rows[0][0]
        else:
            header = "\t".join(columns_of(name))
            kept = [row for row in rows if all(cell.strip() and "\t" not in cell for cell in row)]
            content = "\n".join([header, *("\t".join(row) for row in kept)]) + "\n"
        path.write_text(content, encoding="utf-8")
        found[role] = str(path)
    return found


def run_row(name: str, files: Files, train: dict[str, Any], choice: str | None = None) -> dict[str, Any]:
    """Trains with plain defaults, or with a choice by hand, and compares with the baseline on the test rows."""
    if train["device"] == "cpu":
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        paths = write_files(name, files, Path(scratch))
        run = regard.train(
            paths["train"], valid=paths.get("valid"), test=paths.get("test"), out=f"{scratch}/run", **train,
            baseline=False, show_progress=False,
        )  # fmt: skip
        validation = run.evaluate()
        evaluation = run.test()
        data = make_task(run.settings.task).prepare(run.settings.data)
        found = compare_with_baseline(run.task, data, evaluation.rows, [evaluation.examples], evaluation.headline)
        trained = [line for line in run.folder.read_metrics() if "seconds" in line]
    score = evaluation.scores[evaluation.headline]
    return {
        "row": name,
        "choice": choice,
        "validation": validation.scores[validation.headline].value,
        "metric": evaluation.headline,
        "rows": len(evaluation.rows),
        "score": score.value,
        "interval": score.interval,
        "model": run.settings.preset,
        "steps": trained[-1]["step"],
        "minutes": trained[-1]["seconds"] / 60,
        "baseline": None if found is None else found.name,
        "baseline_score": None if found is None else found.score,
        "verdict": None if found is None else found.verdict,
    }


def tiny_files(name: str) -> Files:
    """Rows in place of public ones."""
    rows = sentences(80)
    if name in TAGGED:
        return {
            "train": [(text, " ".join("N" if word.isalpha() else "D" for word in text.split())) for text, _ in rows]
        }
    if name in ASPECTS:
        return {"train": [(text, text.split()[0], label) for text, label in rows]}
    if name in LABELED:
        return {"train": rows}
    if name in TEXTS:
        return {"train": [("\n".join(text for text, _ in sentences(300)),)]}
    return {"train": [(text, text.upper()) for text, _ in rows]}


def describe(found: dict[str, Any]) -> str:
    name = found["row"] if found["choice"] is None else f"  {found['choice']}"
    low, high = found["interval"] or (found["score"], found["score"])
    baseline = "no baseline" if found["baseline"] is None else f"{found['baseline']} {found['baseline_score']:.4g}"
    return (
        f"{name:12} {found['metric']} {found['score']:.4g} [{low:.4g}, {high:.4g}], {found['rows']:,} rows, "
        f"{found['model']}, {found['steps']:,} steps in {found['minutes']:.1f} min; {baseline}: "
        f"{found['verdict'] or 'not tested'}"
    )


def regrets(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What the default of each row loses on the test rows to the choice with the best validation score, relatively."""
    found = {}
    for default in (row for row in results if row["choice"] is None):
        sign = 1 if find_metric(default["metric"]).higher_is_better else -1
        best = max((row for row in results if row["row"] == default["row"]), key=lambda row: sign * row["validation"])
        found[default["row"]] = sign * (best["score"] - default["score"]) / max(abs(best["score"]), 1e-9)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--row", choices=list(ROWS), action="append", help="this row only")
    parser.add_argument("--minutes", type=float, default=2.0, help="of training")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument(
        "--quick", action="store_true", help="half a minute, for the rows on which settings were chosen"
    )
    parser.add_argument(
        "--by-hand", action="store_true", help="train settings chosen by hand too, and print the regret"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, arguments)
    logging.basicConfig(level=logging.ERROR)
    names = options.row or (["trec", "conll2000", "lemmas", "shakespeare"] if options.tiny else
                            CHOSEN_ON if options.quick else list(ROWS))  # fmt: skip
    train: dict[str, Any] = {"minutes": 0.5 if options.quick else options.minutes, "seed": options.seed}
    train["device"] = options.device
    if options.tiny:
        train |= {"minutes": None, "steps": 2, "settings": {"model": {"model_dim": 48, "num_layers": 1}}}
    work = []
    for name in names:
        folder, read = ROWS[name]
        if not options.tiny and not (DATA / folder).exists():
            print(f"{name}: not measured, its data is missing")
            continue
        if name == "numbers" and find_spec("num2words") is None:
            print("numbers: not measured, num2words is missing")
            continue
        files = tiny_files(name) if options.tiny else read(DATA)
        work.append((name, files, train, None))
        if options.by_hand:
            work += [
                (name, files, merge_tables(train, chosen), choice) for choice, chosen in BY_HAND[kind_of(name)].items()
            ]
    results = []
    if options.jobs == 1 or options.tiny:
        found = (run_row(*row) for row in work)
        pool = None
    else:
        os.environ["OMP_NUM_THREADS"] = "1"  # of the processes
        pool = multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1)
        found = pool.imap(_run, work, chunksize=1)
    for row in found:
        results.append(row)
        if not options.json:
            print(describe(row), flush=True)
    if pool is not None:
        pool.close()
    if not options.json:
        verdicts = [row["verdict"] for row in results if row["choice"] is None]
        counts = {verdict: verdicts.count(verdict) for verdict in ("better", "not significant", "worse")}
        print(", ".join(f"{verdict} {count} of {len(verdicts)}" for verdict, count in counts.items()))
    lost = regrets(results) if options.by_hand else {}
    if lost and not options.json:
        print("regret " + ", ".join(f"{name} {100 * loss:.1f} %" for name, loss in lost.items()))
        print(f"median regret {100 * statistics.median(lost.values()):.1f} %, worst {100 * max(lost.values()):.1f} %")
    print_results(options, results, **({"regret": lost} if lost else {}))


def _run(row: tuple[str, Files, dict[str, Any], str | None]) -> dict[str, Any]:
    return run_row(*row)


if __name__ == "__main__":
    main()
