"""Where rows come from: files, a built-in data set, or a list in memory; and which of the three sets each serves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from regard.data.builtin import builtin, builtin_names
from regard.data.config import DataConfig
from regard.data.files import content_hash
from regard.data.folders import split_files
from regard.data.keys import key_column, ordered
from regard.data.tables import Table, open_table, rows_hash, table_from_rows
from regard.errors import DataError

Rows = Sequence[Sequence[str]]
"""Rows in memory, as a Python program has them."""

IN_MEMORY = "(rows in memory)"
"""How the settings of a run name data that came from no file."""


@dataclass(frozen=True)
class Source:
    """The tables of a run, by role; `valid` and `test` are None where they are to be split off `train`."""

    train: Table
    valid: Table | None
    test: Table | None
    content_hash: Callable[[], str]
    """The hash of all that is read; it costs a pass over the files."""

    @property
    def guesses(self) -> list[str]:
        tables = [table for table in (self.train, self.valid, self.test) if table is not None]
        return list(dict.fromkeys(guess for table in tables for guess in table.guesses))


def usual_tokenizer(config: DataConfig) -> str:
    """What the settings say, or what belongs to vectors or to a built-in data set, or byte-level BPE."""
    if config.tokenizer is None and config.vectors is not None:
        return str(Path(config.vectors) / "tokenizer.json")
    return config.tokenizer or (builtin(config.train[0]).tokenizer if is_builtin(config) else "bpe")


def open_source(config: DataConfig, roles: Sequence[str], rows: Rows | None = None) -> Source:
    """Find the data that the settings name, and how to read it."""
    if rows is not None:
        rows = [tuple(row) for row in rows]
        table = rows_in_memory(config, roles, rows)
        return _with_held_out(config, roles, table, lambda: rows_hash(rows))
    if not config.train:
        raise DataError("no data to train on: name a file, two aligned files, a folder or a built-in data set")
    name = config.train[0]
    if config.train == [IN_MEMORY]:
        raise DataError("this run was trained on rows in memory: hand in the same rows to go on")
    if is_builtin(config):
        return _builtin_source(config, roles)
    if len(config.train) == 1 and Path(name).is_dir():
        config = _with_folder(config, Path(name))
    try:
        table = ordered(_open(config, config.train, roles, key=key_column(config)), config)
    except DataError as error:
        if len(config.train) == 1 and not Path(name).exists():
            raise DataError(f"{error}; built-in data sets: {', '.join(builtin_names())}") from None
        raise
    return _with_held_out(config, roles, table, lambda: content_hash(table.paths))


def rows_in_memory(config: DataConfig, roles: Sequence[str], rows: Rows) -> Table:
    """The table of rows that a program has; where they are split by a column, `data.columns` are those of the roles."""
    table = table_from_rows(
        rows, roles, columns=config.columns or None, key=key_column(config), skip_bad=config.skip_bad
    )
    return ordered(table, config)


def _open(config: DataConfig, paths: Sequence[str], roles: Sequence[str], key: str | None = None) -> Table:
    return open_table(
        cast("Sequence[str | Path]", paths),
        columns=config.columns or None,
        format=config.format,
        roles=roles,
        header=config.header,
        key=key,
        skip_bad=config.skip_bad,
    )


def _with_held_out(config: DataConfig, roles: Sequence[str], train: Table, hash_of_train: Callable[[], str]) -> Source:
    valid, test = (_open(config, paths, roles) if paths else None for paths in (config.valid, config.test))
    held_out = {role: table.paths for role, table in (("valid", valid), ("test", test)) if table is not None}
    return Source(train, valid, test, lambda: hash_with_held_out(hash_of_train(), held_out))


def hash_with_held_out(hash_of_train: str, held_out: Mapping[str, Sequence[Path]]) -> str:
    """The hash of the training data, joined by that of the files for each other set."""
    # With its role: the same file is other data as validation rows than as test rows.
    return "+".join([hash_of_train, *(f"{role}:{content_hash(paths)}" for role, paths in held_out.items())])


def is_builtin(config: DataConfig) -> bool:
    return len(config.train) == 1 and not Path(config.train[0]).exists() and config.train[0] in builtin_names()


def _builtin_source(config: DataConfig, roles: Sequence[str]) -> Source:
    data = builtin(config.train[0])
    if tuple(roles) != data.columns:
        raise DataError(f"{data.name} has the columns {', '.join(data.columns)}, the task needs {', '.join(roles)}")
    num_rows = config.num_rows or data.num_rows
    rows = _GeneratedRows(lambda: list(data.generate(num_rows, config.split_seed)))
    table = rows_in_memory(config.changed(columns=[]), roles, rows)
    return _with_held_out(config, roles, table, lambda: data.content_hash(num_rows, config.split_seed))


class _GeneratedRows(Sequence[Sequence[str]]):
    """Rows that are generated when they are first wanted: often they lie in the cache already."""

    def __init__(self, generate: Callable[[], Rows]) -> None:
        self._generate = generate

    @cached_property
    def _rows(self) -> Rows:
        return self._generate()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]


def _with_folder(config: DataConfig, folder: Path) -> DataConfig:
    """The settings with the files of a folder in the place of its name; what is given outweighs what is found."""
    found = split_files(folder, config.columns or None)
    held_out = {
        role: getattr(config, role) or [str(path) for path in found.get(role, ())] for role in ("valid", "test")
    }
    return config.changed(**held_out)
