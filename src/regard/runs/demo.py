"""The main job on built-in data: dates in 50 languages, as people write them, to ISO 8601."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.runs.comparison import Comparison, compare
from regard.runs.launch import train
from regard.runs.plan import LEAST_SECONDS
from regard.runs.reporting import write_run_report
from regard.runs.run import Evaluation, Run

DEMO_SETTINGS: dict[str, Any] = {
    "data": {"tokenizer": "characters", "num_rows": 100_000},
    "model": {"model_dim": 64, "feedforward_dim": 256, "dropout": 0.0},
    "train": {
        "batch_tokens": 1024,
        "learning_rate": 5e-3,
        "label_smoothing": 0.0,
        "average": 0.99,
        "evaluate_every": 500,
        "patience": 0,
    },
}
"""Small enough for two CPU cores and two minutes."""
COMPARED = ("rnn", "lstm-attention", "lstm", "transformer")
"""The road of the lectures. With fewer cores than these only the last ones, two at least: one round is short enough."""
COMPARISON_SETTINGS: dict[str, Any] = {
    "data": {"tokenizer": "characters", "num_rows": 10_000},
    "model": {"model_dim": 64, "dropout": 0.0},
    "train": {**DEMO_SETTINGS["train"], "average": 0.95, "warmup_steps": 20, "evaluate_every": 100},
}
_MINUTES = 1.3
_SHORT = 7
"""A compared model gets this fraction of the main one's time."""


@dataclass(frozen=True)
class Demo:
    """What the demo gives back."""

    run: Run
    evaluation: Evaluation
    """On the test rows, which training never saw."""
    seconds: float
    report: Path
    comparison: Comparison
    """A short look at how other models do in a few seconds."""


def demo(out: str | os.PathLike[str] = "runs/demo", *, minutes: float = _MINUTES, show_progress: bool = True) -> Demo:
    """Train on dates, judge the model on rows it has not seen, write a report, and compare it with its forerunners."""
    start = time.perf_counter()
    run = train(
        "dates",
        out=out,
        model="tiny",
        minutes=minutes,
        settings=DEMO_SETTINGS,
        overwrite=True,
        show_progress=show_progress,
    )
    evaluation = run.test()
    report = write_run_report(run, evaluation)
    comparison = compare(
        "dates",
        COMPARED[-max(2, os.cpu_count() or 1) :],
        minutes=max(minutes / _SHORT, LEAST_SECONDS / 60),
        settings=COMPARISON_SETTINGS,
        out=Path(f"{out}-compared"),
        overwrite=True,
        show_progress=show_progress,
    )
    return Demo(run, evaluation, time.perf_counter() - start, report, comparison)
