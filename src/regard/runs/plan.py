"""What a comparison is to train: everything that can be wrong with it is told before any training starts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from regard.data.preparation import Prepared
from regard.data.stream import TokenStream
from regard.data.windows import evaluation_windows
from regard.errors import ConfigError, DataError
from regard.evaluation.stretches import shared_ends
from regard.logging import log_info, quiet_logs
from regard.models.families import AnyConfig
from regard.models.presets import Size
from regard.runs.job import Job
from regard.settings import merge, read_toml
from regard.tasks import find_task
from regard.tasks.masked import Masked
from regard.training.flops import flops_per_step
from regard.training.precision import find_device
from regard.training.resolution import choose_size, resolve, usual_preset, with_learned, with_preset
from regard.training.settings import RunSettings

LEAST_SECONDS = 1.0
"""Of training: in less no model makes a step that says anything."""
_CLOSE_ENOUGH = 0.05
"""How far from the number of parameters asked for a model may be."""
_NOT_COMPARED = ("embedding",)
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
            return f"{self.minutes:g} minute{'' if self.minutes == 1 else 's'} a run"
        return f"{self.steps:,} steps a run" if self.steps is not None else f"{self.flops:.3g} operations a run"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be compared; `make_plan` fills in what depends on the data and the machine."""

    folder: Path
    contenders: list[Contender]
    seeds: list[int]
    budget: Budget
    row_counts: list[int] = field(default_factory=list)
    """Sizes of smaller training sets to try as well, in rows or documents."""
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
    task = find_task(first.task)
    if task.name in _NOT_COMPARED:
        raise ConfigError(
            f"models for {task.name} cannot be compared yet: train them, and evaluate each on the same file"
        )
    if plan.generation and not task.has_answers:
        told = ", ".join(f"{name}={value}" for name, value in plan.generation.items())
        raise ConfigError(f"text is judged by how probable a model holds it, not by what it writes: {told} has no use")
    log_info(f"task {task.name}: {task.description}")
    data = task.prepare(first.data)
    device = find_device(first.train.device).type
    size = choose_size(data, has_gpu=device == "cuda")
    contenders = plan.contenders
    if params is not None:
        contenders = [_fit_parameters(contender, size, data, params) for contender in contenders]
    for contender in contenders:
        _count(contender.resolved(size).model, contender, data)  # whatever it cannot do is told now
    settings = {contender.name: _without_gaps(contender, size, data) for contender in contenders}
    if isinstance(data.train, TokenStream):
        if task.name == Masked.name:
            _require_one_window(settings)
        _require_windows(settings, data)
        _require_stretches(settings, data)
    _require_sizes(plan.row_counts, settings, data)
    num_jobs = len(contenders) * len(plan.seeds) * (1 + len(plan.row_counts))
    at_once, threads = share_out(num_jobs, device, at_once)
    plan = replace(plan, contenders=contenders, prepared=data, at_once=at_once)
    return replace(plan, jobs=_list_jobs(plan, settings, threads=threads))


