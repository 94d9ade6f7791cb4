"""Recurrent encoder-decoders, with one context vector or with attention.

    attention = "none"      the decoder starts from the last state of the encoder and sees nothing else of the source
                            Sutskever et al. (2014), arXiv 1409.3215; Cho et al. (2014), arXiv 1406.1078
    attention = "luong"     the new state of the decoder attends to the states of the encoder
                            Luong et al. (2015), arXiv 1508.04025, section 3.1
    attention = "bahdanau"  the previous state attends, and the result is an input of the new state
                            Bahdanau et al. (2014), arXiv 1409.0473, section 3.1

Without its encoder it is a recurrent language model, without its decoder a
(bidirectional) recurrent encoder. The regularization of language models (several
kinds of dropout, hidden states of another width than the embeddings) is from
Merity et al. (2017), arXiv 1708.02182.

Dimensions: `batch` sequences, `time` positions, `model` width, `vocab` tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.base import ForeignEncoder, SequenceModel
from regard.models.family import MOST_LAYERS, EncoderDecoderConfig, Family, ModelConfig, Preset, make_lookup
from regard.models.protocols import DecoderState, EncoderOutput
from regard.nn.dropout import Dropout, LockedDropout, TokenDropout, make_dropout
from regard.nn.kv_cache import CrossAttentionKV
from regard.nn.masks import padding_mask
from regard.nn.recurrent import Cell, CellActivation, Hidden, InitialState, RecurrentStack
from regard.nn.similarity import SimilarityName, make_similarity

RecurrentAttention = Literal["none", "luong", "bahdanau"]


class RecurrentConfig(EncoderDecoderConfig):
    """The settings of a recurrent network. The defaults are an LSTM with one context vector."""

    family: str = "recurrent"
    can_compile: ClassVar[bool] = False  # torch.compile cannot trace PyTorch's recurrent kernels
    can_use_cuda_graphs: ClassVar[bool] = False
    cell: Cell = "lstm"
    """rnn, gru or lstm."""
    activation: CellActivation = "tanh"
    """tanh or relu, of the cell rnn."""
    num_layers: int = Field(default=2, ge=0, le=MOST_LAYERS)
    """Layers of the encoder, and of the decoder."""
    model_dim: int = Field(default=512, ge=1)
    """Width of the embeddings and of the hidden states; in a bidirectional encoder each direction has half of it."""
    hidden_dim: int | None = Field(default=None, ge=1)
    """Width of the hidden states of all layers but the last, if not model_dim; for language models."""
    bidirectional: bool = True
    """Whether the encoder is bidirectional."""
    initial_state: InitialState = "zero"
    """The state before the first position: zero or learned."""
    attention: RecurrentAttention = "none"
    """none, luong or bahdanau."""
    similarity: SimilarityName | None = None
    """Similarity of the attention. Unset: bilinear for luong, additive for bahdanau."""
    input_feeding: bool = False
    """Whether the output of luong's attention is also an input of the next step; training is then step by step."""
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Dropout on the embeddings, between layers, and on the last hidden states."""
    input_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout on the embeddings, if not `dropout`."""
    layer_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout between layers, if not `dropout`."""
    locked_dropout: bool = False
    """Use one dropout mask for all positions of a sequence (variational dropout)."""
    token_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability with which the embedding of a token is zero in a training step."""
    weight_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on the recurrent matrices, with one mask for all positions (DropConnect)."""
    tie_embeddings: bool = True
    """Use the token embedding, transposed, as the output projection."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RecurrentConfig":
        if self.encoder_depth + self.decoder_depth == 0:
            raise ConfigError("a recurrent network needs layers in its encoder or in its decoder, got none in either")
        if self.bidirectional and not self.encoder_depth:
            raise ConfigError(
                "a decoder cannot be bidirectional, since it would read the tokens that it predicts: "
                f"model.bidirectional must be false without an encoder, got encoder_layers={self.encoder_depth}"
            )
        if self.bidirectional and self.model_dim % 2:
            raise ConfigError(f"model_dim must be even for a bidirectional encoder, got model_dim={self.model_dim!r}")
        if self.attention != "none" and not (self.encoder_depth and self.decoder_depth):
            raise ConfigError(
                f"attention needs an encoder and a decoder, got attention={self.attention!r} with "
                f"encoder_layers={self.encoder_depth} and decoder_layers={self.decoder_depth}"
            )
        if self.attention == "none" and self.similarity is not None:
            raise ConfigError(
                f"similarity needs attention, got similarity={self.similarity!r} and attention={self.attention!r}"
            )
        if self.input_feeding and self.attention != "luong":
            raise ConfigError(f"input_feeding needs attention='luong', got attention={self.attention!r}")
        if self.activation != "tanh" and self.cell != "rnn":
            raise ConfigError(
                f"activation is for cell='rnn', got cell={self.cell!r} and activation={self.activation!r}"
            )
        if self.hidden_dim is not None and (self.encoder_depth or self.decoder_depth < 2):
            raise ConfigError(
                "hidden_dim is for a language model of at least two layers, "
                f"got encoder_layers={self.encoder_depth} and decoder_layers={self.decoder_depth}"
            )
        if self.is_step_by_step and (self.locked_dropout or self.weight_dropout):
            raise ConfigError(
                "locked_dropout and weight_dropout need all positions at once, which bahdanau's attention and "
                f"input_feeding do not have, got attention={self.attention!r} and input_feeding={self.input_feeding!r}"
            )
        return self

    def hidden_dims(self, depth: int) -> list[int]:
        """Return the width of the hidden states of each of `depth` layers."""
        return [*[self.hidden_dim or self.model_dim] * (depth - 1), self.model_dim]

    @property
    def is_step_by_step(self) -> bool:
        """Whether a step needs the attention of the step before, so that the steps cannot be fused."""
        return self.attention == "bahdanau" or self.input_feeding

    @property
    def lr_scale(self) -> float:
        return 0.5 if self.cell == "rnn" else 1.0

    @property
    def gains_from_bf16_on_cpu(self) -> bool:
        return self.cell == "lstm"

    @property
    def can_carry_state(self) -> bool:
        return not self.encoder_depth


