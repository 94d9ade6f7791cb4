"""The results of a sweep: its trials in order, the winner, its settings with other seeds, and the bound."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from regard.errors import RunError
from regard.evaluation.intervals import mean_interval
from regard.experiments.sweep.objectives import SweepObjective, best_loss, correct_rows, measure_run
from regard.experiments.sweep.plan import SweepPlan
from regard.experiments.sweep.study import TrialKey, has_ended, importance_of, trials_of
from regard.runs.folder import RunFolder
from regard.runs.train import flatten
from regard.selection.bounds import DELTA, Bound, smallest_difference, tightest_bound
from regard.selection.ledger import Ledger, candidates_in
from regard.version import version

_STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def find_winner(study: Study, plan: SweepPlan) -> int:
    """The index of the best finished trial by the first objective; of several objectives it is Pareto-optimal."""
    trials = trials_of(study)
    finished = [index for index, trial in trials.items() if trial.state == TrialState.COMPLETE]
    if not finished:
        reasons = [
            trial.user_attrs[TrialKey.FAILURE] for trial in trials.values() if TrialKey.FAILURE in trial.user_attrs
        ]
        raise RunError(f"no trial was finished: {reasons[-1] if reasons else 'all were pruned'}")
    return min(finished, key=lambda index: _rank(index, trials[index], plan.objectives))


def sweep_table(study: Study, plan: SweepPlan) -> dict[str, Any]:
    """The table of a finished sweep: the content of `result.json`."""
    number, trials = find_winner(study, plan), trials_of(study)
    winner, ledger = trials[number], Ledger(plan.path / "ledger.jsonl")
    num_hypotheses = len(candidates_in(ledger.read()))
    done = {index: trial for index, trial in trials.items() if has_ended(trial)}
    ranked = sorted(done, key=lambda index: _rank(index, done[index], plan.objectives))
    optimal = pareto_front(done, plan.objectives)
    rows, bound = _bound(winner, plan, num_hypotheses)
    return {
        "data": ", ".join(Path(name).name for name in plan.data),
        "task": plan.task,
        "model": plan.preset,
        "objectives": [{"name": each.name, "direction": each.direction} for each in plan.objectives],
        "sampler": plan.sampler,
        "pruner": plan.pruner,
        "seed": plan.seed,
        "budget": plan.budget,
        "space": plan.space,
        "num_trials": len(done),
        "trials": [_describe(index, done[index], plan, is_optimal=index in optimal) for index in ranked],
        "winner": _describe_winner(number, winner, plan, is_proportion=bound is not None),
        "importance": importance_of(study, is_maximized=plan.objectives[0].is_maximized),
        "rows": rows,
        "hypotheses": num_hypotheses,
        "smallest_difference": smallest_difference(rows, num_candidates=max(2, num_hypotheses)),
        "bound": None if bound is None else bound.to_json(),
        "ledger": ledger.head,
        "paths": plan.data,
        "shared": {name: value for name, value in flatten(plan.settings).items() if name != "data.train"},
        "version": version(),
    }


def _rank(index: int, trial: FrozenTrial, objectives: Sequence[SweepObjective]) -> tuple[int, float, float, int]:
    """Finished trials by the first objective, ties by loss; then pruned ones, longest first; then others."""
    loss = best_loss(trial.user_attrs.get(TrialKey.EVALUATIONS, []))
    if trial.state == TrialState.COMPLETE:
        return 0, objectives[0].sign * trial.values[0], loss, index
    kind = 1 if trial.state == TrialState.PRUNED else 2
    return kind, -float(trial.user_attrs.get(TrialKey.STEPS, 0)), loss, index


def pareto_front(trials: dict[int, FrozenTrial], objectives: Sequence[SweepObjective]) -> set[int]:
    """The indices of finished trials that no other dominates: none is better in one objective and worse in no other."""
    points = {
        index: [objective.sign * value for objective, value in zip(objectives, trial.values, strict=True)]
        for index, trial in trials.items()
        if trial.state == TrialState.COMPLETE
    }

    def dominates(one: list[float], other: list[float]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    return {index for index, point in points.items() if not any(dominates(other, point) for other in points.values())}


def _describe(index: int, trial: FrozenTrial, plan: SweepPlan, *, is_optimal: bool) -> dict[str, Any]:
    values, evaluations = trial.user_attrs.get(TrialKey.VALUES, {}), trial.user_attrs.get(TrialKey.EVALUATIONS, [])
    losses = [line["scores"]["loss"] for line in evaluations if line["event"] == "training"]
    return {
        "number": index,
        "state": _STATES[trial.state],
        "settings": dict(trial.params),
        "values": {objective.name: values.get(objective.name) for objective in plan.objectives},
        "is_pareto_optimal": is_optimal,
        "loss": min(losses, default=None),
        "steps": trial.user_attrs.get(TrialKey.STEPS, 0),
        "seconds": values.get("seconds"),
        "parameters": values.get("parameters"),
        "evaluations": len({line["candidate"] for line in evaluations}),
        "failure": trial.user_attrs.get(TrialKey.FAILURE),
        "run": str(plan.trial_path(index)),
    }


def _describe_winner(index: int, winner: FrozenTrial, plan: SweepPlan, *, is_proportion: bool) -> dict[str, Any]:
    """The winner, and the values of its settings with other seeds; `optimism` is the difference."""
    objective = plan.objectives[0]
    value = winner.user_attrs[TrialKey.VALUES][objective.name]
    folders = [RunFolder(plan.repeat_path(number)) for number in range(1, plan.repeats + 1)]
    repeats = [measure_run(folder)[objective.name] for folder in folders]
    mean = statistics.fmean(repeats) if repeats else None
    interval = list(mean_interval(repeats)[1:]) if len(repeats) > 1 else None
    if is_proportion and interval is not None:
        interval = [min(1.0, max(0.0, end)) for end in interval]
    return {
        "number": index,
        "settings": dict(winner.params),
        "value": value,
        "repeats": repeats,
        "mean": mean,
        "interval": interval,
        "optimism": None if mean is None else objective.sign * (mean - value),
        "runs": [str(folder.path) for folder in folders],
    }


def _bound(winner: FrozenTrial, plan: SweepPlan, num_hypotheses: int) -> tuple[int, Bound | None]:
    """N, and the bounds of the winner's true score, where it is a proportion of rows."""
    report = winner.user_attrs[TrialKey.REPORT]
    scores, rows = correct_rows(report, plan.objectives[0].name), int(report["rows"])
    return rows, None if scores is None else tightest_bound(scores, num_candidates=max(1, num_hypotheses), delta=DELTA)
