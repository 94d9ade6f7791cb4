"""What a sweep looks for: the names of what can be measured of a trial, which way is better, and the values.

All is read off the trial's own ledger and figures; the test rows stay sealed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from regard.data.preparation import Prepared
from regard.errors import ConfigError, RunError
from regard.selection.bounds import Scores
from regard.selection.ledger import scored
from regard.settings import nearest
from regard.tasks import find_task
from regard.tasks.task import Likelihoods, Prediction
from regard.training.folder import RunFolder
from regard.training.resolution import with_learned
from regard.training.settings import RunSettings

OF_ANY_RUN = ("loss", "parameters", "seconds")
"""What every run has: its best validation loss, its size, and how long it trained."""
_LOWER_IS_BETTER = (*OF_ANY_RUN, "perplexity", "pseudo_perplexity", "bits_per_byte", "rmse", "calibration_error")
_OF_TOKENS = ("loss", "perplexity", "pseudo_perplexity")
"""Means over tokens, which say nothing beside those over other tokens."""
_WITHOUT_ANSWERS = {
    "language": ("perplexity", "bits_per_byte"),
    "masked": ("masked_accuracy", "pseudo_perplexity"),
    "embedding": ("recall_at_1", "recall_at_10", "mean_reciprocal_rank"),
}
_ROWS_TRIED = 50


@dataclass(frozen=True)
class Goal:
    """What is to become large, or small."""

    name: str
    is_maximized: bool

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "maximize" if self.is_maximized else "minimize"

    @property
    def is_of_tokens(self) -> bool:
        return self.name in _OF_TOKENS


def read_goals(names: Sequence[str], settings: RunSettings, data: Prepared) -> list[Goal]:
    """The objectives of these names; where there are none, the task's first score, or the loss of a task without."""
    known = [*score_names(settings, data), *OF_ANY_RUN]
    task = find_task(settings.task)
    if not names:
        headline = task.headline(data.held_out["valid"])
        names = ["loss" if not task.has_answers else headline if headline in known else known[0]]
    for name in names:
        if name not in known:
            raise ConfigError(f"no objective of {settings.task} is called {name!r}{nearest(name, known)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"objectives must differ, got {', '.join(names)}")
    return [Goal(name, name not in _LOWER_IS_BETTER) for name in names]


def score_names(settings: RunSettings, data: Prepared) -> list[str]:
    """The scores that a report on such data has: those of answers that are all right."""
    task = find_task(settings.task)
    if not task.has_answers:
        return list(_WITHOUT_ANSWERS[task.name])
    rows = data.held_out["valid"][:_ROWS_TRIED]
    if not rows:
        raise ConfigError("a sweep chooses by validation rows, and there are none")
    right = [Prediction(task.question(row), row[-1].strip(), probabilities={row[-1].strip(): 1.0}) for row in rows]
    likelihoods = Likelihoods([1.0] * len(rows), [1] * len(rows))
    return [score.name for score in task.scores(rows, right, likelihoods, with_learned(settings.data, data))]


def report_of(folder: RunFolder) -> dict[str, Any] | None:
    """The line of the ledger with which a finished run was reported on; None where it is not finished."""
    lines = [line for line in folder.read_looks() if line["what"] == "report"]
    return lines[-1] if lines else None


def measure(folder: RunFolder) -> dict[str, float]:
    """Everything that a finished run can be chosen by."""
    report = report_of(folder)
    if report is None:
        raise RunError(f"{folder.path} has not been reported on: its training is not finished")
    record = folder.read_settings().record
    assert record is not None, "a run folder has a record"
    return {
        **{name: score["value"] for name, score in report["scores"].items() if isinstance(score, dict)},
        "loss": best_loss(folder.read_looks()),
        "parameters": float(record.num_parameters),
        "seconds": float(figures(folder)["seconds"]),
    }


def best_loss(looks: Sequence[dict[str, Any]]) -> float:
    """The least validation loss of a training, which is that of the weights that are kept."""
    return min((line["scores"]["loss"] for line in looks if line["what"] == "training"), default=float("inf"))


def figures(folder: RunFolder) -> dict[str, Any]:
    """The last figures of a training: its step, and the seconds until then."""
    lines = [line for line in folder.read_metrics() if "seconds" in line]
    return lines[-1] if lines else {"step": 0, "seconds": 0.0}


def looks_of(folder: RunFolder) -> list[dict[str, Any]]:
    """Each look at the validation rows, once: a step that was trained again after a crash gives the same weights."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in scored(folder.read_looks(), "valid"):
        scores = {n: s["value"] if isinstance(s, dict) else s for n, s in line["scores"].items() if n != "rows"}
        kept = {"time": line["time"], "what": line["what"], "hypothesis": line["hypothesis"], "scores": scores}
        found.setdefault((line["what"], line["hypothesis"]), kept)
    return list(found.values())


def chosen_scores(folder: RunFolder, goals: Sequence[Goal]) -> dict[str, Any]:
    """Of the report what the goals are about, with signatures, and of how many rows it is."""
    report = report_of(folder)
    assert report is not None, "what is finished has been reported on"
    names = [goal.name for goal in goals if goal.name in report["scores"]]
    return {"rows": report["scores"]["rows"], "scores": {name: report["scores"][name] for name in names}}


def counted(report: dict[str, Any], name: str) -> Scores | None:
    """A score as the number of rows that were right; None where it is no share of rows, and has no exact bound."""
    score = report["scores"].get(name)
    if not isinstance(score, dict):
        return None
    signature = dict(part.split(":", 1) for part in score["signature"].split("|"))
    if signature.get("interval") != "clopper-pearson":
        return None
    num_rows = int(signature["n"])
    return Scores.counted(round(score["value"] * num_rows), num_rows)
