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
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Real
from pydantic import Field
from torch import Tensor, nn

from regard.data.formats.images import ImageConfig
from regard.errors import ConfigError
from regard.models.family import Family, InputKind, ModelConfig, Preset
from regard.models.protocols import EncoderOutput
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import TransformerStack, initialize_transformer

_LARGEST_PIXEL = 255


class VisionTransformerConfig(TransformerConfig):
    """The settings of a Vision Transformer: those of a Transformer's encoder."""

    family: str = "vision"
    can_isolate_documents: ClassVar[bool] = False
    input_kind: ClassVar[InputKind] = "pixels"
    has_class_token: ClassVar[bool] = True
    decoder_layers: int | None = Field(default=0, ge=0, le=0)
    """Always 0: there is no decoder."""


class VisionTransformer(nn.Module):
    """An `Encoder` of pixels: the hidden states of the whole image and of each of its patches."""

    def __init__(self, config: TransformerConfig, image: ImageConfig) -> None:
        super().__init__()
        # All images have the same size, which is the number of learned positions.
        config = config.changed(context_length=image.num_positions)
        self.config, self.image = config, image
        self.embedding = nn.Linear(image.patch_dim, config.model_dim)
        self.start = nn.Parameter(torch.zeros(config.model_dim))
        self.encoder = TransformerStack(config, config.encoder_depth)
        initialize_transformer(self, config)

    @classmethod
    def from_preset(cls, name: str, *, image: ImageConfig | None = None, **settings: Any) -> "VisionTransformer":
        """Return a new model with the settings of a preset, some of them replaced by `settings`."""
        from regard.models.presets import find_preset

        config = VisionTransformerConfig.read({**find_preset(name, "base")[1], **settings})
        return cls(config, image or ImageConfig())

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def encode(
        self,
        source: Real[Tensor, "batch channels height width"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        segments: Int[Tensor, "batch time"] | None = None,
        extra_embeddings: Float[Tensor, "batch time model"] | None = None,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> EncoderOutput:
        """Return the hidden states of pixels of 0 to 255; the other arguments are for sequences of tokens."""
        require_pixels(lengths, extra_embeddings, documents)
        pixels = normalize_pixels(source, self.image, self.embedding.weight.dtype)
        x = self.embedding(patches(pixels, self.image.patch_size))
        start = self.start.to(x.dtype).expand(x.size(0), 1, -1)
        return EncoderOutput(self.encoder(torch.cat([start, x], dim=1)), None)


def require_pixels(*parts: Tensor | None) -> None:
    """Raise a `ConfigError` if arguments of `encode` are given that only sequences of tokens have."""
    if any(part is not None for part in parts):
        raise ConfigError(
            "lengths, extra_embeddings and documents are for sequences of tokens, this model reads pixels"
        )


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


class ImageFamily(Family):
    """A family of models that read images."""

    Encoder: ClassVar[Any]
    default_image: ClassVar[ImageConfig] = ImageConfig()
    """The images of a model that is built without saying which."""

    def build(
        self,
        config: Any,
        *,
        vocab_size: int,
        source_vocab_size: int | None = None,
        image: ImageConfig | None = None,
    ) -> nn.Module:
        return self.Encoder(config, image or self.default_image)

    def decoder_only(self, values: Mapping[str, Any]) -> dict[str, Any]:
        raise ConfigError("a model of images has no decoder")


class VisionFamily(ImageFamily):
    """Vision Transformers. `base` and `big` are ViT-Base and ViT-Large of Dosovitskiy et al. (2020), table 1."""

    name: ClassVar[str] = "vision"
    Config: ClassVar[type[ModelConfig]] = VisionTransformerConfig
    Model: ClassVar[type[nn.Module]] = VisionTransformer
    Encoder: ClassVar[Any] = VisionTransformer
    presets: ClassVar[Mapping[str, Preset]] = {
        "vit": Preset(
            {
                "tiny": {"num_layers": 4, "model_dim": 128, "num_heads": 4, "feedforward_dim": 512},
                "small": {
                    "num_layers": 12,
                    "model_dim": 384,
                    "num_heads": 6,
                    "feedforward_dim": 1536,
                    "stochastic_depth": 0.1,
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
            {
                "decoder_layers": 0,
                "block": "pre-norm",
                "positions": "learned",
                "activation": "gelu",
                "scale_embeddings": False,
                "initialization": "gpt2",
            },
        )
    }