@dataclass(frozen=True)
class RecurrentEncoderOutput(EncoderOutput):
    """The hidden states of the encoder, and the last state of each layer."""

    last: Hidden


@dataclass
class RecurrentState:
    """The state of each decoder layer, the keys and values of the attention, and its last output."""

    hidden: Hidden
    cross_kv: CrossAttentionKV | None
    attended: Float[Tensor, "batch 1 model"] | None
    """The last output of the attention, with input feeding."""

    @property
    def top(self) -> Float[Tensor, "batch model"]:
        """The h of the last layer."""
        return self.hidden[-1][0][0]

    def tensors(self) -> list[Tensor]:
        """Return h of each layer, and for an LSTM also C: the whole state of a language model."""
        return [part for layer in self.hidden for part in layer]

    def select(self, rows: Int[Tensor, " chosen"]) -> "RecurrentState":
        hidden = tuple(tuple(part.index_select(1, rows) for part in layer) for layer in self.hidden)
        cross_kv = None if self.cross_kv is None else self.cross_kv.select(rows)
        attended = None if self.attended is None else self.attended.index_select(0, rows)
        return RecurrentState(hidden, cross_kv, attended)


@dataclass
class StaticRecurrentState(RecurrentState):
    """A state whose rows are replaced one by one, and which a step changes in place."""

    def put(self, rows: Int[Tensor, " chosen"], state: DecoderState) -> None:
        assert isinstance(state, RecurrentState)
        for own, new in zip(self.tensors(), state.tensors(), strict=True):
            own[:, rows] = new
        if self.cross_kv is not None and state.cross_kv is not None:
            self.cross_kv.put(rows, state.cross_kv)
        if self.attended is not None and state.attended is not None:
            self.attended[rows] = state.attended

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for own in self.tensors():
            own.copy_(own.index_select(1, rows))
        if self.attended is not None:
            self.attended.copy_(self.attended.index_select(0, rows))

    def copy_(self, state: RecurrentState) -> None:
        """Copy `state`, which has the same source, in place."""
        for own, new in zip(self.tensors(), state.tensors(), strict=True):
            own.copy_(new)
        if self.attended is not None and state.attended is not None:
            self.attended.copy_(state.attended)


