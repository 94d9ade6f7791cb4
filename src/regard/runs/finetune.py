"""Fine-tuning: from the model of a run folder, imported or trained, and some rows to a run."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch

from regard.data.prepare import Prepared
from regard.data.sources import IN_MEMORY, Rows
from regard.errors import DataError
from regard.logging import format_duration, log_info, recorded_messages
from regard.models.family import find_family
from regard.runs.folder import RunFolder
from regard.runs.launch import launch
from regard.runs.run import Run, split_paths_and_rows
from regard.runs.train import (
    Data,
    as_list,
    given_values,
    is_continued,
    joined_for,
    make_trainer,
    resume_run,
    set_up_together,
    start,
    vacant_folder,
    with_task,
)
from regard.settings import merge_tables
from regard.tasks.capabilities import RolloutTask
from regard.tasks.registry import find_task, make_task
from regard.tasks.text import TextSettings
from regard.training.checkpoints import hash_of
from regard.training.defaults import resolve
from regard.training.finetuning import Method
from regard.training.loop import Trainer
from regard.training.settings import DraftSettings, ResolvedSettings

_MOST_TOKENS = 512
"""Texts are truncated to this length, or to what the base can read."""


class TuningOptions(TypedDict, total=False):
    """Arguments of `finetune` that other functions which start from a base have as well."""

    out: str | os.PathLike[str] | None
    rank: int | None
    columns: Sequence[str] | None
    encoding: str | None
    valid: str | Sequence[str] | None
    test: str | Sequence[str] | None
    minutes: float | None
    steps: int | None
    epochs: float | None
    seed: int | None
    device: str | None
    baseline: bool
    skip_bad: bool | None
    overwrite: bool
    show_progress: bool


def finetune(
    base: str | os.PathLike[str],
    data: Data | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    task: str | None = None,
    method: Method = "all",
    rank: int | None = None,
    top_layers: int | None = None,
    template: str | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    valid: str | Sequence[str] | None = None,
    test: str | Sequence[str] | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    baseline: bool = True,
    skip_bad: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    show_progress: bool = True,
    num_processes: int = 1,
    tensor_parallel: int | None = None,
) -> Run:
    """Fine-tune the model of a run folder, imported or trained.

    Args:
        base: The run folder of the base.
        data: A file, several, a folder, or rows in memory.
        out: The run folder; unset, a new one under `runs/`.
        task: The name of a task; unset, it is detected from the data.
        method: Which weights are trained: all, top, lora, or head, which is a linear probe without steps unless `steps`
            or `epochs` is set.
        rank: With lora: the rank of the updates.
        top_layers: With top: how many of the topmost layers are trained.
        template: Of conversations: the Jinja source of a chat template; unset, that of the base.
        columns: The columns to use, by name or by position from 1.
        encoding: The encoding of text files, such as windows-1252; unset, it is detected.
        valid: A file of validation rows; unset, part of the training rows.
        test: A file of test rows; unset, part of the training rows.
        minutes: The budget in minutes.
        steps: The budget in steps.
        epochs: The budget in passes over the training rows.
        seed: Another seed gives another run.
        device: auto, cpu, cuda or cuda:N.
        baseline: Fit a simple model on the same rows, and compare its scores with the model's.
        skip_bad: Skip rows that cannot be read, however many (True), or none of them; unset, at most 5 %.
        settings: Any setting, nested as in `run.toml`; the arguments above take precedence.
        overwrite: Replace the run in `out`.
        show_progress: Show a progress bar on stderr.
        num_processes: Train in so many processes of this machine, as `regard.train` does.
        tensor_parallel: The number of processes that share the layers of one model.
    """
    if num_processes != 1:
        given = {name: value for name, value in locals().items() if name != "num_processes"}
        path = launch("regard.runs.finetune:finetune", given, num_processes, show_progress=show_progress)
        return Run(path, device=device or "auto")
    paths, rows = split_paths_and_rows(data)
    if not paths and rows is None:
        raise DataError("no data to fine-tune on: name a file or a folder, or pass rows")
    values = merge_tables(
        settings or {},
        given_values(
            data={
                "train": paths or [IN_MEMORY],
                "columns": None if columns is None else list(columns),
                "encoding": encoding,
                "valid": as_list(valid),
                "test": as_list(test),
                "skip_bad": skip_bad,
            },
            train={
                "minutes": minutes,
                "max_steps": steps,
                "max_epochs": epochs,
                "seed": seed,
                "device": device,
                "baseline": None if baseline else False,
                "tensor_parallel": tensor_parallel,
            },
            task={"name": task, "template": template},
            finetune={"top_layers": top_layers, **({} if rank is None else {"lora": {"rank": rank}})},
        ),
    )
    with joined_for(values) as group:
        if is_continued(out, overwrite=overwrite):
            return resume_run(RunFolder(out or ""), rows=rows, show_progress=show_progress)
        folder = vacant_folder(group, out, paths, overwrite=overwrite)
        with recorded_messages() as choices:
            prepared, resolved, trainer = set_up_together(
                group, lambda: set_up_finetuning(Path(base), values, method=method, rows=rows), rows
            )
            _report_cost(trainer)
        tuned = resolved.finetune
        assert tuned is not None, "fine-tuning has a base"
        relative = os.path.relpath(Path(base).absolute(), folder.path.absolute())
        sources = trainer.task.reward_sources() if isinstance(trainer.task, RolloutTask) else {}
        rewards = {
            name: os.path.relpath(source, folder.path.absolute())
            for name, source in sources.items()
            if Path(source).is_dir()
        }
        task_settings = {**resolved.task.model_dump(), **rewards}
        resolved = resolved.changed(finetune={**tuned.model_dump(), "base": relative}, task=task_settings)
        return start(folder, prepared, resolved, trainer, choices=choices, overwrite=overwrite,
                     show_progress=show_progress)  # fmt: skip


def set_up_finetuning(
    base: Path, values: Mapping[str, Any], *, method: Method, rows: Rows | None = None
) -> tuple[Prepared, ResolvedSettings, Trainer]:
    """Prepared data, resolved settings, and a trainer whose model has the weights of its base."""
    data, settings = prepare_finetuning(base, values, method=method, rows=rows)
    resolved = resolve(settings, data)
    return data, resolved, make_trainer(resolved, data)


def prepare_finetuning(
    base: Path, values: Mapping[str, Any], *, method: Method = "all", rows: Rows | None = None
) -> tuple[Prepared, DraftSettings]:
    """The data, encoded by the codecs of the base, and the settings as far as they do not depend on it."""
    folder = RunFolder(base)
    before = folder.read_settings()
    values = with_task(values, rows)
    task = find_task(values["task"]["name"])
    given = merge_tables(_from_base(before, folder, task, method), values)
    settings = DraftSettings.read({**{name: {} for name in ("head", "train", "data")}, **given})
    return make_task(settings.task).prepare(settings.data, rows), settings


def _from_base(before: ResolvedSettings, folder: RunFolder, task: Any, method: Method) -> dict[str, Any]:
    """The settings that a run inherits from its base."""
    model = before.model.model_dump()
    if task.architecture == "encoder" and before.model.encoder_depth:
        model = find_family(before.model.family).encoder_only(model)
    base_task = make_task(before.task, folder.read_codecs(before))
    task.check_base(base_task, before.model, str(folder.path))
    own: dict[str, Any] = {}
    if issubclass(task.Settings, TextSettings):
        limit = before.model.max_positions
        tokenizer = next(name for name in ("text", "source") if name in base_task.codecs)
        own["tokenizer"] = str(folder.codecs_path / f"{tokenizer}.json")
        own |= {} if limit is None else {"max_length": min(_MOST_TOKENS, limit)}
    if "template" in task.Settings.model_fields:
        template = base_task.chat_template or folder.read_chat_template()
        own |= {} if template is None else {"template": template}
    if "image" in task.Settings.model_fields:
        own["image"] = before.task.model_dump()["image"]
    own |= task.inherited_settings(base_task)
    return {
        "preset": before.preset,
        "model": model,
        "task": own,
        "finetune": {
            "base": str(folder.path.absolute()),
            "base_hash": hash_of(folder.model_path),
            "method": method,
        },
    }


def _report_cost(trainer: Trainer) -> None:
    """Log the number of trainable parameters, and the expected memory and time, measured on one batch."""
    parameters = list(trainer.model.parameters())
    total = sum(parameter.numel() for parameter in parameters)
    trainable = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    stored = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    saved = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    batch = trainer.training_batch(0)
    before = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        trainer.updater.dry_run(batch)
    seconds = time.perf_counter() - before
    memory = stored + 12 * trainable + saved
    steps = trainer.config.max_steps
    share = f"trainable parameters: {trainable:,} of {total:,} ({format_percent(trainable / total)})"
    expected = f", about {format_duration(steps * seconds)} for {steps:,} steps" if steps else ""
    log_info(f"{share}; expected: {memory / 2**20:,.0f} MiB of memory{expected}")


def format_percent(share: float) -> str:
    """A share as a percentage with two significant digits.

    Example:
        >>> format_percent(1.0), format_percent(0.0145), format_percent(0.2)
        ('100 %', '1.5 %', '20 %')
    """
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
