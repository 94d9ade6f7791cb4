"""The Vision Transformer: a picture is a sequence of patches.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image
Recognition at Scale" (2020), section 3.1. https://arxiv.org/abs/2010.11929

What tokens are to a Transformer's encoder, the projections of flattened patches
are to this one; the encoder itself, with all its switches, is the same. Before
the patches stands a learned vector, whose state speaks for the whole picture.

Dimensions: see `regard.nn.attention`; `channels`, `height` and `width` of a
picture, `patches` of it, `numbers` of a patch, `outputs` scores.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from regard.data.config import PictureConfig
from regard.errors import ConfigError
from regard.models.families import AnyConfig
from regard.models.heads import HeadConfig, Pool, ScoringHead, pooled
from regard.models.protocols import Memory
from regard.models.transformer import Stack, initialize
from regard.models.transformer_config import TransformerConfig

_BRIGHTEST = 255


class VisionTransformer(nn.Module):
    """Pixels in, states of the whole picture and of each of its patches out."""

    def __init__(self, config: TransformerConfig, picture: PictureConfig) -> None:
        super().__init__()
        # Pictures have one size, so positions need not reach further than over it.
        config = config.changed(context_length=picture.num_positions)
        self.config, self.picture = config, picture
        self.embedding = nn.Linear(picture.patch_dim, config.model_dim)
        self.start = nn.Parameter(torch.zeros(config.model_dim))
        self.encoder = Stack(config, config.encoder_depth)
        initialize(self, config)

    def encode(self, pixels: UInt8[Tensor, "batch channels height width"]) -> Memory:
        x = self.embedding(patches(self.normalized(pixels), self.picture.patch_size))
        start = self.start.to(x.dtype).expand(x.size(0), 1, -1)
        return Memory(self.encoder(torch.cat([start, x], dim=1)), None)

    def normalized(
        self, pixels: UInt8[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """The numbers that the model reads: about 0, and about as large as 1."""
        weight = self.embedding.weight
        x = pixels.to(torch.promote_types(weight.dtype, torch.float32)) / _BRIGHTEST
        num_channels = self.picture.channels
        centers, spreads = (
            numbers * num_channels if len(numbers) == 1 else numbers
            for numbers in (self.picture.center, self.picture.spread)
        )
        channels = [
            (channel - center) / spread
            for channel, center, spread in zip(x.unbind(dim=1), centers, spreads, strict=True)
        ]
        return torch.stack(channels, dim=1).to(weight.dtype)


class PictureClassifier(nn.Module):
    """Pixels in, a score for each label out; without labels it is a body to be fine-tuned."""

    def __init__(self, config: TransformerConfig, picture: PictureConfig, head: HeadConfig, num_outputs: int) -> None:
        super().__init__()
        self.body = VisionTransformer(config, picture)
        self.pooling = Pool(config.model_dim, head.pooling or "first")
        self.head = (
            ScoringHead(config.model_dim, num_outputs, dropout=head.dropout, is_hidden=head.hidden)
            if num_outputs
            else None
        )

    def forward(self, pixels: UInt8[Tensor, "batch channels height width"]) -> Float[Tensor, "batch outputs"]:
        assert self.head is not None, "this model knows no labels"
        return self.head(self.embed(pixels))

    def embed(self, pixels: UInt8[Tensor, "batch channels height width"]) -> Float[Tensor, "batch model"]:
        """The vector of each picture."""
        return pooled(self.pooling, self.body.encode(pixels))


def require_reader(config: AnyConfig) -> TransformerConfig:
    """The settings, if they are those of a model that can read pictures."""
    if not isinstance(config, TransformerConfig):
        raise ConfigError(f"pictures are read by a Transformer, such as vit-tiny, got model.family={config.family}")
    if not config.encoder_depth:
        raise ConfigError("pictures are read by an encoder, such as vit-tiny, and this model has none")
    return config


def patches(x: Float[Tensor, "batch channels height width"], patch_size: int) -> Float[Tensor, "batch patches numbers"]:
    """Squares of a picture, row by row, each with its numbers channel by channel.

    Example:
        >>> patches(torch.arange(16.0).view(1, 1, 4, 4), 2)[0].tolist()[1]
        [2.0, 3.0, 6.0, 7.0]
    """
    squares = x.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
