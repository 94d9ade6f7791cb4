"""The trials of a sweep in Optuna's storage: who proposes settings, who takes which trial, and what becomes of it.

Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework" (2019). https://arxiv.org/abs/1907.10902
Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (2011), section 4: the tree-structured Parzen estimator.
Li et al., "Hyperband" (2018). https://arxiv.org/abs/1603.06560

Settings are drawn from the seed of the sweep, the number of the trial and the name of the setting, and from nothing
else but the trials before it: a sweep that was stopped anywhere proposes what it would have proposed.
"""

import fcntl
import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from regard.errors import RunError
from regard.selection.space import Range, Space, Value

SamplerName = Literal["random", "tpe", "grid"]
PrunerName = Literal["none", "hyperband"]

OWNER, SURPLUS, PRUNED, FAILURE = "owner", "surplus", "pruned_at", "failure"
LOOKS, FACTS, REPORT = "looks", "facts", "report"
"""What is noted beside a trial: the folder that trains it; that it was one too many; and what came of it."""
_FEWEST_FOR_IMPORTANCE = 5
_TARGET_QUANTILE = 0.25
"""Settings are important in which the best quarter of the trials lies in a small part of the space."""


def open_storage(url: str) -> BaseStorage:
    """The storage at a URL such as sqlite:///study.db or postgresql://host/name."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.storages.get_storage(url)
    except (SQLAlchemyError, ImportError, ValueError, OSError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise RunError(f"the storage {without_password(url)} cannot be reached: {reason}") from None


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url if "@" not in url else f"...@{url.rpartition('@')[2]}"


class _ByItself(BaseSampler):
    """Draws each setting by itself, and none together with others."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}


class SeededSampler(_ByItself):
    """Lets another sampler draw each setting of each trial, from a seed that is theirs alone."""

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make, self._seed = make, seed

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        text = f"{self._seed} {trial.number} {param_name}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
        return self._make(seed).sample_independent(study, trial, param_name, param_distribution)


class GridSampler(_ByItself):
    """The points of a grid, one for each trial, in order."""

    def __init__(self, points: list[dict[str, Value]]) -> None:
        self._points = points

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        place = sum(each.number < trial.number for each in trials_of(study))
        return self._points[place % len(self._points)][param_name]


def make_sampler(name: SamplerName, space: Space, seed: int) -> BaseSampler:
    """What proposes settings: at random, near those that did well (TPE), or each point of a grid once."""
    if name == "grid":
        return GridSampler(space.grid())
    if name == "random":
        return SeededSampler(lambda seed: RandomSampler(seed=seed), seed)
    return SeededSampler(lambda seed: TPESampler(seed=seed, multivariate=False), seed)


def make_pruner(name: PrunerName, *, every: int, steps: int | None) -> BasePruner:
    """What ends a trial early: nothing, or Hyperband by the looks at a share of all steps."""
    if name == "none":
        return NopPruner()
    assert steps is not None, "a pruner has a budget in steps"
    return HyperbandPruner(min_resource=every, max_resource=steps, reduction_factor=3)


def trials_of(study: Study) -> list[FrozenTrial]:
    """The trials that count, by number."""
    return [trial for trial in study.get_trials(deepcopy=False) if SURPLUS not in trial.user_attrs]


def take_trial(study: Study, space: Space, *, num_trials: int, owner: str, lock: Path) -> Trial | None:
    """A new trial with its settings; None where there are enough.

    Workers of one folder take turns by its lock. Those of two machines may both take the last one: then the one with
    the higher number is noted as one too many.
    """
    with _turn(lock):
        if len(trials_of(study)) >= num_trials:
            return None
        trial = study.ask()
        trial.set_user_attr(OWNER, owner)
        if sum(each.number < trial.number for each in trials_of(study)) >= num_trials:
            trial.set_user_attr(SURPLUS, True)
            study.tell(trial, state=TrialState.FAIL)
            return None
        return with_settings(trial, space)


def take_back(study: Study, number: int, space: Space) -> Trial:
    """A trial that somebody began and left, with the settings that it has."""
    frozen = next(trial for trial in study.get_trials(deepcopy=False) if trial.number == number)
    return with_settings(Trial(study, frozen._trial_id), space)


def left_behind(study: Study, owner: str) -> list[int]:
    """The trials that are running by name, while whoever holds the lock of the folder `owner` knows that none is."""
    running = [trial for trial in trials_of(study) if trial.state == TrialState.RUNNING]
    return [trial.number for trial in running if trial.user_attrs.get(OWNER, owner) == owner]


def with_settings(trial: Trial, space: Space) -> Trial:
    """The trial with a value for each setting of the space; one that it has stays."""
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
    """A range as Optuna calls it; one in steps ends at its last step."""
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
    where all do equally well. Of several objectives it is about the first.
    """
    values = [trial.values[0] for trial in trials_of(study) if trial.state == TrialState.COMPLETE]
    if len(values) < _FEWEST_FOR_IMPORTANCE or max(values) == min(values):
        return {}
    sign = -1.0 if is_maximized else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is called experimental, and of a target that is given
        evaluator = PedAnovaImportanceEvaluator(target_quantile=_TARGET_QUANTILE, evaluate_on_local=False)
        found = get_param_importances(study, evaluator=evaluator, target=lambda trial: sign * trial.values[0])
    return {name: float(share) for name, share in found.items()} if sum(found.values()) > 0 else {}


@contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """One at a time, among the processes of this machine."""
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
