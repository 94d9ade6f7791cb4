"""Tables: rows of text from a file, two aligned files, a folder, or memory.

A table is a description. It reads its rows anew each time it is iterated over, one
at a time, so a file of any size takes the same memory. Rows that cannot be used are
counted during the pass and reported at its end, all together: a file with three
broken lines is mended once, not three times.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from regard.data.bad_rows import BadRows
from regard.data.columns import choose_columns, column_name, count_of
from regard.data.files import AnyPath, as_paths, plain_name
from regard.data.folders import split_files
from regard.data.layouts import FORMATS, Layout, Wish, aligned_layout, file_layout
from regard.data.records import Record, read_rows
from regard.errors import BadRowsError, ConfigError, DataError


class Row(NamedTuple):
    """A row of a table."""

    line: int
    """Where it starts, counted from 1: the line of a text file, the row of a Parquet file or a list."""
    values: tuple[str, ...]
    """Its texts in the order of the roles, exactly as they stand; none is empty or white space."""
    key: str | None = None
    """What it is split by, where that is not its first text; no task is handed this."""

    @property
    def split_by(self) -> str:
        """Rows that have this in common belong into the same set."""
        return self.values[0] if self.key is None else self.key


@dataclass(kw_only=True, eq=False)
class Table:
    """A source of rows that can be read again and again, in constant memory.

    Iterating yields each good row. At the end of the pass a `DataError` tells of the
    bad ones, unless `skip_bad`; if there is no good row at all it is raised anyway.
    """

    paths: tuple[Path, ...]
    format: str
    """One of `tsv csv jsonl parquet aligned lines`, or `rows` for a table in memory."""
    roles: tuple[str, ...]
    columns: tuple[str, ...]
    """The column for each role: its name, or its position from 1 where columns have no names."""
    names: tuple[str, ...] = ()
    """Of all columns of the file, where they have names."""
    key: str | None = None
    """The column that rows are split by, where it is not the first; what `read` yields ends with its text."""
    guesses: list[str]
    """What was not given but concluded from the file, in sentences."""
    skip_bad: bool
    read: Callable[[], Iterator[Record]] = field(repr=False)
    """Start reading from the beginning."""
    bad_rows: BadRows = field(init=False, repr=False)
    """What was wrong, as of the last pass that came to its end."""

    def __post_init__(self) -> None:
        self.bad_rows = self._no_bad_rows()

    @property
    def name(self) -> str:
        """What to call the table in a sentence."""
        return " and ".join(path.name for path in self.paths) or "the table in memory"

    def __iter__(self) -> Iterator[Row]:
        bad = self._no_bad_rows()
        num_good = 0
        for line, values, fault in self.read():
            for value in values:
                if not value or value.isspace():
                    fault = self._emptiness(values)
                    break
            if fault:
                bad.add(fault, line)
            else:
                num_good += 1
                yield Row(line, values) if self.key is None else Row(line, values[:-1], values[-1])
        bad.num_good = num_good
        self.bad_rows = bad
        if bad.total and not num_good:
            raise DataError(str(bad))
        if bad.total and not self.skip_bad:
            raise BadRowsError(str(bad))
        if not num_good:
            raise DataError(f"{self.name} has no rows")

    def check(self) -> int:
        """Read every row once, and return how many are good.

        Raises:
            DataError: If there is none, or if some are bad and `skip_bad` is not set.
        """
        return sum(1 for _ in self)

    def _no_bad_rows(self) -> BadRows:
        return BadRows(where=self.name, unit="row" if self.format in ("parquet", "rows") else "line")

    def _emptiness(self, values: tuple[str, ...]) -> str:
        names = self.roles if self.key is None else (*self.roles, column_name(self.key))
        return "an empty " + next(name for name, value in zip(names, values, strict=True) if not value.strip())


def open_table(
    path_or_paths: AnyPath | Sequence[AnyPath],
    *,
    columns: Sequence[str] | None = None,
    format: str | None = None,
    roles: Sequence[str] = ("source", "target"),
    header: bool | None = None,
    key: str | None = None,
    skip_bad: bool = False,
) -> Table:
    """Find out how to read a table, from its name and its first rows; what is given is not guessed.

    A row of TSV or CSV is bad if it has not as many columns as the header, or, without
    one, as most of the first hundred rows; a row of any format is bad if the text for a
    role is missing or empty. Wholly blank lines are passed over.

    Args:
        path_or_paths: A file; or one file for each role, aligned line by line; or a folder
            that `split_files` understands, of which the training files are taken.
        columns: For each role the name of its column or its position from 1. A field one
            object deeper is named `translation.en`, or `en` if that is unique.
        format: One of `tsv csv jsonl parquet aligned lines`, if the name does not say it.
        roles: What a row must give.
        header: Whether the first row of TSV or CSV names the columns.
        key: A column that each row is to bring along besides, by name or by position from 1.
        skip_bad: Pass over bad rows, where otherwise the pass ends in an error.

    Raises:
        DataError: If the file cannot be opened, or has not the columns asked for.
        ConfigError: If the arguments do not fit one another.
    """
    paths = as_paths(path_or_paths)
    wish = _checked_wish(roles, columns, format, header, key)
    guesses: list[str] = []
    if len(paths) == 1 and os.path.isdir(paths[0]):
        layout, paths, guesses = _folder_layout(paths[0], wish)
    elif len(paths) == 1:
        layout = file_layout(paths[0], wish)
    else:
        layout, paths = _aligned(paths, wish)
    if header is not None and layout.format not in ("tsv", "csv"):
        raise ConfigError(f"only TSV and CSV may have a header, got {header=} for {FORMATS[layout.format]}")
    if key is not None and layout.key is None:
        told = " and ".join(path.name for path in paths)
        raise DataError(f"{told} has no column {key!r} to split by: it is read as {FORMATS[layout.format]}")
    if layout.guess:
        guesses.append(layout.guess)
    return Table(
        paths=paths,
        format=layout.format,
        roles=wish.roles,
        columns=layout.columns,
        names=layout.names,
        key=layout.key,
        guesses=guesses,
        skip_bad=skip_bad,
        read=layout.read,
    )


def table_from_rows(
    rows: Iterable[Sequence[str]],
    roles: Sequence[str] = ("source", "target"),
    *,
    columns: Sequence[str] | None = None,
    key: str | None = None,
    skip_bad: bool = False,
) -> Table:
    """A table over rows in memory. An iterator is drained into a list first, to be read again.

    Rows have a value for each role; with a `key`, the position of a column from 1, they have more, of which `columns`
    are the roles', or all but the key in their order.

    >>> table = table_from_rows([("Hallo", "Hello"), ("Welt", "world")])
    >>> [row.values for row in table]
    [('Hallo', 'Hello'), ('Welt', 'world')]
    """
    kept = rows if isinstance(rows, Sequence) else list(rows)
    roles = _names(roles, "roles")
    width = len(kept[0]) if key is not None and kept and not isinstance(kept[0], str) else len(roles)
    positions = tuple(str(position) for position in range(1, width + 1))
    picks = range(width)
    if key is not None:
        if width == len(roles):
            told = f"rows have {count_of(width, 'column')}, and {', '.join(roles)} take all: data.columns says which do"
            raise ConfigError(f"column {key} to split by must stand beside those of the texts, but {told}")
        picks = choose_columns(positions, columns, roles, where="the table in memory", key=key)
    return Table(
        paths=(),
        format="rows",
        roles=roles,
        columns=tuple(positions[pick] for pick in picks[: len(roles)]),
        key=None if key is None else positions[picks[-1]],
        guesses=[],
        skip_bad=skip_bad,
        read=partial(read_rows, kept, width=width, picks=tuple(picks)),
    )


def rows_hash(rows: Iterable[Sequence[str]]) -> str:
    """The SHA-256 of rows in memory: what `content_hash` is for files.

    The length of each text goes before it, so that no two tables read the same.
    """
    digest = hashlib.sha256()
    for row in rows:
        cells = (row,) if isinstance(row, str) else tuple(row)
        digest.update(b"%d;" % len(cells))
        for cell in cells:
            data = str(cell).encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(data))
            digest.update(data)
    return digest.hexdigest()


def _checked_wish(
    roles: Sequence[str], columns: Sequence[str] | None, format: str | None, header: bool | None, key: str | None
) -> Wish:
    roles = _names(roles, "roles")
    if not roles or len(set(roles)) < len(roles):
        raise ConfigError(f"roles must be distinct and at least one, got {roles}")
    if format is not None and format not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if columns is not None:
        columns = _names(columns, "columns")
        if len(columns) != len(roles):
            told = f"got {count_of(len(columns), 'column')} ({', '.join(columns)})"
            raise ConfigError(f"one column is needed for each of {', '.join(roles)}, {told}")
    return Wish(roles=roles, columns=columns, format=format, header=header, key=key)


def _names(names: Sequence[str], what: str) -> tuple[str, ...]:
    if isinstance(names, str):  # which is a sequence of strings too, and would be taken apart
        raise ConfigError(f"{what} must be a list of names, got the string {names!r}")
    return tuple(names)


def _aligned(paths: tuple[Path, ...], wish: Wish) -> tuple[Layout, tuple[Path, ...]]:
    names = " and ".join(path.name for path in paths)
    if len(paths) != len(wish.roles):
        raise ConfigError(f"one file is needed for each of {', '.join(wish.roles)}, got {names or 'none'}")
    if wish.format not in (None, "aligned"):
        raise ConfigError(f"several files are read as aligned lines, got format {wish.format!r} for {names}")
    layout = aligned_layout(paths)
    if wish.columns is None or wish.columns == layout.columns:
        return layout, paths
    picks = choose_columns(layout.columns, wish.columns, wish.roles, where=f"the set of {names}")
    paths = tuple(paths[pick] for pick in picks)
    return aligned_layout(paths, [layout.columns[pick] for pick in picks]), paths


def _folder_layout(folder: Path, wish: Wish) -> tuple[Layout, tuple[Path, ...], list[str]]:
    """The layout of a folder's training files, the files, and what was guessed about the folder."""
    paths = split_files(folder, wish.columns)["train"]
    names = " and ".join(path.name for path in paths)
    has_columns_as_files = wish.columns == tuple(plain_name(path).removeprefix("train.") for path in paths)
    if has_columns_as_files:
        return aligned_layout(paths, wish.columns), paths, []
    if len(paths) == 1:
        return file_layout(paths[0], wish), paths, [f"took {names} from the folder {folder.name}"]
    layout, paths = _aligned(paths, wish)
    told = ", ".join(f"{role} = {column}" for role, column in zip(wish.roles, layout.columns, strict=True))
    guess = f"read {names} from the folder {folder.name} as aligned lines, by alphabet; {told}"
    return layout, paths, [guess]
