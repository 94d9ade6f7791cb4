"""Whole rows of tables, with all of their columns: read one at a time, and written in the same or in another format.

Cells of CSV and TSV are text; JSON lines, Parquet and rows in memory keep the types of their values. A table is read
twice, once to check and count its rows and once to use them, so that a bad row is reported before any work is done.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from regard.data.formats.cells import as_text, is_date, is_number, value_kind
from regard.data.formats.columns import choose_columns, require_column
from regard.data.formats.files import AnyPath, check_file, format_suffix
from regard.data.formats.json_lines import iter_json_lines
from regard.data.formats.layouts import BLANK, Layout, ReadOptions, positions
from regard.data.formats.messages import BadRows, format_column, format_count
from regard.data.formats.parquet import parquet_objects, parquet_schema
from regard.data.formats.tables import file_layout
from regard.errors import ConfigError, DataError, DeviceError
from regard.files import load_json, partial_path

WRITTEN_FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
"""Formats that tables are written in, by the suffix of the file."""
_UNREADABLE_SUFFIXES = (".xml", ".conll", ".conllu", ".iob", ".iob2", ".bio")
_SAMPLE_ROWS = 100
_ROWS_AT_ONCE = 256
_MOST_NAMED = 20

Row = dict[str, Any]
Records = Iterator[tuple[int, Row, str]]
"""Line, row and fault, as in `layouts.Record`."""


@dataclass(kw_only=True, eq=False)
class RecordTable:
    """A table whose rows are read with all of their columns."""

    name: str
    format: str
    """csv, tsv, jsonl, parquet, lines or rows; another one for a format that is only read."""
    read: Callable[[], Records] = field(repr=False)
    names: tuple[str, ...] = ()
    """The columns, as far as they are known before `check`."""
    has_header: bool = True
    """Whether the names are those of the file; otherwise they are positions."""
    delimiter: str = ","
    """The delimiter of CSV; of several characters the first separates written cells, which may be quoted."""
    schema: Any = None
    """For Parquet: the types of the columns."""
    num_rows: int = 0
    """Known after `check`."""

    def check(self) -> None:
        """Read every row once, count them, and find all columns; raise if a row is invalid."""
        bad, names = BadRows(where=self.name, unit="row" if self.format in ("parquet", "rows") else "line"), {}
        names.update(dict.fromkeys(self.names))
        for line, row, fault in self.read():
            if not fault:
                bad.num_good += 1
                names.update(dict.fromkeys(row))
            elif fault != BLANK:
                bad.add(fault, line)
        if bad.total:
            raise DataError(str(bad))
        if not bad.num_good:
            raise DataError(f"{self.name} has no rows")
        self.names, self.num_rows = tuple(names), bad.num_good

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row, fault in self.read() if not fault)


def open_records(
    data: AnyPath | Iterable[Any],
    *,
    wanted: Sequence[str] | None = None,
    own: Sequence[str] = (),
    encoding: str | None = None,
    format: str | None = None,
    header: bool | None = None,
) -> RecordTable:
    """Open a file, or rows in memory: dictionaries, sequences of cells, or single texts.

    A first row of CSV or TSV with one of the columns that are `wanted`, or that are the run's `own`, is a header, if
    `header` does not say whether it is. The encoding of text and the format of the file are detected if not given.
    """
    if not isinstance(data, str | os.PathLike):
        rows = [_as_row(row, number) for number, row in enumerate(data, start=1)]
        return RecordTable(name="the table in memory", format="rows", read=partial(_read_memory, rows))
    path = check_file(data)
    if format_suffix(path) in _UNREADABLE_SUFFIXES:
        raise DataError(f"{path.name} is not a table with a row for each input: use {_suffixes()}")
    kind = format or WRITTEN_FORMATS.get(format_suffix(path))
    if kind == "jsonl":
        return RecordTable(name=path.name, format=kind, read=partial(_read_json_lines, path, encoding))
    if kind == "parquet":
        schema = parquet_schema(path)
        return RecordTable(
            name=path.name, format=kind, read=partial(_read_parquet, path), names=tuple(schema.names), schema=schema
        )
    return _open_cells(path, wanted, own, ReadOptions(format=format, header=header, encoding=encoding))


def choose_inputs(
    table: RecordTable, parts: Sequence[str], *, wanted: Sequence[str] | None = None, own: Sequence[str] = ()
) -> tuple[list[str], str]:
    """The columns of the parts of an input, and how they were chosen, for a message.

    They are those `wanted`; else the run's `own`, where the table has them; else columns of text, of which one with a
    usual name takes precedence over the first. An aspect may be left out.
    """
    sample = list(islice(table, _SAMPLE_ROWS))
    names = [*table.names, *_inner_names(sample)]
    least = sum(part != "aspect" for part in parts)
    if wanted is not None:
        if not least <= len(wanted) <= len(parts):
            raise ConfigError(f"an input is {' and '.join(parts)}, got {format_count(len(wanted), 'column')}")
        return [names[require_column(name, names, where=table.name)] for name in wanted], ""
    for count in (len(parts), least):
        if len(own) >= count and all(name in names for name in own[:count]):
            return list(own[:count]), "as in training"
    texts = [name for name in names if _is_text(cell(row, name) for row in sample)]
    if len(texts) < least:
        raise DataError(
            f"{table.name} has {format_count(len(texts), 'column')} of text, and {', '.join(parts)} must be found: "
            f"name the columns among {', '.join(map(format_column, names[:_MOST_NAMED]))}"
        )
    picks = choose_columns(texts, None, tuple(parts[: min(len(parts), len(texts))]), where=table.name)
    return [texts[pick] for pick in picks][: max(least, 1)], "inferred from the table"


def describe_inputs(parts: Sequence[str], columns: Sequence[str], reason: str) -> str:
    """Which column each part of an input is read from, in a message."""
    named = ", ".join(f"{part} = {format_column(name)}" for part, name in zip(parts, columns, strict=False))
    return f"{named}, {reason}" if reason else named


def cell(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, which may be one object deeper: `translation.en`; None if there is none."""
    if name in row:
        return row[name]
    outer, _, inner = name.partition(".")
    value = row.get(outer)
    return value.get(inner) if isinstance(value, Mapping) else None


