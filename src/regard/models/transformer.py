"""The Transformer, as encoder, as decoder, or as both.

Vaswani et al., "Attention Is All You Need" (2017). https://arxiv.org/abs/1706.03762

GPT-2, Llama, BERT, Marian and the original are settings of this one file:
leave out the encoder and it is a language model, leave out the decoder and it
is a bidirectional encoder.

Dimensions: see `regard.nn.attention`; `vocab` counts the tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import Settings
from regard.errors import ConfigError
from regard.models.protocols import Memory, State
from regard.nn.attention import Lookup, Mask, Retrieval
from regard.nn.blocks import Block, BlockOrder
from regard.nn.cache import Cache, KeyValues, Seen, StaticKeyValues, select_seen
from regard.nn.dropout import Dropout
from regard.nn.feedforward import Activation, FeedForward
from regard.nn.masks import document_mask, padding_mask, places_within
from regard.nn.multihead import MultiHeadAttention
from regard.nn.norms import Norm, make_norm
from regard.nn.positions import (
    ALiBi,
    Learned,
    Placement,
    Positions,
    RelativeBias,
    RelativeKeys,
    Rotary,
    Sinusoidal,
)
from regard.nn.shaped import ShapedLookup
from regard.nn.similarity import SimilarityName, make_similarity

_GPT2_STD = 0.02
_DEAD_BRANCHES = 4
"""Positions for each hypothesis that nobody descends from, which a tree puts up with."""
_SOURCE_ROOM = 32
"""Rooms for memories are multiples of this, so that one serves sources of about the same length."""

Initialization = Literal["glorot", "gpt2"]


class TransformerConfig(Settings):
    """The shape of a Transformer. The defaults are the base model of Vaswani et al. (2017)."""

    family: Literal["transformer"] = "transformer"
    num_layers: int = Field(default=6, ge=0)
    """Blocks in the encoder, and in the decoder."""
    encoder_layers: int | None = Field(default=None, ge=0)
    """Blocks in the encoder, where it is not num_layers; 0 leaves the encoder out."""
    decoder_layers: int | None = Field(default=None, ge=0)
    """Blocks in the decoder, where it is not num_layers; 0 leaves the decoder out."""
    model_dim: int = Field(default=512, ge=1)
    """Width of the residual stream."""
    num_heads: int = Field(default=8, ge=1)
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """Key/value heads that the query heads share (grouped-query attention); unset, each has its own."""
    feedforward_dim: int = Field(default=2048, ge=0)
    """Width of the hidden layer of each position's own network; 0 leaves the network out."""
    activation: Activation = "relu"
    """relu, gelu, gelu-tanh (its approximation), squared-relu, or swiglu (which has half as many weights again)."""
    norm: Norm = "layer"
    """layer, rms or none."""
    block: BlockOrder = "post-norm"
    """post-norm as in the paper; pre-norm, which trains without a long warm-up; or parallel."""
    residual: bool = True
    """Add what a sub-layer makes to what it was given."""
    value_projection: bool = True
    """Whether attention projects what it looks at before it averages it."""
    output_projection: bool = True
    """Whether attention projects what its heads have found."""
    shaped_attention: bool = False
    """Let self-attention start out as the identity, so that it needs no residual sum."""
    similarity: SimilarityName = "scaled-dot"
    """dot, scaled-dot, bilinear, additive, cosine, gaussian, mahalanobis or latent."""
    retrieval: Retrieval = "soft"
    """soft: average the values by their weights; hard: take the one with the best score."""
    attention_temperature: float = Field(default=1.0, gt=0.0)
    """Divides the scores of attention: nearer to 0, nearer to hard retrieval."""
    positions: Positions = "sinusoidal"
    """sinusoidal, learned, rotary, relative, alibi, shaw or none."""
    encoder_positions: Positions | None = None
    """Of the encoder, where they are not `positions`."""
    decoder_positions: Positions | None = None
    """Of the decoder, where they are not `positions`."""
    position_base: float = Field(default=10_000.0, gt=1.0)
    """The base L of sinusoidal and rotary positions."""
    context_length: int = Field(default=1024, ge=1)
    """The most positions a sequence may have where positions are learned."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """On the embeddings and on what each sub-layer adds to the residual stream."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """On the attention weights."""
    bias: bool = True
    """Whether linear layers add a bias."""
    tie_embeddings: bool = True
    """Use the token embedding, transposed, as the output projection."""
    scale_embeddings: bool = True
    """Multiply embeddings by the square root of model_dim."""
    query_key_norm: bool = False
    """Normalise queries and keys, so that the scores of attention cannot grow without bound."""
    initialization: Initialization = "glorot"
    """glorot; or gpt2: small normal numbers, smaller where a sub-layer adds to the residual stream."""

    @model_validator(mode="after")
    def _fits_together(self) -> "TransformerConfig":
        if self.model_dim % self.num_heads:
            raise ConfigError(f"model_dim must be a multiple of num_heads, got {self.model_dim=} and {self.num_heads=}")
        if self.num_heads % (self.num_key_value_heads or 1):
            raise ConfigError(
                "num_heads must be a multiple of num_key_value_heads, "
                f"got {self.num_heads=} and {self.num_key_value_heads=}"
            )
        schemes = self.position_schemes
        if "rotary" in schemes and self.head_dim % 2:
            raise ConfigError(
                "rotary positions need an even number of dimensions a head, "
                f"got {self.model_dim=} / {self.num_heads=} = {self.head_dim}"
            )
        if "sinusoidal" in schemes and self.model_dim % 2:
            raise ConfigError(f"sinusoidal positions need an even model_dim, got {self.model_dim=}")
        if not self.value_projection and (self.num_key_value_heads or self.num_heads) != self.num_heads:
            raise ConfigError(
                "without value_projection each head needs a slice of its own, "
                f"got {self.num_heads=} and {self.num_key_value_heads=}"
            )
        if self.encoder_depth + self.decoder_depth == 0:
            raise ConfigError("a Transformer needs layers in its encoder or in its decoder, got none in either")
        return self

    @property
    def position_schemes(self) -> Sequence[Positions]:
        """Of the encoder, where there is one, and of the decoder, where there is one."""
        schemes: list[Positions] = []
        if self.encoder_depth:
            schemes.append(self.encoder_positions or self.positions)
        if self.decoder_depth:
            schemes.append(self.decoder_positions or self.positions)
        return schemes

    @property
    def head_dim(self) -> int:
        return self.model_dim // self.num_heads

    @property
    def encoder_depth(self) -> int:
        return self.num_layers if self.encoder_layers is None else self.encoder_layers

    @property
    def decoder_depth(self) -> int:
        return self.num_layers if self.decoder_layers is None else self.decoder_layers


@dataclass
class TransformerState:
    """Each decoder block's keys and values so far, and its view of the encoder's output."""

    caches: list[KeyValues]
    seen: list[Seen] | None
    """As many rows as the batch has, or fewer, each of which serves as many rows that stand together."""

    def select(self, rows: Int[Tensor, " chosen"]) -> "TransformerState":
        caches = [cache.select(rows) for cache in self.caches]
        if self.seen is None:
            return TransformerState(caches, None)
        num_sharing = self.caches[0].keys.size(0) // self.seen[0].k.size(0)
        return TransformerState(caches, select_seen(self.seen, rows // num_sharing))

    def tree(self) -> "TransformerTree":
        """The same, ready for rows that branch into several hypotheses."""
        batch, length = self.caches[0].keys.size(0), self.caches[0].length
        depths = torch.arange(length, device=self.caches[0].keys.device).expand(batch, length)
        ancestors = torch.ones_like(depths, dtype=torch.bool)[:, None]
        return TransformerTree(self.caches, self.seen, ancestors, depths, length)

    def branches(self, width: int, capacity: int) -> "TransformerBranches":
        """Room for `width` hypotheses of each row, of up to `capacity` tokens."""
        like = self.caches[0].keys
        batch, heads, _, head = like.shape
        keys = like.new_zeros(batch, heads, capacity * width, head)
        return TransformerBranches(
            caches=[StaticKeyValues(keys.clone(), keys.clone()) for _ in self.caches],
            seen=None if self.seen is None else [each.room(_SOURCE_ROOM) for each in self.seen],
            ancestors=torch.zeros(batch, width, capacity * width, dtype=torch.bool, device=like.device),
            depths=(torch.arange(capacity * width, device=like.device) // width).expand(batch, -1),
            length=torch.zeros((), dtype=torch.long, device=like.device),
        )


@dataclass
class TransformerSlots:
    """Room for keys and values of fixed size; each row of the batch has a length of its own."""

    caches: list[StaticKeyValues]
    lengths: Int[Tensor, " batch"]
    """Positions of each row that are filled."""
    seen: list[Seen] | None

    @property
    def capacity(self) -> int:
        return self.caches[0].keys.size(2)

    def select(self, rows: Int[Tensor, " chosen"]) -> "TransformerSlots":
        caches = [
            StaticKeyValues(cache.keys.index_select(0, rows), cache.values.index_select(0, rows))
            for cache in self.caches
        ]
        seen = None if self.seen is None else [each.select(rows) for each in self.seen]
        return TransformerSlots(caches, self.lengths.index_select(0, rows), seen)

    def put(self, slot: int, state: State) -> None:
        assert isinstance(state, TransformerState)
        for own, new in zip(self.caches, state.caches, strict=True):
            own.keys[slot, :, : new.length] = new.keys[0, :, : new.length]
            own.values[slot, :, : new.length] = new.values[0, :, : new.length]
        self.lengths[slot] = state.caches[0].length
        for seen, new in zip(self.seen or (), state.seen or (), strict=True):
            seen.put(slot, new)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for cache in self.caches:
            cache.keys.copy_(cache.keys.index_select(0, rows))
            cache.values.copy_(cache.values.index_select(0, rows))
        self.lengths.copy_(self.lengths.index_select(0, rows))


@dataclass
class TransformerTree:
    """The hypotheses of each row, side by side, as a tree whose branches have their trunk in common.

    A step adds a position to each hypothesis, which sees the positions that it
    descends from. Where hypotheses change places, or one goes on as two, it is
    only written down anew who descends from whom: keys and values stay where
    they are. Those that nobody descends from are cleared away now and then.
    """

    caches: list[KeyValues]
    seen: list[Seen] | None
    ancestors: Bool[Tensor, "batch width key"]
    """The positions that each hypothesis descends from."""
    depths: Int[Tensor, "batch key"]
    """Where in its hypothesis a position stands."""
    length: int
    """Positions of each hypothesis."""

    @property
    def reach(self) -> int:
        """Positions of each hypothesis once it has grown."""
        return self.length + 1

    def grow(self) -> tuple[list[KeyValues], Int[Tensor, "batch width"]]:
        """Add a position to each hypothesis; where its keys and values go, and where it stands."""
        batch, width, _ = self.ancestors.shape
        own = torch.eye(width, dtype=torch.bool, device=self.depths.device)
        positions = torch.full((batch, width), self.length, device=self.depths.device)
        self.ancestors = torch.cat([self.ancestors, own.expand(batch, width, width)], dim=2)
        self.depths = torch.cat([self.depths, positions], dim=1)
        self.length += 1
        return self.caches, positions

    def select(self, rows: Int[Tensor, " chosen"]) -> "TransformerTree":
        """The tree of these hypotheses, of each row as many, standing together. This tree is used up."""
        batch, width, num_places = self.ancestors.shape
        chosen = (rows // width).unique_consecutive()
        ancestors = self.ancestors.flatten(0, 1).index_select(0, rows).unflatten(0, (len(chosen), -1))
        caches, seen, depths = self.caches, self.seen, self.depths
        if not torch.equal(chosen, torch.arange(batch, device=rows.device)):
            caches = [cache.select(chosen) for cache in caches]
            seen = None if seen is None else [each.select(chosen) for each in seen]
            depths = depths.index_select(0, chosen)
        tree = TransformerTree(caches, seen, ancestors, depths, self.length)
        is_alive = ancestors.any(dim=1)
        most = int(is_alive.sum(dim=1).max())
        if num_places - most > _DEAD_BRANCHES * ancestors.size(1):
            tree._clear(is_alive.byte().argsort(dim=1, descending=True, stable=True)[:, :most])
        return tree

    def _clear(self, places: Int[Tensor, "batch kept"]) -> None:
        for cache in self.caches:
            cache.keep(places)
        self.ancestors = self.ancestors.gather(2, places[:, None].expand(-1, self.ancestors.size(1), -1))
        self.depths = self.depths.gather(1, places)


@dataclass
class TransformerBranches:
    """A `TransformerTree` of fixed size, which a step changes in place, so that it can be recorded and replayed."""

    caches: list[StaticKeyValues]
    """Of step t, hypothesis b is at place t * width + b."""
    seen: list[Seen] | None
    ancestors: Bool[Tensor, "batch width key"]
    depths: Int[Tensor, "batch key"]
    length: Int[Tensor, ""]
    """Steps taken."""

    @property
    def reach(self) -> int:
        """Positions of the longest hypothesis there is room for."""
        return self.ancestors.size(2) // self.ancestors.size(1)

    def fits(self, state: State) -> bool:
        """Whether it has as many rows as `state`, and about as much room for its memory as that needs."""
        assert isinstance(state, TransformerState)
        if self.ancestors.size(0) != state.caches[0].keys.size(0) or (self.seen is None) != (state.seen is None):
            return False
        pairs = zip(self.seen or (), state.seen or (), strict=True)
        return all(0 <= own.k.size(2) - new.k.size(2) < _SOURCE_ROOM for own, new in pairs)

    def fill(self, state: State) -> None:
        """Start anew from `state`, before the first token."""
        assert isinstance(state, TransformerState)
        assert state.caches[0].length == 0, "hypotheses branch off behind their first token"
        for own, new in zip(self.seen or (), state.seen or (), strict=True):
            own.fill(new)
        self.ancestors.fill_(False)
        self.length.fill_(0)

    def grow(self) -> tuple[list[StaticKeyValues], Int[Tensor, "batch width"]]:
        """Add a position to each hypothesis; where its keys and values go, and where it stands."""
        batch, width, _ = self.ancestors.shape
        places = self.length * width + torch.arange(width, device=self.length.device)
        places = places.expand(batch, width)
        self.ancestors.scatter_(2, places[:, :, None], True)
        positions = self.length.repeat(batch, width)
        self.length.add_(1)
        return [cache.at(places) for cache in self.caches], positions

    def select(self, rows: Int[Tensor, " chosen"]) -> "TransformerBranches":
        """The same for these hypotheses, of each row all or none."""
        width = self.ancestors.size(1)
        chosen = rows[::width] // width
        caches = [
            StaticKeyValues(cache.keys.index_select(0, chosen), cache.values.index_select(0, chosen))
            for cache in self.caches
        ]
        seen = None if self.seen is None else [each.select(chosen) for each in self.seen]
        ancestors = self.ancestors.flatten(0, 1).index_select(0, rows).unflatten(0, (-1, width))
        return TransformerBranches(caches, seen, ancestors, self.depths[: len(chosen)], self.length.clone())

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let hypothesis i go on where `rows[i]` stands, which is one of the same row."""
        self.ancestors.copy_(self.ancestors.flatten(0, 1).index_select(0, rows).view_as(self.ancestors))


