"""Properties of an object: several numbers, or several binary labels, any of which may be missing; and molecules.

A molecule is encoded as fingerprints and descriptors.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

from regard.data.chemistry import descriptor_names, descriptor_values, fingerprint_bits
from regard.data.codecs.codec import Codec, checked_codec
from regard.data.formats.cells import is_number
from regard.data.formats.messages import format_count
from regard.errors import DataError
from regard.files import load_json

MISSING = ""
_BETWEEN = ";"
_BINARY = ("0", "1")
_DIGITS = 6
"""Significant digits of a number as text."""


@dataclass(frozen=True)
class PropertyCodec(Codec):
    """The properties of rows, joined by `join_cells`; stored as the bytes of a float32 each, NaN where missing."""

    names: tuple[str, ...] = ()
    """The columns."""
    labels: tuple[tuple[str, str], ...] = ()
    """For each property its two labels, the positive one last; none where properties are numbers."""
    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()
    source: str = ""
    """The column of what has the properties."""

    @classmethod
    def fit(cls, values: Iterable[str], names: Sequence[str], source: str = "") -> Self:
        """Find out whether properties are labels, two values each, or numbers; compute their means.

        Raises:
            DataError: If a property does not vary, or is neither; or if some are labels and others numbers.
        """
        columns = [[cell for cell in cells if cell != MISSING] for cells in zip(*map(split_cells, values), strict=True)]
        kinds = [_kind(name, cells, is_only=len(names) == 1) for name, cells in zip(names, columns, strict=True)]
        if len(set(kinds)) > 1:
            found = ", ".join(f"{name} ({kind})" for name, kind in zip(names, kinds, strict=True))
            raise DataError(f"properties must be all numbers or all labels of two kinds, got {found}: choose columns")
        if kinds[0] == "labels":
            labels = tuple(_in_order({cell.strip() for cell in cells}) for cells in columns)
            return cls(tuple(names), labels, (), (), source)
        arrays = [np.array([float(cell) for cell in cells]) for cells in columns]
        means, stds = tuple(float(each.mean()) for each in arrays), tuple(float(each.std()) for each in arrays)
        return cls(tuple(names), (), means, stds, source)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def are_labels(self) -> bool:
        return bool(self.labels)

    def numbers_of(self, value: str) -> list[float]:
        """The properties of one row: numbers, or 0 and 1 for labels; NaN where one is missing."""
        cells = split_cells(value)
        if len(cells) != len(self):
            raise DataError(f"a row must have {format_count(len(self), 'property')}, got {len(cells)}")
        return [self._number(place, cell.strip()) for place, cell in enumerate(cells)]

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        return [list(np.array(self.numbers_of(value), np.float32).tobytes()) for value in values]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [self.write(row) for row in self.numbers(ids).tolist()]

    def numbers(self, ids: Sequence[Sequence[int]] | Sequence[NDArray[np.int64]]) -> Float[np.ndarray, "rows outputs"]:
        """The numbers that `encode` stored."""
        return np.stack([np.asarray(some) for some in ids]).astype(np.uint8).view(np.float32)

    def write(self, numbers: Sequence[float]) -> str:
        """Numbers as cells, the inverse of `numbers_of`."""
        return join_cells([self.format(place, number) for place, number in enumerate(numbers)])

    def format(self, place: int, number: float) -> str:
        """One property as text: a number, or the label whose number is nearer."""
        if math.isnan(number):
            return MISSING
        return self.labels[place][int(number > 0.5)] if self.labels else f"{number:.{_DIGITS}g}"

    def display(self, value: str) -> str:
        """A value for a reader: the only property, or those that are known, each with its name.

        Example:
            >>> PropertyCodec(("a", "b", "c"), means=(0, 0, 0), stds=(1, 1, 1)).display("1;;0.5")
            'a=1, c=0.5'
        """
        cells = split_cells(value)
        if len(self) == 1:
            return cells[0]
        return ", ".join(f"{name}={cell}" for name, cell in zip(self.names, cells, strict=True) if cell != MISSING)

    def standardize(self, numbers: Float[np.ndarray, "rows outputs"]) -> Float[np.ndarray, "rows outputs"]:
        """Numbers as a model is trained on them; labels are not changed."""
        if self.labels:
            return numbers
        return ((numbers - np.array(self.means)) / np.array(self.stds)).astype(np.float32)

    def restore(self, numbers: Float[np.ndarray, "rows outputs"]) -> Float[np.ndarray, "rows outputs"]:
        """The inverse of `standardize`."""
        return numbers if self.labels else numbers * np.array(self.stds) + np.array(self.means)

    def describe(self) -> str:
        """One line for the log."""
        names = ", ".join(self.names[:6]) + (", …" if len(self) > 6 else "")
        kind = "binary label" if self.are_labels else "number"
        return f"properties: {format_count(len(self), kind)} ({names})"

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = load_json(text)
        return checked_codec(cls, values, (("names", "labels" if values["labels"] else "means"), ("means", "stds")))

    def _number(self, place: int, cell: str) -> float:
        if cell == MISSING:
            return math.nan
        if not self.labels:
            return float(cell)
        known = self.labels[place]
        if cell not in known:
            raise DataError(f"{self.names[place]} has the label {cell!r}, and training rows have {' and '.join(known)}")
        return float(known.index(cell))


def join_cells(cells: Sequence[str]) -> str:
    """The properties of a row as one value.

    Example:
        >>> join_cells(["1", "", "0.5"]), split_cells("1;;0.5")
        ('1;;0.5', ['1', '', '0.5'])
    """
    return _BETWEEN.join(cells)


def split_cells(value: str) -> list[str]:
    """The properties that `join_cells` has joined."""
    return value.split(_BETWEEN)


def _kind(name: str, cells: Sequence[str], *, is_only: bool) -> str:
    distinct = {cell.strip() for cell in cells}
    if not is_only and distinct and distinct <= set(_BINARY):  # of many labels, one may be rare
        return "labels"
    if len(distinct) < 2:
        what = f"all {format_count(len(cells), 'row')} have {min(distinct)!r}" if distinct else "no row has it"
        raise DataError(f"the property {name} must vary in the training rows: {what}")
    is_numeric = all(map(is_number, distinct))
    is_binary = len(distinct) == 2 and (not is_numeric or {float(cell) for cell in distinct} <= {0.0, 1.0, -1.0})
    if is_binary:
        return "labels"
    if not is_numeric:
        raise DataError(
            f"the property {name} must be a number or one of two labels, got {format_count(len(distinct), 'label')}: "
            "task text-classification takes more"
        )
    return "numbers"


def _in_order(labels: Iterable[str]) -> tuple[str, str]:
    """Two labels, the smaller number or the first by alphabet before the other."""
    labels = set(labels)
    labels |= set(_BINARY) if len(labels) < 2 else set()
    first, last = sorted(labels, key=lambda label: (float(label) if is_number(label) else 0.0, label))
    return first, last


@dataclass(frozen=True)
class MoleculeCodec(Codec):
    """The bytes of three fingerprints and of the descriptors, each a float32; nothing without descriptors."""

    descriptors: tuple[str, ...] = ()
    """Their names, since another version of rdkit may have others."""

    @classmethod
    def fit(cls) -> Self:
        """The codec with the descriptors of the installed rdkit."""
        return cls(descriptor_names())

    def features(self, values: Sequence[str]) -> UInt8[np.ndarray, "molecules bytes"]:
        """The bytes of each molecule."""
        if not self.descriptors:
            return np.zeros((len(values), 0), np.uint8)
        numbers = descriptor_values(values, self.descriptors)
        return np.concatenate([fingerprint_bits(values), np.ascontiguousarray(numbers).view(np.uint8)], axis=1)

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        return self.features(values).tolist()

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The bytes as hexadecimal digits, since a molecule cannot be restored from them."""
        return [bytes(some).hex() for some in ids]

    def to_json(self) -> str:
        return json.dumps({"descriptors": self.descriptors})

    @classmethod
    def from_json(cls, text: str) -> Self:
        return checked_codec(cls, load_json(text))
