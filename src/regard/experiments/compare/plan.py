"""The runs of a comparison; everything that is wrong with it is an error before training."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard.data.prepare import Prepared
from regard.errors import ConfigError
from regard.experiments.jobs import Job, format_minutes
from regard.experiments.processes import split_cores
from regard.logging import log_info, quiet_logs
from regard.models.family import ModelConfig
from regard.models.presets import Size
from regard.settings import merge_tables, read_toml
from regard.tasks.registry import find_task, make_task
from regard.tasks.task import Task
from regard.training.defaults import choose_size, draft, preset_of, resolve
from regard.training.precision import find_device
from regard.training.settings import DraftSettings, ResolvedSettings

MIN_SECONDS = 1.0
"""The least budget in time: in less, no model is trained for a meaningful number of steps."""
_PLANNED = {"max_steps": 1, "threads": 1}
"""Settings of training that a plan does not use: the load of the cores is measured by each run, not for each width."""
_PARAMS_TOLERANCE = 0.05
"""How far the number of parameters may be from the requested one, relatively."""
_MAX_WIDTH = 16_384
_BACKWARD = 2
"""The cost of a backward pass, over that of the forward pass (Kaplan et al., 2020, section 2.1, arXiv 2001.08361)."""
_FLOP_BATCHES = 4


@dataclass(frozen=True)
class Candidate:
    """One model of a comparison."""

    name: str
    preset: str
    settings: dict[str, Any]
    """As `regard.train` takes them."""

    def draft(self, size: Size = "tiny") -> DraftSettings:
        """The settings of a run of this model, with those of its preset; `size` where the preset has none."""
        try:
            return draft({**self.settings, "preset": self.preset}, size=size)
        except ConfigError as error:
            raise ConfigError(f"model {self.name}: {error}") from None


@dataclass(frozen=True)
class Budget:
    """How long each run is trained: exactly one of the three is set.

    Example:
        >>> str(Budget(minutes=0.185714)), str(Budget(minutes=2)), str(Budget(steps=1000)), str(Budget(flops=1e13))
        ('11 s a run', '2 minutes a run', '1,000 steps a run', '1e+13 operations a run')
    """

    minutes: float | None = None
    steps: int | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            values = ", ".join(f"{name}={value}" for name, value in given.items()) or "none"
            raise ConfigError(f"a comparison needs one budget, in minutes, in steps or in flops, got {values}")
        if self.minutes is not None and not self.minutes >= MIN_SECONDS / 60:
            raise ConfigError(f"a budget in time must be at least {MIN_SECONDS:g} s, got {self.minutes:g} minutes")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"a budget must be at least one step, got {self.steps}")
        if self.flops is not None and not self.flops > 0:
            raise ConfigError(f"a budget in operations must be positive, got {self.flops:g}")

    def __str__(self) -> str:
        if self.minutes is not None:
            return f"{format_minutes(self.minutes)} a run"
        return f"{self.steps:,} steps a run" if self.steps is not None else f"{self.flops:.3g} operations a run"


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """What is compared; `plan_comparison` adds what depends on the data and the machine."""

    folder: Path
    candidates: list[Candidate]
    seeds: list[int]
    budget: Budget
    train_sizes: list[int] = field(default_factory=list)
    """Sizes of smaller training sets to train on as well, in rows or documents."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Options of generation for the test rows, where they differ from the settings."""
    num_parallel: int = 1
    prepared: Prepared | None = None
    jobs: list[Job] = field(default_factory=list)

    @property
    def data(self) -> Prepared:
        assert self.prepared is not None, "the comparison is planned"
        return self.prepared

    @property
    def task(self) -> str:
        return self.candidates[0].settings["task"]["name"]


def read_candidates(names: Sequence[str], settings: Mapping[str, Any]) -> list[Candidate]:
    """The models of these names, or in these TOML files, each with the settings that all share."""
    if len(names) < 2:
        raise ConfigError(f"a comparison needs at least two models, got {', '.join(names) or 'none'}")
    candidates = [_read_candidate(name, settings) for name in names]
    known: set[str] = set()
    for candidate in candidates:
        if candidate.name in known:
            raise ConfigError(f"models must have different names, got {candidate.name!r} twice")
        known.add(candidate.name)
        _ = candidate.draft()  # raises if its settings are wrong
    return candidates


