"""The Transformer, as encoder, as decoder, or as both.

Vaswani et al., "Attention Is All You Need" (2017). https://arxiv.org/abs/1706.03762

GPT-2, Llama, BERT, T5, BART, Marian and the original are settings of this one
file: leave out the encoder and it is a language model, leave out the decoder
and it is a bidirectional encoder, leave out both and vectors of tokens are left.

Dimensions: see `regard.nn.attention`; `vocab` counts the tokens.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.protocols import Memory, State
from regard.models.transformer_config import TransformerConfig
from regard.models.transformer_states import TransformerBranches, TransformerSlots, TransformerState, TransformerTree
from regard.nn.attention import Lookup, Mask
from regard.nn.blocks import Block
from regard.nn.cache import Cache, KeyValues, Seen, StaticKeyValues
from regard.nn.dropout import Dropout, TokenDropout
from regard.nn.feedforward import FeedForward
from regard.nn.masks import document_mask, padding_mask, places_within
from regard.nn.multihead import MultiHeadAttention
from regard.nn.norms import make_norm
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
from regard.nn.similarity import make_similarity

_GPT2_STD = 0.02


class Transformer(nn.Module):
    """Token ids in, scores for the next token out.

    Both sides share one vocabulary and one table of embeddings.
    """

    def __init__(self, config: TransformerConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.model_dim)
        self.token_dropout = TokenDropout(vocab_size, config.token_dropout)
        self.segments = nn.Embedding(config.num_segments, config.model_dim) if config.num_segments else None
        has_encoder, has_decoder = config.encoder_depth > 0, config.decoder_depth > 0
        self.encoder = Stack(config, config.encoder_depth) if has_encoder else None
        self.decoder = (
            Stack(config, config.decoder_depth, is_causal=True, has_cross_attention=has_encoder)
            if has_decoder
            else None
        )
        self.output = nn.Linear(config.model_dim, vocab_size, bias=config.output_bias) if has_decoder else None
        initialize(self, config)
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

    def encode(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
        *,
        added: Float[Tensor, "batch time model"] | None = None,
    ) -> Memory:
        """Read `source`; `segments` say of which kind each position is, where kinds are told apart."""
        mask = None if lengths is None else padding_mask(lengths, source.size(1))
        assert self.encoder is not None or self.decoder is None, "this Transformer has no encoder"
        x = self._embed(source)
        if added is not None:
            x = x + added.to(x.dtype)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(source) if segments is None else segments).to(x.dtype)
        else:
            assert segments is None, "this Transformer does not tell segments apart"
        return Memory(x if self.encoder is None else self.encoder(x, mask), mask)

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
        x = self.token_dropout(self.embedding(tokens) * scale, tokens)
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
        norm = partial(make_norm, config.norm, config.model_dim, epsilon=config.norm_epsilon)
        self.context_length = config.context_length
        own = config.decoder_positions if is_causal else config.encoder_positions
        self.positions = make_positions(config, own or config.positions, is_causal=is_causal)
        self.embedding_norm = norm() if config.embedding_norm else None
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
        self.scale = config.model_dim**-0.5 if config.scale_output and is_causal else 1.0

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
        x = self.dropout(x if self.embedding_norm is None else self.embedding_norm(x))
        for index, block in enumerate(self.blocks):
            x = block(x, mask, placement, seen=seen[index] if seen else None, cache=caches[index] if caches else None)
        x = x if self.final_norm is None else self.final_norm(x)
        return x if self.scale == 1.0 else x * self.scale

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
            return Rotary(
                config.head_dim,
                base=config.position_base,
                stretch=config.position_stretch,
                stretch_from=config.position_stretch_from,
            )
        case "relative":
            return RelativeBias(
                config.num_heads,
                is_causal=is_causal,
                num_buckets=config.position_buckets,
                max_distance=config.position_distance,
            )
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
        query_width=config.query_width,
        make_lookup=make_lookup,
        bias=config.bias,
        projection_bias=config.attention_bias,
        has_norm=config.query_key_norm,
        norm_epsilon=config.norm_epsilon,
        has_values=config.value_projection,
        has_output=config.output_projection,
    )


def initialize(model: nn.Module, config: TransformerConfig) -> None:
    """Give the weights of a fresh model the numbers to start from."""
    model.apply(_initialize)
    if config.initialization == "gpt2":
        _initialize_small(model, config)


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


def _initialize_small(model: nn.Module, config: TransformerConfig) -> None:
    """Small normal numbers; what sub-layers add is smaller the more there are (Radford et al., 2019, section 2.3)."""
    num_added = 2 * max(config.encoder_depth, config.decoder_depth)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_GPT2_STD)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention | FeedForward) and isinstance(module.output, nn.Linear):
            nn.init.normal_(module.output.weight, std=_GPT2_STD / math.sqrt(num_added))
