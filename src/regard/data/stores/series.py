"""Series on disk, memory-mapped: standardized numbers, step by step, and which of them are known.

A store is a folder with the steps of all segments, one after the other. A segment is a series, or a part of one.

Dimensions: `time` steps of all segments, `columns` of numbers, `windows`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from regard.data.stores.arrays import complete_folder, flush_to_disk, map_array
from regard.errors import DataError

_LENGTH_DTYPE = np.dtype(np.int64)
Segment = tuple[Float[np.ndarray, "time columns"], Bool[np.ndarray, "time columns"]]


@dataclass(frozen=True)
class Segments:
    """Segments one after the other."""

    values: NDArray[np.float32]
    known: NDArray[np.bool_]
    lengths: NDArray[np.int64]

    @classmethod
    def join(cls, segments: Sequence[Segment]) -> "Segments":
        """Segments in memory."""
        values, known = (np.concatenate(parts) for parts in zip(*segments, strict=True))
        return cls(values, known, np.array([len(each) for each, _ in segments]))

    def windows(self, length: int, stride: int = 1) -> NDArray[np.int64]:
        """The first steps of all windows of this length, each within a segment."""
        firsts = np.cumsum(self.lengths) - self.lengths
        ranges = [
            np.arange(first, first + size - length + 1, stride)
            for first, size in zip(firsts, self.lengths, strict=True)
            if size >= length
        ]
        return np.concatenate(ranges) if ranges else np.empty(0, np.int64)

    def segment_of(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the segment that each step is in."""
        return np.searchsorted(np.cumsum(self.lengths), steps, side="right")


class SeriesStore:
    """Segments in files.

    Raises:
        DataError: If the size of a file does not match the number of steps.
    """

    def __init__(self, folder: Path) -> None:
        num_columns = json.loads((folder / "store.json").read_text())["columns"]
        values, known = (map_array(folder / f"{name}.bin", np.dtype(dtype)) for name, dtype in _FILES)
        lengths = map_array(folder / "lengths.bin", _LENGTH_DTYPE)
        if not len(values) == len(known) == int(lengths.sum()) * num_columns:
            raise DataError(f"{folder} is damaged: the size of its files does not match its {len(lengths):,} series")
        self.segments = Segments(values.reshape(-1, num_columns), known.reshape(-1, num_columns), lengths)

    def __len__(self) -> int:
        return len(self.segments.values)


_FILES = (("values", np.float32), ("known", np.bool_))


def write_series(folder: Path, segments: Iterable[Segment], num_columns: int) -> SeriesStore:
    """Write segments to a new store."""
    with complete_folder(folder) as work:
        lengths: list[int] = []
        with open(work / "values.bin", "wb") as values_file, open(work / "known.bin", "wb") as known_file:
            for values, known in segments:
                values_file.write(values.astype(np.float32).tobytes())
                known_file.write(known.astype(np.bool_).tobytes())
                lengths.append(len(values))
            flush_to_disk(values_file)
            flush_to_disk(known_file)
        with open(work / "lengths.bin", "wb") as file:
            file.write(np.array(lengths, _LENGTH_DTYPE).tobytes())
            flush_to_disk(file)
        (work / "store.json").write_text(json.dumps({"columns": num_columns}))
    return SeriesStore(folder)