def _read_candidate(name: str, shared: Mapping[str, Any]) -> Candidate:
    if not name.endswith(".toml"):
        return Candidate(name, name, dict(shared))
    own = read_toml(Path(name))
    if "data" in own:
        raise ConfigError(f"models are compared on the same data, but {name} has a table [data] of its own")
    task = shared["task"]["name"]
    if (other := own.get("task", {}).get("name", task)) != task:
        raise ConfigError(f"models are compared on one task, here {task}, but {name} is for {other}")
    return Candidate(Path(name).stem, preset_of(own, find_task(task)), merge_tables(shared, own))


def plan_comparison(plan: ComparisonPlan, *, params: int | None, num_parallel: int | None) -> ComparisonPlan:
    """Prepare the data, choose the sizes of the models, and list the jobs."""
    first = plan.candidates[0].draft()
    task = make_task(first.task)
    if not task.supports_comparison:
        raise ConfigError(
            f"models for {task.name} cannot be compared yet: train them, and evaluate each on the same file"
        )
    if plan.generation and not task.has_targets:
        given = ", ".join(f"{name}={value}" for name, value in plan.generation.items())
        raise ConfigError(f"models of text are compared by likelihoods, not by generated text: {given} has no effect")
    data = task.prepare(first.data)
    device = find_device(first.train.device).type
    size = choose_size(data, has_gpu=device == "cuda")
    candidates = plan.candidates
    if params is not None:
        candidates = [_fit_parameters(candidate, size, data, params) for candidate in candidates]
    for candidate in candidates:
        _count_parameters(candidate.draft(size).model, candidate, data)  # raises if it cannot be built
    settings = {candidate.name: _resolve(candidate, size, data) for candidate in candidates}
    tasks = {name: make_task(each.task, data.codecs) for name, each in settings.items()}
    batch_tokens = max(each.train.batch_tokens for each in settings.values())
    task.check_comparison(tasks, data, first.data, batch_tokens=batch_tokens, sizes=plan.train_sizes)
    num_jobs = len(candidates) * len(plan.seeds) * (1 + len(plan.train_sizes))
    num_parallel, threads = split_cores(num_jobs, device, num_parallel)
    plan = replace(plan, candidates=candidates, prepared=data, num_parallel=num_parallel)
    return replace(plan, jobs=_list_jobs(plan, settings, threads=threads))


def _list_jobs(plan: ComparisonPlan, settings: Mapping[str, ResolvedSettings], *, threads: int) -> list[Job]:
    """Seed by seed, so that an interrupted comparison has results for all models."""
    budgets = {name: _budget_settings(name, each, plan) for name, each in settings.items()}
    jobs = []
    for seed, size, candidate in product(plan.seeds, [*plan.train_sizes, None], plan.candidates):
        # The window depends on the amount of text, and would differ for fewer documents.
        window = settings[candidate.name].task.model_dump().get("window")
        own: dict[str, Any] = {
            "preset": settings[candidate.name].preset,
            "train": {**budgets[candidate.name], "seed": seed},
            "data": {} if size is None else {"train_rows": size},
            "task": {} if window is None else {"window": window},
        }
        ending = "" if size is None else f"-{size}"
        job = Job(
            label=candidate.name,
            seed=seed,
            path=str(plan.folder / f"{candidate.name}-{seed}{ending}"),
            data=list(candidate.settings["data"]["train"]),
            settings=merge_tables(candidate.settings, own),
            threads=threads,
            train_rows=size,
            unit=find_task(plan.task).unit,
            generation=plan.generation,
        )
        jobs.append(job)
    return jobs


def _budget_settings(name: str, settings: ResolvedSettings, plan: ComparisonPlan) -> dict[str, Any]:
    """The budget as settings of a run."""
    budget = plan.budget
    if budget.flops is not None:
        return {"max_steps": _steps_for(name, settings, plan.data, budget.flops)}
    return {"minutes": budget.minutes} if budget.minutes is not None else {"max_steps": budget.steps}


