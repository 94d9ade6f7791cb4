"""Captions without a model: those of the most similar training image.

Images are compared as squares of 8 x 8 averages of pixels, standardized by image; the nearest one has the smallest
squared distance.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, UInt8

from regard.baselines.baseline import Baseline, BaselinePredictions

_SIDE = 8
_AT_ONCE = 256

Read = Callable[[Sequence[str]], UInt8[np.ndarray, "images channels height width"]]


def fit_nearest_picture(
    pixels: UInt8[np.ndarray, "images channels height width"], captions: Sequence[str], *, read: Read
) -> Baseline:
    """The caption of the nearest of these images; `read` reads the pixels of inputs."""
    known = small_pictures(pixels)
    norms = (known**2).sum(axis=1)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        found: list[str] = []
        for start in range(0, len(inputs), _AT_ONCE):
            given = small_pictures(read(inputs[start : start + _AT_ONCE]))
            found += [captions[best] for best in (norms - 2 * given @ known.T).argmin(axis=1)]
        return BaselinePredictions(found)

    return Baseline("caption of the nearest training image", predict, len(captions), unit="images")


def small_pictures(pixels: UInt8[np.ndarray, "images channels height width"]) -> Float[np.ndarray, "images numbers"]:
    """Each image as standardized averages of its squares."""
    images, channels, height, width = pixels.shape
    rows, columns = (np.arange(side) * _SIDE // side for side in (height, width))
    grid = np.zeros((images, channels, _SIDE, _SIDE), np.float32)
    counts = np.zeros((_SIDE, _SIDE), np.float32)
    np.add.at(counts, (rows[:, None], columns[None, :]), 1.0)
    np.add.at(grid, (slice(None), slice(None), rows[:, None], columns[None, :]), pixels)
    flat = (grid / np.maximum(counts, 1.0)).reshape(images, -1)
    centered = flat - flat.mean(axis=1, keepdims=True)
    return centered / np.maximum(centered.std(axis=1, keepdims=True), 1e-6)
