"""What the models of this package have in common: embeddings, the check of the source, presets.

Dimensions: `batch` sequences, `time` positions, `model` width, `vocab` tokens.
"""

from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.family import ModelConfig
from regard.models.protocols import Decoder, DecoderState, EncoderOutput, StaticBeamState
from regard.nn.inference import Quantization, prepare_for_inference
from regard.nn.masks import padding_mask

ConfigT = TypeVar("ConfigT", bound=ModelConfig)
ModelT = TypeVar("ModelT", bound=nn.Module)


class ForeignEncoder(nn.Module):
    """In the place of an encoder whose hidden states another model computes."""

    def forward(self, *inputs: Any) -> EncoderOutput:
        raise ConfigError("this decoder reads the hidden states of another model: it encodes nothing itself")


class SequenceModel(nn.Module, Decoder, Generic[ConfigT]):
    """A model of token sequences with an encoder, a decoder, or both.

    A subclass sets `encoder`, `decoder` and `output`, where it has them, and
    implements the abstract methods of `Decoder`. Both sides share one vocabulary and
    one embedding, unless `source_vocab_size` gives the encoder its own.
    """

    Config: ClassVar[type[ModelConfig]]

    def __init__(self, config: ConfigT, vocab_size: int, *, source_vocab_size: int | None = None) -> None:
        super().__init__()
        self.config: ConfigT = config  # pyright: ignore[reportIncompatibleVariableOverride]  narrower and never replaced
        self.encoder: nn.Module | None = None
        self.decoder: nn.Module | None = None
        self.output: nn.Linear | None = None
        self.embedding = nn.Embedding(vocab_size, config.model_dim)
        if source_vocab_size is not None and not config.encoder_depth:
            raise ConfigError(f"source_vocab_size is for a model with an encoder, got {source_vocab_size=} without one")
        self.source_embedding = None if source_vocab_size is None else nn.Embedding(source_vocab_size, config.model_dim)

    @classmethod
    def from_preset(
        cls: type[ModelT], name: str, *, vocab_size: int, source_vocab_size: int | None = None, **settings: Any
    ) -> ModelT:
        """Return a new model with the settings of a preset, some of them replaced by `settings`.

        A name without a size has the size `base`, as in the papers.

        Example:
            >>> from regard.models import Transformer
            >>> model = Transformer.from_preset("gpt2-tiny", vocab_size=97, num_layers=1)
            >>> sum(parameter.numel() for parameter in model.parameters())
            342016
        """
        from regard.models.presets import find_preset

        own: Any = cls  # its type is known to be more than a module: TypeVar bounds cannot name this class
        full_name, values = find_preset(name, "base")
        if values["family"] != (family := own.Config.model_fields["family"].default):
            raise ConfigError(
                f"{full_name} is a preset of the family {values['family']}, {cls.__name__} is of {family}"
            )
        config = own.Config.read({**values, **settings})
        return own(config, vocab_size, source_vocab_size=source_vocab_size)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def vocab_size(self) -> int:
        return self.embedding.num_embeddings

    @property
    def source_vocab_size(self) -> int:
        return (self.source_embedding or self.embedding).num_embeddings

    def forward(
        self,
        target: Int[Tensor, "batch time"],
        source: Int[Tensor, "batch source"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch time vocab"]:
        """Return the logits after each prefix of `target`, given `source` if there is an encoder."""
        self.require_source(source is not None)
        return self.decode(target, None if source is None else self.encode(source, lengths))

    def logits(self, hidden_states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch vocab"]:
        if self.output is None:
            raise ConfigError("logits need a model with a decoder and its output projection, this one has none")
        return self.output(hidden_states)

    def decode(
        self, tokens: Int[Tensor, "batch time"], encoder_output: EncoderOutput | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        return self.logits(self.hidden_states(tokens, encoder_output))

    def for_inference(self, *, quantization: Quantization | None = None) -> "SequenceModel":
        if quantization is None:
            return self
        return prepare_for_inference(self, "float32", quantization=quantization)

    def beam_state(self, state: DecoderState) -> DecoderState:
        return state

    def static_beam_state(self, state: DecoderState, beam_size: int, capacity: int) -> StaticBeamState | None:
        return None

    def replace_encoder(self) -> "SequenceModel":
        """Remove the encoder, and return the model: its decoder reads hidden states that another model computes."""
        raise ConfigError(
            f"a decoder of the family {self.config.family} cannot read the hidden states of another encoder"
        )

    def require_source(self, is_given: bool) -> None:
        """Raise a `ConfigError` unless the decoder is given an encoder output exactly if there is an encoder."""
        if self.decoder is None:
            raise ConfigError("a decoder is needed to predict tokens, this model is an encoder")
        if is_given and self.encoder is None:
            raise ConfigError("a decoder-only model takes no source, got one")
        if not is_given and self.encoder is not None:
            raise ConfigError("an encoder-decoder needs a source, got none")

    def require_documents(self, documents: Tensor | None) -> None:
        """Raise a `ConfigError` if documents are given that the model cannot isolate."""
        if documents is not None and not self.config.can_isolate_documents:
            raise ConfigError(f"a model of the family {self.config.family} cannot isolate documents within a row")

    def encode_causally(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None,
        extra_embeddings: Float[Tensor, "batch time model"] | None,
        documents: Int[Tensor, "batch time"] | None,
    ) -> EncoderOutput:
        """Return the hidden states of a decoder-only model as `encode` returns them."""
        if extra_embeddings is not None:
            raise ConfigError("extra_embeddings need an encoder, this model is decoder-only")
        mask = None if lengths is None else padding_mask(lengths, source.size(1))
        return EncoderOutput(self.hidden_states(source, documents=documents), mask)
