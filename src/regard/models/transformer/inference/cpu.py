"""One decoding step of a Transformer on a CPU, for one token in each row of a static cache.

It computes what `Transformer.step` computes, without the masks, tables and module
calls that a step of one token does not need, and by one product for the query, key
and value projections where `regard.nn.inference.pack_weights` has packed them.

Dimensions: see `regard.nn.attention`; `vocab` tokens.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
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
from regard.models.transformer.states import StaticCache
from regard.nn.inference import packed_linear
from regard.nn.kv_cache import CrossAttentionKV, LinearCache, SparseStaticKVCache, StaticLayerCache

Function = Callable[[Tensor], Tensor]


class _Positions(NamedTuple):
    """The positions of the newest tokens, and what follows from them for all layers."""

    indices: Int[Tensor, "batch 1"]
    rows: Int[Tensor, " batch"] | slice
    """The rows of the position tables."""
    common: int | None
    """The position of all rows, if it is the same."""
    end: int
    """Positions of the longest row, including the newest."""
    mask: Bool[Tensor, "batch 1 1 key"] | None
    rotary: tuple[Float[Tensor, "#batch 1 head"], Float[Tensor, "#batch 1 head"]] | None


class PackedStep:
    """`Transformer.step` for one token in each row of a `StaticCache`, on a CPU."""

    def __init__(self, model: Transformer, layers: Sequence[DecoderLayer]) -> None:
        config, final_norm = model.config, model.decoder_stack().final_norm
        self._model, self._layers = model, layers
        self._final_norm = None if final_norm is None else _norm(final_norm)
        self._is_pre_norm = config.block == "pre-norm"
        self._num_heads, self._head_dim = config.num_heads, config.head_dim
        self._num_shared = config.num_key_value_heads or config.num_heads
        self._gains = [_gains(layer.attention, self._num_heads, self._num_shared) for layer in layers]
        """Gains of query-key normalization, for all query and key heads."""
        self._embedding_scale = math.sqrt(config.model_dim) if config.scale_embeddings else 1.0
        self._tables: dict[int, PositionTables] = {}

    @classmethod
    def for_model(cls, model: Transformer) -> "PackedStep | None":
        """Return the step of a model on a CPU; None where its settings are not supported."""
        layers = extract_layers(model, _linear, _norm) if model.device.type == "cpu" else None
        return None if layers is None else cls(model, layers)

    def supports(self, tokens: Int[Tensor, "batch new"], state: DecoderState) -> bool:
        return isinstance(state, StaticCache) and tokens.size(1) == 1 and not is_watched(self._layers)

    def step(self, tokens: Int[Tensor, "batch 1"], state: DecoderState) -> Float[Tensor, "batch 1 vocab"]:
        assert isinstance(state, StaticCache)
        indices = state.lengths.clamp(max=state.capacity - 1)
        # A table would grow with the capacity, which layers that store less than all positions do not.
        is_full = self._model.decoder_stack().is_full
        tables = self._tables_for(state.capacity) if is_full else self._tables_of(indices)
        positions = _positions(indices, tables, has_every_position=is_full)
        x = self._model.embedding.weight.index_select(0, tokens[:, 0])
        if self._embedding_scale != 1.0:
            x = x * self._embedding_scale
        if tables.embeddings is not None:
            x = x + tables.embeddings[positions.rows]
        for i, layer in enumerate(self._layers):
            x = self._sublayer(x, layer.attention, self._self_attend, state.caches[i], positions, self._gains[i])
            if layer.cross_attention is not None:
                assert state.cross_kvs is not None
                x = self._sublayer(x, layer.cross_attention, self._cross_attend, state.cross_kvs[i])
            if layer.feedforward is not None:
                x = self._sublayer(x, layer.feedforward, _feed_forward)
        if self._final_norm is not None:
            x = self._final_norm(x)
        state.lengths.add_(1).clamp_(max=state.capacity)
        return self._model.logits(x)[:, None]

    def _tables_for(self, capacity: int) -> PositionTables:
        if capacity not in self._tables:
            self._tables[capacity] = self._tables_of(torch.arange(capacity))
        return self._tables[capacity]

    def _tables_of(self, every: Int[Tensor, " capacity"]) -> PositionTables:
        embeddings, rotary = position_tables(self._model, every)
        dtype = self._model.embedding.weight.dtype
        rotary = None if rotary is None else (rotary[0].to(dtype), rotary[1].to(dtype))
        return PositionTables(embeddings, rotary)

    def _sublayer(
        self, x: Tensor, layer: AttentionLayer | FeedForwardLayer, function: Callable[..., Tensor], *arguments: object
    ) -> Float[Tensor, "batch model"]:
        if self._is_pre_norm:
            return x + function(layer.norm(x), layer, *arguments)
        return layer.norm(x + function(x, layer, *arguments))

    def _self_attend(
        self,
        x: Float[Tensor, "batch model"],
        layer: AttentionLayer,
        cache: StaticLayerCache,
        positions: _Positions,
        gains: Float[Tensor, "projected head"] | None,
    ) -> Float[Tensor, "batch model"]:
        heads = layer.project(x).view(x.size(0), -1, self._head_dim)
        num_heads, num_rotated = self._num_heads, self._num_heads + self._num_shared
        qk, v = heads[:, :num_rotated], heads[:, num_rotated:]
        if gains is not None and layer.head_norms is not None:
            qk = F.rms_norm(qk, (self._head_dim,), None, layer.head_norms.epsilon) * gains
        if isinstance(cache, LinearCache):
            return layer.output(self._attend_linearly(qk, v, cache, positions).to(x.dtype))
        if positions.rotary is not None:
            cosine, sine = positions.rotary
            qk = torch.addcmul(qk * cosine, qk.roll(self._head_dim // 2, -1), sine)
        q, k = qk[:, :num_heads, None], qk[:, num_heads:]
        if isinstance(cache, SparseStaticKVCache):
            own = cache.at(positions.indices)
            keys, values = own.append(k[:, :, None], v[:, :, None])
            if positions.common is not None and not cache.pattern.has_common:
                # All entries that are in use are in the window.
                end = min(positions.end, cache.ring_size)
                return self._attend(q, keys[:, :, :end], values[:, :, :end], None, layer)
            return self._attend(q, keys, values, (own.key_positions() >= 0)[:, None, None], layer)
        if positions.common is not None:
            cache.keys[:, :, positions.common], cache.values[:, :, positions.common] = k, v
        else:
            cache.at(positions.indices).append(k[:, :, None], v[:, :, None])
        keys, values = cache.keys[:, :, : positions.end], cache.values[:, :, : positions.end]
        return self._attend(q, keys, values, positions.mask, layer)

    def _attend_linearly(
        self, qk: Float[Tensor, "batch projected head"], v: Tensor, cache: LinearCache, positions: _Positions
    ) -> Float[Tensor, "batch width"]:
        """Add the newest position to the sums, and read them."""
        features = F.elu(qk.to(cache.sums.dtype)) + 1.0
        rotated = features
        if positions.rotary is not None:
            cosine, sine = (part.to(features.dtype) for part in positions.rotary)
            rotated = torch.addcmul(features * cosine, features.roll(self._head_dim // 2, -1), sine)
        num_heads, shared = self._num_heads, (self._num_shared, -1)
        cache.sums.add_(rotated[:, num_heads:, :, None] * v[:, :, None].to(features.dtype))
        cache.totals.add_(features[:, num_heads:])
        q, rotated_q = (part[:, :num_heads].unflatten(1, shared) for part in (features, rotated))
        return (rotated_q @ cache.sums / (q @ cache.totals[..., None])).flatten(1)

    def _cross_attend(
        self, x: Float[Tensor, "batch model"], layer: AttentionLayer, kv: CrossAttentionKV
    ) -> Float[Tensor, "batch model"]:
        q = layer.project(x).view(x.size(0), -1, self._head_dim)
        if (norms := layer.head_norms) is not None:
            q = F.rms_norm(q, (self._head_dim,), norms.query_gain, norms.epsilon)
        return self._attend(q[:, :, None], kv.k, kv.v, kv.mask, layer)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layer: AttentionLayer
    ) -> Float[Tensor, "batch model"]:
        is_shared = self._num_heads != self._num_shared
        heads = F.scaled_dot_product_attention(q, k, v, mask, scale=layer.scale, enable_gqa=is_shared)
        return layer.output(heads.reshape(heads.size(0), -1))


def _positions(indices: Int[Tensor, " batch"], tables: PositionTables, *, has_every_position: bool) -> _Positions:
    numbers = indices.tolist()
    end = max(numbers) + 1
    if min(numbers) + 1 == end:
        common, mask, rows = numbers[0], None, slice(end - 1, end)
    else:
        common, rows = None, indices
        mask = (torch.arange(end) <= indices[:, None])[:, None, None]
    rows = rows if has_every_position else slice(None)
    rotary = tables.rotary and (tables.rotary[0][rows][:, None], tables.rotary[1][rows][:, None])
    return _Positions(indices[:, None], rows, common, end, mask, rotary)


def _feed_forward(x: Float[Tensor, "batch model"], layer: FeedForwardLayer) -> Float[Tensor, "batch model"]:
    hidden = layer.input(x)
    if layer.is_gated:
        gate, passed = hidden.chunk(2, dim=-1)
        return layer.output(layer.activation(gate) * passed)
    return layer.output(layer.activation(hidden))


def _gains(layer: AttentionLayer, num_heads: int, num_shared: int) -> Float[Tensor, "projected head"] | None:
    if (norms := layer.head_norms) is None:
        return None
    return torch.cat([norms.query_gain.expand(num_heads, -1), norms.key_gain.expand(num_shared, -1)])


def _linear(layers: Sequence[nn.Module]) -> Function:
    """Return the function that concatenates the outputs of `layers`; one product where they are packed."""
    packed = packed_linear(layers)
    if packed is not None:
        return partial(F.linear, weight=packed[0], bias=packed[1])
    return layers[0].forward if len(layers) == 1 else lambda x: torch.cat([layer(x) for layer in layers], dim=-1)


def _norm(module: nn.Module) -> Function:
    """Return a norm, or its substitute, without the overhead of a module call."""
    match module:
        case nn.LayerNorm():
            shape, eps = list(module.normalized_shape), module.eps
            return partial(F.layer_norm, normalized_shape=shape, weight=module.weight, bias=module.bias, eps=eps)
        case nn.RMSNorm():
            shape = list(module.normalized_shape)
            return partial(F.rms_norm, normalized_shape=shape, weight=module.weight, eps=module.eps)
        case _:
            return module.forward
