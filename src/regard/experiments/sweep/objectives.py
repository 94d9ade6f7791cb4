"""What the trials of a sweep are ranked by: names, directions, and values, read from the run folder of each trial.

The test rows stay sealed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from regard.data.prepare import Prepared
from regard.errors import ConfigError, RunError
from regard.evaluation.registry import find_metric, find_metric_of
from regard.experiments.jobs import last_metrics
from regard.runs.folder import RunFolder
from regard.selection.bounds import ScoreSummary
from regard.selection.ledger import evaluations
from regard.selection.releases import read_release
from regard.settings import nearest
from regard.tasks.registry import make_task
from regard.training.settings import ResolvedSettings

RUN_OBJECTIVES = ("loss", "parameters", "seconds")
"""What every run has: its best validation loss, its number of parameters, and the seconds of its training."""


@dataclass(frozen=True)
class SweepObjective:
    """What is maximized, or minimized."""

    name: str

    @property
    def is_maximized(self) -> bool:
        return self.name not in RUN_OBJECTIVES and find_metric_of(self.name).higher_is_better

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "maximize" if self.is_maximized else "minimize"

    @property
    def is_per_token(self) -> bool:
        """Whether it is a mean over tokens, which is comparable only for the same tokens."""
        return self.name == "loss" or (self.name not in RUN_OBJECTIVES and find_metric_of(self.name).is_per_token)

    @property
    def sign(self) -> float:
        """What a value is multiplied by so that lower is better."""
        return -1.0 if self.is_maximized else 1.0


def read_objectives(names: Sequence[str], settings: ResolvedSettings, data: Prepared) -> list[SweepObjective]:
    """The objectives of these names; unset, the task's first score, or the loss of a task without outputs."""
    task, rows = make_task(settings.task, data.codecs), data.held_out["valid"]
    if not rows:
        raise ConfigError("a sweep selects by validation rows, and there are none")
    known, headline = [*task.metric_names(), *RUN_OBJECTIVES], task.headline(rows)
    if (release := settings.train.release) is not None:
        released = find_metric(headline).certified_by or headline
        names = names or [released]
        if unreleased := [name for name in names if name not in (released, "parameters", "seconds")]:
            raise ConfigError(
                f"train.{release[0]} releases {released} alone: objectives must be that, parameters or seconds, got "
                f"{unreleased[0]}"
            )
    if not names:
        names = ["loss" if not task.has_targets else headline if headline in known else known[0]]
    for name in names:
        if name not in known:
            raise ConfigError(f"no objective of {task.name} is called {name!r}{nearest(name, known)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"objectives must differ, got {', '.join(names)}")
    return [SweepObjective(name) for name in names]


def report_of(folder: RunFolder) -> dict[str, Any] | None:
    """The ledger's line of the final evaluation of a run; None where the run is not finished."""
    lines = [line for line in folder.read_ledger() if line["event"] == "report"]
    return lines[-1] if lines else None


def measure_run(folder: RunFolder) -> dict[str, float | None]:
    """All values that a finished run can be ranked by; None for a score of which only is known that others are better.

    Where scores are released there is no loss: it is infinite.
    """
    report = report_of(folder)
    if report is None:
        raise RunError(f"the training of {folder.path} is not finished")
    release = None if report.get("release") is None else read_release(report["release"])
    return {
        **{
            name: score["value"] if release is None or release.rank is not None else None
            for name, score in report["scores"].items()
            if isinstance(score, dict)
        },
        "loss": best_loss(folder.read_ledger()),
        "parameters": float(folder.read_provenance().num_parameters),
        "seconds": float(last_metrics(folder.path)["seconds"]),
    }


def best_loss(evaluations: Sequence[dict[str, Any]]) -> float:
    """The lowest validation loss of a training: that of the saved weights, where these are selected by loss."""
    losses = (line["scores"].get("loss", math.inf) for line in evaluations if line["event"] == "training")
    return min(losses, default=math.inf)


def evaluations_of(folder: RunFolder) -> list[dict[str, Any]]:
    """Each evaluation on the validation rows, once: a step that is trained again after a crash has the same weights."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in evaluations(folder.read_ledger(), "valid"):
        scores = {n: s["value"] if isinstance(s, dict) else s for n, s in line["scores"].items() if n != "rows"}
        kept = {name: line[name] for name in ("time", "event", "candidate", "release") if name in line}
        kept["scores"] = scores
        found.setdefault((line["event"], line["candidate"]), kept)
    return list(found.values())


def objective_scores(folder: RunFolder, objectives: Sequence[SweepObjective]) -> dict[str, Any]:
    """The scores of the objectives in the final evaluation, with signatures, and its number of rows."""
    report = report_of(folder)
    assert report is not None, "a finished run has a report"
    names = [objective.name for objective in objectives if objective.name in report["scores"]]
    found = {"rows": report["scores"]["rows"], "scores": {name: report["scores"][name] for name in names}}
    return found if report.get("release") is None else {**found, "release": report["release"]}


def correct_rows(report: dict[str, Any], name: str) -> ScoreSummary | None:
    """A score as the number of correct rows; None where it is no proportion of rows, and so has no exact bound."""
    score = report["scores"].get(name)
    if not isinstance(score, dict):
        return None
    signature = dict(part.split(":", 1) for part in score["signature"].split("|"))
    if signature.get("interval") != "clopper-pearson":
        return None
    num_rows = int(signature["n"])
    return ScoreSummary.from_successes(round(score["value"] * num_rows), num_rows)
