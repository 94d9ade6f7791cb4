"""Excel workbooks, read by openpyxl (the extra `regard[excel]`): the first sheet, as a table of cells.

A row is invalid if a cell that is used belongs to a merged area without being its first cell, has a formula whose value
the workbook does not store, as those that no spreadsheet program has saved, or has an error such as `#N/A`.
"""

import lzma
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from regard.data.formats.cells import as_text, value_kind
from regard.data.formats.columns import find_names, index_columns, looks_like_header, number_columns
from regard.data.formats.files import check_archive, check_file, compression_suffix
from regard.data.formats.layouts import BLANK, TABLE_FORMATS, Layout, ReadOptions, Record
from regard.data.formats.messages import format_names
from regard.errors import DataError

_SAMPLE_ROWS = 100
_SPARE_CELLS, _CELLS_PER_CELL = 1_000_000, 100
"""A table may have so many empty cells, and so many for each cell that is not."""
_BLOCK, _MOST_DIGITS = 1 << 16, 9
_CELL = re.compile(r"\$?([A-Za-z]{1,3})\$?([0-9]{1,9})")
_DAMAGED = (
    OSError, KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, NotImplementedError,
    RuntimeError, SyntaxError, EOFError, zlib.error, lzma.LZMAError, expat.ExpatError, zipfile.BadZipFile,
)  # fmt: skip
"""What openpyxl and the readers of archives and of XML raise for a workbook that is damaged."""
_ERRORS = ("#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!")


@dataclass(frozen=True)
class _Sheet:
    """The first sheet of a workbook; rows and columns are counted from 1."""

    title: str
    num_sheets: int
    rows: list[tuple[object, ...]]
    """All rows from the first one on, and all columns."""
    merged: dict[tuple[int, int], str]
    """The merged area of each cell that belongs to one and is not its first."""
    formulas: frozenset[tuple[int, int]]
    """Cells with a formula without a stored value."""

    def texts(self, row: Sequence[object]) -> list[str]:
        return ["" if value is None else as_text(value) or "" for value in row]


def excel_layout(path: Path, options: ReadOptions) -> Layout:
    """The layout of the first sheet of a workbook; a header is inferred unless it is given."""
    sheet = _open(path)
    numbered = [(number, row) for number, row in enumerate(sheet.rows, 1) if any(map(str.strip, sheet.texts(row)))]
    if not numbered:
        others = "; only the first sheet is read" if sheet.num_sheets > 1 else ""
        raise DataError(f"the sheet {sheet.title!r} of {path.name} has no cells{others}")
    sample = [sheet.texts(row) for _, row in numbered[:_SAMPLE_ROWS]]
    num_titles = _num_titles(sample)
    top, _ = numbered[0]
    first, _ = numbered[num_titles]
    is_title = num_titles > 0 and looks_like_header(sample[num_titles:])
    if areas := [area for (row, _), area in sheet.merged.items() if row in (first, None if is_title else top)]:
        raise DataError(f"the first row of {path.name} has merged cells: {format_names(sorted(set(areas)))}")
    sample = sample[num_titles:]
    found = find_names(sample, options, where=path.name)
    cells = sample[found.has_header :]
    which = f"sheet {sheet.title}" + (f", the first of {sheet.num_sheets}" if sheet.num_sheets > 1 else "")
    return Layout(
        format="xlsx",
        label=f"{TABLE_FORMATS['xlsx']} ({which}) {'with' if found.has_header else 'without'} a header",
        names=found.names,
        has_names=found.has_header,
        index=index_columns(found, cells),
        numeric=number_columns(list(zip(*cells, strict=True))),
        is_inferred=found.is_inferred or sheet.num_sheets > 1,
        read=partial(_read, path, first - 1 + found.has_header, found.names),
    )


def _num_titles(rows: Sequence[Sequence[str]]) -> int:
    """The first rows with text in one cell only, above a table of several columns: the title of the sheet."""
    counts = [sum(bool(text.strip()) for text in row) for row in rows]
    number = next((place for place, count in enumerate(counts) if count > 1), 0)
    return number if 2 * sum(count > 1 for count in counts) > len(counts) else 0


def _read(path: Path, header: int, names: Sequence[str], picks: Sequence[int]) -> Iterator[Record]:
    """The rows after the row `header`: the one with the names, or else the last one before the table, or 0."""
    sheet = _open(path)
    for number, row in enumerate(sheet.rows[header:], header + 1):
        if not any(map(str.strip, sheet.texts(row))):
            yield number, (), BLANK
            continue
        faults = (_fault(sheet, number, pick, row[pick]) for pick in picks)
        fault = next((f"{what} in {names[pick]}" for pick, what in zip(picks, faults, strict=True) if what), "")
        texts = sheet.texts(row)
        yield number, () if fault else tuple(texts[pick] for pick in picks), fault


