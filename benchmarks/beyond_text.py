"""Tasks beyond text: forecasts of ETTh1 and ETTh2 and events of patients, by plain defaults, against goals.

    python benchmarks/beyond_text.py [--minutes 5] [--row etth1-96] [--seed 0] [--device cuda] [--json]

Each row is `regard.train(FILE, minutes=N)` with the horizon and the usual split, 12, 4 and 4 months of 30 days. The
score is the mean squared error of standardized values from every origin of the test part; coverage is that of 90 %
intervals. A row whose data is missing is not measured.

The row `patients` is `regard.train("patients", minutes=N)`: the log-likelihood per event of the test subjects, in nats,
and how far it is below that of the process which generated them.
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
EVENTS = {"patients": 0.02}
"""The distances from the log-likelihood of the true process to reach, in nats per event."""
TINY_ROWS = ("etth1-96", "etth2-96", "patients")
TINY_PATIENTS = 1_500


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


def measure_events(row: str, folder: Path, minutes: float, seed: int, device: str) -> dict[str, Any]:
    """Train on a data set of a known process, and open its test subjects."""
    run = regard.train(row, out=folder / row, minutes=minutes, seed=seed, device=device, show_progress=False)
    return describe_events(row, run)


def measure_tiny_events(row: str, folder: Path) -> dict[str, Any]:
    """The same on a few subjects, for two steps."""
    settings = {"data": {"num_rows": TINY_PATIENTS}}
    run = regard.train(row, out=folder / row, steps=2, device="cpu", settings=settings, show_progress=False)
    return describe_events(row, run)


def describe_events(row: str, run: regard.Run) -> dict[str, Any]:
    found = run.test().scores
    score = found["event_log_likelihood"]
    (note,) = [note for note in run.folder.read_provenance().notes if "true process" in note]
    truth = float(note.split(", ")[1].split()[0])
    baseline = run.baseline
    return {
        "row": row,
        "log_likelihood": score.value,
        "interval": score.interval,
        "truth": truth,
        "distance": truth - score.value,
        "goal": EVENTS[row],
        "accuracy": found["next_event_accuracy"].value,
        "auroc": found["risk_auroc"].value,
        "brier": found["integrated_brier_score"].value,
        "baseline": None if baseline is None else baseline.score,
    }


def format_row(found: dict[str, Any]) -> str:
    low, high = found["interval"] or (float("nan"),) * 2
    if "truth" in found:
        return (
            f"{found['row']:10} log-likelihood {found['log_likelihood']:.4f} [{low:.4f}, {high:.4f}], true process "
            f"{found['truth']:.4f}, distance {found['distance']:.4f}, goal {found['goal']:.3f}"
        )
    return (
        f"{found['row']:10} MSE {found['mse']:.4f} [{low:.4f}, {high:.4f}], goal {found['goal']:.3f}, "
        f"coverage {found['coverage']:.3f}"
    )


def measure_all(options: Any) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for row in options.row or (TINY_ROWS if options.tiny else (*GOALS, *EVENTS)):
            if options.tiny:
                found = (measure_tiny_events if row in EVENTS else measure_tiny)(row, Path(folder))
            else:
                measure_row = measure_events if row in EVENTS else measure
                found = measure_row(row, Path(folder), options.minutes, options.seed, options.device)
            if found is None:
                continue
            if not options.json:
                print(format_row(found), flush=True)
            yield found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--row", action="append", choices=[*GOALS, *EVENTS], help="only this row; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, arguments)
    print_results(options, list(measure_all(options)))


if __name__ == "__main__":
    main()
