"""What a sweep comes to: its trials in order, its winner, and how much of the winner's score was luck."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState

from regard.errors import RunError
from regard.evaluation.means import mean_interval
from regard.runs.launch import flat
from regard.runs.sweep_objectives import Goal, best_loss, counted, measure
from regard.runs.sweep_plan import SweepPlan
from regard.runs.sweep_study import FACTS, FAILURE, LOOKS, REPORT, importance_of, trials_of
from regard.selection.bounds import DELTA, Bound, smallest_difference, tightest
from regard.selection.ledger import Ledger, hypotheses
from regard.training.folder import RunFolder
from regard.version import version

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

_STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def find_winner(study: "Study", plan: SweepPlan) -> "FrozenTrial":
    """The best finished trial by the first objective; of several objectives it is one of the front."""
    finished = [trial for trial in trials_of(study) if trial.state == TrialState.COMPLETE]
    if not finished:
        reasons = [trial.user_attrs[FAILURE] for trial in trials_of(study) if FAILURE in trial.user_attrs]
        raise RunError(f"no trial was finished: {reasons[-1] if reasons else 'all were pruned'}")
    return min(finished, key=lambda trial: _rank(trial, plan.goals))


def verdict(study: "Study", plan: SweepPlan) -> dict[str, Any]:
    """The table of the sweep: what `result.json` holds."""
    winner = find_winner(study, plan)
    ledger = Ledger(plan.path / "ledger.jsonl")
    looked = hypotheses(ledger.read())
    done = [trial for trial in trials_of(study) if trial.state.is_finished()]
    done.sort(key=lambda trial: _rank(trial, plan.goals))
    front = _front(done, plan.goals)
    rows, bound = _bounded(winner, plan, len(looked))
    return {
        "data": ", ".join(Path(name).name for name in plan.data),
        "task": plan.task,
        "model": plan.preset,
        "objectives": [{"name": goal.name, "direction": goal.direction} for goal in plan.goals],
        "sampler": plan.sampler,
        "pruner": plan.pruner,
        "seed": plan.seed,
        "budget": plan.budget,
        "space": plan.space,
        "num_trials": len(done),
        "trials": [_described(trial, plan, is_front=trial.number in front) for trial in done],
        "winner": _won(winner, plan, is_share=bound is not None),
        "importance": importance_of(study, is_maximized=plan.goals[0].is_maximized),
        "rows": rows,
        "hypotheses": len(looked),
        "smallest_difference": smallest_difference(rows, num_hypotheses=max(2, len(looked))),
        "bound": None if bound is None else bound.to_dict(),
        "ledger": ledger.head,
        "paths": plan.data,
        "shared": _shared(plan),
        "version": version(),
    }


def _shared(plan: SweepPlan) -> dict[str, Any]:
    """What all trials have been told, by full names, but where the data lies."""
    return {name: value for name, value in flat(plan.settings).items() if name != "data.train"}


def _rank(trial: "FrozenTrial", goals: Sequence[Goal]) -> tuple[int, float, float, int]:
    """Finished ones by their first objective, equals by their loss; then pruned ones, longest first; then others."""
    loss = best_loss(trial.user_attrs.get(LOOKS, []))
    if trial.state == TrialState.COMPLETE:
        return 0, -trial.values[0] if goals[0].is_maximized else trial.values[0], loss, trial.number
    kind = 1 if trial.state == TrialState.PRUNED else 2
    return kind, -float(trial.user_attrs.get("steps", 0)), loss, trial.number


def _front(trials: Sequence["FrozenTrial"], goals: Sequence[Goal]) -> set[int]:
    """Trials that no other beats in one objective without losing in another."""
    signs = [-1.0 if goal.is_maximized else 1.0 for goal in goals]
    points = {
        trial.number: [sign * value for sign, value in zip(signs, trial.values, strict=True)]
        for trial in trials
        if trial.state == TrialState.COMPLETE
    }

    def beats(one: list[float], other: list[float]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    return {n for n, point in points.items() if not any(beats(other, point) for other in points.values())}


def _described(trial: "FrozenTrial", plan: SweepPlan, *, is_front: bool) -> dict[str, Any]:
    facts, looks = trial.user_attrs.get(FACTS, {}), trial.user_attrs.get(LOOKS, [])
    losses = [look["scores"]["loss"] for look in looks if look["what"] == "training"]
    return {
        "number": trial.number,
        "state": _STATES[trial.state],
        "settings": dict(trial.params),
        "values": {goal.name: facts.get(goal.name) for goal in plan.goals},
        "is_front": is_front,
        "loss": min(losses, default=None),
        "steps": trial.user_attrs.get("steps", 0),
        "seconds": facts.get("seconds"),
        "parameters": facts.get("parameters"),
        "looks": len({look["hypothesis"] for look in looks}),
        "failure": trial.user_attrs.get(FAILURE),
        "run": str(plan.trial_path(trial.number)),
    }


def _won(winner: "FrozenTrial", plan: SweepPlan, *, is_share: bool) -> dict[str, Any]:
    """The winner, beside what its settings reach with other seeds: what is lost there was luck of the seed."""
    goal, facts = plan.goals[0], winner.user_attrs[FACTS]
    folders = [RunFolder(plan.again_path(number)) for number in range(1, plan.again + 1)]
    again = [measure(folder)[goal.name] for folder in folders]
    mean = statistics.fmean(again) if again else None
    interval = list(mean_interval(again)[1:]) if len(again) > 1 else None
    if is_share and interval is not None:
        interval = [min(1.0, max(0.0, end)) for end in interval]
    return {
        "number": winner.number,
        "settings": dict(winner.params),
        "value": facts[goal.name],
        "again": again,
        "mean": mean,
        "interval": interval,
        "luck": None if mean is None else (facts[goal.name] - mean) * (1 if goal.is_maximized else -1),
        "runs": [str(folder.path) for folder in folders],
    }


def _bounded(winner: "FrozenTrial", plan: SweepPlan, num_looked: int) -> tuple[int, Bound | None]:
    """N, and between what the winner's true score lies, where it is a share of rows."""
    report = winner.user_attrs[REPORT]
    scores, rows = counted(report, plan.goals[0].name), int(report["rows"])
    return rows, None if scores is None else tightest(scores, num_hypotheses=max(1, num_looked), delta=DELTA)
