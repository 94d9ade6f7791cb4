r"""Models of sequences of events in continuous time: a causal Transformer and a recurrent network.

Both read the events of a subject in order, and return a hidden state after each event, from which the next one is
predicted. An event is read as the sum of an embedding of its kind and a linear map of its values and of its time:
sines and cosines of the time since the start (Zuo et al., "Transformer Hawkes Process", 2020), and functions of the gap
since the event before: its logarithm, and exponentials at rates that form a geometric sequence.

Attention has a bias $-s_h (t_i - t_j)$ with a learned slope $s_h \geq 0$ for each head: ALiBi (Press et al., 2022) in
continuous time. Weights then decay exponentially with time, as the kernels of a Hawkes process do.

Dimensions: `batch` subjects, `time` events of each, `features`: kind, gap, time and values, `model` width, `heads`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.family import Family, InputKind, ModelConfig, Preset
from regard.models.protocols import EncoderOutput
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import TransformerStack, initialize_transformer
from regard.nn.dropout import Dropout
from regard.nn.positions import PositionEncoding
from regard.nn.recurrent import Cell, RecurrentStack

_NUM_WAVES, _SHORTEST, _LONGEST = 8, 2.0, 2_000.0
"""Wavelengths of the time since the start, in mean gaps."""
_NUM_RATES, _SLOWEST, _FASTEST = 8, 0.1, 100.0
"""Rates of the exponentials of a gap, in mean gaps."""
_SMALLEST_GAP = 1e-4
_NUM_SHARED = 3
"""Features before the values: the kind, the gap and the time."""


@dataclass(frozen=True)
class EventShape:
    """What a model of events reads."""

    num_events: int
    """Kinds of events; kind 0 is none of them: the start of the observation."""
    num_values: int
    """Numbers that an event may have."""

    @property
    def num_features(self) -> int:
        """Features of an event: its kind, the gap before it, its time, and each value with whether it is known."""
        return _NUM_SHARED + 2 * self.num_values


class EventAttentionConfig(TransformerConfig):
    """The settings of `EventTransformer`: those of a Transformer's encoder, which is causal."""

    family: str = "event-attention"
    can_isolate_documents: ClassVar[bool] = False
    gains_from_bf16_on_cpu: ClassVar[bool] = False
    input_kind: ClassVar[InputKind] = "events"
    decoder_layers: int | None = Field(default=0, ge=0, le=0)
    """Always 0: there is no decoder."""

    @property
    def lr_scale(self) -> float:
        return 0.5


class EventRecurrenceConfig(ModelConfig):
    """The settings of `EventRecurrence`."""

    family: str = "event-recurrence"
    can_compile: ClassVar[bool] = False
    can_use_cuda_graphs: ClassVar[bool] = False
    input_kind: ClassVar[InputKind] = "events"
    cell: Cell = "lstm"
    num_layers: int = Field(default=1, ge=1)
    """Layers of the encoder."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on the embedded events and between layers."""

    @property
    def encoder_depth(self) -> int:
        return self.num_layers

    @property
    def lr_scale(self) -> float:
        return 1.0


