"""Images to pixels of one size."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from regard.data.codecs.codec import Codec
from regard.data.formats.images import ImageConfig, read_image
from regard.files import load_json


@dataclass(frozen=True)
class PixelCodec(Codec):
    """Paths of images to pixels; there is nothing to fit."""

    image: ImageConfig

    def pixels(self, paths: Sequence[str]) -> NDArray[np.uint8]:
        """Read the images at these paths: image, channel, row, column; values 0 to 255."""
        if not paths:
            return np.empty((0, *self._shape), np.uint8)
        return np.stack([read_image(path, self.image) for path in paths])

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        return [some.flatten().tolist() for some in self.pixels(values)]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[NDArray[np.uint8]]:
        """The pixels, by channel, row and column."""
        return [np.asarray(some, np.uint8).reshape(self._shape) for some in ids]

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.image.channels, self.image.size, self.image.size

    def to_json(self) -> str:
        return json.dumps(self.image.model_dump())

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = load_json(text)
        if not isinstance(values, dict):
            raise ValueError(f"the size of images must be an object, got {values!r}")
        return cls(ImageConfig.read(values))
