"""From data and wishes to a run: prepare, build, train, report."""

import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from regard.data.preparation import Prepared
from regard.data.sources import IN_MEMORY, Rows
from regard.data.stream import TokenStream
from regard.errors import ConfigError, DeviceError, RunError, StoppedError
from regard.logging import format_duration, log_info
from regard.models.presets import has_size
from regard.runs.reporting import write_run_report
from regard.runs.run import Run
from regard.settings import merge
from regard.tasks import find_task, guess_task
from regard.training.checkpoints import (
    load_checkpoint,
    save_checkpoint,
    trained_weights,
    weights_of,
    write_tensors,
)
from regard.training.display import TrainingDisplay
from regard.training.finetuning import adapt, base_weights
from regard.training.folder import RunFolder
from regard.training.interruption import listen
from regard.training.loop import Trainer
from regard.training.precision import Hardware, choose_hardware, is_out_of_memory, keep_memory, threads
from regard.training.resolution import choose_size, resolve, usual_preset, with_preset
from regard.training.settings import Record, RunSettings
from regard.training.vectors import take_vectors
from regard.version import version

OnLook = Callable[[int, float], None]

REPORT_ROWS = 1_000
"""Validation rows that the report's scores are computed on."""
_MAY_CHANGE = {
    "data": ("train", "valid", "test"),
    "train": ("max_steps", "max_epochs", "minutes", "patience", "checkpoint_every", "device", "tensorboard"),
}
"""What a resumed run may change; anything else would make it another run. Data may move, and is known by its hash."""


def train(
    data: str | os.PathLike[str] | list[str] | Rows | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    model: str | None = None,
    minutes: float | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    on_look: OnLook | None = None,
) -> Run:
    """Train a model on a file of pairs, labelled rows or text, and write a run folder.

    Args:
        data: A file, several, a folder, the name of a built-in data set, or rows in memory.
        out: The run folder; unset, a fresh one under `runs/`.
        model: The name of a preset; unset, one is chosen for the amount of data and the machine.
        minutes: The budget; it stands for `settings={"train": {"minutes": ...}}`.
        settings: Any setting, nested as in `run.toml`.
        resume: Go on with the run in `out`.
        overwrite: Replace the run in `out`.
        show_progress: Show a progress line on stderr.
        on_look: Is told the step and the loss of each look at the validation rows; what it raises ends the training.
    """
    settings = dict(settings or {})
    if minutes is not None:
        settings = merge(settings, {"train": {"minutes": float(minutes)}})
    if model is not None:
        settings["preset"] = model
    paths, rows = paths_or_rows(data)
    if paths or rows is not None:
        settings = merge(settings, {"data": {"train": paths or [IN_MEMORY]}})
    if resume:
        if out is None:
            raise RunError("to resume a run, name its folder")
        return _resume(RunFolder(out), settings, rows, show_progress, on_look)
    folder = RunFolder(out if out is not None else fresh_name(paths))
    folder.require_vacant(overwrite=overwrite)
    return begin(folder, *set_up(settings, rows), show_progress, on_look)


def begin(
    folder: RunFolder,
    prepared: Prepared,
    resolved: RunSettings,
    trainer: Trainer,
    show_progress: bool,
    on_look: OnLook | None = None,
) -> Run:
    """Make the run folder, train, and report."""
    record = Record(
        version=version(),
        torch=torch.__version__,
        data_hash=prepared.content_hash,
        num_parameters=sum(p.numel() for p in trainer.model.parameters()),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hardware=f"{trainer.hardware}, {platform.machine()}",
        notes=prepared.notes,
    )
    resolved = resolved.changed(record=record)
    _require_space(folder, record.num_parameters)
    folder.create(resolved, prepared.tokenizer, prepared.held_out)
    return _fit(folder, trainer, prepared, show_progress, on_look)


