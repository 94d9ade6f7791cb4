"""Adapters in the layout of peft: `adapter_config.json` and `adapter_model.safetensors`.

The layers of a model have other names there, which the caller says: a table from
ours to theirs, such as `module_names` makes of the names of weights, or a function.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from regard.adapters.lora import LoraConfig, linear_layers, lora_tensors, require_settings
from regard.errors import CheckpointError, ConfigError
from regard.files import write_atomically
from regard.interop.names import Names

ModuleNames = Mapping[str, str] | Callable[[str], str]
"""Of each linear layer of ours, what it is called there."""

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PARTS = {"a": "lora_A.weight", "b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
_READ = {"peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "bias", "init_lora_weights"}
# What says where an adapter came from, or which layers it adapts, which its tensors say as well.
_PASSED_OVER = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules",
    "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "lora_ga_config", "megatron_config",
    "megatron_core", "modules_to_save", "peft_version", "qalora_group_size", "revision", "runtime_config",
    "target_modules", "task_type",
}  # fmt: skip
_WHOLE_BASE = {True, False, "gaussian", "eva", "orthogonal"}
"""Beginnings of an adapter that leave the weights it is trained beside as they were."""


class PeftAdapter(NamedTuple):
    """An adapter that was written in the layout of peft."""

    config: LoraConfig
    tensors: dict[str, Tensor]
    """For `load_lora`."""
    others: dict[str, Tensor]
    """What else was trained, such as a head, by its foreign name."""
    task_type: str | None = None
    """What peft calls the task, where the file says it."""


def module_names(names: Names) -> dict[str, str]:
    """Layers of ours and what they are called elsewhere, where a layer here is one layer there.

    Example:
        >>> from regard.interop.names import layers
        >>> module_names(layers(1, "blocks.{}.", "h.{}.", {"attention.query": "attn.q"}))
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
        folder: Is made where there is none.
        model: What `config` was handed to `add_lora` for.
        config: The settings of the adapter; that frozen weights have few bits is not written.
        names: What the layers are called there.
        base_name: Where peft is to find the model that the adapter is for.
        task_type: What peft calls the task.
        others: Tensors of modules that were trained whole, such as a head, by their foreign names.
    """
    require_settings(model, config)
    tensors: dict[str, Tensor] = {}
    modules: dict[str, str] = {}
    for name, tensor in lora_tensors(model).items():
        ours, _, part = name.rpartition(".")
        theirs = _foreign(names, ours)
        if modules.setdefault(theirs, ours) != ours:
            raise ConfigError(
                f"layers that are one layer elsewhere cannot be written, got {modules[theirs]} and {ours}"
            )
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
    """An adapter that peft wrote, for `model`, which stays as it is.

    Hand the settings to `add_lora`, and the tensors to `load_lora`. Whether the
    model is the one that the adapter was trained beside, peft's files do not say.
    """
    folder = Path(folder)
    values, tensors = _read(folder)
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    found: dict[str, Tensor] = {}
    targets: list[str] = []
    for ours in linear_layers(model):
        theirs = names.get(ours) if isinstance(names, Mapping) else names(ours)
        parts = {part: tensors.pop(f"{theirs}.{name}", None) for part, name in _PARTS.items()}
        found |= {f"{ours}.{part}": tensor for part, tensor in parts.items() if tensor is not None}
        targets += [ours] if parts["a"] is not None else []
    if left := sorted(name for name in tensors if ".lora_" in name):
        raise CheckpointError(f"{folder / _TENSORS} adapts layers that the model has not: {', '.join(left[:3])}")
    if not targets:
        raise CheckpointError(f"{folder / _TENSORS} adapts no layer of the model")
    task_type = values.get("task_type")
    return PeftAdapter(_settings(values, targets), found, tensors, None if task_type is None else str(task_type))


def _settings(values: Mapping[str, Any], targets: list[str]) -> LoraConfig:
    if values.get("peft_type") != "LORA":
        raise ConfigError(f"adapters of the type LORA can be read, got {values.get('peft_type')}")
    start = values.get("init_lora_weights", True)
    if start not in _WHOLE_BASE:
        raise ConfigError(f"init_lora_weights = {start!r} has changed the base's weights, which this adapter needs so")
    if values.get("bias", "none") != "none":
        raise ConfigError(f"biases that were trained cannot be read, got bias = {values['bias']!r}")
    for name, value in values.items():
        if value and name not in _READ | _PASSED_OVER:
            raise ConfigError(f"the setting {name} of peft has no counterpart here, got {name} = {value!r}")
    return LoraConfig.read(
        {
            "rank": values.get("r"),
            "alpha": float(values.get("lora_alpha", 8)),
            "dropout": float(values.get("lora_dropout", 0.0)),
            "rank_stabilized": values.get("use_rslora", False),
            "dora": values.get("use_dora", False),
            "targets": targets,
        },
        section="adapter",
    )


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        values = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / _TENSORS)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not an adapter of peft: it has no {Path(error.filename).name}") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"the adapter in {folder} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{folder / _CONFIG} must hold a table, got {type(values).__name__}")
    return values, tensors


def _foreign(names: ModuleNames, ours: str) -> str:
    if not isinstance(names, Mapping):
        return names(ours)
    if ours not in names:
        raise ConfigError(f"{ours} has no counterpart there, and cannot be written")
    return names[ours]
