"""From data and settings to a run: detect the task, prepare, resolve, build, train, report."""

import math
import os
import platform
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from regard.adapters.lora import halve_frozen_matrices
from regard.data.formats.messages import format_count
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import IN_MEMORY, Rows, Source, is_builtin
from regard.data.stores.tokens import TokenStream
from regard.data.text_sources import TextSource
from regard.errors import ConfigError, DataError, DeviceError, ProcessError, RunError, StoppedError, WriteError
from regard.evaluation.registry import find_metric, score_label
from regard.evaluation.scores import make_signature
from regard.logging import format_duration, log_info, log_warning, recorded_messages
from regard.models.family import find_family, read_model_config
from regard.models.presets import find_preset, has_size
from regard.runs.baseline import BaselineResult, advise, compare_with_base, compare_with_baseline
from regard.runs.evaluation import Evaluation
from regard.runs.folder import RunFolder, imported_runs
from regard.runs.launch import launch
from regard.runs.report import describe_failure, describe_release, write_released_report, write_run_report
from regard.runs.rewards import load_reward
from regard.runs.run import Run, split_paths_and_rows
from regard.selection.ledger import TRAINING, weights_name
from regard.selection.releases import AUTO, Release, ReleasedScores
from regard.selection.siblings import read_ledgers
from regard.settings import merge_tables, require_table
from regard.tasks.capabilities import RolloutTask
from regard.tasks.choices import ChoiceContext
from regard.tasks.detection import readable_rows
from regard.tasks.registry import detect_task, find_task, make_task
from regard.tasks.task import SelectionScore, Task
from regard.tasks.text import TextSettings
from regard.training.checkpoints import checkpoint_paths, load_checkpoint, save_checkpoint, write_tensors
from regard.training.defaults import choose_size, draft, find_hardware, preset_of, resolve, with_model_defaults
from regard.training.distributed import Processes, is_lost_peer, is_restarted, joined, may_restart, processes
from regard.training.finetuning import InitialModel, adapt, base_weights, initialize_embeddings
from regard.training.interruption import listen
from regard.training.loop import Trainer
from regard.training.precision import find_device, is_out_of_memory, keep_memory
from regard.training.settings import Provenance, ResolvedSettings, TrainConfig
from regard.training.writing import BackgroundWriter
from regard.version import version

OnEvaluation = Callable[[int, float], None]
Data = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Rows | Sequence[Mapping[str, Any]]

_SAMPLE_ROWS, _MOST_SAMPLED = 2_500, 200_000
"""Settings are chosen by at least so many rows, if there are as many, at equal distances in the first 200,000."""
_SAMPLE_PIECES = 8
"""The first pieces of running text that are sampled."""
REPORT_ROWS = 1_000
"""Validation rows that the report's scores are computed on."""
_MAY_CHANGE = {
    "data": ("train", "valid", "test"),
    "train": (
        "max_steps",
        "max_epochs",
        "minutes",
        "patience",
        "checkpoint_every",
        "keep_checkpoints",
        "max_rollbacks",
        "device",
        "threads",
        "sharding",
        "tensor_parallel",
        "activation_checkpointing",
        "tensorboard",
        "baseline",
    ),
}
"""What a resumed run may change; anything else would make it another run. Data may move: it is known by its hash."""
_TUNED_SCORES = {16: (0.622, 0.527), 100: (0.771, 0.554), 1_000: (0.838, 0.651), 67_349: (0.904, 0.837)}
"""By rows of SST-2: the accuracy of a fine-tuned MiniLM, and of an LSTM from scratch (benchmarks/RESULTS.md)."""
_LONG_MINUTES = 7 * 24 * 60.0
"""A longer budget is used, but may be a mistake, such as seconds."""
_PLAIN_SECONDS = 15.0
"""Without a terminal, the interval between lines."""
_MEASURED_STEPS, _MEASURED_SECONDS = 50, 20.0
"""Steps, or seconds if these come first, after which the time of a run is estimated."""