def _resume(
    folder: RunFolder,
    changes: Mapping[str, Any],
    rows: Rows | None,
    show_progress: bool,
    on_look: OnLook | None,
) -> Run:
    before = folder.read_settings()
    # One that was stopped within its first steps has a checkpoint, and no figures yet.
    if folder.model_path.exists() and not (folder.metrics_path.exists() or folder.checkpoints.exists()):
        raise RunError(f"{folder.path} was imported or merged, and has no training to go on with: fine-tune it")
    settings = RunSettings.read(merge(before.model_dump(), changes))
    _require_same_run(before, settings)
    data = find_task(settings.task).prepare(settings.data, rows)
    assert settings.record is not None, "a run folder has a record"
    if data.content_hash != settings.record.data_hash:
        raise RunError(f"the data is not what {folder.path} was trained on: its content has changed")
    if data.tokenizer.to_json() != folder.read_tokenizer().to_json():
        raise RunError(f"the tokenizer is not the one that {folder.path} was trained with: it cuts text otherwise")
    found = load_checkpoint(folder.checkpoints)
    trainer = make_trainer(settings, data, is_fresh=found is None)
    if found is None:
        log_info("there is no checkpoint yet: starting from the first step")
    else:
        trainer.restore(*found)
        log_info(f"going on from step {trainer.progress.step:,}")
    folder.rewind(trainer.progress.step)
    folder.write_settings(settings)
    return _fit(folder, trainer, data, show_progress, on_look)


def set_up(values: Mapping[str, Any], rows: Rows | None = None) -> tuple[Prepared, RunSettings, Trainer]:
    """Data, settings without gaps, and a trainer that is ready to start; nothing is written but to the cache."""
    # Read once before the data is touched, so that a misspelt setting or a missing device is told at once.
    values = with_task(values, rows)
    name = usual_preset(values)
    first = with_preset(values, name)
    hardware = find_hardware(first)
    task = find_task(first.task)
    log_info(f"task {task.name}: {task.description}")
    data = task.prepare(first.data, rows)
    size = choose_size(data, has_gpu=hardware.device.type == "cuda")
    settings = with_preset(values, name, size)
    if not has_size(name):
        unit = "tokens" if isinstance(data.train, TokenStream) else "rows"
        log_info(f"model {settings.preset}, chosen for {len(data.train):,} {unit} on {hardware.device.type}")
    settings = resolve(settings, data)
    return data, settings, make_trainer(settings, data)


def with_task(values: Mapping[str, Any], rows: Rows | None = None) -> Mapping[str, Any]:
    """The settings with the task: the one that is set, or what the data looks like."""
    if "task" in values:
        return values
    return {**values, "task": guess_task(RunSettings.read({"data": values.get("data", {})}).data, rows)}


def make_trainer(settings: RunSettings, data: Prepared, *, is_fresh: bool = True) -> Trainer:
    """A trainer that is ready to start; where it is not fresh, its weights are read right after."""
    if settings.train.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError("train.tensorboard needs the extra regard[tensorboard]")
    hardware = find_hardware(settings)
    task = find_task(settings.task)
    if hardware.device.type == "cpu":
        keep_memory()
    torch.manual_seed(settings.train.seed)
    model = task.build_model(settings.model, data.tokenizer, data=settings.data, head=settings.head)
    if settings.data.vectors is not None and is_fresh:
        take_vectors(model, settings.data.vectors)
    if settings.finetune is not None:
        adapt(model, settings.finetune, base_weights(settings.finetune))
    log_info(f"{sum(p.numel() for p in model.parameters()):,} parameters on {hardware}")
    return Trainer(model.to(hardware.device), task, data, settings, hardware)


def find_hardware(settings: RunSettings) -> Hardware:
    # Only the products of Transformers are known to gain from bfloat16 on a CPU.
    width = settings.model.model_dim if settings.model.family == "transformer" else 0
    return choose_hardware(settings.train.device, settings.train.precision, width)


