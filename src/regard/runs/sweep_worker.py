"""A worker of a sweep: `python -m regard.runs.sweep_worker`, with its order on stdin.

It takes a trial, trains it, says what came of it, and takes the next, until there are enough. PyTorch is loaded once,
and one thread computes: sums are then the same however many workers there are. When the process that started it goes
away, stdin ends, and the worker saves its state and leaves; the trial is taken up again by the same command.
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError, RegardError, RunError, StoppedError
from regard.runs.sweep_plan import SweepPlan
from regard.selection.space import nested
from regard.settings import merge

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

    from regard.runs.launch import OnLook


@dataclass(frozen=True)
class Order:
    """What one worker is to do."""

    plan: dict[str, Any]
    unfinished: list[int] = field(default_factory=list)
    """Trials that were left behind, to be finished first."""
    is_searching: bool = True
    """Whether to take new trials."""
    again: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Folders and settings of runs that are no trials."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class PrunedError(Exception):
    """The trial is not worth its remaining steps."""


def work(order: Order) -> None:
    """Do all that was ordered."""
    import torch

    torch.set_num_threads(1)
    plan = SweepPlan.from_json(order.plan)
    for path, settings in order.again:
        train_in(Path(path), plan.data, settings)
    if not order.is_searching:
        return
    from regard.runs.sweep_study import take_back, take_trial

    study, space = open_study(plan), plan.ranges
    for number in order.unfinished:
        finish(study, take_back(study, number, space), plan)
    lock = plan.path / "turn.lock"
    while trial := take_trial(study, space, num_trials=plan.num_trials, owner=plan.owner, lock=lock):
        finish(study, trial, plan)


def open_study(plan: SweepPlan) -> "Study":
    """The study of a plan; it is made where there is none."""
    import optuna

    from regard.runs.sweep_study import make_pruner, make_sampler, open_storage

    return optuna.create_study(
        storage=open_storage(plan.storage),
        study_name=plan.study_name,
        directions=[goal.direction for goal in plan.goals],
        sampler=make_sampler(plan.sampler, plan.ranges, plan.seed),
        pruner=make_pruner(plan.pruner, every=plan.every, steps=plan.steps),
        load_if_exists=True,
    )


def finish(study: "Study", trial: "Trial", plan: SweepPlan) -> None:
    """Train a trial to its end, or go on, and tell the study what came of it.

    Settings that do not go together and a loss that is not finite are the end of a trial, not of the sweep.
    """
    from optuna.trial import TrialState

    from regard.runs.sweep_objectives import chosen_scores, figures, looks_of, measure
    from regard.runs.sweep_study import FACTS, FAILURE, LOOKS, PRUNED, REPORT
    from regard.training.folder import RunFolder

    folder = RunFolder(plan.trial_path(trial.number))
    values, state = None, TrialState.COMPLETE
    try:
        if PRUNED in trial.user_attrs:  # it was decided, and not yet told
            raise PrunedError
        train_in(folder.path, plan.data, merge(plan.settings, nested(trial.params)), _pruning(trial, plan))
        facts = measure(folder)
        values = [facts[goal.name] for goal in plan.goals]
        trial.set_user_attr(FACTS, facts)
        trial.set_user_attr(REPORT, chosen_scores(folder, plan.goals))
    except PrunedError:
        state = TrialState.PRUNED
    except StoppedError:
        raise
    except (ConfigError, RunError) as error:
        trial.set_user_attr(FAILURE, str(error))
        state = TrialState.FAIL
    trial.set_user_attr(LOOKS, looks_of(folder))
    trial.set_user_attr("steps", figures(folder)["step"])
    # One that was away for so long that another machine took over comes too late.
    study.tell(trial, values, state=state, skip_if_finished=True)


def train_in(path: Path, data: Sequence[str], settings: dict[str, Any], on_look: "OnLook | None" = None) -> None:
    """Train in a folder, or go on there; nothing where that run is finished."""
    from regard.runs.launch import train
    from regard.runs.sweep_objectives import report_of
    from regard.training.folder import RunFolder

    folder = RunFolder(path)
    if not folder.exists:
        train(list(data), out=path, settings=settings, show_progress=False, on_look=on_look)
    elif report_of(folder) is None:
        train(out=path, resume=True, show_progress=False, on_look=on_look)


def _pruning(trial: "Trial", plan: SweepPlan) -> "OnLook | None":
    """What hands each validation loss to the pruner, and ends the trial where that says so."""
    from regard.runs.sweep_study import PRUNED

    if plan.pruner == "none":
        return None
    known = dict(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def look(step: int, loss: float) -> None:
        if step in known:  # judged before a crash, and found good enough
            return
        # The pruner takes for better what the study does, and a lower loss is always better.
        trial.report(-loss if plan.goals[0].is_maximized else loss, step)
        is_last = plan.steps is not None and step >= plan.steps
        if not is_last and trial.should_prune():
            trial.set_user_attr(PRUNED, step)
            raise PrunedError

    return look


def _leave_with_the_parent() -> None:
    """Wait for the end of stdin, which comes when the process that started this one is gone."""
    while os.read(sys.stdin.fileno(), 1):  # not readline, which would hold a lock that Python wants when it ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    order = Order(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    try:
        work(order)
    except RegardError as error:
        print(error, file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))


if __name__ == "__main__":
    main()
