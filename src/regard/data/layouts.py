"""What a file of rows is: its format, its header, and the columns for the roles.

All of it is read off the file's name and its first rows, unless it is given. What
was guessed is said in a sentence, for the user to see.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from regard.data.columns import (
    check_width,
    choose_columns,
    column_name,
    is_position,
    listing,
    looks_like_header,
    nearest,
)
from regard.data.delimited import guess_delimiter, is_blank, split_csv, split_tsv
from regard.data.fields import decode_json, field_name, fields_of
from regard.data.files import check_file, open_text, plain_name
from regard.data.records import (
    Record,
    open_parquet,
    parquet_fields,
    read_aligned,
    read_csv,
    read_jsonl,
    read_lines,
    read_parquet,
    read_tsv,
)
from regard.data.semeval import COLUMNS, read_semeval, require_aspects
from regard.errors import ConfigError, DataError

FORMATS = {
    "tsv": "TSV",
    "csv": "CSV",
    "jsonl": "JSON lines",
    "parquet": "Parquet",
    "aligned": "aligned lines",
    "lines": "lines",
    "semeval": "SemEval's XML, by category",
    "semeval-terms": "SemEval's XML, by term",
}
"""The formats, and what each is called in a sentence."""

_SUFFIXES = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".xml": "semeval",
}
_SAMPLE_ROWS = 100
_SAMPLE_LINES = 10_000


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How to read rows from files, and what that was concluded from."""

    format: str
    columns: tuple[str, ...]
    """Names of the columns in the order of the roles, or positions where there are no names."""
    read: Callable[[], Iterator[Record]]
    """Start reading from the beginning. It can be pickled."""
    guess: str | None = None
    """What was guessed, as a sentence."""
    names: tuple[str, ...] = ()
    """Of all columns that there are, where they have names."""
    key: str | None = None
    """The column that is read behind those of the roles."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the caller said about a file; None is for what is to be found out."""

    roles: tuple[str, ...]
    columns: tuple[str, ...] | None
    format: str | None
    header: bool | None
    key: str | None = None
    """A column that is to be read beside those of the roles, if any."""

    @property
    def asked(self) -> tuple[str, ...]:
        """All columns that were asked for."""
        return (*(self.columns or ()), *(() if self.key is None else (self.key,)))


def file_layout(path: Path, wish: Wish) -> Layout:
    """The layout of a single file."""
    known = wish.format or _SUFFIXES.get(Path(plain_name(path)).suffix.lower())
    format = known or _sniff(path, wish)
    if format == "aligned":
        raise ConfigError(f"aligned lines need a file for each of {', '.join(wish.roles)}, got only {path}")
    if format.startswith("semeval"):
        return _semeval_layout(path, wish, format)
    layout = {"jsonl": _jsonl_layout, "parquet": _parquet_layout, "lines": _lines_layout}.get(format)
    if layout is None:
        return _delimited_layout(path, wish, is_csv=format == "csv", is_sniffed=known is None)
    return layout(path, wish, is_sniffed=known is None)


