"""Tables: rows of text from a file, aligned files, a folder, or memory.

A `Table` describes how rows are read. It reads them anew each time it is iterated over, one at a time, so that a file
of any size takes the same memory. Invalid rows are counted during a pass and reported together at its end, so that all
of them can be corrected at once.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from regard.data.formats.cells import as_text, value_kind
from regard.data.formats.columns import choose_columns, number_columns
from regard.data.formats.delimited import delimited_layout, infer_delimiter, is_blank
from regard.data.formats.excel import excel_layout
from regard.data.formats.fasta import fasta_layout
from regard.data.formats.fasttext import fasttext_layout, is_fasttext
from regard.data.formats.files import (
    AnyPath,
    as_paths,
    check_file,
    content_hash,
    describe_encoding,
    file_encoding,
    format_suffix,
    iter_lines,
    sample_lines,
    uncompressed_name,
)
from regard.data.formats.folders import UNLABELED_NAMES, files_by_split, label_folders
from regard.data.formats.json_lines import decode_object, is_json_array, jsonl_layout
from regard.data.formats.layouts import (
    BLANK,
    FORMAT_OF_SUFFIX,
    FORMATS_OF_CELLS,
    TABLE_FORMATS,
    Layout,
    ReadOptions,
    Record,
    positions,
)
from regard.data.formats.messages import BadRows, format_column, format_count, format_names
from regard.data.formats.parquet import parquet_layout
from regard.data.formats.semeval import semeval_layout
from regard.data.formats.text_folders import labeled_paths, text_folder_layout
from regard.errors import BadRowsError, ConfigError, DataError

_WITHOUT_COLUMNS = ("aligned", "lines")
_BY_ROWS = ("parquet", "xlsx", "folders", "rows")
"""Formats without lines, whose rows are counted."""
_WITHOUT_ENCODING = ("parquet", "xlsx", "folders")
"""Formats that are not text, or whose files may each be in another encoding."""
_SAMPLE_ROWS = 100
_MOST_REPEATED_NAMES = 3


class TableRow(NamedTuple):
    """A row of a table."""

    line: int
    """Where it starts, counted from 1: the line of a text file, or the row of a Parquet file or a list."""
    values: tuple[str, ...]
    """Its texts in the order of the roles, unchanged; none is empty or white space."""
    key: str | None = None
    """The value by which it is split, if that is not its first text; it is not passed to the task."""

    @property
    def split_key(self) -> str:
        """Rows with the same key belong to the same split."""
        return self.values[0] if self.key is None else self.key


@dataclass(kw_only=True, eq=False)
class Table:
    """A source of rows that can be read repeatedly, in constant memory.

    Iterating yields each valid row. If there are invalid ones that may not be skipped, a `DataError` at the end of the
    pass reports them; if there is no valid row at all it is raised in any case.
    """

    paths: tuple[Path, ...]
    folder: Path | None = None
    """Where the paths are all files of a folder, which is read as a whole: that folder."""
    format: str
    """One of `TABLE_FORMATS`, or `rows` for a table in memory."""
    roles: tuple[str, ...]
    columns: tuple[str, ...]
    """The column for each role: its name, or its position from 1 if columns have no names."""
    names: tuple[str, ...] = ()
    """The names of all columns of the file, if they have names."""
    key: str | None = None
    """The column by which rows are split, if it is not the first; `read` yields its text after the values."""
    inferred: list[str]
    """What was inferred from the file, in sentences."""
    skip_bad: bool | None
    """None: a few invalid rows are skipped (`BadRows.may_be_skipped`)."""
    read: Callable[[], Iterator[Record]] = field(repr=False)
    """Read from the beginning."""
    bad_rows: BadRows = field(init=False, repr=False)
    """The invalid rows of the last complete pass."""

    def __post_init__(self) -> None:
        self.bad_rows = self._no_bad_rows()

    @property
    def name(self) -> str:
        """The table in a sentence."""
        if self.folder is not None:
            return self.folder.name
        return " and ".join(path.name for path in self.paths) or "the table in memory"

    def content_hash(self) -> str:
        """The hash of the files; of a folder that of the rows, since the names of folders are part of them."""
        if self.folder is None:
            return content_hash(self.paths)
        return rows_hash((*values, fault) for _, values, fault in self.read())

    def __iter__(self) -> Iterator[TableRow]:
        bad = self._no_bad_rows()
        num_good = 0
        for line, values, fault in self.read():
            for value in values:
                if not value or value.isspace():
                    fault = self._emptiness(values)
                    break
            if not fault:
                num_good += 1
                yield TableRow(line, values) if self.key is None else TableRow(line, values[:-1], values[-1])
            elif fault != BLANK:
                bad.add(fault, line)
        bad.num_good = num_good
        self.bad_rows = bad
        if bad.total and not num_good:
            raise DataError(str(bad))
        if bad.total and not bad.may_be_skipped(self.skip_bad):
            raise BadRowsError(str(bad))
        if not num_good:
            raise DataError(f"{self.name} has no rows")

    def check(self) -> int:
        """Read every row once, and return the number of valid ones.

        Raises:
            DataError: If there is none, or if some are invalid and may not be skipped.
        """
        return sum(1 for _ in self)

    def _no_bad_rows(self) -> BadRows:
        return BadRows(where=self.name, unit="row" if self.format in _BY_ROWS else "line")

    def _emptiness(self, values: tuple[str, ...]) -> str:
        names = self.roles if self.key is None else (*self.roles, format_column(self.key))
        return "an empty " + next(name for name, value in zip(names, values, strict=True) if not value.strip())


def open_table(
    path_or_paths: AnyPath | Sequence[AnyPath],
    *,
    columns: Sequence[str] | None = None,
    format: str | None = None,
    roles: Sequence[str] = ("source", "target"),
    header: bool | None = None,
    key: str | None = None,
    skip_bad: bool | None = False,
    encoding: str | None = None,
) -> Table:
    """Open a table; what is not specified is inferred from its name and its first rows.

    A row of TSV or CSV is invalid if it does not have as many columns as the header or, without one, as most of the
    first hundred rows; a row of any format is invalid if the text for a role is missing or empty. Blank lines are
    skipped.

    Args:
        path_or_paths: A file; or one file for each role, aligned line by line; or a folder for `files_by_split`, of
            which the training files are read.
        columns: For each role the name of its column or its position from 1. A field one object deeper is named
            `translation.en`, or `en` if that is unique.
        format: One of `TABLE_FORMATS`, if the name does not determine it.
        roles: The values that each row must have.
        header: Whether the first row of TSV or CSV contains the names of the columns.
        key: A column that is read in addition, by name or by position from 1.
        skip_bad: Skip invalid rows; otherwise the pass ends with an error. None: skip them if they are few.
        encoding: The encoding of text files, detected by default.

    Raises:
        DataError: If the file cannot be read, or does not have the columns.
        ConfigError: If the arguments contradict each other.
    """
    paths = as_paths(path_or_paths)
    folder = None
    options = replace(_check_options(roles, columns, format, header, key), encoding=encoding)
    layout, paths, picks, inferred = _find_layout(paths, options)
    if layout.format == "folders":
        (folder,), paths = paths, tuple(path for path, _ in labeled_paths(paths[0]))
    name = " and ".join(path.name for path in paths) if folder is None else folder.name
    if header is not None and layout.format not in FORMATS_OF_CELLS:
        given = f"got {header=} for {TABLE_FORMATS[layout.format]}"
        raise ConfigError(f"only TSV, CSV and Excel may have a header, {given}")
    if key is not None and layout.format in _WITHOUT_COLUMNS:
        raise DataError(f"{name} has no column {key!r} to split by: it is read as {TABLE_FORMATS[layout.format]}")
    chosen = tuple(layout.names[pick] for pick in picks)
    return Table(
        paths=paths,
        folder=folder,
        format=layout.format,
        roles=options.roles,
        columns=chosen[: len(options.roles)],
        names=layout.names if layout.has_names and layout.format not in _WITHOUT_COLUMNS else (),
        key=None if key is None else chosen[-1],
        inferred=[*([] if layout.format in _WITHOUT_ENCODING else describe_encoding(paths, encoding)), *inferred],
        skip_bad=skip_bad,
        read=partial(layout.read, tuple(picks)),
    )


def table_from_rows(
    rows: Iterable[Sequence[str]],
    roles: Sequence[str] = ("source", "target"),
    *,
    names: tuple[str, ...] | None = None,
    columns: Sequence[str] | None = None,
    key: str | None = None,
    skip_bad: bool | None = False,
) -> Table:
    """A table of rows in memory. An iterator is read into a list first, so that it can be read again.

    Rows have one value for each role. With a `key`, the position of a column from 1, they have more; `columns` are
    those of the roles, by default all but the key in their order. Where columns have `names`, they are chosen by name,
    or inferred as in a file with a header.

    >>> table = table_from_rows([("Hallo", "Hello"), ("Welt", "world")])
    >>> [row.values for row in table]
    [('Hallo', 'Hello'), ('Welt', 'world')]
    """
    kept = rows if isinstance(rows, Sequence) else list(rows)
    roles = _check_names(roles, "roles")
    has_names = names is not None
    width = len(kept[0]) if key is not None and kept and not isinstance(kept[0], str) else len(roles)
    width = width if names is None else len(names)
    names = names or positions(width)
    picks = list(range(width))
    inferred: list[str] = []
    if has_names:
        numeric = number_columns(
            [list(filter(None, map(as_text, cells))) for cells in zip(*kept[:_SAMPLE_ROWS], strict=True)]
        )
        picks = choose_columns(names, columns, roles, where="the table in memory", key=key, numeric=numeric)
        chosen = _describe_columns(roles, [names[pick] for pick in picks[: len(roles)]])
        inferred = [f"read the table in memory; {chosen}"] if columns is None else []
    elif key is not None:
        if width == len(roles):
            raise ConfigError(
                f"column {key} to split by must be one besides those of the texts, but rows have "
                f"{format_count(width, 'column')}, all taken by {', '.join(roles)}: set data.columns"
            )
        picks = choose_columns(names, columns, roles, where="the table in memory", key=key)
    return Table(
        paths=(),
        format="rows",
        roles=roles,
        columns=tuple(names[pick] for pick in picks[: len(roles)]),
        names=names if has_names else (),
        key=None if key is None else names[picks[-1]],
        inferred=inferred,
        skip_bad=skip_bad,
        read=partial(_read_memory, kept, width, tuple(picks)),
    )


def rows_hash(rows: Iterable[Sequence[str]]) -> str:
    """The SHA-256 of rows in memory, which corresponds to `content_hash` of files.

    The length of each text precedes it, so that different tables have different hashes.
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


