"""Models of trajectories: causal encoders of returns-to-go, observations and actions.

All read a vector for each step, with the action before it, the return-to-go and the observation, and return a hidden
state for each step that depends on this step and those before it.

    TrajectoryTransformer   three tokens for each step (Chen et al., "Decision Transformer", 2021)
    TrajectoryRecurrence    a recurrent network over the steps

Positions are those within the window rather than the time since the beginning of the episode, so that an episode may be
longer than those of training. https://arxiv.org/abs/2106.01345

Dimensions: `batch` windows, `time` steps of each, `numbers` of a step, `model` width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
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


@dataclass(frozen=True)
class TrajectoryShape:
    """The numbers of a step, in their order, and the steps that a model reads at most."""

    action_width: int
    num_features: int
    has_returns: bool = True
    """Whether the return-to-go is between the action and the observation."""
    num_steps: int = 20

    @property
    def widths(self) -> list[int]:
        """The widths of the parts of a step: the action, the return-to-go, the observation."""
        return [self.action_width, *([1] if self.has_returns else []), self.num_features]


class TrajectoryTransformerConfig(AttentionEncoderConfig):
    """The settings of `TrajectoryTransformer`: those of a Transformer's encoder, which is causal here."""

    family: str = "trajectory-transformer"
    input_kind: ClassVar[InputKind] = "trajectories"

    @property
    def lr_scale(self) -> float:
        return 0.25  # as for series: windows overlap, and a higher rate overfits them sooner; not swept


class TrajectoryRecurrenceConfig(RecurrentEncoderConfig):
    """The settings of `TrajectoryRecurrence`."""

    family: str = "trajectory-recurrence"
    input_kind: ClassVar[InputKind] = "trajectories"

    @property
    def lr_scale(self) -> float:
        return 0.5


class TrajectoryTransformer(InputEncoder):
    """Each part of a step is a token; the hidden state of a step is that of its observation, the last of its tokens."""

    def __init__(self, config: TrajectoryTransformerConfig, shape: TrajectoryShape) -> None:
        super().__init__()
        self.shape = shape
        self.config = config = config.changed(context_length=len(shape.widths) * shape.num_steps)
        self.embeddings = nn.ModuleList(nn.Linear(width, config.model_dim) for width in shape.widths)
        self.encoder = TransformerStack(config, config.encoder_depth, is_causal=True)
        initialize_transformer(self, config)

    def hidden_states(self, steps: Float[Tensor, "batch time numbers"]) -> Float[Tensor, "batch time model"]:
        parts = steps.split(self.shape.widths, dim=-1)
        tokens = [embedding(part) for embedding, part in zip(self.embeddings, parts, strict=True)]
        found = self.encoder(torch.stack(tokens, dim=2).flatten(1, 2))
        return found[:, len(tokens) - 1 :: len(tokens)]


class TrajectoryRecurrence(InputEncoder):
    """A recurrent network reads the steps in order."""

    def __init__(self, config: TrajectoryRecurrenceConfig, shape: TrajectoryShape) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Linear(sum(shape.widths), config.model_dim)
        self.encoder = RecurrentInputStack(config)

    def hidden_states(self, steps: Float[Tensor, "batch time numbers"]) -> Float[Tensor, "batch time model"]:
        return self.encoder(self.embedding(steps))[0]


class TrajectoryFamily(Family):
    """A family of models that read trajectories."""

    default_shape: ClassVar[TrajectoryShape] = TrajectoryShape(2, 4)


class TrajectoryTransformerFamily(TrajectoryFamily):
    """Decision Transformers: `small` has the depth and width of Chen et al. (2021) for gym, and more heads."""

    name = "trajectory-transformer"
    Config = TrajectoryTransformerConfig
    Model = TrajectoryTransformer
    presets: ClassVar[Mapping[str, Preset]] = {
        "decision-transformer": Preset(
            {
                "tiny": {"num_layers": 2, "model_dim": 64, "num_heads": 4, "feedforward_dim": 256},
                "small": {"num_layers": 3, "model_dim": 128, "num_heads": 4, "feedforward_dim": 512},
                "base": {"num_layers": 6, "model_dim": 256, "num_heads": 8, "feedforward_dim": 1024},
                "big": {"num_layers": 8, "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048},
            },
            {**ATTENTION, "positions": "learned", "embedding_norm": True},
        )
    }


class TrajectoryRecurrenceFamily(TrajectoryFamily):
    """Recurrent networks over steps."""

    name = "trajectory-recurrence"
    Config = TrajectoryRecurrenceConfig
    Model = TrajectoryRecurrence
    presets: ClassVar[Mapping[str, Preset]] = {"lstm-control": Preset(RECURRENT_SIZES)}
