"""`demo`: train, compare and certify on built-in data, dates in more than 50 languages to ISO 8601."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.experiments.compare.plan import MIN_SECONDS
from regard.experiments.compare.run import Comparison, compare
from regard.logging import quiet_logs
from regard.runs.baseline import BaselineResult, compare_with_baseline
from regard.runs.evaluation import Evaluation
from regard.runs.report import write_run_report
from regard.runs.run import Run
from regard.runs.train import train
from regard.training.precision import num_cores

_TRAIN: dict[str, Any] = {
    "batch_tokens": 1024,
    "learning_rate": 5e-3,
    "label_smoothing": 0.0,
    "ema_decay": 0.99,
    "evaluate_every": 500,
    "patience": 0,
}
DEMO_SETTINGS: dict[str, Any] = {
    "task": {"tokenizer": "characters"},
    "data": {"num_rows": 100_000},
    "model": {"model_dim": 64, "feedforward_dim": 256, "dropout": 0.0},
    "train": _TRAIN,
}
"""Small enough for two CPU cores and two minutes."""
COMPARED_MODELS = ("rnn", "lstm-attention", "lstm", "transformer")
"""In the order of the lectures. With fewer cores than models, only the last ones are compared, at least two."""
COMPARISON_SETTINGS: dict[str, Any] = {
    "task": {"tokenizer": "characters"},
    "data": {"num_rows": 10_000},
    "model": {"model_dim": 64, "dropout": 0.0},
    "train": {**_TRAIN, "ema_decay": 0.95, "warmup_steps": 20, "evaluate_every": 100},
}
_MINUTES = 1.3
_COMPARED_FRACTION = 1 / 7
"""The budget of a compared model, as a fraction of that of the main one."""


@dataclass(frozen=True)
class Demo:
    """What the demo made."""

    run: Run
    evaluation: Evaluation
    """On the test rows."""
    seconds: float
    baseline: BaselineResult | None
    """On the same rows."""
    report: Path
    comparison: Comparison
    """The comparison of other models, trained for a few seconds each."""


def demo(out: str | os.PathLike[str] = "runs/demo", *, minutes: float = _MINUTES, show_progress: bool = True) -> Demo:
    """Train a model on dates, test it on rows that it was not trained on, write a report, and compare it with others.

    Args:
        out: The run folder; a run in it is replaced. The comparison is in the folder `OUT-compared`.
        minutes: Of training the main model.
        show_progress: Show progress bars on stderr.
    """
    start = time.perf_counter()
    run = train(
        "dates",
        out=out,
        model="tiny",
        minutes=minutes,
        baseline=False,  # it is fitted below, for the test rows
        settings=DEMO_SETTINGS,
        overwrite=True,
        show_progress=show_progress,
    )
    evaluation = run.test()
    with quiet_logs():
        data = run.task.prepare(run.settings.data)
    baseline = compare_with_baseline(run.task, data, evaluation.rows, [evaluation.examples], evaluation.headline)
    report = write_run_report(run, evaluation, evaluated_on="Test", baseline=baseline)
    comparison = compare(
        "dates",
        COMPARED_MODELS[-max(2, num_cores()) :],
        minutes=max(minutes * _COMPARED_FRACTION, MIN_SECONDS / 60),
        settings=COMPARISON_SETTINGS,
        out=Path(f"{out}-compared"),
        overwrite=True,
        show_progress=show_progress,
    )
    return Demo(run, evaluation, time.perf_counter() - start, baseline, report, comparison)
