"""Augmentation of images: random crops, mirror images and mixtures, on the device of the pixels.

The random numbers are drawn by the caller, one for each image, so that a step can be captured as a CUDA graph and a
seed determines the images on every device.

Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2018). https://arxiv.org/abs/1710.09412

Dimensions: `batch` images, `channels`, `height` and `width` of each.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


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


def mix_images(
    x: Shaped[Tensor, "batch channels height width"], shares: Float[Tensor, " batch"]
) -> Float[Tensor, "batch channels height width"]:
    """Return mixtures of each image with the one before it in the batch; `shares` are those of the image itself."""
    own = shares.view(-1, 1, 1, 1)
    return own * x + (1.0 - own) * x.roll(1, dims=0)


def _reflected(positions: Int[Tensor, "batch length"], size: int) -> Int[Tensor, "batch length"]:
    """Return positions within 0 to `size` - 1, counted backwards where they are beyond an end."""
    last = size - 1
    return (last - (last - positions.abs()).abs()).clamp(min=0)
