"""Series on disk, memory-mapped: standardized numbers, step by step, which of them are known, and features of steps.

A store is a folder with the steps of all segments, one after the other. A segment is a series, or a part of one.

Dimensions: `time` steps of all segments, `columns` of numbers, `features`, `windows`.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from regard.data.stores.arrays import complete_folder, flush_to_disk, map_array
from regard.errors import DataError

_LENGTH_DTYPE = np.dtype(np.int64)
Segment = tuple[Float[np.ndarray, "time columns"], Bool[np.ndarray, "time columns"], Float[np.ndarray, "time features"]]
"""Values, which of them are known, and features of steps, which are known in advance."""


@dataclass(frozen=True)
class Segments:
    """Segments one after the other."""

    values: NDArray[np.float32]
    known: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    features: NDArray[np.float32]

    @classmethod
    def join(cls, segments: Sequence[Segment]) -> "Segments":
        """Segments in memory."""
        values, known, features = (np.concatenate(parts) for parts in zip(*segments, strict=True))
        return cls(values, known, np.array([len(each) for each, _, _ in segments]), features)

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
        record = json.loads((folder / "store.json").read_text())
        num_columns, num_features = record["columns"], record["features"]
        values, known, features = (map_array(folder / f"{name}.bin", np.dtype(dtype)) for name, dtype in _FILES)
        lengths = map_array(folder / "lengths.bin", _LENGTH_DTYPE)
        total = int(lengths.sum())
        if not len(values) == len(known) == total * num_columns or len(features) != total * num_features:
            raise DataError(f"{folder} is damaged: the size of its files does not match its {len(lengths):,} series")
        self.segments = Segments(
            values.reshape(-1, num_columns), known.reshape(-1, num_columns), lengths,
            features.reshape(total, num_features),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.segments.values)


_FILES = (("values", np.float32), ("known", np.bool_), ("features", np.float32))


def write_series(folder: Path, segments: Iterable[Segment], num_columns: int, num_features: int = 0) -> SeriesStore:
    """Write segments to a new store."""
    with complete_folder(folder) as work:
        lengths: list[int] = []
        with ExitStack() as stack:
            files = [stack.enter_context(open(work / f"{name}.bin", "wb")) for name, _ in _FILES]
            for segment in segments:
                for file, part, (_, dtype) in zip(files, segment, _FILES, strict=True):
                    file.write(part.astype(dtype).tobytes())
                lengths.append(len(segment[0]))
            for file in files:
                flush_to_disk(file)
        with open(work / "lengths.bin", "wb") as file:
            file.write(np.array(lengths, _LENGTH_DTYPE).tobytes())
            flush_to_disk(file)
        (work / "store.json").write_text(json.dumps({"columns": num_columns, "features": num_features}))
    return SeriesStore(folder)
