"""An adapter that peft wrote, as a run with LoRA on a base that is a run already."""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.adapters.lora import load_lora
from regard.errors import CheckpointError, RunError
from regard.interop.hf_adapters import load_head
from regard.interop.hf_writing import nearest_architecture
from regard.interop.peft import PeftAdapter, module_names, read_peft
from regard.interop.shapes import SHAPES
from regard.interop.trained import Trained, with_tables
from regard.logging import log_info
from regard.models.transformer import Transformer
from regard.models.transformer_config import TransformerConfig
from regard.tasks import find_task
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoints import hash_of, trained_weights
from regard.training.finetuning import adapt, base_weights
from regard.training.folder import RunFolder
from regard.training.settings import Record, RunSettings
from regard.version import version

ADAPTER = "adapter_config.json"
"""By which the folder of an adapter is known."""
_HEADS = {"SEQ_CLS": "classification", "TOKEN_CLS": "tagging", "QUESTION_ANS": "answering"}
"""What the head that came along is for, by what peft calls it."""
_PREFIXES = ("bert.", "roberta.", "")
"""What the names of an encoder begin with: that of the model it is part of, or nothing where it stands alone."""


def read_adapter_run(path: Path, base_folder: RunFolder) -> tuple[RunSettings, Tokenizer, dict[str, Tensor]]:
    """The settings, the tokenizer and the weights of a run that has the adapter at `path` on a base."""
    base = base_folder.path
    before, tokenizer = base_folder.read_settings(), base_folder.read_tokenizer()
    if before.finetune is not None and before.finetune.is_adapter:
        raise RunError(f"{base} holds an adapter alone: name a run that holds all weights, such as its base")
    if not isinstance(before.model, TransformerConfig):
        raise RunError(f"adapters of peft are for Transformers, {base} is of the family {before.model.family}")
    architecture, config = nearest_architecture(with_tables(before.model))
    found = _read(path, before.model, tokenizer, architecture, config)
    settings = _settings(found, before, base_folder)
    task, tuned = find_task(settings.task), settings.finetune
    assert tuned is not None, "it was just set"
    model = task.build_model(settings.model, tokenizer, data=settings.data, head=settings.head)
    adapt(model, tuned, base_weights(tuned))
    load_lora(model.get_submodule("body") if hasattr(model, "body") else model, found.tensors)
    if found.others:
        load_head(Trained(path.name, settings, tokenizer, model), model, found.others, config)
    note = f"imported from {path.resolve().name}, an adapter for {architecture} of rank {found.config.rank}"
    doubt = f"whether {base_folder.path.name} has the weights that it was trained beside, its files do not say"
    for line in (note, doubt):
        log_info(line)
    record = Record(
        version=version(),
        torch=torch.__version__,
        data_hash="",
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        hardware="none: imported",
        notes=[note, doubt],
    )
    return settings.changed(record=record.model_dump()), tokenizer, trained_weights(model)


def _read(
    path: Path, shape: TransformerConfig, tokenizer: Tokenizer, architecture: str, config: Mapping[str, Any]
) -> PeftAdapter:
    """The adapter, by the names that fit it."""
    with torch.device("meta"):
        body = Transformer(shape, tokenizer.vocab_size)
    layers = module_names(SHAPES[architecture].names(config))
    prefixes = _PREFIXES if architecture == "BertModel" else ("",)
    first: CheckpointError | None = None
    for prefix in prefixes:
        try:
            return read_peft(path, body, {ours: re.sub(r"^bert\.", prefix, theirs) for ours, theirs in layers.items()})
        except CheckpointError as error:
            first = first or error
    assert first is not None, "some names were tried"
    raise first


def _settings(found: PeftAdapter, before: RunSettings, base: RunFolder) -> RunSettings:
    """Those of a run that was fine-tuned from the base; what its labels are called peft's files do not say."""
    task, data, head = before.task, before.data, before.head
    if found.others:
        if found.task_type not in _HEADS:
            known = ", ".join(_HEADS)
            raise CheckpointError(
                f"the adapter brings a head, and its task_type must be one of {known} to say what for, "
                f"got {found.task_type}"
            )
        task = _HEADS[found.task_type]
        num_labels = len(found.others["classifier.weight"]) if "classifier.weight" in found.others else 0
        if task != "answering" and not num_labels:
            raise CheckpointError("the adapter brings a head without classifier.weight, which its task_type asks for")
        if task == "classification":
            task = "regression" if num_labels == 1 else task
            head = head.changed(pooling="first", hidden=True)
        else:
            head = head.changed(hidden=False)
        data = data.changed(labels=[f"LABEL_{number}" for number in range(num_labels)])
    tuned = {
        "base": str(base.path.absolute()),
        "base_hash": hash_of(base.model_path),
        "method": "lora",
        "lora": found.config.model_dump(),
    }
    return before.changed(task=task, data=data.model_dump(), head=head.model_dump(), finetune=tuned)
