"""The types through which the rest of the package uses models.

An `Encoder` turns inputs into hidden states, an `EncoderOutput`. A `Decoder` turns
a prefix, and the encoder's output where there is one, into logits for the next
token: for all positions at once (`decode`), or step by step from a `DecoderState`
(`initial_state`, `step`). A `StaticState` has a fixed size and its rows are
replaced one by one, for continuous batching and CUDA graphs.
`regard.models.base.SequenceModel` implements what follows from the abstract methods.

Dimensions: `batch` sequences, `time` positions, `model` width, `vocab` tokens.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.models.family import ModelConfig
from regard.nn.inference import Quantization


@dataclass(frozen=True)
class EncoderOutput:
    """The hidden states of an input, and its padding mask."""

    hidden_states: Float[Tensor, "batch time model"]
    mask: Bool[Tensor, "batch 1 1 time"] | None
    """True where the input is not padding; None where nothing is padded."""

    def average(self) -> Float[Tensor, "batch model"]:
        """Return the mean of the hidden states that are not padding."""
        if self.mask is None:
            return self.hidden_states.mean(dim=1)
        weights = self.mask[:, 0, 0, :, None].to(self.hidden_states.dtype)
        return (self.hidden_states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


@runtime_checkable
class DecoderState(Protocol):
    """What a decoder stores between steps: keys and values, or hidden vectors."""

    def select(self, rows: Int[Tensor, " chosen"]) -> "DecoderState":
        """Return the state of these rows of the batch, in this order; a row may occur twice."""
        ...


@runtime_checkable
class StaticState(DecoderState, Protocol):
    """A state of fixed size, which `step` changes in place, so that a step can be captured as a CUDA graph."""

    def put(self, rows: Int[Tensor, " chosen"], state: DecoderState) -> None:
        """Copy row i of `state`, which may be static too, into row `rows[i]`."""
        ...

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Replace row i by row `rows[i]`. Both rows must have the same source."""
        ...


@runtime_checkable
class StaticBeamState(DecoderState, Protocol):
    """The state of all hypotheses of a batch, of fixed size, which `step` changes in place."""

    def fits(self, state: DecoderState) -> bool:
        """Return whether its sizes suit a beam search from `state`."""
        ...

    def reset(self, state: DecoderState) -> None:
        """Restart from `state`, which is that before the first token."""
        ...

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Replace hypothesis i by hypothesis `rows[i]`, which is one of the same sentence."""
        ...


@runtime_checkable
class Encoder(Protocol):
    """Turns inputs into hidden states."""

    @abstractmethod
    def encode(
        self,
        source: Tensor,
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        segments: Int[Tensor, "batch time"] | None = None,
        extra_embeddings: Float[Tensor, "batch time model"] | None = None,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> EncoderOutput:
        """Return the hidden states of `source`; positions from `lengths` on are padding and have no effect.

        A decoder-only model returns its causal hidden states, and a model without layers
        the token embeddings.

        Args:
            source: Token ids, batch x time; the pixels of images for a model of images.
            lengths: Length of each sequence; None where nothing is padded.
            segments: Segment of each position, ignored by a model without segment embeddings.
            extra_embeddings: Added to the token embeddings. A decoder-only model raises a `ConfigError`.
            documents: Number of the document of each position; attention stays within a document. Only where
                `config.can_isolate_documents`, otherwise a `ConfigError`.
        """
        ...


@runtime_checkable
class Decoder(Encoder, Protocol):
    """Turns a prefix into logits for the next token.

    An encoder-decoder that is called without an encoder output, and a decoder-only
    model that is called with one, raise a `ConfigError`.
    """

    config: ModelConfig
    output: nn.Linear | None
    """The projection to the vocabulary."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def source_vocab_size(self) -> int:
        """Tokens of the encoder's vocabulary, which is `vocab_size` where both sides share one."""
        ...

    @abstractmethod
    def hidden_states(
        self,
        tokens: Int[Tensor, "batch time"],
        encoder_output: EncoderOutput | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        """Return the hidden states from which the logits after each prefix are computed.

        With `documents`, a position attends to the positions of its own document only.
        """
        ...

    def logits(self, hidden_states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch vocab"]:
        """Return the logits of `hidden_states`."""
        ...

    def decode(
        self, tokens: Int[Tensor, "batch time"], encoder_output: EncoderOutput | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        """Return the logits after each prefix of `tokens`, computed at once."""
        ...

    @abstractmethod
    def initial_state(self, encoder_output: EncoderOutput | None = None, *, batch_size: int = 1) -> DecoderState:
        """Return the state before the first token; `batch_size` is used without an encoder output only."""
        ...

    @abstractmethod
    def static_state(self, num_slots: int, capacity: int, *, source_length: int = 0) -> StaticState:
        """Return a static state for sequences of up to `capacity` tokens and sources of up to `source_length`."""
        ...

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, "batch new"], state: DecoderState
    ) -> tuple[Float[Tensor, "batch new vocab"], DecoderState]:
        """Return the logits after each of the new tokens, and the state after them.

        The given state is consumed: its memory may be overwritten.
        """
        ...

    def for_inference(self, *, quantization: Quantization | None = None) -> "Decoder":
        """Return the fastest implementation of the same computation on the model's device.

        It shares the weights of the model, unless they are quantized.
        """
        ...

    def beam_state(self, state: DecoderState) -> DecoderState:
        """Return `state` in the form whose `select` is fast for the hypotheses of a beam; by default itself."""
        ...

    def static_beam_state(self, state: DecoderState, beam_size: int, capacity: int) -> StaticBeamState | None:
        """Return a static state for the hypotheses of `state`, of up to `capacity` tokens; None where there is none."""
        ...


@runtime_checkable
class TensorState(DecoderState, Protocol):
    """A state that can be stored as tensors."""

    def select(self, rows: Int[Tensor, " chosen"]) -> "TensorState": ...

    def tensors(self) -> list[Tensor]:
        """Return the tensors from which `StatefulDecoder.restore_state` rebuilds the state."""
        ...


@runtime_checkable
class StatefulDecoder(Decoder, Protocol):
    """A decoder whose state has a fixed size and is carried from one window of a text to the next."""

    def hidden_states_from(
        self, tokens: Int[Tensor, "batch time"], state: TensorState | None
    ) -> tuple[Float[Tensor, "batch time model"], TensorState]:
        """Return the `hidden_states` of a text that continues from `state`, and the state after it."""
        ...

    def restore_state(self, tensors: Sequence[Tensor]) -> TensorState:
        """Return the state of a decoder-only model whose `tensors()` these are."""
        ...
