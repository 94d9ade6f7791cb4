"""An adapter on disk: what was learned, and the weights it was learned beside.

A folder holds `adapter.safetensors`, the tensors, and `adapter.toml`, the
settings, the hash of the tensors' file and that of the base's weights: beside
other weights an adapter means nothing. Both files are whole before either has
its name, and if they do not belong together that is noticed when they are read.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from regard.adapters.lora import LoraConfig, LoRALinear, add_lora, load_lora, lora_tensors, require_settings
from regard.adapters.quantized import PackedLinear
from regard.config import Settings, read_toml, to_toml
from regard.errors import CheckpointError, ConfigError, DeviceError
from regard.version import version

_SETTINGS, _TENSORS = "adapter.toml", "adapter.safetensors"
_LEARNED, _EXTRA = "lora.", "extra."
_SHOWN = 12
"""Digits of a hash that a message shows."""


class AdapterNotes(Settings):
    """What `adapter.toml` says."""

    base: str
    """SHA-256 of the weights that the adapter was trained beside."""
    tensors: str
    """SHA-256 of the file of tensors."""
    version: str
    """Of the regard that wrote it."""
    lora: LoraConfig
    note: dict[str, Any] = Field(default_factory=dict)
    """What the caller wrote beside it, such as the names of labels."""


@dataclass(frozen=True, kw_only=True)
class SavedAdapter:
    """An adapter as it was saved."""

    folder: Path
    config: LoraConfig
    base: str
    """Hash of the weights that it was trained beside."""
    tensors: dict[str, Tensor]
    """As `lora_tensors` gave them."""
    extras: dict[str, Tensor]
    """What rode along, such as a head."""
    note: dict[str, Any]

    def require_base(self, found: str) -> None:
        """Raise unless weights of the hash `found` are those that the adapter was trained beside."""
        if found != self.base:
            raise CheckpointError(
                f"the adapter in {self.folder} was trained beside weights {self.base[:_SHOWN]}, "
                f"and these are {found[:_SHOWN]}"
            )


def save_adapter(
    folder: str | os.PathLike[str],
    model: nn.Module,
    config: LoraConfig,
    *,
    base: str,
    extras: Mapping[str, Tensor] | None = None,
    note: Mapping[str, Any] | None = None,
) -> None:
    """Write the adapter of a model without the model.

    Args:
        folder: Is made where there is none.
        model: What `config` was handed to `add_lora` for.
        config: The settings of the adapter.
        base: What `weights_hash` said of the model before it was adapted.
        extras: Tensors that ride along, such as those of a head trained besides.
        note: Strings, numbers, lists of them and tables, to be kept with the settings.
    """
    require_settings(model, config)
    folder = Path(folder)
    tensors = {f"{_LEARNED}{name}": tensor for name, tensor in lora_tensors(model).items()}
    tensors |= {f"{_EXTRA}{name}": tensor for name, tensor in (extras or {}).items()}
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    notes = AdapterNotes(
        base=base,
        tensors=hashlib.sha256(data).hexdigest(),
        version=version(),
        lora=config,
        note=dict(note or {}),
    )
    _write(folder, {_TENSORS: data, _SETTINGS: to_toml(notes.model_dump()).encode()})


def read_adapter(folder: str | os.PathLike[str]) -> SavedAdapter:
    """What `save_adapter` wrote; a damaged file is an error."""
    folder = Path(folder)
    if not (folder / _SETTINGS).is_file():
        raise CheckpointError(f"{folder} is not the folder of an adapter: it has no {_SETTINGS}")
    try:
        notes = AdapterNotes.read(read_toml(folder / _SETTINGS))
    except ConfigError as error:
        raise ConfigError(f"{folder / _SETTINGS}: {error}") from None
    tensors = _read_tensors(folder / _TENSORS, notes.tensors)
    return SavedAdapter(
        folder=folder,
        config=notes.lora,
        base=notes.base,
        tensors=_under(_LEARNED, tensors),
        extras=_under(_EXTRA, tensors),
        note=notes.note,
    )


def load_adapter(folder: str | os.PathLike[str], model: nn.Module, *, base: str | None = None) -> SavedAdapter:
    """Adapt `model` in place, as the adapter in `folder` says.

    Other weights than those it was trained beside are refused. `base` is their
    hash, where it is known or where `model` has more weights than those; unset,
    it is computed. The extras are the caller's to put in place.
    """
    saved = read_adapter(folder)
    saved.require_base(weights_hash(model) if base is None else base)
    add_lora(model, saved.config)
    load_lora(model, saved.tensors)
    return saved


def weights_hash(model: nn.Module) -> str:
    """SHA-256 of the name, type, shape and bytes of each parameter, tied ones once; adapters do not count.

    Frozen weights are to be hashed before they are packed.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(_frozen_names(model).items()):
        digest.update(f"{name}|{parameter.dtype}|{tuple(parameter.shape)}|".encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _frozen_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model by the names they had before it was adapted."""
    learned: set[int] = set()
    moved: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear):
            raise ConfigError(f"weights are hashed before they are packed, got {name} in {module.bits} bits")
        if isinstance(module, LoRALinear):
            learned.update(id(parameter) for parameter in module.parts().values())
            moved |= {f"{name}.base.{part}": f"{name}.{part}" for part, _ in module.base.named_parameters()}
    return {moved.get(name, name): p for name, p in model.named_parameters() if id(p) not in learned}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _read_tensors(path: Path, expected: str) -> dict[str, Tensor]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise CheckpointError(
            f"{path} is damaged or another's: its hash is {found[:_SHOWN]}, {_SETTINGS} says {expected[:_SHOWN]}"
        )
    try:
        return load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put all files in place, each whole."""
    parts = {folder / name: folder / f"{name}.part" for name in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, data in zip(parts.values(), files.values(), strict=True):
            with open(part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            os.replace(part, path)
    except OSError as error:
        raise DeviceError(f"cannot write an adapter to {folder}: {error.strerror or error}") from None
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
