"""The Transformer, as an encoder, a decoder, or both.

Vaswani et al., "Attention Is All You Need" (2017). https://arxiv.org/abs/1706.03762

GPT-2, Llama, BERT, T5, BART, Marian and the original model are settings of this
file. Without its encoder it is a causal language model, without its decoder a
bidirectional encoder, and without both a table of token embeddings.

Dimensions: see `regard.nn.attention`; `vocab` tokens.
"""

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.base import ForeignEncoder, SequenceModel
from regard.models.family import ModelConfig, make_lookup
from regard.models.protocols import DecoderState, EncoderOutput, StaticBeamState
from regard.models.transformer.config import SelfAttentionKind, TransformerConfig
from regard.models.transformer.states import BeamTreeCache, StaticBeamCache, StaticCache, TransformerState
from regard.nn.attention import Bias, HeadLookup, Mask, MultiHeadAttention, ShapedLookup
from regard.nn.blocks import Block
from regard.nn.dropout import Dropout, TokenDropout, branch_probabilities
from regard.nn.feedforward import FeedForward
from regard.nn.inference import Quantization
from regard.nn.kv_cache import (
    CrossAttentionKV,
    GrowingCache,
    KVCache,
    LayerCache,
    LinearCache,
    SparseKVCache,
    SparseStaticKVCache,
    StaticKVCache,
    StaticLayerCache,
)
from regard.nn.linear_attention import LinearLookup
from regard.nn.masks import SparsePattern, document_mask, padding_mask, positions_in_document
from regard.nn.norms import make_norm
from regard.nn.positions import (
    ALiBi,
    Learned,
    PositionEncoding,
    Positions,
    RelativeBias,
    RelativeKeys,
    Rotary,
    Sinusoidal,
)
from regard.nn.similarity import make_similarity
from regard.nn.sparse_attention import LowRankLookup, SparseLookup

_GPT2_STD = 0.02


