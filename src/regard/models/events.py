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
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.models.encoders import (
    ATTENTION,
    RECURRENT_SIZES,
    AttentionEncoderConfig,
    InputEncoder,
    RecurrentEncoderConfig,
    RecurrentInputStack,
)
from regard.models.family import Family, InputKind, Preset
from regard.models.transformer.model import TransformerStack, initialize_transformer
from regard.nn.positions import PositionEncoding

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


class EventAttentionConfig(AttentionEncoderConfig):
    """The settings of `EventTransformer`: those of a Transformer's encoder, which is causal."""

    family: str = "event-attention"
    input_kind: ClassVar[InputKind] = "events"

    @property
    def lr_scale(self) -> float:
        return 0.5


class EventRecurrenceConfig(RecurrentEncoderConfig):
    """The settings of `EventRecurrence`."""

    family: str = "event-recurrence"
    input_kind: ClassVar[InputKind] = "events"


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


class EventTransformer(InputEncoder):
    """Causal attention whose weights decay with the time between events; padding is at the end."""

    def __init__(self, config: EventAttentionConfig, shape: EventShape) -> None:
        super().__init__()
        self.config = config = config.changed(positions="none")
        self.embedding = EventEmbedding(shape, config.model_dim)
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


class EventRecurrence(InputEncoder):
    """A recurrent network over the events."""

    def __init__(self, config: EventRecurrenceConfig, shape: EventShape) -> None:
        super().__init__()
        self.config = config
        self.embedding = EventEmbedding(shape, config.model_dim)
        self.encoder = RecurrentInputStack(config)

    def hidden_states(self, source: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch time model"]:
        return self.encoder(self.embedding(source))[0]


class EventFamily(Family):
    """A family of models that read events."""

    default_shape: ClassVar[EventShape] = EventShape(2, 0)


class EventAttentionFamily(EventFamily):
    """Causal Transformers in continuous time."""

    name = "event-attention"
    Config = EventAttentionConfig
    Model = EventTransformer
    presets: ClassVar[Mapping[str, Preset]] = {
        "transformer-events": Preset(
            {
                "tiny": {"num_layers": 2, "model_dim": 64, "num_heads": 4, "feedforward_dim": 256, "dropout": 0.0},
                "small": {"num_layers": 3, "model_dim": 128, "num_heads": 8, "feedforward_dim": 512, "dropout": 0.1},
                "base": {"num_layers": 6, "model_dim": 256, "num_heads": 8, "feedforward_dim": 1024, "dropout": 0.1},
                "big": {"num_layers": 8, "model_dim": 512, "num_heads": 16, "feedforward_dim": 2048, "dropout": 0.1},
            },
            {**ATTENTION, "positions": "none"},
        )
    }


class EventRecurrenceFamily(EventFamily):
    """Recurrent networks over events."""

    name = "event-recurrence"
    Config = EventRecurrenceConfig
    Model = EventRecurrence
    presets: ClassVar[Mapping[str, Preset]] = {
        "lstm-events": Preset({**RECURRENT_SIZES, "tiny": {**RECURRENT_SIZES["tiny"], "dropout": 0.0}})
    }
