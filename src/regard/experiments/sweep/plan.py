"""What a sweep searches; everything that is wrong with it is an error before anything is written."""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard.data.settings import DataConfig
from regard.errors import ConfigError
from regard.experiments.jobs import format_minutes
from regard.experiments.sweep.objectives import SweepObjective, read_objectives
from regard.logging import quiet_logs
from regard.models.presets import find_preset
from regard.runs.train import REPORT_ROWS
from regard.selection.bounds import smallest_difference
from regard.selection.releases import MECHANISMS
from regard.selection.space import Range, Space, read_space
from regard.settings import merge_tables, nearest, read_toml
from regard.tasks.registry import make_task
from regard.training.defaults import choose_size, draft, find_hardware, resolve
from regard.training.settings import DraftSettings, num_released_rows

SAMPLERS, PRUNERS = ("random", "tpe", "grid"), ("none", "hyperband")
DEFAULT_TRIALS = 50
_REPEATS = 3
_DEFAULT_STEPS = {"cpu": 160, "cuda": 2_000}
"""Steps of a trial, so that fifty of them take about ten minutes."""
_EVALUATIONS, _EVALUATIONS_TO_PRUNE = 3, 9
"""On the validation rows in each trial; Hyperband halves twice with a factor of three."""
_TOKENIZATION = ("tokenizer", "target_tokenizer", "vocab_size", "lowercase", "embeddings")
"""Settings of [task] that change what a token is."""
_SEARCHABLE = ("train_rows",)
"""Settings of [data] that leave the validation rows as they are."""
_FIXED = {
    "task.name": "all trials have the same task",
    "provenance": "it is written, not set",
    "finetune": "trials of a sweep are trained from scratch",
    "train.device": "all trials are trained on the same device",
    **{f"data.{name}": "all trials have the same rows" for name in DataConfig.model_fields if name not in _SEARCHABLE},
    **{f"train.{name}": "all trials have the same budget" for name in ("max_steps", "max_epochs", "minutes")},
    **{f"train.{name}": "all trials share one mechanism, with one step" for name in MECHANISMS},
}


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options of `sweep`."""

    space: str | os.PathLike[str] | Mapping[str, Any]
    trials: int | None = None
    sampler: str = "tpe"
    pruner: str = "none"
    objectives: Sequence[str] = ()
    minutes: float | None = None
    steps: int | None = None
    repeats: int | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise if an option is out of its range."""
        for value, known, what in ((self.sampler, SAMPLERS, "sampler"), (self.pruner, PRUNERS, "pruner")):
            if value not in known:
                raise ConfigError(f"no {what} is called {value!r}{nearest(value, known)}")
        if self.trials is not None and self.trials < 1:
            raise ConfigError(f"a sweep needs at least one trial, got {self.trials}")
        if self.repeats is not None and self.repeats < 0:
            raise ConfigError(f"repeats must be at least 0, got {self.repeats}")
        if self.minutes is not None and self.steps is not None:
            raise ConfigError(f"a trial has one budget, got minutes={self.minutes:g} and steps={self.steps}")


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What is searched, and how. Workers receive it as JSON."""

    folder: str
    data: list[str]
    data_hash: str
    settings: dict[str, Any]
    """What all trials share, as `regard.train` takes it."""
    space: dict[str, dict[str, Any]]
    objectives: list[SweepObjective]
    sampler: Any
    pruner: Any
    seed: int
    num_trials: int
    repeats: int
    """With how many other seeds the winner's settings are trained."""
    every: int | None
    """Steps between two evaluations on the validation rows; None where they are timed by the clock."""
    steps: int | None
    """The budget of a trial; None where it is one of time or epochs."""
    num_rows: int
    """Validation rows of a score: N."""
    task: str
    preset: str
    device: str
    storage: str = ""
    owner: str = ""
    """The name of this folder among those that share a storage."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "SweepPlan":
        return cls(**{**values, "objectives": [SweepObjective(**each) for each in values["objectives"]]})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def ranges(self) -> Space:
        return Space({name: Range.read(one, section=name) for name, one in self.space.items()})

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def trial_path(self, index: int) -> Path:
        return self.path / "trials" / f"{index:04d}"

    def repeat_path(self, number: int) -> Path:
        return self.path / "repeats" / str(number)

    def repeat_settings(self, searched: Mapping[str, Any], number: int) -> dict[str, Any]:
        """The winner's settings with a seed that no trial had."""
        settings = merge_tables(self.settings, searched)
        return merge_tables(settings, {"train": {"seed": settings.get("train", {}).get("seed", 0) + number}})

    @property
    def identity(self) -> dict[str, Any]:
        """What distinguishes one sweep from another: more trials, or more workers, make the same one larger."""
        own = {name: getattr(self, name) for name in ("data_hash", "space", "sampler", "pruner", "seed", "steps")}
        settings = merge_tables(self.settings, {"data": {"train": []}})  # identified by its content, wherever it is
        identity = {**own, "settings": settings, "objectives": [objective.name for objective in self.objectives]}
        return json.loads(json.dumps(identity, sort_keys=True))

    @property
    def study_name(self) -> str:
        """The same on every machine with the same sweep."""
        text = json.dumps(self.identity, sort_keys=True, ensure_ascii=False)
        return f"sweep-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def budget(self) -> str:
        train = self.settings["train"]
        formats = {"max_steps": "{:,} steps".format, "max_epochs": "{:g} epochs".format, "minutes": format_minutes}
        return ", ".join(format_(train[name]) for name, format_ in formats.items() if train.get(name) is not None)

    @property
    def sensitivity(self) -> str:
        """The smallest difference that such a sweep can detect, in a sentence; or how its scores are released."""
        for name in MECHANISMS:
            if (step := self.settings["train"].get(name)) is not None:
                return (
                    f"N = {self.num_rows:,} validation rows; scores are released by {name} {step:g}, and the bound "
                    "holds although they decide what is tried next"
                )
        evaluations = 1 if self.steps is None or self.every is None else math.ceil(self.steps / self.every)
        hypotheses = (self.num_trials + self.repeats) * evaluations
        least = smallest_difference(self.num_rows, num_candidates=max(2, hypotheses))
        counted = f"({self.num_trials:,} trials + {self.repeats} repeats) x {evaluations} evaluation"
        detected = "no difference is" if least >= 1 else f"only differences above {least:.3f} are"
        return (
            f"N = {self.num_rows:,} validation rows, M = {hypotheses:,}{' or more' if self.steps is None else ''} "
            f"{counted}{'' if evaluations == 1 else 's'}: of scores in [0, 1], {detected} significant (delta 0.05)"
        )