def file_layout(path: Path, options: ReadOptions) -> Layout:
    """The layout of a single file: its format, by its name or its first lines, and its columns."""
    known = options.format or FORMAT_OF_SUFFIX.get(format_suffix(path))
    if options.encoding is None and known not in _WITHOUT_ENCODING:
        options = replace(options, encoding=file_encoding(path))
    format = known or _infer_format(path, options)
    if format == "aligned":
        raise ConfigError(f"aligned lines need a file for each of {', '.join(options.roles)}, got only {path}")
    if format == "folders":
        raise ConfigError(f"texts in folders need a folder with one for each label, got the file {path}")
    layout = _READERS[format](path, replace(options, format=format))
    return replace(layout, is_inferred=True) if known is None else layout


def lines_layout(path: Path, options: ReadOptions) -> Layout:
    """The layout of a file whose lines are one column of text."""
    read = partial(_read_lines, path, options.encoding)
    return Layout(format="lines", label=TABLE_FORMATS["lines"], names=("1",), has_names=False, read=read)


_READERS: dict[str, Callable[[Path, ReadOptions], Layout]] = {
    "tsv": delimited_layout,
    "csv": delimited_layout,
    "jsonl": jsonl_layout,
    "parquet": parquet_layout,
    "xlsx": excel_layout,
    "fasta": fasta_layout,
    "fasttext": fasttext_layout,
    "lines": lines_layout,
    "semeval": semeval_layout,
    "semeval-terms": semeval_layout,
}
"""The reader of each format, which returns the layout of a file of known format and encoding."""