@runtime_checkable
class StepBackend(Protocol):
    """A fast implementation of `Transformer.step` for some states."""

    def supports(self, tokens: Tensor, state: DecoderState) -> bool:
        """Return whether `step` can be called with these."""
        ...

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Return the logits that `Transformer.step` returns; `state` is changed in place."""
        ...


class Transformer(SequenceModel[TransformerConfig]):
    """Token ids in, logits for the next token out."""

    Config: ClassVar[type[ModelConfig]] = TransformerConfig

    def __init__(self, config: TransformerConfig, vocab_size: int, *, source_vocab_size: int | None = None) -> None:
        super().__init__(config, vocab_size, source_vocab_size=source_vocab_size)
        self.token_dropout = TokenDropout(config.token_dropout)
        self.segments = nn.Embedding(config.num_segments, config.model_dim) if config.num_segments else None
        has_encoder, has_decoder = config.encoder_depth > 0, config.decoder_depth > 0
        self.encoder = TransformerStack(config, config.encoder_depth) if has_encoder else None
        self.decoder = (
            TransformerStack(config, config.decoder_depth, is_causal=True, has_cross_attention=has_encoder)
            if has_decoder
            else None
        )
        self.output = nn.Linear(config.model_dim, vocab_size, bias=config.output_bias) if has_decoder else None
        self.backend: StepBackend | None = None
        initialize_transformer(self, config)
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
        if self.encoder is None and self.decoder is not None:
            return self.encode_causally(source, lengths, extra_embeddings, documents)
        mask = None if lengths is None else padding_mask(lengths, source.size(1))
        x = self._embed(source, self.source_embedding or self.embedding)
        if extra_embeddings is not None:
            x = x + extra_embeddings.to(x.dtype)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(source) if segments is None else segments).to(x.dtype)
        if self.encoder is None:
            return EncoderOutput(x, mask)
        if documents is None:
            return EncoderOutput(self.encoder(x, mask), mask)
        same = documents[:, None, :, None] == documents[:, None, None, :]
        own = self.encoder(x, same if mask is None else same & mask, positions=positions_in_document(documents))
        return EncoderOutput(own, mask)

    def hidden_states(
        self,
        tokens: Int[Tensor, "batch time"],
        encoder_output: EncoderOutput | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        # Padding needs no mask here: it follows the end, and causal attention does not reach it.
        decoder = self._decoder_for(encoder_output)
        mask, positions = (
            (None, None) if documents is None else (document_mask(documents), positions_in_document(documents))
        )
        x = self._embed(tokens, self.embedding)
        return decoder(x, mask, cross_kvs=decoder.project_memory(encoder_output), positions=positions)

    def replace_encoder(self) -> "Transformer":
        self.encoder = ForeignEncoder()
        return self

    def initial_state(self, encoder_output: EncoderOutput | None = None, *, batch_size: int = 1) -> TransformerState:
        decoder, config = self._decoder_for(encoder_output), self.config
        heads = config.num_key_value_heads or config.num_heads
        like = self.embedding.weight.new_empty(batch_size, heads, 0, config.head_dim)
        if encoder_output is not None:
            hidden_states = encoder_output.hidden_states
            like = hidden_states.new_empty(hidden_states.size(0), heads, 0, config.head_dim)
        return TransformerState(decoder.empty_caches(like), decoder.project_memory(encoder_output))

    def static_state(self, num_slots: int, capacity: int, *, source_length: int = 0) -> StaticCache:
        config, weight = self.config, self.embedding.weight
        shared = config.num_key_value_heads or config.num_heads
        decoder = self.decoder_stack()
        keys = weight.new_zeros(num_slots, shared, source_length, config.head_dim)
        masked = torch.zeros(num_slots, 1, 1, source_length, dtype=torch.bool, device=weight.device)
        cross_kvs = [CrossAttentionKV(keys.clone(), keys.clone(), masked.clone()) for _ in decoder.blocks]
        lengths = torch.zeros(num_slots, dtype=torch.long, device=weight.device)
        caches = decoder.static_caches(weight.new_empty(num_slots, shared, 0, config.head_dim), capacity)
        return StaticCache(caches, lengths, cross_kvs if source_length else None, capacity)

    def beam_state(self, state: DecoderState) -> DecoderState:
        # On a GPU the tree would synchronize at each step to count its entries.
        if not isinstance(state, TransformerState) or self.device.type != "cpu":
            return state
        return state.to_tree() or state

    def static_beam_state(self, state: DecoderState, beam_size: int, capacity: int) -> StaticBeamState | None:
        limit = self.config.max_target_positions
        if not isinstance(state, TransformerState) or (limit is not None and capacity > limit):
            return None
        return state.to_static_beams(beam_size, capacity)

    def for_inference(self, *, quantization: Quantization | None = None) -> "Transformer":
        # Imported here: the backends import this module, and one of them Triton.
        from regard.models.transformer.inference import make_backend

        model = copy.copy(super().for_inference(quantization=quantization))
        assert isinstance(model, Transformer)
        model.backend = make_backend(model)
        return model

    def step(
        self, tokens: Int[Tensor, "batch new"], state: DecoderState
    ) -> tuple[Float[Tensor, "batch new vocab"], DecoderState]:
        if self.backend is not None and self.backend.supports(tokens, state):
            return self.backend.step(tokens, state), state
        decoder = self.decoder_stack()
        if isinstance(state, BeamTreeCache | StaticBeamCache):
            return self._step_of_beams(tokens, state), state
        x = self._embed(tokens, self.embedding)
        if isinstance(state, TransformerState):
            return self.logits(decoder(x, cross_kvs=state.cross_kvs, caches=state.caches)), state
        assert isinstance(state, StaticCache)
        num_new, capacity = tokens.size(1), state.capacity
        if num_new > 1 and not decoder.is_full:
            # A position may overwrite one that those before it attend to.
            return torch.cat([self.step(token, state)[0] for token in tokens.split(1, dim=1)], dim=1), state
        # An unused row that is full overwrites its last position.
        indices = (state.lengths[:, None] + torch.arange(num_new, device=tokens.device)).clamp(max=capacity - 1)
        every = torch.arange(capacity, device=tokens.device)
        mask = every <= indices[:, None, :, None]
        caches = [cache.at(indices) for cache in state.caches]
        decoder.require_positions(capacity)
        key_positions = every.expand(tokens.size(0), -1)
        hidden_states = decoder(
            x, mask, cross_kvs=state.cross_kvs, caches=caches, positions=indices, key_positions=key_positions
        )
        logits = self.logits(hidden_states)
        state.lengths.add_(num_new).clamp_(max=capacity)
        return logits, state

    def _step_of_beams(
        self, tokens: Int[Tensor, "rows 1"], state: BeamTreeCache | StaticBeamCache
    ) -> Float[Tensor, "rows 1 vocab"]:
        """Return the logits of hypotheses; those of a row are processed as consecutive positions of one sequence."""
        decoder = self.decoder_stack()
        decoder.require_positions(state.max_length)
        caches, positions = state.grow()
        hidden_states = decoder(
            self._embed(tokens.view(positions.shape), self.embedding),
            state.ancestors[:, None],
            cross_kvs=state.cross_kvs,
            caches=caches,
            positions=positions,
            key_positions=state.depths,
        )
        return self.logits(hidden_states).view(tokens.size(0), 1, -1)

    def _embed(self, tokens: Int[Tensor, "batch time"], embedding: nn.Embedding) -> Float[Tensor, "batch time model"]:
        scale = math.sqrt(self.config.model_dim) if self.config.scale_embeddings else 1.0
        x = self.token_dropout(embedding(tokens) * scale, tokens, embedding.num_embeddings)
        # The residual stream has the dtype of the matrix products: it is what a step reads and writes most.
        kind = x.device.type
        return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x

    def _decoder_for(self, encoder_output: EncoderOutput | None) -> "TransformerStack":
        self.require_source(encoder_output is not None)
        return self.decoder_stack()

    def decoder_stack(self) -> "TransformerStack":
        """Return the decoder."""
        assert isinstance(self.decoder, TransformerStack)
        return self.decoder


class TransformerStack(nn.Module):
    """A stack of blocks and their position encoding."""

    def __init__(
        self, config: TransformerConfig, num_layers: int, *, is_causal: bool = False, has_cross_attention: bool = False
    ) -> None:
        super().__init__()
        norm = partial(make_norm, config.norm, config.model_dim, epsilon=config.norm_epsilon)
        self.context_length = config.context_length
        own = config.decoder_positions if is_causal else config.encoder_positions
        kinds = config.attention_kinds(num_layers, is_causal=is_causal)
        self.patterns = [config.sparse_pattern(kind, is_causal=is_causal) for kind in kinds]
        self.is_full = {*kinds} <= {"full"}
        self.positions = make_position_encoding(config, own or config.positions, is_causal=is_causal)
        self.embedding_norm = norm() if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(
                make_attention(config, kind=kind, is_causal=is_causal),
                FeedForward(config.model_dim, config.feedforward_dim, activation=config.activation, bias=config.bias)
                if config.feedforward_dim
                else None,
                cross_attention=make_attention(config, is_cross=True) if has_cross_attention else None,
                make_norm=norm,
                order=config.block,
                has_residual=config.residual,
                dropout=config.dropout,
                stochastic_depth=probability,
            )
            for kind, probability in zip(kinds, branch_probabilities(config.stochastic_depth, num_layers), strict=True)
        )
        self.final_norm = None if config.block == "post-norm" else norm()
        self.scale = config.model_dim**-0.5 if config.scale_output and is_causal else 1.0

    def forward(
        self,
        x: Float[Tensor, "batch query model"],
        mask: Mask | None = None,
        *,
        cross_kvs: Sequence[CrossAttentionKV] | None = None,
        caches: Sequence[LayerCache] | None = None,
        positions: Int[Tensor, "batch query"] | None = None,
        key_positions: Int[Tensor, "batch key"] | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch query model"]:
        """Return the hidden states of the last block; with `caches`, `x` are the newest positions only.

        `positions` are those of the rows of `x`, and `key_positions` those of the
        entries of the caches, where they are not consecutive. A `bias` is added to
        the attention scores of every block, beside that of the positions.
        """
        encoding = self._encode_positions(x, caches[0] if caches else None, positions, key_positions)
        if bias is not None:
            encoding = encoding._replace(bias=bias if encoding.bias is None else encoding.bias + bias)
        if encoding.embeddings is not None:
            x = x + encoding.embeddings.to(x.dtype)
        x = self.dropout(x if self.embedding_norm is None else self.embedding_norm(x))
        for i, block in enumerate(self.blocks):
            cross_kv, cache = cross_kvs[i] if cross_kvs else None, caches[i] if caches else None
            if (pattern := self.patterns[i]) is None:
                x = block(x, mask, encoding, cross_kv=cross_kv, cache=cache)
            else:
                own_mask, own_encoding = self._restrict(pattern, mask, encoding, cache, positions, x)
                x = block(x, own_mask, own_encoding, cross_kv=cross_kv, cache=cache)
        x = x if self.final_norm is None else self.final_norm(x)
        return x if self.scale == 1.0 else x * self.scale

    def project_memory(self, encoder_output: EncoderOutput | None) -> list[CrossAttentionKV] | None:
        """Compute the keys and values of the encoder's output for each block."""
        if encoder_output is None:
            return None
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return [block.project_memory(encoder_output.hidden_states, encoder_output.mask) for block in blocks]

    def empty_caches(self, like: Float[Tensor, "batch heads 0 head"]) -> list[GrowingCache]:
        """Return caches without positions, that of each block by its kind of attention."""
        return [_empty_cache(block, pattern, like) for block, pattern in self._layers()]

    def static_caches(self, like: Float[Tensor, "batch heads 0 head"], capacity: int) -> list[StaticLayerCache]:
        """Return caches for up to `capacity` positions, that of each block by its kind of attention."""
        return [_static_cache(block, pattern, like, capacity) for block, pattern in self._layers()]

    def _layers(self) -> list[tuple[Block, SparsePattern | None]]:
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return list(zip(blocks, self.patterns, strict=True))

    def _restrict(
        self,
        pattern: SparsePattern,
        mask: Mask | None,
        encoding: PositionEncoding,
        cache: LayerCache | None,
        positions: Tensor | None,
        x: Float[Tensor, "batch query model"],
    ) -> tuple[Bool[Tensor, "#rows #heads #query entries"] | None, PositionEncoding]:
        """Return the mask and the position encoding of a block with a sparse pattern.

        Without a cache, the block applies the pattern by itself, unless the mask has one row per query.
        """
        if isinstance(cache, SparseStaticKVCache):
            assert positions is not None, "a static cache has them"
            queries, keys = positions, cache.key_positions()
        elif isinstance(cache, SparseKVCache) and cache.length:
            keys = cache.key_positions(x.size(1)).to(x.device)
            queries = keys[-x.size(1) :]
        elif mask is None or mask.size(2) == 1:
            return mask, encoding
        else:
            queries = torch.arange(x.size(1), device=x.device) if positions is None else positions
            own = pattern.mask(queries, queries)
            return mask & (own[:, None] if own.dim() == 3 else own), encoding
        own = pattern.mask(queries, keys)
        if self.positions is not None and (encoding.bias is not None or encoding.relative_keys is not None):
            # Only some of the keys are stored.
            encoding = self.positions(queries, keys)
        return own[:, None] if own.dim() == 3 else own[None, None], encoding

    def require_positions(self, num_positions: int) -> None:
        """Raise a `ConfigError` if positions are learned for fewer than `num_positions`."""
        if isinstance(self.positions, Learned) and num_positions > self.context_length:
            raise ConfigError(
                f"positions are learned up to context_length={self.context_length}, "
                f"the sequence has {num_positions} positions"
            )

    def _encode_positions(
        self,
        x: Tensor,
        cache: LayerCache | None,
        positions: Tensor | None,
        key_positions: Tensor | None,
    ) -> PositionEncoding:
        if self.positions is None:
            return PositionEncoding()
        if key_positions is not None:
            return self.positions(positions, key_positions)
        start = 0 if cache is None or isinstance(cache, StaticKVCache | SparseStaticKVCache) else cache.length
        end = cache.keys.size(2) if isinstance(cache, StaticKVCache) else start + x.size(1)
        self.require_positions(end)
        every = torch.arange(end, device=x.device)
        if positions is None:
            return self.positions(every[start:], every)
        return self.positions(positions, positions if cache is None else every.expand(x.size(0), -1))