def _steps_for(name: str, settings: ResolvedSettings, data: Prepared, flops: float) -> int:
    """The number of steps that a budget of operations allows."""
    task = make_task(settings.task, data.codecs)
    model = task.build(settings.model, settings.head)
    cost = flops_per_step(model, task, data, settings)
    steps = int(flops // (cost * settings.train.accumulate))
    if steps < 1:
        raise ConfigError(f"a budget of {flops:.3g} operations is less than one step of {name}, which needs {cost:.3g}")
    log_info(f"{name}: {cost:.3g} operations a step, {steps:,} steps")
    return steps


def _fit_parameters(candidate: Candidate, size: Size, data: Prepared, wanted: int) -> Candidate:
    """The same model at the width with the number of parameters nearest to `wanted`."""
    config = candidate.draft(size).model
    quantum = 2 * config.model_dump().get("num_heads", 1)
    widths = range(quantum, _MAX_WIDTH + 1, quantum)
    # The count grows with the width: bisect.
    low, high = 0, len(widths) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if _count_parameters(_widened(config, widths[middle]), candidate, data) < wanted:
            low = middle
        else:
            high = middle
    ends = (widths[low], widths[high])
    counts = {width: _count_parameters(_widened(config, width), candidate, data) for width in ends}
    width = min(counts, key=lambda each: abs(counts[each] - wanted))
    if abs(counts[width] - wanted) > _PARAMS_TOLERANCE * wanted:
        raise ConfigError(
            f"no width of {candidate.name} is within {100 * _PARAMS_TOLERANCE:.0f} % of {wanted:,} parameters: "
            f"the nearest has {counts[width]:,}, with model_dim={width}"
        )
    log_info(f"{candidate.name}: {counts[width]:,} parameters with model_dim={width}")
    changes = _widened(config, width).model_dump(include={"model_dim", "feedforward_dim"})
    return replace(candidate, settings=merge_tables(candidate.settings, {"model": changes}))


def _widened(config: ModelConfig, width: int) -> ModelConfig:
    """The same model at another width; the ratio of the feedforward width stays the same."""
    changes: dict[str, Any] = {"model_dim": width}
    if feedforward := config.model_dump().get("feedforward_dim"):
        changes["feedforward_dim"] = max(1, round(feedforward * width / config.model_dim))
    return config.changed(**changes)


def _count_parameters(config: ModelConfig, candidate: Candidate, data: Prepared) -> int:
    try:
        with torch.device("meta"):
            settings = candidate.draft().model_copy(update={"model": config})
            with quiet_logs():
                resolved = resolve(settings.with_train(**_PLANNED), data)
            model = make_task(resolved.task, data.codecs).build(config, resolved.head)
    except ConfigError as error:
        raise ConfigError(f"model {candidate.name}: {error}") from None
    return sum(parameter.numel() for parameter in model.parameters())


def _resolve(candidate: Candidate, size: Size, data: Prepared) -> ResolvedSettings:
    """All settings of a run of this model but its budget; raises if they do not fit together."""
    settings = candidate.draft(size)
    try:
        with quiet_logs():
            return resolve(settings.with_train(**_PLANNED), data)
    except ConfigError as error:
        raise ConfigError(f"model {candidate.name}: {error}") from None


def flops_per_step(model: nn.Module, task: Task[Any], data: Prepared, settings: ResolvedSettings) -> float:
    """The mean over the first batches of the operations of a forward and a backward pass.

    An operation is an addition or a multiplication in a matrix product; others are negligible and not counted.

    The model must be on the CPU, where PyTorch's recurrent kernels can be replaced by matrix products, which are
    counted.
    """
    batches = task.batches(data, batch_tokens=settings.train.batch_tokens, seed=settings.train.seed)
    counts = []
    for number in range(min(_FLOP_BATCHES, batches.per_epoch)):
        batch = batches.batch(number)
        with _countable_kernels(), FlopCounterMode(display=False) as counter, torch.no_grad():
            task.loss(model, batch)
        counts.append(counter.get_total_flops())
    return float(np.mean(counts)) * (1 + _BACKWARD)


@contextmanager
def _countable_kernels() -> Iterator[None]:
    """Without oneDNN's recurrent kernel, whose products are not counted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False):
            yield