def share_out(num_jobs: int, device: str, at_once: int | None) -> tuple[int, int]:
    """How many jobs run at a time, unless it is said, and how many threads each has."""
    cores = os.cpu_count() or 1
    at_once = min(num_jobs, at_once or (1 if device == "cuda" else cores))
    return at_once, max(1, cores // at_once)


def _list_jobs(plan: Plan, settings: Mapping[str, RunSettings], *, threads: int) -> list[Job]:
    """Seed by seed, so that an interrupted comparison has something to compare."""
    limits = {name: _limits(name, each, plan) for name, each in settings.items()}
    jobs = []
    for seed, rows, contender in product(plan.seeds, [*plan.row_counts, None], plan.contenders):
        # A window is chosen by the amount of text, and would be another for fewer documents.
        chosen = {"window": settings[contender.name].data.window, "train_rows": rows}
        own: dict[str, Any] = {
            "preset": settings[contender.name].preset,
            "train": {**limits[contender.name], "seed": seed},
            "data": {name: value for name, value in chosen.items() if value is not None},
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


def _limits(name: str, settings: RunSettings, plan: Plan) -> dict[str, Any]:
    """The budget as settings of a run."""
    budget = plan.budget
    if budget.flops is not None:
        return {"max_steps": _steps_for(name, settings, plan.data, budget.flops)}
    return {"minutes": budget.minutes} if budget.minutes is not None else {"max_steps": budget.steps}


def _require_one_window(settings: Mapping[str, RunSettings]) -> None:
    """In other windows other tokens are hidden, and nothing could be paired."""
    windows = {name: each.data.window for name, each in settings.items()}
    if len(set(windows.values())) > 1:
        told = ", ".join(f"{window} for {name}" for name, window in windows.items())
        raise ConfigError(f"masked models are compared in windows of one length, got {told}: set data.window")


def _require_windows(settings: Mapping[str, RunSettings], data: Prepared) -> None:
    """Text enough for a window of each model."""
    for each in settings.values():
        assert each.train.batch_tokens is not None, "settings are resolved before anything is planned"
        find_task(each.task).batches(data, each.data, batch_tokens=each.train.batch_tokens, seed=each.train.seed)


def _require_stretches(settings: Mapping[str, RunSettings], data: Prepared) -> None:
    """Two stretches of held-out text that every model scores by itself, or nothing could be tested."""
    texts = [row[0] for row in data.held_out["test"] or data.held_out["valid"]]
    num_tokens = 1 + sum(len(ids) + 1 for ids in data.tokenizer.encode(texts))
    ways = {(each.data.window or 1, each.data.stride or each.data.window or 1) for each in settings.values()}
    windows = [evaluation_windows(num_tokens, window, stride) for window, stride in sorted(ways)]
    num_shared = len(shared_ends([[end + 1 - first for _, end, first in some] for some in windows]))
    if num_shared < 2:
        told = " and ".join(f"{window:,}" for window, _ in sorted(ways))
        raise DataError(
            "models of text are compared by stretches that all of them score, two at least, but the "
            f"{num_tokens - 1:,} tokens held back have {num_shared} for windows of {told}: "
            "give more text, or a smaller data.window for all"
        )


def _require_sizes(row_counts: Sequence[int], settings: Mapping[str, RunSettings], data: Prepared) -> None:
    """Training sets that can be had; those of text are prepared, for only then it is known how long they are."""
    is_text = isinstance(data.train, TokenStream)
    num_rows = data.train.num_documents if is_text else len(data.train)
    if is_text and row_counts and not data.is_isolated:
        raise ConfigError(
            "smaller training sets are made of some of many documents, and this is a text that runs on: "
            f"leave sizes out, got {', '.join(map(str, row_counts))}"
        )
    for rows in row_counts:
        if not 1 <= rows <= num_rows:
            unit = "documents" if is_text else "rows"
            raise ConfigError(f"a training set can have 1 to {num_rows:,} {unit} here, got {rows:,}")
        if is_text:
            first = next(iter(settings.values()))
            with quiet_logs():
                fewer = find_task(first.task).prepare(first.data.changed(train_rows=rows))
            _require_windows(settings, fewer)


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
    log_info(f"{contender.name}: {counts[width]:,} parameters at a width of {width}")
    changes = _widened(config, width).model_dump(include={"model_dim", "feedforward_dim"})
    return replace(contender, settings=merge(contender.settings, {"model": changes}))


def _without_gaps(contender: Contender, size: Size, data: Prepared) -> RunSettings:
    """All settings that a run of this model will have but its budget; what cannot go together is told now."""
    settings = contender.resolved(size)
    try:
        with quiet_logs():
            return resolve(settings.changed(train=settings.train.changed(max_steps=1)), data)
    except ConfigError as error:
        raise ConfigError(f"model {contender.name}: {error}") from None


def _steps_for(name: str, settings: RunSettings, data: Prepared, flops: float) -> int:
    """How many steps so many operations are enough for."""
    task = find_task(settings.task)
    model = task.build_model(settings.model, data.tokenizer, data=settings.data, head=settings.head)
    cost = flops_per_step(model, task, data, settings)
    steps = int(flops // (cost * settings.train.accumulate))
    if steps < 1:
        raise ConfigError(f"a budget of {flops:.3g} operations cannot train a step of {name}, which costs {cost:.3g}")
    log_info(f"{name}: {cost:.3g} operations a step, {steps:,} steps")
    return steps


def _read_contender(name: str, shared: Mapping[str, Any]) -> Contender:
    if not name.endswith(".toml"):
        return Contender(name, name, dict(shared))
    own = read_toml(Path(name))
    if "data" in own:
        raise ConfigError(f"models are compared on one set of data, but {name} has a table [data] of its own")
    if own.get("task", shared["task"]) != shared["task"]:
        raise ConfigError(f"models are compared on one task, here {shared['task']}, but {name} is for {own['task']}")
    return Contender(Path(name).stem, usual_preset({**own, "task": shared["task"]}), merge(shared, own))


def _widened(config: AnyConfig, width: int) -> AnyConfig:
    """The same shape at another width; what is a multiple of the width stays that multiple."""
    changes: dict[str, Any] = {"model_dim": width}
    if feedforward := getattr(config, "feedforward_dim", 0):
        changes["feedforward_dim"] = max(1, round(feedforward * width / config.model_dim))
    return config.changed(**changes)


def _count(config: AnyConfig, contender: Contender, data: Prepared) -> int:
    try:
        with torch.device("meta"):
            settings = contender.resolved()
            labelled = with_learned(settings.data, data)
            task = find_task(settings.task)
            model = task.build_model(config, data.tokenizer, data=labelled, head=settings.head)
    except ConfigError as error:
        raise ConfigError(f"model {contender.name}: {error}") from None
    return sum(parameter.numel() for parameter in model.parameters())
