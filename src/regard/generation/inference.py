"""Models made ready for writing: one precision, no gradients, and weights laid out for the products of decoding.

A step of decoding multiplies one row, or a few, by every matrix of the model.
It takes as long as it takes to read the matrices, and for small ones as long as
Python takes to call for them. So

- the query, key and value matrices of an attention, and the two first ones of a
  gated feed-forward network, lie one behind the other and are multiplied at once;
- on a CPU a matrix lies along its longer side: the processor reads ahead, and
  short rows would stop it time and again;
- `DirectStep` is `Transformer.step` for one token in each of its slots, without
  the masks, tables and calls that it can do without. `Transformer.step` is its
  specification, and a test holds the two equal.

Dimensions: see `regard.nn.attention`; `vocab` counts the tokens.
"""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.models.protocols import State
from regard.models.transformer import Transformer
from regard.models.transformer_states import TransformerSlots
from regard.nn.attention import Lookup
from regard.nn.blocks import Block
from regard.nn.cache import Seen, StaticKeyValues
from regard.nn.feedforward import FeedForward
from regard.nn.multihead import MultiHeadAttention
from regard.nn.positions import Learned, Rotary, Sinusoidal
from regard.nn.similarity import DotProduct

Function = Callable[[Tensor], Tensor]
InferencePrecision = Literal["float32", "bfloat16"]
Model = TypeVar("Model", bound=nn.Module)


def ready(model: Model, precision: InferencePrecision) -> Model:
    """A copy of `model` to write with, in this precision, on the device where `model` is.

    What writes with it keeps its states in the same precision. The copy is not
    to be moved or cast any more: its weights lie where they lie for a reason.
    Those that need not lie elsewhere are shared with `model`, which is not to be
    trained any more.
    """
    shared = {id(weight): nn.Parameter(weight.data, requires_grad=False) for weight in model.parameters()}
    made = copy.deepcopy(model, dict(shared)).eval()
    made = made.to(torch.float32 if precision == "float32" else torch.bfloat16)
    lay_out(made)
    return made


@torch.no_grad()
def lay_out(model: nn.Module) -> None:
    """Lay the weights of `model` out for decoding; they stay the same parameters, and tied ones stay tied."""
    joined: set[int] = set()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            layers = [module.query, module.key, module.value]
        elif isinstance(module, FeedForward) and module.gate is not None:
            layers = [module.gate, module.input]
        else:
            continue
        plain = [layer for layer in layers if type(layer) is nn.Linear]
        if len(plain) == len(layers):
            _join(plain)
            joined.update(id(layer) for layer in plain)
    for module in model.modules():
        if type(module) is nn.Linear and id(module) not in joined:
            module.weight.data = _along_longer_side(module.weight.data)


def _join(layers: Sequence[nn.Linear]) -> None:
    """One matrix, one behind the other; `project` finds it, and what follows in it, as `joined` of each layer."""
    weight = _along_longer_side(torch.cat([layer.weight for layer in layers]))
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    first = 0
    for layer in layers:
        vars(layer)["joined"] = (weight[first:], None if bias is None else bias[first:])
        end = first + layer.out_features
        layer.weight.data = weight[first:end]
        if bias is not None:
            layer.bias.data = bias[first:end]
        first = end


def _along_longer_side(weight: Float[Tensor, "output input"]) -> Float[Tensor, "output input"]:
    # PyTorch's products in bfloat16 are made for rows of inputs, and a GPU does not care.
    if weight.device.type != "cpu" or weight.dtype == torch.bfloat16 or weight.size(0) < weight.size(1):
        return weight.contiguous()
    return weight.t().contiguous().t()


class _Attention(NamedTuple):
    project: Function
    """Queries, keys and values one behind the other; where a source is looked at, queries alone."""
    output: Function
    lookup: Lookup
    scale: float
    gains: Float[Tensor, "turned head"] | None
    """Of what is projected in each head, values left out, where it is normalised."""
    epsilon: float | None
    """What keeps that normalisation finite."""
    norm: Function


class _FeedForward(NamedTuple):
    input: Function
    """What is bent; with a gate, the gate and what it lets through, one behind the other."""
    activation: Function
    is_gated: bool
    output: Function
    norm: Function


class _Layer(NamedTuple):
    attention: _Attention
    cross_attention: _Attention | None
    feedforward: _FeedForward | None


class _Places(NamedTuple):
    """Where the newest tokens stand, and what that means for all layers."""

    each: Int[Tensor, "batch 1"]
    common: int | None
    """The place of every row, where it is the same."""
    end: int
    """Places that are filled in the longest row, the newest one's among them."""
    mask: Bool[Tensor, "batch 1 1 key"] | None
    cosine: Float[Tensor, "#batch 1 head"] | None
    sine: Float[Tensor, "#batch 1 head"] | None


