"""Importers: each recognizes the files of one format and reads a model from them.

A package adds a format by declaring an `Importer` in the entry-point group `regard.importers`:

    [project.entry-points."regard.importers"]
    myformat = "my_package.myformat:IMPORTER"
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regard.errors import CheckpointError, ConfigError, DataError
from regard.interop.model import ImportedModel
from regard.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Importer:
    """One format that models are imported from."""

    name: str
    description: str
    """Which files it reads, such as `a GGUF file (.gguf)`."""
    recognizes: Callable[[Path], bool]
    """Whether an existing file or folder appears to have this format; it need not be valid."""
    read: Callable[[Path], ImportedModel]


IMPORTERS: Registry[Importer] = Registry(
    "regard.importers", "importer", members=("name", "description", "recognizes", "read")
)


def find_importer(path: Path, name: str | None = None) -> Importer:
    """Return the importer called `name`, or the one that recognizes `path`.

    Raises:
        DataError: If there is nothing at `path`, or if no importer recognizes it.
        ConfigError: If several importers recognize it, or if none has that name.
    """
    if not path.exists():
        raise DataError(f"no file or folder at {path}")
    if name is not None:
        return IMPORTERS.find(name)
    found = [importer for importer in IMPORTERS if importer.recognizes(path)]
    if not found:
        accepted = "; ".join(f"{importer.name}: {importer.description}" for importer in IMPORTERS)
        raise DataError(f"{path} is not in a format that can be imported; {accepted}")
    if len(found) > 1:
        raise ConfigError(
            f"several importers recognize {path}, name one: {', '.join(importer.name for importer in found)}"
        )
    return found[0]


def read_model(path: Path, *, format: str | None = None) -> ImportedModel:
    """Read the model at `path` with the importer that recognizes it, or with the one called `format`."""
    importer = find_importer(path, format)
    with errors_with_path(path):
        return importer.read(path)


@contextmanager
def errors_with_path(path: Path) -> Iterator[None]:
    """Put the path before the message of an error that does not contain it."""
    try:
        yield
    except (CheckpointError, ConfigError, DataError) as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from None
