"""Captioned images on disk: the pixels of each image once, and the token ids of all its captions.

The images are an `ImageStore` whose labels are the numbers of captions; the captions are a `TokenStore`, those of an
image one after the other, in the order of the images.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.stores.arrays import token_dtype
from regard.data.stores.images import ImageStore, write_images
from regard.data.stores.rows import TokenStore, write_store
from regard.errors import DataError

_CAPTIONS = "captions"


class CaptionStore:
    """Images of one size, and the captions of each.

    Raises:
        DataError: If the numbers of captions do not match.
    """

    def __init__(self, folder: Path) -> None:
        self.images = ImageStore(folder)
        self.captions = TokenStore(folder / _CAPTIONS)
        counts = self.images.labels(np.arange(len(self.images)))
        self._first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        if self._first[-1] != len(self.captions):
            raise DataError(f"{folder} is damaged: it has {len(self.captions):,} captions, not {self._first[-1]:,}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def max_length(self) -> int:
        """Tokens of the longest caption."""
        return self.captions.max_length

    @property
    def most_captions(self) -> int:
        """The largest number of captions of an image."""
        return int(np.diff(self._first).max())

    def pixels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """By image, channel, row and column."""
        return self.images.pixels(rows)

    def captions_of(self, rows: NDArray[np.int64]) -> list[list[NDArray[np.int64]]]:
        """The token ids of the captions of each image."""
        return [self.captions.sequences(0, range(self._first[row], self._first[row + 1])) for row in rows]


def write_captions(
    folder: Path,
    images: Iterable[tuple[NDArray[np.uint8], Sequence[str]]],
    shape: tuple[int, int, int],
    *,
    encode: Callable[[Sequence[str]], list[list[int]]],
    vocab_size: int,
) -> CaptionStore:
    """Write pixels of the given shape (channels, rows, columns) and their captions to a new store."""
    texts: list[str] = []

    def counted() -> Iterator[tuple[NDArray[np.uint8], int]]:
        for pixels, captions in images:
            texts.extend(captions)
            yield pixels, len(captions)

    write_images(folder, counted(), shape)
    write_store(
        folder / _CAPTIONS,
        ((text,) for text in texts),
        lambda rows: [encode([row[0] for row in rows])],
        columns=("caption",),
        dtype=token_dtype(vocab_size),
        max_length=sys.maxsize,
    )
    return CaptionStore(folder)
