"""Tensors on disk, written atomically and checked by hash; never pickle.

A file is written under another name, flushed to the disk, and renamed: a crash
at any point leaves the previous file. Its header has a JSON note, and a SHA-256 of
the note and of every tensor's name, dtype, shape and bytes.

Files have the format of safetensors. They are written tensor by tensor, without a copy of
all of them in memory, and without Python's global lock, so that a thread can write
while training continues; `safetensors.torch.save` needs both.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from regard.errors import CheckpointError, WriteError
from regard.files import load_json, write_atomically
from regard.logging import log_warning

_HEADER = "regard"
_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""The names of types in safetensors."""
_SPARE_NUMBERS, _NUMBERS_PER_BYTE, _NUMBERS_PER_TENSOR = 1 << 26, 4, 256
"""A model may have so many numbers that its file does not have, such as tables of positions; so many for each byte of
the file; and a tensor counts as so many more, since making it takes time."""
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn}
_INITIALIZERS = {
    *(Tensor.normal_, Tensor.uniform_, init.normal_, init.uniform_),
    *(init.kaiming_uniform_, init.xavier_uniform_, init.trunc_normal_, init.orthogonal_),
}
"""Functions that initialize a tensor with random numbers."""


@runtime_checkable
class SizedByData(Protocol):
    """A module with buffers whose shapes depend on the data, such as tables of n-grams."""

    def resize_buffers(self, shapes: Mapping[str, torch.Size]) -> None:
        """Replace buffers of the module by new ones of these shapes, whose values are loaded after."""
        ...


def write_tensors(path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
    """Write tensors and a JSON note as one safetensors file."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(note)
    # One entry: safetensors writes several in any order, and the same weights should be the same bytes.
    header = json.dumps({"sha256": _digest(on_cpu, text), "note": text})
    write_atomically(path, _serialized(on_cpu, {_HEADER: header}))


def _serialized(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """A safetensors file in parts: the length of the header, the header, and the bytes of each tensor."""
    # The largest elements first, so that every tensor is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise CheckpointError(f"{name} has dtype {tensor.dtype}, which is not stored")
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little")
    yield header
    for name in names:
        yield _bytes_of(tensors[name])


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the note of a file; a CheckpointError if it is damaged."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get(_HEADER, "{}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except FileNotFoundError:
        raise CheckpointError(f"no weights at {path}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    header = _parsed(text)
    note = str(header.get("note"))
    if _digest(tensors, note) != header.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its contents do not have the hash they were written with")
    return tensors, load_json(note)


def hash_of(path: Path) -> str:
    """The hash that a file of tensors was written with."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            found = _parsed((file.metadata() or {}).get(_HEADER, "{}")).get("sha256")
    except FileNotFoundError:
        raise CheckpointError(f"no weights at {path}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if not isinstance(found, str):
        raise CheckpointError(f"{path} has no hash of its contents")
    return found


def note_of(path: Path) -> dict[str, Any]:
    """The note of a file of tensors, without reading the tensors."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = _parsed((file.metadata() or {}).get(_HEADER, "{}"))
        return load_json(str(header.get("note", "{}")))
    except FileNotFoundError:
        raise CheckpointError(f"no weights at {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    note: Mapping[str, Any],
    *,
    keep: int = 2,
    last_good: int | None = None,
) -> None:
    """Write the checkpoint of a step, then delete others, and incomplete files.

    Args:
        folder: The folder of the checkpoints.
        step: The step.
        tensors: The training state.
        note: The progress.
        keep: The number of the newest checkpoints that stay; that of step 0 is not one of them.
        last_good: The step of another one that stays: the one that training returns to when it diverges.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot create {folder}: {error.strerror or error}") from None
    newest, start = _path_of(folder, step), _path_of(folder, 0)
    write_tensors(newest, tensors, note)
    kept = [path for path in checkpoint_paths(folder) if start < path <= newest][-keep:] or [newest]
    if last_good is not None:
        kept.append(_path_of(folder, last_good))
    # Checkpoints of later steps are from a run that was resumed from an earlier one, or has returned to it.
    for path in {*checkpoint_paths(folder), *folder.glob("*.part")} - set(kept):
        path.unlink()


def load_checkpoint(folder: Path, *, at_most: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint, of the step `at_most` or an earlier one; damaged ones are skipped with a warning."""
    paths = checkpoint_paths(folder)
    if at_most is not None:
        paths = [path for path in paths if path <= _path_of(folder, at_most)]
    for path in reversed(paths):
        try:
            return read_tensors(path)
        except CheckpointError as error:
            log_warning(f"{error}; the previous checkpoint is used")
    if paths:
        raise CheckpointError(f"none of the {len(paths)} checkpoints in {folder} can be read")
    return None


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Each parameter and buffer once, by name; tied ones by the first of their names."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def weights_digest(model: nn.Module, note: str) -> str:
    """A hash of all weights and of a note, by which equal models are recognized."""
    return _digest({name: tensor.detach().cpu().contiguous() for name, tensor in weights_of(model).items()}, note)


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """The trainable ones of `weights_of`; all of them, buffers included, if nothing is frozen."""
    parameters = dict(model.named_parameters())
    if all(parameter.requires_grad for parameter in parameters.values()):
        return weights_of(model)
    return {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights into a model that has exactly these names and shapes.

    They are copied, since mapped tensors are aligned differently, and products would differ in their last bits.
    """
    resize_buffers(model, tensors)
    copy_weights(weights_of(model), tensors)


def resize_buffers(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give the buffers that are `SizedByData` the shapes of the tensors that are loaded into them."""
    for prefix, module in model.named_modules():
        names = {name: f"{prefix}.{name}".removeprefix(".") for name, _ in module.named_buffers(recurse=False)}
        if isinstance(module, SizedByData):
            module.resize_buffers({name: tensors[full].shape for name, full in names.items() if full in tensors})


class SkipInit(TorchFunctionMode):
    """Skips the random initialization of models that are built inside the context; their weights are loaded after.

    Settings that describe a larger model than the files have weights for are an error before memory is allocated for
    it: `num_bytes` is the size of the files.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self._most, self._total = _SPARE_NUMBERS + _NUMBERS_PER_BYTE * num_bytes, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _INITIALIZERS:
            return args[0] if args else given["tensor"]
        if func in _FACTORIES:
            self._count(args[0] if args and isinstance(args[0], Sequence) else args or given.get("size", ()))
        return func(*args, **given)

    def _count(self, sizes: Sequence[Any]) -> None:
        numbers = [size for size in sizes if isinstance(size, int)]
        self._total += _NUMBERS_PER_TENSOR + abs(math.prod(numbers))
        if self._total > self._most:
            raise CheckpointError(
                f"run.toml describes a model of more than {self._most:,} numbers, far more than its file of weights has"
            )


@torch.no_grad()
def copy_weights(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into `own`, which has exactly these names and shapes."""
    if own.keys() != tensors.keys():
        missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        raise CheckpointError(f"the weights do not fit the model: missing {missing[:3]}, not expected {extra[:3]}")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise CheckpointError(
                f"the weights do not fit the model: {name} has shape {tuple(tensors[name].shape)}, "
                f"the model's is {tuple(tensor.shape)}"
            )
        tensor.copy_(tensors[name])


def _parsed(header: str) -> dict[str, Any]:
    """The header; an empty one, which has no valid hash, if it is damaged."""
    try:
        return load_json(header)
    except ValueError:
        return {}


def _path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.safetensors"


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def _digest(tensors: Mapping[str, Tensor], note: str) -> str:
    digest = hashlib.sha256(note.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
