"""What a sweep is to do: everything that can be wrong with it is told before anything is written or trained."""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from regard.data.preparation import Prepared
from regard.data.sources import Rows
from regard.errors import ConfigError
from regard.logging import log_info, quiet_logs
from regard.models.presets import preset
from regard.runs.launch import REPORT_ROWS, find_hardware, with_task
from regard.runs.sweep_objectives import Goal, read_goals
from regard.selection.bounds import smallest_difference
from regard.selection.space import Range, Space, read_space
from regard.settings import merge, nearest, read_toml
from regard.tasks import find_task
from regard.training.resolution import choose_size, resolve, usual_preset, with_preset
from regard.training.settings import RunSettings

SAMPLERS, PRUNERS = ("random", "tpe", "grid"), ("none", "hyperband")
USUAL_TRIALS = 50
_USUAL_STEPS = {"cpu": 160, "cuda": 2_000}
"""Of a trial, so that fifty of them take some ten minutes."""
_LOOKS, _LOOKS_TO_PRUNE = 3, 9
"""At the validation rows in each trial; Hyperband halves twice with a factor of three."""
_SAME_ROWS, _SAME_BUDGET = "all trials are judged by the same rows", "all trials have the same budget"
_ROWS = ("train", "valid", "test", "columns", "format", "header", "skip_bad", "documents", "isolate", "labels",
         "label_separator", "aspects", "ignored_labels", "center", "spread", "num_rows", "few", "draw", "splits",
         "split_seed", "group", "stratify", "order")  # fmt: skip