def aligned_layout(
    paths: Sequence[Path], names: tuple[str, ...] | None = None, *, encoding: str | None = None
) -> Layout:
    """The layout of several files, one for each column: line n of each is row n. Suffixes are the default names."""
    for path in paths:
        check_file(path)
        if format_suffix(path) in FORMAT_OF_SUFFIX:
            raise DataError(f"several files are read line by line, one for each role, but {path.name} is a table")
    names = names or tuple(Path(uncompressed_name(path)).suffix.removeprefix(".") for path in paths)
    has_names = all(names) and len(set(names)) == len(names)
    return Layout(
        format="aligned",
        label=TABLE_FORMATS["aligned"],
        names=names if has_names else positions(len(paths)),
        has_names=has_names,
        read=partial(_read_aligned, tuple(paths), encoding),
    )


def _infer_format(path: Path, options: ReadOptions) -> str:
    """The format of a file whose name does not determine it."""
    lines = sample_lines(path, _SAMPLE_ROWS, keep_carriage_returns=True, encoding=options.encoding)
    full = [line for line in lines if line and not line.isspace()]
    if decode_object(full[0]) is not None or (full[0].startswith("[{") and is_json_array(path, options.encoding)):
        return "jsonl"
    if len(options.roles) == 1 and options.columns is None:
        return "lines"  # running text also contains tabs and commas
    if is_fasttext(full):
        return "fasttext"
    if 2 * sum("\t" in line for line in full) > len(full):
        return "tsv"
    delimiter = infer_delimiter(lines)
    is_csv = len(full) > 1 and delimiter is not None and delimiter[1] == 1.0
    return "csv" if is_csv else "lines"


