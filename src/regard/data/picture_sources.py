"""Where pictures with labels come from: tables that name them, folders by label, or rows in memory.

A table has a column with the path of a picture, absolute or as seen from the
table, and one with its label. A folder has a folder for each label, with the
pictures in it or further down; or it holds `train`, `valid` and `test`, each a
folder of that kind.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from regard.data.config import DataConfig
from regard.data.files import content_hash
from regard.data.pictures import is_picture
from regard.data.sources import Rows, open_source
from regard.data.tables import Table
from regard.errors import ConfigError, DataError
from regard.logging import progress_bar

ROLES = ("picture", "label")
_VALID = ("valid", "val", "dev", "validation")


@dataclass(frozen=True)
class Pictures:
    """Paths of pictures, and the label of each."""

    rows: list[tuple[str, str]]
    keys: list[str] | None = None
    """What each is split by, where that is not its content,"""
    column: str | None = None
    """and what that is called."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (Path(name) for name, _ in self.rows) if path.is_file())

    @cached_property
    def hashes(self) -> list[str]:
        """Of the content of each picture; of one that cannot be read, of its path. It costs a pass over the files."""
        return [_hash(path) for path, _ in progress_bar(self.rows, "reading pictures", total=len(self.rows))]


@dataclass(frozen=True)
class PictureSource:
    """The pictures of a run, by role; `valid` and `test` are None where they are to be split off `train`."""

    train: Pictures
    valid: Pictures | None
    test: Pictures | None
    guesses: list[str]

    def content_hash(self) -> str:
        """The hash of all pictures and labels; where the files lie and what they are called does not enter."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        digest = hashlib.sha256()
        for role, some in parts.items():
            for key, (_, label) in zip(some.hashes, some.rows, strict=True) if some else ():
                digest.update(f"{role}\x1f{key}\x1f{label}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def open_pictures(config: DataConfig, rows: Rows | None = None) -> PictureSource:
    """Find the pictures that the settings name."""
    folder = Path(config.train[0]) if rows is None and len(config.train) == 1 else None
    if folder is not None and has_pictures(folder):
        if config.group is not None or config.order is not None:
            raise ConfigError(
                f"data.group and data.order need a table that names pictures, and {folder.name} is a folder of them"
            )
        splits = _splits(folder)
        held_out = {role: getattr(config, role) or splits.get(role, []) for role in ("valid", "test")}
        train, guesses = _by_folder(Path(splits["train"][0])), []
    else:
        source = open_source(config.changed(valid=[], test=[]), ROLES, rows)
        held_out = {role: getattr(config, role) for role in ("valid", "test")}
        train, guesses = _by_table(source.train), source.guesses
    valid, test = (_held_out(config, held_out[role]) for role in ("valid", "test"))
    return PictureSource(train, valid, test, guesses)


def has_pictures(folder: Path) -> bool:
    """Whether a folder has folders with pictures."""
    if not folder.is_dir():
        return False
    return any(is_picture(path.name) for inner in _folders(folder) for path in inner.rglob("*"))


def _held_out(config: DataConfig, paths: Sequence[str]) -> Pictures | None:
    if not paths:
        return None
    if len(paths) == 1 and has_pictures(Path(paths[0])):
        return _by_folder(Path(paths[0]))
    plain = config.changed(train=list(paths), valid=[], test=[], group=None, order=None)
    return _by_table(open_source(plain, ROLES).train)


def _splits(folder: Path) -> dict[str, list[str]]:
    """The folders for training, validation and test; the folder itself where it has none for training."""
    names = {inner.name.lower(): str(inner) for inner in _folders(folder)}
    if "train" not in names or not has_pictures(Path(names["train"])):
        return {"train": [str(folder)]}
    valid = next((names[name] for name in _VALID if name in names), None)
    found = {"train": names["train"], "valid": valid, "test": names.get("test")}
    return {role: [path] for role, path in found.items() if path is not None}


def _by_folder(folder: Path) -> Pictures:
    rows = [
        (str(path.absolute()), inner.name)
        for inner in _folders(folder)
        for path in sorted(inner.rglob("*"))
        if path.is_file() and is_picture(path.name) and not path.name.startswith(".")
    ]
    if not rows:
        raise DataError(f"{folder} has no pictures: it needs a folder for each label, with pictures in it")
    return Pictures(rows)


def _by_table(table: Table) -> Pictures:
    base = table.paths[0].parent if table.paths else Path()
    rows = list(table)
    found = [(str((base / path).absolute()), label.strip()) for path, label in (row.values for row in rows)]
    return Pictures(found, None if table.key is None else [row.split_by for row in rows], table.key)


def _folders(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def _hash(path: str) -> str:
    try:
        return content_hash(path)
    except DataError:  # told where it is read as a picture
        return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
