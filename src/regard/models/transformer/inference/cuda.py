"""One decoding step of a Transformer on a GPU, by fused Triton kernels.

A decoding step consists of hundreds of small operations, and most of its time is
spent between them. Here a layer takes five kernels for one row, seven for a few,
and eight for many rows, whose products are left to cuBLAS.

Dimensions: see `regard.nn.kernels.decoding`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.models.protocols import DecoderState
from regard.models.transformer.inference.layers import (
    AttentionLayer,
    DecoderLayer,
    FeedForwardLayer,
    PositionTables,
    extract_layers,
    is_watched,
    position_tables,
)
from regard.models.transformer.model import Transformer
from regard.models.transformer.states import StaticBeamCache, StaticCache
from regard.nn.feedforward import Activation
from regard.nn.inference import packed_linear
from regard.nn.kernels.decoding import (
    LinearWeights,
    NormWeights,
    fused_attend,
    fused_embed,
    fused_linear,
    fused_norm,
)
from regard.nn.kv_cache import CrossAttentionKV, StaticKVCache

_HEAD_DIMS = (16, 32, 64, 128, 256)
_SMALL_FACTOR = 1 << 16
"""Numbers in the left factor of a product, up to which our kernel is faster than cuBLAS."""


class _Stream(NamedTuple):
    """The residual stream, and what is not yet added to it."""

    x: Float[Tensor, "rows model"]
    delta: Float[Tensor, "rows model"] | None = None


class FusedStep:
    """`Transformer.step` for one token in each row of a `StaticCache` or a `StaticBeamCache`, on a GPU."""

    def __init__(self, model: Transformer, layers: Sequence[DecoderLayer]) -> None:
        config, final_norm, output = model.config, model.decoder_stack().final_norm, model.output
        assert output is not None
        self._model, self._layers = model, layers
        self._final_norm = None if final_norm is None else _norm_weights(final_norm)
        self._is_pre_norm = config.block == "pre-norm"
        self._num_heads = config.num_heads
        self._activation: Activation = config.activation
        self._embedding_scale = math.sqrt(config.model_dim) if config.scale_embeddings else 1.0
        self._output = LinearWeights(output.weight, None)
        self._tables: dict[int, PositionTables] = {}

    @classmethod
    def for_model(cls, model: Transformer) -> "FusedStep | None":
        """Return the step of a model with packed weights; None where its settings are not supported."""
        config = model.config
        is_usual = config.output_projection and config.head_dim in _HEAD_DIMS and not config.output_bias
        is_usual = is_usual and config.activation not in ("silu", "geglu", "geglu-tanh")
        if not is_usual or type(model.output) is not nn.Linear or not model.decoder_stack().is_full:
            return None
        layers = extract_layers(model, _linear_weights, _norm_weights)
        return None if layers is None else cls(model, layers)

    def supports(self, tokens: Int[Tensor, "rows new"], state: DecoderState) -> bool:
        if not isinstance(state, StaticCache | StaticBeamCache) or tokens.size(1) != 1 or is_watched(self._layers):
            return False
        limit = self._model.config.max_target_positions
        return limit is None or _capacity(state) <= limit

    def step(self, tokens: Int[Tensor, "rows 1"], state: DecoderState) -> Float[Tensor, "rows 1 vocab"]:
        assert isinstance(state, StaticCache | StaticBeamCache)
        capacity = _capacity(state)
        tables = self._tables_for(capacity)
        if isinstance(state, StaticCache):
            lengths, mask, indices = state.lengths, None, None
        else:
            caches, positions = state.grow()
            lengths, mask, indices = positions.flatten(), state.ancestors[:, None], caches[0].indices
        table, scale = self._model.embedding.weight, self._embedding_scale
        x, positions = fused_embed(tokens, lengths, table, tables.embeddings, scale=scale, capacity=capacity)
        if indices is not None:
            positions = indices.flatten()
        stream = _Stream(x)
        for i, layer in enumerate(self._layers):
            cache = state.caches[i]
            assert isinstance(cache, StaticKVCache), "models with other caches are not supported"
            stream = self._self_attend(stream, layer.attention, cache, positions, mask, tables.rotary)
            if layer.cross_attention is not None:
                assert state.cross_kvs is not None
                stream = self._cross_attend(stream, layer.cross_attention, state.cross_kvs[i])
            if layer.feedforward is not None:
                stream = self._feed_forward(stream, layer.feedforward)
        return self._logits(stream)[:, None]

    def _tables_for(self, capacity: int) -> PositionTables:
        # Kept for each capacity: CUDA graphs read them at fixed addresses.
        if capacity not in self._tables:
            every = torch.arange(capacity, device=self._model.device)
            self._tables[capacity] = position_tables(self._model, every)
        return self._tables[capacity]

    def _self_attend(
        self,
        stream: _Stream,
        layer: AttentionLayer,
        cache: StaticKVCache,
        positions: Int[Tensor, " rows"],
        mask: Bool[Tensor, "cached 1 beam capacity"] | None,
        rotary: tuple[Tensor, Tensor] | None,
    ) -> _Stream:
        stream, heads = self._enter(stream, layer.norm, layer.project)
        heads = fused_attend(
            heads, cache.keys, cache.values, num_heads=self._num_heads, scale=layer.scale, positions=positions,
            mask=mask, norms=layer.head_norms, rotary=rotary,
        )  # fmt: skip
        return self._leave(stream, layer.norm, heads, layer.output)

    def _cross_attend(self, stream: _Stream, layer: AttentionLayer, kv: CrossAttentionKV) -> _Stream:
        stream, heads = self._enter(stream, layer.norm, layer.project)
        heads = fused_attend(
            heads, kv.k, kv.v, num_heads=self._num_heads, scale=layer.scale, mask=kv.mask, norms=layer.head_norms
        )
        return self._leave(stream, layer.norm, heads, layer.output)

    def _feed_forward(self, stream: _Stream, layer: FeedForwardLayer) -> _Stream:
        stream, hidden = self._enter(stream, layer.norm, layer.input, layer)
        return self._leave(stream, layer.norm, hidden, layer.output)

    def _enter(
        self, stream: _Stream, norm: NormWeights, weights: LinearWeights, network: FeedForwardLayer | None = None
    ) -> tuple[_Stream, Float[Tensor, "rows output"]]:
        """Return the stream, and the output of the first product of a sub-layer."""
        before = norm if self._is_pre_norm else None
        activation = None if network is None else self._activation
        if stream.x.size(0) == 1:
            return stream, fused_linear(stream.x, weights, norm=before, activation=activation)
        x, normalized = (stream.x, stream.x) if before is None else fused_norm(stream.x, stream.delta, before)
        if _is_small(normalized):
            return _Stream(x), fused_linear(normalized, weights, activation=activation)
        hidden = F.linear(normalized, weights.weight, weights.bias)
        if network is not None and activation == "swiglu":
            gate, passed = hidden.chunk(2, dim=-1)
            hidden = network.activation(gate) * passed
        elif network is not None:
            hidden = network.activation(hidden)
        return _Stream(x), hidden

    def _leave(
        self, stream: _Stream, norm: NormWeights, hidden: Float[Tensor, "rows input"], weights: LinearWeights
    ) -> _Stream:
        """Return the stream after the last product of a sub-layer."""
        if _is_small(hidden):
            new = _Stream(fused_linear(hidden, weights, residual=stream.x))
        else:
            new = _Stream(stream.x, F.linear(hidden, weights.weight, weights.bias))
        return new if self._is_pre_norm else _Stream(fused_norm(new.x, new.delta, norm)[1])

    def _logits(self, stream: _Stream) -> Float[Tensor, "rows vocab"]:
        x = stream.x if stream.delta is None else stream.x + stream.delta
        if x.size(0) == 1:
            return fused_linear(x, self._output, norm=self._final_norm)
        if self._final_norm is not None:
            x = fused_norm(stream.x, stream.delta, self._final_norm)[1]
        return self._model.logits(x)


def _capacity(state: StaticCache | StaticBeamCache) -> int:
    return state.capacity if isinstance(state, StaticCache) else state.max_length


def _is_small(x: Float[Tensor, "rows width"]) -> bool:
    # Products in float32 do not use tensor cores.
    return x.size(0) == 1 or (x.numel() <= _SMALL_FACTOR and x.dtype != torch.float32)


def _linear_weights(layers: Sequence[nn.Module]) -> LinearWeights | None:
    packed = packed_linear(layers)
    return None if packed is None else LinearWeights(*packed)


def _norm_weights(module: nn.Module) -> NormWeights | None:
    match module:
        case nn.LayerNorm():
            return NormWeights("layer", module.weight, module.bias, module.eps)
        case nn.RMSNorm():
            assert module.eps is not None
            return NormWeights("rms", module.weight, None, module.eps)
        case _:
            return None
