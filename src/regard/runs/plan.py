"""What a comparison is to train: everything that can be wrong with it is told before any training starts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from regard.config import merge, read_toml
from regard.data.preparation import Prepared
from regard.errors import ConfigError
from regard.models.families import AnyConfig
from regard.models.presets import Size
from regard.progress import say
from regard.runs.job import Job
from regard.tasks import find_task
from regard.training.flops import flops_per_step
from regard.training.precision import find_device
from regard.training.resolution import choose_size, usual_preset, with_preset, with_task_defaults
from regard.training.settings import RunSettings

LEAST_SECONDS = 1.0
"""Of training: in less no model makes a step that says anything."""
_CLOSE_ENOUGH = 0.05
"""How far from the number of parameters asked for a model may be."""
_WIDEST = 16_384


@dataclass(frozen=True)
class Contender:
    """One model of a comparison."""

    name: str
    preset: str
    settings: dict[str, Any]
    """As `regard.train` takes them."""

    def resolved(self, size: Size = "tiny") -> RunSettings:
        """All settings of a run of this model; `size` where its preset leaves it open."""
        try:
            return with_preset(self.settings, self.preset, size)
        except ConfigError as error:
            raise ConfigError(f"model {self.name}: {error}") from None


@dataclass(frozen=True)
class Budget:
    """How long each run may train; one of the three is set."""

    minutes: float | None = None
    steps: int | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            told = ", ".join(f"{name}={value}" for name, value in given.items()) or "none"
            raise ConfigError(f"a comparison has one budget, in minutes, in steps or in flops, got {told}")
        if self.minutes is not None and not self.minutes >= LEAST_SECONDS / 60:
            raise ConfigError(f"a budget of {self.minutes:g} minutes leaves no time to train a step")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"a budget must allow for at least one step, got {self.steps}")
        if self.flops is not None and not self.flops > 0:
            raise ConfigError(f"a budget of operations must be positive, got {self.flops:g}")

    def __str__(self) -> str:
        if self.minutes is not None:
            return f"{self.minutes:g} minutes a run"
        return f"{self.steps:,} steps a run" if self.steps is not None else f"{self.flops:.3g} operations a run"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be compared; `make_plan` fills in what depends on the data and the machine."""

    folder: Path
    contenders: list[Contender]
    seeds: list[int]
    budget: Budget
    row_counts: list[int] = field(default_factory=list)
    """Sizes of smaller training sets to try as well."""
    generation: dict[str, Any] = field(default_factory=dict)
    """How the test rows are answered, where it is not as the settings say."""
    at_once: int = 1
    prepared: Prepared | None = None
    jobs: list[Job] = field(default_factory=list)

    @property
    def data(self) -> Prepared:
        assert self.prepared is not None, "a plan is made before it is used"
        return self.prepared