def plan_sweep(folder: Path, options: SweepOptions, values: Mapping[str, Any]) -> SweepPlan:
    """Check what can be checked without the data, prepare the data, and check the rest.

    `values` are the settings that all trials share, with the task and the paths of the data.
    """
    tables = options.space if isinstance(options.space, Mapping) else read_toml(Path(options.space))
    first = draft(values)
    space = _read_space(tables, values, first)
    num_trials = _count_trials(options, space)
    device = find_hardware(first).device.type
    data = make_task(first.task).prepare(first.data)
    settings = draft(values, size=choose_size(data, has_gpu=device == "cuda"))
    budget = _budget(options, values, settings, device)
    with quiet_logs():  # raises if settings do not fit together
        resolved = resolve(settings.with_train(**budget), data)
    objectives = read_objectives(options.objectives, resolved, data)
    if any(each.name == "loss" for each in objectives) and "select_by" not in settings.train.model_fields_set:
        budget["select_by"] = "loss"  # the objective is then the loss of the weights that are kept
    _check_comparable(objectives, space, options.pruner)
    if options.pruner != "none" and (len(objectives) > 1 or resolved.train.max_steps is None):
        raise ConfigError("hyperband compares trials at the same step: it needs one objective, and a budget in steps")
    if (release := resolved.train.release) is not None:
        _check_release(options, release[0])
        budget[release[0]] = release[1]
    own = {"train": budget} | ({} if "preset" in space.ranges else {"preset": settings.preset})
    num_rows = len(data.held_out["valid"])
    num_rows = min(REPORT_ROWS, num_rows) if release is None else num_released_rows(make_task(settings.task), num_rows)
    return SweepPlan(
        folder=str(folder),
        data=list(values["data"]["train"]),
        data_hash=data.content_hash,
        settings=merge_tables(values, own),
        space=space.to_json(),
        objectives=objectives,
        sampler=options.sampler,
        pruner=options.pruner,
        seed=options.seed,
        num_trials=num_trials,
        repeats=_REPEATS if options.repeats is None and release is None else options.repeats or 0,
        every=resolved.train.evaluation_steps,
        steps=resolved.train.max_steps if resolved.train.minutes is None else None,
        num_rows=num_rows,
        task=settings.task.name,
        preset=settings.preset,
        device=device,
    )


def _check_release(options: SweepOptions, name: str) -> None:
    """Raise if an option needs scores that a mechanism does not release."""
    if options.pruner != "none":
        raise ConfigError(f"{options.pruner} compares validation losses, which train.{name} does not release")
    if options.repeats:
        raise ConfigError(
            f"repeats compare the scores of one setting with other seeds, which train.{name} does not release: "
            f"repeats must be 0, got {options.repeats}"
        )


def _read_space(tables: Mapping[str, Any], values: Mapping[str, Any], first: DraftSettings) -> Space:
    """The space, checked against each kind of model in it."""
    kinds = tables.get("preset", {})
    names = kinds.get("choices", []) if isinstance(kinds, Mapping) else []
    for name in names:
        find_preset(str(name))
    return read_space(tables, [draft({**values, "preset": name}) for name in names] or [first], fixed=_FIXED)


def _count_trials(options: SweepOptions, space: Space) -> int:
    if options.sampler != "grid":
        return options.trials or DEFAULT_TRIALS
    size = len(space.grid())
    if options.trials is not None and options.trials > size:
        raise ConfigError(f"the grid has {size:,} points, so trials must be at most that, got {options.trials:,}")
    return options.trials or size


def _budget(options: SweepOptions, values: Mapping[str, Any], settings: DraftSettings, device: str) -> dict[str, Any]:
    """The settings that end each trial, and how often it is evaluated on the validation rows."""
    given = settings.train.model_dump(include={"max_steps", "max_epochs", "minutes"}, exclude_none=True)
    if options.minutes is not None:
        given = {"minutes": float(options.minutes)}
    elif options.steps is not None or not given:
        given = {"max_steps": options.steps if options.steps is not None else _DEFAULT_STEPS[device]}
    if "max_steps" in given and "evaluate_every" not in values.get("train", {}):
        evaluations = _EVALUATIONS if options.pruner == "none" else _EVALUATIONS_TO_PRUNE
        given["evaluate_every"] = max(1, math.ceil(given["max_steps"] / evaluations))
    return given


def _check_comparable(objectives: Sequence[SweepObjective], space: Space, pruner: str) -> None:
    """Raise if a mean over tokens would be compared between different tokenizations."""
    per_token = [each.name for each in objectives if each.is_per_token] + (["hyperband"] if pruner != "none" else [])
    changes = [f"task.{name}" for name in _TOKENIZATION if f"task.{name}" in space.ranges]
    if per_token and changes:
        raise ConfigError(f"{per_token[0]} is a mean over tokens, which does not compare for different {changes[0]}")
