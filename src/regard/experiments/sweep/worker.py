"""A worker of a sweep: trains trial after trial until there are enough.

    python -m regard.startup regard.experiments.sweep.worker      with a plan on stdin

PyTorch is imported once for all trials. A worker computes with one thread, so that sums, and with them results, do not
depend on the number of workers.
"""

import math
from collections.abc import Callable

import torch
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import Trial, TrialState

from regard.errors import ConfigError, RunError, StoppedError
from regard.experiments.jobs import CHILD_SETTINGS, last_metrics
from regard.experiments.processes import serve_request
from regard.experiments.sweep.objectives import evaluations_of, measure_run, objective_scores, report_of
from regard.experiments.sweep.plan import SweepPlan
from regard.experiments.sweep.study import (
    TrialKey,
    close_storage,
    open_storage,
    open_study,
    record_heartbeats,
    reported_errors,
    retry_stale,
    take_trial,
)
from regard.logging import log_warning
from regard.runs.folder import RunFolder
from regard.runs.train import train
from regard.selection.space import nested
from regard.settings import merge_tables


class PrunedError(Exception):
    """The pruner has ended the trial."""


def work(plan: SweepPlan) -> None:
    """Train trials of a plan until there are enough."""
    torch.set_num_threads(1)
    with reported_errors(plan.storage):
        _train_trials(plan)


def _train_trials(plan: SweepPlan) -> None:
    storage = open_storage(plan.storage)
    study = open_study(plan, storage)
    while True:
        retry_stale(study, storage, plan.owner)
        trial = take_trial(study, plan.ranges, num_trials=plan.num_trials, owner=plan.owner)
        if trial is None:
            close_storage(storage)
            return
        record_heartbeats(study, storage, plan.owner)
        try:
            train_trial(study, trial, plan)
        except UpdateFinishedTrialError:
            log_warning(
                f"trial {trial.user_attrs[TrialKey.INDEX]} had no heartbeat for so long that it was queued again"
            )


def train_trial(study: Study, trial: Trial, plan: SweepPlan) -> None:
    """Train a trial to its end, or resume it, and write its results to the study.

    Settings that do not fit together and a loss that is not finite end the trial, not the sweep.
    """
    folder = RunFolder(plan.trial_path(trial.user_attrs[TrialKey.INDEX]))
    values, state, failure = None, TrialState.COMPLETE, None
    try:
        if TrialKey.PRUNED in trial.user_attrs:  # decided before its worker was lost
            raise PrunedError
        on_evaluation = _pruning(trial, plan)
        if not folder.exists:
            settings = merge_tables(merge_tables(CHILD_SETTINGS, plan.settings), nested(trial.params))
            train(plan.data, out=folder.path, settings=settings, show_progress=False, on_evaluation=on_evaluation)
        elif report_of(folder) is None:
            train(out=folder.path, resume=True, show_progress=False, on_evaluation=on_evaluation)
        found = measure_run(folder)
        # A score of which is known only that others are better is the worst one.
        values = [0.0 if (value := found[objective.name]) is None else value for objective in plan.objectives]
        if any(map(math.isnan, values)):
            raise RunError(f"objectives must be numbers, got {values}")
        trial.set_user_attr(TrialKey.VALUES, found)
        trial.set_user_attr(TrialKey.REPORT, objective_scores(folder, plan.objectives))
    except PrunedError:
        state = TrialState.PRUNED
    except StoppedError:
        raise
    except (ConfigError, RunError) as error:
        values, state, failure = None, TrialState.FAIL, str(error)
    trial.set_user_attr(TrialKey.EVALUATIONS, evaluations_of(folder))
    trial.set_user_attr(TrialKey.STEPS, last_metrics(folder.path)["step"])
    if failure is not None:  # with it, the attributes are complete
        trial.set_user_attr(TrialKey.FAILURE, failure)
    study.tell(trial, values, state=state, skip_if_finished=True)


def _pruning(trial: Trial, plan: SweepPlan) -> Callable[[int, float], None] | None:
    """What reports each validation loss to the pruner, and ends the trial if the pruner decides so."""
    if plan.pruner == "none":
        return None
    known = dict(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def on_evaluation(step: int, loss: float) -> None:
        if step in known:  # reported before the worker was lost, and not pruned then
            return
        # The pruner assumes the direction of the objective, and a lower loss is always better.
        trial.report(plan.objectives[0].sign * loss, step)
        is_last = plan.steps is not None and step >= plan.steps
        if not is_last and trial.should_prune():
            trial.set_user_attr(TrialKey.PRUNED, step)
            raise PrunedError

    return on_evaluation


if __name__ == "__main__":
    serve_request(lambda values: work(SweepPlan.from_json(values)))
