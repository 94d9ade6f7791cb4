"""What lies where in a `model.bin` of CTranslate2, version 6 of its binary layout.

    version, name of the specification, its revision
    number of variables; of each its name, shape, type, size in bytes, and the bytes
    number of aliases; of each its name, and that of the variable it stands for

Numbers are little-endian; a string has its length, its end included, in front and a zero behind it.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import CheckpointError

_VERSION = 6
_TYPES = ("float32", "int8", "int16", "int32", "float16")
"""The types of numbers, in the order in which they are numbered."""
Variables = dict[str, NDArray[np.generic]]


class Stored(NamedTuple):
    """The content of a `model.bin`."""

    name: str
    revision: int
    variables: Variables
    """By name; what is an alias is here as well."""


def write_variables(
    path: Path, name: str, revision: int, variables: Mapping[str, NDArray[np.generic]], aliases: Mapping[str, str]
) -> None:
    """Write a `model.bin`."""
    with open(path, "wb") as file:
        file.write(struct.pack("<I", _VERSION) + _string(name) + struct.pack("<II", revision, len(variables)))
        for key, numbers in sorted(variables.items()):
            shape = numbers.shape
            kind = _TYPES.index(numbers.dtype.name)
            head = struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, kind, numbers.nbytes)
            file.write(_string(key) + head)
            file.write(np.ascontiguousarray(numbers).data)
        file.write(struct.pack("<I", len(aliases)))
        for key, other in sorted(aliases.items()):
            file.write(_string(key) + _string(other))


def read_variables(path: Path) -> Stored:
    """Read a `model.bin`."""
    reader = _Reader(path)
    (version,) = reader.numbers("I")
    if version != _VERSION:
        raise CheckpointError(f"{path} has version {version} of its layout, {_VERSION} can be read")
    name = reader.string()
    revision, num_variables = reader.numbers("II")
    variables: Variables = {}
    for _ in range(num_variables):
        key = reader.string()
        (rank,) = reader.numbers("B")
        *shape, kind, num_bytes = reader.numbers(f"{rank}IBI")
        variables[key] = np.frombuffer(reader.take(num_bytes), dtype=_TYPES[kind]).reshape(shape)
    (num_aliases,) = reader.numbers("I")
    for _ in range(num_aliases):
        key, other = reader.string(), reader.string()
        variables[key] = variables[other]
    return Stored(name, revision, variables)


def _string(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("<H", len(data)) + data


class _Reader:
    """Reads from the beginning on, and says where a file ends too early."""

    def __init__(self, path: Path) -> None:
        self._path, self._data, self._place = path, memoryview(path.read_bytes()), 0

    def take(self, size: int) -> memoryview:
        start, self._place = self._place, self._place + size
        if self._place > len(self._data):
            raise CheckpointError(f"{self._path} is damaged: it ends too early")
        return self._data[start : self._place]

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}")))

    def string(self) -> str:
        (size,) = self.numbers("H")
        return bytes(self.take(size)[:-1]).decode()
