"""Augmentation of images: random crops, mirror images, distortions and mixtures, on the device of the pixels.

The random numbers are drawn by the caller, one for each image, so that a step can be captured as a CUDA graph and a
seed determines the images on every device.

Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2018). https://arxiv.org/abs/1710.09412
Yun et al., "CutMix" (2019), for rectangles of another image. https://arxiv.org/abs/1905.04899
Cubuk et al., "RandAugment" (2020), for rotations, shears and changes of color. https://arxiv.org/abs/1909.13719

Dimensions: `batch` images, `channels`, `height` and `width` of each.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

_WHITE = 255.0
_LUMA = (0.299, 0.587, 0.114)
"""The shares of red, green and blue in gray (ITU-R BT.601)."""


def crop_and_flip(
    pixels: Shaped[Tensor, "batch channels height width"],
    offsets: Int[Tensor, "batch 2"],
    is_mirrored: Bool[Tensor, " batch"],
) -> Shaped[Tensor, "batch channels height width"]:
    """Return crops of the images' size whose top left corners are `offsets`, by row and column, some of them mirrored.

    Outside of an image are its reflections.

    Example:
        >>> image = torch.arange(4).view(1, 1, 1, 4)
        >>> crop_and_flip(image, torch.tensor([[0, 1]]), torch.tensor([False]))[0, 0, 0].tolist()
        [1, 2, 3, 2]
        >>> crop_and_flip(image, torch.tensor([[0, 1]]), torch.tensor([True]))[0, 0, 0].tolist()
        [2, 3, 2, 1]
    """
    height, width = pixels.shape[2:]
    rows = offsets[:, :1] + torch.arange(height, device=pixels.device)
    columns = offsets[:, 1:] + torch.arange(width, device=pixels.device)
    columns = torch.where(is_mirrored[:, None], columns.flip(1), columns)
    images = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    # Channels are the last axis of what advanced indexing returns.
    found = pixels.permute(0, 2, 3, 1)[
        images, _reflected(rows, height)[:, :, None], _reflected(columns, width)[:, None]
    ]
    return found.permute(0, 3, 1, 2)


def warp_images(
    pixels: Shaped[Tensor, "batch channels height width"], matrices: Float[Tensor, "batch 2 2"]
) -> Float[Tensor, "batch channels height width"]:
    """Return images that are rotated, sheared or resized about their centers.

    A matrix maps a place of the result to one of the image, as numbers across and down from the center. What lies
    outside of an image are its reflections.

    Example:
        >>> image = torch.arange(4.0).view(1, 1, 2, 2)
        >>> warp_images(image, torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))[0, 0].tolist()
        [[0.0, 2.0], [1.0, 3.0]]
    """
    height, width = pixels.shape[2:]
    down, across = (
        torch.arange(size, device=pixels.device, dtype=torch.float32) * (2.0 / size) + (1.0 / size - 1.0)
        for size in (height, width)
    )
    down, across = down[:, None, None], across[None, :, None]
    # By products of numbers rather than of matrices, whose result would be rounded under autocast.
    rows = matrices.float()[:, None, None]
    places = rows[..., 0] * across + rows[..., 1] * down
    return F.grid_sample(pixels.float(), places, mode="bilinear", padding_mode="reflection", align_corners=False)


def change_tones(
    x: Shaped[Tensor, "batch channels height width"], factors: Float[Tensor, "batch 3"]
) -> Float[Tensor, "batch channels height width"]:
    """Return images of another brightness, contrast and saturation, as factors of those of the image.

    Example:
        >>> image = torch.tensor([50.0, 150.0]).view(1, 1, 1, 2)
        >>> change_tones(image, torch.tensor([[1.2, 0.5, 1.0]]))[0, 0, 0].tolist()
        [90.0, 150.0]
    """
    brightness, contrast, saturation = factors.float()[:, :, None, None, None].unbind(1)
    x = x.float() * brightness
    means = x.mean(dim=(1, 2, 3), keepdim=True)
    x = means + contrast * (x - means)
    if x.size(1) == len(_LUMA):
        gray = sum(share * channel for share, channel in zip(_LUMA, x.unbind(1), strict=True))
        assert isinstance(gray, Tensor)
        x = gray[:, None] + saturation * (x - gray[:, None])
    return x.clamp(0.0, _WHITE)


def mix_images(
    x: Shaped[Tensor, "batch channels height width"],
    shares: Float[Tensor, " batch"],
    boxes: Int[Tensor, "batch 4"] | None = None,
) -> Float[Tensor, "batch channels height width"]:
    """Return mixtures of each image with the one before it in the batch; `shares` are those of the image itself.

    Where a box (its first and last rows and columns, without the last ones themselves) is not empty, the image has the
    pixels of the other one in the box, and its own elsewhere.

    Example:
        >>> images = torch.tensor([[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]]).view(2, 1, 1, 3)
        >>> mix_images(images, torch.tensor([0.5, 1.0])).flatten(1).tolist()
        [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
        >>> boxes = torch.tensor([[0, 1, 1, 2], [0, 0, 0, 0]])
        >>> mix_images(images, torch.tensor([2 / 3, 1.0]), boxes).flatten(1).tolist()
        [[1.0, 8.0, 3.0], [7.0, 8.0, 9.0]]
    """
    own = shares.view(-1, 1, 1, 1)
    if boxes is not None:
        first_row, last_row, first_column, last_column = (each[:, None] for each in boxes.unbind(1))
        rows, columns = (torch.arange(size, device=x.device) for size in x.shape[2:])
        is_down = (rows >= first_row) & (rows < last_row)
        is_across = (columns >= first_column) & (columns < last_column)
        is_inside = is_down[:, None, :, None] & is_across[:, None, None, :]
        has_box = (last_row > first_row) & (last_column > first_column)
        own = torch.where(has_box[:, :, None, None], (~is_inside).to(own.dtype), own)
    return own * x + (1.0 - own) * x.roll(1, dims=0)


def _reflected(positions: Int[Tensor, "batch length"], size: int) -> Int[Tensor, "batch length"]:
    """Return positions within 0 to `size` - 1, counted backwards where they are beyond an end."""
    last = size - 1
    return (last - (last - positions.abs()).abs()).clamp(min=0)