class DirectStep:
    """`Transformer.step` for one token in each slot, on a CPU."""

    def __init__(self, model: Transformer, layers: list[_Layer], capacity: int) -> None:
        config, decoder = model.config, model.decoder
        assert decoder is not None
        self._model, self._layers = model, layers
        self._final_norm = None if decoder.final_norm is None else _norm(decoder.final_norm)
        self._is_before = config.block == "pre-norm"
        self._num_heads, self._head_dim = config.num_heads, config.head_dim
        self._num_shared = config.num_key_value_heads or config.num_heads
        self._embedding_scale = math.sqrt(config.model_dim) if config.scale_embeddings else 1.0
        self._capacity, dtype = capacity, model.embedding.weight.dtype
        self._added = self._cosine = self._sine = None
        if decoder.positions is not None:
            everywhere = torch.arange(capacity)
            placement = decoder.positions(everywhere, everywhere)
            if placement.added is not None:
                self._added = placement.added.to(dtype)
            if placement.rotation is not None:
                cosine, sine = (part.to(dtype) for part in placement.rotation)
                # Turning a plane (a, b) gives (a cos - b sin, b cos + a sin): each half meets the sine of the other.
                self._cosine, self._sine = torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)

    @classmethod
    def of(cls, model: object, capacity: int) -> "DirectStep | None":
        """The step of a model on a CPU that has nothing unusual in it, or None."""
        if not isinstance(model, Transformer) or model.decoder is None or model.embedding.weight.device.type != "cpu":
            return None
        config, positions = model.config, model.decoder.positions
        is_usual = config.residual and config.block != "parallel" and config.value_projection
        is_usual = is_usual and not config.embedding_norm and not config.scale_output
        if not is_usual or not (positions is None or isinstance(positions, Learned | Sinusoidal | Rotary)):
            return None
        layers = [_layer(block) for block in model.decoder.blocks if isinstance(block, Block)]
        known = [layer for layer in layers if layer is not None]
        return cls(model, known, capacity) if len(known) == len(layers) else None

    def __call__(self, tokens: Int[Tensor, "batch 1"], state: State) -> tuple[Float[Tensor, "batch 1 vocab"], State]:
        """The same as `Transformer.step`."""
        assert isinstance(state, TransformerSlots)
        if any(layer.attention.lookup.watcher is not None for layer in self._layers):
            return self._model.step(tokens, state)
        places = self._places(state)
        x = self._model.embedding.weight.index_select(0, tokens[:, 0])
        if self._embedding_scale != 1.0:
            x = x * self._embedding_scale
        if self._added is not None:
            x = x + (self._added[places.common] if places.common is not None else self._added[places.each[:, 0]])
        for index, layer in enumerate(self._layers):
            x = self._around(x, layer.attention.norm, self._look_around, layer.attention, state.caches[index], places)
            if layer.cross_attention is not None:
                assert state.seen is not None
                x = self._around(x, layer.cross_attention.norm, self._look_at, layer.cross_attention, state.seen[index])
            if layer.feedforward is not None:
                x = self._around(x, layer.feedforward.norm, _feed_forward, layer.feedforward)
        if self._final_norm is not None:
            x = self._final_norm(x)
        state.lengths.add_(1).clamp_(max=self._capacity)
        return self._model.scores(x)[:, None], state

    def _places(self, slots: TransformerSlots) -> _Places:
        each = slots.lengths.clamp(max=self._capacity - 1)
        numbers = each.tolist()
        end = max(numbers) + 1
        if min(numbers) + 1 == end:
            common, mask, rows = numbers[0], None, slice(end - 1, end)
        else:
            common, rows = None, each
            mask = (torch.arange(end) <= each[:, None])[:, None, None]
        cosine = None if self._cosine is None else self._cosine[rows][:, None]
        sine = None if self._sine is None else self._sine[rows][:, None]
        return _Places(each[:, None], common, end, mask, cosine, sine)

    def _around(
        self, x: Tensor, norm: Function, sublayer: Callable[..., Tensor], *parts: object
    ) -> Float[Tensor, "batch model"]:
        if self._is_before:
            return x + sublayer(norm(x), *parts)
        return norm(x + sublayer(x, *parts))

    def _look_around(
        self, x: Float[Tensor, "batch model"], attention: _Attention, cache: StaticKeyValues, places: _Places
    ) -> Float[Tensor, "batch model"]:
        heads = attention.project(x).view(x.size(0), -1, self._head_dim)
        num_heads, num_turned = self._num_heads, self._num_heads + self._num_shared
        turned, v = heads[:, :num_turned], heads[:, num_turned:]
        if attention.gains is not None:
            turned = F.rms_norm(turned, (self._head_dim,), None, attention.epsilon) * attention.gains
        if places.cosine is not None and places.sine is not None:
            swapped = turned.roll(self._head_dim // 2, -1)
            turned = torch.addcmul(turned * places.cosine, swapped, places.sine)
        q, k = turned[:, :num_heads, None], turned[:, num_heads:]
        if places.common is not None:
            cache.keys[:, :, places.common], cache.values[:, :, places.common] = k, v
        else:
            cache.at(places.each).append(k[:, :, None], v[:, :, None])
        keys, values = cache.keys[:, :, : places.end], cache.values[:, :, : places.end]
        return self._found(q, keys, values, places.mask, attention)

    def _look_at(
        self, x: Float[Tensor, "batch model"], attention: _Attention, seen: Seen
    ) -> Float[Tensor, "batch model"]:
        q = attention.project(x).view(x.size(0), -1, self._head_dim)
        if attention.gains is not None:
            q = F.rms_norm(q, (self._head_dim,), None, attention.epsilon) * attention.gains
        return self._found(q[:, :, None], seen.k, seen.v, seen.mask, attention)

    def _found(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, attention: _Attention
    ) -> Float[Tensor, "batch model"]:
        is_shared = self._num_heads != self._num_shared
        found = F.scaled_dot_product_attention(q, k, v, mask, scale=attention.scale, enable_gqa=is_shared)
        return attention.output(found.reshape(found.size(0), -1))


def _feed_forward(x: Float[Tensor, "batch model"], layer: _FeedForward) -> Float[Tensor, "batch model"]:
    hidden = layer.input(x)
    if layer.is_gated:
        gate, passed = hidden.chunk(2, dim=-1)
        return layer.output(layer.activation(gate) * passed)
    return layer.output(layer.activation(hidden))


def _layer(block: Block) -> _Layer | None:
    """The parts of a block, or None where it looks in an unusual way."""
    attention = _attention(block.attention, block.attention_norm, is_cross=False)
    cross, feedforward = block.cross_attention, block.feedforward
    cross_attention = None if cross is None else _attention(cross, block.cross_attention_norm, is_cross=True)
    if attention is None or (cross is None) != (cross_attention is None):
        return None
    return _Layer(attention, cross_attention, feedforward and _network(feedforward, block.feedforward_norm))


def _attention(module: MultiHeadAttention, norm: nn.Module | None, *, is_cross: bool) -> _Attention | None:
    lookup, query, key = module.lookup, module.query, module.key
    if not isinstance(lookup, Lookup) or not isinstance(lookup.similarity, DotProduct) or lookup.retrieval != "soft":
        return None
    assert norm is not None
    parts = [query] if is_cross else [query, key, module.value]
    gains = epsilon = None
    if isinstance(module.query_norm, nn.RMSNorm) and isinstance(module.key_norm, nn.RMSNorm):
        norms = zip(parts, [module.query_norm, module.key_norm], strict=False)
        gains = torch.cat([gain.weight.expand(part.out_features // module.head_dim, -1) for part, gain in norms])
        epsilon = module.query_norm.eps
    return _Attention(
        project=_linear(parts),
        output=_linear([module.output]),
        lookup=lookup,
        scale=lookup.similarity.scale / lookup.temperature,
        gains=gains,
        epsilon=epsilon,
        norm=_norm(norm),
    )


def _network(module: FeedForward, norm: nn.Module | None) -> _FeedForward:
    assert norm is not None
    first = [module.input] if module.gate is None else [module.gate, module.input]
    return _FeedForward(
        _linear(first), module.activation, module.gate is not None, _linear([module.output]), _norm(norm)
    )


def joined_linear(layers: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None] | None:
    """The matrix and the bias of layers that lie one behind the other; None where they do not."""
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    if len(plain) < len(layers):
        return None
    return (plain[0].weight, plain[0].bias) if len(plain) == 1 else vars(plain[0]).get("joined")


def _linear(layers: Sequence[nn.Module]) -> Function:
    """What the layers make of a row, one behind the other; at once where their matrices lie so."""
    joined = joined_linear(layers)
    if joined is not None:
        return partial(F.linear, weight=joined[0], bias=joined[1])
    return layers[0].forward if len(layers) == 1 else lambda x: torch.cat([layer(x) for layer in layers], dim=-1)


def _norm(module: nn.Module) -> Function:
    """A norm, or what stands for one, without the overhead of a module."""
    match module:
        case nn.LayerNorm():
            shape, eps = list(module.normalized_shape), module.eps
            return partial(F.layer_norm, normalized_shape=shape, weight=module.weight, bias=module.bias, eps=eps)
        case nn.RMSNorm():
            shape = list(module.normalized_shape)
            return partial(F.rms_norm, normalized_shape=shape, weight=module.weight, eps=module.eps)
        case _:
            return module.forward
