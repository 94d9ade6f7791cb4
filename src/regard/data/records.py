"""Reading each format of table, a row at a time.

Each reader is a function of a path that yields records: the line a row starts on,
its values in the order of the roles, and what is wrong with it. A fault is phrased
to follow "has": `1 column instead of 2`. A row with a fault has no values, and
`BLANK` is the fault of a line that holds nothing at all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

from regard.data.columns import count_of
from regard.data.delimited import Cells, is_blank, split_csv, split_tsv
from regard.data.fields import Field, as_text, decode_json, kind_of, texts_of
from regard.data.files import check_file, compression_of, open_text
from regard.errors import DataError

Record = tuple[int, tuple[str, ...], str]
"""Line, values, fault: a row that is right has an empty fault. Where a table has a key, it stands behind the values."""

BLANK = "blank"

_PARQUET_ROWS = 4096


def read_lines(path: Path) -> Iterator[Record]:
    """Each line as a row of one value."""
    for number, line in enumerate(open_text(path), 1):
        yield (number, (line,), "") if line and not line.isspace() else (number, (), BLANK)


def read_aligned(paths: Sequence[Path]) -> Iterator[Record]:
    """The files' lines side by side: line n of each makes row n.

    Raises:
        DataError: At the end, if the files do not have the same number of lines.
    """
    readers = [open_text(path) for path in paths]
    number = 0
    for number, lines in enumerate(zip_longest(*readers), 1):
        if None in lines:
            _refuse_unequal(paths, readers, lines, number)
        if is_blank(lines):
            yield number, (), BLANK
        else:
            yield number, lines, ""


def _refuse_unequal(
    paths: Sequence[Path], readers: Iterable[Iterator[str]], lines: tuple[Any, ...], row: int
) -> NoReturn:
    # The files that ended stand at the row before; the others are read on, to be counted.
    counts = [
        row - 1 if line is None else row + sum(1 for _ in rest) for line, rest in zip(lines, readers, strict=True)
    ]
    told = ", ".join(f"{path.name} has {count_of(count, 'line')}" for path, count in zip(paths, counts, strict=True))
    raise DataError(f"aligned files must have the same number of lines, but {told}")


def read_tsv(path: Path, *, picks: Sequence[int], width: int, has_header: bool) -> Iterator[Record]:
    """Rows of cells between tabs. A quotation mark is a character like any other."""
    return _pick(split_tsv(open_text(path)), picks, width, has_header)


def read_csv(path: Path, *, delimiter: str, picks: Sequence[int], width: int, has_header: bool) -> Iterator[Record]:
    """Rows of cells, quoted as in RFC 4180 where they hold delimiters, quotes or line ends."""
    lines = open_text(path, keep_carriage_returns=True)
    return _pick(split_csv(lines, delimiter, where=path.name), picks, width, has_header)


def _pick(rows: Iterator[Cells], picks: Sequence[int], width: int, has_header: bool) -> Iterator[Record]:
    # A slice, because itemgetter gives no tuple for a single item.
    pick: Callable[[list[str]], Sequence[str]] = (
        itemgetter(*picks) if len(picks) > 1 else itemgetter(slice(picks[0], picks[0] + 1))
    )
    is_header = has_header
    for number, cells, fault in rows:
        if is_blank(cells):
            yield number, (), BLANK
        elif is_header:
            is_header = False
        elif fault:
            yield number, (), fault
        elif len(cells) != width:
            yield number, (), f"{count_of(len(cells), 'column')} instead of {width}"
        else:
            yield number, tuple(pick(cells)), ""


def read_jsonl(path: Path, *, fields: Sequence[Field]) -> Iterator[Record]:
    """One JSON object a line; a number stands as it is written."""
    for number, line in enumerate(open_text(path), 1):
        try:
            record = decode_json(line)
        except (ValueError, RecursionError):
            yield number, (), "invalid JSON" if line and not line.isspace() else BLANK
            continue
        if isinstance(record, dict):
            yield number, *texts_of(record, fields)
        else:
            yield number, (), "a list or a single value instead of an object"


def read_rows(rows: Iterable[Sequence[object]], *, width: int, picks: Sequence[int] | None = None) -> Iterator[Record]:
    """Rows that lie in memory already. A lone string is a row of one value."""
    columns = range(width) if picks is None else picks
    for number, row in enumerate(rows, 1):
        cells = (row,) if isinstance(row, str) else tuple(row)
        if len(cells) != width:
            yield number, (), f"{count_of(len(cells), 'value')} instead of {width}"
            continue
        values = [as_text(cells[column]) for column in columns]
        wrong = next((column for column, value in zip(columns, values, strict=True) if value is None), None)
        if wrong is None:
            yield number, tuple(value for value in values if value is not None), ""
        else:
            yield number, (), f"{kind_of(cells[wrong])} in column {wrong + 1}"


def read_parquet(path: Path, *, fields: Sequence[Field]) -> Iterator[Record]:
    """Rows of a Parquet file, a batch at a time; the line is the row's number."""
    number = 0
    columns = list(dict.fromkeys(field[0] for field in fields))
    with closing(open_parquet(path)) as file:
        batches = file.iter_batches(batch_size=_PARQUET_ROWS, columns=columns)
        while batch := _next_batch(batches, path):
            for record in batch:
                number += 1
                yield number, *texts_of(record, fields)


def open_parquet(path: Path) -> Any:
    """The file, opened by pyarrow, which has no types to give."""
    check_file(path)
    if compression_of(path):
        raise DataError(f"{path} is compressed around Parquet, which compresses within: decompress it first")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"reading {path} needs the package pyarrow: install regard[parquet]") from error
    try:
        return parquet.ParquetFile(path, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged_parquet(path, error) from error


def parquet_fields(file: Any) -> list[Field]:
    """The fields of an opened Parquet file that may hold text: all but lists and the like."""
    from pyarrow import types

    fields: list[Field] = []
    for column in file.schema_arrow:
        if types.is_struct(column.type):
            fields.extend((column.name, inner.name) for inner in column.type if not types.is_nested(inner.type))
        elif not types.is_nested(column.type):
            fields.append((column.name,))
    return fields


def _next_batch(batches: Iterator[Any], path: Path) -> list[dict[str, Any]]:
    import pyarrow

    try:
        for batch in batches:
            if rows := batch.to_pylist():
                return rows
        return []
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged_parquet(path, error) from error


def _damaged_parquet(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split()).partition(". ")[0].removesuffix(".")
    return DataError(f"{path} is damaged, or is not Parquet: {reason}")