def input_text(value: Any) -> str:
    """A cell as an input: a list of words is joined by spaces, and what is missing is empty."""
    if isinstance(value, list | tuple):
        return " ".join(as_text(item) or "" for item in value)
    return "" if value is None else as_text(value) or ""


def written_format(out: AnyPath) -> str:
    """The format of an output file by its suffix; its folder must exist."""
    if not Path(out).parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {Path(out).parent}")
    suffix = Path(out).suffix.lower()
    if suffix not in WRITTEN_FORMATS:
        raise ConfigError(f"the name of the output must end in {_suffixes()}, got {Path(out).name!r}")
    return WRITTEN_FORMATS[suffix]


def require_other_file(out: AnyPath, data: AnyPath) -> None:
    """Raise if the output would replace the input."""
    if Path(out).exists() and Path(data).exists() and Path(out).samefile(data):
        raise ConfigError(f"the output must be another file than the input, got {out} for both")


def write_records(out: AnyPath | TextIO, rows: Iterator[Row], table: RecordTable, added: Mapping[str, str]) -> None:
    """Write rows that `table` had and that got more columns; a file is complete or not there at all.

    `added` are the new columns and their kinds: text, number or spans. Text goes to an open file in the format of the
    table, and in CSV where that is not text.
    """
    if not isinstance(out, str | os.PathLike):
        format = table.format if table.format in ("tsv", "jsonl") else "tsv" if table.format == "lines" else "csv"
        _write_text(out, rows, table, added, format)
        return
    format, path = written_format(out), Path(out)
    with _partial_file(path) as part:
        if format == "parquet":
            _write_parquet(part, rows, table, added)
        else:
            with open(part, "w", encoding="utf-8", newline="") as file:
                _write_text(file, rows, table, added, format)


