"""Tasks beyond text: forecasts and properties of molecules, by plain defaults, against the goals of the literature.

    python benchmarks/beyond_text.py [--minutes 5] [--row etth1-96] [--seed 0] [--device cuda] [--json]

Each row is `regard.train(FILE, minutes=N)` with the horizon and the usual split, 12, 4 and 4 months of 30 days. The
score is the mean squared error of standardized values from every origin of the test part; coverage is that of 90 %
intervals. A row whose data is missing is not measured.

Rows of molecules (MoleculeNet) have 80, 10 and 10 % of the rows, at random, by another seed another split, or by
scaffold; the score is the RMSE or the AUROC on the test rows. Where chemprop is installed (2.1.0 was tried), its
default network is trained on the same rows, and the row has its score.
"""

import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import regard
from common.harness import make_parser, parse, print_results
from peers.molecules import properties_by_chemprop
from regard.data.builtin import find_builtin
from regard.evaluation.metrics.ranking import count_auroc

DATA = Path(__file__).parents[2] / "shared" / "data" / "ett"
MONTH = 30 * 24
SPLIT = [12 * MONTH, 4 * MONTH, 4 * MONTH]
GOALS = {
    "etth1-96": 0.368, "etth1-192": 0.400, "etth1-336": 0.420, "etth1-720": 0.440,
    "etth2-96": 0.272, "etth2-192": 0.335, "etth2-336": 0.330, "etth2-720": 0.378,
}  # fmt: skip
"""The mean squared errors to reach."""
TINY_ROWS = ("etth1-96", "etth2-96")
MOLECULES = Path(__file__).parents[2] / "shared" / "data" / "molecules"
PROPERTIES = {
    "esol": ("delaney-processed", "measured log solubility in mols per litre", "random", "rmse", 0.58),
    "lipophilicity": ("Lipophilicity", "exp", "random", "rmse", 0.60),
    "bbbp": ("BBBP", "BBBP", "scaffold", "auroc", 0.72),
    "bace": ("bace", "Class", "scaffold", "auroc", 0.85),
}
"""The file, the column, the split, the metric and the score to reach."""
TINY_PROPERTIES = ("esol", "bbbp")


def measure(row: str, folder: Path, minutes: float, seed: int, device: str) -> dict[str, Any] | None:
    """Train on a row's data, and open its test part."""
    name, horizon = row.split("-")
    path = DATA / f"{name.replace('etth', 'ETTh')}.csv.xz"
    if not path.exists():
        return None
    settings = {"task": {"horizon": int(horizon), "split_rows": SPLIT}}
    run = regard.train(
        path, out=folder / row, minutes=minutes, seed=seed, device=device, settings=settings, show_progress=False
    )
    return describe(row, run)


def measure_tiny(row: str, folder: Path) -> dict[str, Any]:
    """The same on a short series, for two steps."""
    values = np.random.default_rng(0).normal(size=120).cumsum()
    rows = [{"time": step, "value": float(value)} for step, value in enumerate(values)]
    settings = {"task": {"horizon": 4, "input_length": 12, "split_rows": [70, 20, 20]}}
    run = regard.train(rows, out=folder / row, steps=2, device="cpu", settings=settings, show_progress=False)
    return describe(row, run)


def measure_molecules(row: str, folder: Path, minutes: float, seed: int, device: str) -> dict[str, Any] | None:
    """The same for properties of molecules; a molecule that cannot be read is skipped."""
    name, column, split, metric, _ = PROPERTIES[row]
    path = MOLECULES / f"{name}.csv.xz"
    if not path.exists():
        return None
    run = regard.train(
        path, out=folder / row, columns=["smiles", column], minutes=minutes, seed=seed, device=device, skip_bad=True,
        settings={"data": {"split": split, "splits": [0.8, 0.1, 0.1], "split_seed": seed}}, show_progress=False,
    )  # fmt: skip
    evaluation = run.test()
    found = describe_molecules(row, run, evaluation.scores[metric])
    if find_spec("chemprop"):
        found["chemprop"] = score_of_chemprop(run, evaluation.rows, metric, seed, device)
    return found


