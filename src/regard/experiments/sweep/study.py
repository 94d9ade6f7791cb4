"""The trials of a sweep in Optuna's storage: samplers, pruner, heartbeat and retries.

Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework" (2019). https://arxiv.org/abs/1907.10902
Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (2011), section 4: the tree-structured Parzen estimator.
Li et al., "Hyperband" (2018). https://arxiv.org/abs/1603.06560

A trial whose worker is lost is an attempt that Optuna marks as failed and queues again, with the same settings. The
*index* of a trial is its number in the sweep, the same for all its attempts. Settings are sampled from the seed of the
sweep, the index of the trial, the name of the setting and the trials before it, so an interrupted sweep proposes what
an uninterrupted one would have proposed.
"""

import copy
import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from regard.errors import RunError
from regard.experiments.sweep.plan import SweepPlan
from regard.selection.space import Range, Space


class TrialKey(StrEnum):
    """The names of the user attributes of a trial in Optuna."""

    OWNER = "owner"  # the folder that trains it
    INDEX = "index"
    POSITION = "position"  # how many trials count before it
    SURPLUS = "surplus"  # it is one too many
    PRUNED = "pruned_at"
    FAILURE = "failure"
    EVALUATIONS = "evaluations"
    VALUES = "values"
    REPORT = "report"
    STEPS = "steps"


HEARTBEAT_SECONDS, GRACE_SECONDS = 20, 300
"""A trial without a heartbeat for the second is lost."""
_CREATION_SECONDS, _CREATION_PAUSE = 60.0, 0.5
_SIGNS_OF_CREATION = ("already exists", "is locked")
_MIN_TRIALS_FOR_IMPORTANCE = 5
_TARGET_QUANTILE = 0.25
"""A setting is important if the best quarter of the trials lies in a small part of its range."""


def open_storage(url: str) -> RDBStorage:
    """The storage at a URL such as sqlite:///study.db or postgresql://host/name."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with reported_errors(url, ImportError, ValueError, OSError), _without_warnings():
        make = partial(
            RDBStorage,
            with_driver(url),
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=_retry,
        )
        deadline = time.monotonic() + _CREATION_SECONDS
        while True:
            try:
                return make()
            except (IntegrityError, OperationalError, ProgrammingError) as error:
                # Another process creates the tables at the same time.
                is_early = isinstance(error, IntegrityError) or any(sign in str(error) for sign in _SIGNS_OF_CREATION)
                if not is_early or time.monotonic() > deadline:
                    raise
            time.sleep(_CREATION_PAUSE)


def close_storage(storage: RDBStorage) -> None:
    """Close the connections to the database."""
    storage.remove_session()
    storage.engine.dispose()


def with_driver(url: str) -> str:
    """The URL with the driver of the extra `regard[postgresql]`, where it names PostgreSQL and no driver."""
    found = make_url(url)
    if found.drivername != "postgresql":
        return url
    return found.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


@contextmanager
def reported_errors(url: str, *others: type[Exception]) -> Iterator[None]:
    """Errors of a database, and the `others`, are one line inside the context, which does not show its password."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError, *others) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError | ImportError) else None
        cause = error if cause is None else cause
        reason = _masked(_first_line(str(getattr(cause, "orig", None) or cause)), url)
        if isinstance(cause, ModuleNotFoundError):
            remedy = ": install regard[postgresql]" if cause.name == "psycopg" else ""
            reason = f"it needs the package {cause.name}{remedy}"
        raise RunError(f"the storage {without_password(url)} cannot be reached: {reason}") from None