_FIXED = {
    "task": "all trials are for the same task",
    "record": "it is written, not set",
    "finetune": "trials of a sweep start from scratch",
    "train.device": "all trials are trained on the same device",
    **{f"data.{name}": _SAME_ROWS for name in _ROWS},
    **{f"train.{name}": _SAME_BUDGET for name in ("max_steps", "max_epochs", "minutes")},
}
_CUTS = ("data.tokenizer", "data.vocab_size", "data.lowercase", "data.vectors")
"""Settings that change what a token is."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What is to be tried, by whom and how long. Workers get it as JSON."""

    folder: str
    data: list[str]
    data_hash: str
    settings: dict[str, Any]
    """What all trials share, as `regard.train` takes it."""
    space: dict[str, dict[str, Any]]
    goals: list[Goal]
    sampler: Any
    pruner: Any
    seed: int
    num_trials: int
    again: int
    """How often the winner is trained anew."""
    every: int
    """Steps between two looks at the validation rows."""
    steps: int | None
    """The budget of a trial; None where it is one of time or epochs."""
    num_rows: int
    """Validation rows that a score is of: N."""
    task: str
    preset: str
    storage: str = ""
    owner: str = ""
    """What this folder is called among those that share a storage."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "SweepPlan":
        return cls(**{**values, "goals": [Goal(**goal) for goal in values["goals"]]})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def ranges(self) -> Space:
        return Space({name: Range.read(one, section=name) for name, one in self.space.items()})

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def trial_path(self, number: int) -> Path:
        return self.path / "trials" / f"{number:04d}"

    def again_path(self, number: int) -> Path:
        return self.path / "again" / str(number)

    def again_settings(self, tried: Mapping[str, Any], number: int) -> dict[str, Any]:
        """The winner's settings with a seed that no trial had."""
        seed = merge(self.settings, tried).get("train", {}).get("seed", 0)
        return merge(merge(self.settings, tried), {"train": {"seed": seed + number}})

    @property
    def asked(self) -> dict[str, Any]:
        """All by which one sweep is another than the next: more trials, or more workers, make the same one larger."""
        own = {name: getattr(self, name) for name in ("data_hash", "space", "sampler", "pruner", "seed", "steps")}
        settings = merge(self.settings, {"data": {"train": []}})  # known by its content, wherever it lies
        asked = {**own, "settings": settings, "objectives": [goal.name for goal in self.goals]}
        return json.loads(json.dumps(asked, sort_keys=True))

    @property
    def study_name(self) -> str:
        """The same on every machine that was told the same."""
        text = json.dumps(self.asked, sort_keys=True, ensure_ascii=False)
        return f"sweep-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def looks(self) -> int | None:
        """How often a trial will look at the validation rows; None where that depends on the machine."""
        return None if self.steps is None else math.ceil(self.steps / self.every)

    @property
    def budget(self) -> str:
        train = self.settings["train"]
        told = {"max_steps": "{:,} steps", "max_epochs": "{:g} epochs", "minutes": "{:g} minutes"}
        return ", ".join(text.format(train[name]) for name, text in told.items() if train.get(name) is not None)


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the caller said."""

    settings: Mapping[str, Any]
    space: str | os.PathLike[str] | Mapping[str, Any]
    trials: int | None = None
    sampler: str = "tpe"
    pruner: str = "none"
    objectives: Sequence[str] = field(default_factory=tuple)
    minutes: float | None = None
    steps: int | None = None
    again: int = 3
    seed: int = 0


def make_plan(folder: Path, wishes: Wishes, paths: list[str], rows: Rows | None = None) -> SweepPlan:
    """Check what can be checked without data, prepare the data, and check the rest."""
    _require_sense(wishes)
    values = with_task(merge(wishes.settings, {"data": {"train": paths}}), rows)
    tables = wishes.space if isinstance(wishes.space, Mapping) else read_toml(Path(wishes.space))
    name = usual_preset(values)
    first = with_preset(values, name)
    space = _read_space(tables, values, first)
    num_trials = _count_trials(wishes, space)
    device = find_hardware(first).device.type
    task = find_task(first.task)
    log_info(f"task {task.name}: {task.description}")
    data = task.prepare(first.data, rows)
    settings = with_preset(values, name, choose_size(data, has_gpu=device == "cuda"))
    budget = _budget(wishes, settings, device)
    with quiet_logs():  # what cannot go together is told now
        settings = resolve(settings.changed(train=settings.train.changed(**budget)), data)
    goals = read_goals(wishes.objectives, settings, data)
    _require_comparable(goals, space, wishes.pruner)
    if wishes.pruner != "none" and (len(goals) > 1 or settings.train.max_steps is None):
        raise ConfigError(
            "hyperband compares trials at the same step by one objective: it needs one, and a budget in steps"
        )
    own = {"train": budget} | ({} if "preset" in space.ranges else {"preset": settings.preset})
    return SweepPlan(
        folder=str(folder),
        data=paths,
        data_hash=data.content_hash,
        settings=merge(values, own),
        space=space.to_json(),
        goals=goals,
        sampler=wishes.sampler,
        pruner=wishes.pruner,
        seed=wishes.seed,
        num_trials=num_trials,
        again=wishes.again,
        every=settings.train.evaluate_every,
        steps=settings.train.max_steps if settings.train.minutes is None else None,
        num_rows=_num_rows(data),
        task=settings.task,
        preset=settings.preset,
    )


def forewarning(plan: SweepPlan) -> str:
    """What such a sweep can tell apart, said before it starts."""
    runs = plan.num_trials + plan.again
    looks = plan.looks or 1
    hypotheses = runs * looks
    least = smallest_difference(plan.num_rows, num_hypotheses=max(2, hypotheses))
    more = "" if plan.looks is not None else " at least"
    counted = f"({plan.num_trials:,} trials + {plan.again} again) x {looks} look{'' if looks == 1 else 's'}"
    told = "no difference is large enough to be sure" if least >= 1 else f"only differences above {least:.3f} are sure"
    return (
        f"N = {plan.num_rows:,} validation rows, M = {hypotheses:,}{more} {counted}: of scores in [0, 1], {told} "
        "(delta 0.05)"
    )


def _require_sense(wishes: Wishes) -> None:
    for value, known, what in ((wishes.sampler, SAMPLERS, "sampler"), (wishes.pruner, PRUNERS, "pruner")):
        if value not in known:
            raise ConfigError(f"no {what} is called {value!r}{nearest(value, known)}")
    if wishes.trials is not None and wishes.trials < 1:
        raise ConfigError(f"a sweep needs at least one trial, got {wishes.trials}")
    if wishes.again < 0:
        raise ConfigError(f"the winner is trained again no less than 0 times, got {wishes.again}")
    if wishes.minutes is not None and wishes.steps is not None:
        raise ConfigError(f"a trial has one budget, got minutes={wishes.minutes:g} and steps={wishes.steps}")


def _read_space(tables: Mapping[str, Any], values: Mapping[str, Any], first: RunSettings) -> Space:
    """The space, checked against each kind of model that it asks for."""
    kinds = tables.get("preset", {})
    names = kinds.get("choices", []) if isinstance(kinds, Mapping) else []
    for name in names:
        preset(str(name))
    return read_space(tables, [with_preset(values, name) for name in names] or [first], fixed=_FIXED)


def _count_trials(wishes: Wishes, space: Space) -> int:
    if wishes.sampler != "grid":
        return wishes.trials or USUAL_TRIALS
    size = len(space.grid())
    if wishes.trials is not None and wishes.trials > size:
        raise ConfigError(f"the grid has {size:,} points, and no more trials than that, got {wishes.trials:,}")
    return wishes.trials or size


def _budget(wishes: Wishes, settings: RunSettings, device: str) -> dict[str, Any]:
    """The settings that end each trial, and how often it looks at the validation rows."""
    given = settings.train.model_dump(include={"max_steps", "max_epochs", "minutes"}, exclude_none=True)
    if wishes.minutes is not None:
        given = {"minutes": float(wishes.minutes)}
    elif wishes.steps is not None or not given:
        given = {"max_steps": wishes.steps if wishes.steps is not None else _USUAL_STEPS[device]}
    is_set = "evaluate_every" in wishes.settings.get("train", {})
    if "max_steps" in given and not is_set:
        looks = _LOOKS if wishes.pruner == "none" else _LOOKS_TO_PRUNE
        given["evaluate_every"] = max(1, math.ceil(given["max_steps"] / looks))
    return given


def _require_comparable(goals: Sequence[Goal], space: Space, pruner: str) -> None:
    by_tokens = [goal.name for goal in goals if goal.is_of_tokens] + (["hyperband"] if pruner != "none" else [])
    cuts = [name for name in _CUTS if name in space.ranges]
    if by_tokens and cuts:
        raise ConfigError(f"{by_tokens[0]} goes by the loss of a token, which is another with another {cuts[0]}")


def _num_rows(data: Prepared) -> int:
    rows = min(REPORT_ROWS, len(data.held_out["valid"]))
    if rows == 0:
        raise ConfigError("a sweep chooses by validation rows, and there are none")
    return rows
