"""The base class of codecs, and the folder in which they are stored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from regard.errors import CheckpointError
from regard.files import write_atomically


class Codec(ABC):
    """Encodes the values of one column as lists of integers, and decodes them.

    Instances are immutable and fitted: each class has a `fit` of its own that
    returns one. `to_json` and `from_json` are inverse to each other, so that
    whoever has the run folder encodes as training did.
    """

    @abstractmethod
    def encode(self, values: Sequence[Any]) -> list[list[int]]:
        """Return the ids of each value."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[Any]:
        """Return the value of each list of ids."""

    @abstractmethod
    def to_json(self) -> str:
        """Serialize the codec."""

    @classmethod
    @abstractmethod
    def from_json(cls, text: str) -> Self:
        """Restore a codec from `to_json`."""


CodecT = TypeVar("CodecT", bound=Codec)


def checked_codec(kind: type[CodecT], values: Mapping[str, Any], alike: Sequence[Sequence[str]] = ()) -> CodecT:
    """The codec, a dataclass, with these values of its fields; a ValueError where one has another type.

    The fields of each group in `alike` must be equally long.
    """
    known = kind.__dataclass_fields__  # pyright: ignore[reportAttributeAccessIssue]  it is a dataclass
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(f"unknown fields {', '.join(unknown)}")
    codec = TypeAdapter(kind).validate_python(values)
    for names in alike:
        lengths = {name: len(getattr(codec, name)) for name in names}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"fields of different lengths: {lengths}")
    return codec


def codec_of(codecs: Mapping[str, Codec], name: str, kind: type[CodecT]) -> CodecT:
    """Return a codec whose class is known."""
    codec = codecs[name]
    assert isinstance(codec, kind), f"{name} must be encoded by a {kind.__name__}, got {type(codec).__name__}"
    return codec


def write_codecs(folder: Path, codecs: Mapping[str, Codec]) -> None:
    """Write each codec to `NAME.json` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, codec in codecs.items():
        write_atomically(folder / f"{name}.json", codec.to_json().encode())


def read_codecs(folder: Path, types: Mapping[str, type[Codec]]) -> dict[str, Codec]:
    """Read the codecs that `write_codecs` wrote, one of each name in `types`."""
    codecs: dict[str, Codec] = {}
    for name, codec_type in types.items():
        path = folder / f"{name}.json"
        if not path.is_file():
            raise CheckpointError(f"there is no {codec_type.__name__} at {path}")
        try:
            codecs[name] = codec_type.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read as {codec_type.__name__}: {error}") from None
    return codecs
