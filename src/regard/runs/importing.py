"""Importing: a pretrained model of another library becomes a run folder, and from then on is a run like any other.

The folder has what training writes: settings, tokenizer, weights, and a chat
template, if the model has one. Everything is read and checked before the first
byte is written.
"""

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from regard.data.codecs.codec import Codec
from regard.data.codecs.text import TextCodec
from regard.errors import BaseMissingError, ConfigError, RunError
from regard.files import write_atomically
from regard.interop.importing import errors_with_path, read_model
from regard.interop.model import ImportedModel
from regard.interop.peft import fit_adapter, load_adapter
from regard.logging import log_info
from regard.models.transformer import TransformerConfig
from regard.runs.export import exportable_model
from regard.runs.folder import IMPORTED, RunFolder
from regard.runs.run import Run
from regard.tasks.registry import make_task, task_for_head
from regard.tasks.task import ImportedCodecs
from regard.training.checkpoints import hash_of, trained_weights, write_tensors
from regard.training.finetuning import adapt, base_weights
from regard.training.settings import Provenance, ResolvedSettings
from regard.version import version

_STAGED = "imported.safetensors"
_MAX_LENGTH, _WINDOW = 512, 1_024
"""The most tokens of a text, and of a window of running text, if the model can read as many."""
_TRAINING: dict[str, Any] = {
    "max_epochs": 3.0,
    "batch_tokens": 4_096,
    "optimizer": "adamw",
    "learning_rate": 5e-5,
    "schedule": "linear",
    "warmup_steps": 100,
    "beta2": 0.999,
    "weight_decay": 0.01,
    "label_smoothing": 0.0,
    "ema_decay": 0.0,
}
"""The training settings of an imported run, from the ranges for fine-tuning in Devlin et al. (2018), A.3."""