def _fault(sheet: _Sheet, row: int, column: int, value: object) -> str:
    if (row, column + 1) in sheet.merged:
        return "a merged cell"
    if (row, column + 1) in sheet.formulas:
        return "a formula without a stored value"
    if isinstance(value, str) and value in _ERRORS:
        return f"the error {value}"
    return value_kind(value) if value is not None and as_text(value) is None else ""


def _open(path: Path) -> _Sheet:
    check_file(path)
    if compression_suffix(path):
        raise DataError(f"{path} is a compressed workbook; workbooks are compressed internally: decompress it first")
    status = os.stat(path)
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _load(path: Path, modified: int, size: int) -> _Sheet:
    """The sheet of a file as it was at this time: a table is read several times, and parsing it takes seconds."""
    workbook = _workbook(path, stored_values=False)
    if not workbook.worksheets:
        raise DataError(f"{path.name} has no sheet of cells")
    sheet = workbook.worksheets[0]
    rows = list(sheet.iter_rows(min_row=1, min_col=1, values_only=True))
    merged = {
        (row, column): area.coord
        for area in sheet.merged_cells.ranges
        for row, column in list(area.cells)
        if (row, column) != (area.min_row, area.min_col)
    }
    formulas = {
        (number, place)
        for number, row in enumerate(rows, 1)
        for place, value in enumerate(row, 1)
        if (isinstance(value, str) and value.startswith("=")) or (value is not None and as_text(value) is None)
    }
    if formulas:
        stored = _workbook(path, stored_values=True).worksheets[0]
        rows = list(stored.iter_rows(min_row=1, min_col=1, values_only=True))
        formulas = {(row, column) for row, column in formulas if rows[row - 1][column - 1] is None}
    return _Sheet(sheet.title, len(workbook.worksheets), rows, merged, frozenset(formulas))


def _workbook(path: Path, *, stored_values: bool) -> Any:
    try:
        import openpyxl
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError as error:
        raise DataError(f"reading {path} needs the package openpyxl: install regard[excel]") from error
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is damaged, or is not an Excel workbook: it is not a ZIP archive")
    check_archive(path)
    try:
        _check_sheets(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about charts and formats, which are not read
            return openpyxl.load_workbook(path, data_only=stored_values)
    except DataError:
        raise
    except (*_DAMAGED, InvalidFileException) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is damaged, or is not an Excel workbook: {reason}") from error


def _check_sheets(path: Path) -> None:
    """Raise where sheets have cells so far apart, or merged areas so large, that the table between fills the memory.

    openpyxl makes a cell of each one in a merged area, and a table has all cells up to the last row and column.
    """
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if not entry.filename.lower().endswith((".xml", ".rels", ".vml")):
                continue
            counts = _Counts(f"{path.name}, {entry.filename}")
            with archive.open(entry) as file:
                counts.read(file)
            area = counts.num_rows * counts.num_columns
            if max(area, counts.num_merged) > _SPARE_CELLS + _CELLS_PER_CELL * counts.num_cells:
                raise DataError(
                    f"{path} has a sheet of {counts.num_rows:,} rows and {counts.num_columns:,} columns with only "
                    f"{counts.num_cells:,} cells in it, and {counts.num_merged:,} merged ones: remove those that are "
                    "far from the table"
                )


class _Counts:
    """How many cells a sheet has, how many merged ones, and how far the last one is, by its XML alone."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.num_cells = self.num_rows = self.num_columns = self.num_merged = 0
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.StartDoctypeDeclHandler = self._reject_doctype

    def read(self, file: Any) -> None:
        while block := file.read(_BLOCK):
            self._parser.Parse(block, False)
        self._parser.Parse(b"", True)

    def _start(self, element: str, attributes: Mapping[str, str]) -> None:
        match element.rpartition(":")[2]:
            case "c":
                self.num_cells += 1
                row, column = _place_of(attributes.get("r", ""))
                self.num_rows, self.num_columns = max(self.num_rows, row), max(self.num_columns, column)
            case "row":
                number = attributes.get("r", "")
                is_number = number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
                self.num_rows = max(self.num_rows + 1, int(number) if is_number else 0)
            case "mergeCell":
                first, _, last = attributes.get("ref", "").partition(":")
                (top, left), (bottom, right) = _place_of(first), _place_of(last or first)
                self.num_merged += max(0, bottom - top + 1) * max(0, right - left + 1)

    def _reject_doctype(self, *_: object) -> NoReturn:
        raise DataError(f"{self._where} declares a document type, whose entities could expand without limit")


def _place_of(cell: str) -> tuple[int, int]:
    """The row and the column of a cell such as B7, counted from 1; zeros where it has none."""
    found = _CELL.fullmatch(cell)
    if found is None:
        return 0, 0
    column = 0
    for letter in found[1].upper():
        column = 26 * column + ord(letter) - ord("A") + 1
    return int(found[2]), column