def _empty_cache(
    block: Block, pattern: SparsePattern | None, like: Float[Tensor, "batch heads 0 head"]
) -> GrowingCache:
    if isinstance(block.attention.lookup, LinearLookup):
        return LinearCache.zeros(like)
    return KVCache.empty(like) if pattern is None else SparseKVCache.empty(like, pattern)


def _static_cache(
    block: Block, pattern: SparsePattern | None, like: Float[Tensor, "batch heads 0 head"], capacity: int
) -> StaticLayerCache:
    if isinstance(block.attention.lookup, LinearLookup):
        return LinearCache.zeros(like, is_static=True)
    if pattern is not None:
        return SparseStaticKVCache.zeros(like, pattern, capacity)
    keys = like.new_zeros(like.size(0), like.size(1), capacity, like.size(3))
    return StaticKVCache(keys, torch.zeros_like(keys))


def make_position_encoding(config: TransformerConfig, positions: Positions, *, is_causal: bool) -> nn.Module | None:
    """Return the position encoding of a stack, or None."""
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
                stretch_by=config.position_stretch_by or "llama3",
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


def make_attention(
    config: TransformerConfig, *, kind: SelfAttentionKind = "full", is_causal: bool = False, is_cross: bool = False
) -> MultiHeadAttention:
    """Return one attention layer of a block; only self-attention can be shaped, or of another kind than full."""
    if kind == "low-rank" and is_causal:
        raise ConfigError("low-rank attention averages all positions, later ones too: it cannot be causal")
    return MultiHeadAttention(
        config.model_dim,
        config.num_heads,
        num_key_value_heads=config.num_key_value_heads,
        query_width=config.query_width,
        make_lookup=partial(_head_lookup, config, kind=kind, is_causal=is_causal, is_cross=is_cross),
        bias=config.bias,
        projection_bias=config.attention_bias,
        has_norm=config.query_key_norm,
        norm_epsilon=config.norm_epsilon,
        has_values=config.value_projection,
        has_output=config.output_projection,
    )


