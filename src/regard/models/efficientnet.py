"""EfficientNet-Lite: a convolutional network of inverted residual blocks, for which there are pretrained weights.

Tan & Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (2019), table 1.
https://arxiv.org/abs/1905.11946
Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018), for its blocks.
https://arxiv.org/abs/1801.04381
Liu, "Higher accuracy on vision models with EfficientNet-Lite" (2020): ReLU6, and no squeeze-and-excitation.
https://blog.tensorflow.org/2020/03/higher-accuracy-on-vision-models-with-efficientnet-lite.html

An image is halved five times: a square of 32 x 32 pixels is one cell of the last feature map, whose cells are the
hidden states.

Dimensions: `batch` images, `channels`, `height` and `width` of an image or feature map, `cells` of the last map.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Real
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.data.formats.images import ImageConfig
from regard.errors import ConfigError
from regard.models.family import Family, InputKind, ModelConfig, Preset
from regard.models.presets import SIZES
from regard.models.vision import ImageEncoder, normalize_pixels
from regard.nn.dropout import StochasticDepth, branch_probabilities
from regard.nn.norms import BatchNorm

Padding = Literal["same", "symmetric"]

_KERNEL_SIZES = (3, 3, 5, 3, 5, 5, 3)
_STRIDES = (1, 2, 2, 2, 1, 2, 1)
_EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)
"""The expansions of the seven stages: a block has so many times the channels of its input inside. Only the first block
of a stage has the stride."""
_STEM_STRIDE = 2
CELL_SIZE = 32
"""Pixels of a cell in height and width: the product of the strides."""
NORM_EPSILON = 1e-3
"""That of the weights in TensorFlow, ten times more than PyTorch's."""


class EfficientNetConfig(ModelConfig):
    """The settings of an EfficientNet-Lite; by default those of Lite0."""

    family: str = "efficientnet"
    input_kind: ClassVar[InputKind] = "pixels"
    model_dim: int = Field(default=1_280, ge=1)
    """Channels of the last feature map, and so the width of the hidden states."""
    stem_dim: int = Field(default=32, ge=1)
    """Channels of the first convolution."""
    widths: list[int] = Field(default_factory=lambda: [16, 24, 40, 80, 112, 192, 320])
    """Channels of each of the seven stages."""
    depths: list[int] = Field(default_factory=lambda: [1, 2, 2, 3, 3, 4, 1])
    """Blocks of each stage."""
    padding: Padding = "same"
    """same: as in TensorFlow, where a convolution with a stride pads more at the right and at the bottom; symmetric: as
    in PyTorch."""
    stochastic_depth: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability with which the last block is skipped for an image in a training step; it decreases linearly to 0 in
    the first block."""

    @model_validator(mode="after")
    def _stages_are_complete(self) -> "EfficientNetConfig":
        for name, numbers in (("widths", self.widths), ("depths", self.depths)):
            if len(numbers) != len(_STRIDES) or min(numbers) < 1:
                raise ConfigError(f"model.{name} must be {len(_STRIDES)} positive numbers, got {numbers}")
        return self

    @property
    def encoder_depth(self) -> int:
        return sum(self.depths)


class EfficientNet(ImageEncoder):
    """The hidden states of the cells of the last feature map."""

    Config: ClassVar[type[ModelConfig]] = EfficientNetConfig
    default_image: ClassVar[ImageConfig] = ImageConfig(size=7 * CELL_SIZE, patch_size=CELL_SIZE)

    def __init__(self, config: EfficientNetConfig, image: ImageConfig) -> None:
        super().__init__(config, image)
        if image.patch_size != CELL_SIZE:
            raise ConfigError(
                f"task.image.patch_size must be {CELL_SIZE} for an EfficientNet, which halves an image five times, got "
                f"{image.patch_size}; task.image.size is then a multiple of it, such as 224"
            )
        self.encoder = InvertedResidualStack(config, image)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def hidden_states(self, source: Real[Tensor, "batch channels height width"]) -> Float[Tensor, "batch cells model"]:
        features = self.encoder(normalize_pixels(source, self.image, self.encoder.stem.weight.dtype))
        return features.flatten(2).transpose(1, 2)


class InvertedResidualStack(nn.Module):
    """A first convolution, the blocks of all stages, and a last convolution to the width of the hidden states."""

    def __init__(self, config: EfficientNetConfig, image: ImageConfig) -> None:
        super().__init__()
        padding = config.padding
        self.stem = PaddedConv2d(image.channels, config.stem_dim, 3, _STEM_STRIDE, padding_kind=padding)
        self.stem_norm = BatchNorm(config.stem_dim, epsilon=NORM_EPSILON)
        inputs = [config.stem_dim, *config.widths]
        sizes = [
            (inputs[stage] if block == 0 else width, width, _KERNEL_SIZES[stage], _STRIDES[stage] if block == 0 else 1,
             _EXPANSIONS[stage])
            for stage, width in enumerate(config.widths)
            for block in range(config.depths[stage])
        ]  # fmt: skip
        self.blocks = nn.ModuleList(
            InvertedResidual(*size, padding=padding, stochastic_depth=probability)
            for size, probability in zip(sizes, branch_probabilities(config.stochastic_depth, len(sizes)), strict=True)
        )
        self.final = nn.Conv2d(config.widths[-1], config.model_dim, 1, bias=False)
        self.final_norm = BatchNorm(config.model_dim, epsilon=NORM_EPSILON)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch model rows columns"]:
        # The layout in which convolutions are fastest; a grayscale image has the same memory in both layouts.
        x = self.stem(x.contiguous(memory_format=torch.channels_last)).contiguous(memory_format=torch.channels_last)
        x = F.relu6(self.stem_norm(x))
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.final_norm(self.final(x)))


class InvertedResidual(nn.Module):
    """More channels by a convolution of single pixels, one filter for each of them, and fewer channels again."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel_size: int,
        stride: int,
        expansion: int,
        *,
        padding: Padding,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        inside = expansion * inputs
        self.expand = None if expansion == 1 else nn.Conv2d(inputs, inside, 1, bias=False)
        self.expand_norm = None if expansion == 1 else BatchNorm(inside, epsilon=NORM_EPSILON)
        self.depthwise = PaddedConv2d(inside, inside, kernel_size, stride, groups=inside, padding_kind=padding)
        self.depthwise_norm = BatchNorm(inside, epsilon=NORM_EPSILON)
        self.project = nn.Conv2d(inside, outputs, 1, bias=False)
        self.project_norm = BatchNorm(outputs, epsilon=NORM_EPSILON)
        self.is_residual = stride == 1 and inputs == outputs
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs rows columns"]:
        y = x
        if self.expand is not None and self.expand_norm is not None:
            y = F.relu6(self.expand_norm(self.expand(y)))
        y = F.relu6(self.depthwise_norm(self.depthwise(y)))
        y = self.project_norm(self.project(y))
        return x + self.stochastic_depth(y) if self.is_residual else y