class Recurrent(SequenceModel[RecurrentConfig]):
    """Token ids in, logits for the next token out."""

    Config: ClassVar[type[ModelConfig]] = RecurrentConfig

    def __init__(self, config: RecurrentConfig, vocab_size: int, *, source_vocab_size: int | None = None) -> None:
        super().__init__(config, vocab_size, source_vocab_size=source_vocab_size)
        for embedding in (self.embedding, self.source_embedding):
            if embedding is not None:
                nn.init.normal_(embedding.weight, std=config.model_dim**-0.5)
        self.token_dropout = TokenDropout(config.token_dropout)
        input_dropout = config.dropout if config.input_dropout is None else config.input_dropout
        self.input_dropout = make_dropout(input_dropout, is_locked=config.locked_dropout)
        self.dropout = make_dropout(config.dropout, is_locked=config.locked_dropout)
        self.encoder = RecurrentEncoder(config) if config.encoder_depth else None
        self.decoder = RecurrentDecoder(config) if config.decoder_depth else None
        self.output = nn.Linear(config.model_dim, vocab_size, bias=False) if config.decoder_depth else None
        if self.output is not None and config.tie_embeddings:
            self.output.weight = self.embedding.weight

    def encode(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        segments: Int[Tensor, "batch time"] | None = None,
        extra_embeddings: Float[Tensor, "batch time model"] | None = None,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> EncoderOutput:
        self.require_documents(documents)
        if self.encoder is None:
            return self.encode_causally(source, lengths, extra_embeddings, documents)
        x = self._embed(source, self.source_embedding or self.embedding)
        return self.encoder(x if extra_embeddings is None else x + extra_embeddings.to(x.dtype), lengths)

    def hidden_states(
        self,
        tokens: Int[Tensor, "batch time"],
        encoder_output: EncoderOutput | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        self.require_documents(documents)
        return self.hidden_states_from(tokens, self.initial_state(encoder_output, batch_size=tokens.size(0)))[0]

    def hidden_states_from(
        self, tokens: Int[Tensor, "batch time"], state: RecurrentState | None
    ) -> tuple[Float[Tensor, "batch time model"], RecurrentState]:
        """Return the `hidden_states` of a text that continues from `state`, and the state after it."""
        start = self.initial_state(batch_size=tokens.size(0)) if state is None else state
        hidden_states, last = self._decoder()(self._embed(tokens, self.embedding), start)
        return self.dropout(hidden_states), last

    def restore_state(self, tensors: Sequence[Tensor]) -> RecurrentState:
        """Return the state of a language model whose `tensors()` these are."""
        num_parts = len(tensors) // self.config.decoder_depth
        layers = [tuple(tensors[first : first + num_parts]) for first in range(0, len(tensors), num_parts)]
        return RecurrentState(tuple(layers), None, None)

    def initial_state(self, encoder_output: EncoderOutput | None = None, *, batch_size: int = 1) -> RecurrentState:
        self.require_source(encoder_output is not None)
        decoder = self._decoder()
        if encoder_output is None:
            return RecurrentState(decoder.stack.initial_state(batch_size), None, None)
        return decoder.initial_state(encoder_output)

    def replace_encoder(self) -> "Recurrent":
        self.encoder = ForeignEncoder()
        self._decoder().start_from_average()
        return self

    def static_state(self, num_slots: int, capacity: int, *, source_length: int = 0) -> StaticRecurrentState:
        decoder, config = self._decoder(), self.config
        initial = decoder.stack.initial_state(num_slots)
        hidden = tuple(tuple(torch.zeros_like(part) for part in layer) for layer in initial)
        top = hidden[-1][0][0]
        cross_kv = attended = None
        if decoder.lookup is not None and source_length:
            values = top.new_zeros(num_slots, 1, source_length, config.model_dim)
            mask = torch.zeros(num_slots, 1, 1, source_length, dtype=torch.bool, device=values.device)
            cross_kv = CrossAttentionKV(torch.zeros_like(decoder.lookup.prepare(values)), values, mask)
            attended = torch.zeros_like(top)[:, None] if config.input_feeding else None
        return StaticRecurrentState(hidden, cross_kv, attended)

    def step(
        self, tokens: Int[Tensor, "batch new"], state: DecoderState
    ) -> tuple[Float[Tensor, "batch new vocab"], RecurrentState]:
        assert isinstance(state, RecurrentState)
        hidden_states, new_state = self._decoder()(self._embed(tokens, self.embedding), state)
        if isinstance(state, StaticRecurrentState):
            state.copy_(new_state)
            new_state = state
        return self.logits(self.dropout(hidden_states)), new_state

    def _embed(self, tokens: Int[Tensor, "batch time"], embedding: nn.Embedding) -> Float[Tensor, "batch time model"]:
        # Scaled, because the weights of a tied output projection are too small for an input.
        x = embedding(tokens) * self.config.model_dim**0.5
        return self.input_dropout(self.token_dropout(x, tokens, embedding.num_embeddings))

    def _decoder(self) -> "RecurrentDecoder":
        assert isinstance(self.decoder, RecurrentDecoder)
        return self.decoder


class RecurrentEncoder(nn.Module):
    """A stack of recurrent layers over a sequence, in one or both directions."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        num_directions = 2 if config.bidirectional else 1
        self.stack = RecurrentStack(
            config.cell,
            config.model_dim,
            [width // num_directions for width in config.hidden_dims(config.encoder_depth)],
            activation=config.activation,
            is_bidirectional=config.bidirectional,
            dropout=_layer_dropout(config),
            weight_dropout=config.weight_dropout,
            initial_state=config.initial_state,
        )

    def forward(
        self, x: Float[Tensor, "batch time model"], lengths: Int[Tensor, " batch"] | None = None
    ) -> RecurrentEncoderOutput:
        hidden_states, last = self.stack(x, lengths)
        mask = None if lengths is None else padding_mask(lengths, x.size(1))
        last = tuple(tuple(_concatenate_directions(part) for part in layer) for layer in last)
        return RecurrentEncoderOutput(hidden_states, mask, last)


class RecurrentDecoder(nn.Module):
    """A stack of recurrent layers that starts from the encoder's last state, with or without attention."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        width = config.model_dim
        self.stack = RecurrentStack(
            config.cell,
            2 * width if config.is_step_by_step else width,
            config.hidden_dims(config.decoder_depth),
            activation=config.activation,
            dropout=_layer_dropout(config),
            weight_dropout=config.weight_dropout,
            # With an encoder the initial state is the last one of the encoder.
            initial_state="zero" if config.encoder_depth else config.initial_state,
        )
        self.lookup, self.join = None, None
        self.start: nn.Linear | None = None
        if config.attention != "none":
            default: SimilarityName = "bilinear" if config.attention == "luong" else "additive"
            self.lookup = make_lookup(config, make_similarity(config.similarity or default, width, 1))
            self.join = nn.Linear(2 * width, width)
            nn.init.xavier_uniform_(self.join.weight)
            nn.init.zeros_(self.join.bias)

    def start_from_average(self) -> None:
        """Start from a learned map of the average of hidden states, where these are not those of recurrent layers.

        Xu et al., "Show, Attend and Tell" (2015), section 3.1.2. https://arxiv.org/abs/1502.03044
        """
        num_parts, width = 2 if self.config.cell == "lstm" else 1, self.config.model_dim
        self.start = nn.Linear(width, self.config.decoder_depth * num_parts * width)
        nn.init.xavier_uniform_(self.start.weight)
        nn.init.zeros_(self.start.bias)

    def initial_state(self, encoder_output: EncoderOutput) -> RecurrentState:
        """Return the state before the first token: the last states of the encoder's layers.

        With a deeper encoder these are its last layers. With a deeper decoder its
        further layers start from the encoder's last layer.
        """
        depth = self.config.decoder_depth
        if self.start is not None:
            parts = self.start(encoder_output.average()).tanh().unflatten(1, (depth, -1, self.config.model_dim))
            hidden = tuple(tuple(part[None].contiguous() for part in layer.unbind(1)) for layer in parts.unbind(1))
        else:
            assert isinstance(encoder_output, RecurrentEncoderOutput)
            num_layers = len(encoder_output.last)
            layers = [min(layer + max(0, num_layers - depth), num_layers - 1) for layer in range(depth)]
            hidden = tuple(encoder_output.last[layer] for layer in layers)
        state = RecurrentState(hidden, None, None)
        if self.lookup is None:
            return state
        values = encoder_output.hidden_states[:, None]
        cross_kv = CrossAttentionKV(self.lookup.prepare(values), values, encoder_output.mask)
        attended = torch.zeros_like(state.top)[:, None] if self.config.input_feeding else None
        return RecurrentState(state.hidden, cross_kv, attended)

    def forward(
        self, x: Float[Tensor, "batch new model"], state: RecurrentState
    ) -> tuple[Float[Tensor, "batch new model"], RecurrentState]:
        """Return the hidden states of the new positions, and the state after them."""
        if not self.config.is_step_by_step:
            hidden_states, hidden = self.stack(x, state=state.hidden)
            return self._with_attention(hidden_states, state), RecurrentState(hidden, state.cross_kv, None)
        outputs = []
        for token in x.split(1, dim=1):
            output, state = self._one_step(token, state)
            outputs.append(output)
        return torch.cat(outputs, dim=1), state

    def _one_step(
        self, x: Float[Tensor, "batch 1 model"], state: RecurrentState
    ) -> tuple[Float[Tensor, "batch 1 model"], RecurrentState]:
        if self.config.attention == "bahdanau":
            attended = self._attend(state.top[:, None], state)
            hidden_states, hidden = self.stack(torch.cat([x, attended], dim=-1), state=state.hidden)
            return self._join(hidden_states, attended), RecurrentState(hidden, state.cross_kv, None)
        assert state.attended is not None
        hidden_states, hidden = self.stack(torch.cat([x, state.attended], dim=-1), state=state.hidden)
        output = self._with_attention(hidden_states, state)
        return output, RecurrentState(hidden, state.cross_kv, output)

    def _with_attention(self, hidden_states: Float[Tensor, "batch new model"], state: RecurrentState) -> Tensor:
        return hidden_states if self.lookup is None else self._join(hidden_states, self._attend(hidden_states, state))

    def _join(
        self, hidden_states: Float[Tensor, "batch new model"], attended: Float[Tensor, "batch new model"]
    ) -> Float[Tensor, "batch new model"]:
        assert self.join is not None
        return self.join(torch.cat([hidden_states, attended], dim=-1)).tanh()

    def _attend(
        self, queries: Float[Tensor, "batch new model"], state: RecurrentState
    ) -> Float[Tensor, "batch new model"]:
        assert self.lookup is not None
        assert state.cross_kv is not None
        return self.lookup(queries[:, None], state.cross_kv.k, state.cross_kv.v, state.cross_kv.mask)[:, 0]


def _layer_dropout(config: RecurrentConfig) -> Dropout | LockedDropout:
    rate = config.dropout if config.layer_dropout is None else config.layer_dropout
    return make_dropout(rate, is_locked=config.locked_dropout)


def _concatenate_directions(part: Float[Tensor, "directions batch hidden"]) -> Float[Tensor, "1 batch model"]:
    return part.transpose(0, 1).flatten(1)[None]


_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"num_layers": 2, "model_dim": 192},
    "small": {"num_layers": 2, "model_dim": 512, "dropout": 0.3},
    "base": {"num_layers": 4, "model_dim": 1024},
    "big": {"num_layers": 4, "model_dim": 2048, "dropout": 0.3},
}


class RecurrentFamily(Family):
    """Recurrent networks with the cells rnn, gru and lstm."""

    name = "recurrent"
    Config = RecurrentConfig
    Model = Recurrent
    presets: ClassVar[Mapping[str, Preset]] = {
        "rnn": Preset(_SIZES, {"cell": "rnn"}),
        "gru": Preset(_SIZES, {"cell": "gru"}),
        "lstm": Preset(_SIZES, {"cell": "lstm"}),
        "gru-attention": Preset(_SIZES, {"cell": "gru", "attention": "bahdanau"}),
        "lstm-attention": Preset(_SIZES, {"cell": "lstm", "attention": "luong"}),
    }

    def encoder_only(self, values: Mapping[str, Any]) -> dict[str, Any]:
        alone = super().encoder_only(values)
        return alone if alone.get("encoder_layers") == 0 else {**alone, "attention": "none"}

    def decoder_only(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().decoder_only(values), "bidirectional": False, "attention": "none"}
