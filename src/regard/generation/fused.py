"""A step of a Transformer on a GPU, by kernels of our own.

A step of decoding is made of hundreds of small operations, and most of its
time goes by between them. Here a layer has five kernels where one row is
written, seven where a few are, and eight where there are many, whose products
are better left to cuBLAS. `Transformer.step` is the
specification, and a test holds the two equal.

Dimensions: see `regard.generation.kernels`.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.generation.inference import Function, joined_linear
from regard.generation.kernels import HeadNorms, LinearWeights, NormWeights, Turning, attend, embed, linear, norm
from regard.models.protocols import State
from regard.models.transformer import Transformer
from regard.models.transformer_states import TransformerBranches, TransformerSlots
from regard.nn.attention import Lookup
from regard.nn.blocks import Block
from regard.nn.cache import Seen, StaticKeyValues
from regard.nn.feedforward import Activation, FeedForward
from regard.nn.multihead import MultiHeadAttention
from regard.nn.positions import Learned, Rotary, Sinusoidal
from regard.nn.similarity import DotProduct

_HEAD_DIMS = (16, 32, 64, 128, 256)
_FEW_NUMBERS = 1 << 16
"""In the left factor of a product, up to which ours is the faster one."""


class _Attention(NamedTuple):
    project: LinearWeights
    """To queries, keys and values one behind the other; where a source is looked at, to queries alone."""
    output: LinearWeights
    lookup: Lookup
    scale: float
    norms: HeadNorms | None


class _FeedForward(NamedTuple):
    input: LinearWeights
    """With a gate, the gate and what it lets through, one behind the other."""
    output: LinearWeights
    activation: Activation
    function: Function


class _SubLayer(NamedTuple):
    part: _Attention | _FeedForward
    norm: NormWeights


class _Layer(NamedTuple):
    attention: _SubLayer
    cross_attention: _SubLayer | None
    feedforward: _SubLayer | None


class _Stream(NamedTuple):
    """The residual stream, and what is still to be added to it."""

    x: Float[Tensor, "rows model"]
    delta: Float[Tensor, "rows model"] | None = None


class FusedStep:
    """`Transformer.step` for one token in each slot, or of each hypothesis of a beam, on a GPU."""

    def __init__(self, model: Transformer, layers: list[_Layer], capacity: int) -> None:
        config, decoder = model.config, model.decoder
        assert decoder is not None
        assert model.output is not None
        self._model, self._layers, self._capacity = model, layers, capacity
        self._final_norm = None if decoder.final_norm is None else _norm(decoder.final_norm)
        self._is_before = config.block == "pre-norm"
        self._num_heads = config.num_heads
        self._embedding_scale = math.sqrt(config.model_dim) if config.scale_embeddings else 1.0
        self._scores = LinearWeights(model.output.weight, None)
        self._added = self._turning = None
        if decoder.positions is not None:
            everywhere = torch.arange(capacity, device=model.embedding.weight.device)
            placement = decoder.positions(everywhere, everywhere)
            if placement.added is not None:
                self._added = placement.added.to(model.embedding.weight.dtype).contiguous()
            if placement.rotation is not None:
                cosine, sine = placement.rotation
                # Turning a plane (a, b) gives (a cos - b sin, b cos + a sin): each half meets the sine of the other.
                self._turning = Turning(torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1))

    @classmethod
    def of(cls, model: object, capacity: int) -> "FusedStep | None":
        """The step of a model that was made ready and has nothing unusual in it, or None."""
        if not isinstance(model, Transformer) or model.decoder is None or type(model.output) is not nn.Linear:
            return None
        config, positions = model.config, model.decoder.positions
        is_usual = config.residual and config.block != "parallel" and config.value_projection
        is_usual = is_usual and config.output_projection and config.head_dim in _HEAD_DIMS
        is_usual = is_usual and not (config.embedding_norm or config.scale_output or config.output_bias)
        is_usual = is_usual and config.activation not in ("silu", "geglu", "geglu-tanh")
        if not is_usual or not (positions is None or isinstance(positions, Learned | Sinusoidal | Rotary)):
            return None
        if isinstance(positions, Learned) and capacity > config.context_length:
            return None
        layers = [_layer(block, config.activation) for block in model.decoder.blocks if isinstance(block, Block)]
        known = [layer for layer in layers if layer is not None]
        return cls(model, known, capacity) if len(known) == len(layers) else None

    def __call__(self, tokens: Int[Tensor, "rows 1"], state: State) -> tuple[Float[Tensor, "rows 1 vocab"], State]:
        """The same as `Transformer.step`."""
        assert isinstance(state, TransformerSlots | TransformerBranches)
        if any(_is_watched(layer) for layer in self._layers):
            return self._model.step(tokens, state)
        if isinstance(state, TransformerSlots):
            lengths, mask, chosen = state.lengths, None, None
        else:
            caches, positions = state.grow()
            lengths, mask, chosen = positions.flatten(), state.ancestors[:, None], caches[0].places
        table = self._model.embedding.weight
        x, places = embed(tokens, lengths, table, self._added, scale=self._embedding_scale, capacity=self._capacity)
        if chosen is not None:
            places = chosen.flatten()
        stream = _Stream(x)
        for index, layer in enumerate(self._layers):
            stream = self._look_around(stream, layer.attention, state.caches[index], places, mask)
            if layer.cross_attention is not None:
                assert state.seen is not None
                stream = self._look_at(stream, layer.cross_attention, state.seen[index])
            if layer.feedforward is not None:
                stream = self._feed_forward(stream, layer.feedforward)
        return self._scored(stream)[:, None], state

    def _look_around(
        self,
        stream: _Stream,
        sublayer: _SubLayer,
        cache: StaticKeyValues,
        places: Int[Tensor, " rows"],
        mask: Bool[Tensor, "rooms 1 width capacity"] | None,
    ) -> _Stream:
        part = sublayer.part
        assert isinstance(part, _Attention)
        stream, heads = self._enter(stream, sublayer, part.project)
        found = attend(
            heads, cache.keys, cache.values, num_heads=self._num_heads, scale=part.scale, places=places,
            mask=mask, norms=part.norms, turning=self._turning,
        )  # fmt: skip
        return self._leave(stream, sublayer, found, part.output)

    def _look_at(self, stream: _Stream, sublayer: _SubLayer, seen: Seen) -> _Stream:
        part = sublayer.part
        assert isinstance(part, _Attention)
        stream, heads = self._enter(stream, sublayer, part.project)
        found = attend(
            heads, seen.k, seen.v, num_heads=self._num_heads, scale=part.scale, mask=seen.mask, norms=part.norms
        )
        return self._leave(stream, sublayer, found, part.output)

    def _feed_forward(self, stream: _Stream, sublayer: _SubLayer) -> _Stream:
        part = sublayer.part
        assert isinstance(part, _FeedForward)
        stream, hidden = self._enter(stream, sublayer, part.input, part)
        return self._leave(stream, sublayer, hidden, part.output)

    def _enter(
        self, stream: _Stream, sublayer: _SubLayer, weights: LinearWeights, bend: _FeedForward | None = None
    ) -> tuple[_Stream, Float[Tensor, "rows output"]]:
        """The stream, and what the first product of a sub-layer makes of it."""
        before = sublayer.norm if self._is_before else None
        activation = None if bend is None else bend.activation
        if stream.x.size(0) == 1:
            return stream, linear(stream.x, weights, before=before, activation=activation)
        x, normed = (stream.x, stream.x) if before is None else norm(stream.x, stream.delta, before)
        if _is_few(normed):
            return _Stream(x), linear(normed, weights, activation=activation)
        made = F.linear(normed, weights.weight, weights.bias)
        if bend is not None and activation == "swiglu":
            gate, passed = made.chunk(2, dim=-1)
            made = bend.function(gate) * passed
        elif bend is not None:
            made = bend.function(made)
        return _Stream(x), made

    def _leave(
        self, stream: _Stream, sublayer: _SubLayer, made: Float[Tensor, "rows input"], weights: LinearWeights
    ) -> _Stream:
        """The stream with what the last product of a sub-layer makes of `made`."""
        if _is_few(made):
            new = _Stream(linear(made, weights, residual=stream.x))
        else:
            new = _Stream(stream.x, F.linear(made, weights.weight, weights.bias))
        return new if self._is_before else _Stream(norm(new.x, new.delta, sublayer.norm)[1])

    def _scored(self, stream: _Stream) -> Float[Tensor, "rows vocab"]:
        x = stream.x if stream.delta is None else stream.x + stream.delta
        if x.size(0) == 1:
            return linear(x, self._scores, before=self._final_norm)
        if self._final_norm is not None:
            x = norm(stream.x, stream.delta, self._final_norm)[1]
        return self._model.scores(x)


def _is_few(x: Float[Tensor, "rows width"]) -> bool:
    # Products in full precision have no tensor cores to gain from.
    return x.size(0) == 1 or (x.numel() <= _FEW_NUMBERS and x.dtype != torch.float32)


def _is_watched(layer: _Layer) -> bool:
    parts = [layer.attention.part, layer.cross_attention and layer.cross_attention.part]
    return any(isinstance(part, _Attention) and part.lookup.watcher is not None for part in parts)


def _layer(block: Block, activation: Activation) -> _Layer | None:
    """The parts of a block, or None where one is unusual."""
    attention = _attention(block.attention, block.attention_norm, is_cross=False)
    cross, feedforward = block.cross_attention, block.feedforward
    cross_attention = None if cross is None else _attention(cross, block.cross_attention_norm, is_cross=True)
    network = None if feedforward is None else _network(feedforward, block.feedforward_norm, activation)
    if attention is None or (cross is None) != (cross_attention is None) or (feedforward is None) != (network is None):
        return None
    return _Layer(attention, cross_attention, network)


def _attention(module: MultiHeadAttention, norm: nn.Module | None, *, is_cross: bool) -> _SubLayer | None:
    lookup = module.lookup
    if not isinstance(lookup, Lookup) or not isinstance(lookup.similarity, DotProduct) or lookup.retrieval != "soft":
        return None
    project = joined_linear([module.query] if is_cross else [module.query, module.key, module.value])
    output, weights = joined_linear([module.output]), _norm(norm)
    if project is None or output is None or weights is None:
        return None
    norms = None
    if isinstance(module.query_norm, nn.RMSNorm) and isinstance(module.key_norm, nn.RMSNorm):
        assert module.query_norm.eps is not None
        norms = HeadNorms(module.query_norm.weight, module.key_norm.weight, module.query_norm.eps)
    scale = lookup.similarity.scale / lookup.temperature
    return _SubLayer(_Attention(LinearWeights(*project), LinearWeights(*output), lookup, scale, norms), weights)


def _network(module: FeedForward, norm: nn.Module | None, activation: Activation) -> _SubLayer | None:
    first = joined_linear([module.input] if module.gate is None else [module.gate, module.input])
    output, weights = joined_linear([module.output]), _norm(norm)
    if first is None or output is None or weights is None:
        return None
    part = _FeedForward(LinearWeights(*first), LinearWeights(*output), activation, module.activation)
    return _SubLayer(part, weights)


def _norm(module: nn.Module | None) -> NormWeights | None:
    match module:
        case nn.LayerNorm():
            return NormWeights("layer", module.weight, module.bias, module.eps)
        case nn.RMSNorm():
            assert module.eps is not None
            return NormWeights("rms", module.weight, None, module.eps)
        case _:
            return None
