"""Generated images, and the training images that differ least from each: a model that memorizes draws these.

Dimensions: `batch` images, `channels`, `height` and `width` of each.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from regard.data.stores.images import ImageStore
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.models.pixels import PixelModel
from regard.tasks.task import DrawnImage

_SLOTS = {"cpu": 16, "cuda": 128}
"""_Images that are generated side by side."""
_AT_ONCE = 4_096
"""Training images that are compared at once."""
_NUM_NEAREST = 3

_Images = UInt8[np.ndarray, "batch channels height width"]


def generate_images(model: PixelModel, config: GenerationConfig, starts: Sequence[int]) -> _Images:
    """Sample images value by value, from these start tokens; image i has the seed `config.seed` + i."""
    shape, count = model.shape, len(starts)
    engine = Engine(model, config, end=None, num_slots=min(count, _SLOTS[model.device.type]))
    numbered = enumerate(starts, start=config.seed)
    found = np.array(engine.run([Request([start], limit=shape.num_values, seed=seed) for seed, start in numbered]))
    # Levels are spread over the whole range: the lowest is black, and the highest is white.
    pixels = (found * 255 / (shape.levels - 1)).round().astype(np.uint8)
    return pixels.reshape(count, shape.size, shape.size, shape.channels).transpose(0, 3, 1, 2)


def drawn_images(pixels: _Images, labels: Sequence[str]) -> list[DrawnImage]:
    """_Images as PNG files."""
    return [DrawnImage(to_png(each), label) for each, label in zip(pixels, labels, strict=True)]


def with_nearest(
    drawn: Sequence[DrawnImage], pixels: _Images, store: ImageStore, labels: Sequence[str]
) -> list[DrawnImage]:
    """The images with the training images that are nearest to each."""
    places, distances = nearest_images(pixels, store, number=_NUM_NEAREST)
    found = []
    for image, rows, away in zip(drawn, places, distances, strict=True):
        names = [labels[int(index)] if index < len(labels) else "" for index in store.labels(rows)]
        beside = drawn_images(store.pixels(rows), names)
        found.append(replace(image, nearest=_at(beside, away.tolist())))
    return found


def nearest_images(
    pixels: _Images, store: ImageStore, *, number: int
) -> tuple[Int[np.ndarray, "batch nearest"], Float[np.ndarray, "batch nearest"]]:
    """The numbers of the stored images that differ least from each, and the root of the mean squared difference."""
    given = pixels.reshape(len(pixels), -1).astype(np.float32)
    squares = []
    for first in range(0, len(store), _AT_ONCE):
        rows = np.arange(first, min(first + _AT_ONCE, len(store)))
        stored = store.pixels(rows).reshape(len(rows), -1).astype(np.float32)
        squares.append((given**2).sum(axis=1)[:, None] - 2 * given @ stored.T + (stored**2).sum(axis=1))
    found = np.concatenate(squares, axis=1)
    places = np.argsort(found, axis=1, kind="stable")[:, :number]
    nearest = np.take_along_axis(found, places, axis=1).clip(min=0.0)
    return places, np.sqrt(nearest / given.shape[1])


def to_png(pixels: UInt8[np.ndarray, "channels height width"]) -> str:
    """An image as a PNG file, in base64."""
    data = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(data, format="PNG")
    return base64.b64encode(data.getvalue()).decode()


def _at(images: Sequence[DrawnImage], distances: Sequence[float]) -> list[DrawnImage]:
    return [replace(image, distance=distance) for image, distance in zip(images, distances, strict=True)]
