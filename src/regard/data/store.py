"""Token ids on disk, memory-mapped: a file larger than memory trains.

A store is a folder. Each column of a row (source, target) is a file of ids,
one row's after the other's, and a file of offsets that says where each begins.
It is written under another name and renamed when whole, so that a store is
either complete or not there.
"""

import json
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from regard.data.coding import Coding
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer

_CHUNK = 4096
"""Rows encoded at a time: enough to keep every core busy, few enough to hold."""


class TokenStore:
    """Rows of token ids, read where they lie.

    Raises:
        DataError: If a file has not the size that belongs to the rows.
    """

    def __init__(self, folder: Path) -> None:
        description = json.loads((folder / "store.json").read_text())
        self.folder = folder
        self.columns: tuple[str, ...] = tuple(description["columns"])
        self.num_rows: int = description["num_rows"]
        self.num_left_out: int = description["num_left_out"]
        self.max_length: int = description["max_length"]
        """Tokens of the longest row."""
        self._offsets = [map_array(folder / f"{name}.offsets", np.dtype(np.int64)) for name in self.columns]
        self._ids = [map_array(folder / f"{name}.ids", np.dtype(description["dtype"])) for name in self.columns]
        for offsets, ids in zip(self._offsets, self._ids, strict=True):
            if len(offsets) != self.num_rows + 1 or offsets[-1] != len(ids):
                raise DataError(f"{folder} is damaged: its files do not fit its {self.num_rows:,} rows")

    def __len__(self) -> int:
        return self.num_rows

    def sequences(self, column: int, rows: Sequence[int] | NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The ids of one column of these rows."""
        offsets, ids = self._offsets[column], self._ids[column]
        return [ids[offsets[row] : offsets[row + 1]].astype(np.int64) for row in rows]

    def lengths(self, start: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """The number of tokens of each row, the longest column's."""
        end = self.num_rows if end is None else end
        # Read, not mapped: whoever scans the whole store should not have it stay in memory.
        size = np.dtype(np.int64).itemsize
        paths = [self.folder / f"{name}.offsets" for name in self.columns]
        offsets = [np.fromfile(path, np.int64, count=end - start + 1, offset=start * size) for path in paths]
        return np.max([np.diff(some) for some in offsets], axis=0)

    def num_tokens(self, column: int) -> int:
        return int(self._offsets[column][-1])


def write_store(
    folder: Path,
    rows: Iterable[Sequence[str]],
    tokenizer: Tokenizer,
    coding: Coding,
    *,
    max_length: int,
) -> TokenStore:
    """Encode `rows` into a new store; rows with a column longer than `max_length` tokens are left out."""
    with whole_folder(folder) as work:
        _write_columns(work, rows, tokenizer, coding, max_length)
    return TokenStore(folder)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when the block ends, and is removed if that raises an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
        os.replace(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def dtype_for(tokenizer: Tokenizer) -> np.dtype:
    """The smallest type that holds every id of the vocabulary."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= np.iinfo(np.uint16).max + 1 else np.uint32)


def flush(file: IO[bytes]) -> None:
    """Have what was written reach the disk."""
    file.flush()
    os.fsync(file.fileno())


def _write_columns(
    work: Path, rows: Iterable[Sequence[str]], tokenizer: Tokenizer, coding: Coding, max_length: int
) -> None:
    dtype, columns = dtype_for(tokenizer), coding.columns
    num_rows = num_left_out = longest = 0
    with ExitStack() as files:
        writers = [_ColumnWriter(files, work, name, dtype) for name in columns]
        for chunk in _chunks(rows, _CHUNK):
            by_column = coding.encode(chunk, tokenizer)
            kept = [i for i in range(len(chunk)) if all(len(sequences[i]) <= max_length for sequences in by_column)]
            for writer, sequences in zip(writers, by_column, strict=True):
                writer.append([sequences[i] for i in kept])
            num_rows += len(kept)
            num_left_out += len(chunk) - len(kept)
            longest = max([longest, *(len(sequences[i]) for i in kept for sequences in by_column)])
        for writer in writers:
            writer.flush()
    if num_rows == 0 and num_left_out > 0:
        raise DataError(f"every one of the {num_left_out:,} rows is longer than max_length={max_length} tokens")
    description = {"columns": list(columns), "num_rows": num_rows, "num_left_out": num_left_out,
                   "max_length": longest, "dtype": dtype.name}  # fmt: skip
    (work / "store.json").write_text(json.dumps(description))


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
        flush(self._ids)
        flush(self._offsets)


def _chunks(rows: Iterable[Sequence[str]], size: int) -> Iterator[list[Sequence[str]]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk


def map_array(path: Path, dtype: np.dtype) -> NDArray:
    """The numbers in a file, read where they lie and only when they are looked at."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):  # rows are read in shuffled order: reading ahead would fill memory in vain
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=dtype)
