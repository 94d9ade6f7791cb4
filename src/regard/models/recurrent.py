"""Recurrent encoder-decoders, with one context vector or with attention.

    attention = "none"      the encoder's last state is all the decoder gets
                            Sutskever et al. (2014), arXiv 1409.3215; Cho et al. (2014), arXiv 1406.1078
    attention = "luong"     the decoder's new state looks at the encoder's states
                            Luong et al. (2015), arXiv 1508.04025, section 3.1
    attention = "bahdanau"  the decoder's last state looks, and what it found enters the new one
                            Bahdanau et al. (2014), arXiv 1409.0473, section 3.1

Leave out the encoder and it is a recurrent language model, leave out the
decoder and it is a (bidirectional) recurrent encoder. What keeps a language
model from learning its text by heart (several kinds of dropout, states of another
width than the embeddings) is from Merity et al. (2017), arXiv 1708.02182.

Dimensions: `batch` sequences, `time` positions, `model` width, `vocab` tokens.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.protocols import Memory, State
from regard.nn.attention import Lookup, Retrieval
from regard.nn.cache import Seen
from regard.nn.dropout import Dropout, LockedDropout, TokenDropout, make_dropout
from regard.nn.masks import padding_mask
from regard.nn.recurrent import Cell, CellActivation, Hidden, InitialState, RecurrentStack
from regard.nn.similarity import SimilarityName, make_similarity
from regard.settings import Settings

RecurrentAttention = Literal["none", "luong", "bahdanau"]


class RecurrentConfig(Settings):
    """The shape of a recurrent network. The defaults are an LSTM with one context vector."""

    family: Literal["recurrent"] = "recurrent"
    cell: Cell = "lstm"
    """rnn, gru or lstm."""
    activation: CellActivation = "tanh"
    """tanh or relu, for the cell rnn; the others have their own."""
    num_layers: int = Field(default=2, ge=0)
    """Layers in the encoder, and in the decoder."""
    encoder_layers: int | None = Field(default=None, ge=0)
    """Layers in the encoder, where it is not num_layers; 0 leaves the encoder out."""
    decoder_layers: int | None = Field(default=None, ge=0)
    """Layers in the decoder, where it is not num_layers; 0 leaves the decoder out."""
    model_dim: int = Field(default=512, ge=1)
    """Width of the embeddings and of the state; in two directions each has half of it."""
    hidden_dim: int | None = Field(default=None, ge=1)
    """Width of the state below the last layer, where it is not model_dim; for language models."""
    bidirectional: bool = True
    """Whether the encoder reads in both directions."""
    initial_state: InitialState = "zero"
    """What the state is before the first position: zero or learned."""
    attention: RecurrentAttention = "none"
    """none, luong or bahdanau."""
    similarity: SimilarityName | None = None
    """How attention scores. Unset: bilinear for luong, additive for bahdanau."""
    retrieval: Retrieval = "soft"
    """soft: average the values by their weights; hard: take the one with the best score."""
    attention_temperature: float = Field(default=1.0, gt=0.0)
    """Divides the scores of attention: nearer to 0, nearer to hard retrieval."""
    input_feeding: bool = False
    """Hand what luong's attention made to the next step as well; training then goes step by step."""
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)
    """On the embeddings, between layers, and on what the output is computed from."""
    input_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """On the embeddings, where it is not dropout."""
    layer_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Between layers, where it is not dropout."""
    locked_dropout: bool = False
    """Drop the same numbers at all positions of a sequence (variational dropout)."""
    token_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the vocabulary that is read as zeros in a step."""
    weight_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """On the recurrent matrices, the same at all positions (DropConnect)."""
    tie_embeddings: bool = True
    """Use the token embedding, transposed, as the output projection."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RecurrentConfig":
        if self.encoder_depth + self.decoder_depth == 0:
            raise ConfigError("a recurrent network needs layers in its encoder or in its decoder, got none in either")
        if self.bidirectional and not self.encoder_depth:
            raise ConfigError(
                "a decoder cannot be bidirectional, since it would see the tokens that it is to predict: "
                f"set model.bidirectional to false, or give it an encoder, got encoder_layers={self.encoder_depth}"
            )
        if self.bidirectional and self.model_dim % 2:
            raise ConfigError(f"a bidirectional encoder halves model_dim, which must be even, got {self.model_dim=}")
        if self.attention != "none" and not (self.encoder_depth and self.decoder_depth):
            raise ConfigError(
                f"attention needs an encoder to look at and a decoder that looks, got {self.attention=} with "
                f"encoder_layers={self.encoder_depth} and decoder_layers={self.decoder_depth}"
            )
        if self.attention == "none" and self.similarity is not None:
            raise ConfigError(f"without attention nothing is scored, got {self.similarity=} and {self.attention=}")
        if self.input_feeding and self.attention != "luong":
            raise ConfigError(f"input_feeding belongs to luong's attention, got {self.attention=}")
        if self.activation != "tanh" and self.cell != "rnn":
            raise ConfigError(f"only the cell rnn has a choice of activation, got {self.cell=} and {self.activation=}")
        if self.hidden_dim is not None and (self.encoder_depth or self.decoder_depth < 2):
            raise ConfigError(
                "hidden_dim is for a language model with layers below its last, "
                f"got encoder_layers={self.encoder_depth} and decoder_layers={self.decoder_depth}"
            )
        if self.is_step_by_step and (self.locked_dropout or self.weight_dropout):
            raise ConfigError(
                "locked_dropout and weight_dropout need all positions at once, which bahdanau's attention and "
                f"input_feeding cannot have, got {self.attention=} and {self.input_feeding=}"
            )
        return self

    @property
    def encoder_depth(self) -> int:
        return self.num_layers if self.encoder_layers is None else self.encoder_layers

    @property
    def decoder_depth(self) -> int:
        return self.num_layers if self.decoder_layers is None else self.decoder_layers

    def hidden_dims(self, depth: int) -> list[int]:
        """The width of the state of each of so many layers."""
        return [*[self.hidden_dim or self.model_dim] * (depth - 1), self.model_dim]

    @property
    def is_step_by_step(self) -> bool:
        """Whether a step needs what attention found at the one before, so that steps cannot be fused."""
        return self.attention == "bahdanau" or self.input_feeding


@dataclass(frozen=True)
class RecurrentMemory(Memory):
    """The encoder's states, and each layer's last one."""

    last: Hidden


@dataclass
class RecurrentState:
    """Each decoder layer's state; what attention may look at, and what it found last."""

    hidden: Hidden
    seen: Seen | None
    found: Float[Tensor, "batch 1 model"] | None

    @property
    def top(self) -> Float[Tensor, "batch model"]:
        """The last layer's h."""
        return self.hidden[-1][0][0]

    def tensors(self) -> list[Tensor]:
        """Of each layer h, and for an LSTM also C: all that a language model carries on."""
        return [part for layer in self.hidden for part in layer]

    def select(self, rows: Int[Tensor, " chosen"]) -> "RecurrentState":
        hidden = tuple(tuple(part.index_select(1, rows) for part in layer) for layer in self.hidden)
        seen = None if self.seen is None else self.seen.select(rows)
        return RecurrentState(hidden, seen, None if self.found is None else self.found.index_select(0, rows))


