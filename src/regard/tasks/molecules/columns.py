"""Which columns of a table are molecules and their properties, and how rows are read.

A row of the task has two values: the molecule, and its properties joined to one text. A missing property is empty.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from regard.data.chemistry import fault_of, is_molecule
from regard.data.codecs.properties import join_cells
from regard.data.formats.cells import is_number
from regard.data.formats.columns import is_identifier
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_column, format_names
from regard.data.formats.summary import ColumnSummary, describe, describe_rows
from regard.data.formats.tables import Table
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, is_builtin
from regard.errors import DataError
from regard.text.alphabets import is_selfies, is_smiles, sequence_kind

BUILTIN_COLUMNS = ("smiles", "solubility")
"""The columns of the built-in data set."""
MOLECULE_NAMES = ("smiles", "selfies", "mol", "molecule")
_TARGET_NAMES = ("label", "class", "target", "y", "activity", "exp", "expt", "value", "property")
_MEASURED = "measured"
"""The first word of the name of a column beside others that were computed."""
_NEARLY_ALL = 0.95
_NUM_VALIDATED = 50
"""Texts that are read to recognize molecules."""
_MISSING = ("", "na", "nan", "n/a", "null", "none")


@dataclass(frozen=True)
class MoleculeColumns:
    """The columns of a table that are used."""

    molecule: str
    properties: tuple[str, ...]
    are_numbers: tuple[bool, ...]
    """Which properties are numbers; the others are labels."""

    @property
    def names(self) -> list[str]:
        return [self.molecule, *self.properties]


def find_molecules(columns: Sequence[ColumnSummary]) -> ColumnSummary | None:
    """The column of molecules, by its content: one with a usual name before others."""
    named = [column for column in columns if column.plain_name in MOLECULE_NAMES and _are_mostly_molecules(column)]
    kinds = ((column, sequence_kind(known_cells(column))) for column in columns)
    others = (column for column, kind in kinds if kind in ("smiles", "selfies"))
    return next((column for column in (*named, *others) if _are_valid(column)), None)


def find_properties(columns: Sequence[ColumnSummary]) -> list[ColumnSummary]:
    """The columns, other than that of molecules, that may be properties: numbers, or labels of two kinds."""
    known = [replace(column, cells=tuple(known_cells(column))) for column in columns]
    fitting = [
        column for column in known if not is_identifier(column.name) and (_is_numeric(column) or _is_binary(column))
    ]
    named = [each for each in fitting if each.plain_name in _TARGET_NAMES or each.plain_name.startswith(_MEASURED)]
    return named if len(named) == 1 else fitting


def known_cells(column: ColumnSummary) -> list[str]:
    return [cell for cell in column.cells if cell.strip().lower() not in _MISSING]


def choose_molecule_columns(config: DataConfig, rows: Rows | None) -> MoleculeColumns:
    """The columns that the settings name, or those that are recognized by their content.

    Raises:
        DataError: If there is no column of molecules, or if it is not clear which the properties are.
    """
    if rows is None and is_builtin(config):
        return MoleculeColumns(BUILTIN_COLUMNS[0], BUILTIN_COLUMNS[1:], (True,))
    described = _described(config, rows)
    if rows is not None and not isinstance(rows, NamedRows):
        if len(described) < 2:
            raise DataError(f"a row needs a molecule and one or more properties, got {len(described)} columns")
        names = [f"property {place}" for place in range(1, len(described))]
        return _chosen("molecule", names, described[1:])
    if config.columns:
        by_name = {column.name: column for column in described}
        found = [by_name.get(name) or _by_position(name, described) for name in config.columns]
        if len(found) < 2:
            raise DataError(f"a column of molecules and one or more of properties are needed, got {config.columns[0]}")
        return _chosen(config.columns[0], config.columns[1:], found[1:])
    molecules = find_molecules(described)
    where = "the table in memory" if rows is not None else Path(config.train[0]).name
    if molecules is None:
        raise DataError(f"no column of {where} has molecules in SMILES or SELFIES: name it and those of properties")
    others = [column for column in described if column is not molecules]
    found = find_properties(others)
    kinds = {_is_binary(column) for column in found}
    if not found or len(kinds) > 1:
        names = format_names([format_column(column.name) for column in found or others])
        raise DataError(f"which columns of {where} are properties? It may be {names}: name that of molecules and these")
    return _chosen(molecules.name, [column.name for column in found], found)


def read_molecules(table: Table, columns: MoleculeColumns) -> Table:
    """The table with two values in each row; one with an invalid molecule or without any property is invalid."""
    read = partial(_read, table.read, columns, has_key=table.key is not None)
    return replace(table, roles=("molecule", "properties"), read=read)


def without_none(rows: Rows) -> Rows:
    """Rows in memory with empty cells for missing values."""
    if isinstance(rows, NamedRows):
        return NamedRows(
            [{name: "" if cell is None else cell for name, cell in zip(rows.names, row, strict=True)} for row in rows]
        )
    return [tuple("" if cell is None else cell for cell in row) for row in rows]


def _described(config: DataConfig, rows: Rows | None) -> Sequence[ColumnSummary]:
    if rows is not None:
        sample: Any = rows[:1_000]
        if isinstance(rows, NamedRows):
            sample = [dict(zip(rows.names, row, strict=True)) for row in sample]
        return describe_rows(sample).columns
    found = describe(
        cast("Sequence[str | Path]", config.train),
        columns=config.columns,
        format=config.format,
        header=config.header,
        encoding=config.encoding,
    )
    return [column for column in found.columns if column.name not in found.index]


def _by_position(name: str, columns: Sequence[ColumnSummary]) -> ColumnSummary | None:
    """The column at a position from 1; a wrong name is reported when the table is opened."""
    is_place = name.isdigit() and 1 <= int(name) <= len(columns)
    return columns[int(name) - 1] if is_place else None


def _chosen(molecule: str, names: Sequence[str], columns: Sequence[ColumnSummary | None]) -> MoleculeColumns:
    are_numbers = tuple(each is not None and _is_numeric(each) and not _is_binary(each) for each in columns)
    return MoleculeColumns(molecule, tuple(names), are_numbers)


def _are_mostly_molecules(column: ColumnSummary) -> bool:
    cells = known_cells(column)
    return 2 * sum(is_smiles(cell.strip()) or is_selfies(cell.strip()) for cell in cells) > len(cells)


def _are_valid(column: ColumnSummary) -> bool:
    """Whether most of the first texts are molecules; without rdkit, only their tokens are known."""
    sample = known_cells(column)[:_NUM_VALIDATED]
    return find_spec("rdkit") is None or 2 * sum(map(is_molecule, sample)) > len(sample)


def _is_numeric(column: ColumnSummary) -> bool:
    cells = known_cells(column)
    return bool(cells) and sum(map(is_number, cells)) >= _NEARLY_ALL * len(cells)


def _is_binary(column: ColumnSummary) -> bool:
    distinct = {cell.strip() for cell in known_cells(column)}
    return len(distinct) == 2 or (bool(distinct) and distinct <= {"0", "1"})


def _read(read: Callable[[], Iterator[Record]], columns: MoleculeColumns, *, has_key: bool) -> Iterator[Record]:
    num_values = 1 + len(columns.properties)
    for line, values, fault in read():
        if fault:
            yield line, values, fault
            continue
        molecule, *cells = (cell.strip() for cell in values[:num_values])
        cells = ["" if cell.lower() in _MISSING else cell for cell in cells]
        wrong = (
            name
            for name, is_numeric, cell in zip(columns.properties, columns.are_numbers, cells, strict=True)
            if cell and ((is_numeric and not is_number(cell)) or ";" in cell)
        )
        fault = fault_of(molecule)
        if not fault and not any(cells):
            fault = "no property" if len(cells) > 1 else f"an empty {format_column(columns.properties[0])}"
        if not fault and (name := next(wrong, None)) is not None:
            fault = f"no finite number in {format_column(name)}"
        key = values[num_values:] if has_key else ()
        yield (line, (), fault) if fault else (line, (molecule, join_cells(cells), *key), "")
