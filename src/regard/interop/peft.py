"""LoRA adapters of peft: `adapter_config.json` and `adapter_model.safetensors`.

The files name the layers as the base model of Hugging Face does. `read_peft` and
`write_peft` take the names of layers as a table from ours to theirs, such as
`module_names` returns, or as a function.
"""

import copy
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from regard.adapters.lora import (
    LoraConfig,
    adapted_layers,
    add_lora,
    linear_layers,
    load_lora,
    lora_tensors,
    require_lora_settings,
)
from regard.errors import CheckpointError, ConfigError
from regard.files import load_json, require_inside, write_atomically
from regard.interop.hf.architectures import ARCHITECTURES, nearest_architecture
from regard.interop.hf.config import ConfigFields
from regard.interop.hf.reading import hash_files, read_pooling
from regard.interop.hf.sentences import (
    SENTENCE_FILES,
    read_dense_layers,
    read_sentence_head,
    sentence_files,
    uses_sentence_layout,
    write_dense_layers,
)
from regard.interop.hf.tokenizer import tokenizer_files
from regard.interop.hf.weights import ForeignWeight
from regard.interop.hf.writing import HFModel, as_hf_model, head_names, head_tensors, read_head, write_json_files
from regard.interop.importing import Importer
from regard.interop.model import (
    TOKENIZER_FILES,
    ExportableModel,
    Exporter,
    ImportedAdapter,
    ImportedModel,
    with_position_tables,
)
from regard.models.transformer import Transformer
from regard.models.transformer.config import TransformerConfig
from regard.training.checkpoints import copy_weights, weights_of

