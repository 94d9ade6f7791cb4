"""Tasks beyond text: forecasts of ETTh1 and ETTh2, and properties of molecules, against the goals of the literature.

    python benchmarks/beyond_text.py [--minutes 5] [--row etth1-96] [--seed 0] [--device cuda] [--json]

Each row is `regard.train(FILE, minutes=N)` with the horizon and the usual split, 12, 4 and 4 months of 30 days. The
score is the mean squared error of standardized values from every origin of the test part; coverage is that of 90 %
intervals. A row whose data is missing is not measured.

Rows of molecules are `regard.train(FILE, model=FAMILY, minutes=N)` on a random split, 80, 10 and 10 %; the score is the
RMSE on the test rows.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import regard
from common.harness import make_parser, parse, print_results

DATA = Path(__file__).parents[2] / "shared" / "data" / "ett"
MONTH = 30 * 24
SPLIT = [12 * MONTH, 4 * MONTH, 4 * MONTH]
GOALS = {
    "etth1-96": 0.368, "etth1-192": 0.400, "etth1-336": 0.420, "etth1-720": 0.440,
    "etth2-96": 0.272, "etth2-192": 0.335, "etth2-336": 0.330, "etth2-720": 0.378,
}  # fmt: skip
"""The mean squared errors to reach."""
TINY_ROWS = ("etth1-96", "etth2-96", "esol-graph-transformer", "esol-message-passing")
MOLECULES = Path(__file__).parents[2] / "shared" / "data" / "molecules"
MOLECULE_DATA = {
    "esol": ("delaney-processed.csv.xz", "measured log solubility in mols per litre", 0.58),
    "lipophilicity": ("Lipophilicity.csv.xz", "exp", 0.60),
}
"""The file, the column of the target, and the RMSE to reach."""
GRAPH_ROWS = {
    f"{name}-{family}": (name, family)
    for name in MOLECULE_DATA
    for family in ("graph-transformer", "message-passing")
}  # fmt: skip


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


def measure_graphs(row: str, folder: Path, minutes: float, seed: int, device: str) -> dict[str, Any] | None:
    """Train a family of graphs on molecules, and open the test rows."""
    name, family = GRAPH_ROWS[row]
    file, target, _ = MOLECULE_DATA[name]
    if not (MOLECULES / file).exists():
        return None
    run = regard.train(
        MOLECULES / file, out=folder / row, model=family, columns=["smiles", target], minutes=minutes, seed=seed,
        device=device, settings={"data": {"splits": [0.8, 0.1, 0.1]}}, show_progress=False,
    )  # fmt: skip
    return describe_graphs(row, run)


def measure_tiny_graphs(row: str, folder: Path) -> dict[str, Any]:
    """The same on paths of a few nodes, for two steps."""
    rows = [
        {
            "nodes": ["a"] * size,
            "edges": [[node, node + 1] for node in range(size - 1)],
            "label": size + 0.5 * (row % 3),
        }
        for row, size in enumerate(np.random.default_rng(0).integers(1, 9, size=60).tolist())
    ]
    model = f"{GRAPH_ROWS[row][1]}-tiny"
    run = regard.train(
        rows, task="graph-regression", model=model, out=folder / row, steps=2, device="cpu",
        settings={"data": {"splits": [0.6, 0.2, 0.2]}}, show_progress=False,
    )  # fmt: skip
    return describe_graphs(row, run)


def describe_graphs(row: str, run: regard.Run) -> dict[str, Any]:
    score, baseline = run.test().scores["rmse"], run.baseline
    return {
        "row": row,
        "rmse": score.value,
        "interval": score.interval,
        "goal": MOLECULE_DATA[GRAPH_ROWS[row][0]][2],
        "baseline": None if baseline is None else baseline.name,
        "baseline_rmse_on_validation": None if baseline is None else baseline.scores["rmse"]["value"],
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
        for row in options.row or (TINY_ROWS if options.tiny else (*GOALS, *GRAPH_ROWS)):
            is_graph = row in GRAPH_ROWS
            if options.tiny:
                found = (measure_tiny_graphs if is_graph else measure_tiny)(row, Path(folder))
            else:
                run = measure_graphs if is_graph else measure
                found = run(row, Path(folder), options.minutes, options.seed, options.device)
            if found is None:
                continue
            low, high = found["interval"] or (float("nan"),) * 2
            if is_graph and not options.json:
                print(
                    f"{row:30} RMSE {found['rmse']:.3f} [{low:.3f}, {high:.3f}], goal {found['goal']:.2f}", flush=True
                )
            elif not options.json:
                print(
                    f"{row:10} MSE {found['mse']:.4f} [{low:.4f}, {high:.4f}], goal {found['goal']:.3f}, "
                    f"coverage {found['coverage']:.3f}",
                    flush=True,
                )
            yield found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--row", action="append", choices=[*GOALS, *GRAPH_ROWS], help="only this row; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, arguments)
    print_results(options, list(measure_all(options)))


if __name__ == "__main__":
    main()