def _head_lookup(
    config: TransformerConfig,
    head_dim: int,
    num_shared: int,
    *,
    kind: SelfAttentionKind,
    is_causal: bool,
    is_cross: bool,
) -> HeadLookup | ShapedLookup | LinearLookup:
    if kind == "linear":
        return LinearLookup(is_causal=is_causal)
    if kind == "low-rank":
        scale, dropout = head_dim**-0.5, config.attention_dropout
        return LowRankLookup(config.rank, config.context_length, scale=scale, dropout=dropout)
    similarity = make_similarity(config.similarity, head_dim, num_shared)
    pattern = config.sparse_pattern(kind, is_causal=is_causal)
    # A sparse pattern contains the causal order.
    is_ordered = is_causal and pattern is None
    lookup = make_lookup(config, similarity, dropout=config.attention_dropout, is_causal=is_ordered)
    chosen = lookup if pattern is None else SparseLookup(lookup, pattern)
    return ShapedLookup(chosen, config.num_heads) if config.shaped_attention and not is_cross else chosen


def initialize_transformer(model: nn.Module, config: TransformerConfig) -> None:
    """Initialize the weights of a new model."""
    model.apply(_initialize_glorot)
    if config.initialization == "gpt2":
        _initialize_gpt2(model, config)


def _initialize_glorot(module: nn.Module) -> None:
    """Glorot-uniform weights, zero biases, embeddings of length about one, and zero queries in shaped attention."""
    match module:
        case MultiHeadAttention(lookup=ShapedLookup()):
            nn.init.zeros_(module.query.weight)
        case nn.Linear():
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        case nn.Embedding():
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


def _initialize_gpt2(model: nn.Module, config: TransformerConfig) -> None:
    """Normal weights; those of the output layers shrink with the depth (Radford et al., 2019, section 2.3)."""
    num_residuals = 2 * max(config.encoder_depth, config.decoder_depth)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_GPT2_STD)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention | FeedForward) and isinstance(module.output, nn.Linear):
            nn.init.normal_(module.output.weight, std=_GPT2_STD / math.sqrt(num_residuals))