def score_of_chemprop(run: regard.Run, test: list[Any], metric: str, seed: int, device: str) -> float:
    """The score of chemprop, trained on the rows of the run."""
    codec: Any = run.task.codecs["properties"]
    held_out = {"valid": run.folder.read_held_out("valid"), "test": test}
    others = {row[0] for rows in held_out.values() for row in rows}
    rows, _ = run.task.read(run.settings.data)
    known = {"train": [row for row in rows if row[0] not in others], **held_out}
    numbers = {name: [(row[0], codec.numbers_of(row[-1])[0]) for row in some] for name, some in known.items()}
    texts, targets = zip(*numbers["test"], strict=True)
    are_labels = metric == "auroc"
    found = properties_by_chemprop(
        numbers["train"], numbers["valid"], texts, are_labels=are_labels, seed=seed, device=device
    )
    if are_labels:
        return count_auroc(np.array(found)[:, None], np.array(targets)[:, None]).value
    return float(np.sqrt(np.mean((np.array(found) - np.array(targets)) ** 2)))


def measure_tiny_molecules(row: str, folder: Path) -> dict[str, Any]:
    """The same on a few generated molecules, for two steps."""
    metric = PROPERTIES[row][3]
    rows = list(find_builtin("molecules").generate(80, 0))
    if metric == "auroc":
        rows = [(text, str(int(float(number) > -1))) for text, number in rows]
    settings = {"data": {"split": "random", "splits": [0.6, 0.2, 0.2]}, "task": {"spellings": 2, "averaged": 1}}
    run = regard.train(rows, out=folder / row, steps=2, device="cpu", settings=settings, show_progress=False)
    return describe_molecules(row, run, run.test().scores[metric])


def describe_molecules(row: str, run: regard.Run, score: Any) -> dict[str, Any]:
    baseline = run.baseline
    return {
        "row": row,
        "metric": score.name,
        "score": score.value,
        "interval": score.interval,
        "goal": PROPERTIES[row][-1],
        "baseline": None if baseline is None else baseline.name,
    }


def describe(row: str, run: regard.Run) -> dict[str, Any]:
    scores = run.test().scores
    baseline = run.baseline
    return {
        "row": row,
        "mse": scores["mse"].value,
        "interval": scores["mse"].interval,
        "coverage": scores["coverage"].value,
        "goal": GOALS[row],
        "baseline": None if baseline is None else baseline.name,
    }


def measure_all(options: Any) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        tiny_rows = (*TINY_ROWS, *(TINY_PROPERTIES if find_spec("rdkit") else ()))
        for row in options.row or (tiny_rows if options.tiny else (*GOALS, *PROPERTIES)):
            if row in PROPERTIES and options.tiny:
                found = measure_tiny_molecules(row, Path(folder))
            elif row in PROPERTIES:
                found = measure_molecules(row, Path(folder), options.minutes, options.seed, options.device)
            elif options.tiny:
                found = measure_tiny(row, Path(folder))
            else:
                found = measure(row, Path(folder), options.minutes, options.seed, options.device)
            if found is None:
                continue
            if not options.json and row in PROPERTIES:
                low, high = found["interval"] or (float("nan"),) * 2
                print(
                    f"{row:13} {found['metric']} {found['score']:.3f} [{low:.3f}, {high:.3f}], goal {found['goal']}",
                    flush=True,
                )
            elif not options.json:
                low, high = found["interval"] or (float("nan"),) * 2
                print(
                    f"{row:10} MSE {found['mse']:.4f} [{low:.4f}, {high:.4f}], goal {found['goal']:.3f}, "
                    f"coverage {found['coverage']:.3f}",
                    flush=True,
                )
            yield found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--row", action="append", choices=[*GOALS, *PROPERTIES], help="only this row; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, arguments)
    print_results(options, list(measure_all(options)))


if __name__ == "__main__":
    main()
