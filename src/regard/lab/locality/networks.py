"""S-CONV, S-LOCAL, S-FC and 3-FC, each of which contains the one before it, and the locality of their filters.

Dimensions: `batch` images, `channels`, `height`, `width`; `unit` of the first layer.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class LocallyConnected(nn.Module):
    """A convolution whose kernel differs from place to place."""

    def __init__(self, shape: tuple[int, int, int], num_channels: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        channels, height, width = shape
        num_places = math.ceil(height / 2) * math.ceil(width / 2)
        fan_in = channels * kernel**2
        self.weight = nn.Parameter(torch.empty(num_places, fan_in, num_channels).uniform_(-1, 1) / math.sqrt(fan_in))

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch unit"]:
        kernel = self.kernel
        windows = F.pad(images, [kernel // 2] * 4).unfold(2, kernel, 2).unfold(3, kernel, 2)
        patches = windows.permute(2, 3, 0, 1, 4, 5).reshape(len(self.weight), len(images), -1)
        return (patches @ self.weight).permute(1, 2, 0).flatten(1)


def make_network(
    name: str, shape: tuple[int, int, int], num_classes: int, *, base_channels: int, kernel: int
) -> nn.Sequential:
    """Returns S-CONV, S-LOCAL, S-FC or 3-FC; its first module is the layer whose filters are measured."""
    channels, height, width = shape
    pixels = channels * height * width
    units, hidden = base_channels * math.ceil(height / 2) * math.ceil(width / 2), 24 * base_channels
    if name == "3-FC":
        # Equal widths w with pixels * w + w * w + w * num_classes parameters, as many as S-FC has.
        total, linear = units * (pixels + hidden) + hidden * num_classes, pixels + num_classes
        units = hidden = round((math.sqrt(linear**2 + 4 * total) - linear) / 2)
    if name == "S-CONV":
        first = nn.Conv2d(channels, base_channels, kernel, stride=2, padding=kernel // 2, bias=False)
        layers: list[nn.Module] = [first, nn.BatchNorm2d(base_channels), nn.ReLU(), nn.Flatten()]
    elif name == "S-LOCAL":
        layers = [LocallyConnected(shape, base_channels, kernel), nn.BatchNorm1d(units), nn.ReLU()]
    else:
        layers = [_Dense(pixels, units), nn.BatchNorm1d(units), nn.ReLU()]
    second = [nn.Linear(units, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, num_classes)]
    return nn.Sequential(*layers, *second)


class _Dense(nn.Linear):
    """A fully connected layer of images, without biases: batch normalization follows."""

    def __init__(self, num_inputs: int, num_units: int) -> None:
        super().__init__(num_inputs, num_units, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(1))


@torch.no_grad()
def dense_filters(layer: nn.Module, shape: tuple[int, int, int]) -> Float[Tensor, "unit channels height width"]:
    """Returns the weights of a first layer as those of a fully connected one, by its outputs for each single pixel."""
    weights = next(layer.parameters())
    pixels = torch.eye(math.prod(shape), dtype=weights.dtype, device=weights.device).view(-1, *shape)
    return torch.cat([layer(part).flatten(1) for part in pixels.split(512)]).T.reshape(-1, *shape)


def window_shares(filters: Float[Tensor, "unit channels height width"], kernel: int) -> Float[Tensor, " unit"]:
    """Returns the largest share of each unit's squared weights within a window; units without weights are left out."""
    energy = filters.square().sum(1, keepdim=True)
    energy = energy[energy.sum((1, 2, 3)) > 0]
    windows = F.avg_pool2d(F.pad(energy, [kernel // 2] * 4), kernel, stride=1) * kernel**2
    return windows.amax((1, 2, 3)) / energy.sum((1, 2, 3))


def shuffle_pixels(filters: Float[Tensor, "unit channels height width"], *, seed: int) -> Tensor:
    """Returns the filters with the pixels of each in a random order, the channels of a pixel together."""
    flat = filters.flatten(2)
    order = (
        torch.rand(len(flat), flat.size(2), generator=torch.Generator().manual_seed(seed)).to(flat.device).argsort(1)
    )
    return flat.gather(2, order[:, None].expand_as(flat)).view_as(filters)
