"""A residual convolutional network: an image becomes a feature map, whose cells are the hidden states.

He et al., "Identity Mappings in Deep Residual Networks" (2016), for blocks that normalize before they convolve.
https://arxiv.org/abs/1603.05027
Zagoruyko & Komodakis, "Wide Residual Networks" (2016), for few wide blocks instead of many narrow ones.
https://arxiv.org/abs/1605.07146

A stage halves the height and the width of the feature map and doubles its channels. There are as many halvings as
make one cell of one patch of `task.image.patch_size` pixels, so that the cells of this encoder and the patches of a
Vision Transformer are the same squares of an image.

Dimensions: `batch` images, `channels`, `height` and `width` of an image or feature map, `cells` of the last map.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Real
from pydantic import Field
from torch import Tensor, nn

from regard.data.formats.images import ImageConfig
from regard.errors import ConfigError
from regard.models.family import Family, InputKind, ModelConfig, Preset
from regard.models.vision import ImageEncoder, normalize_pixels
from regard.nn.dropout import StochasticDepth, branch_probabilities
from regard.nn.norms import BatchNorm


class ResNetConfig(ModelConfig):
    """The settings of a residual convolutional network."""

    family: str = "cnn"
    input_kind: ClassVar[InputKind] = "pixels"
    model_dim: int = Field(default=256, ge=1)
    """Channels of the last feature map, and so the width of the hidden states; each stage before has half as many."""
    num_layers: int = Field(default=2, ge=1)
    """Residual blocks of each stage."""
    kernel_size: int = Field(default=3, ge=1)
    """Height and width of the convolutions; an odd number."""
    stochastic_depth: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability with which the last block is skipped for an image in a training step; it decreases linearly to 0 in
    the first block."""

    @property
    def encoder_depth(self) -> int:
        return self.num_layers


class ResNet(ImageEncoder):
    """The hidden states of the cells of the last feature map."""

    Config: ClassVar[type[ModelConfig]] = ResNetConfig

    def __init__(self, config: ResNetConfig, image: ImageConfig) -> None:
        super().__init__(config, image)
        if config.kernel_size % 2 == 0:
            raise ConfigError(f"model.kernel_size must be odd, got {config.kernel_size}")
        self.encoder = ResidualStack(config, image)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for block in self.encoder.blocks:
            assert isinstance(block, ResidualBlock)
            nn.init.zeros_(block.second.weight)  # each block is the identity at first

    def hidden_states(self, source: Real[Tensor, "batch channels height width"]) -> Float[Tensor, "batch cells model"]:
        features = self.encoder(normalize_pixels(source, self.image, self.encoder.stem.weight.dtype))
        return features.flatten(2).transpose(1, 2)


class ResidualStack(nn.Module):
    """A first convolution, the blocks of all stages, and a last norm."""

    def __init__(self, config: ResNetConfig, image: ImageConfig) -> None:
        super().__init__()
        widths = stage_widths(config.model_dim, image.patch_size)
        self.stem = nn.Conv2d(image.channels, widths[0], config.kernel_size, padding="same", bias=False)
        sizes = [
            (widths[max(0, stage - 1)] if block == 0 else width, width, 2 if stage and block == 0 else 1)
            for stage, width in enumerate(widths)
            for block in range(config.num_layers)
        ]
        self.blocks = nn.ModuleList(
            ResidualBlock(*size, kernel_size=config.kernel_size, stochastic_depth=probability)
            for size, probability in zip(sizes, branch_probabilities(config.stochastic_depth, len(sizes)), strict=True)
        )
        self.final_norm = BatchNorm(config.model_dim)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch model rows columns"]:
        # Channels last is the layout in which convolutions are fastest, on a GPU and on a CPU. A grayscale image has
        # the same memory in both, so that the layout of its feature maps is not that of the image.
        x = self.stem(x.contiguous(memory_format=torch.channels_last)).contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x)
        return F.relu(self.final_norm(x))


class ResidualBlock(nn.Module):
    """Two convolutions, each of a normalized and rectified map, whose result is added to the input."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, *, kernel_size: int, stochastic_depth: float = 0.0
    ) -> None:
        super().__init__()
        padding = kernel_size // 2
        self.first_norm, self.second_norm = BatchNorm(inputs), BatchNorm(outputs)
        self.first = nn.Conv2d(inputs, outputs, kernel_size, stride, padding, bias=False)
        self.second = nn.Conv2d(outputs, outputs, kernel_size, 1, padding, bias=False)
        # Where the size of the map changes, so does its input: the average of each square, projected.
        self.shortcut = None if inputs == outputs and stride == 1 else nn.Conv2d(inputs, outputs, 1, bias=False)
        self.stride = stride
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs rows columns"]:
        y = F.relu(self.first_norm(x))
        branch = self.second(F.relu(self.second_norm(self.first(y))))
        if self.shortcut is not None:
            x = self.shortcut(F.avg_pool2d(y, self.stride) if self.stride > 1 else y)
        return x + self.stochastic_depth(branch)


def stage_widths(model_dim: int, patch_size: int) -> list[int]:
    """Return the channels of each stage: twice as many after each halving of the map.

    Example:
        >>> stage_widths(256, 4)
        [64, 128, 256]
    """
    num_halvings = patch_size.bit_length() - 1
    if patch_size != 1 << num_halvings:
        raise ConfigError(f"task.image.patch_size must be a power of two for a convolutional network, got {patch_size}")
    if model_dim % patch_size:
        raise ConfigError(
            f"model.model_dim must be a multiple of task.image.patch_size, got {model_dim} and {patch_size}"
        )
    return [model_dim >> (num_halvings - stage) for stage in range(num_halvings + 1)]


class ResNetFamily(Family):
    """Residual convolutional networks. `small` has the blocks and widths of WRN-16-4 (Zagoruyko & Komodakis, 2016)."""

    name = "cnn"
    Config = ResNetConfig
    Model = ResNet
    default_shape: ClassVar[ImageConfig] = ResNet.default_image
    presets: ClassVar[Mapping[str, Preset]] = {
        "cnn": Preset(
            {
                "tiny": {"num_layers": 1, "model_dim": 96},
                "small": {"num_layers": 2, "model_dim": 256},
                "base": {"num_layers": 2, "model_dim": 640, "stochastic_depth": 0.1},
                "big": {"num_layers": 3, "model_dim": 1024, "stochastic_depth": 0.2},
            }
        )
    }