def _find_layout(
    paths: tuple[Path, ...], options: ReadOptions
) -> tuple[Layout, tuple[Path, ...], list[int], list[str]]:
    """The layout, the files, the columns for the roles and the key, and what was inferred."""
    if len(paths) == 1 and os.path.isdir(paths[0]):
        return _folder_layout(paths[0], options)
    if len(paths) == 1:
        layout = file_layout(paths[0], options)
        picks = _choose_columns(layout, options, paths[0].name)
        return layout, paths, picks, _describe_inference(paths[0], layout, options, picks)
    names = " and ".join(path.name for path in paths)
    if len(paths) != len(options.roles):
        raise ConfigError(f"one file is needed for each of {', '.join(options.roles)}, got {names or 'none'}")
    if options.format not in (None, "aligned"):
        raise ConfigError(f"several files are read as aligned lines, got format {options.format!r} for {names}")
    layout = aligned_layout(paths, encoding=options.encoding)
    picks = list(range(len(paths)))
    if options.columns is not None:
        picks = _choose_columns(layout, options, f"the set of {names}")
    return layout, tuple(paths[pick] for pick in picks), picks, []


def _folder_layout(folder: Path, options: ReadOptions) -> tuple[Layout, tuple[Path, ...], list[int], list[str]]:
    """The same for the training files of a folder."""
    paths = files_by_split(folder, options.columns)["train"]
    if os.path.isdir(paths[0]):
        layout = text_folder_layout(paths[0], options)
        picks = _choose_columns(layout, options, paths[0].name)
        return layout, paths, picks, _describe_label_folders(paths[0])
    if options.columns == tuple(uncompressed_name(path).removeprefix("train.") for path in paths):
        return aligned_layout(paths, options.columns, encoding=options.encoding), paths, list(range(len(paths))), []
    layout, paths, picks, inferred = _find_layout(paths, options)
    names = " and ".join(path.name for path in paths)
    if len(paths) == 1:
        return layout, paths, picks, [f"took {names} from the folder {folder.name}", *inferred]
    columns = _describe_columns(options.roles, [layout.names[pick] for pick in picks])
    inferred = [f"read {names} from the folder {folder.name} as aligned lines, by alphabet; {columns}"]
    return layout, paths, picks, inferred


def _describe_label_folders(folder: Path) -> list[str]:
    labels = [inner.name for inner in label_folders(folder)]
    unused = [inner.name for inner in sorted(folder.iterdir()) if inner.name.lower() in UNLABELED_NAMES]
    left_out = [f"{name} of {folder.name} is not used: its texts have no label" for name in unused]
    return [f"read the texts in the folders of {folder.name}, which are labels: {format_names(labels)}", *left_out]


def _choose_columns(layout: Layout, options: ReadOptions, where: str) -> list[int]:
    key = None if layout.format in _WITHOUT_COLUMNS else options.key
    return choose_columns(
        layout.names, options.columns, options.roles, where=where, key=key, index=layout.index, numeric=layout.numeric
    )


