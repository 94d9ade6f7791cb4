r"""The model of a caption: an encoder of images, and a decoder that attends to the cells of the encoded image.

Vinyals et al., "Show and Tell" (2015): one vector for the whole image. https://arxiv.org/abs/1411.4555
Xu et al., "Show, Attend and Tell" (2015), section 3.1: a vector $z_{ij}$ for each cell of a feature map.
https://arxiv.org/abs/1502.03044

A cell is scored by the state $h$ of the decoder, $s_{ij} = \mathrm{score}(h, z_{ij})$, and the decoder reads the
average of all cells by the softmax of their scores. Any encoder of images serves, whose hidden states are the cells of
a feature map or the patches of an image, and any decoder that can read the hidden states of another encoder.

Dimensions: `batch` images, `captions` of each, `target` positions of a caption, `cells` of an image, `model` width.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor, nn

from regard.data.formats.images import ImageConfig
from regard.errors import ConfigError
from regard.models.family import EncoderDecoderConfig, ModelConfig, build_model, find_family, read_model_config
from regard.models.presets import find_preset
from regard.models.protocols import EncoderOutput
from regard.nn.attention import Lookup
from regard.nn.dropout import Dropout
from regard.nn.norms import LayerNorm

Memory = Literal["map", "mean"]
_POSITION_STD = 0.5
"""Of the initial vectors of positions, beside normalized vectors of variance 1. With vectors that grow along an axis,
attention stayed on a corner, whatever was in the cells."""


def decoder_config(preset: str, **changes: Any) -> ModelConfig:
    """The settings of a decoder by the name of a preset, `tiny` where it has no size; some are changed.

    Example:
        >>> decoder_config("lstm-attention").model_dim
        192
    """
    _, values = find_preset(preset, "tiny")
    config = find_family(values["family"]).Config
    if not issubclass(config, EncoderDecoderConfig) or config.input_kind != "tokens":
        raise ConfigError(f"task.decoder must be a preset with a decoder, such as lstm-attention, got {preset!r}")
    try:
        return read_model_config({**values, **changes, "encoder_layers": 1})  # a stack that the image replaces
    except ConfigError as error:
        raise ConfigError(f"task.decoder: {error}") from None


class Captioner(nn.Module):
    """Pixels and prefixes of captions in, hidden states of the next tokens out."""

    def __init__(
        self, config: ModelConfig, image: ImageConfig, decoder: ModelConfig, vocab_size: int, *, memory: Memory = "map",
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if config.input_kind != "pixels":
            raise ConfigError(f"images need a model that reads pixels, such as cnn, got model.family={config.family}")
        self.config, self.memory = config, memory
        self.body: Any = find_family(config.family).build(config, vocab_size=0, image=image)
        self.projection = nn.Linear(config.model_dim, decoder.model_dim)
        self.norm = LayerNorm(decoder.model_dim)
        self.dropout = Dropout(dropout)
        self.positions: nn.Parameter | None = None
        if memory == "map":
            self.positions = nn.Parameter(_POSITION_STD * torch.randn(image.num_positions - 1, decoder.model_dim))
        self.decoder: Any = build_model(decoder, vocab_size).replace_encoder()

    @property
    def has_maps(self) -> bool:
        """Whether the decoder weights the cells of an image."""
        is_attentive = any(isinstance(module, Lookup) for _, module in self._cross_attention())
        return self.memory == "map" and is_attentive

    def encode(self, pixels: Real[Tensor, "batch channels height width"]) -> EncoderOutput:
        """What the decoder reads: a vector for each cell of the images, or their mean."""
        cells = self.body.encode(pixels).hidden_states
        if self.config.has_class_token:
            cells = cells[:, 1:]
        if self.positions is None:
            return EncoderOutput(self.norm(self.projection(self.dropout(cells.mean(dim=1, keepdim=True)))), None)
        found = self.norm(self.projection(self.dropout(cells)))
        return EncoderOutput(found + self.positions.to(found.dtype), None)

    def hidden_states(
        self, encoded: EncoderOutput, tokens: Int[Tensor, "batch captions target"]
    ) -> Float[Tensor, "rows target model"]:
        """The hidden states of the captions of all images, one caption after the other."""
        cells = encoded.hidden_states.repeat_interleave(tokens.size(1), dim=0)
        return self.decoder.hidden_states(tokens.flatten(0, 1), EncoderOutput(cells, None))

    def attention(
        self, encoded: EncoderOutput, tokens: Int[Tensor, "batch captions target"]
    ) -> list[Float[Tensor, "rows heads target cells"]]:
        """The weights of the cells when each token is predicted, by layers."""
        weights: dict[str, list[Tensor]] = {}
        lookups = [(name, each) for name, each in self._cross_attention() if isinstance(each, Lookup)]
        try:
            for name, each in lookups:
                each.watcher = weights.setdefault(name, []).append
            self.hidden_states(encoded, tokens)
        finally:
            for _, each in lookups:
                each.watcher = None
        return [torch.cat(some, dim=2) for some in weights.values()]

    def _cross_attention(self) -> list[tuple[str, nn.Module]]:
        """The layers of the decoder that attend to the image, rather than to the caption."""
        return [
            (name, each)
            for name, each in self.decoder.named_modules()
            if isinstance(each, Lookup) and not name.endswith(".attention.lookup")
        ]