def _first_line(text: str) -> str:
    """Of several attempts to connect, such as one for each address of a host, the reason of the first."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[0] if lines else "no reason is given"


def _masked(text: str, url: str) -> str:
    try:
        password = make_url(url).password
    except (SQLAlchemyError, ValueError):
        password = None
    return text.replace(str(password), "***") if password else text


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except (SQLAlchemyError, ValueError):
        return url if "@" not in url else f"...@{url.rpartition('@')[2]}"


def open_study(plan: SweepPlan, storage: RDBStorage) -> Study:
    """The study of a plan; it is created where there is none."""
    return optuna.create_study(
        storage=storage,
        study_name=plan.study_name,
        directions=[objective.direction for objective in plan.objectives],
        sampler=make_sampler(plan.sampler, plan.ranges, plan.seed),
        pruner=make_pruner(plan.pruner, every=plan.every, steps=plan.steps),
        load_if_exists=True,
    )


class IndependentSampler(BaseSampler):
    """Samples each setting by itself: a function of the study, the trial, the setting's name and its distribution."""

    def __init__(self, sample: Callable[[Study, FrozenTrial, str, BaseDistribution], Any]) -> None:
        self._sample = sample

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sample(study, trial, param_name, param_distribution)


def make_sampler(name: str, space: Space, seed: int) -> BaseSampler:
    """What proposes settings: `random`, near those of good trials (`tpe`), or each point of a `grid` once."""
    if name == "grid":
        points = space.grid()
        return IndependentSampler(
            lambda study, trial, name, _: points[trial.user_attrs[TrialKey.POSITION] % len(points)][name]
        )

    def sample(study: Study, trial: FrozenTrial, setting: str, distribution: BaseDistribution) -> Any:
        text = f"{seed} {trial.user_attrs[TrialKey.INDEX]} {setting}"
        own_seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
        sampler = RandomSampler(own_seed) if name == "random" else TPESampler(seed=own_seed, multivariate=False)
        return sampler.sample_independent(study, trial, setting, distribution)

    return IndependentSampler(sample)


def make_pruner(name: str, *, every: int | None, steps: int | None) -> BasePruner:
    """What ends a trial early: nothing, or Hyperband by evaluations at a fraction of all steps."""
    if name == "none":
        return NopPruner()
    assert steps is not None, "a pruner has a budget in steps"
    assert every is not None, "and so has its evaluations"
    return HyperbandPruner(min_resource=every, max_resource=steps, reduction_factor=3)


def indices_of(trials: Sequence[FrozenTrial]) -> dict[int, int]:
    """The index of each of a study's attempts, by its number in Optuna: retries are not counted."""
    indices: dict[int, int] = {}
    num_retries = 0
    for trial in trials:
        original = trial.system_attrs.get("failed_trial")  # written by RetryHeartbeatStaleTrialCallback
        indices[trial.number] = trial.number - num_retries if original is None else indices[original]
        num_retries += original is not None
    return indices


def trials_of(study: Study) -> dict[int, FrozenTrial]:
    """The last attempt of each trial, by index; without those that were one too many."""
    trials = study.get_trials(deepcopy=False)
    indices = indices_of(trials)
    return {indices[trial.number]: trial for trial in trials if TrialKey.SURPLUS not in trial.user_attrs}


def take_trial(study: Study, space: Space, *, num_trials: int, owner: str) -> Trial | None:
    """The next trial with its settings: one that is queued again, or a new one; None where there are enough.

    Two workers may both take the last one: then the one with the higher number is marked as one too many.
    """
    trials = trials_of(study)
    if len(trials) >= num_trials and all(trial.state != TrialState.WAITING for trial in trials.values()):
        return None
    with _without_warnings():
        trial = study.ask()
    trial.set_user_attr(TrialKey.OWNER, owner)
    trials = trials_of(study)
    index = next(index for index, other in trials.items() if other.number == trial.number)
    position = sum(other < index for other in trials)
    if position >= num_trials:
        trial.set_user_attr(TrialKey.SURPLUS, True)
        study.tell(trial, state=TrialState.FAIL)
        return None
    # For the samplers: under Hyperband, Optuna shows them only some of the trials.
    trial.set_user_attr(TrialKey.INDEX, index)
    trial.set_user_attr(TrialKey.POSITION, position)
    return with_settings(trial, space)


