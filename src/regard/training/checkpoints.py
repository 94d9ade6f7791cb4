"""Tensors on disk, written atomically and checked by hash; never pickle.

A file is written under another name, flushed to the disk, and renamed: a crash
at any point leaves the previous file. Its header has a JSON note, and a SHA-256 of
the note and of every tensor's name, dtype, shape and bytes.

Files have the format of safetensors. They are written tensor by tensor, without a copy of
all of them in memory, and without Python's global lock, so that a thread can write
while training continues; `safetensors.torch.save` needs both.

A checkpoint is one file or, where several processes have parts of a model, a shard of each: a file of its parts,
whose note says where in which tensor each of them is, with a hash of its own. Any number of processes can read it,
each the parts that it needs. It is complete once all its shards are there: their names say how many they are.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from pydantic import Field, NonNegativeInt
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from regard.errors import CheckpointError, ConfigError, WriteError
from regard.files import load_json, write_atomically
from regard.logging import log_warning
from regard.settings import Settings
from regard.training.distributed import ALONE, Processes

_HEADER = "regard"
_SHARD_SUFFIX = ".shard"
_PATTERNS = ("step-*.safetensors", f"step-*{_SHARD_SUFFIX}")
_STEP = re.compile(r"step-(\d{9})\.", re.ASCII)
_SHARD_NAME = re.compile(r"(step-\d{9}\.[0-9a-f-]+\.)([1-9]\d{0,5})-of-([1-9]\d{0,5})\.shard", re.ASCII)
"""The name of a shard: its step and save, its number from 1, and how many there are."""
_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""The names of types in safetensors."""
_TYPES = {name: dtype for dtype, name in _DTYPES.items()}
_SPARE_NUMBERS, _NUMBERS_PER_BYTE, _NUMBERS_PER_TENSOR = 1 << 26, 4, 4096
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


@dataclass(frozen=True)
class Place:
    """Where a part is in a whole tensor."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    """Of the whole tensor."""


@dataclass(frozen=True)
class Shard:
    """Which file of a checkpoint a process writes."""

    save: str
    """What all shards of a checkpoint share, and no other checkpoint of the same step has: hexadecimal digits and -."""
    number: int
    count: int
    places: Mapping[str, Place]


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    note: Mapping[str, Any],
    *,
    keep: int = 2,
    last_good: int | None = None,
    shard: Shard | None = None,
) -> None:
    """Write the checkpoint of a step, or a shard of it, then delete others, and incomplete files.

    Args:
        folder: The folder of the checkpoints.
        step: The step.
        tensors: The training state, or the part of it that this process writes.
        note: The progress.
        keep: The number of the newest checkpoints that stay; that of step 0 is not one of them.
        last_good: The step of another one that stays: the one that training returns to when it diverges.
        shard: Where the tensors are parts.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot create {folder}: {error.strerror or error}") from None
    if shard is None:
        path = _path_of(folder, step)
        write_tensors(path, tensors, note)
        own = path.name
    else:
        _write_shard(folder, step, tensors, note, shard)
        if shard.number:
            return  # the first process deletes
        own = _begin_of(step, shard.save)
        keep += 1  # other processes may not have written theirs yet
    # Others of this step and of later ones are from a run that was resumed from an earlier one, or has returned to it.
    before = [path for path in checkpoint_paths(folder) if step_of(path) < step]
    recent = [path for path in reversed(before) if step_of(path) > 0][: keep - 1]
    if shard is not None:
        recent += before[-1:]  # of step 0 too, until there is a later one that is complete
    kept = recent + [path for path in before if step_of(path) == last_good]
    # By name: what other processes write now may be renamed between two listings of the folder.
    every = {path for pattern in (*_PATTERNS, "*.part") for path in folder.glob(pattern)}
    for path in every - {file for each in kept for file in files_of(each)}:
        if not path.name.startswith(own):
            path.unlink(missing_ok=True)


Cut = Callable[[str, tuple[int, ...]], tuple[slice, ...] | None]
"""The part of a tensor, by its name and shape, that a process needs; None for all of it."""


