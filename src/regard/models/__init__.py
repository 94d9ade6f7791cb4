"""Models: encoders and decoders of sequences, by family.

protocols       Encoder, Decoder and DecoderState, the types that the rest of the package uses
family          the registry of families: settings, presets and how a model is built
base            what models of tokens have in common; encoders: what encoders of other inputs have in common
transformer/    Transformers, from the original to GPT-2, Llama, BERT and T5
recurrent       rnn, gru and lstm, with and without attention
convolutional   gated convolutions
vision          the Vision Transformer
resnet          residual convolutional networks for images
series, events, trajectories, graphs, pixels   models of other inputs
heads           pooling and prediction heads on an encoder
ngram_mixture   a decoder whose output is mixed with n-grams
"""

from regard.models.convolutional import Convolutional, ConvolutionalConfig
from regard.models.family import (
    FAMILIES,
    EncoderDecoderConfig,
    Family,
    ModelConfig,
    Preset,
    build_model,
    find_family,
    read_model_config,
)
from regard.models.presets import find_preset, has_size, preset_names
from regard.models.protocols import Decoder, DecoderState, Encoder, EncoderOutput, StatefulDecoder, StaticState
from regard.models.recurrent import Recurrent, RecurrentConfig
from regard.models.resnet import ResNet, ResNetConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vision import VisionTransformer, VisionTransformerConfig

__all__ = [
    "FAMILIES",
    "Convolutional",
    "ConvolutionalConfig",
    "Decoder",
    "DecoderState",
    "Encoder",
    "EncoderDecoderConfig",
    "EncoderOutput",
    "Family",
    "ModelConfig",
    "Preset",
    "Recurrent",
    "RecurrentConfig",
    "ResNet",
    "ResNetConfig",
    "StatefulDecoder",
    "StaticState",
    "Transformer",
    "TransformerConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
    "build_model",
    "find_family",
    "find_preset",
    "has_size",
    "preset_names",
    "read_model_config",
]
