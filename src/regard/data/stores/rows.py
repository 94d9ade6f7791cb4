"""Rows of ids on disk, memory-mapped.

A store is a folder. Each column of a row (such as source and target) is a file of ids, row after row, and a file of
offsets at which each row begins.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.stores.arrays import complete_folder, flush_to_disk, map_array
from regard.errors import DataError

EncodedColumns = Sequence[Sequence[Sequence[int]]]
"""The ids of several rows: by column, row and position."""

_CHUNK = 4096
"""Rows encoded at a time: enough to use every core, few enough for memory."""


class TokenStore:
    """Rows of ids, read by memory mapping.

    Raises:
        DataError: If the size of a file does not match the number of rows.
    """

    def __init__(self, folder: Path) -> None:
        description = json.loads((folder / "store.json").read_text())
        self.folder = folder
        self.columns: tuple[str, ...] = tuple(description["columns"])
        self.num_rows: int = description["num_rows"]
        self.num_left_out: int = description["num_left_out"]
        self.max_length: int = description["max_length"]
        """Number of ids of the longest column of any row."""
        self._offsets = [map_array(folder / f"{name}.offsets", np.dtype(np.int64)) for name in self.columns]
        self._ids = [map_array(folder / f"{name}.ids", np.dtype(description["dtype"])) for name in self.columns]
        for offsets, ids in zip(self._offsets, self._ids, strict=True):
            if len(offsets) != self.num_rows + 1 or offsets[-1] != len(ids):
                raise DataError(f"{folder} is damaged: the size of its files does not match its {self.num_rows:,} rows")

    def __len__(self) -> int:
        return self.num_rows

    def sequences(self, column: int, rows: Sequence[int] | NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The ids of one column of the given rows."""
        offsets, ids = self._offsets[column], self._ids[column]
        return [ids[offsets[row] : offsets[row + 1]].astype(np.int64) for row in rows]

    def column(self, column: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """All ids of one column, and the offsets at which each row begins and the last one ends."""
        return self._ids[column], self._offsets[column]

    def lengths(self, start: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """The length of each row: that of its longest column."""
        end = self.num_rows if end is None else end
        # Read rather than mapped: a scan of the whole store should not remain in memory.
        size = np.dtype(np.int64).itemsize
        paths = [self.folder / f"{name}.offsets" for name in self.columns]
        offsets = [np.fromfile(path, np.int64, count=end - start + 1, offset=start * size) for path in paths]
        return np.max([np.diff(some) for some in offsets], axis=0)

    def num_tokens(self, column: int) -> int:
        """The total number of ids of one column."""
        return int(self._offsets[column][-1])


def write_store(
    folder: Path,
    rows: Iterable[Sequence[str]],
    encode: Callable[[Sequence[Sequence[str]]], EncodedColumns],
    *,
    columns: Sequence[str],
    dtype: np.dtype,
    max_length: int,
) -> TokenStore:
    """Encode `rows` into a new store, in constant memory.

    Args:
        folder: Where the store is written.
        rows: Any number of rows.
        encode: Returns the ids of several rows, for each of `columns`.
        columns: Names of the columns.
        dtype: Type of the ids, such as `token_dtype(vocab_size)`.
        max_length: Rows with more ids than this in any column are left out and counted.
    """
    num_rows = num_left_out = longest = 0
    iterator = iter(rows)
    with complete_folder(folder) as work:
        with ExitStack() as files:
            writers = [_ColumnWriter(files, work, name, dtype) for name in columns]
            while chunk := list(islice(iterator, _CHUNK)):
                encoded = encode(chunk)
                kept = [i for i in range(len(chunk)) if all(len(column[i]) <= max_length for column in encoded)]
                for writer, column in zip(writers, encoded, strict=True):
                    writer.append([column[i] for i in kept])
                num_rows += len(kept)
                num_left_out += len(chunk) - len(kept)
                longest = max([longest, *(len(column[i]) for i in kept for column in encoded)])
            for writer in writers:
                writer.flush()
        if num_rows == 0 and num_left_out > 0:
            raise DataError(f"all {num_left_out:,} rows have more than max_length={max_length} tokens")
        description = {"columns": list(columns), "num_rows": num_rows, "num_left_out": num_left_out,
                       "max_length": longest, "dtype": dtype.name}  # fmt: skip
        (work / "store.json").write_text(json.dumps(description))
    return TokenStore(folder)


class _ColumnWriter:
    """Appends to the two files of a column; `files` closes them."""

    def __init__(self, files: ExitStack, folder: Path, name: str, dtype: np.dtype) -> None:
        self._ids, self._offsets = (
            files.enter_context(open(folder / f"{name}.{kind}", "wb")) for kind in ("ids", "offsets")
        )
        self._dtype, self._end = dtype, 0
        self._offsets.write(np.zeros(1, np.int64).tobytes())

    def append(self, sequences: Sequence[Sequence[int]]) -> None:
        ends = self._end + np.cumsum([len(sequence) for sequence in sequences], dtype=np.int64)
        self._ids.write(np.array([token for sequence in sequences for token in sequence], self._dtype).tobytes())
        self._offsets.write(ends.tobytes())
        self._end = int(ends[-1]) if len(ends) else self._end

    def flush(self) -> None:
        flush_to_disk(self._ids)
        flush_to_disk(self._offsets)


class GraphStore(TokenStore):
    """Encoded graphs; the first column has a number for each node."""

    def lengths(self, start: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """The number of nodes of each graph."""
        _, offsets = self.column(0)
        return np.diff(offsets[start : (self.num_rows if end is None else end) + 1])
