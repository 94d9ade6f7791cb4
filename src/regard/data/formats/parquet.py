"""Parquet, read by pyarrow (the extra `regard[parquet]`) a batch of rows at a time."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from regard.data.formats.files import check_file, compression_suffix
from regard.data.formats.json_lines import Field, field_name, field_texts
from regard.data.formats.layouts import TABLE_FORMATS, Layout, ReadOptions, Record
from regard.errors import DataError

_BATCH_ROWS, _SAMPLE_BATCH = 4096, 64


def parquet_layout(path: Path, options: ReadOptions) -> Layout:
    """The layout of a Parquet file; its columns are those of text, numbers and dates, and the fields of structs."""
    fields: list[Field] = []
    lists: list[str] = []
    numbers: set[Field] = set()
    with closing(_open(path)) as file:
        from pyarrow import types

        for column in file.schema_arrow:
            if types.is_struct(column.type):
                fields.extend((column.name, inner.name) for inner in column.type if not types.is_nested(inner.type))
            elif types.is_list(column.type) or types.is_large_list(column.type):
                lists.append(column.name)
            elif not types.is_nested(column.type):
                fields.append((column.name,))
                if types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type):
                    numbers.add((column.name,))
    return Layout(
        format="parquet",
        label=TABLE_FORMATS["parquet"],
        names=tuple(map(field_name, fields)),
        lists=tuple(lists),
        numeric=frozenset(index for index, field in enumerate(fields) if field in numbers),
        read=partial(_read, path, tuple(fields)),
    )


def parquet_schema(path: Path) -> Any:
    """The names and types of all columns of a file."""
    with closing(_open(path)) as file:
        return file.schema_arrow


def parquet_objects(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file with all of their columns."""
    with closing(_open(path)) as file:
        batches = file.iter_batches(batch_size=_SAMPLE_BATCH)
        while batch := _next_batch(batches, path):
            yield from batch


def _read(path: Path, fields: Sequence[Field], picks: Sequence[int]) -> Iterator[Record]:
    """The records of a file, with the number of the row as their line."""
    number = 0
    chosen = [fields[pick] for pick in picks]
    columns = list(dict.fromkeys(field[0] for field in chosen))
    with closing(_open(path)) as file:
        batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
        while batch := _next_batch(batches, path):
            for record in batch:
                number += 1
                yield number, *field_texts(record, chosen)


def _open(path: Path) -> Any:
    check_file(path)
    if compression_suffix(path):
        raise DataError(f"{path} is a compressed Parquet file; Parquet is compressed internally: decompress it first")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"reading {path} needs the package pyarrow: install regard[parquet]") from error
    try:
        return parquet.ParquetFile(path, pre_buffer=False)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _next_batch(batches: Iterator[Any], path: Path) -> list[dict[str, Any]]:
    import pyarrow

    try:
        for batch in batches:
            if rows := batch.to_pylist():
                return rows
        return []
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split()).partition(". ")[0].removesuffix(".")
    return DataError(f"{path} is damaged, or is not Parquet: {reason}")