@contextmanager
def _partial_file(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` at the end; after an error or an interruption it is removed."""
    part = partial_path(path)
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DeviceError(f"cannot write {path}: {error.strerror or error}") from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _write_text(file: TextIO, rows: Iterator[Row], table: RecordTable, added: Mapping[str, str], format: str) -> None:
    names = [*table.names, *added]
    if format == "jsonl":
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        return
    write = (
        _tsv_writer(file)
        if format == "tsv"
        else csv.writer(file, delimiter=table.delimiter[0], lineterminator="\n").writerow
    )
    if table.has_header:
        write(names)
    for row in rows:
        write([_as_cell(row.get(name)) for name in names])
    file.flush()


def _tsv_writer(file: TextIO) -> Callable[[Sequence[str]], Any]:
    """A cell of TSV has neither tabs nor line ends: they become spaces."""
    return lambda cells: file.write("\t".join(" ".join(text.split("\t")) for text in map(_one_line, cells)) + "\n")


def _one_line(text: str) -> str:
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def _as_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    text = as_text(value)
    return str(value) if text is None else text


def _write_parquet(part: Path, rows: Iterator[Row], table: RecordTable, added: Mapping[str, str]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError("writing Parquet needs the package pyarrow: install regard[parquet]") from error
    span = [("text", pyarrow.string()), ("label", pyarrow.string()), ("start", pyarrow.int64()),
            ("end", pyarrow.int64()), ("probability", pyarrow.float64())]  # fmt: skip
    kinds = {"text": pyarrow.string(), "number": pyarrow.float64(), "spans": pyarrow.list_(pyarrow.struct(span))}
    first = list(islice(rows, _ROWS_AT_ONCE))
    try:
        schema = table.schema
        if schema is None:
            known = [{name: row.get(name) for name in table.names} for row in first]
            schema = pyarrow.Table.from_pylist(known).schema
        for name, kind in added.items():
            schema = schema.append(pyarrow.field(name, kinds[kind]))
        with parquet.ParquetWriter(part, schema) as writer:
            while first:
                writer.write_table(pyarrow.Table.from_pylist(first, schema=schema))
                first = list(islice(rows, _ROWS_AT_ONCE))
    except (pyarrow.ArrowException, TypeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"the rows of {table.name} cannot be written as Parquet, JSON lines can: {reason}") from error


def _open_cells(path: Path, wanted: Sequence[str] | None, own: Sequence[str], options: ReadOptions) -> RecordTable:
    """A table of text: CSV, TSV, plain lines, or another format that a layout exists for."""
    layout = _layout(path, wanted, own, options)
    names = ("text",) if layout.format == "lines" else layout.names
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path.name} has two columns with the name {twice[0]!r}")

    def read() -> Records:
        for line, values, fault in layout.read(range(len(names))):
            yield line, {} if fault else dict(zip(names, values, strict=True)), fault

    return RecordTable(
        name=path.name,
        format=layout.format,
        read=read,
        names=names,
        has_header=layout.has_names or layout.format == "lines",
        delimiter=layout.delimiter or ",",
    )


def _layout(path: Path, wanted: Sequence[str] | None, own: Sequence[str], options: ReadOptions) -> Layout:
    if wanted is not None:
        return file_layout(path, replace(options, roles=tuple(wanted), columns=tuple(wanted)))
    if own:
        with suppress(DataError):  # the first row is not a header with these names
            return file_layout(path, replace(options, roles=tuple(own), columns=tuple(own)))
    return file_layout(path, replace(options, roles=("text",)))


def _read_json_lines(path: Path, encoding: str | None) -> Records:
    for number, line in enumerate(iter_json_lines(path, encoding=encoding), 1):
        try:
            row = load_json(line)
        except ValueError:
            yield number, {}, "invalid JSON" if line.strip() else BLANK
            continue
        is_object = isinstance(row, dict)
        yield number, row if is_object else {}, "" if is_object else "a list or a single value instead of an object"


def _read_parquet(path: Path) -> Records:
    return ((number, row, "") for number, row in enumerate(parquet_objects(path), 1))


def _read_memory(rows: Sequence[Row]) -> Records:
    return ((number, row, "") for number, row in enumerate(rows, 1))


def _as_row(row: Any, number: int) -> Row:
    if isinstance(row, Mapping):
        return dict(row)
    if isinstance(row, str):
        return {"text": row}
    if isinstance(row, Sequence):
        return dict(zip(positions(len(row)), row, strict=True))
    raise DataError(f"a row must be a dictionary, a list of cells or a text, got {value_kind(row)} in row {number}")


def _inner_names(rows: Iterable[Row]) -> list[str]:
    """The names of values one object deeper."""
    inner = (
        f"{key}.{deeper}"
        for row in rows
        for key, value in row.items()
        if isinstance(value, Mapping)
        for deeper in value
    )
    return list(dict.fromkeys(inner))


def _is_text(values: Iterable[Any]) -> bool:
    """Whether most of the values are texts that are neither numbers nor dates, or lists of texts."""
    texts = [text for value in values if (text := input_text(value).strip())]
    return 2 * sum(not is_number(text) and not is_date(text) for text in texts) > len(texts)


def _suffixes() -> str:
    *others, last = (suffix for suffix in WRITTEN_FORMATS if suffix in (".csv", ".tsv", ".jsonl", ".parquet"))
    return f"{', '.join(others)} or {last}"
