"""Models of series of numbers: patches, variables as tokens, a recurrent network, a linear one, an encoder-decoder.

All read the standardized numbers of some steps and columns, and return hidden states of each column: `positions` of
them one after the other, column by column. A head maps those of a column to its forecast, all at once; those of an
encoder-decoder are patches of the forecast, and a head maps each to its own steps.

    PatchEncoder       patches of each column are tokens (Nie et al., "A Time Series is Worth 64 Words", 2023)
    VariableEncoder    each column is a token (Liu et al., "iTransformer", 2024)
    PatchRecurrence    an LSTM over the patches of each column
    Decomposition      a moving average and the rest of each column, without weights (Zeng et al., "Are Transformers
                       Effective for Time Series Forecasting?", 2023): with a head, a linear model
    PatchSeq2Seq       an encoder of patches of the past, and a decoder with a position for each patch of the forecast,
                       which reads what is known in advance of its steps (as Lim et al., "Temporal Fusion Transformers",
                       2021, with patches, and all steps at once)

Dimensions: `batch` windows, `time` steps of each, `columns` of numbers, `model` width, `tokens`: positions of all
columns, `steps` that are read and forecast, `features` of steps that are known in advance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from regard.models.encoders import (
    ATTENTION,
    RECURRENT_SIZES,
    AttentionEncoderConfig,
    InputEncoder,
    RecurrentEncoderConfig,
    RecurrentInputStack,
)
from regard.models.family import Family, InputKind, ModelConfig, Preset
from regard.models.presets import SIZES
from regard.models.protocols import EncoderOutput
from regard.models.transformer.model import TransformerStack, initialize_transformer

_FEWEST_PATCHES = 4
"""A short input is cut into shorter patches, so that there are at least so many."""


@dataclass(frozen=True)
class SeriesShape:
    """The numbers that a model reads at once."""

    input_length: int
    num_columns: int
    horizon: int = 1
    """Steps that are forecast."""
    num_features: int = 0
    """Features of steps that are known in advance."""


class SeriesTransformerConfig(AttentionEncoderConfig):
    """The settings that encoders of series with attention have in common: those of a Transformer's encoder."""

    input_kind: ClassVar[InputKind] = "series"

    @property
    def lr_scale(self) -> float:
        return 0.2  # there are few windows, which overlap: a higher rate overfits them sooner


class PatchConfig(SeriesTransformerConfig):
    """The settings of `PatchEncoder`."""

    family: str = "patches"
    patch_length: int = Field(default=16, ge=1)
    """Steps of a patch; at most a quarter of the input."""
    patch_stride: int = Field(default=8, ge=1)
    """Steps from one patch to the next; at most the length of a patch."""


class VariableConfig(SeriesTransformerConfig):
    """The settings of `VariableEncoder`."""

    family: str = "variables"
    has_attention_kinds: ClassVar[bool] = False


class PatchSeq2SeqConfig(PatchConfig):
    """The settings of `PatchSeq2Seq`."""

    family: str = "patch-seq2seq"
    forecast_layers: int | None = Field(default=None, ge=1)
    """Layers of the decoder of forecasts, if not num_layers."""

    @property
    def forecast_depth(self) -> int:
        return self.num_layers if self.forecast_layers is None else self.forecast_layers


class PatchRecurrenceConfig(RecurrentEncoderConfig):
    """The settings of `PatchRecurrence`."""

    family: str = "patch-recurrence"
    input_kind: ClassVar[InputKind] = "series"
    patch_length: int = Field(default=16, ge=1)
    """Steps of a patch, which do not overlap; at most a quarter of the input."""

    @property
    def lr_scale(self) -> float:
        return 0.5


class DecompositionConfig(ModelConfig):
    """The settings of `Decomposition`; it is as wide as the input is long, and `model_dim` is for the learning rate."""

    family: str = "decomposition"
    input_kind: ClassVar[InputKind] = "series"
    kernel_size: int = Field(default=25, ge=1)
    """Steps of the moving average."""

    @property
    def encoder_depth(self) -> int:
        return 1


class SeriesEncoder(InputEncoder):
    """What encoders of series have in common."""

    def __init__(
        self, shape: SeriesShape, *, num_positions: int, width: int, steps_per_position: int | None = None
    ) -> None:
        super().__init__()
        self.shape = shape
        self.num_positions = num_positions
        """Hidden states of each column."""
        self.width = width
        self.steps_per_position = steps_per_position
        """Steps of the forecast that each position is for; None where all positions are for all steps."""

    def encode(
        self,
        source: Float[Tensor, "batch time columns"],
        lengths: Any = None,
        *,
        segments: Any = None,
        extra_embeddings: Any = None,
        documents: Any = None,
        features: Float[Tensor, "batch steps features"] | None = None,
    ) -> EncoderOutput:
        """Return the hidden states of numbers; `features` are of the steps that are read and of those to forecast.

        The other arguments are for sequences of tokens.
        """
        self.require_inputs(source, lengths, extra_embeddings, documents)
        return EncoderOutput(self.hidden_states(source, features), None)

    def hidden_states(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None = None
    ) -> Float[Tensor, "batch tokens model"]:
        raise NotImplementedError


