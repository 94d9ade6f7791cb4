"""Properties of molecules (MoleculeNet).

80, 10 and 10 % of the rows, at random, by another seed another split, or by scaffold; the score is the RMSE or AUROC
on the test rows. Where chemprop is installed (2.1.0 was tried), its default network is trained on the same rows, and
the row has its score.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import regard
from peers.molecules import properties_by_chemprop
from regard.data.builtin import find_builtin
from regard.evaluation.metrics.ranking import count_auroc

MOLECULES = Path(__file__).parents[3] / "shared" / "data" / "molecules"
PROPERTIES = {
    "esol": ("delaney-processed", "measured log solubility in mols per litre", "random", "rmse", 0.58),
    "lipophilicity": ("Lipophilicity", "exp", "random", "rmse", 0.60),
    "bbbp": ("BBBP", "BBBP", "scaffold", "auroc", 0.72),
    "bace": ("bace", "Class", "scaffold", "auroc", 0.85),
}
"""The file, the column, the split, the metric and the score to reach."""
ROWS = tuple(PROPERTIES)
TINY_ROWS = ("esol", "bbbp") if find_spec("rdkit") else ()


def measure(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
    if options.tiny:
        return measure_tiny(row, folder)
    return measure_scores(row, folder, options.minutes, options.seed, options.device)


def measure_scores(row: str, folder: Path, minutes: float, seed: int, device: str) -> dict[str, Any] | None:
    """The same for properties of molecules; a molecule that cannot be read is skipped."""
    name, column, split, metric, _ = PROPERTIES[row]
    path = MOLECULES / f"{name}.csv.xz"
    if not path.exists() or find_spec("rdkit") is None:
        return None
    run = regard.train(
        path, out=folder / row, columns=["smiles", column], minutes=minutes, seed=seed, device=device, skip_bad=True,
        settings={"data": {"split": split, "splits": [0.8, 0.1, 0.1], "split_seed": seed}}, show_progress=False,
    )  # fmt: skip
    evaluation = run.test()
    found = describe(row, run, evaluation.scores[metric])
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


def measure_tiny(row: str, folder: Path) -> dict[str, Any]:
    """The same on a few generated molecules, for two steps."""
    metric = PROPERTIES[row][3]
    rows = list(find_builtin("molecules").generate(80, 0))
    if metric == "auroc":
        rows = [(text, str(int(float(number) > -1))) for text, number in rows]
    settings = {"data": {"split": "random", "splits": [0.6, 0.2, 0.2]}, "task": {"spellings": 2, "averaged": 1}}
    run = regard.train(rows, out=folder / row, steps=2, device="cpu", settings=settings, show_progress=False)
    return describe(row, run, run.test().scores[metric])


def describe(row: str, run: regard.Run, score: Any) -> dict[str, Any]:
    baseline = run.baseline
    return {
        "row": row,
        "metric": score.name,
        "score": score.value,
        "interval": score.interval,
        "goal": PROPERTIES[row][-1],
        "baseline": None if baseline is None else baseline.name,
    }


def row_text(found: dict[str, Any]) -> str:
    low, high = found["interval"] or (float("nan"),) * 2
    peer = "" if found.get("chemprop") is None else f", chemprop {found['chemprop']:.3f}"
    return (
        f"{found['row']:13} {found['metric']} {found['score']:.3f} [{low:.3f}, {high:.3f}], goal {found['goal']}{peer}"
    )
