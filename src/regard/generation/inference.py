"""Models made ready for writing: one precision, no gradients, and weights laid out for the products of decoding.

A step of decoding multiplies one row, or a few, by every matrix of the model.
It takes as long as it takes to read the matrices, and for small ones as long as
Python takes to call for them. So

- the query, key and value matrices of an attention, and the two first ones of a
  gated feed-forward network, lie one behind the other and are multiplied at once;
- on a CPU a matrix lies along its longer side: the processor reads ahead, and
  short rows would stop it time and again;
- `DirectStep` is `Transformer.step` for one token in each of its slots, without
  the masks, tables and module calls that it can do without. `Transformer.step`
  is its specification, and a test holds the two equal.

Dimensions: see `regard.nn.attention`; `vocab` counts the tokens.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.models.protocols import State
from regard.models.transformer import Transformer, TransformerSlots
from regard.nn.attention import Lookup
from regard.nn.blocks import Block
from regard.nn.cache import Seen, StaticKeyValues
from regard.nn.feedforward import FeedForward
from regard.nn.multihead import MultiHeadAttention
from regard.nn.positions import Learned, Rotary, Sinusoidal
from regard.nn.similarity import DotProduct

InferencePrecision = Literal["float32", "bfloat16"]
Model = TypeVar("Model", bound=nn.Module)


def ready(model: Model, precision: InferencePrecision) -> Model:
    """A copy of `model` to write with, in this precision, on the device where `model` is.

    What writes with it keeps its states in the same precision. The copy is not
    to be moved or cast any more: its weights lie where they lie for a reason.
    """
    made = copy.deepcopy(model).eval().requires_grad_(False)
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
    weight: Float[Tensor, "projections model"]
    """Of queries, keys and values; where a source is looked at, of queries alone."""
    bias: Float[Tensor, " projections"] | None
    output: nn.Linear
    lookup: Lookup
    scale: float
    norm: Callable[[Tensor], Tensor]


class _FeedForward(NamedTuple):
    weight: Float[Tensor, "hidden model"]
    """Of what is bent; with a gate, of the gate and of what it lets through."""
    bias: Float[Tensor, " hidden"] | None
    activation: Callable[[Tensor], Tensor]
    is_gated: bool
    output: nn.Linear
    norm: Callable[[Tensor], Tensor]


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
        self._model, self._layers, self._decoder = model, layers, decoder
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
                # Turning a plane (a, b) gives (a cos - b sin, b cos + a sin): the halves meet the other half's sine.
                self._cosine, self._sine = torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)

    @classmethod
    def of(cls, model: object, capacity: int) -> "DirectStep | None":
        """The step of a model that `ready` laid out on a CPU and that has nothing unusual in it, or None."""
        if not isinstance(model, Transformer) or model.decoder is None or model.embedding.weight.device.type != "cpu":
            return None
        config, positions = model.config, model.decoder.positions
        is_usual = config.residual and config.block != "parallel" and not config.query_key_norm
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
        if self._decoder.final_norm is not None:
            x = self._decoder.final_norm(x)
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
        self, x: Tensor, norm: Callable[[Tensor], Tensor], sublayer: Callable[..., Tensor], *parts: object
    ) -> Float[Tensor, "batch model"]:
        if self._is_before:
            return x + sublayer(norm(x), *parts)
        return norm(x + sublayer(x, *parts))

    def _look_around(
        self, x: Float[Tensor, "batch model"], attention: _Attention, cache: StaticKeyValues, places: _Places
    ) -> Float[Tensor, "batch model"]:
        heads = F.linear(x, attention.weight, attention.bias).view(x.size(0), -1, self._head_dim)
        num_heads, num_turned = self._num_heads, self._num_heads + self._num_shared
        turned, v = heads[:, :num_turned], heads[:, num_turned:]
        if places.cosine is not None and places.sine is not None:
            swapped = turned.roll(self._head_dim // 2, -1)
            turned = torch.addcmul(turned * places.cosine, swapped, places.sine)
        q, k = turned[:, :num_heads, None], turned[:, num_heads:]
        if places.common is not None:
            cache.keys[:, :, places.common], cache.values[:, :, places.common] = k, v
        else:
            cache.at(places.each).append(k[:, :, None], v[:, :, None])
        keys, values = cache.keys[:, :, : places.end], cache.values[:, :, : places.end]
        return self._joined(q, keys, values, places.mask, attention)

    def _look_at(
        self, x: Float[Tensor, "batch model"], attention: _Attention, seen: Seen
    ) -> Float[Tensor, "batch model"]:
        q = F.linear(x, attention.weight, attention.bias).view(x.size(0), -1, 1, self._head_dim)
        return self._joined(q, seen.k, seen.v, seen.mask, attention)

    def _joined(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, attention: _Attention
    ) -> Float[Tensor, "batch model"]:
        is_shared = self._num_heads != self._num_shared
        found = F.scaled_dot_product_attention(q, k, v, mask, scale=attention.scale, enable_gqa=is_shared)
        return F.linear(found.reshape(found.size(0), -1), attention.output.weight, attention.output.bias)


def _feed_forward(x: Float[Tensor, "batch model"], layer: _FeedForward) -> Float[Tensor, "batch model"]:
    hidden = F.linear(x, layer.weight, layer.bias)
    if layer.is_gated:
        gate, passed = hidden.chunk(2, dim=-1)
        hidden = layer.activation(gate) * passed
    else:
        hidden = layer.activation(hidden)
    return F.linear(hidden, layer.output.weight, layer.output.bias)


def _layer(block: Block) -> _Layer | None:
    """The parts of a block, or None where one of them is not of the plain kind."""
    attention = _attention(block.attention, block.attention_norm, is_cross=False)
    cross, feedforward = block.cross_attention, block.feedforward
    cross_attention = None if cross is None else _attention(cross, block.cross_attention_norm, is_cross=True)
    own_network = None if feedforward is None else _network(feedforward, block.feedforward_norm)
    if attention is None or (cross is not None and cross_attention is None):
        return None
    if feedforward is not None and own_network is None:
        return None
    return _Layer(attention, cross_attention, own_network)


def _attention(module: MultiHeadAttention, norm: nn.Module | None, *, is_cross: bool) -> _Attention | None:
    lookup, query, output, joined = module.lookup, module.query, module.output, vars(module.query).get("joined")
    if not isinstance(lookup, Lookup) or not isinstance(lookup.similarity, DotProduct) or lookup.retrieval != "soft":
        return None
    if type(query) is not nn.Linear or type(output) is not nn.Linear or joined is None or norm is None:
        return None
    weight, bias = (query.weight, query.bias) if is_cross else joined
    return _Attention(weight, bias, output, lookup, lookup.similarity.scale / lookup.temperature, norm.forward)


def _network(module: FeedForward, norm: nn.Module | None) -> _FeedForward | None:
    layers = [layer for layer in (module.gate, module.input, module.output) if layer is not None]
    if any(type(layer) is not nn.Linear for layer in layers) or norm is None:
        return None
    if module.gate is None:
        weight, bias = module.input.weight, module.input.bias
    else:
        weight, bias = vars(module.gate)["joined"]
    return _FeedForward(weight, bias, module.activation, module.gate is not None, module.output, norm.forward)