class PatchEncoder(SeriesEncoder):
    """Each column is read on its own, by the same weights, as a sequence of overlapping patches."""

    def __init__(self, config: PatchConfig, shape: SeriesShape) -> None:
        length = patch_length_of(config.patch_length, shape)
        stride = min(config.patch_stride, length)
        num_patches = (shape.input_length + stride - length) // stride + 1
        super().__init__(shape, num_positions=num_patches, width=config.model_dim)
        self.config = config = config.changed(context_length=num_patches)
        self.patch_length, self.patch_stride = length, stride
        self.embedding = nn.Linear(length, config.model_dim)
        self.encoder = TransformerStack(config, config.encoder_depth)
        initialize_transformer(self, config)

    def hidden_states(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None = None
    ) -> Float[Tensor, "batch tokens model"]:
        found = self.encoder(self.embedding(_patches(values, self.patch_length, self.patch_stride)).flatten(0, 1))
        return found.unflatten(0, (values.size(0), -1)).flatten(1, 2)


class PatchSeq2Seq(SeriesEncoder):
    """An encoder reads the patches of each column, and a decoder has a position for each patch of its forecast."""

    def __init__(self, config: PatchSeq2SeqConfig, shape: SeriesShape) -> None:
        length = patch_length_of(config.patch_length, shape)
        stride = min(config.patch_stride, length)
        num_patches = (shape.input_length + stride - length) // stride + 1
        num_forecast = -(-shape.horizon // length)
        super().__init__(shape, num_positions=num_forecast, width=config.model_dim, steps_per_position=length)
        self.config = config = config.changed(context_length=max(num_patches, num_forecast))
        self.patch_length, self.patch_stride = length, stride
        self.embedding = nn.Linear(length, config.model_dim)
        self.encoder = TransformerStack(config, config.encoder_depth)
        # A position of the forecast begins as the last patch that is known, and the features of its own steps.
        self.last = nn.Linear(length, config.model_dim)
        self.features = nn.Linear(length * shape.num_features, config.model_dim) if shape.num_features else None
        self.decoder = TransformerStack(config, config.forecast_depth, has_cross_attention=True)
        initialize_transformer(self, config)

    def hidden_states(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None = None
    ) -> Float[Tensor, "batch tokens model"]:
        patches = _patches(values, self.patch_length, self.patch_stride)
        memory = EncoderOutput(self.encoder(self.embedding(patches).flatten(0, 1)), None)
        queries = self.last(values.transpose(1, 2)[:, :, -self.patch_length :])[:, :, None]
        queries = queries.expand(-1, -1, self.num_positions, -1)
        if self.features is not None and features is not None:
            future = features[:, self.shape.input_length :]
            future = F.pad(future, (0, 0, 0, self.num_positions * self.patch_length - future.size(1)))
            queries = queries + self.features(future.unflatten(1, (self.num_positions, -1)).flatten(2))[:, None]
        found = self.decoder(queries.flatten(0, 1), cross_kvs=self.decoder.project_memory(memory))
        return found.unflatten(0, (values.size(0), -1)).flatten(1, 2)


class VariableEncoder(SeriesEncoder):
    """Each column is one token, and attention is between columns."""

    def __init__(self, config: VariableConfig, shape: SeriesShape) -> None:
        super().__init__(shape, num_positions=1, width=config.model_dim)
        self.config = config
        self.embedding = nn.Linear(shape.input_length, config.model_dim)
        self.encoder = TransformerStack(config, config.encoder_depth)
        initialize_transformer(self, config)

    def hidden_states(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None = None
    ) -> Float[Tensor, "batch tokens model"]:
        return self.encoder(self.embedding(values.transpose(1, 2)))


class PatchRecurrence(SeriesEncoder):
    """A recurrent network reads the patches of each column in order; its last hidden state represents the column."""

    def __init__(self, config: PatchRecurrenceConfig, shape: SeriesShape) -> None:
        super().__init__(shape, num_positions=1, width=config.model_dim)
        self.config = config
        self.patch_length = patch_length_of(config.patch_length, shape)
        self.embedding = nn.Linear(self.patch_length, config.model_dim)
        self.encoder = RecurrentInputStack(config)

    def hidden_states(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None = None
    ) -> Float[Tensor, "batch tokens model"]:
        x = values.transpose(1, 2)
        # Patches end with the last value; a first one that is incomplete repeats the first value.
        x = F.pad(x, (-x.size(2) % self.patch_length, 0), mode="replicate")
        patches = x.unflatten(2, (-1, self.patch_length))
        found, _ = self.encoder(self.embedding(patches).flatten(0, 1))
        return found[:, -1].unflatten(0, (values.size(0), -1))


class Decomposition(SeriesEncoder):
    """The moving average of each column, and what is left: two hidden states without weights."""

    def __init__(self, config: DecompositionConfig, shape: SeriesShape) -> None:
        super().__init__(shape, num_positions=2, width=shape.input_length)
        self.config = config

    def hidden_states(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None = None
    ) -> Float[Tensor, "batch tokens model"]:
        x, size = values.transpose(1, 2), self.config.kernel_size
        padded = F.pad(x, ((size - 1) // 2, size // 2), mode="replicate")
        trend = F.avg_pool1d(padded, size, stride=1)
        return torch.stack([trend, x - trend], dim=2).flatten(1, 2)


def _patches(
    values: Float[Tensor, "batch time columns"], length: int, stride: int
) -> Float[Tensor, "batch columns patches length"]:
    """Overlapping patches of each column; the last value is repeated so that the last patch ends with it."""
    return F.pad(values.transpose(1, 2), (0, stride), mode="replicate").unfold(2, length, stride)


def patch_length_of(wanted: int, shape: SeriesShape) -> int:
    """The length of a patch, at most a quarter of the input.

    Example:
        >>> patch_length_of(16, SeriesShape(336, 1)), patch_length_of(16, SeriesShape(36, 1))
        (16, 9)
    """
    return min(wanted, max(1, shape.input_length // _FEWEST_PATCHES))


class SeriesFamily(Family):
    """A family of models that read series."""

    default_shape: ClassVar[SeriesShape] = SeriesShape(96, 1)


class PatchFamily(SeriesFamily):
    """PatchTST; `tiny` and `small` are the sizes for small and large data of Nie et al. (2023), A.1.4."""

    name = "patches"
    Config = PatchConfig
    Model = PatchEncoder
    presets: ClassVar[Mapping[str, Preset]] = {
        "patchtst": Preset(
            {
                "tiny": {"num_layers": 3, "model_dim": 16, "num_heads": 4, "feedforward_dim": 128, "dropout": 0.3},
                "small": {"num_layers": 3, "model_dim": 128, "num_heads": 16, "feedforward_dim": 256, "dropout": 0.2},
                "base": {"num_layers": 6, "model_dim": 256, "num_heads": 16, "feedforward_dim": 1024, "dropout": 0.2},
                "big": {"num_layers": 8, "model_dim": 512, "num_heads": 16, "feedforward_dim": 2048, "dropout": 0.2},
            },
            {**ATTENTION, "positions": "learned"},
        )
    }


class PatchSeq2SeqFamily(SeriesFamily):
    """Encoder-decoders over patches."""

    name = "patch-seq2seq"
    Config = PatchSeq2SeqConfig
    Model = PatchSeq2Seq
    presets: ClassVar[Mapping[str, Preset]] = {
        "series-seq2seq": Preset(
            {
                "tiny": {"num_layers": 2, "model_dim": 16, "num_heads": 4, "feedforward_dim": 128, "dropout": 0.3},
                "small": {"num_layers": 2, "model_dim": 128, "num_heads": 8, "feedforward_dim": 256, "dropout": 0.2},
                "base": {"num_layers": 3, "model_dim": 256, "num_heads": 8, "feedforward_dim": 1024, "dropout": 0.2},
                "big": {"num_layers": 4, "model_dim": 512, "num_heads": 16, "feedforward_dim": 2048, "dropout": 0.2},
            },
            {**ATTENTION, "positions": "learned"},
        )
    }


class VariableFamily(SeriesFamily):
    """Inverted Transformers: `small` and `base` are sizes of Liu et al. (2024)."""

    name = "variables"
    Config = VariableConfig
    Model = VariableEncoder
    presets: ClassVar[Mapping[str, Preset]] = {
        "itransformer": Preset(
            {
                "tiny": {"num_layers": 2, "model_dim": 128, "num_heads": 8, "feedforward_dim": 128},
                "small": {"num_layers": 2, "model_dim": 256, "num_heads": 8, "feedforward_dim": 256},
                "base": {"num_layers": 3, "model_dim": 512, "num_heads": 8, "feedforward_dim": 512},
                "big": {"num_layers": 4, "model_dim": 1024, "num_heads": 16, "feedforward_dim": 2048},
            },
            {**ATTENTION, "positions": "none"},
        )
    }


class PatchRecurrenceFamily(SeriesFamily):
    """Recurrent networks over patches."""

    name = "patch-recurrence"
    Config = PatchRecurrenceConfig
    Model = PatchRecurrence
    presets: ClassVar[Mapping[str, Preset]] = {"lstm-series": Preset(RECURRENT_SIZES)}


class DecompositionFamily(SeriesFamily):
    """Linear models of a moving average and the rest."""

    name = "decomposition"
    Config = DecompositionConfig
    Model = Decomposition
    presets: ClassVar[Mapping[str, Preset]] = {"linear": Preset({size: {"kernel_size": 25} for size in SIZES})}
