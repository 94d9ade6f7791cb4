"""Every family of models under one name: their settings, and how one is built from them."""

from typing import Annotated

from pydantic import Field

from regard.models.convolutional import Convolutional, ConvolutionalConfig
from regard.models.recurrent import Recurrent, RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig

AnyConfig = TransformerConfig | RecurrentConfig | ConvolutionalConfig
ModelConfig = Annotated[AnyConfig, Field(discriminator="family")]
"""The settings of a model; `family` says of which."""
AnyModel = Transformer | Recurrent | Convolutional


def make_model(config: AnyConfig, vocab_size: int) -> AnyModel:
    """A fresh model of this shape."""
    match config:
        case TransformerConfig():
            return Transformer(config, vocab_size)
        case RecurrentConfig():
            return Recurrent(config, vocab_size)
        case ConvolutionalConfig():
            return Convolutional(config, vocab_size)


def longest_sequence(config: AnyConfig) -> int | None:
    """The most positions that a sequence may have, where there is such a limit."""
    if isinstance(config, RecurrentConfig):
        return None
    schemes = config.position_schemes if isinstance(config, TransformerConfig) else [config.positions]
    return config.context_length if "learned" in schemes else None
