"""The rows of a run: files, a folder, a built-in data set or rows in memory, for each split."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from regard.data.builtin import builtin_names, find_builtin
from regard.data.formats.files import AnyPath, content_hash
from regard.data.formats.folders import files_by_split, text_files_by_split
from regard.data.formats.tables import Table, open_table, rows_hash, table_from_rows
from regard.data.settings import DataConfig
from regard.data.splits.plan import key_column, with_split_keys
from regard.errors import DataError

Rows = Sequence[Sequence[Any]]
"""Rows in memory: texts and numbers, or lists of words."""


class NamedRows(list[tuple[Any, ...]]):
    """Rows in memory whose columns have names: those that are given as dictionaries."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.names: tuple[str, ...] = tuple(dict.fromkeys(str(key) for row in rows for key in row))
        super().__init__(tuple(row.get(name) for name in self.names) for row in rows)


IN_MEMORY = "(rows in memory)"
"""The name of data in the settings of a run that was trained on rows in memory."""
_RUN_SETTINGS = "run.toml"
"""The file by which the folder of a run is known."""


@dataclass(frozen=True)
class Source:
    """The tables of a run by split; `valid` and `test` are None if they are to be split off `train`."""

    train: Table
    valid: Table | None
    test: Table | None
    content_hash: Callable[[], str]
    """Computes the hash of all rows, in a pass over the files."""

    @property
    def inferred(self) -> list[str]:
        tables = [table for table in (self.train, self.valid, self.test) if table is not None]
        return list(dict.fromkeys(sentence for table in tables for sentence in table.inferred))


def open_source(config: DataConfig, roles: Sequence[str], rows: Rows | None = None) -> Source:
    """Open the rows that the settings name, or those in memory."""

    def open_file(paths: Sequence[str], key: str | None = None) -> Table:
        return open_table(
            cast("Sequence[str | Path]", paths),
            columns=config.columns or None,
            format=config.format,
            roles=roles,
            header=config.header,
            key=key,
            skip_bad=config.skip_bad,
            encoding=config.encoding,
        )

    if rows is not None:
        rows = rows if isinstance(rows, NamedRows) else [tuple(row) for row in rows]
        return with_held_out(config, rows_in_memory(config, roles, rows), open_file, lambda: rows_hash(rows))
    require_files(config, "a file, two aligned files, a folder or a built-in data set")
    if is_builtin(config):
        data = find_builtin(config.train[0])
        if tuple(roles) != data.columns:
            raise DataError(f"{data.name} has the columns {', '.join(data.columns)}, the task needs {', '.join(roles)}")
        num_rows = config.num_rows or data.num_rows
        generated = _GeneratedRows(lambda: list(data.generate(num_rows, config.split_seed)))
        table = rows_in_memory(config.changed(columns=[]), roles, generated)
        return with_held_out(config, table, open_file, lambda: data.content_hash(num_rows, config.split_seed))
    # `open_table` itself finds the training files of a folder, and reports them.
    config = with_folder(config, lambda folder: files_by_split(folder, config.columns or None), replaces_train=False)
    try:
        table = with_split_keys(open_file(config.train, key_column(config)), config)
    except DataError as error:
        if len(config.train) == 1 and not os.path.exists(config.train[0]):
            raise DataError(f"{error}; built-in data sets: {', '.join(builtin_names())}") from None
        raise
    return with_held_out(config, table, open_file, table.content_hash)


def rows_in_memory(config: DataConfig, roles: Sequence[str], rows: Rows) -> Table:
    """A table of rows in memory; if they are split by a column, `data.columns` are those of the roles."""
    table = table_from_rows(
        rows,
        roles,
        names=rows.names if isinstance(rows, NamedRows) else None,
        columns=config.columns or None,
        key=key_column(config),
        skip_bad=config.skip_bad,
    )
    return with_split_keys(table, config)


def require_files(config: DataConfig, what: str) -> None:
    """Raise an error if the settings name no files; `what` may be named."""
    if not config.train:
        raise DataError(f"no training data: name {what}")
    if config.train == [IN_MEMORY]:
        raise DataError("this run was trained on rows in memory: pass the same rows to resume it")
    require_names(config)


def require_names(config: DataConfig) -> None:
    """Raise an error if a name is empty, which as a path is that of the current folder, or that of a run."""
    names = (*config.train, *config.valid, *config.test)
    if "" in names:
        raise DataError("the name of a file of data is empty")
    for name in names:
        if os.path.isfile(os.path.join(name, _RUN_SETTINGS)):
            hidden = f", and hides the built-in data set {name}" if name in builtin_names() else ""
            raise DataError(f"{name} is the folder of a run, not of data{hidden}")


def with_folder(
    config: DataConfig,
    find: Callable[[AnyPath], Mapping[str, Sequence[Path]]] = text_files_by_split,
    *,
    replaces_train: bool = True,
) -> DataConfig:
    """The settings with the files of a folder instead of its name; files given in the settings take precedence."""
    if len(config.train) != 1 or not os.path.isdir(config.train[0]):
        return config
    found = {split: [str(path) for path in paths] for split, paths in find(config.train[0]).items()}
    return config.changed(
        train=found["train"] if replaces_train else config.train,
        valid=config.valid or found.get("valid", []),
        test=config.test or found.get("test", []),
    )


def with_held_out(
    config: DataConfig, train: Table, open_file: Callable[[Sequence[str]], Table], hash_of_train: Callable[[], str]
) -> Source:
    """A source of the training table and of the validation and test files that the settings name."""
    valid, test = (open_file(paths) if paths else None for paths in (config.valid, config.test))
    held_out = {split: table for split, table in (("valid", valid), ("test", test)) if table is not None}

    def hash_all() -> str:
        return _join_hashes(hash_of_train(), {split: table.content_hash() for split, table in held_out.items()})

    return Source(train, valid, test, hash_all)


def hash_with_held_out(hash_of_train: str, held_out: Mapping[str, Sequence[Path]]) -> str:
    """The hash of the training data, joined with those of the validation and test files."""
    return _join_hashes(hash_of_train, {split: content_hash(paths) for split, paths in held_out.items()})


def _join_hashes(hash_of_train: str, held_out: Mapping[str, str]) -> str:
    # With the name of the split: a file is different data as validation rows and as test rows.
    return "+".join([hash_of_train, *(f"{split}:{found}" for split, found in held_out.items())])


def hash_of_table(table: Table) -> str:
    """The hash of a table in memory."""
    return rows_hash(values for _, values, _ in table.read())


def is_builtin(config: DataConfig) -> bool:
    """Whether the settings name a built-in data set; a file of the same name takes precedence."""
    return len(config.train) == 1 and not os.path.exists(config.train[0]) and config.train[0] in builtin_names()


class _GeneratedRows(Sequence[Sequence[str]]):
    """Rows that are generated when they are first needed: the prepared data may be in the cache already."""

    def __init__(self, generate: Callable[[], Rows]) -> None:
        self._generate = generate

    @cached_property
    def _rows(self) -> Rows:
        return self._generate()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]
