"""The Vision Transformer: an image is a sequence of patches.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image
Recognition at Scale" (2020), section 3.1. https://arxiv.org/abs/2010.11929

The encoder is that of a Transformer; instead of token embeddings it reads linear
projections of the flattened patches. A learned vector is prepended, whose last
hidden state represents the whole image.

Dimensions: see `regard.nn.attention`; `channels`, `height` and `width` of an image,
its `patches`, `numbers` of a patch, `outputs` logits.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Real
from torch import Tensor, nn

from regard.data.formats.images import ImageConfig
from regard.models.base import ModelT
from regard.models.encoders import ATTENTION, AttentionEncoderConfig, InputEncoder
from regard.models.family import Family, InputKind, ModelConfig, Preset
from regard.models.transformer.model import TransformerStack, initialize_transformer
from regard.nn.norms import BatchNorm

_LARGEST_PIXEL = 255
_FEWEST_CHANNELS = 4
_CONVOLUTION_STD = 0.02
"""Each convolution is normalized: only the size of updates relative to the weights depends on it."""


class VisionTransformerConfig(AttentionEncoderConfig):
    """The settings of a Vision Transformer: those of a Transformer's encoder."""

    family: str = "vision"
    input_kind: ClassVar[InputKind] = "pixels"
    has_class_token: ClassVar[bool] = True
    stem: Literal["patches", "convolutions"] = "patches"
    """What makes a vector of each patch: a linear projection of its pixels, as in the paper; or convolutions, by which
    training needs fewer steps and depends less on the learning rate."""

    @property
    def gains_from_bf16_on_cpu(self) -> bool:
        return True


class ImageEncoder(InputEncoder):
    """An `Encoder` of pixels of 0 to 255: the hidden states of the squares of an image, row by row."""

    Config: ClassVar[type[ModelConfig]]
    default_image: ClassVar[ImageConfig] = ImageConfig()
    """The images of a model that is built without saying which."""

    def __init__(self, config: ModelConfig, image: ImageConfig) -> None:
        super().__init__()
        self.config, self.image = config, image

    @classmethod
    def from_preset(cls: type[ModelT], name: str, *, image: ImageConfig | None = None, **settings: Any) -> ModelT:
        """Return a new model with the settings of a preset, some of them replaced by `settings`."""
        from regard.models.presets import find_preset

        own: Any = cls  # its type is known to be more than a module: TypeVar bounds cannot name this class
        return own(own.Config.read({**find_preset(name, "base")[1], **settings}), image or own.default_image)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


