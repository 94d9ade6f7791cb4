"""The layers of a Transformer's decoder, and the tables of its positions, as the inference backends need them.

Dimensions: see `regard.nn.attention`; `capacity` of a static cache.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.models.transformer.model import Transformer, TransformerStack
from regard.nn.attention import Lookup, MultiHeadAttention
from regard.nn.blocks import Block
from regard.nn.feedforward import FeedForward
from regard.nn.linear_attention import LinearLookup
from regard.nn.positions import Learned, Rotary, Sinusoidal
from regard.nn.similarity import DotProduct
from regard.nn.sparse_attention import SparseLookup

Converter = Callable[[Any], Any]
"""Turns linear layers, or a norm, into what a backend computes with; returns None for what it does not support."""


class HeadNorms(NamedTuple):
    """The gains of query-key normalization."""

    query_gain: Float[Tensor, " head"]
    key_gain: Float[Tensor, " head"]
    epsilon: float


class AttentionLayer(NamedTuple):
    """Self-attention or cross-attention by an inner product or sums; layers and norms as the backend converts them."""

    project: Any
    """The packed projections of queries, keys and values; in cross-attention of queries only."""
    output: Any
    norm: Any
    """The norm of the sub-layer."""
    lookup: Lookup | LinearLookup
    scale: float
    """The factor of the inner products; 1 for linear attention, which does not scale them."""
    head_norms: HeadNorms | None


class FeedForwardLayer(NamedTuple):
    """A feed-forward network; linear layers and norms as the backend converts them."""

    input: Any
    """The input layer; of a gated network the gate and the input layer, packed."""
    output: Any
    norm: Any
    activation: Callable[[Tensor], Tensor]
    is_gated: bool


class DecoderLayer(NamedTuple):
    """One block of the decoder."""

    attention: AttentionLayer
    cross_attention: AttentionLayer | None
    feedforward: FeedForwardLayer | None


class PositionTables(NamedTuple):
    """The encodings of all positions of a cache."""

    embeddings: Float[Tensor, "capacity model"] | None = None
    rotary: tuple[Float[Tensor, "capacity head"], Float[Tensor, "capacity head"]] | None = None
    """Rotating a plane (a, b) gives (a cos - b sin, b cos + a sin): the factors of each coordinate, and those of the
    other coordinate of its plane."""


def extract_layers(model: Transformer, linear: Converter, norm: Converter) -> list[DecoderLayer] | None:
    """Return the layers of the decoder; None where the settings of the model are not supported.

    `linear` is called with sequences of linear layers whose outputs are to be concatenated.
    """
    config, decoder = model.config, model.decoder
    is_usual = config.residual and config.block != "parallel" and config.value_projection
    if not isinstance(decoder, TransformerStack) or not is_usual or config.embedding_norm or config.scale_output:
        return None
    if not (decoder.positions is None or isinstance(decoder.positions, Learned | Sinusoidal | Rotary)):
        return None

    layers: list[DecoderLayer] = []
    for block in decoder.blocks:
        assert isinstance(block, Block)
        cross, feedforward = block.cross_attention, block.feedforward
        own = _attention_layer(block.attention, block.attention_norm, linear, norm, is_cross=False)
        cross_layer = network = None
        if cross is not None:
            cross_layer = _attention_layer(cross, block.cross_attention_norm, linear, norm, is_cross=True)
        if feedforward is not None:
            network = _feedforward_layer(feedforward, block.feedforward_norm, linear, norm)
        if own is None or (cross_layer is None) != (cross is None) or (network is None) != (feedforward is None):
            return None
        layers.append(DecoderLayer(own, cross_layer, network))
    return layers


def _attention_layer(
    module: MultiHeadAttention, around: nn.Module | None, linear: Converter, norm: Converter, *, is_cross: bool
) -> AttentionLayer | None:
    lookup, query_norm, key_norm = module.lookup, module.query_norm, module.key_norm
    lookup = lookup.lookup if isinstance(lookup, SparseLookup) else lookup
    if isinstance(lookup, LinearLookup):
        scale = 1.0
    elif not isinstance(lookup, Lookup) or lookup.retrieval != "soft":
        return None
    elif isinstance(lookup.similarity, DotProduct):
        scale = lookup.similarity.scale / lookup.temperature
    else:
        return None
    head_norms = None
    if isinstance(query_norm, nn.RMSNorm) and isinstance(key_norm, nn.RMSNorm) and query_norm.eps is not None:
        head_norms = HeadNorms(query_norm.weight, key_norm.weight, query_norm.eps)
    project = linear([module.query] if is_cross else [module.query, module.key, module.value])
    output, own_norm = linear([module.output]), norm(around)
    layer = AttentionLayer(project, output, own_norm, lookup, scale, head_norms)
    return None if any(part is None for part in (project, output, own_norm)) else layer


def _feedforward_layer(
    module: FeedForward, around: nn.Module | None, linear: Converter, norm: Converter
) -> FeedForwardLayer | None:
    inputs = linear([module.input] if module.gate is None else [module.gate, module.input])
    output, own_norm = linear([module.output]), norm(around)
    layer = FeedForwardLayer(inputs, output, own_norm, module.activation, module.gate is not None)
    return None if any(part is None for part in (inputs, output, own_norm)) else layer


def is_watched(layers: Sequence[DecoderLayer]) -> bool:
    """Return whether an attention has a watcher, which only the model's own step calls."""
    return any(
        part is not None and part.lookup.watcher is not None
        for layer in layers
        for part in (layer.attention, layer.cross_attention)
    )


def position_tables(model: Transformer, every: Int[Tensor, " capacity"]) -> PositionTables:
    """Return the encodings of these positions."""
    positions, weight = model.decoder_stack().positions, model.embedding.weight
    if positions is None:
        return PositionTables()
    encoding = positions(every, every)
    embeddings = None if encoding.embeddings is None else encoding.embeddings.to(weight.dtype).contiguous()
    if encoding.rotation is None:
        return PositionTables(embeddings)
    cosine, sine = encoding.rotation
    return PositionTables(embeddings, (torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)))
