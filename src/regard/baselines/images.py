"""Images without a network: their likelihoods by histograms, and captions of the most similar training image.

    PixelHistograms      of each pixel, independent of all others
    NeighborHistograms   of each channel, given coarse values to the left and above, and of the channel before
    ErrorHistograms      of the errors of a linear prediction, by context

The last is how lossless codecs of images work: Wu & Memon, "Context-Based, Adaptive, Lossless Image Coding" (1997). A
value is predicted from its neighbors to the left and above and from the channels before it; the error has a histogram
for each context, which is how much the neighbors differ and how wrong the prediction of the channel before was.

For captions, images are compared as squares of 8 x 8 averages of pixels, standardized by image; the nearest one has the
smallest squared distance.

Dimensions: `images`, `channels`, `height` and `width` of each.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray

from regard.baselines.baseline import Baseline, BaselinePredictions, limit_rows

_LEVELS = 256
_MOST_IMAGES = 5_000
_HELD_OUT = 10
"""One image in so many is not fitted on, but chooses among the three."""
_AT_ONCE = 250
_SHARED_COUNT = 8.0
"""The weight of the histogram of all values in that of one pixel or context."""
_SMOOTHING = 0.02
"""Added to every count of a histogram of errors."""
_NEIGHBORS = ((0, -1), (-1, 0), (-1, -1), (-1, 1), (0, -2), (-2, 0))
_COARSE = 16
"""Levels to which the values of a context are rounded."""
_ACTIVITIES, _ERRORS = 12, 4
"""Contexts by the differences of neighbors, and by the error of the channel before."""
_FITTED_PIXELS = 200_000

_Images = UInt8[np.ndarray, "images channels height width"]
_SIDE = 8
Read = Callable[[Sequence[str]], UInt8[np.ndarray, "images channels height width"]]


def fit_pixel_density(pixels: _Images, *, read: Callable[[Sequence[str]], NDArray[np.uint8]]) -> Baseline:
    """The best of three distributions on images that none was fitted on.

    Args:
        pixels: By image, channel, row and column.
        read: Reads the pixels of the images at some paths.
    """
    chosen = pixels[np.array(limit_rows(range(len(pixels)), _MOST_IMAGES), np.int64)]
    is_held_out = np.arange(len(chosen)) % _HELD_OUT == _HELD_OUT - 1
    fitted, held_out = chosen[~is_held_out], chosen[is_held_out] if is_held_out.any() else chosen
    candidates = [each.fit(fitted) for each in (PixelHistograms, NeighborHistograms, ErrorHistograms)]
    best = min(candidates, key=lambda each: float(each.losses(held_out).sum()))

    def predict(paths: Sequence[str]) -> BaselinePredictions:
        losses: list[float] = []
        for first in range(0, len(paths), _AT_ONCE):
            losses += best.losses(read(paths[first : first + _AT_ONCE])).tolist()
        num_values = math.prod(pixels.shape[1:])
        return BaselinePredictions(losses=losses, num_tokens=[num_values] * len(losses))

    return Baseline(best.name, predict, len(chosen), unit="images")


@dataclass(frozen=True)
class PixelHistograms:
    """Every value of an image is independent of the others, and has the histogram of its place."""

    log_probs: Float[np.ndarray, "values levels"]
    name: str = "histograms of each pixel"

    @classmethod
    def fit(cls, pixels: _Images) -> "PixelHistograms":
        values = pixels.reshape(len(pixels), -1).astype(np.int64)
        num_values = values.shape[1]
        counts = np.bincount((values + _LEVELS * np.arange(num_values)).ravel(), minlength=num_values * _LEVELS)
        counts = counts.reshape(num_values, _LEVELS)
        shared = counts.sum(axis=0) + 1.0
        shared = shared / shared.sum()
        return cls(np.log((counts + _SHARED_COUNT * shared) / (len(pixels) + _SHARED_COUNT)))

    def losses(self, pixels: _Images) -> Float[np.ndarray, " images"]:
        """The negative log-likelihood of each image, in nats."""
        values = pixels.reshape(len(pixels), -1).astype(np.int64)
        return -self.log_probs[np.arange(values.shape[1]), values].sum(axis=1)


@dataclass(frozen=True)
class NeighborHistograms:
    """Every value has the histogram of its context: coarse values to the left, above, and of the channel before."""

    log_probs: Float[np.ndarray, "contexts levels"]
    name: str = "histograms given the pixels to the left and above"

    @classmethod
    def fit(cls, pixels: _Images) -> "NeighborHistograms":
        num_contexts = pixels.shape[1] * _COARSE**3
        places = cls._contexts(pixels) * _LEVELS + pixels.astype(np.int64)
        counts = np.bincount(places.ravel(), minlength=num_contexts * _LEVELS).reshape(num_contexts, _LEVELS)
        shared = counts.sum(axis=0) + 1.0
        counts = counts + _SHARED_COUNT * shared / shared.sum()
        return cls(np.log(counts / counts.sum(axis=1, keepdims=True)))

    def losses(self, pixels: _Images) -> Float[np.ndarray, " images"]:
        found = self.log_probs[self._contexts(pixels), pixels.astype(np.int64)]
        return -found.reshape(len(pixels), -1).sum(axis=1)

    @staticmethod
    def _contexts(pixels: _Images) -> Int[np.ndarray, "images channels height width"]:
        found = []
        for channel in range(pixels.shape[1]):
            near = [_shifted(pixels[:, channel], *place) for place in _NEIGHBORS[:2]]
            near.append(pixels[:, channel - 1] if channel else np.zeros_like(near[0]))
            number = np.full(near[0].shape, channel, np.int64)
            for each in near:
                number = number * _COARSE + each.astype(np.int64) * _COARSE // _LEVELS
            found.append(number)
        return np.stack(found, axis=1)


@dataclass(frozen=True)
class ErrorHistograms:
    """A linear prediction of each value, and a histogram of its errors for each context."""

    weights: list[Float[np.ndarray, " features"]]
    """The weights of each channel."""
    thresholds: list[tuple[Float[np.ndarray, " edges"], Float[np.ndarray, " edges"]]]
    """The thresholds of each channel: between contexts by differences, and by errors of the channel before."""
    counts: list[Float[np.ndarray, "contexts errors"]]
    """The counts of each channel: the error e is in column e + 255."""
    name: str = "histograms of the errors of a linear prediction"

    @classmethod
    def fit(cls, pixels: _Images) -> "ErrorHistograms":
        found = cls([], [], [])
        for channel in range(pixels.shape[1]):
            parts = [pixels[first : first + _AT_ONCE] for first in range(0, len(pixels), _AT_ONCE)]
            every = max(1, pixels.shape[0] * pixels.shape[2] * pixels.shape[3] // _FITTED_PIXELS)
            rows = [(_features(part, channel)[::every], part[:, channel].reshape(-1)[::every]) for part in parts]
            features, targets = (np.concatenate(each) for each in zip(*rows, strict=True))
            found.weights.append(np.linalg.lstsq(features, targets.astype(np.float64), rcond=None)[0])
            activity, error = (np.concatenate(each) for each in zip(*map(found._clues_of(channel), parts), strict=True))
            found.thresholds.append((_quantiles(activity, _ACTIVITIES), _quantiles(error, _ERRORS)))
            counts = np.full((_ACTIVITIES * _ERRORS, 2 * _LEVELS - 1), _SMOOTHING)
            for part in parts:
                contexts, guesses = found._predict(part, channel)
                errors = part[:, channel].reshape(-1).astype(np.int64) - guesses + _LEVELS - 1
                places = np.bincount(contexts * counts.shape[1] + errors, minlength=counts.size)
                counts += places.reshape(counts.shape)
            found.counts.append(counts)
        return found

    def losses(self, pixels: _Images) -> Float[np.ndarray, " images"]:
        total = np.zeros(len(pixels))
        for channel, counts in enumerate(self.counts):
            contexts, guesses = self._predict(pixels, channel)
            values = pixels[:, channel].reshape(-1).astype(np.int64)
            sums = np.concatenate([np.zeros((len(counts), 1)), counts.cumsum(axis=1)], axis=1)
            # Of the errors, those are possible that lead to a level.
            first = _LEVELS - 1 - guesses
            possible = sums[contexts, first + _LEVELS] - sums[contexts, first]
            log_probs = np.log(counts[contexts, values + first]) - np.log(possible)
            total -= log_probs.reshape(len(pixels), -1).sum(axis=1)
        return total

    def _predict(self, pixels: _Images, channel: int) -> tuple[Int[np.ndarray, " values"], Int[np.ndarray, " values"]]:
        """The context and the predicted level of each value of a channel."""
        activity, error = self._clues_of(channel)(pixels)
        by_activity, by_error = self.thresholds[channel]
        contexts = np.searchsorted(by_activity, activity) * _ERRORS + np.searchsorted(by_error, error)
        return contexts, _rounded(_features(pixels, channel) @ self.weights[channel])

    def _clues_of(self, channel: int) -> Callable[[_Images], tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """A function to how much the neighbors of each value differ, and the error of the channel before."""

        def clues(pixels: _Images) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            left, above, corner, right = (_shifted(pixels[:, channel], *each) for each in _NEIGHBORS[:4])
            activity = np.abs(left - corner) + np.abs(above - corner) + np.abs(right - above)
            if not channel:
                return activity.reshape(-1), np.zeros(activity.size)
            guesses = _rounded(_features(pixels, channel - 1) @ self.weights[channel - 1])
            return activity.reshape(-1), np.abs(pixels[:, channel - 1].reshape(-1) - guesses).astype(np.float64)

        return clues


def _features(pixels: _Images, channel: int) -> Float[np.ndarray, "values features"]:
    """What a value of a channel is predicted from: its neighbors in all channels, and the channels before it."""
    around = [_shifted(pixels[:, each], *place) for place in _NEIGHBORS for each in range(pixels.shape[1])]
    own = [pixels[:, each].astype(np.float64) for each in range(channel)]
    return np.stack([*around, *own, np.ones(around[0].shape)], axis=-1).reshape(-1, len(around) + channel + 1)


def _shifted(pixels: UInt8[np.ndarray, "images height width"], row: int, column: int) -> NDArray[np.float64]:
    """The pixels at this distance from each; 0 outside of an image."""
    height, width = pixels.shape[1:]
    padded = np.pad(pixels, ((0, 0), (-row, 0), (max(0, -column), max(0, column))))
    first = max(0, column)
    return padded[:, :height, first : first + width].astype(np.float64)


def _rounded(predictions: NDArray[np.float64]) -> NDArray[np.int64]:
    return predictions.round().clip(0, _LEVELS - 1).astype(np.int64)


def _quantiles(values: NDArray[np.float64], num_parts: int) -> NDArray[np.float64]:
    return np.quantile(values, np.arange(1, num_parts) / num_parts)


def fit_nearest_picture(
    pixels: UInt8[np.ndarray, "images channels height width"], captions: Sequence[str], *, read: Read
) -> Baseline:
    """The caption of the nearest of these images; `read` reads the pixels of inputs."""
    known, texts = small_pictures(pixels), np.array(captions, dtype=object)
    norms = (known**2).sum(axis=1)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        found: list[str] = []
        for start in range(0, len(inputs), _AT_ONCE):
            given = small_pictures(read(inputs[start : start + _AT_ONCE]))
            found += texts[(norms - 2 * given @ known.T).argmin(axis=1)].tolist()
        return BaselinePredictions(found)

    return Baseline("caption of the nearest training image", predict, len(captions), unit="images")


def small_pictures(pixels: UInt8[np.ndarray, "images channels height width"]) -> Float[np.ndarray, "images numbers"]:
    """Each image as standardized averages of its squares."""
    found = pixels.astype(np.float32)
    for axis in (2, 3):
        starts = np.arange(_SIDE) * found.shape[axis] // _SIDE
        counts = np.maximum(np.diff(starts, append=found.shape[axis]), 1)
        sums = np.add.reduceat(found, starts, axis=axis)
        found = sums / (counts[:, None] if axis == 2 else counts)
    flat = found.reshape(len(found), -1)
    centered = flat - flat.mean(axis=1, keepdims=True)
    return centered / np.maximum(centered.std(axis=1, keepdims=True), 1e-6)