class EventEmbedding(nn.Module):
    """Events with their times and values as vectors."""

    def __init__(self, shape: EventShape, model_dim: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(shape.num_events + 1, model_dim)
        self.times = nn.Linear(2 * _NUM_WAVES + _NUM_RATES + 2 + 2 * shape.num_values, model_dim)

    def forward(self, source: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch time model"]:
        kinds, gaps, times = source[..., 0].long(), source[..., 1:2], source[..., 2:3]
        waves = 2 * math.pi * times / _geometric(_SHORTEST, _LONGEST, _NUM_WAVES, source)
        features = [
            waves.sin(),
            waves.cos(),
            (-gaps * _geometric(_SLOWEST, _FASTEST, _NUM_RATES, source)).exp(),
            (gaps + _SMALLEST_GAP).log(),
            (times + 1.0).log(),
            source[..., _NUM_SHARED:],
        ]
        # In bfloat16 two times that are close would be the same.
        with torch.autocast(source.device.type, enabled=False):
            return self.kinds(kinds) + self.times(torch.cat(features, dim=-1))


def _geometric(first: float, last: float, count: int, like: Tensor) -> Float[Tensor, " numbers"]:
    steps = torch.arange(count, device=like.device, dtype=like.dtype) / (count - 1)
    return first * (last / first) ** steps


class EventEncoder(nn.Module):
    """What models of events have in common."""

    def __init__(self, shape: EventShape, model_dim: int) -> None:
        super().__init__()
        self.shape, self.width = shape, model_dim
        self.embedding = EventEmbedding(shape, model_dim)

    def encode(
        self,
        source: Float[Tensor, "batch time features"],
        lengths: Any = None,
        *,
        segments: Any = None,
        extra_embeddings: Any = None,
        documents: Any = None,
    ) -> EncoderOutput:
        """Return the hidden state after each event, which depends on no later one; padding is at the end."""
        if any(part is not None for part in (extra_embeddings, documents)):
            raise ConfigError("extra_embeddings and documents are for sequences of tokens, this model reads events")
        return EncoderOutput(self.hidden_states(source), None)

    def hidden_states(self, source: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch time model"]:
        raise NotImplementedError


class EventTransformer(EventEncoder):
    """Causal attention whose weights decay with the time between events."""

    def __init__(self, config: EventAttentionConfig, shape: EventShape) -> None:
        super().__init__(shape, config.model_dim)
        self.config = config = config.changed(positions="none")
        self.encoder = TransformerStack(config, config.encoder_depth, is_causal=True)
        self.slopes = nn.Parameter(torch.linspace(-5.0, 2.0, config.num_heads))
        initialize_transformer(self, config)

    def hidden_states(self, source: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch time model"]:
        times, stack = source[..., 2], self.encoder
        distance = (times[:, :, None] - times[:, None, :]).clamp(min=0.0)
        encoding = PositionEncoding(bias=-F.softplus(self.slopes)[:, None, None] * distance[:, None])
        x = stack.dropout(self.embedding(source))
        for block in stack.blocks:
            x = block(x, None, encoding)
        return x if stack.final_norm is None else stack.final_norm(x)


class EventRecurrence(EventEncoder):
    """A recurrent network over the events."""

    def __init__(self, config: EventRecurrenceConfig, shape: EventShape) -> None:
        super().__init__(shape, config.model_dim)
        self.config = config
        self.dropout = Dropout(config.dropout)
        widths = [config.model_dim] * config.num_layers
        self.encoder = RecurrentStack(config.cell, config.model_dim, widths, dropout=Dropout(config.dropout))

    def hidden_states(self, source: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch time model"]:
        return self.encoder(self.dropout(self.embedding(source)))[0]


class EventFamily(Family):
    """A family of models that read events."""

    Encoder: ClassVar[Any]

    def build(
        self,
        config: Any,
        *,
        vocab_size: int = 0,
        source_vocab_size: int | None = None,
        image: Any = None,
        events: EventShape | None = None,
    ) -> nn.Module:
        return self.Encoder(config, events or EventShape(2, 0))

    def decoder_only(self, values: Mapping[str, Any]) -> dict[str, Any]:
        raise ConfigError("a model of events has no decoder")


class EventAttentionFamily(EventFamily):
    """Causal Transformers in continuous time."""

    name: ClassVar[str] = "event-attention"
    Config: ClassVar[type[ModelConfig]] = EventAttentionConfig
    Encoder: ClassVar[Any] = EventTransformer
    presets: ClassVar[Mapping[str, Preset]] = {
        "transformer-events": Preset(
            {
                "tiny": {"num_layers": 2, "model_dim": 64, "num_heads": 4, "feedforward_dim": 256, "dropout": 0.0},
                "small": {"num_layers": 3, "model_dim": 128, "num_heads": 8, "feedforward_dim": 512, "dropout": 0.1},
                "base": {"num_layers": 6, "model_dim": 256, "num_heads": 8, "feedforward_dim": 1024, "dropout": 0.1},
                "big": {"num_layers": 8, "model_dim": 512, "num_heads": 16, "feedforward_dim": 2048, "dropout": 0.1},
            },
            {
                "decoder_layers": 0,
                "block": "pre-norm",
                "activation": "gelu",
                "scale_embeddings": False,
                "initialization": "gpt2",
                "positions": "none",
            },
        )
    }


class EventRecurrenceFamily(EventFamily):
    """Recurrent networks over events."""

    name: ClassVar[str] = "event-recurrence"
    Config: ClassVar[type[ModelConfig]] = EventRecurrenceConfig
    Encoder: ClassVar[Any] = EventRecurrence
    presets: ClassVar[Mapping[str, Preset]] = {
        "lstm-events": Preset(
            {
                "tiny": {"num_layers": 1, "model_dim": 64, "dropout": 0.0},
                "small": {"num_layers": 2, "model_dim": 128},
                "base": {"num_layers": 2, "model_dim": 256},
                "big": {"num_layers": 3, "model_dim": 512},
            }
        )
    }
