"""Pixels on disk, memory-mapped: pictures are decoded once, and more than fit into memory train.

A store is a folder with the pixels of all pictures, one behind the other, and
the number of each picture's label. It is either complete or not there.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.config import PictureConfig
from regard.data.store import flush, map_array, whole_folder
from regard.errors import DataError

_LABELS = np.dtype(np.int64)


class PictureStore:
    """Pictures of one size, and their labels.

    Raises:
        DataError: If a file has not the size that belongs to the pictures.
    """

    def __init__(self, folder: Path) -> None:
        self._shape: tuple[int, ...] = tuple(json.loads((folder / "store.json").read_text())["shape"])
        self._pixels = map_array(folder / "pixels.bin", np.dtype(np.uint8))
        self._labels = map_array(folder / "labels.bin", _LABELS)
        if len(self._pixels) != len(self._labels) * int(np.prod(self._shape)):
            raise DataError(f"{folder} is damaged: its files do not fit its {len(self._labels):,} pictures")

    def __len__(self) -> int:
        return len(self._labels)

    def pixels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """By picture, channel, row and column."""
        return self._pixels.reshape(-1, *self._shape)[rows]

    def labels(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._labels[rows]


def write_pictures(
    folder: Path, pictures: Iterable[tuple[NDArray[np.uint8], int]], config: PictureConfig
) -> PictureStore:
    """A new store of pixels and the numbers of labels."""
    with whole_folder(folder) as work:
        labels: list[int] = []
        with open(work / "pixels.bin", "wb") as file:
            for pixels, label in pictures:
                file.write(pixels.tobytes())
                labels.append(label)
            flush(file)
        with open(work / "labels.bin", "wb") as file:
            file.write(np.array(labels, _LABELS).tobytes())
            flush(file)
        (work / "store.json").write_text(json.dumps({"shape": [config.channels, config.size, config.size]}))
    return PictureStore(folder)