def train(
    data: Data | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    task: str | None = None,
    model: str | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    valid: str | Sequence[str] | None = None,
    test: str | Sequence[str] | None = None,
    tokenizer: str | None = None,
    template: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    baseline: bool = True,
    ladder: float | bool | None = None,
    thresholdout: float | bool | None = None,
    skip_bad: bool | None = None,
    auto_batch: bool = True,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    on_evaluation: OnEvaluation | None = None,
    num_processes: int = 1,
    tensor_parallel: int | None = None,
) -> Run:
    """Train a model on a file of rows, running text or images, and write a run folder.

    Args:
        data: A file, several, a folder, the name of a built-in data set, or rows in memory: tuples, or dictionaries
            whose keys are the names of the columns.
        out: The run folder; unset, a new one under `runs/`.
        task: The name of a task; unset, it is detected from the data.
        model: The name of a preset; unset, one is chosen for the task, the amount of data and the machine.
        columns: The columns to use, by name or by position from 1.
        encoding: The encoding of text files, such as windows-1252; unset, it is detected.
        valid: A file of validation rows; unset, part of the training rows.
        test: A file of test rows; unset, part of the training rows.
        tokenizer: bpe, unigram, characters, bytes, words, wordpunct, or the path of a tokenizer.json.
        template: Of conversations: the Jinja source of a chat template.
        minutes: The budget in minutes.
        steps: The budget in steps.
        epochs: The budget in passes over the training rows.
        seed: Another seed gives another run.
        device: auto, cpu, cuda or cuda:N.
        baseline: Fit a simple model on the same rows, and compare its scores with the model's.
        ladder: Show and use only scores that a Ladder with this step releases, so that the certificate holds although
            scores decide what is tried next; True chooses the step. Nothing else about validation rows is reported.
        thresholdout: The same by Thresholdout with this threshold.
        skip_bad: Skip rows that cannot be read, however many (True), or none of them; unset, at most 5 %.
        auto_batch: Split batches that do not fit into memory.
        settings: Any setting, nested as in `run.toml`; the arguments above take precedence.
        resume: Resume the run in `out`.
        overwrite: Replace the run in `out`.
        show_progress: Show a progress bar on stderr.
        on_evaluation: Called with the step and the validation loss of each evaluation; an exception ends training.
        num_processes: Train in so many processes of this machine, which share each batch: one for each GPU, or with a
            part of the CPU's cores each. Processes that torchrun has started share it in any case.
        tensor_parallel: The number of processes that share the layers of one model.
    """
    if num_processes != 1:
        given = {name: value for name, value in locals().items() if name not in ("num_processes", "on_evaluation")}
        if on_evaluation is not None:
            raise ConfigError("on_evaluation is for training in this process: num_processes must be 1")
        return Run(
            launch("regard.runs.train:train", given, num_processes, show_progress=show_progress),
            device=device or "auto",
        )
    paths, rows = split_paths_and_rows(data)
    values = merge_tables(
        settings or {},
        given_values(
            data={
                "train": paths or ([IN_MEMORY] if rows is not None else None),
                "columns": None if columns is None else list(columns),
                "encoding": encoding,
                "valid": as_list(valid),
                "test": as_list(test),
                "skip_bad": skip_bad,
            },
            train={
                "minutes": None if minutes is None else float(minutes),
                "max_steps": steps,
                "max_epochs": None if epochs is None else float(epochs),
                "seed": seed,
                "device": device,
                "baseline": None if baseline else False,
                "tensor_parallel": tensor_parallel,
                "ladder": read_step(ladder),
                "thresholdout": read_step(thresholdout),
                "auto_batch": None if auto_batch else False,
            },
            task={"name": task, "tokenizer": tokenizer, "template": template},
            preset=model,
        ),
    )
    if resume and out is None:
        raise RunError("to resume a run, name its folder")
    before = RunFolder(out).read_settings().model_dump() if resume and out is not None else {}
    with joined_for(merge_tables(before, values)) as group:
        if resume or is_continued(out, overwrite=overwrite):
            return resume_run(
                RunFolder(out or ""),
                values if resume else {},
                rows=rows,
                show_progress=show_progress,
                on_evaluation=on_evaluation,
            )
        folder = vacant_folder(group, out, paths, overwrite=overwrite)
        with recorded_messages() as choices:
            prepared, resolved, trainer = set_up_together(group, lambda: set_up(values, rows), rows)
        if "preset" not in values and resolved.train.baseline:
            _suggest_finetuning(resolved, trainer.task, len(prepared.train))
        return start(
            folder, prepared, resolved, trainer, choices=choices, overwrite=overwrite, show_progress=show_progress,
            on_evaluation=on_evaluation,
        )  # fmt: skip


@contextmanager
def joined_for(values: Mapping[str, Any]) -> Iterator[Processes]:
    """The processes that train a run with these settings, where torchrun or `launch` has started several."""
    train = require_table(values.get("train", {}), "train")
    shared = train.get("tensor_parallel", 1)
    with joined(
        str(train.get("device", "auto")),
        is_group_of_one=train.get("sharding") == "full",
        tensor_parallel=shared if isinstance(shared, int) else 1,  # what it may be is checked with all settings
    ) as group:
        yield group


