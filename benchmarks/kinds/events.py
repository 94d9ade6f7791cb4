"""Events of `patients`.

The log-likelihood per event of the test subjects, in nats, and how far it is below that of the process which generated
them.
"""

from pathlib import Path
from typing import Any

import regard

GOALS = {"patients": 0.02}
"""The distances from the log-likelihood of the true process to reach, in nats per event."""
ROWS = TINY_ROWS = tuple(GOALS)
TINY_PATIENTS = 1_500


def measure(row: str, folder: Path, options: Any) -> dict[str, Any]:
    """Train on a data set of a known process, and open its test subjects."""
    budget: dict[str, Any] = {"minutes": options.minutes, "seed": options.seed, "device": options.device}
    if options.tiny:
        budget = {"steps": 2, "device": "cpu", "settings": {"data": {"num_rows": TINY_PATIENTS}}}
    run = regard.train(row, out=folder / row, show_progress=False, **budget)
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
        "goal": GOALS[row],
        "accuracy": found["next_event_accuracy"].value,
        "auroc": found["risk_auroc"].value,
        "brier": found["integrated_brier_score"].value,
        "baseline": None if baseline is None else baseline.score,
    }


def row_text(found: dict[str, Any]) -> str:
    low, high = found["interval"] or (float("nan"),) * 2
    return (
        f"{found['row']:10} log-likelihood {found['log_likelihood']:.4f} [{low:.4f}, {high:.4f}], true process "
        f"{found['truth']:.4f}, distance {found['distance']:.4f}, goal {found['goal']:.3f}"
    )
