"""Describing a source of data: what it is, its format, and its columns by a sample of the first rows.

Tasks recognize their data by this description. It is read from the first thousand rows, or fewer long ones, so that a
file of any size takes little time and memory.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from regard.data.builtin import builtin_names, find_builtin
from regard.data.formats.cells import (
    as_text,
    decimal_mark,
    decimal_marks,
    is_date,
    is_missing,
    is_number,
    with_decimal_point,
)
from regard.data.formats.conll import TAG_FORMATS, TAG_ROLES, open_tagged
from regard.data.formats.files import AnyPath, as_paths, check_file, format_suffix, iter_lines
from regard.data.formats.folders import TABLE_SUFFIXES, files_by_split, label_folders_by_split, text_files_by_split
from regard.data.formats.graph_folders import is_graph_folder, read_graph_folder
from regard.data.formats.images import (
    IMAGE_ROLES,
    has_labeled_images,
    image_folders_by_split,
    images_in_folder,
    is_image,
)
from regard.data.formats.json_lines import Field, decode_object, field_name, fields_of, iter_json_lines, list_fields
from regard.data.formats.layouts import BLANK, Layout, ReadOptions, positions
from regard.data.formats.parquet import parquet_objects
from regard.data.formats.squad import question_format
from regard.data.formats.tables import aligned_layout, file_layout
from regard.data.formats.text_folders import sample_texts, text_folder_layout
from regard.errors import DataError

_Row = TypeVar("_Row")
SourceKind = Literal["file", "files", "folder", "image-folder", "text-folder", "builtin", "rows"]

_TAGGED_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
_NEARLY_ALL = 0.95
_MIN_MEASURED, _MIN_VALUES, _MAX_CLASSES = 10, 5, 20
"""The fewest cells and distinct ones of measurements, and the most of whole numbers that name classes."""
_MAX_LABEL_LENGTH = 40
_MAX_ROWS, _MAX_CHARACTERS = 1_000, 1 << 24


@dataclass(frozen=True)
class ColumnSummary:
    """The cells of one column in a sample of rows, and statistics of them."""

    name: str
    """The name of the column, or its position from 1 if columns have no names."""
    cells: tuple[str, ...]
    """The texts of the sample; missing and invalid values are left out."""
    folder: Path = Path()
    """The folder to which paths are relative."""

    @property
    def plain_name(self) -> str:
        """The last part of the name, in lower case: `en` for `translation.EN`."""
        return self.name.rpartition(".")[2].strip().lower()

    @cached_property
    def share_numeric(self) -> float:
        """The share of cells that are finite numbers."""
        return self._share(is_number(cell) for cell in self.cells)

    @cached_property
    def known(self) -> tuple[str, ...]:
        """The cells that are neither empty nor a word for a missing value, such as NA."""
        return tuple(cell for cell in self.cells if not is_missing(cell))

    @cached_property
    def is_numeric(self) -> bool:
        """Whether nearly all cells that are known are numbers, with a decimal point or a decimal comma."""
        return bool(self.known) and sum(map(bool, map(decimal_marks, self.known))) >= _NEARLY_ALL * len(self.known)

    @cached_property
    def numbers(self) -> list[float]:
        """The cells that are numbers."""
        mark = decimal_mark(self.cells)
        return [float(with_decimal_point(cell, mark)) for cell in self.cells if mark in decimal_marks(cell)]

    @cached_property
    def has_fractions(self) -> bool:
        """Whether some of its numbers are not whole."""
        return any(not number.is_integer() for number in self.numbers)

    @cached_property
    def is_measurement(self) -> bool:
        """Whether cells are numbers that are not the names of a few classes.

        Whole numbers are, if there are few distinct ones, or if they are all those from 0 or 1 on; both repeatedly.
        """
        if not self.is_numeric or len(self.cells) < _MIN_MEASURED or self.num_distinct < _MIN_VALUES:
            return False
        values = set(self.numbers)
        is_few = len(values) <= _MAX_CLASSES and 2 * len(values) <= len(self.cells)
        is_range = min(values) in (0, 1) and max(values) - min(values) == len(values) - 1
        return self.has_fractions or not (is_few or (is_range and 10 * len(values) <= len(self.cells)))

    @cached_property
    def kind(self) -> str:
        """What its cells are, for messages."""
        if self.share_image_names == 1.0 and self.cells:
            return "images"
        if self.share_dates >= _NEARLY_ALL:
            return "dates"
        if self.is_numeric:
            return "numbers"
        is_short = self.max_characters <= _MAX_LABEL_LENGTH
        return "labels" if is_short and 10 * self.num_distinct <= len(self.cells) else "text"

    @cached_property
    def share_dates(self) -> float:
        """The share of known cells that are dates, with or without a time."""
        return sum(is_date(cell) for cell in self.known) / max(1, len(self.known))

    @cached_property
    def share_image_names(self) -> float:
        """The share of cells with the suffix of an image."""
        return self._share(is_image(cell) for cell in self.cells)

    @cached_property
    def share_images(self) -> float:
        """The share of cells that are paths of image files that exist."""
        return self._share(is_image(cell) and os.path.isfile(self.folder / cell) for cell in self.cells)

    @cached_property
    def num_distinct(self) -> int:
        """The number of distinct cells."""
        return len(set(self.cells))

    @cached_property
    def max_characters(self) -> int:
        return max(map(len, self.cells), default=0)

    @cached_property
    def mean_characters(self) -> float:
        return sum(map(len, self.cells)) / max(1, len(self.cells))

    @cached_property
    def mean_words(self) -> float:
        """The mean number of words separated by white space."""
        return sum(len(cell.split()) for cell in self.cells) / max(1, len(self.cells))

    def _share(self, flags: Iterable[bool]) -> float:
        return sum(flags) / max(1, len(self.cells))


@dataclass(frozen=True, kw_only=True)
class SourceSummary:
    """A description of a source of data, by which tasks recognize it."""

    kind: SourceKind
    """One file, several files, a folder (described by its training files), a folder with one folder of images or of
    texts for each label, a built-in data set, or rows in memory."""
    paths: tuple[Path, ...] = ()
    """The files; for a folder its training files, or the folder itself if it has images or texts by label."""
    suffix: str = ""
    """The suffix of the first file without that of a compression, such as `.tsv`."""
    format: str
    """`tsv csv jsonl parquet xlsx lines aligned semeval`, `columns` or `conllu` (tagged sentences), `squad`, `images`,
    `folders` (texts by label), `graphs` (a folder in TU Dortmund's format), or `rows` for a built-in data set and rows
    in memory. Plain text is `lines`."""
    has_names: bool = True
    """Whether columns have names, rather than positions."""
    columns: tuple[ColumnSummary, ...] = ()
    """The columns of text, numbers and dates: without cells for a built-in data set, and none for SQuAD's JSON, which
    can only be read as a whole."""
    index: tuple[str, ...] = ()
    """The names of columns that only number the rows."""
    lists: tuple[str, ...] = ()
    """The names of columns whose values are lists, such as words and tags."""
    num_rows: int = 0
    """The number of valid rows in the sample."""
    num_bad: int = 0
    """The number of rows that could not be read."""
    is_complete: bool = False
    """Whether the sample contains all rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, or their positions."""
        return tuple(column.name for column in self.columns)


def describe(
    paths: AnyPath | Sequence[AnyPath],
    *,
    columns: Sequence[str] = (),
    format: str | None = None,
    header: bool | None = None,
    encoding: str | None = None,
) -> SourceSummary:
    """Describe a file, several files, a folder or a built-in data set.

    Args:
        paths: One or several paths, or the name of a built-in data set.
        columns: Names of columns that are known to exist, by which a header is recognized.
        format: The format, if the name of the file does not determine it.
        header: Whether the first row of TSV, CSV or Excel contains the names of the columns.
        encoding: The encoding of text files, detected by default.

    Raises:
        DataError: If a file is missing, empty, damaged or not text, or does not have its format.

    Example:
        >>> summary = describe("dates")
        >>> summary.kind, summary.names
        ('builtin', ('source', 'target'))
    """
    path, *others = as_paths(paths) or (None,)
    if path is None:
        raise DataError("no training data: name a file, several files, a folder or a built-in data set")
    options = ReadOptions(columns=tuple(columns) or None, format=format, header=header, encoding=encoding)
    if others:
        return _describe_files((path, *others), options, "files")
    if not os.path.exists(path):
        if str(path) in builtin_names():
            return _describe_builtin(str(path))
        raise DataError(f"there is no file {path}; built-in data sets: {', '.join(builtin_names())}")
    if not path.is_dir():
        return _describe_file(path, options, "file")
    if has_labeled_images(path):
        return _describe_image_folder(path)
    if is_graph_folder(path):
        graphs, is_complete = _take(record for _, record in read_graph_folder(path, options.encoding))
        return _describe_objects(graphs, kind="folder", format="graphs", paths=(path,), is_complete=is_complete)
    if labeled := label_folders_by_split(path):
        return _describe_text_folder(labeled["train"], options)
    try:
        found = files_by_split(path, options.columns)["train"]
    except DataError as error:
        try:
            found = text_files_by_split(path)["train"]
        except DataError:
            raise error from None
    return _describe_files(found, options, "folder")


def describe_rows(rows: Iterable[Any]) -> SourceSummary:
    """Describe rows in memory: strings, sequences with one value for each column, or dictionaries.

    Values that are lists or tuples, such as words and tags, are named in `lists`.

    Example:
        >>> describe_rows([("Hallo", 1.5), ("Welt", 2)]).columns[1].share_numeric
        1.0
    """
    sample, is_complete = _take(rows)
    objects = [row if isinstance(row, Mapping) else _by_position(row) for row in sample]
    has_names = any(isinstance(row, Mapping) for row in sample)
    return _describe_objects(objects, kind="rows", format="rows", has_names=has_names, is_complete=is_complete)


def _take(rows: Iterable[_Row]) -> tuple[list[_Row], bool]:
    """The first rows, and whether these are all of them."""
    sample: list[_Row] = []
    num_characters = 0
    for row in rows:
        if len(sample) == _MAX_ROWS or num_characters > _MAX_CHARACTERS:
            return sample, False
        sample.append(row)
        num_characters += _num_characters(row)
    return sample, True


def _num_characters(value: Any) -> int:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return sum(map(_num_characters, value))
    return len(value) if isinstance(value, str) else 0


def _by_position(row: Any) -> dict[str, Any]:
    values = [row] if isinstance(row, str) or not isinstance(row, Sequence) else row
    plain = (list(value) if isinstance(value, tuple) else value for value in values)
    return dict(zip(positions(len(values)), plain, strict=True))


def _describe_files(paths: tuple[Path, ...], options: ReadOptions, kind: SourceKind) -> SourceSummary:
    if len(paths) == 1:
        return _describe_file(paths[0], options, kind)
    if any(format_suffix(path).removeprefix(".") in TABLE_SUFFIXES for path in paths):
        first = _describe_file(check_file(paths[0]), options, kind)
        return replace(first, paths=paths)
    layout = aligned_layout(paths, encoding=options.encoding)
    readers = [iter_lines(path, encoding=options.encoding) for path in paths]
    lines, is_complete = _take(zip(*readers, strict=False))
    good = [row for row in lines if any(cell.strip() for cell in row)]
    return _describe_table(paths, layout, good, kind, is_complete=is_complete)


def _describe_file(path: Path, options: ReadOptions, kind: SourceKind) -> SourceSummary:
    check_file(path)
    suffix = format_suffix(path)
    common: dict[str, Any] = {"kind": kind, "paths": (path,), "suffix": suffix}
    if options.format in TAG_FORMATS or (options.format is None and suffix in _TAGGED_SUFFIXES):
        return _describe_tagged(path, options, common)
    format = options.format
    if format is None and suffix == ".json":
        format = question_format(path, options.encoding)
    if format == "squad":
        return SourceSummary(format="squad", **common)
    layout = file_layout(path, replace(options, format=format))
    if layout.format == "jsonl":
        lines, is_complete = _take(
            line for line in iter_json_lines(path, encoding=options.encoding) if line and not line.isspace()
        )
        found = [record for line in lines if (record := decode_object(line)) is not None]
        num_bad = len(lines) - len(found)
        return _describe_objects(found, format="jsonl", num_bad=num_bad, is_complete=is_complete, **common)
    if layout.format == "parquet":
        found, is_complete = _take(parquet_objects(path))
        return _describe_objects(found, format="parquet", is_complete=is_complete, **common)
    records = layout.read(range(len(layout.names)))
    sample, is_complete = _take(record for record in records if record[2] != BLANK)
    good = [values for _, values, fault in sample if not fault]
    return _describe_table((path,), layout, good, kind, num_bad=len(sample) - len(good), is_complete=is_complete)


def _describe_table(
    paths: tuple[Path, ...],
    layout: Layout,
    rows: Sequence[Sequence[str]],
    kind: SourceKind,
    *,
    num_bad: int = 0,
    is_complete: bool,
) -> SourceSummary:
    cells = zip(*rows, strict=True) if rows else ((),) * len(layout.names)
    folder = paths[0].parent
    return SourceSummary(
        kind=kind,
        paths=paths,
        suffix=format_suffix(paths[0]),
        format=layout.format,
        has_names=layout.has_names,
        columns=tuple(ColumnSummary(name, tuple(some), folder) for name, some in zip(layout.names, cells, strict=True)),
        index=tuple(layout.names[place] for place in layout.index),
        num_rows=len(rows),
        num_bad=num_bad,
        is_complete=is_complete,
    )


def _describe_objects(objects: Sequence[Mapping[str, Any]], **options: Any) -> SourceSummary:
    """Describe objects with fields, some of which may be missing in some of them."""
    records = [dict(record) for record in objects]
    folder = options["paths"][0].parent if options.get("paths") else Path()
    columns = tuple(
        ColumnSummary(field_name(field), tuple(_cells(records, field)), folder) for field in fields_of(records)
    )
    return SourceSummary(columns=columns, lists=tuple(list_fields(records)), num_rows=len(records), **options)


def _cells(records: Iterable[Mapping[str, Any]], field: Field) -> Iterable[str]:
    for record in records:
        value: Any = record
        for key in field:
            value = value.get(key) if isinstance(value, Mapping) else None
        if (text := as_text(value)) is not None:
            yield text


def _describe_tagged(path: Path, options: ReadOptions, common: dict[str, Any]) -> SourceSummary:
    source = open_tagged(path, format=options.format, encoding=options.encoding)
    sample, is_complete = _take(source.read())
    good = [(" ".join(words), " ".join(tags)) for _, words, tags, fault in sample if not fault]
    cells = zip(*good, strict=True) if good else ((), ())
    return SourceSummary(
        format=source.format,
        columns=tuple(ColumnSummary(name, tuple(some)) for name, some in zip(TAG_ROLES, cells, strict=True)),
        lists=TAG_ROLES,
        num_rows=len(good),
        num_bad=len(sample) - len(good),
        is_complete=is_complete,
        **common,
    )


def _describe_image_folder(folder: Path) -> SourceSummary:
    rows = images_in_folder(Path(image_folders_by_split(folder)["train"])).rows
    # Spread over all labels, which are listed one after the other.
    sample = rows[:: max(1, -(-len(rows) // _MAX_ROWS))]
    cells = zip(*sample, strict=True)
    return SourceSummary(
        kind="image-folder",
        paths=(folder,),
        format="images",
        columns=tuple(ColumnSummary(name, some, folder) for name, some in zip(IMAGE_ROLES, cells, strict=True)),
        num_rows=len(sample),
        is_complete=len(sample) == len(rows),
    )


def _describe_text_folder(folder: Path, options: ReadOptions) -> SourceSummary:
    rows, is_complete = sample_texts(folder, _MAX_ROWS, options.encoding)
    layout = text_folder_layout(folder, options)
    return _describe_table((folder,), layout, rows, "text-folder", is_complete=is_complete)


def _describe_builtin(name: str) -> SourceSummary:
    # Without cells: generating rows takes a second, and the data may be in the cache already.
    return SourceSummary(
        kind="builtin", format="rows", columns=tuple(ColumnSummary(column, ()) for column in find_builtin(name).columns)
    )