class VisionTransformer(ImageEncoder):
    """The hidden states of the whole image and of each of its patches."""

    Config: ClassVar[type[ModelConfig]] = VisionTransformerConfig

    def __init__(self, config: VisionTransformerConfig, image: ImageConfig) -> None:
        # All images have the same size, which is the number of learned positions.
        config = config.changed(context_length=image.num_positions)
        super().__init__(config, image)
        self.stem = None if config.stem == "patches" else ConvolutionalStem(config.model_dim, image)
        self.embedding = nn.Linear(image.patch_dim if self.stem is None else self.stem.width, config.model_dim)
        self.start = nn.Parameter(torch.zeros(config.model_dim))
        self.encoder = TransformerStack(config, config.encoder_depth)
        initialize_transformer(self, config)

    def hidden_states(
        self, source: Real[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch positions model"]:
        pixels = normalize_pixels(source, self.image, self.embedding.weight.dtype)
        x = patches(pixels, self.image.patch_size) if self.stem is None else self.stem(pixels)
        x = self.embedding(x)
        start = self.start.to(x.dtype).expand(x.size(0), 1, -1)
        return self.encoder(torch.cat([start, x], dim=1))


class ConvolutionalStem(nn.Module):
    """Convolutions of 3 x 3 pixels or more, of which each but the first has a stride: a vector for each patch.

    Xiao et al., "Early Convolutions Help Transformers See Better" (2021). https://arxiv.org/abs/2106.14881
    """

    def __init__(self, model_dim: int, image: ImageConfig) -> None:
        super().__init__()
        strides = [1, *prime_factors(image.patch_size)]
        widths = [max(_FEWEST_CHANNELS, model_dim >> halvings) for halvings in range(len(strides), 0, -1)]
        self.width = widths[-1]
        sizes = zip([image.channels, *widths[:-1]], widths, strides, strict=True)
        self.layers = nn.ModuleList(ConvolutionLayer(*size) for size in sizes)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch patches outputs"]:
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self.layers:
            x = layer(x)
        return x.flatten(2).transpose(1, 2)


class ConvolutionLayer(nn.Module):
    """A convolution, normalization and rectification. The weight is a matrix, which Muon can update."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.kernel_size = stride, max(3, stride)  # odd for every stride that is prime, and for 1
        self.weight = nn.Parameter(torch.empty(outputs, inputs * self.kernel_size**2))
        nn.init.normal_(self.weight, std=_CONVOLUTION_STD)
        self.norm = BatchNorm(outputs)

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs rows columns"]:
        weight = self.weight.unflatten(1, (-1, self.kernel_size, self.kernel_size))
        return F.relu(self.norm(F.conv2d(x, weight, stride=self.stride, padding=self.kernel_size // 2)))


def prime_factors(number: int) -> list[int]:
    """Return the prime factors of a number, the largest first.

    Example:
        >>> prime_factors(12), prime_factors(1)
        ([3, 2, 2], [])
    """
    found, factor = [], 2
    while number > 1:
        if number % factor:
            factor += 1
        else:
            found.append(factor)
            number //= factor
    return found[::-1]


def normalize_pixels(
    pixels: Real[Tensor, "batch channels height width"], image: ImageConfig, dtype: torch.dtype
) -> Float[Tensor, "batch channels height width"]:
    """Return pixels of 0 to 255, scaled to 0..1, minus the mean and divided by the standard deviation of each channel.

    They may be fractions: augmentation mixes pixels.
    """
    x = pixels.to(torch.promote_types(dtype, torch.float32)) / _LARGEST_PIXEL
    means, stds = (numbers * image.channels if len(numbers) == 1 else numbers for numbers in (image.mean, image.std))
    channels = [(channel - mean) / std for channel, mean, std in zip(x.unbind(dim=1), means, stds, strict=True)]
    return torch.stack(channels, dim=1).to(dtype)


def patches(x: Float[Tensor, "batch channels height width"], patch_size: int) -> Float[Tensor, "batch patches numbers"]:
    """Return the square patches of images, row by row, each flattened channel by channel.

    Example:
        >>> patches(torch.arange(16.0).view(1, 1, 4, 4), 2)[0].tolist()[1]
        [2.0, 3.0, 6.0, 7.0]
    """
    squares = x.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class VisionFamily(Family):
    """Vision Transformers. `base` and `big` are ViT-Base and ViT-Large of Dosovitskiy et al. (2020), table 1.

    `tiny` and `small` are for images of few pixels, and for minutes of training.
    """

    name = "vision"
    Config = VisionTransformerConfig
    Model = VisionTransformer
    default_shape: ClassVar[ImageConfig] = VisionTransformer.default_image
    presets: ClassVar[Mapping[str, Preset]] = {
        "vit": Preset(
            {
                "tiny": {
                    "num_layers": 4,
                    "model_dim": 128,
                    "num_heads": 4,
                    "feedforward_dim": 512,
                    "stem": "convolutions",
                },
                "small": {
                    "num_layers": 8,
                    "model_dim": 384,
                    "num_heads": 6,
                    "feedforward_dim": 1536,
                    "dropout": 0.0,
                    "stochastic_depth": 0.1,
                    "stem": "convolutions",
                },
                "base": {
                    "num_layers": 12,
                    "model_dim": 768,
                    "num_heads": 12,
                    "feedforward_dim": 3072,
                    "stochastic_depth": 0.1,
                },
                "big": {
                    "num_layers": 24,
                    "model_dim": 1024,
                    "num_heads": 16,
                    "feedforward_dim": 4096,
                    "stochastic_depth": 0.2,
                },
            },
            {**ATTENTION, "positions": "learned"},
        )
    }