def load_checkpoint(
    folder: Path, *, at_most: int | None = None, cut: Cut | None = None, group: Processes = ALONE
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint, of the step `at_most` or an earlier one; damaged ones are skipped with a warning.

    Processes of a `group` read the same one, each what its `cut` says.
    """
    paths = group.from_first(lambda: checkpoint_paths(folder))
    paths = [path for path in paths if at_most is None or step_of(path) <= at_most]
    for path in reversed(paths):
        found, reason = None, f"{path} cannot be read by another process"
        try:
            found = read_state(path, cut)
        except CheckpointError as error:
            reason = str(error)
        if not group.any(found is None):
            return found
        log_warning(f"{reason}; the previous checkpoint is used")
    if paths:
        raise CheckpointError(f"none of the {len(paths)} checkpoints in {folder} can be read")
    return None


def read_state(path: Path, cut: Cut | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state and the note of one of `checkpoint_paths`: all of it, or what `cut` says of each tensor."""
    if path.suffix == _SHARD_SUFFIX:
        return _read_shards(files_of(path), cut)
    tensors, note = read_tensors(path)
    places = {name: None if cut is None else cut(name, tuple(each.shape)) for name, each in tensors.items()}
    return {name: each if (at := places[name]) is None else each[at] for name, each in tensors.items()}, note


def _write_shard(folder: Path, step: int, tensors: Mapping[str, Tensor], note: Mapping[str, Any], shard: Shard) -> None:
    parts = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    pieces = {name: {**asdict(shard.places[name]), "sha256": _digest({name: part}, "")} for name, part in parts.items()}
    about = {"save": shard.save, "number": shard.number, "count": shard.count, "pieces": pieces, "progress": dict(note)}
    text = json.dumps(about)
    header = json.dumps({"sha256": _digest({}, text), "note": text})
    name = f"{_begin_of(step, shard.save)}{shard.number + 1}-of-{shard.count}{_SHARD_SUFFIX}"
    write_atomically(folder / name, _serialized(parts, {_HEADER: header}))


def _read_shards(paths: Sequence[Path], cut: Cut | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `cut` says of the tensors, from the shards of a checkpoint in order, and its note."""
    notes = [_note_of_shard(path) for path in paths]
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    sizes: dict[str, int] = {}
    for number, (path, note) in enumerate(zip(paths, notes, strict=True)):
        if (note.save, note.number, note.count) != (notes[0].save, number, len(paths)):
            raise CheckpointError(f"{path} is damaged: it is not shard {number + 1} of {len(paths)} of its checkpoint")
        for name, piece in note.pieces.items():
            if shapes.setdefault(name, (tuple(piece.shape), piece.dtype)) != (tuple(piece.shape), piece.dtype):
                raise CheckpointError(f"{path} is damaged: {name} has another shape or type than in other shards")
            sizes[name] = sizes.get(name, 0) + math.prod(piece.sizes)
    for name, (shape, _) in shapes.items():
        if sizes[name] != math.prod(shape):
            raise CheckpointError(f"{paths[0]} is damaged: the shards do not have all of {name}, and nothing else")
    wanted = {name: _wanted(cut, name, shape) for name, (shape, _) in shapes.items()}
    found = {
        name: torch.zeros([each.stop - each.start for each in at], dtype=_TYPES[shapes[name][1]])
        for name, at in wanted.items()
    }
    for path, note in zip(paths, notes, strict=True):
        _take_pieces(path, note, wanted, found)
    return found, notes[0].progress


class _Piece(Settings):
    """The note of a part of a tensor; `sizes` and `dtype` are those of the part in the file."""

    start: list[NonNegativeInt]
    shape: list[NonNegativeInt]
    sha256: str
    sizes: list[int] = Field(default_factory=list)
    dtype: str = ""

    @property
    def place(self) -> tuple[slice, ...]:
        return tuple(slice(first, first + size) for first, size in zip(self.start, self.sizes, strict=True))


class _ShardNote(Settings):
    """The note of a shard."""

    save: str
    number: int
    count: int
    pieces: dict[str, _Piece]
    progress: dict[str, Any]


def _note_of_shard(path: Path) -> _ShardNote:
    """The note, whose hash is right, and in which each piece has the sizes that the file has and is in its tensor."""
    with _opened(path) as file:
        header = _parsed((file.metadata() or {}).get(_HEADER, "{}"))
        headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a dict
        stored = {name: {"sizes": each.get_shape(), "dtype": each.get_dtype()} for name, each in headers.items()}
    text = str(header.get("note"))
    if _digest({}, text) != header.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its note does not have the hash it was written with")
    try:
        note = _ShardNote.read(load_json(text))
    except (ValueError, ConfigError):
        raise CheckpointError(f"{path} is damaged: its note is not one of a shard") from None
    pieces = {name: piece.changed(**stored[name]) for name, piece in note.pieces.items() if name in stored}
    for name, piece in pieces.items():
        is_inside = len(piece.start) == len(piece.shape) == len(piece.sizes) and all(
            first + size <= whole for first, size, whole in zip(piece.start, piece.sizes, piece.shape, strict=True)
        )
        if not is_inside or piece.dtype not in _TYPES:
            raise CheckpointError(f"{path} is damaged: its part of {name} is outside of the tensor")
    return note.changed(pieces=pieces)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A shard, whose errors are those of a damaged checkpoint."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def _wanted(cut: Cut | None, name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
    found = None if cut is None else cut(name, shape)
    return tuple(slice(0, size) for size in shape) if found is None else found


def _take_pieces(
    path: Path, note: _ShardNote, wanted: Mapping[str, tuple[slice, ...]], found: Mapping[str, Tensor]
) -> None:
    """Copy from a shard what is wanted of it into `found`; only these parts are read, and each has its hash."""
    with _opened(path) as file:
        for name, piece in note.pieces.items():
            at = wanted[name]
            first = [max(own.start, part.start) for own, part in zip(at, piece.place, strict=True)]
            last = [min(own.stop, part.stop) for own, part in zip(at, piece.place, strict=True)]
            is_needed = all(start < stop for start, stop in zip(first, last, strict=True))
            if not is_needed:
                continue
            part = file.get_tensor(name)
            if _digest({name: part}, "") != piece.sha256:
                raise CheckpointError(f"{path} is damaged: {name} does not have the hash it was written with")
            found[name][_within(first, last, at)] = part[_within(first, last, piece.place)]


def _within(first: Sequence[int], last: Sequence[int], outer: Sequence[slice]) -> tuple[slice, ...]:
    return tuple(slice(a - o.start, b - o.start) for a, b, o in zip(first, last, outer, strict=True))


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


def _begin_of(step: int, save: str) -> str:
    return f"step-{step:09d}.{save}."


def checkpoint_paths(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, the oldest first; of one in shards, the first of them."""
    found = [*folder.glob(_PATTERNS[0])]
    shards: dict[tuple[str, int], dict[int, Path]] = {}
    for path in folder.glob(_PATTERNS[1]):
        if named := _SHARD_NAME.fullmatch(path.name):
            shards.setdefault((named[1], int(named[3])), {})[int(named[2])] = path
    found += [
        own[1] for (_, count), own in shards.items() if own.keys() == set(range(1, len(own) + 1)) and len(own) == count
    ]
    return sorted(found, key=lambda path: (step_of(path), _time_of(path)))


def _time_of(path: Path) -> float:
    """When a file was written; 0 where it is being deleted by the process that trains."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def files_of(path: Path) -> list[Path]:
    """The files of one of `checkpoint_paths`, in order."""
    named = _SHARD_NAME.fullmatch(path.name)
    if named is None:
        return [path]
    return [
        path.with_name(f"{named[1]}{number}-of-{named[3]}{_SHARD_SUFFIX}") for number in range(1, int(named[3]) + 1)
    ]


def step_of(path: Path) -> int:
    """The step of one of `checkpoint_paths`; -1 for a file with another name."""
    named = _STEP.match(path.name)
    return int(named[1]) if named else -1


def _digest(tensors: Mapping[str, Tensor], note: str) -> str:
    digest = hashlib.sha256(note.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
