"""From a model that was trained on something else and a few labels to a run."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.data.preparation import Prepared
from regard.data.sources import IN_MEMORY, Rows
from regard.data.store import TokenStore
from regard.errors import ConfigError, DataError
from regard.logging import format_duration, log_info
from regard.models.families import longest_sequence
from regard.runs.launch import begin, find_hardware, fresh_name, make_trainer, paths_or_rows
from regard.runs.run import Run
from regard.settings import merge
from regard.tasks import find_task, guess_task
from regard.training.checkpoints import hash_of
from regard.training.finetuning import Method, usual_rate
from regard.training.folder import RunFolder
from regard.training.loop import Trainer
from regard.training.resolution import resolve
from regard.training.settings import RunSettings

_LEAST_STEPS, _MOST_EPOCHS, _FEWEST_EPOCHS = 300, 30.0, 3.0
_WARMUP = 0.06
_FEW_ROWS, _RATE_FOR_FEW = 1_000, 1 / 3
"""A run on fewer rows has so few steps that the usual peak forgets more than they teach: it has a third of it."""
_CONTRAST_FOR_FEW = 1.0
"""And the pairs of its rows are as good a teacher as the rows."""
_LOOKS_PER_RUN, _FEWEST_TO_CHOOSE_BY = 12, 100
_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "schedule": "linear",
    "label_smoothing": 0.0,
    "beta2": 0.999,
    "weight_decay": 0.01,
    "average": 0.0,
    "patience": 0,
}


def finetune(
    base: str | os.PathLike[str],
    data: str | os.PathLike[str] | list[str] | Rows | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    task: str | None = None,
    method: Method = "all",
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    show_progress: bool = True,
) -> Run:
    """Go on from the model of a run folder, imported or trained, on data of one's own.

    Args:
        base: The run folder to go on from.
        data: A file, several, a folder, or rows in memory.
        out: The run folder; unset, a fresh one under `runs/`.
        task: classification, regression and so on; unset, it is read off the data.
        method: What moves: all, head, top or lora.
        settings: Any setting, nested as in `run.toml`.
        overwrite: Replace the run in `out`.
        show_progress: Show a progress line on stderr.
    """
    paths, rows = paths_or_rows(data)
    if not paths and rows is None:
        raise DataError("no data to fine-tune on: name a file, a folder, or hand in rows")
    folder = RunFolder(out if out is not None else fresh_name(paths))
    folder.require_vacant(overwrite=overwrite)
    given = merge(dict(settings or {}), {"data": {"train": paths or [IN_MEMORY]}})
    prepared, resolved, trainer = set_up(Path(base), given, task=task, method=method, rows=rows)
    _forecast(trainer, prepared)
    return begin(folder, prepared, resolved, trainer, show_progress)


def set_up(
    base: Path, given: Mapping[str, Any], *, task: str | None, method: Method, rows: Rows | None = None
) -> tuple[Prepared, RunSettings, Trainer]:
    """Data, settings without gaps, and a trainer whose model has the weights of its base."""
    data, settings = prepare(base, given, task=task, method=method, rows=rows)
    settings = resolve(_with_defaults(settings, data), data)
    return data, settings, make_trainer(settings, data)


def prepare(
    base: Path, given: Mapping[str, Any], *, task: str | None = None, method: Method = "all", rows: Rows | None = None
) -> tuple[Prepared, RunSettings]:
    """The data, cut into tokens as its base has them, and the settings as far as they do not depend on it."""
    folder = RunFolder(base)
    before = folder.read_settings()
    config = RunSettings.read({"data": given.get("data", {})}).data
    name = task or given.get("task") or guess_task(config, rows)
    values = merge(_from_base(before, folder, name, method), {**given, "task": name})
    settings = RunSettings.read(values)
    found = find_task(settings.task)
    log_info(f"task {found.name}: {found.description}")
    return found.prepare(settings.data, rows), settings


def _from_base(before: RunSettings, folder: RunFolder, task: str, method: Method) -> dict[str, Any]:
    model = before.model.model_dump()
    if task not in ("language", "translation") and before.model.encoder_depth:
        model["decoder_layers"] = 0
    if task == "translation" and not (before.model.encoder_depth and before.model.decoder_depth):
        raise ConfigError(f"translation needs an encoder and a decoder, which {folder.path} has not")
    if task == "language" and before.model.encoder_depth:
        raise ConfigError(f"a language model is a decoder alone, {folder.path} has an encoder")
    if (task == "recognition") != (before.task == "recognition"):
        raise ConfigError(
            f"the data is for {task}, and {folder.path} for {before.task}: only one of them reads pictures"
        )
    if task == "masked" and folder.read_tokenizer().mask is None:
        raise ConfigError(f"masked training needs a token that stands for hidden ones, which {folder.path} has not")
    limit = longest_sequence(before.model)
    pictures = {"picture": before.data.picture.model_dump()} if task == "recognition" else {}
    return {
        "preset": before.preset,
        "model": model,
        "data": {
            "tokenizer": str(folder.tokenizer_path),
            **({} if limit is None else {"max_length": min(512, limit)}),
            **pictures,
        },
        "finetune": {
            "base": str(folder.path.absolute()),
            "base_hash": hash_of(folder.model_path),
            "method": method,
        },
    }


def _with_defaults(settings: RunSettings, data: Prepared) -> RunSettings:
    """What suits a model that knows much already: small steps, few passes."""
    train, tuned = settings.train, settings.finetune
    assert tuned is not None, "a base is named before"
    set_by_user = train.model_fields_set
    changes = {name: value for name, value in _DEFAULTS.items() if name not in set_by_user}
    is_few = isinstance(data.train, TokenStore) and len(data.train) < _FEW_ROWS
    if train.learning_rate is None:
        rate = usual_rate(settings.model.model_dim, tuned.method) * (_RATE_FOR_FEW if is_few else 1.0)
        changes["learning_rate"] = float(f"{rate:.2g}")
    has_one_label = settings.task == "classification" and settings.data.label_separator is None
    if "contrast" not in set_by_user and has_one_label and is_few:
        changes["contrast"] = _CONTRAST_FOR_FEW
    train = train.changed(**changes)
    settings = settings.changed(train=train)
    hardware = find_hardware(settings)
    usual_batch = 1_024 if hardware.device.type == "cpu" else 4_096
    train = train.changed(batch_tokens=train.batch_tokens or usual_batch)
    assert train.batch_tokens is not None
    batches = find_task(settings.task).batches(data, settings.data, batch_tokens=train.batch_tokens, seed=train.seed)
    if train.max_steps is None and train.max_epochs is None and train.minutes is None:
        epochs = min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, _LEAST_STEPS / batches.per_epoch))
        train = train.changed(max_steps=max(1, round(epochs * batches.per_epoch / train.accumulate)))
    steps = train.max_steps or round((train.max_epochs or 3.0) * batches.per_epoch)
    if train.warmup_steps is None:
        train = train.changed(warmup_steps=max(1, round(_WARMUP * steps)))
    if "evaluate_every" not in set_by_user:
        # The weights with the best look are kept: a choice that so few rows make is luck, so they have one look.
        is_luck = isinstance(data.valid, TokenStore) and len(data.valid) < _FEWEST_TO_CHOOSE_BY
        train = train.changed(evaluate_every=steps if is_luck else max(10, steps // _LOOKS_PER_RUN))
    return settings.changed(train=train)


def _forecast(trainer: Trainer, data: Prepared) -> None:
    """Say what is to move, and what that will take, by reading one batch."""
    parameters = list(trainer.model.parameters())
    total = sum(parameter.numel() for parameter in parameters)
    moving = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    kept = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    saved = 0

    def note(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    batch = trainer.batches.batch(0)
    before = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        trainer.updater.rehearse(batch)
    seconds = time.perf_counter() - before
    memory = kept + 12 * moving + saved
    steps = trainer.config.max_steps
    share = f"{moving:,} of {total:,} parameters move ({100 * moving / total:.2g} %)"
    hint = f", about {format_duration(steps * seconds)} for {steps:,} steps" if steps else ""
    log_info(f"{share}; expected: {memory / 2**20:,.0f} MiB of memory{hint}")