def vacant_folder(
    group: Processes, out: str | os.PathLike[str] | None, paths: Sequence[str], *, overwrite: bool
) -> RunFolder:
    """The folder of a new run, which is the same for all processes."""

    def find() -> str:
        folder = RunFolder(out if out is not None else new_run_path(paths))
        folder.require_vacant(overwrite=overwrite)
        return str(folder.path)

    return RunFolder(group.from_first(find))


def is_continued(out: str | os.PathLike[str] | None, *, overwrite: bool) -> bool:
    """Whether torchrun has started a run again that a failed process began: it is resumed."""
    if may_restart() and overwrite:
        raise ConfigError("a run that torchrun may restart cannot replace another one: name another folder")
    if may_restart() and out is None:
        raise ConfigError("a run that torchrun may restart needs a folder by which it is known: name the run folder")
    return out is not None and is_restarted() and RunFolder(out).exists


SetUp = tuple[Prepared, ResolvedSettings, Trainer]


def set_up_together(group: Processes, set_up: Callable[[], SetUp], rows: Rows | None) -> SetUp:
    """Rank 0 prepares the data and resolves the settings; the others read what is prepared, with the same settings."""
    made: list[SetUp] = []

    def choose() -> tuple[Prepared, ResolvedSettings]:
        made.append(set_up())
        return made[0][:2]

    data, resolved = _prepare_together(group, choose, rows)
    return made[0] if made else (data, resolved, make_trainer(resolved, data))


def _prepare_together(
    group: Processes, choose: Callable[[], tuple[Prepared, ResolvedSettings]], rows: Rows | None
) -> tuple[Prepared, ResolvedSettings]:
    made: list[Prepared] = []

    def prepare() -> tuple[ResolvedSettings, str]:
        data, resolved = choose()
        made.append(data)
        return resolved, data.content_hash

    resolved, content = group.from_first(prepare)
    if not made:
        made.append(make_task(resolved.task).prepare(resolved.data, rows))
        if made[0].content_hash != content:
            raise RunError("the processes read different data: each machine needs the same files")
    return made[0], resolved


def read_step(value: float | bool | None) -> float | str | None:
    """The setting for a step: a number, `auto` for True, nothing for False."""
    return AUTO if value is True else None if value is False or value is None else float(value)