def make_plan(plan: Plan, *, params: int | None, at_once: int | None) -> Plan:
    """Prepare the data, size the models, and list the jobs."""
    first = plan.contenders[0].resolved()
    if not find_task(first.task).has_answers:
        raise ConfigError(
            f"models are compared by their answers, and the task {first.task} has none: train each, and evaluate it"
        )
    data = find_task(first.task).prepare(first.data)
    device = find_device(first.train.device).type
    size = choose_size(data, has_gpu=device == "cuda")
    for rows in plan.row_counts:
        if not 1 <= rows <= len(data.train):
            raise ConfigError(f"a training set can have 1 to {len(data.train):,} rows here, got {rows:,}")
    contenders = plan.contenders
    if params is not None:
        contenders = [_fit_parameters(contender, size, data, params) for contender in contenders]
    for contender in contenders:
        _count(contender.resolved(size).model, contender, data)  # whatever it cannot do is told now
    cores = os.cpu_count() or 1
    num_jobs = len(contenders) * len(plan.seeds) * (1 + len(plan.row_counts))
    at_once = min(num_jobs, at_once or (1 if device == "cuda" else cores))
    plan = replace(plan, contenders=contenders, prepared=data, at_once=at_once)
    return replace(plan, jobs=_list_jobs(plan, size, threads=max(1, cores // at_once)))


def _list_jobs(plan: Plan, size: Size, *, threads: int) -> list[Job]:
    """Seed by seed, so that an interrupted comparison has something to compare."""
    limits = {contender.name: _limits(contender, size, plan) for contender in plan.contenders}
    jobs = []
    for seed, rows, contender in product(plan.seeds, [*plan.row_counts, None], plan.contenders):
        own: dict[str, Any] = {
            "preset": contender.resolved(size).preset,
            "train": {**limits[contender.name], "seed": seed},
            "data": {} if rows is None else {"train_rows": rows},
        }
        ending = "" if rows is None else f"-{rows}"
        job = Job(
            model=contender.name,
            seed=seed,
            path=str(plan.folder / f"{contender.name}-{seed}{ending}"),
            data=list(contender.settings["data"]["train"]),
            settings=merge(contender.settings, own),
            threads=threads,
            train_rows=rows,
            generation=plan.generation,
        )
        jobs.append(job)
    return jobs


def _limits(contender: Contender, size: Size, plan: Plan) -> dict[str, Any]:
    """The budget as settings of a run."""
    budget = plan.budget
    if budget.flops is not None:
        return {"max_steps": _steps_for(contender, size, plan.data, budget.flops)}
    return {"minutes": budget.minutes} if budget.minutes is not None else {"max_steps": budget.steps}


def read_contenders(names: Sequence[str], settings: Mapping[str, Any]) -> list[Contender]:
    """The models of these names, or in these TOML files, each with the settings that all share."""
    if len(names) < 2:
        raise ConfigError(f"a comparison needs at least two models, got {', '.join(names) or 'none'}")
    contenders = [_read_contender(name, settings) for name in names]
    known: set[str] = set()
    for contender in contenders:
        if contender.name in known:
            raise ConfigError(f"models must have different names, got {contender.name!r} twice")
        known.add(contender.name)
        _ = contender.resolved()  # whatever is wrong with its settings is told now
    return contenders


def read_seeds(seeds: int | Sequence[int]) -> list[int]:
    """So many seeds from 0 on, or those that are listed."""
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise ConfigError(f"a comparison needs at least one seed, got {seeds}")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"seeds must differ: a seed that repeats is the same run again, got {chosen}")
    return chosen


def _fit_parameters(contender: Contender, size: Size, data: Prepared, wanted: int) -> Contender:
    """The same model at the width that brings it nearest to so many parameters."""
    config = contender.resolved(size).model
    quantum = 2 * getattr(config, "num_heads", 1)
    widths = range(quantum, _WIDEST + 1, quantum)
    # The count grows with the width: look where it crosses what is wanted.
    low, high = 0, len(widths) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if _count(_widened(config, widths[middle]), contender, data) < wanted:
            low = middle
        else:
            high = middle
    counts = {width: _count(_widened(config, width), contender, data) for width in (widths[low], widths[high])}
    width = min(counts, key=lambda each: abs(counts[each] - wanted))
    if abs(counts[width] - wanted) > _CLOSE_ENOUGH * wanted:
        raise ConfigError(
            f"no width of {contender.name} comes within {100 * _CLOSE_ENOUGH:.0f} % of {wanted:,} parameters: "
            f"the nearest is {counts[width]:,}, {width} wide"
        )
    say(f"{contender.name}: {counts[width]:,} parameters at a width of {width}")
    changes = _widened(config, width).model_dump(include={"model_dim", "feedforward_dim"})
    return replace(contender, settings=merge(contender.settings, {"model": changes}))


def _steps_for(contender: Contender, size: Size, data: Prepared, flops: float) -> int:
    """How many steps so many operations are enough for."""
    settings = contender.resolved(size)
    task = find_task(settings.task)
    model = task.build_model(settings.model, data.tokenizer)
    settings = settings.changed(train=with_task_defaults(settings))
    cost = flops_per_step(model, task, data, settings)
    steps = int(flops // (cost * settings.train.accumulate))
    if steps < 1:
        raise ConfigError(
            f"a budget of {flops:.3g} operations cannot train a step of {contender.name}, which costs {cost:.3g}"
        )
    say(f"{contender.name}: {cost:.3g} operations a step, {steps:,} steps")
    return steps


def _read_contender(name: str, shared: Mapping[str, Any]) -> Contender:
    if not name.endswith(".toml"):
        return Contender(name, name, dict(shared))
    own = read_toml(Path(name))
    if "data" in own:
        raise ConfigError(f"models are compared on one set of data, but {name} has a table [data] of its own")
    return Contender(Path(name).stem, usual_preset(own), merge(shared, own))


def _widened(config: AnyConfig, width: int) -> AnyConfig:
    """The same shape at another width; what is a multiple of the width stays that multiple."""
    changes: dict[str, Any] = {"model_dim": width}
    if feedforward := getattr(config, "feedforward_dim", 0):
        changes["feedforward_dim"] = max(1, round(feedforward * width / config.model_dim))
    return config.changed(**changes)


def _count(config: AnyConfig, contender: Contender, data: Prepared) -> int:
    try:
        with torch.device("meta"):
            model = find_task(contender.resolved().task).build_model(config, data.tokenizer)
    except ConfigError as error:
        raise ConfigError(f"model {contender.name}: {error}") from None
    return sum(parameter.numel() for parameter in model.parameters())