def _fit(
    folder: RunFolder, trainer: Trainer, data: Prepared, show_progress: bool, on_look: OnLook | None = None
) -> Run:
    def save(trainer: Trainer) -> None:
        save_checkpoint(folder.checkpoints, trainer.progress.step, trainer.tensors(), trainer.note())
        if not folder.model_path.exists():
            save_best(trainer)

    def save_best(trainer: Trainer) -> None:
        tuned = trainer.settings.finetune
        own = trained_weights(trainer.model) if tuned and tuned.is_adapter else weights_of(trainer.model)
        write_tensors(folder.model_path, {**own, **trainer.average.tensors()}, {"step": trainer.progress.step})

    def observe(line: Mapping[str, Any]) -> None:
        folder.add_metrics(line)
        display.update(line, trainer.used())
        if "valid_loss" in line:
            folder.ledger.add("valid", "training", f"step {line['step']}", {"loss": line["valid_loss"]})
        if writer is not None:
            for name in line.keys() - {"step"}:
                writer.add_scalar(name, line[name], line["step"])
        if "valid_loss" in line and on_look is not None:
            on_look(line["step"], line["valid_loss"])

    curves = _tensorboard(folder, trainer)
    with (
        listen() as interruption,
        TrainingDisplay(is_shown=show_progress) as display,
        curves as writer,
        threads(torch.get_num_threads()),
    ):
        try:
            outcome = trainer.fit(observe, save=save, save_best=save_best, should_stop=lambda: bool(interruption))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            wanted = f"a smaller train.batch_tokens than {trainer.config.batch_tokens:,} may help"
            raise DeviceError(f"{trainer.hardware.device} ran out of memory: {wanted}") from None
    # A signal that came with the last step, when nobody asked for it any more, is heard all the same.
    if not outcome.is_finished or interruption:
        assert interruption.signal is not None, "nothing else stops training early"
        raise StoppedError(
            f"stopped at step {outcome.progress.step:,}; everything is saved in {folder.path}, "
            "and resuming goes on from there",
            signal=interruption.signal,
        )
    log_info(
        f"trained {outcome.progress.step:,} steps in {format_duration(outcome.progress.seconds)}: {outcome.reason}"
    )
    return _report(folder, trainer, data)


def _report(folder: RunFolder, trainer: Trainer, data: Prepared) -> Run:
    run = Run(folder.path, device=str(trainer.hardware.device))
    rows = data.held_out["valid"][:REPORT_ROWS]
    evaluation = run.judge(rows)
    run.note("valid", "report", evaluation)
    path = write_run_report(run, evaluation)
    log_info(f"validation: {evaluation.scores[evaluation.headline]}")
    log_info(f"report: {path}")
    return run


def _require_same_run(before: RunSettings, after: RunSettings) -> None:
    old, new = (flat(settings.model_dump()) for settings in (before, after))
    free = [f"{section}.{name}" for section, names in _MAY_CHANGE.items() for name in names]
    for name, value in new.items():
        if value != old.get(name) and name not in free:
            raise ConfigError(
                f"a resumed run keeps its settings, but {name} is {value!r} and was {old.get(name)!r}; "
                f"only {', '.join(free)} may change"
            )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with names like `train.seed`."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return result


def _require_space(folder: RunFolder, num_parameters: int) -> None:
    """Two checkpoints of four numbers a parameter, one being written, and the model."""
    needed = num_parameters * 4 * (4 * 3 + 1)
    existing = next(parent for parent in (folder.path, *folder.path.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DeviceError(
            f"not enough disk space at {existing}: checkpoints need {needed / 2**20:,.0f} MiB, "
            f"{free / 2**20:,.0f} MiB are free"
        )


def paths_or_rows(data: Any) -> tuple[list[str], Rows | None]:
    if data is None:
        return [], None
    if isinstance(data, str | os.PathLike):
        return [str(data)], None
    items = list(data)
    if items and all(isinstance(item, str | os.PathLike) for item in items):
        return [str(item) for item in items], None
    return [], items


def fresh_name(paths: list[str]) -> Path:
    stem = (Path(paths[0]).absolute().name.split(".")[0] if paths else "") or "run"
    names = (Path("runs") / (stem if number == 1 else f"{stem}-{number}") for number in range(1, 10_000))
    return next(path for path in names if not path.exists())


def _tensorboard(folder: RunFolder, trainer: Trainer) -> AbstractContextManager[Any]:
    if not trainer.config.tensorboard:
        return nullcontext()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder.tensorboard_path), purge_step=trainer.progress.step + 1)