def given_values(**sections: Any) -> dict[str, Any]:
    """Nested settings without those that are None."""
    found: dict[str, Any] = {}
    for name, value in sections.items():
        kept = {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            found[name] = kept
    return found


def set_up(values: Mapping[str, Any], rows: Rows | None = None) -> tuple[Prepared, ResolvedSettings, Trainer]:
    """Prepared data, resolved settings and a trainer that is ready to start; only the cache is written to."""
    values = with_choices(with_task(values, rows), rows)
    # Before the data is read, so that a misspelled setting or a missing device is reported at once.
    settings = draft(values)
    hardware, task = find_hardware(settings), make_task(settings.task)
    data = task.prepare(settings.data, rows)
    preset, size = preset_of(values, type(task)), choose_size(data, has_gpu=hardware.device.type == "cuda")
    settings = draft(with_model_defaults(values, data, size=size), size=size)
    if not has_size(preset):
        unit = "tokens" if isinstance(data.train, TokenStream) else "rows"
        log_info(f"model {settings.preset}, chosen for {len(data.train):,} {unit} on {hardware.device.type}")
    resolved = resolve(settings, data)
    return data, resolved, make_trainer(resolved, data)


def with_task(values: Mapping[str, Any], rows: Rows | None = None) -> dict[str, Any]:
    """The settings with the name of the task: the one that is set, or the one that recognizes the data."""
    for name in ResolvedSettings.model_fields.keys() & values.keys() - {"preset", "task"}:
        if not isinstance(values[name], Mapping):
            raise ConfigError(f"{name} is a section of settings, got {values[name]!r}")
    task = values.get("task", {})
    given = {"name": task} if isinstance(task, str) else dict(require_table(task, "task"))
    if "name" in given:
        description, plain = find_task(given["name"]).description, given["name"].replace("-", " ")
        log_info(f"task {given['name']}" + ("" if description == plain else f": {description}"))
    else:
        config = DataConfig.read(values.get("data", {}), section="data")
        preset = values.get("preset")
        kind = None if not preset else read_model_config(find_preset(str(preset))[1]).input_kind
        given["name"], found = detect_task(config, rows, given=given, input_kind=kind)
        log_info(f"task {given['name']}, by the data: {found.reason}")
        given = {**found.settings, **given}
        if found.columns:
            values = merge_tables(values, {"data": {"columns": list(found.columns)}})
    return {**values, "task": given}


def with_choices(values: Mapping[str, Any], rows: Rows | None = None) -> dict[str, Any]:
    """The settings with those that the task chooses for a sample of the data; the reasons are printed."""
    given = find_task(values["task"]["name"]).Settings.draft(values["task"], section="task")
    data = DataConfig.read(values.get("data", {}), section="data")
    train = TrainConfig.draft(values.get("train", {}), section="train")
    if not isinstance(given, TextSettings) or is_builtin(data):
        return dict(values)
    source = make_task(given).open(data, rows)
    try:
        if isinstance(source, TextSource):
            sample = [(piece.text,) for piece in islice(source.train, _SAMPLE_PIECES)]
            num_characters = sum(len(text) for (text,) in sample)
        elif isinstance(source, Source):
            sample, num_characters = _sample(readable_rows(source.train))
        else:
            return dict(values)
    except DataError:  # which is raised again when the rows are prepared
        return dict(values)
    device = "cuda" if find_device(train.device).type == "cuda" else "cpu"
    chosen = make_task(given).choose(ChoiceContext(sample, num_characters, device, train.minutes))
    if given.embeddings is not None:  # which have a tokenizer
        reasons = {name: reason for name, reason in chosen.reasons.items() if name == "model"}
        chosen = replace(chosen, task={}, reasons=reasons)
    is_model_given = bool(values.get("preset")) or not _allows(values.get("model", {}), chosen.preset)
    for name, reason in chosen.reasons.items():
        if not (name == "model" and is_model_given):
            log_info(f"{name} {reason}")
    preset = {} if chosen.preset is None or is_model_given else {"preset": chosen.preset}
    return merge_tables({"task": dict(chosen.task), **preset}, values)


def _allows(model: Mapping[str, Any], preset: str | None) -> bool:
    """Whether values of the `[model]` section, none of which is the family, are settings of this preset."""
    if preset is None:
        return True
    config = find_family(find_preset(preset)[1]["family"]).Config
    return set(model) <= set(config.model_fields) - {"family"}


def _sample(rows: Iterable[tuple[str, ...]]) -> tuple[list[tuple[str, ...]], int]:
    """Rows at equal distances, since files are often sorted, and the number of characters of all rows."""
    sample: list[tuple[str, ...]] = []
    every, num_characters = 1, 0
    for number, row in enumerate(islice(rows, _MOST_SAMPLED)):
        num_characters += sum(map(len, row))
        if number % every == 0:
            sample.append(row)
        if len(sample) == 2 * _SAMPLE_ROWS:
            sample, every = sample[::2], 2 * every
    return sample, num_characters


def make_trainer(
    settings: ResolvedSettings,
    data: Prepared,
    *,
    folder: Path | None = None,
    is_new: bool = True,
    given: Mapping[str, Any] | None = None,
) -> Trainer:
    """A trainer that is ready to start; where it is not new, its weights are restored right after.

    For a run that exists, `folder` is its folder, and `given` are the settings that the user has named now.
    """
    if settings.train.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError("train.tensorboard needs the extra regard[tensorboard]")
    hardware = find_hardware(settings)
    if settings.train.minutes is not None and settings.train.minutes > _LONG_MINUTES:
        days = settings.train.minutes / 1440
        log_warning(f"the budget is {days:.3g} days of training; it can be interrupted and resumed")
    task = make_task(settings.task, data.codecs)
    if hardware.device.type == "cpu":
        keep_memory()
    torch.manual_seed(settings.train.seed)
    model = task.build(settings.model, settings.head)
    if isinstance(settings.task, TextSettings) and settings.task.embeddings is not None and is_new:
        initialize_embeddings(model, settings.task.embeddings)
    if settings.finetune is not None:
        adapt(model, settings.finetune, base_weights(settings.finetune, folder or Path()))
    log_info(f"{sum(p.numel() for p in model.parameters()):,} parameters on {hardware}")
    tuned, is_generated_outside = settings.finetune, task.architecture == "encoder-decoder"  # of autocast
    is_half = hardware.precision == "bfloat16" and settings.train.sharding == "none"
    if tuned is not None and tuned.is_adapter and is_half and not is_generated_outside:
        halve_frozen_matrices(model)
    model = model.to(hardware.device)
    if isinstance(task, RolloutTask):
        rewards = {
            name: load_reward(
                source,
                folder=folder,
                seconds=task.reward_seconds(),
                device=str(hardware.device),
                is_named=folder is None or name in (given or {}).get("task", {}),
            )
            for name, source in task.reward_sources().items()
        }
        task = task.bind(InitialModel(model), rewards)
    trainer = Trainer(model, task, data, settings, hardware)
    if settings.train.release is not None and is_new:
        trainer.require_releasable()
    return trainer


def start(
    folder: RunFolder,
    data: Prepared,
    settings: ResolvedSettings,
    trainer: Trainer,
    *,
    choices: Sequence[str] = (),
    overwrite: bool = False,
    show_progress: bool = True,
    on_evaluation: OnEvaluation | None = None,
) -> Run:
    """Create the run folder, train, and report; `choices` is what was logged before, for the report."""
    provenance = Provenance(
        version=version(),
        torch=torch.__version__,
        data_hash=data.content_hash,
        num_parameters=sum(p.numel() for p in trainer.model.parameters()),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hardware=f"{trainer.hardware}, {platform.machine()}",
        notes=[*choices, *(note for note in data.notes if note not in choices)],
        columns=list(data.columns),
    )
    if not trainer.processes.is_first:
        return _fit(folder, trainer, data, show_progress, on_evaluation)
    num_checkpoints = settings.train.keep_checkpoints + trainer.is_saved_in_shards  # of which one more is kept
    _require_space(folder, provenance.num_parameters, num_checkpoints)
    _released_scores(folder, trainer)
    with folder.lock():
        folder.require_vacant(overwrite=overwrite)  # another process may have trained here since the first check
        folder.create(settings, provenance, data.codecs, data.held_out, data.train_rows())
        if settings.train.release is not None and (names := read_ledgers(folder.path).unreleased):
            log_warning(
                f"{names[0]} has shown scores on the same validation rows as measured: if they influence what is "
                f"tried, the bound of {settings.train.release[0]} does not hold"
            )
        return _fit(folder, trainer, data, show_progress, on_evaluation)


def resume_run(
    folder: RunFolder,
    changes: Mapping[str, Any] | None = None,
    *,
    rows: Rows | None = None,
    show_progress: bool = True,
    on_evaluation: OnEvaluation | None = None,
) -> Run:
    """Continue training from the newest checkpoint, with other values of the settings that may change."""
    group = processes()
    data, settings = _prepare_together(group, lambda: _continued(folder, changes or {}, rows), rows)
    with folder.lock() if group.is_first else nullcontext():
        is_new = group.from_first(lambda: not checkpoint_paths(folder.checkpoints))
        trainer = make_trainer(settings, data, folder=folder.path, is_new=is_new, given=changes)
        found = load_checkpoint(folder.checkpoints, cut=trainer.cut, group=group)
        if found is None:
            log_info("there is no checkpoint yet: starting from the first step")
        else:
            trainer.restore(*found)
            log_info(f"resuming from step {trainer.progress.step:,}")
        if group.is_first:
            progress = trainer.progress
            folder.rewind(progress.step, progress.num_rollbacks, kept=(progress.best_step, progress.kept_rollbacks))
            folder.write_settings(settings)
        return _fit(folder, trainer, data, show_progress, on_evaluation)


def _continued(folder: RunFolder, changes: Mapping[str, Any], rows: Rows | None) -> tuple[Prepared, ResolvedSettings]:
    """The data and the settings of a run, which must be those that it was begun with but for what may change."""
    before = folder.read_settings()
    # A run that was interrupted within its first steps has a checkpoint, and no figures yet.
    if folder.model_path.exists() and not (folder.metrics_path.exists() or folder.checkpoints.exists()):
        raise RunError(f"{folder.path} was imported or merged, and has no training to resume: fine-tune it")
    settings = ResolvedSettings.read(merge_tables(before.model_dump(), changes))
    _require_same_run(before, settings)
    limits = settings.train
    if limits.max_steps is limits.max_epochs is limits.minutes is None and not settings.is_probe_alone:
        raise ConfigError(f"{folder.settings_path} has no train.max_steps, train.max_epochs or train.minutes: set one")
    task = make_task(settings.task)
    data = task.prepare(settings.data, rows)
    if data.content_hash != folder.read_provenance().data_hash:
        raise RunError(
            f"the data is not what {folder.path} was trained on: its content has changed; restore it, or name another "
            "folder for a new run"
        )
    stored = folder.read_codecs(settings)
    if {name: codec.to_json() for name, codec in data.codecs.items()} != {
        name: codec.to_json() for name, codec in stored.items()
    }:
        raise RunError(f"the codecs are not those that {folder.path} was trained with: data is encoded differently")
    return data, settings


def _released_scores(folder: RunFolder, trainer: Trainer) -> ReleasedScores | None:
    """The record of the run's mechanism; None where scores are shown as they are measured."""
    if (mechanism := trainer.config.mechanism) is None:
        return None
    rows = trainer.data.held_out["valid"]
    return folder.released_scores(mechanism, rows, seed=trainer.config.seed)


def _fit(
    folder: RunFolder, trainer: Trainer, data: Prepared, show_progress: bool, on_evaluation: OnEvaluation | None = None
) -> Run:
    group = trainer.processes
    has_model = group.from_first(folder.model_path.exists)
    saves = group.from_first(lambda: secrets.token_hex(4))  # by which shards that are written together are known

    def save(trainer: Trainer) -> None:
        note, last_good = trainer.progress_note(), trainer.progress.last_good if trainer.config.max_rollbacks else None
        if trainer.is_saved_in_shards:  # rank 0 deletes incomplete checkpoints: the one before must not be among them
            group.each(lambda: writer.wait_for("checkpoint"))
        parts = trainer.shard(saves)
        tensors, shard = (trainer.tensors(), None) if parts is None else parts
        if group.is_first or shard is not None:
            writer.submit(
                "checkpoint",
                tensors,
                lambda tensors: save_checkpoint(
                    folder.checkpoints,
                    note["step"],
                    tensors,
                    note,
                    keep=trainer.config.keep_checkpoints,
                    last_good=last_good,
                    shard=shard,
                ),
            )
        if not has_model and trainer.progress.step:
            save_best(trainer)

    def save_best(trainer: Trainer) -> None:
        nonlocal has_model
        has_model, progress = True, trainer.progress
        note = {"step": progress.step, **({"rollbacks": progress.num_rollbacks} if progress.num_rollbacks else {})}
        tensors = trainer.kept_tensors()
        if group.is_first:
            writer.submit("model", tensors, lambda tensors: write_tensors(folder.model_path, tensors, note))

    def load(step: int) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        group.each(writer.wait)
        found = load_checkpoint(folder.checkpoints, at_most=step, cut=trainer.cut, group=group)
        group.wait()  # until all have read it, nothing is written or deleted
        return found

    def should_stop() -> bool:
        writer.raise_error()
        return bool(interruption)

    def observe(line: Mapping[str, Any]) -> None:
        if not group.is_first:
            return
        progress = trainer.progress
        if progress.num_rollbacks:
            line = {**line, "rollbacks": progress.num_rollbacks}
        if "rolled_back_from" in line:
            folder.rewind(progress.step, progress.num_rollbacks - 1, kept=(progress.best_step, progress.kept_rollbacks))
            folder.add_metrics(line)
            return
        folder.add_metrics(line)
        display.update(line, trainer.used())
        if "valid_loss" in line or "valid_score" in line:
            scores = {"loss": line["valid_loss"]} if "valid_loss" in line else {}
            if "valid_score" in line:
                scores[line["valid_metric"]] = line["valid_score"]
            more = {"release": line["release"]} if "release" in line else {}
            name = weights_name(line["step"], progress.num_rollbacks)
            folder.ledger.add("valid", "training", name, scores, **more)
        elif trainer.config.minutes is None:
            estimate.add(line, trainer.used())
        if tensorboard is not None:
            for name in line.keys() - {"step", "valid_metric", "release", "rollbacks"}:
                tensorboard.add_scalar(name, line[name], line["step"])
        if "valid_loss" in line and line["step"] and on_evaluation is not None:
            on_evaluation(line["step"], line["valid_loss"])

    estimate, record = TimeEstimate(trainer.task.token_unit), _released_scores(folder, trainer)

    def release(digest: str, score: SelectionScore, reference: float | None) -> Release:
        assert record is not None, "the settings have a mechanism"
        return record.release(digest, score.value, reference=reference)

    with (
        listen() as interruption,
        TrainingDisplay(trainer.task.token_unit, is_shown=show_progress and group.is_first) as display,
        _tensorboard(folder, trainer) as tensorboard,
        trainer.hardware.free_threads(),
    ):
        try:
            with BackgroundWriter() as writer:
                outcome = trainer.fit(
                    observe, save=save, save_best=save_best, should_stop=should_stop, load=load,
                    release=None if record is None else release,
                )  # fmt: skip
        except WriteError as error:
            raise WriteError(f"{error}; free some space, then resume {folder.path}") from None
        except RuntimeError as error:
            if not is_out_of_memory(error):
                if group.size > 1 and is_lost_peer(error):
                    raise ProcessError("another process of this run has ended") from error
                raise
            advice = f"a smaller train.batch_tokens than {trainer.config.batch_tokens:,} may help"
            raise DeviceError(f"{trainer.hardware.device} ran out of memory: {advice}") from None
    # A signal that arrives with the last step, after `should_stop` was called, counts as well.
    signals = [each for each in group.gather(interruption.signal) if each is not None]
    if not outcome.is_finished or signals:
        assert signals, "only a signal stops training early"
        raise StoppedError(
            f"stopped at step {outcome.progress.step:,}; the state is saved in {folder.path} and can be resumed",
            signal=signals[0],
        )
    steps = outcome.progress.step
    log_info(
        f"trained {steps:,} {'step' if steps == 1 else 'steps'} in {format_duration(outcome.progress.seconds)}: "
        f"{outcome.reason}; {_describe_kept(outcome.progress.best_step)} kept"
    )
    run = _report(folder, trainer, data) if group.is_first else None
    group.wait()
    return run or Run(folder.path, device=str(trainer.hardware.device))


def _describe_kept(step: int) -> str:
    """Which weights were kept.

    Example:
        >>> _describe_kept(1_200), _describe_kept(0)
        ('weights of step 1,200', 'no step has improved on the first weights, which are')
    """
    return f"weights of step {step:,}" if step else "no step has improved on the first weights, which are"


def _report(folder: RunFolder, trainer: Trainer, data: Prepared) -> Run:
    run = Run(folder.path, device=str(trainer.hardware.device))
    if trainer.config.release is not None:
        return _report_release(run)
    evaluation = run.evaluate_rows(data.held_out["valid"][:REPORT_ROWS])
    run.record("valid", "report", evaluation)
    baseline = _baseline(run, trainer, data, evaluation)
    folder.write_baseline(baseline)
    path = write_run_report(run, evaluation, training=data)
    if baseline is not None and not baseline.is_beaten:
        advice = f"; most likely to help: {', '.join(baseline.advice)}" if baseline.advice else ""
        log_warning(f"{baseline.sentence}{advice}")
    if failure := describe_failure(run, evaluation, baseline):
        log_warning(failure)
    headline = evaluation.scores[evaluation.headline]
    rows = f" ({format_count(len(evaluation.rows), 'row')})" if evaluation.has_rows else ""
    log_info(f"validation {score_label(headline.name)}{rows}: {headline.format_value()}")
    if baseline is not None and baseline.is_beaten:
        log_info(baseline.sentence)
    log_info(f"report: {path}")
    return run


def _report_release(run: Run) -> Run:
    """Report what was released of the kept weights: they are not evaluated again."""
    candidate = run.candidate()
    evaluated = [line for line in run.folder.read_ledger() if line["event"] == TRAINING]
    line = next(line for line in reversed(evaluated) if line["candidate"] == candidate)
    release, (metric,) = line["release"], line["scores"]
    rows, signature = release["examples"], make_signature({"n": release["examples"], "release": release["mechanism"]})
    scores = {metric: {"value": release["value"], "interval": None, "signature": signature}, "rows": rows}
    run.folder.ledger.add("valid", "report", candidate, scores, rows=rows, headline=metric, release=release)
    path = write_released_report(run, metric)
    log_info(f"released {describe_release(metric, release)}")
    log_info(f"report: {path}")
    return run


def _baseline(run: Run, trainer: Trainer, data: Prepared, evaluation: Evaluation) -> BaselineResult | None:
    """The baseline's result on the rows of an evaluation, and what may help where the model is not better."""
    if not trainer.config.baseline:
        return None
    found = (
        compare_with_base(run, evaluation)
        if run.task.needs_base
        else compare_with_baseline(run.task, data, evaluation.rows, [evaluation.examples], evaluation.headline)
    )
    if found is None or found.is_beaten:
        return found
    num_scored = len(evaluation.rows) if run.task.has_targets and found.verdict == "not significant" else None
    advice = advise(
        run.settings, run.task, data, used=trainer.used(), num_scored=num_scored, is_perfect=found.is_perfect
    )
    return replace(found, advice=advice)


def _require_same_run(before: ResolvedSettings, after: ResolvedSettings) -> None:
    old, new = (flatten(settings.model_dump()) for settings in (before, after))
    free = [f"{section}.{name}" for section, names in _MAY_CHANGE.items() for name in names]
    for name, value in new.items():
        if value != old.get(name) and name not in free:
            raise ConfigError(
                f"a resumed run keeps its settings, but {name} is {value!r} and was {old.get(name)!r}; "
                f"only {', '.join(free)} may change"
            )


def _suggest_finetuning(settings: ResolvedSettings, task: Task[Any], num_rows: int) -> None:
    """Log the command that fine-tunes an imported encoder, where there is one and rows are texts with labels."""
    if task.head_kind != "labels":
        return
    bases = (folder for folder in imported_runs() if find_task(folder.read_settings().task.name).head_kind == "vector")
    if (base := next(bases, None)) is None:
        return
    data = settings.data
    chosen = {"--columns": ",".join(data.columns or []), "--encoding": data.encoding}
    options = [word for name, value in chosen.items() if value for word in (name, value)]
    command = shlex.join(["regard", "finetune", str(base.path), *data.train, *options])
    if IN_MEMORY in data.train:
        command = f"regard.finetune({str(base.path)!r}, rows)"
    size = min(_TUNED_SCORES, key=lambda size: abs(math.log(size / max(1, num_rows))))
    tuned, scratch = _TUNED_SCORES[size]
    log_info(
        f"fine-tuning {base.path} is likely to give a better model (accuracy on SST-2 with {size:,} rows: fine-tuned "
        f"MiniLM {tuned:.2f}, an LSTM alone {scratch:.2f}): {command}"
    )


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with names such as `train.seed`."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return result


def _require_space(folder: RunFolder, num_parameters: int, num_checkpoints: int) -> None:
    """The checkpoints of four numbers a parameter, one to return to and one that is being written, and the model."""
    needed = num_parameters * 4 * (4 * (num_checkpoints + 2) + 1)
    existing = next(parent for parent in (folder.path, *folder.path.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DeviceError(
            f"not enough disk space at {existing}: checkpoints need {needed / 2**20:,.0f} MiB, "
            f"{free / 2**20:,.0f} MiB are free"
        )


def new_run_path(paths: Sequence[str]) -> Path:
    """A new folder under `runs/`, named for the data."""
    stem = (Path(paths[0]).absolute().name.split(".")[0] if paths else "") or "run"
    names = (Path("runs") / (stem if number == 1 else f"{stem}-{number}") for number in range(1, 10_000))
    return next(path for path in names if not os.path.exists(path))


def as_list(value: str | Sequence[str] | None) -> list[str] | None:
    """One path or several, as a list."""
    return [str(value)] if isinstance(value, str | os.PathLike) else None if value is None else [str(v) for v in value]


def _tensorboard(folder: RunFolder, trainer: Trainer) -> AbstractContextManager[Any]:
    if not (trainer.config.tensorboard and trainer.processes.is_first):
        return nullcontext()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder.tensorboard_path), purge_step=trainer.progress.step + 1)


class TimeEstimate:
    """Logs the expected time of a run, once its first steps were measured; `unit` is what speed counts."""

    def __init__(self, unit: str = "tokens") -> None:
        self._unit = unit
        self._first: tuple[Mapping[str, Any], float] | None = None
        self._is_logged = False

    def add(self, line: Mapping[str, Any], used: float) -> None:
        """Take in the figures of some steps; `used` is the share of the budget that is used after them."""
        if self._first is None:  # the steps before are slower
            self._first = line, used
        first, used_before = self._first
        num_steps, seconds = line["step"] - first["step"], line["seconds"] - first["seconds"]
        if self._is_logged or (num_steps < _MEASURED_STEPS and seconds < _MEASURED_SECONDS) or used <= used_before:
            return
        self._is_logged = True
        total = first["seconds"] + (1.0 - used_before) * seconds / (used - used_before)
        log_info(
            f"expected: at most about {format_duration(total)}, at {line['tokens_per_second']:,.0f} {self._unit}/s, "
            f"measured over the first {line['step']:,} steps"
        )


class TrainingDisplay:
    """Displays training figures on stderr: a live line in a terminal, plain lines elsewhere.

    `unit` is what the speed counts.
    """

    def __init__(self, unit: str = "tokens", *, is_shown: bool = True) -> None:
        self._unit = unit
        console = Console(stderr=True)
        self._is_shown, self._is_live = is_shown, is_shown and console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._is_live,
        )
        self._figures: dict[str, Any] = {}
        self._bar = self._progress.add_task("training", total=1.0)
        self._last_plain = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, line: Mapping[str, Any], used: float) -> None:
        """Display new figures; `used` is the share of the budget that is used."""
        self._figures.update(line)
        if "valid_loss" in line:
            self._figures["valid_step"] = line["step"]
        self._progress.update(self._bar, completed=used, description=self.text())
        is_time = time.monotonic() - self._last_plain > _PLAIN_SECONDS
        if self._is_shown and not self._is_live and is_time:
            self._last_plain = time.monotonic()
            log_info(f"{self.text()} · {100 * used:.0f} %")

    def text(self) -> str:
        """The newest figures in one line; those of validation with their step."""
        figures = self._figures
        parts = [f"step {figures['step']:,}"]
        if "loss" in figures:
            parts.append(f"loss {figures['loss']:.3f}")
        if "valid_loss" in figures:
            metric = find_metric(figures["valid_metric"]) if "valid_score" in figures else None
            score = "" if metric is None else f", {metric.in_text} {metric.format(figures['valid_score'])}"
            parts.append(f"validation loss {figures['valid_loss']:.3f}{score} at step {figures['valid_step']:,}")
        elif "release" in figures:
            parts.append(f"{describe_release(figures['valid_metric'], figures['release'])}")
        if "tokens_per_second" in figures:
            parts.append(f"{figures['tokens_per_second']:,.0f} {self._unit}/s")
        return " · ".join(parts)