def _describe_inference(path: Path, layout: Layout, options: ReadOptions, picks: Sequence[int]) -> list[str]:
    if layout.format == "lines":
        whole = f"read {path.name} as {layout.label}; {options.roles[0]} = the whole line"
        return [whole] if layout.is_inferred else []
    if options.columns is not None and not layout.is_inferred:
        return []
    columns = _describe_columns(options.roles, [layout.names[pick] for pick in picks[: len(options.roles)]])
    of_all = f" of {len(layout.names)} columns" if len(layout.names) > len(options.roles) else ""
    ignored = [format_column(layout.names[place]) for place in layout.index if place not in picks]
    index = [f"{name} of {path.name} numbers the rows, and is not used" for name in ignored]
    return [f"read {path.name} as {layout.label}; {columns}{of_all}", *index]


def _describe_columns(roles: Sequence[str], columns: Sequence[str]) -> str:
    """The column of each role; of many roles, those of the column's name are named once."""
    is_long = len(roles) > _MOST_REPEATED_NAMES
    return ", ".join(
        format_column(column) if is_long and role == column else f"{role} = {format_column(column)}"
        for role, column in zip(roles, columns, strict=True)
    )


def _check_options(
    roles: Sequence[str], columns: Sequence[str] | None, format: str | None, header: bool | None, key: str | None
) -> ReadOptions:
    roles = _check_names(roles, "roles")
    if not roles or len(set(roles)) < len(roles):
        raise ConfigError(f"roles must be distinct and at least one, got {roles}")
    if format is not None and format not in TABLE_FORMATS:
        raise ConfigError(f"format must be one of {', '.join(TABLE_FORMATS)}, got {format!r}")
    if columns is not None:
        columns = _check_names(columns, "columns")
        if len(columns) != len(roles):
            given = f"got {format_count(len(columns), 'column')} ({', '.join(columns)})"
            raise ConfigError(f"one column is needed for each of {', '.join(roles)}, {given}")
    return ReadOptions(roles=roles, columns=columns, format=format, header=header, key=key)


def _check_names(names: Sequence[str], what: str) -> tuple[str, ...]:
    if isinstance(names, str):  # which is a sequence of strings, too
        raise ConfigError(f"{what} must be a list of names, got the string {names!r}")
    return tuple(names)


def _read_lines(path: Path, encoding: str | None, picks: Sequence[int]) -> Iterator[Record]:
    for number, line in enumerate(iter_lines(path, encoding=encoding), 1):
        yield (number, (line,), "") if line and not line.isspace() else (number, (), BLANK)


def _read_aligned(paths: Sequence[Path], encoding: str | None, picks: Sequence[int]) -> Iterator[Record]:
    chosen = [paths[pick] for pick in picks]
    readers = [iter_lines(path, encoding=encoding) for path in chosen]
    for number, lines in enumerate(zip_longest(*readers), 1):
        if None in lines:
            _reject_unequal(chosen, readers, lines, number)
        yield (number, (), BLANK) if is_blank(lines) else (number, lines, "")


def _reject_unequal(
    paths: Sequence[Path], readers: Iterable[Iterator[str]], lines: tuple[Any, ...], row: int
) -> NoReturn:
    # The files without a line ended at the previous row; the rest of the others is counted.
    counts = [
        row - 1 if line is None else row + sum(1 for _ in rest) for line, rest in zip(lines, readers, strict=True)
    ]
    lengths = [f"{path.name} has {format_count(count, 'line')}" for path, count in zip(paths, counts, strict=True)]
    raise DataError(f"aligned files must have the same number of lines, but {', '.join(lengths)}")


def _read_memory(rows: Iterable[Sequence[object]], width: int, picks: Sequence[int]) -> Iterator[Record]:
    """Rows in memory; a string is a row of one value."""
    for number, row in enumerate(rows, 1):
        cells = (row,) if isinstance(row, str) else tuple(row)
        if len(cells) != width:
            yield number, (), f"{format_count(len(cells), 'value')} instead of {width}"
            continue
        values = [as_text(cells[column]) for column in picks]
        wrong = next((column for column, value in zip(picks, values, strict=True) if value is None), None)
        if wrong is None:
            yield number, tuple(value for value in values if value is not None), ""
        else:
            yield number, (), f"{value_kind(cells[wrong])} in column {wrong + 1}"
