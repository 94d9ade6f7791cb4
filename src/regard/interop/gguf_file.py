"""What lies where in a GGUF file: metadata by name, and tensors that are read when they are asked for.

The layout is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2
and 3. The header is read here and not by the `gguf` package: its reader does not
look where a file ends, so that one damaged length keeps it busy for ever, and it
takes seconds for a vocabulary. What the bits of a block of weights mean is the
package's.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError, DataError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_LONGEST_NAME = 64
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The kinds of numbers in metadata, as `struct` calls them."""


class Stored(NamedTuple):
    """A tensor in a file."""

    shape: tuple[int, ...]
    """The last dimension is the one whose numbers lie side by side; GGUF itself counts from that end."""
    type_number: int
    """How its numbers are written, as ggml numbers the ways."""
    start: int
    num_bytes: int


class GGUFFile:
    """A GGUF file: `metadata` by name, and where its `tensors` lie."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._package = require_gguf()
        try:
            with open(path, "rb") as file:
                self._require_layout(file.read(8))
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        self._place = 8
        try:
            num_tensors, num_entries = self._number("Q"), self._number("Q")
            self.metadata: dict[str, Any] = dict(self._entry() for _ in range(num_entries))
            described = [self._description() for _ in range(num_tensors)]
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is damaged: a name or a text in it is not UTF-8 ({error.reason})") from None
        self.tensors = self._located(described)

    def read(self, name: str) -> Float[Tensor, "..."]:
        """The tensor of this name, in float32 whatever it is written in."""
        stored = self.tensors[name]
        kind = self._package.GGMLQuantizationType(stored.type_number)
        rows = np.frombuffer(self._content, np.uint8, stored.num_bytes, stored.start)
        rows = rows.reshape(*stored.shape[:-1], -1)
        try:
            numbers = self._package.dequantize(rows, kind)
        except NotImplementedError:
            raise ConfigError(f"{self.path}: {name} is of the type {kind.name}, which cannot be read") from None
        return torch.from_numpy(np.array(numbers, np.float32)).reshape(stored.shape)

    def _require_layout(self, begin: bytes) -> None:
        if begin[:4] != _MAGIC:
            raise DataError(f"{self.path} is not a GGUF file: it begins with {begin[:4]!r}, not {_MAGIC!r}")
        if len(begin) < 8:
            raise DataError(f"{self.path} is cut short: it has {len(begin)} bytes")
        version = struct.unpack("<I", begin[4:])[0]
        if version not in _VERSIONS and struct.unpack(">I", begin[4:])[0] in _VERSIONS:
            raise DataError(f"{self.path} is a big-endian GGUF file, only little-endian ones can be read")
        if version not in _VERSIONS:
            raise DataError(f"{self.path} is of GGUF version {version}, known are {_VERSIONS[0]} and {_VERSIONS[1]}")

    def _take(self, num_bytes: int) -> bytes:
        end = self._place + num_bytes
        self._require_reach(end)
        taken = self._content[self._place : end]
        self._place = end
        return taken

    def _require_reach(self, end: int) -> None:
        if end > len(self._content):
            raise DataError(
                f"{self.path} is cut short or damaged: it has {len(self._content):,} bytes and asks for {end:,}"
            )

    def _number(self, kind: str) -> Any:
        number = struct.unpack(f"<{kind}", self._take(struct.calcsize(kind)))[0]
        # The shortest number that these four bytes stand for: 1e-05, and not 9.999999747378752e-06.
        return float(str(np.float32(number))) if kind == "f" else number

    def _text(self) -> str:
        return self._take(self._number("Q")).decode()

    def _entry(self) -> tuple[str, Any]:
        name = self._text()
        return name, self._value(self._number("I"), name)

    def _value(self, kind: int, name: str) -> Any:
        if kind == _STRING:
            return self._text()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        inner, length = (self._number("I"), self._number("Q")) if kind == _ARRAY else (kind, 0)
        if kind == _ARRAY and inner == _STRING:
            return [self._text() for _ in range(length)]
        if kind == _ARRAY and inner in _NUMBERS:
            dtype = np.dtype(f"<{_NUMBERS[inner]}")
            return np.frombuffer(self._take(length * dtype.itemsize), dtype).tolist()
        raise DataError(f"{self.path} is damaged: {_short(name)} is of kind {inner}, which no value is of")

    def _description(self) -> tuple[str, Stored]:
        """A tensor as the header has it: it starts at an offset into the data."""
        name, num_dimensions = self._text(), self._number("I")
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise DataError(f"{self.path} is damaged: {_short(name)} has {num_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(num_dimensions))[::-1]
        number, offset = self._number("I"), self._number("Q")
        try:
            kind = self._package.GGMLQuantizationType(number)
            block_length, block_bytes = self._package.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise ConfigError(f"{self.path}: {_short(name)} is of type number {number}, which is not known") from None
        if shape[-1] % block_length:
            raise DataError(
                f"{self.path} is damaged: {_short(name)} has rows of {shape[-1]} numbers, "
                f"which {kind.name} packs by {block_length}"
            )
        return name, Stored(shape, number, offset, math.prod(shape) // block_length * block_bytes)

    def _located(self, described: list[tuple[str, Stored]]) -> dict[str, Stored]:
        """The tensors with their places in the file: the data begins at the next multiple of the alignment."""
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise DataError(f"{self.path} is damaged: its alignment is {alignment}")
        begin = -(-self._place // alignment) * alignment
        tensors = {name: stored._replace(start=begin + stored.start) for name, stored in described}
        if len(tensors) < len(described):
            raise DataError(f"{self.path} is damaged: it has two tensors of one name")
        for stored in tensors.values():
            self._require_reach(stored.start + stored.num_bytes)
        return tensors


def _short(name: str) -> str:
    """A name as it can be shown: that of a damaged file may be anything."""
    return name if name.isprintable() and len(name) <= _LONGEST_NAME else repr(name[:_LONGEST_NAME])


def require_gguf() -> Any:
    """The `gguf` package, which is installed only where it is asked for."""
    try:
        import gguf
    except ImportError:
        raise ConfigError("GGUF files need the gguf package: pip install 'regard[gguf]'") from None
    return gguf
