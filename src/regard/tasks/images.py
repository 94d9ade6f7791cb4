"""What tasks on images have in common: their rows, their codecs, augmentation, and batches in shuffled order.

`regard.tasks.text` is the same for tasks on text.

Dimensions: `batch` images, `channels`, `height` and `width` of each.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard.baselines.linear import check_flips
from regard.data.codecs.labels import LabelCodec
from regard.data.codecs.pixels import PixelCodec
from regard.data.formats.images import ImageConfig, is_data_uri, read_image, to_data_uri
from regard.data.image_sources import ImageSource
from regard.data.permutation import mix, permute
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows
from regard.data.stores.images import ImageStore
from regard.errors import ConfigError
from regard.logging import log_info
from regard.tasks.task import EVALUATION_TOKENS, Task, TaskSettings
from regard.tasks.text import pad_rows

IMAGES_FOR_FLIPS = 4_000
"""Images from which it is decided whether images are mirrored in training."""
_AUGMENTATION = 1
"""Augmentation has random numbers of its own, beside those of the order of the images."""
_CHANGED_SHARE = 0.5
_LARGEST_ANGLE, _LARGEST_SHEAR, _LARGEST_ZOOM, _LARGEST_TONE = math.pi / 6, 0.3, 0.2, 0.6
"""Distortions of strength 1, as in RandAugment: rotations by up to 30 degrees."""
_SHOWN, _THUMBNAIL = 60, 64
"""Images that a report shows, and their height and width."""
_DECIDED_FLIPS: WeakKeyDictionary[ImageStore, bool] = WeakKeyDictionary()
"""Defaults are computed more than once for the same images."""

ImageTaskSettingsT = TypeVar("ImageTaskSettingsT", bound=TaskSettings)


class ImageTask(Task[ImageTaskSettingsT], ABC):
    """A task whose inputs are paths of images, or whose rows begin with one."""

    unit = "image"

    @property
    @abstractmethod
    def set_image(self) -> ImageConfig:
        """The images as the settings describe them."""

    @property
    def image(self) -> ImageConfig:
        """The images as the codec reads them, where there is one."""
        codec = self.codecs.get("image")
        return codec.image if isinstance(codec, PixelCodec) else self.set_image

    @property
    def label_codec(self) -> LabelCodec:
        codec = self.codecs.get("label")
        return codec if isinstance(codec, LabelCodec) else LabelCodec({})

    @abstractmethod
    def open(self, config: DataConfig, rows: Rows | None = None) -> ImageSource:  # pyright: ignore[reportIncompatibleMethodOverride]  images are not rows of a table
        ...

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = self.open(config, rows)
        for inferred in source.inferred:
            log_info(inferred)
        return list(source.train.rows), source.content_hash()

    def target_of(self, row: Sequence[str]) -> str:
        return row[-1].strip()

    def num_positions(self, data: Prepared) -> int:
        return 0  # positions are those of the patches or pixels

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        return []

    def check_crop_padding(self, padding: int | None) -> None:
        if (padding or 0) >= self.image.size:
            raise ConfigError(
                f"task.crop_padding must be less than the size of images, got {padding} and {self.image.size}"
            )

    def pixel_batches(
        self, paths: Sequence[str], device: torch.device
    ) -> Iterator[UInt8[Tensor, "batch channels height width"]]:
        """The pixels of images on a device, in batches."""
        codec = PixelCodec(self.image)
        for rows in self.ranges(len(paths)):
            yield torch.from_numpy(codec.pixels([paths[row] for row in rows])).to(device)

    def ranges(self, num_images: int) -> list[range]:
        """The images that are evaluated at once."""
        at_once = max(1, EVALUATION_TOKENS // self.image.num_positions)
        return [range(start, min(start + at_once, num_images)) for start in range(0, num_images, at_once)]


def picture_samples(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples whose `source` is an image, wrong ones first, each with a small copy of it."""
    wrong, right = ([each for each in samples if each["right"] is is_right] for is_right in (False, True))
    return [
        {**each, "source": name_of_image(each["source"], number), "image": _thumbnail(each["source"])}
        for number, each in enumerate([*wrong[: _SHOWN // 2], *right[: _SHOWN // 2]], start=1)
    ]


def name_of_image(image: str, number: int) -> str:
    """The name of its file; a number for an image without one."""
    return f"image {number:,}" if is_data_uri(image) else Path(image).name


def _thumbnail(image: str) -> str:
    """A small copy of an image, as a data URI."""
    config = ImageConfig(size=_THUMBNAIL, patch_size=_THUMBNAIL)
    is_small = is_data_uri(image) and len(image) < _THUMBNAIL**2
    return image if is_small else to_data_uri(read_image(image, config).transpose(1, 2, 0))


def choose_flips(wanted: bool | None, store: Any) -> bool:
    """The setting, or whether the data allows flips, for which the reason is logged."""
    if wanted is not None:
        return wanted
    if store not in _DECIDED_FLIPS:
        drawn = draw_for_flips(store)
        _DECIDED_FLIPS[store], reason = check_flips(store.pixels(drawn), store.labels(drawn))
        log_info(f"images are {'' if _DECIDED_FLIPS[store] else 'not '}mirrored in training: {reason}")
    return _DECIDED_FLIPS[store]


def draw_for_flips(store: Any) -> NDArray[np.int64]:
    """Some images of a store, always the same ones."""
    assert isinstance(store, ImageStore)
    return permute(np.arange(min(len(store), IMAGES_FOR_FLIPS)), len(store), 0)


def draw_offsets(
    count: int, rng: np.random.Generator, *, padding: int, flips: bool | None
) -> tuple[Int[Tensor, "batch 2"], Bool[Tensor, " batch"]]:
    """By how many pixels each image of a batch is shifted, and whether it is mirrored."""
    offsets = torch.from_numpy(rng.integers(-padding, padding, (count, 2), endpoint=True))
    return offsets, torch.from_numpy(rng.random(count) < (0.5 if flips else 0.0))


def draw_distortions(
    count: int, rng: np.random.Generator, *, strength: float
) -> tuple[Float[Tensor, "batch 2 2"], Float[Tensor, "batch 3"]]:
    """Random rotations, shears and sizes of images, and factors of their brightness, contrast and saturation.

    Each change is left out for half of the images.
    """

    def draw(largest: float) -> NDArray[np.float64]:
        return rng.uniform(-strength * largest, strength * largest, count) * (rng.random(count) < _CHANGED_SHARE)

    angle, across, down, size = (draw(each) for each in (_LARGEST_ANGLE, _LARGEST_SHEAR, _LARGEST_SHEAR, _LARGEST_ZOOM))
    rotation = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=1).reshape(-1, 2, 2)
    shear = np.stack([np.ones(count), across, down, np.ones(count)], axis=1).reshape(-1, 2, 2)
    matrices = np.exp(size)[:, None, None] * (rotation @ shear)
    factors = 1.0 + np.stack([draw(_LARGEST_TONE) for _ in range(3)], axis=1)
    return torch.from_numpy(matrices.astype(np.float32)), torch.from_numpy(factors.astype(np.float32))


def draw_mixtures(
    count: int, rng: np.random.Generator, *, size: int, mixup: float, cutmix: float
) -> tuple[Float[Tensor, " batch"], Int[Tensor, "batch 4"]]:
    """The share of each image in its mixture, and the box of the other image in it, empty where there is none.

    The share `cutmix` of images has a box, whose area is uniformly distributed before it is cut at the image's border.
    """
    shares = rng.beta(mixup, mixup, count) if mixup else np.ones(count)
    side = np.sqrt(rng.random(count)) * size / 2
    centers = rng.random((2, count)) * size
    firsts, lasts = (np.rint((centers + sign * side).clip(0, size)) for sign in (-1, 1))
    areas = (lasts - firsts).prod(axis=0) / size**2
    has_box = (rng.random(count) < cutmix) & (areas > 0)
    boxes = np.stack([firsts[0], lasts[0], firsts[1], lasts[1]], axis=1) * has_box[:, None]
    shares = np.where(has_box, 1.0 - areas, shares).astype(np.float32)
    return torch.from_numpy(shares), torch.from_numpy(boxes.astype(np.int64))


class ShuffledImages:
    """The images of each training batch, in another order in each epoch.

    With `has_fixed_shapes`, as a GPU needs them, all batches have one shape.
    """

    def __init__(self, num_images: int, *, at_once: int, seed: int, has_fixed_shapes: bool) -> None:
        self._num_images, self._seed = num_images, seed
        self.per_epoch = -(-num_images // max(1, at_once))
        self._num_rows = -(-num_images // self.per_epoch) if has_fixed_shapes else 0

    def rows(self, number: int) -> NDArray[np.int64]:
        """The images of batch `number`, counted from 0 through all epochs."""
        epoch, place = divmod(number, self.per_epoch)
        start, end = (self._num_images * each // self.per_epoch for each in (place, place + 1))
        return permute(np.arange(start, end), self._num_images, mix(self._seed, epoch))

    def generator(self, number: int) -> np.random.Generator:
        """The random numbers of the augmentation of batch `number`."""
        return np.random.default_rng([mix(self._seed, number), _AUGMENTATION])

    def padded(self, batch: Any, num_rows: int) -> tuple[Any, int]:
        """A batch of so many rows in the shape of all, where it is fixed, and how many rows repeat the first."""
        more = max(0, self._num_rows - num_rows)
        if not more:
            return batch, 0
        return batch.with_tensors([None if x is None else pad_rows(x, self._num_rows) for x in batch.tensors()]), more