def aligned_layout(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Layout:
    """The layout of one file of lines for each role, in the order of the roles."""
    for path in paths:
        check_file(path)
        if Path(plain_name(path)).suffix.lower() in _SUFFIXES:
            raise DataError(f"several files are read line by line, one for each role, but {path.name} is a table")
    suffixes = [Path(plain_name(path)).suffix.removeprefix(".") for path in paths]
    if columns is None and all(suffixes) and len(set(suffixes)) == len(suffixes):
        columns = suffixes
    columns = tuple(columns or _positions(len(paths)))
    return Layout(format="aligned", columns=columns, read=partial(read_aligned, tuple(paths)))


def _sniff(path: Path, wish: Wish) -> str:
    """The format of a file whose name does not say it."""
    lines = _first_lines(path)
    full = [line for line in lines if line and not line.isspace()]
    if _as_object(full[0]) is not None:
        return "jsonl"
    if len(wish.roles) == 1 and wish.columns is None:
        return "lines"  # running text has tabs and commas, too
    if 2 * sum("\t" in line for line in full) > len(full):
        return "tsv"
    delimiter = guess_delimiter(lines)
    is_csv = len(full) > 1 and delimiter is not None and delimiter[1] == 1.0
    return "csv" if is_csv else "lines"


def _delimited_layout(path: Path, wish: Wish, *, is_csv: bool, is_sniffed: bool) -> Layout:
    delimiter = "\t"
    if is_csv:
        delimiter = (guess_delimiter(_first_lines(path)) or (",", 0.0))[0]
    rows = _first_rows(path, delimiter)
    first = [cell.strip() for cell in rows[0]]
    is_named = any(name in first and not is_position(name) for name in wish.asked)
    has_header = wish.header if wish.header is not None else is_named or looks_like_header(rows)
    # Without a header the commonest width is right: the first row may be the broken one.
    width = len(first) if has_header else Counter(map(len, rows)).most_common(1)[0][0]
    positions = _positions(width)
    names = [name or position for name, position in zip(first, positions, strict=True)] if has_header else positions
    if not has_header:
        _check_positions(wish.asked, first, path)
    picks = choose_columns(names, wish.columns, wish.roles, where=path.name, key=wish.key)
    read = partial(read_csv, path, delimiter=delimiter) if is_csv else partial(read_tsv, path)
    columns, key = _named(names, picks, wish)
    guess = None
    if is_sniffed or wish.columns is None or (wish.header is None and not is_named):
        what = FORMATS["csv" if is_csv else "tsv"]
        what += f" separated by {delimiter!r}" if delimiter in ";|" else ""
        what += " with a header" if has_header else " without a header"
        guess = _sentence(path, what, wish.roles, columns, num_columns=width)
    read = partial(read, picks=tuple(picks), width=width, has_header=has_header)
    given = tuple(names) if has_header else ()
    return Layout(format="csv" if is_csv else "tsv", columns=columns, read=read, guess=guess, names=given, key=key)


def _named(names: Sequence[str], picks: Sequence[int], wish: Wish) -> tuple[tuple[str, ...], str | None]:
    """The columns of the roles, and that of the key."""
    columns = tuple(names[pick] for pick in picks)
    return columns[: len(wish.roles)], None if wish.key is None else columns[-1]


def _check_positions(columns: Sequence[str], first: Sequence[str], path: Path) -> None:
    for name in columns:
        if not is_position(name):
            reason = f"its first row is no header: {listing(first)}"
            raise DataError(f"{path.name} has no column {name!r}; {reason}{nearest(name, first)}")


def _jsonl_layout(path: Path, wish: Wish, *, is_sniffed: bool) -> Layout:
    lines = _first_lines(path)
    objects = [record for line in lines if (record := _as_object(line)) is not None]
    if not objects:
        raise DataError(f"{path.name} is not JSON lines: none of its first lines is an object, as {{...}} on one line")
    fields = fields_of(objects)
    names = [field_name(field) for field in fields]
    picks = choose_columns(names, wish.columns, wish.roles, where=path.name, key=wish.key)
    read = partial(read_jsonl, path, fields=tuple(fields[pick] for pick in picks))
    return _named_layout(path, "jsonl", read, names, picks, wish, is_sniffed=is_sniffed)


def _parquet_layout(path: Path, wish: Wish, *, is_sniffed: bool) -> Layout:
    with closing(open_parquet(path)) as file:
        fields = parquet_fields(file)
    names = [field_name(field) for field in fields]
    picks = choose_columns(names, wish.columns, wish.roles, where=path.name, key=wish.key)
    read = partial(read_parquet, path, fields=tuple(fields[pick] for pick in picks))
    return _named_layout(path, "parquet", read, names, picks, wish, is_sniffed=is_sniffed)


def _named_layout(
    path: Path,
    format: str,
    read: Callable[[], Iterator[Record]],
    names: Sequence[str],
    picks: Sequence[int],
    wish: Wish,
    *,
    is_sniffed: bool,
) -> Layout:
    columns, key = _named(names, picks, wish)
    guess = None
    if is_sniffed or wish.columns is None:
        guess = _sentence(path, FORMATS[format], wish.roles, columns, num_columns=len(names))
    return Layout(format=format, columns=columns, read=read, guess=guess, names=tuple(names), key=key)


def _semeval_layout(path: Path, wish: Wish, format: str) -> Layout:
    require_aspects(path, format)
    picks = choose_columns(COLUMNS, wish.columns, wish.roles, where=path.name, key=wish.key)
    read = partial(read_semeval, path, format=format, picks=tuple(picks))
    return _named_layout(path, format, read, COLUMNS, picks, wish, is_sniffed=False)


def _lines_layout(path: Path, wish: Wish, *, is_sniffed: bool) -> Layout:
    check_width(1, wish.roles, where=path.name)
    choose_columns(["1"], wish.columns, wish.roles, where=path.name)
    guess = f"read {path.name} as {FORMATS['lines']}; {wish.roles[0]} = the whole line" if is_sniffed else None
    return Layout(format="lines", columns=("1",), read=partial(read_lines, path), guess=guess)


def _first_lines(path: Path) -> list[str]:
    """Enough lines to judge a file by, blank ones among them."""
    sample: list[str] = []
    num_full = 0
    with closing(open_text(path, keep_carriage_returns=True)) as lines:
        for line in islice(lines, _SAMPLE_LINES):
            sample.append(line)
            num_full += bool(line and not line.isspace())
            if num_full == _SAMPLE_ROWS:
                break
    if not num_full:
        raise DataError(f"{path} has nothing but blank lines")
    return sample


def _first_rows(path: Path, delimiter: str) -> list[list[str]]:
    is_tsv = delimiter == "\t"
    with closing(open_text(path, keep_carriage_returns=not is_tsv)) as lines:
        split = split_tsv(lines) if is_tsv else split_csv(lines, delimiter, where=path.name)
        rows = (cells for _, cells, _ in islice(split, _SAMPLE_LINES) if not is_blank(cells))
        sample = list(islice(rows, _SAMPLE_ROWS))
    if not sample:
        raise DataError(f"{path} has nothing but blank lines")
    return sample


def _as_object(line: str) -> dict[str, object] | None:
    try:
        record = decode_json(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _positions(width: int) -> list[str]:
    return [str(position) for position in range(1, width + 1)]


def _sentence(path: Path, what: str, roles: Sequence[str], columns: Sequence[str], *, num_columns: int) -> str:
    told = ", ".join(f"{role} = {column_name(column)}" for role, column in zip(roles, columns, strict=True))
    of_all = f" of {num_columns} columns" if num_columns > len(columns) else ""
    return f"read {path.name} as {what}; {told}{of_all}"
