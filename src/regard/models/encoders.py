"""What encoders of inputs that are no sequences of tokens have in common: settings, presets and `encode`.

`regard.models.base` is the same for models of tokens.

Dimensions: `batch` inputs, `time` positions, `model` width.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.family import MOST_LAYERS, ModelConfig
from regard.models.protocols import EncoderOutput
from regard.models.transformer.config import TransformerConfig
from regard.nn.dropout import Dropout
from regard.nn.recurrent import Cell, Hidden, RecurrentStack

ATTENTION: Mapping[str, Any] = {
    "decoder_layers": 0,
    "block": "pre-norm",
    "activation": "gelu",
    "scale_embeddings": False,
    "initialization": "gpt2",
}
"""Settings that the presets of encoders with attention share."""
RECURRENT_SIZES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"num_layers": 1, "model_dim": 64},
    "small": {"num_layers": 2, "model_dim": 128},
    "base": {"num_layers": 2, "model_dim": 256},
    "big": {"num_layers": 3, "model_dim": 512},
}


class AttentionEncoderConfig(TransformerConfig):
    """The settings of an encoder with attention: those of a Transformer's encoder."""

    can_isolate_documents: ClassVar[bool] = False
    decoder_layers: int | None = Field(default=0, ge=0, le=0)
    """Always 0: there is no decoder of tokens."""

    @property
    def gains_from_bf16_on_cpu(self) -> bool:
        return False


class RecurrentEncoderConfig(ModelConfig):
    """The settings of a recurrent encoder."""

    can_compile: ClassVar[bool] = False
    can_use_cuda_graphs: ClassVar[bool] = False
    cell: Cell = "lstm"
    """rnn, gru or lstm."""
    num_layers: int = Field(default=1, ge=1, le=MOST_LAYERS)
    """Layers of the encoder."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on the embedded inputs and between layers."""

    @property
    def encoder_depth(self) -> int:
        return self.num_layers


class InputEncoder(nn.Module):
    """An `Encoder` of inputs of one kind; a subclass sets `config` and implements `hidden_states`."""

    Inputs: ClassVar[type] = Tensor
    """The type of a batch of inputs."""
    config: Any

    def encode(
        self,
        source: Any,
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        segments: Int[Tensor, "batch time"] | None = None,
        extra_embeddings: Float[Tensor, "batch time model"] | None = None,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> EncoderOutput:
        """Return the hidden states of a batch of inputs; the other arguments are for sequences of tokens."""
        self.require_inputs(source, lengths, extra_embeddings, documents)
        return EncoderOutput(self.hidden_states(source), self.mask(source))

    def hidden_states(self, source: Any, /) -> Float[Tensor, "batch time model"]:
        """Return the hidden states of a batch of inputs."""
        raise NotImplementedError

    def mask(self, source: Any, /) -> Bool[Tensor, "batch 1 1 time"] | None:
        """Return which hidden states are not those of padding; None where nothing is padded, or nothing reads it."""
        return None

    def require_inputs(self, source: Any, *of_tokens: Tensor | None) -> None:
        """Raise a `ConfigError` for inputs of another kind, and for arguments that only sequences of tokens have."""
        kind = self.config.input_kind
        if not isinstance(source, self.Inputs):
            raise ConfigError(f"this model reads {kind}, got {type(source).__name__}")
        if any(part is not None for part in of_tokens):
            raise ConfigError(
                f"lengths, extra_embeddings and documents are for sequences of tokens, this model reads {kind}"
            )


class RecurrentInputStack(RecurrentStack):
    """The stack of a recurrent encoder, with dropout on its inputs as between its layers."""

    def __init__(self, config: RecurrentEncoderConfig) -> None:
        widths = [config.model_dim] * config.num_layers
        super().__init__(config.cell, config.model_dim, widths, dropout=Dropout(config.dropout))

    def forward(
        self,
        x: Float[Tensor, "batch time model"],
        lengths: Int[Tensor, " batch"] | None = None,
        state: Hidden | None = None,
    ) -> tuple[Float[Tensor, "batch time model"], Hidden]:
        return super().forward(self.dropout(x), lengths, state)