@dataclass
class RecurrentSlots(RecurrentState):
    """A state whose rows are filled one by one, and which a step changes in place."""

    def put(self, slot: int, state: State) -> None:
        assert isinstance(state, RecurrentState)
        for own, new in zip(self.tensors(), state.tensors(), strict=True):
            own[:, slot] = new[:, 0]
        if self.seen is not None and state.seen is not None:
            self.seen.put(slot, state.seen)
        if self.found is not None and state.found is not None:
            self.found[slot] = state.found[0]

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for own in self.tensors():
            own.copy_(own.index_select(1, rows))
        if self.found is not None:
            self.found.copy_(self.found.index_select(0, rows))

    def take(self, state: RecurrentState) -> None:
        """Go on as `state`, which stands a step further."""
        for own, new in zip(self.tensors(), state.tensors(), strict=True):
            own.copy_(new)
        if self.found is not None and state.found is not None:
            self.found.copy_(state.found)


class Recurrent(nn.Module):
    """Token ids in, scores for the next token out.

    Both sides share one vocabulary and one table of embeddings.
    """

    def __init__(self, config: RecurrentConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.model_dim)
        nn.init.normal_(self.embedding.weight, std=config.model_dim**-0.5)
        self.token_dropout = TokenDropout(vocab_size, config.token_dropout)
        at_input = config.dropout if config.input_dropout is None else config.input_dropout
        self.input_dropout = make_dropout(at_input, is_locked=config.locked_dropout)
        self.dropout = make_dropout(config.dropout, is_locked=config.locked_dropout)
        self.encoder = RecurrentEncoder(config) if config.encoder_depth else None
        self.decoder = RecurrentDecoder(config) if config.decoder_depth else None
        self.output = nn.Linear(config.model_dim, vocab_size, bias=False) if config.decoder_depth else None
        if self.output is not None and config.tie_embeddings:
            self.output.weight = self.embedding.weight

    def forward(
        self,
        target: Int[Tensor, "batch time"],
        source: Int[Tensor, "batch source"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch time vocab"]:
        """The scores after each prefix of `target`, given `source` where there is an encoder."""
        memory = None if source is None else self.encode(source, lengths)
        return self.decode(target, memory)

    def encode(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        added: Float[Tensor, "batch time model"] | None = None,
    ) -> Memory:
        assert self.encoder is not None, "this recurrent network has no encoder"
        x = self._embed(source)
        return self.encoder(x if added is None else x + added.to(x.dtype), lengths)

    def decode(
        self, target: Int[Tensor, "batch time"], memory: Memory | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        return self.scores(self.states(target, memory))

    def states(
        self,
        target: Int[Tensor, "batch time"],
        memory: Memory | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        assert documents is None, "a state that is carried on knows no documents"
        return self.running_states(target, self.start(memory, batch_size=target.size(0)))[0]

    def running_states(
        self, tokens: Int[Tensor, "batch time"], state: RecurrentState | None
    ) -> tuple[Float[Tensor, "batch time model"], RecurrentState]:
        """The `states` of a text that goes on where `state` ended, and the state behind it."""
        start = self.start(batch_size=tokens.size(0)) if state is None else state
        states, last = self._decoder()(self._embed(tokens), start)
        return self.dropout(states), last

    def resume(self, tensors: list[Tensor]) -> RecurrentState:
        """The state of a language model that gave these tensors."""
        num_parts = len(tensors) // self.config.decoder_depth
        layers = [tuple(tensors[first : first + num_parts]) for first in range(0, len(tensors), num_parts)]
        return RecurrentState(tuple(layers), None, None)

    def scores(self, states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch vocab"]:
        assert self.output is not None
        return self.output(states)

    def start(self, memory: Memory | None = None, *, batch_size: int = 1) -> RecurrentState:
        decoder = self._decoder()
        if memory is None:
            return RecurrentState(decoder.stack.initial(batch_size), None, None)
        assert isinstance(memory, RecurrentMemory)
        return decoder.start(memory)

    def slots(self, num_slots: int, capacity: int, *, source_length: int = 0) -> RecurrentSlots:
        decoder, config = self._decoder(), self.config
        hidden = tuple(tuple(torch.zeros_like(part) for part in layer) for layer in decoder.stack.initial(num_slots))
        top = hidden[-1][0][0]
        seen = found = None
        if decoder.lookup is not None and source_length:
            values = top.new_zeros(num_slots, 1, source_length, config.model_dim)
            mask = torch.zeros(num_slots, 1, 1, source_length, dtype=torch.bool, device=values.device)
            seen = Seen(torch.zeros_like(decoder.lookup.prepare(values)), values, mask)
            found = torch.zeros_like(top)[:, None] if config.input_feeding else None
        return RecurrentSlots(hidden, seen, found)

    def step(
        self, tokens: Int[Tensor, "batch new"], state: State
    ) -> tuple[Float[Tensor, "batch new vocab"], RecurrentState]:
        assert isinstance(state, RecurrentState)
        states, new_state = self._decoder()(self._embed(tokens), state)
        if isinstance(state, RecurrentSlots):
            state.take(new_state)
            new_state = state
        return self.scores(self.dropout(states)), new_state

    def _embed(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time model"]:
        # Scaled, so that a table small enough to be the output projection is large enough to be read.
        x = self.embedding(tokens) * self.config.model_dim**0.5
        return self.input_dropout(self.token_dropout(x, tokens))

    def _decoder(self) -> "RecurrentDecoder":
        assert self.decoder is not None, "this recurrent network has no decoder"
        return self.decoder


class RecurrentEncoder(nn.Module):
    """Reads a sequence, in both directions or forwards."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        num_directions = 2 if config.bidirectional else 1
        self.stack = RecurrentStack(
            config.cell,
            config.model_dim,
            [width // num_directions for width in config.hidden_dims(config.encoder_depth)],
            activation=config.activation,
            is_bidirectional=config.bidirectional,
            dropout=_between_layers(config),
            weight_dropout=config.weight_dropout,
            initial_state=config.initial_state,
        )

    def forward(
        self, x: Float[Tensor, "batch time model"], lengths: Int[Tensor, " batch"] | None = None
    ) -> RecurrentMemory:
        states, last = self.stack(x, lengths)
        mask = None if lengths is None else padding_mask(lengths, x.size(1))
        return RecurrentMemory(states, mask, tuple(tuple(_side_by_side(part) for part in layer) for layer in last))


class RecurrentDecoder(nn.Module):
    """Writes a sequence from the encoder's last state, and looks at the others where it has attention."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        width = config.model_dim
        self.stack = RecurrentStack(
            config.cell,
            2 * width if config.is_step_by_step else width,
            config.hidden_dims(config.decoder_depth),
            activation=config.activation,
            dropout=_between_layers(config),
            weight_dropout=config.weight_dropout,
            # With an encoder the first state is the encoder's last.
            initial_state="zero" if config.encoder_depth else config.initial_state,
        )
        self.lookup, self.join = None, None
        if config.attention != "none":
            usual: SimilarityName = "bilinear" if config.attention == "luong" else "additive"
            self.lookup = Lookup(
                make_similarity(config.similarity or usual, width, 1),
                temperature=config.attention_temperature,
                retrieval=config.retrieval,
            )
            self.join = nn.Linear(2 * width, width)
            nn.init.xavier_uniform_(self.join.weight)
            nn.init.zeros_(self.join.bias)

    def start(self, memory: RecurrentMemory) -> RecurrentState:
        """Each layer goes on where the encoder's layer beside it ended; those of a deeper decoder where its last did.

        Of a deeper encoder the last layers count: they have seen what the first ones saw.
        """
        depth, num_read = self.config.decoder_depth, len(memory.last)
        layers = [min(layer + max(0, num_read - depth), num_read - 1) for layer in range(depth)]
        state = RecurrentState(tuple(memory.last[layer] for layer in layers), None, None)
        if self.lookup is None:
            return state
        values = memory.states[:, None]
        seen = Seen(self.lookup.prepare(values), values, memory.mask)
        nothing = torch.zeros_like(state.top)[:, None] if self.config.input_feeding else None
        return RecurrentState(state.hidden, seen, nothing)

    def forward(
        self, x: Float[Tensor, "batch new model"], state: RecurrentState
    ) -> tuple[Float[Tensor, "batch new model"], RecurrentState]:
        """What the output is computed from, at each new position."""
        if not self.config.is_step_by_step:
            states, hidden = self.stack(x, state=state.hidden)
            return self._joined(states, state), RecurrentState(hidden, state.seen, None)
        outputs = []
        for token in x.split(1, dim=1):
            output, state = self._one_step(token, state)
            outputs.append(output)
        return torch.cat(outputs, dim=1), state

    def _one_step(
        self, x: Float[Tensor, "batch 1 model"], state: RecurrentState
    ) -> tuple[Float[Tensor, "batch 1 model"], RecurrentState]:
        if self.config.attention == "bahdanau":
            found = self._look(state.top[:, None], state)
            states, hidden = self.stack(torch.cat([x, found], dim=-1), state=state.hidden)
            return self._join(states, found), RecurrentState(hidden, state.seen, None)
        assert state.found is not None
        states, hidden = self.stack(torch.cat([x, state.found], dim=-1), state=state.hidden)
        joined = self._joined(states, state)
        return joined, RecurrentState(hidden, state.seen, joined)

    def _joined(self, states: Float[Tensor, "batch new model"], state: RecurrentState) -> Tensor:
        return states if self.lookup is None else self._join(states, self._look(states, state))

    def _join(
        self, states: Float[Tensor, "batch new model"], found: Float[Tensor, "batch new model"]
    ) -> Float[Tensor, "batch new model"]:
        assert self.join is not None
        return self.join(torch.cat([states, found], dim=-1)).tanh()

    def _look(
        self, queries: Float[Tensor, "batch new model"], state: RecurrentState
    ) -> Float[Tensor, "batch new model"]:
        assert self.lookup is not None
        assert state.seen is not None
        return self.lookup(queries[:, None], state.seen.k, state.seen.v, state.seen.mask)[:, 0]


def _between_layers(config: RecurrentConfig) -> Dropout | LockedDropout:
    rate = config.dropout if config.layer_dropout is None else config.layer_dropout
    return make_dropout(rate, is_locked=config.locked_dropout)


def _side_by_side(part: Float[Tensor, "directions batch hidden"]) -> Float[Tensor, "1 batch model"]:
    return part.transpose(0, 1).flatten(1)[None]