class Transformer(nn.Module):
    """Token ids in, scores for the next token out.

    Both sides share one vocabulary and one table of embeddings.
    """

    def __init__(self, config: TransformerConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.model_dim)
        has_encoder, has_decoder = config.encoder_depth > 0, config.decoder_depth > 0
        self.encoder = Stack(config, config.encoder_depth) if has_encoder else None
        self.decoder = (
            Stack(config, config.decoder_depth, is_causal=True, has_cross_attention=has_encoder)
            if has_decoder
            else None
        )
        self.output = nn.Linear(config.model_dim, vocab_size, bias=False) if has_decoder else None
        self.apply(_initialize)
        if config.initialization == "gpt2":
            _initialize_small(self, config)
        if self.output is not None and config.tie_embeddings:
            self.output.weight = self.embedding.weight

    def forward(
        self,
        target: Int[Tensor, "batch time"],
        source: Int[Tensor, "batch source"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch time vocab"]:
        """The scores after each prefix of `target`, given `source` where there is an encoder."""
        return self.decode(target, None if source is None else self.encode(source, lengths))

    def encode(self, source: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"] | None = None) -> Memory:
        mask = None if lengths is None else padding_mask(lengths, source.size(1))
        assert self.encoder is not None, "this Transformer has no encoder"
        return Memory(self.encoder(self._embed(source), mask), mask)

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
        # Padding needs no mask here: it stands behind the end, where causal attention cannot look.
        decoder = self._decoder()
        mask, positions = (None, None) if documents is None else (document_mask(documents), places_within(documents))
        return decoder(self._embed(target), mask, seen=decoder.see(memory), positions=positions)

    def scores(self, states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch vocab"]:
        assert self.output is not None
        return self.output(states)

    def start(self, memory: Memory | None = None, *, batch_size: int = 1) -> TransformerState:
        decoder = self._decoder()
        if memory is not None:
            batch_size = memory.states.size(0)
        config = self.config
        heads = config.num_key_value_heads or config.num_heads
        like = self.embedding.weight.new_empty(batch_size, heads, 0, config.head_dim)
        if memory is not None:
            like = like.to(memory.states.dtype)
        return TransformerState([KeyValues.empty(like) for _ in decoder.blocks], decoder.see(memory))

    def slots(self, num_slots: int, capacity: int, *, source_length: int = 0) -> TransformerSlots:
        config, weight = self.config, self.embedding.weight
        shared = config.num_key_value_heads or config.num_heads

        def room(length: int) -> tuple[Tensor, Tensor]:
            keys = weight.new_zeros(num_slots, shared, length, config.head_dim)
            return keys, torch.zeros_like(keys)

        blocks = self._decoder().blocks
        nothing = torch.zeros(num_slots, 1, 1, source_length, dtype=torch.bool, device=weight.device)
        seen = [Seen(*room(source_length), nothing.clone()) for _ in blocks] if source_length else None
        lengths = torch.zeros(num_slots, dtype=torch.long, device=weight.device)
        return TransformerSlots([StaticKeyValues(*room(capacity)) for _ in blocks], lengths, seen)

    def step(self, tokens: Int[Tensor, "batch new"], state: State) -> tuple[Float[Tensor, "batch new vocab"], State]:
        decoder = self._decoder()
        if isinstance(state, TransformerState):
            return self.scores(decoder(self._embed(tokens), seen=state.seen, caches=state.caches)), state
        if isinstance(state, TransformerTree | TransformerBranches):
            return self._step_of_branches(tokens, state), state
        assert isinstance(state, TransformerSlots)
        num_new, capacity = tokens.size(1), state.capacity
        # A row that is full, because nobody uses it, writes over its last position for ever.
        places = (state.lengths[:, None] + torch.arange(num_new, device=tokens.device)).clamp(max=capacity - 1)
        mask = torch.arange(capacity, device=tokens.device) <= places[:, None, :, None]
        caches = [cache.at(places) for cache in state.caches]
        scores = self.scores(decoder(self._embed(tokens), mask, seen=state.seen, caches=caches, positions=places))
        state.lengths.add_(num_new).clamp_(max=capacity)
        return scores, state

    def _step_of_branches(
        self, tokens: Int[Tensor, "rows 1"], state: TransformerTree | TransformerBranches
    ) -> Float[Tensor, "rows 1 vocab"]:
        """The hypotheses of a row stand side by side, as positions do that follow one another."""
        decoder = self._decoder()
        decoder.require_reach(state.reach)
        caches, positions = state.grow()
        states = decoder(
            self._embed(tokens.view(positions.shape)),
            state.ancestors[:, None],
            seen=state.seen,
            caches=caches,
            positions=positions,
            key_positions=state.depths,
        )
        return self.scores(states).view(tokens.size(0), 1, -1)

    def _embed(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time model"]:
        scale = math.sqrt(self.config.model_dim) if self.config.scale_embeddings else 1.0
        x = self.embedding(tokens) * scale
        # The residual stream has the precision of the products: it is what a step reads and writes most.
        kind = x.device.type
        return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x

    def _decoder(self) -> "Stack":
        assert self.decoder is not None, "this Transformer has no decoder"
        return self.decoder


class Stack(nn.Module):
    """Blocks one upon another, with the positions they share."""

    def __init__(
        self, config: TransformerConfig, num_layers: int, *, is_causal: bool = False, has_cross_attention: bool = False
    ) -> None:
        super().__init__()
        norm = partial(make_norm, config.norm, config.model_dim)
        self.context_length = config.context_length
        own = config.decoder_positions if is_causal else config.encoder_positions
        self.positions = make_positions(config, own or config.positions, is_causal=is_causal)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(
                make_attention(config, is_causal=is_causal),
                FeedForward(config.model_dim, config.feedforward_dim, activation=config.activation, bias=config.bias)
                if config.feedforward_dim
                else None,
                cross_attention=make_attention(config, is_cross=True) if has_cross_attention else None,
                make_norm=norm,
                order=config.block,
                has_residual=config.residual,
                dropout=config.dropout,
            )
            for _ in range(num_layers)
        )
        self.final_norm = None if config.block == "post-norm" else norm()

    def forward(
        self,
        x: Float[Tensor, "batch query model"],
        mask: Mask | None = None,
        *,
        seen: Sequence[Seen] | None = None,
        caches: Sequence[Cache] | None = None,
        positions: Int[Tensor, "batch query"] | None = None,
        key_positions: Int[Tensor, "batch key"] | None = None,
    ) -> Float[Tensor, "batch query model"]:
        """The states of the last block; with `caches`, `x` holds the newest positions only.

        `positions` are where the rows of `x` stand, and `key_positions` what the
        caches have room for, where that is not one behind the other.
        """
        placement = self._place(x, caches[0] if caches else None, positions, key_positions)
        if placement.added is not None:
            x = x + placement.added.to(x.dtype)
        x = self.dropout(x)
        for index, block in enumerate(self.blocks):
            x = block(x, mask, placement, seen=seen[index] if seen else None, cache=caches[index] if caches else None)
        return x if self.final_norm is None else self.final_norm(x)

    def see(self, memory: Memory | None) -> list[Seen] | None:
        """The encoder's output as each block's cross-attention sees it, computed once."""
        if memory is None:
            return None
        return [block.see(memory.states, memory.mask) for block in self.blocks if isinstance(block, Block)]

    def require_reach(self, num_positions: int) -> None:
        """Raise where there are not positions enough to be told apart."""
        if isinstance(self.positions, Learned) and num_positions > self.context_length:
            raise ConfigError(
                f"learned positions reach to context_length={self.context_length}, "
                f"the sequence has {num_positions} positions"
            )

    def _place(
        self, x: Tensor, cache: Cache | None, positions: Tensor | None, key_positions: Tensor | None
    ) -> Placement:
        if self.positions is None:
            return Placement()
        if key_positions is not None:
            return self.positions(positions, key_positions)
        start = cache.length if isinstance(cache, KeyValues) else 0
        end = cache.keys.size(2) if isinstance(cache, StaticKeyValues) else start + x.size(1)
        self.require_reach(end)
        everywhere = torch.arange(end, device=x.device)
        if positions is None:
            return self.positions(everywhere[start:], everywhere)
        return self.positions(positions, positions if cache is None else everywhere.expand(x.size(0), -1))


def make_positions(config: TransformerConfig, positions: Positions, *, is_causal: bool) -> nn.Module | None:
    """The module that tells the positions of a stack apart, or None."""
    match positions:
        case "sinusoidal":
            return Sinusoidal(config.model_dim, base=config.position_base)
        case "learned":
            return Learned(config.context_length, config.model_dim)
        case "rotary":
            return Rotary(config.head_dim, base=config.position_base)
        case "relative":
            return RelativeBias(config.num_heads, is_causal=is_causal)
        case "alibi":
            return ALiBi(config.num_heads)
        case "shaw":
            return RelativeKeys(config.head_dim)
        case "none":
            return None


def make_attention(config: TransformerConfig, *, is_causal: bool = False, is_cross: bool = False) -> MultiHeadAttention:
    """One attention of a block; only a look among one's own positions can be shaped."""

    def make_lookup(head_dim: int, num_shared: int) -> Lookup | ShapedLookup:
        lookup = Lookup(
            make_similarity(config.similarity, head_dim, num_shared),
            temperature=config.attention_temperature,
            retrieval=config.retrieval,
            dropout=config.attention_dropout,
            is_causal=is_causal,
        )
        return ShapedLookup(lookup, config.num_heads) if config.shaped_attention and not is_cross else lookup

    return MultiHeadAttention(
        config.model_dim,
        config.num_heads,
        num_key_value_heads=config.num_key_value_heads,
        make_lookup=make_lookup,
        bias=config.bias,
        has_norm=config.query_key_norm,
        has_values=config.value_projection,
        has_output=config.output_projection,
    )


def _initialize(module: nn.Module) -> None:
    """Glorot's uniform weights, zero biases; embeddings of length about one once scaled; no queries where shaped."""
    match module:
        case MultiHeadAttention(lookup=ShapedLookup()):
            nn.init.zeros_(module.query.weight)
        case nn.Linear():
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        case nn.Embedding():
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


def _initialize_small(model: Transformer, config: TransformerConfig) -> None:
    """Small normal numbers; what sub-layers add is smaller the more there are (Radford et al., 2019, section 2.3)."""
    num_added = 2 * max(config.encoder_depth, config.decoder_depth)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_GPT2_STD)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention | FeedForward) and isinstance(module.output, nn.Linear):
            nn.init.normal_(module.output.weight, std=_GPT2_STD / math.sqrt(num_added))
