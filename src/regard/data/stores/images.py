"""Pixels on disk, memory-mapped: images are decoded once, and may exceed memory.

A store is a folder with the pixels of all images, one after the other, and the index of the label of each.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.stores.arrays import complete_folder, flush_to_disk, map_array
from regard.errors import DataError

_LABEL_DTYPE = np.dtype(np.int64)


class ImageStore:
    """Images of one size, and their labels.

    Raises:
        DataError: If the size of a file does not match the number of images.
    """

    def __init__(self, folder: Path) -> None:
        self._shape: tuple[int, ...] = tuple(json.loads((folder / "store.json").read_text())["shape"])
        self._pixels = map_array(folder / "pixels.bin", np.dtype(np.uint8))
        self._labels = map_array(folder / "labels.bin", _LABEL_DTYPE)
        if len(self._pixels) != len(self._labels) * int(np.prod(self._shape)):
            raise DataError(
                f"{folder} is damaged: the size of its files does not match its {len(self._labels):,} images"
            )

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def num_bytes(self) -> int:
        """The size of all pixels."""
        return len(self._pixels)

    def pixels(self, rows: NDArray[np.int64] | slice) -> NDArray[np.uint8]:
        """By image, channel, row and column."""
        return self._pixels.reshape(-1, *self._shape)[rows]

    def labels(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._labels[rows]


def write_images(
    folder: Path, images: Iterable[tuple[NDArray[np.uint8], int]], shape: tuple[int, int, int]
) -> ImageStore:
    """Write pixels of the given shape (channels, rows, columns) and label indices to a new store."""
    with complete_folder(folder) as work:
        labels: list[int] = []
        with open(work / "pixels.bin", "wb") as file:
            for pixels, label in images:
                file.write(pixels.tobytes())
                labels.append(label)
            flush_to_disk(file)
        with open(work / "labels.bin", "wb") as file:
            file.write(np.array(labels, _LABEL_DTYPE).tobytes())
            flush_to_disk(file)
        (work / "store.json").write_text(json.dumps({"shape": shape}))
    return ImageStore(folder)