ModuleNames = Mapping[str, str] | Callable[[str], str]
"""For each linear layer of ours, its name in the base model of Hugging Face."""

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_BODY_PREFIXES = ("bert.", "roberta.", "")
"""Prefixes of an encoder's names: those of the model that it is part of, or none if it is the whole model."""
_PARTS = {"a": "lora_A.weight", "b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
_TASK_TYPES: dict[str, str] = {
    "next-token": "CAUSAL_LM", "target-tokens": "SEQ_2_SEQ_LM", "labels": "SEQ_CLS", "number": "SEQ_CLS",
    "tags": "TOKEN_CLS", "spans": "QUESTION_ANS", "vector": "FEATURE_EXTRACTION",
}  # fmt: skip
_HEADS: dict[str, str] = {"SEQ_CLS": "labels", "TOKEN_CLS": "tags", "QUESTION_ANS": "spans"}
"""The head that an adapter contains, by its `task_type`."""
_READ = {"peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "bias", "init_lora_weights"}
# Fields on the origin of an adapter, or on the layers that it adapts, which follow from its tensors.
_IGNORED = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
    "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "lora_ga_config", "megatron_config",
    "megatron_core", "modules_to_save", "peft_version", "qalora_group_size", "revision", "runtime_config",
    "target_modules", "task_type",
}  # fmt: skip
_UNCHANGED_BASE = {True, False, "gaussian", "eva", "orthogonal"}
"""Initializations of an adapter that do not change the weights of its base."""


class PeftAdapter(NamedTuple):
    """An adapter for a given model."""

    config: LoraConfig
    tensors: dict[str, Tensor]
    """For `load_lora`."""
    others: dict[str, Tensor]
    """Weights of modules that were trained in full, such as a head, in the names of Hugging Face."""


class FittedAdapter(NamedTuple):
    """An imported adapter in the names of its base."""

    architecture: str
    """The architecture of Hugging Face that the base fits."""
    adapter: PeftAdapter
    hf_config: dict[str, Any]


def module_names(names: Mapping[str, ForeignWeight]) -> dict[str, str]:
    """The names of layers that are one layer on both sides.

    Example:
        >>> from regard.interop.hf.weights import layer_names
        >>> module_names(layer_names(1, "blocks.{}.", "h.{}.", {"attention.query": "attn.q"}))
        {'blocks.0.attention.query': 'h.0.attn.q'}
    """
    return {
        ours.removesuffix(".weight"): weight.name.removesuffix(".weight")
        for ours, weight in names.items()
        if ours.endswith(".weight") and weight.part is None
    }


def write_peft(
    folder: str | os.PathLike[str],
    model: nn.Module,
    config: LoraConfig,
    names: ModuleNames,
    *,
    base_name: str | None = None,
    task_type: str | None = None,
    others: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the adapter of a model for peft.

    Args:
        folder: Created if it does not exist.
        model: The model that `add_lora` adapted with `config`.
        config: The settings of the adapter; the quantization of frozen weights is not written.
        names: The names of the layers in the base model of Hugging Face.
        base_name: Where peft finds that base model.
        task_type: The `task_type` of peft.
        others: Weights of modules that were trained in full, such as a head, in the names of Hugging Face.
    """
    require_lora_settings(model, config)
    tensors: dict[str, Tensor] = {}
    modules: dict[str, str] = {}
    for name, tensor in lora_tensors(model).items():
        ours, _, part = name.rpartition(".")
        theirs = _foreign_name(names, ours)
        if modules.setdefault(theirs, ours) != ours:
            raise ConfigError(f"layers that are one layer in the base cannot be written: {modules[theirs]} and {ours}")
        tensors[f"{_PREFIX}{theirs}.{_PARTS[part]}"] = tensor
    tensors |= {f"{_PREFIX}{name}": tensor for name, tensor in (others or {}).items()}
    values = {
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if config.alpha.is_integer() else config.alpha,
        "lora_dropout": config.dropout,
        "use_rslora": config.rank_stabilized,
        "use_dora": config.dora,
        "bias": "none",
        "target_modules": sorted(modules),
        "modules_to_save": sorted({name.rpartition(".")[0] for name in others or {}}) or None,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(folder / _TENSORS, save(on_cpu, metadata={"format": "pt"}))
    write_atomically(folder / _CONFIG, (json.dumps(values, indent=2) + "\n").encode())


def read_peft(folder: str | os.PathLike[str], model: nn.Module, names: ModuleNames) -> PeftAdapter:
    """Read an adapter of peft for `model`, which is not changed.

    Pass the config to `add_lora` and the tensors to `load_lora`. The files do not
    contain a hash of the base: that `model` is the right one cannot be checked.
    """
    values, tensors = _read_files(Path(folder))
    return _fit(ImportedAdapter(settings=_lora_values(values), tensors=tensors), model, names)


def read_adapter(folder: Path) -> ImportedModel:
    """Read the files of an adapter in their own names; `fit_adapter` converts them for a base."""
    values, tensors = _read_files(folder)
    described, layers = read_sentence_head(folder)
    tensors |= layers
    head = _head("SEQ_CLS" if layers else values.get("task_type"), tensors)
    labels = len(tensors["classifier.weight"]) if head in ("labels", "tags") else 0
    names = described.get("id2label", {})
    return ImportedModel(
        name=folder.resolve().name,
        architecture="LoRA adapter",
        content_hash=hash_files([folder / _TENSORS]),
        head=head,
        labels=tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(labels)),
        pooling=read_pooling(folder) if layers else None,
        adapter=ImportedAdapter(settings=_lora_values(values), tensors=tensors),
    )


PEFT = Importer(
    name="peft",
    description=f"a LoRA adapter of peft, a folder with {_CONFIG} and {_TENSORS}",
    recognizes=lambda path: (path / _CONFIG).is_file(),
    read=read_adapter,
)


def fit_adapter(adapter: ImportedAdapter, base: TransformerConfig, vocab_size: int) -> FittedAdapter:
    """Convert an adapter to the names of a base with this config.

    Raises:
        ConfigError: If no architecture of Hugging Face fits the base.
        CheckpointError: If the adapter has layers that the base does not have.
    """
    architecture, hf_config = nearest_architecture(with_position_tables(base))
    with torch.device("meta"):
        body = Transformer(base, vocab_size)
    layers = module_names(ARCHITECTURES[architecture].weight_names(hf_config))
    first_error: CheckpointError | None = None
    for prefix in _BODY_PREFIXES if architecture == "BertModel" else ("",):
        names = {ours: re.sub(r"^bert\.", prefix, theirs) for ours, theirs in layers.items()}
        try:
            return FittedAdapter(architecture, _fit(adapter, body, names), hf_config)
        except CheckpointError as error:
            first_error = first_error or error
    assert first_error is not None, "some names were tried"
    raise first_error


def load_adapter(model: ExportableModel, fitted: FittedAdapter) -> None:
    """Load an adapter and its head into a model that is adapted in these layers."""
    load_lora(model.body, fitted.adapter.tensors)
    if fitted.adapter.others:
        _load_head(model, model.model, fitted.adapter.others, fitted.hf_config)


def write_adapter(model: ExportableModel, folder: Path) -> str:
    """Write the adapter of a model that is not merged, and the head that was trained with it."""
    if model.lora is None:
        raise ConfigError("finetune.method must be lora for peft: the run has no adapter")
    if model.spec.head not in _TASK_TYPES:
        raise ConfigError(f"peft needs a model with one of the heads {', '.join(_TASK_TYPES)}, got {model.spec.head}")
    hf_model, is_layered = as_hf_model(model), uses_sentence_layout(model.spec)
    write_peft(
        folder,
        model.body,
        model.lora,
        _layers(hf_model),
        base_name=model.base_name,
        task_type=_TASK_TYPES["vector" if is_layered else model.spec.head],
        others=head_tensors(model, hf_model),
    )
    if is_layered:
        write_dense_layers(model, folder)
        write_json_files(folder, {"config.json": hf_model.config, **tokenizer_files(model), **sentence_files(model)})
    return f"an adapter for {hf_model.architecture}"


def peft_outputs(model: ExportableModel, folder: Path) -> tuple[Tensor, Tensor]:
    """The outputs of the model with the adapter in a folder, and those of the model that it was written from."""
    hf_model, adapted = as_hf_model(model), copy.deepcopy(model.model)
    body = adapted if model.body is model.model else adapted.get_submodule("body")
    for name, layer in adapted_layers(body).items():
        body.set_submodule(name, layer.base)
    found = read_peft(folder, body, _layers(hf_model))
    add_lora(body, found.config)
    load_lora(body, found.tensors)
    if uses_sentence_layout(model.spec):
        own = {name: weight for name, weight in weights_of(adapted).items() if name.startswith("head.")}
        copy_weights(own, read_dense_layers(model, folder))
    else:
        _load_head(model, adapted, found.others, hf_model.config)
    return model.outputs(adapted.eval(), is_scaled=True), model.outputs()


def _fit(adapter: ImportedAdapter, model: nn.Module, names: ModuleNames) -> PeftAdapter:
    tensors = dict(adapter.tensors)
    found: dict[str, Tensor] = {}
    targets: list[str] = []
    for ours in linear_layers(model):
        theirs = names.get(ours) if isinstance(names, Mapping) else names(ours)
        parts = {part: tensors.pop(f"{theirs}.{name}", None) for part, name in _PARTS.items()}
        found |= {f"{ours}.{part}": tensor for part, tensor in parts.items() if tensor is not None}
        targets += [ours] if parts["a"] is not None else []
    if left := sorted(name for name in tensors if ".lora_" in name):
        raise CheckpointError(f"the adapter adapts layers that the model does not have: {', '.join(left[:3])}")
    if not targets:
        raise CheckpointError("the adapter adapts no layer of the model")
    config = LoraConfig.read({**adapter.settings, "targets": targets}, section="adapter")
    return PeftAdapter(config, found, tensors)


def _lora_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `LoraConfig` without its targets."""
    if values.get("peft_type") != "LORA":
        raise ConfigError(f"peft_type must be LORA to be imported, got {values.get('peft_type')}")
    start = values.get("init_lora_weights", True)
    if not isinstance(start, bool | str) or start not in _UNCHANGED_BASE:
        raise ConfigError(f"init_lora_weights = {start!r} changes the weights of the base, which cannot be imported")
    if values.get("bias", "none") != "none":
        raise ConfigError(f"trained biases cannot be imported, got bias = {values['bias']!r}")
    for name, value in values.items():
        if value and name not in _READ | _IGNORED:
            raise ConfigError(f"the setting {name} of peft cannot be imported, got {name} = {value!r}")
    fields = ConfigFields(values, name=_CONFIG)
    return {
        "rank": values.get("r"),
        "alpha": fields.number("lora_alpha", 8),
        "dropout": fields.number("lora_dropout", 0.0),
        "rank_stabilized": values.get("use_rslora", False),
        "dora": values.get("use_dora", False),
    }


def _read_files(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    for name in (_CONFIG, _TENSORS):
        require_inside(folder / name, folder)
    try:
        values = load_json((folder / _CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / _TENSORS)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not an adapter of peft: it has no {Path(error.filename).name}") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"the adapter in {folder} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{folder / _CONFIG} must contain an object, got {type(values).__name__}")
    return values, {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}


def _head(task_type: Any, tensors: Mapping[str, Tensor]) -> str | None:
    """The head that an adapter contains, if it contains more than low-rank corrections."""
    if all(".lora_" in name for name in tensors):
        return None
    if task_type not in _HEADS:
        raise CheckpointError(
            f"the task_type of an adapter with a head must be one of {', '.join(_HEADS)}, got {task_type}"
        )
    head = _HEADS[task_type]
    if head != "spans" and "classifier.weight" not in tensors:
        raise CheckpointError(f"the adapter has a head without classifier.weight, which {task_type} requires")
    return "number" if head == "labels" and len(tensors["classifier.weight"]) == 1 else head


def _load_head(
    exported: ExportableModel, model: nn.Module, others: Mapping[str, Tensor], hf_config: Mapping[str, Any]
) -> None:
    """Load the head of an adapter; any other weight is an error."""
    own = {name: weight for name, weight in weights_of(model).items() if name.startswith("head.")}
    names = head_names(exported.spec.head, hf_config) if own else {}
    if unexpected := sorted(others.keys() - {weight.name for weight in names.values()}):
        raise CheckpointError(f"the adapter has weights that the model does not have: {', '.join(unexpected[:3])}")
    if own:
        copy_weights(own, read_head(exported, others, hf_config))


def _layers(hf_model: HFModel) -> dict[str, str]:
    return {ours.removeprefix("body."): theirs for ours, theirs in module_names(hf_model.weight_names).items()}


def _foreign_name(names: ModuleNames, ours: str) -> str:
    if not isinstance(names, Mapping):
        return names(ours)
    if ours not in names:
        raise ConfigError(f"{ours} has no counterpart in the base and cannot be written")
    return names[ours]


PEFT_EXPORTER = Exporter(
    name="peft",
    write=write_adapter,
    outputs=peft_outputs,
    files=(_CONFIG, _TENSORS, "config.json", *TOKENIZER_FILES, *SENTENCE_FILES),
)