class PaddedConv2d(nn.Conv2d):
    """A convolution without a bias whose output has the size of its input divided by the stride, rounded up."""

    def __init__(
        self, inputs: int, outputs: int, kernel_size: int, stride: int, *, groups: int = 1, padding_kind: Padding
    ) -> None:
        padding = kernel_size // 2 if padding_kind == "symmetric" else 0
        super().__init__(inputs, outputs, kernel_size, stride, padding, groups=groups, bias=False)
        self.padding_kind = padding_kind

    def forward(self, input: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs rows columns"]:
        if self.padding_kind == "same":
            left, right = same_padding(input.size(3), self.kernel_size[1], self.stride[1])
            top, bottom = same_padding(input.size(2), self.kernel_size[0], self.stride[0])
            input = F.pad(input, (left, right, top, bottom))
        return super().forward(input)


def same_padding(size: int, kernel_size: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after the `size` pixels of a row or column, as TensorFlow pads them.

    Example:
        >>> same_padding(224, 3, 2), same_padding(7, 3, 2), same_padding(7, 5, 1)
        ((0, 1), (1, 1), (2, 2))
    """
    num_outputs = -(-size // stride)
    total = max(0, (num_outputs - 1) * stride + kernel_size - size)
    return total // 2, total - total // 2


class EfficientNetFamily(Family):
    """EfficientNet-Lite0."""

    name = "efficientnet"
    Config = EfficientNetConfig
    Model = EfficientNet
    default_shape: ClassVar[ImageConfig] = EfficientNet.default_image
    # One architecture, whatever the size of the data.
    presets: ClassVar[Mapping[str, Preset]] = {"efficientnet-lite0": Preset({size: {} for size in SIZES})}
