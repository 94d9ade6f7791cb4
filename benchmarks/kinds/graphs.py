"""Properties of molecules by models of graphs.

`regard.train(FILE, model=FAMILY, minutes=N)` on a random split, 80, 10 and 10 %; the score is the RMSE of test rows.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import regard

MOLECULES = Path(__file__).parents[3] / "shared" / "data" / "molecules"
MOLECULE_DATA = {
    "esol": ("delaney-processed.csv.xz", "measured log solubility in mols per litre", 0.58),
    "lipophilicity": ("Lipophilicity.csv.xz", "exp", 0.60),
}
"""The file, the column of the target, and the RMSE to reach."""
FAMILIES = {
    f"{name}-{family}": (name, family)
    for name in MOLECULE_DATA
    for family in ("graph-transformer", "message-passing")
}  # fmt: skip
ROWS = tuple(FAMILIES)
TINY_ROWS = ("esol-graph-transformer", "esol-message-passing")


def measure(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
    if options.tiny:
        return measure_tiny(row, folder)
    return measure_errors(row, folder, options.minutes, options.seed, options.device)


def measure_errors(row: str, folder: Path, minutes: float, seed: int, device: str) -> dict[str, Any] | None:
    """Train a family of graphs on molecules, and open the test rows."""
    name, family = FAMILIES[row]
    file, target, _ = MOLECULE_DATA[name]
    if not (MOLECULES / file).exists() or find_spec("rdkit") is None:
        return None
    run = regard.train(
        MOLECULES / file, out=folder / row, model=family, columns=["smiles", target], minutes=minutes, seed=seed,
        device=device, settings={"data": {"splits": [0.8, 0.1, 0.1]}}, show_progress=False,
    )  # fmt: skip
    return describe(row, run)


def measure_tiny(row: str, folder: Path) -> dict[str, Any]:
    """The same on paths of a few nodes, for two steps."""
    rows = [
        {
            "nodes": ["a"] * size,
            "edges": [[node, node + 1] for node in range(size - 1)],
            "label": size + 0.5 * (row % 3),
        }
        for row, size in enumerate(np.random.default_rng(0).integers(1, 9, size=60).tolist())
    ]
    model = f"{FAMILIES[row][1]}-tiny"
    run = regard.train(
        rows, task="graph-regression", model=model, out=folder / row, steps=2, device="cpu",
        settings={"data": {"splits": [0.6, 0.2, 0.2]}}, show_progress=False,
    )  # fmt: skip
    return describe(row, run)


def describe(row: str, run: regard.Run) -> dict[str, Any]:
    score, baseline = run.test().scores["rmse"], run.baseline
    return {
        "row": row,
        "rmse": score.value,
        "interval": score.interval,
        "goal": MOLECULE_DATA[FAMILIES[row][0]][2],
        "baseline": None if baseline is None else baseline.name,
        "baseline_rmse_on_validation": None if baseline is None else baseline.scores["rmse"]["value"],
    }


def row_text(found: dict[str, Any]) -> str:
    low, high = found["interval"] or (float("nan"),) * 2
    return f"{found['row']:30} RMSE {found['rmse']:.3f} [{low:.3f}, {high:.3f}], goal {found['goal']:.2f}"