def record_heartbeats(study: Study, storage: RDBStorage, owner: str) -> None:
    """Record the heartbeat of all running trials of the folder `owner`, whose lock is held: their workers run."""
    for trial in trials_of(study).values():
        if trial.state == TrialState.RUNNING and trial.user_attrs.get(TrialKey.OWNER) == owner:
            storage.record_heartbeat(trial._trial_id)


def retry_stale(study: Study, storage: RDBStorage, owner: str) -> None:
    """Queue the trials of other folders again that have had no heartbeat for `GRACE_SECONDS`."""
    record_heartbeats(study, storage, owner)  # its own may lack one only because the machine was suspended
    with _without_warnings():
        fail_stale_trials(study)


def has_ended(trial: FrozenTrial) -> bool:
    """Whether a trial is finished, pruned, or failed for a reason; without a reason, its worker was lost."""
    return trial.state.is_finished() and (trial.state != TrialState.FAIL or TrialKey.FAILURE in trial.user_attrs)


def retry_lost(study: Study, owner: str) -> int:
    """Queue the trials again that the folder `owner` has lost, while its lock is held; returns their number.

    They are running by name, though no process of the folder runs; or have failed without a reason and a retry, where
    a process was killed between the two.
    """
    lost = [trial for trial in trials_of(study).values() if _is_lost(trial, owner)]
    for trial in lost:
        if trial.state == TrialState.RUNNING:
            study.tell(trial.number, state=TrialState.FAIL)
        if TrialKey.FAILURE not in trial.user_attrs:
            _retry(study, copy.deepcopy(trial))
    return len(lost)


def _is_lost(trial: FrozenTrial, owner: str) -> bool:
    if trial.state == TrialState.RUNNING:
        return trial.user_attrs.get(TrialKey.OWNER, owner) == owner
    return trial.state == TrialState.FAIL and TrialKey.FAILURE not in trial.user_attrs


def _retry(study: Study, trial: FrozenTrial) -> None:
    """Queue a trial again, with the losses that were reported to the pruner."""
    with _without_warnings():
        RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)(study, trial)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress Optuna's warnings: of experimental functions, and that the heartbeat is recorded by us."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def with_settings(trial: Trial, space: Space) -> Trial:
    """The trial with a value for each setting of the space; values that it has are kept."""
    for name, one in space.ranges.items():
        match distribution_of(one):
            case CategoricalDistribution(choices=choices):
                trial.suggest_categorical(name, choices)
            case IntDistribution(low=low, high=high, log=log, step=step):
                trial.suggest_int(name, low, high, log=log, step=step)
            case FloatDistribution(low=low, high=high, log=log, step=step):
                trial.suggest_float(name, low, high, log=log, step=step)
    return trial


def distribution_of(one: Range) -> BaseDistribution:
    """A range as a distribution of Optuna; one in steps ends at its last step."""
    if one.choices is not None:
        return CategoricalDistribution(one.choices)
    points = one.points()
    low, high = one.low, points[-1] if points else one.high
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if one.is_integer:
        return IntDistribution(int(low), int(high), log=one.log, step=int(one.step or 1))
    return FloatDistribution(float(low), float(high), log=one.log, step=one.step)


def importance_of(study: Study, *, is_maximized: bool) -> dict[str, float]:
    """How much each setting decides whether a trial is among the best quarter; the shares sum to 1.

    Watanabe et al., "PED-ANOVA" (2023), https://arxiv.org/abs/2304.10255. Empty where there are too few trials, or
    where all are equally good. Of several objectives it is about the first.
    """
    values = [trial.values[0] for trial in trials_of(study).values() if trial.state == TrialState.COMPLETE]
    if len(values) < _MIN_TRIALS_FOR_IMPORTANCE or max(values) == min(values):
        return {}
    sign = -1.0 if is_maximized else 1.0
    with _without_warnings():
        evaluator = PedAnovaImportanceEvaluator(target_quantile=_TARGET_QUANTILE, evaluate_on_local=False)
        found = get_param_importances(study, evaluator=evaluator, target=lambda trial: sign * trial.values[0])
    return {name: float(share) for name, share in found.items()} if sum(found.values()) > 0 else {}
