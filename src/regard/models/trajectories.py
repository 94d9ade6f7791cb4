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
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.family import Family, InputKind, ModelConfig, Preset
from regard.models.protocols import EncoderOutput
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import TransformerStack, initialize_transformer
from regard.nn.dropout import Dropout
from regard.nn.recurrent import Cell, RecurrentStack


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


class TrajectoryTransformerConfig(TransformerConfig):
    """The settings of `TrajectoryTransformer`: those of a Transformer's encoder, which is causal here."""

    family: str = "trajectory-transformer"
    can_isolate_documents: ClassVar[bool] = False
    gains_from_bf16_on_cpu: ClassVar[bool] = False
    input_kind: ClassVar[InputKind] = "trajectories"
    decoder_layers: int | None = Field(default=0, ge=0, le=0)
    """Always 0: there is no decoder."""

    @property
    def lr_scale(self) -> float:
        return 0.25  # as for series: windows overlap, and a higher rate overfits them sooner; not swept


class TrajectoryRecurrenceConfig(ModelConfig):
    """The settings of `TrajectoryRecurrence`."""

    family: str = "trajectory-recurrence"
    can_compile: ClassVar[bool] = False
    can_use_cuda_graphs: ClassVar[bool] = False
    input_kind: ClassVar[InputKind] = "trajectories"
    cell: Cell = "lstm"
    num_layers: int = Field(default=1, ge=1)
    """Layers of the encoder."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on the embedded steps and between layers."""

    @property
    def encoder_depth(self) -> int:
        return self.num_layers

    @property
    def lr_scale(self) -> float:
        return 0.5


class TrajectoryEncoder(nn.Module):
    """What encoders of trajectories have in common."""

    def __init__(self, shape: TrajectoryShape) -> None:
        super().__init__()
        self.shape = shape

    def encode(
        self,
        source: Float[Tensor, "batch time numbers"],
        lengths: Any = None,
        *,
        segments: Any = None,
        extra_embeddings: Any = None,
        documents: Any = None,
    ) -> EncoderOutput:
        """Return a hidden state for each step; the other arguments are for sequences of tokens."""
        if any(part is not None for part in (lengths, extra_embeddings, documents)):
            raise ConfigError(
                "lengths, extra_embeddings and documents are for sequences of tokens, this model reads trajectories"
            )
        return EncoderOutput(self.hidden_states(source), None)

    def hidden_states(self, steps: Float[Tensor, "batch time numbers"]) -> Float[Tensor, "batch time model"]:
        raise NotImplementedError


class TrajectoryTransformer(TrajectoryEncoder):
    """Each part of a step is a token; the hidden state of a step is that of its observation, the last of its tokens."""

    def __init__(self, config: TrajectoryTransformerConfig, shape: TrajectoryShape) -> None:
        super().__init__(shape)
        self.config = config = config.changed(context_length=len(shape.widths) * shape.num_steps)
        self.embeddings = nn.ModuleList(nn.Linear(width, config.model_dim) for width in shape.widths)
        self.encoder = TransformerStack(config, config.encoder_depth, is_causal=True)
        initialize_transformer(self, config)

    def hidden_states(self, steps: Float[Tensor, "batch time numbers"]) -> Float[Tensor, "batch time model"]:
        parts = steps.split(self.shape.widths, dim=-1)
        tokens = [embedding(part) for embedding, part in zip(self.embeddings, parts, strict=True)]
        found = self.encoder(torch.stack(tokens, dim=2).flatten(1, 2))
        return found[:, len(tokens) - 1 :: len(tokens)]


class TrajectoryRecurrence(TrajectoryEncoder):
    """A recurrent network reads the steps in order."""

    def __init__(self, config: TrajectoryRecurrenceConfig, shape: TrajectoryShape) -> None:
        super().__init__(shape)
        self.config = config
        self.embedding = nn.Linear(sum(shape.widths), config.model_dim)
        self.dropout = Dropout(config.dropout)
        widths = [config.model_dim] * config.num_layers
        self.encoder = RecurrentStack(config.cell, config.model_dim, widths, dropout=Dropout(config.dropout))

    def hidden_states(self, steps: Float[Tensor, "batch time numbers"]) -> Float[Tensor, "batch time model"]:
        return self.encoder(self.dropout(self.embedding(steps)))[0]


class TrajectoryFamily(Family):
    """A family of models that read trajectories."""

    Encoder: ClassVar[Any]

    def build(
        self,
        config: Any,
        *,
        vocab_size: int = 0,
        source_vocab_size: int | None = None,
        image: Any = None,
        trajectory: TrajectoryShape | None = None,
    ) -> nn.Module:
        return self.Encoder(config, trajectory or TrajectoryShape(2, 4))

    def decoder_only(self, values: Mapping[str, Any]) -> dict[str, Any]:
        raise ConfigError("a model of trajectories has no decoder of tokens")


class TrajectoryTransformerFamily(TrajectoryFamily):
    """Decision Transformers: `small` has the depth and width of Chen et al. (2021) for gym, and more heads."""

    name: ClassVar[str] = "trajectory-transformer"
    Config: ClassVar[type[ModelConfig]] = TrajectoryTransformerConfig
    Encoder: ClassVar[Any] = TrajectoryTransformer
    presets: ClassVar[Mapping[str, Preset]] = {
        "decision-transformer": Preset(
            {
                "tiny": {"num_layers": 2, "model_dim": 64, "num_heads": 4, "feedforward_dim": 256},
                "small": {"num_layers": 3, "model_dim": 128, "num_heads": 4, "feedforward_dim": 512},
                "base": {"num_layers": 6, "model_dim": 256, "num_heads": 8, "feedforward_dim": 1024},
                "big": {"num_layers": 8, "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048},
            },
            {
                "decoder_layers": 0,
                "block": "pre-norm",
                "activation": "gelu",
                "positions": "learned",
                "embedding_norm": True,
                "scale_embeddings": False,
                "initialization": "gpt2",
            },
        )
    }


class TrajectoryRecurrenceFamily(TrajectoryFamily):
    """Recurrent networks over steps."""

    name: ClassVar[str] = "trajectory-recurrence"
    Config: ClassVar[type[ModelConfig]] = TrajectoryRecurrenceConfig
    Encoder: ClassVar[Any] = TrajectoryRecurrence
    presets: ClassVar[Mapping[str, Preset]] = {
        "lstm-control": Preset(
            {
                "tiny": {"num_layers": 1, "model_dim": 64},
                "small": {"num_layers": 2, "model_dim": 128},
                "base": {"num_layers": 2, "model_dim": 256},
                "big": {"num_layers": 3, "model_dim": 512},
            }
        )
    }