def import_model(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    base: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the model at `path` as a run folder and return the folder.

    Args:
        path: A Hugging Face folder, a GGUF file, a llama2.c file with its `tokenizer.bin` in the same folder, a LoRA
            adapter of peft, or whatever an installed importer recognizes.
        out: The run folder to create.
        format: The name of the importer; by default the one that recognizes `path`.
        base: The run folder that an adapter was trained on.
        overwrite: Replace a run in `out`.
    """
    path, folder = Path(path), RunFolder(out)
    folder.require_vacant(overwrite=overwrite)
    imported = read_model(path, format=format)
    if imported.adapter is not None:
        with errors_with_path(path):
            _import_adapter(imported, folder, base)
    elif base is not None:
        raise ConfigError(f"a base is only for an adapter, {path} is a whole model")
    else:
        write_imported(imported, folder)
    return folder.path


def load_pretrained(path: str | os.PathLike[str], *, device: str = "auto") -> Run:
    """Load a pretrained model, to predict with it or to use its parts in one's own training loop.

    Args:
        path: A run folder, or whatever `import_model` takes; a foreign model is converted in a temporary folder.
        device: auto, cpu, cuda or cuda:N.

    Example:
        run = regard.load_pretrained("all-MiniLM-L6-v2")
        run.model, run.tokenizer
    """
    if RunFolder(path).exists:
        return Run(path, device=device)
    with TemporaryDirectory() as folder:
        run = Run(import_model(path, Path(folder) / Path(path).name), device=device)
        _ = run.model  # read while its file exists
    return run


def write_imported(imported: ImportedModel, folder: RunFolder) -> None:
    """Write a model as a run folder."""
    assert imported.config is not None, "only an adapter has no config"
    notes = [f"imported from {imported.name} ({imported.architecture})", *imported.notes]
    task = task_for_head(imported.head)
    limit = imported.context_length or _WINDOW
    own = task.imported_settings(
        max_length=min(limit, imported.max_length or _MAX_LENGTH), window=max(2, min(limit, _WINDOW))
    )
    image = {} if imported.image is None else {"image": imported.image.model_dump()}
    values = {
        "task": {"name": task.name, **own, **image},
        "preset": imported.model_type,
        "model": imported.config.model_dump(),
        "head": {"pooling": imported.pooling or "mean", **({"dropout": 0.0} if image else {})},
        "data": {},
        "train": _TRAINING,
    }
    provenance = _provenance(notes, imported.content_hash, sum(w.numel() for w in imported.weights.values()))
    codecs = task.imported_codecs(ImportedCodecs(imported.tokenizer, imported.labels, imported.image))
    _write(folder, ResolvedSettings.read(values), provenance, codecs, imported.weights, imported.chat_template)


def _import_adapter(imported: ImportedModel, folder: RunFolder, base: str | os.PathLike[str] | None) -> None:
    if base is None:
        raise BaseMissingError(f"{imported.name} is an adapter: name its base, the run folder of the model it adapts")
    base_folder = RunFolder(base)
    if base_folder.path.absolute() == folder.path.absolute():
        raise RunError(f"{folder.path} is the base: choose another folder")
    before = base_folder.read_settings()
    if before.finetune is not None and before.finetune.is_adapter:
        raise RunError(f"{base_folder.path} contains only an adapter: choose a run with all weights, such as its base")
    codecs = base_folder.read_codecs(before)
    text = codecs.get("text")
    if not isinstance(text, TextCodec):
        raise RunError(f"an adapter needs a model of text, and {base_folder.path} has no tokenizer")
    assert imported.adapter is not None, "it is an adapter"
    if not isinstance(before.model, TransformerConfig):
        raise RunError(f"an adapter needs a Transformer, and {base_folder.path} has the family {before.model.family}")
    fitted = fit_adapter(imported.adapter, before.model, text.tokenizer.vocab_size)
    settings, codecs = _adapter_settings(imported, before, codecs)
    settings = settings.changed(
        finetune={
            "base": os.path.relpath(base_folder.path.absolute(), folder.path.absolute()),
            "base_hash": hash_of(base_folder.model_path),
            "method": "lora",
            "lora": fitted.adapter.config.model_dump(),
        }
    )
    task = make_task(settings.task, codecs)
    model = task.build(settings.model, settings.head)
    assert settings.finetune is not None, "it was just set"
    # The folder does not exist yet, so a path relative to it leads nowhere.
    located = settings.finetune.changed(base=str(base_folder.path.absolute()))
    adapt(model, settings.finetune, base_weights(located, folder.path))
    load_adapter(exportable_model(settings, task, model), fitted)
    rank = fitted.adapter.config.rank
    notes = [
        f"imported from {imported.name}, an adapter of rank {rank} for {fitted.architecture}",
        f"the files of the adapter do not identify its base: that it is {base_folder.path.name} is not checked",
    ]
    provenance = _provenance(notes, "", sum(parameter.numel() for parameter in model.parameters()))
    template = base_folder.read_chat_template()
    _write(folder, settings, provenance, codecs, trained_weights(model), template)


def _adapter_settings(
    imported: ImportedModel, base: ResolvedSettings, codecs: Mapping[str, Codec]
) -> tuple[ResolvedSettings, dict[str, Codec]]:
    """The settings and codecs of the base, with the head that the adapter contains, if it contains one."""
    if imported.head is None:
        return base, dict(codecs)
    task = task_for_head(imported.head)
    is_pooled = imported.head in ("labels", "number")
    text = codecs["text"]
    assert isinstance(text, TextCodec), "an adapter is for a model of text"
    found = task.imported_codecs(ImportedCodecs(text.tokenizer, imported.labels))
    limit = getattr(base.task, "max_length", _MAX_LENGTH)
    own = {"name": task.name, **task.imported_settings(max_length=limit, window=limit)}
    assert imported.adapter is not None, "it is an adapter"
    # BERT's own head, or one on the pooling that the adapter names, with or without a hidden layer.
    has_hidden = imported.pooling is None or any("pooler" in name for name in imported.adapter.tensors)
    pooling = {"pooling": imported.pooling or "first"} if is_pooled else {}
    head = {**base.head.model_dump(), "hidden_layer": is_pooled and has_hidden, **pooling}
    return base.changed(task=own, head=head), found


def _provenance(notes: list[str], content_hash: str, num_parameters: int) -> Provenance:
    for note in notes:
        log_info(note)
    return Provenance(
        version=version(),
        torch=torch.__version__,
        data_hash=content_hash,
        num_parameters=num_parameters,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hardware=IMPORTED,
        notes=notes,
    )


def _write(
    folder: RunFolder,
    settings: ResolvedSettings,
    provenance: Provenance,
    codecs: Mapping[str, Codec],
    weights: Mapping[str, Tensor],
    template: str | None,
) -> None:
    """Write all files, the large one first: if the disk is full, an existing run is unchanged."""
    is_new = not folder.path.exists()
    staged = folder.path / _STAGED
    with folder.lock():
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            write_tensors(staged, weights, {"step": 0})
            folder.create(settings, provenance, codecs, {})
            os.replace(staged, folder.model_path)
            if template is not None:
                write_atomically(folder.chat_template_path, template.encode())
        except BaseException as error:
            staged.unlink(missing_ok=True)
            if is_new:
                shutil.rmtree(folder.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise RunError(f"cannot write a run to {folder.path}: {error.strerror or error}") from None
            raise
