r"""Attention: keys scored against queries, and the values averaged by the scores.

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and
Translate" (2014). https://arxiv.org/abs/1409.0473
Vaswani et al., "Attention Is All You Need" (2017), section 3.2. https://arxiv.org/abs/1706.03762
Ainslie et al., "GQA" (2023): several query heads share one key/value head. https://arxiv.org/abs/2305.13245
Henry et al., "Query-Key Normalization for Transformers" (2020). https://arxiv.org/abs/2010.04245
Noci et al., "The Shaped Transformer" (2023). https://arxiv.org/abs/2306.17759
He & Hofmann, "Simplifying Transformer Blocks" (2023), equation 5. https://arxiv.org/abs/2311.01906

    attend              softmax(scores) v, as the formula has it
    Lookup              a similarity and `attend`: queries, keys and values in, averages out
    ShapedLookup        a `Lookup` that is the identity at initialization
    MultiHeadAttention  the projections around it

Other lookups attend to fewer keys (`regard.nn.sparse_attention`), or by sums instead of
a softmax (`regard.nn.linear_attention`).

Dimensions, the same in every file of `regard.nn`:
    batch       sequences in a batch
    query, key  positions of the queries, and of the keys and values
    time        positions, where the two are the same
    heads       attention heads; `shared` counts the key/value heads, which divides it
    model       width of the residual stream
    head        width of one head, model / heads
    value       width of a value, where it differs from that of a head
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.kv_cache import CrossAttentionKV, LayerCache, LinearCache
from regard.nn.linear_attention import LinearLookup
from regard.nn.masks import causal_mask
from regard.nn.norms import make_norm
from regard.nn.positions import PositionEncoding, rotate
from regard.nn.similarity import DotProduct, Similarity, make_similarity

Mask = Bool[Tensor, "#batch #heads #query key"]
Bias = Float[Tensor, "#batch #heads query key"]
Retrieval = Literal["soft", "hard"]
_BF16_KEYS_ON_CPU = 256
"""With fewer keys, attention on a CPU is slower in bfloat16: with 32 of them, its gradient takes 5 times as long."""


def attend(
    scores: Float[Tensor, "batch heads query key"],
    v: Float[Tensor, "batch shared key value"],
    mask: Mask | None = None,
    *,
    temperature: float = 1.0,
    retrieval: Retrieval = "soft",
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "batch heads query value"], Float[Tensor, "batch heads query key"]]:
    r"""Average the values, each weighted by the softmax of its score.

    $$ w = \mathrm{softmax}(s / \tau), \qquad o = \sum_i w_i v_i $$

    `hard` retrieval returns the value with the highest score, which is the limit
    of the temperature $\tau$ to 0. Its gradient is zero almost everywhere, so the
    gradient of the soft average is used instead (Bengio et al., 2013,
    "straight-through", arXiv 1308.3432).

    `mask` is True where a query may attend. A fully masked query returns zeros
    rather than NaN, so that one padding row cannot corrupt a batch.

    `dropout` is the probability of dropping a weight. Returns the averages and
    the attention weights.
    """
    v = v.repeat_interleave(scores.size(1) // v.size(1), dim=1)
    scores = scores / temperature
    if mask is not None:
        # finfo.min rather than -inf: the softmax of a row of -inf is NaN.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if retrieval == "hard":
        best = torch.zeros_like(weights).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0)
        # The bracket is exactly zero and carries the gradient; adding the terms one by one would round.
        weights = best + (weights - weights.detach())
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    if dropout:
        weights = F.dropout(weights, dropout)
    # A float32 bias promotes the weights to float32, whatever the dtype of the values.
    return weights.to(v.dtype) @ v, weights


def attend_fused(
    q: Float[Tensor, "batch heads query head"],
    k: Float[Tensor, "batch shared key head"],
    v: Float[Tensor, "batch shared key value"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
) -> Float[Tensor, "batch heads query value"]:
    """Compute `attend` for scores `scale * q k^T + bias` by PyTorch's fused kernel, without storing the weights."""
    dtype = q.dtype
    in_float32 = dtype == torch.bfloat16 and q.device.type == "cpu" and k.size(2) < _BF16_KEYS_ON_CPU
    if in_float32:
        q, k, v = q.float(), k.float(), v.float()
    if bias is not None:
        allowed = bias.to(q.dtype)
        mask = allowed if mask is None else allowed.masked_fill(~mask, -torch.inf)
    # Autocast would cast the inputs to bfloat16 again.
    with torch.autocast("cpu", enabled=False) if in_float32 else nullcontext():
        found = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=dropout, is_causal=is_causal, scale=scale, enable_gqa=q.size(1) != k.size(1)
        )
    return found.to(dtype)


@runtime_checkable
class HeadLookup(Protocol):
    """What `MultiHeadAttention` averages the values of its heads by."""

    def prepare(self, k: Tensor) -> Tensor:
        """Return the keys in the form that a call expects."""
        ...

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None, bias: Bias | None = None
    ) -> Float[Tensor, "batch heads query value"]:
        """Return the average of the values for each query."""
        ...


@runtime_checkable
class CenteredLookup(HeadLookup, Protocol):
    """A lookup that can be computed for queries of zeros, too."""

    def attend_with_zero_queries(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None, bias: Bias | None = None
    ) -> Tensor:
        """Return what a call would return for queries of zeros."""
        ...


class Lookup(nn.Module):
    """Attention without projections: score the keys by a similarity and average the values.

    If `watcher` is set, it is called with the attention weights of each forward
    pass. Otherwise soft retrieval by an inner product runs PyTorch's fused kernel,
    which does not store the weights.
    """

    def __init__(
        self,
        similarity: Similarity,
        *,
        temperature: float = 1.0,
        retrieval: Retrieval = "soft",
        dropout: float = 0.0,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        self.similarity, self.temperature = similarity, temperature
        self.retrieval: Retrieval = retrieval
        self.dropout, self.is_causal = dropout, is_causal
        self.watcher: Callable[[Tensor], None] | None = None

    def prepare(self, k: Float[Tensor, "batch shared key head"]) -> Float[Tensor, "batch shared key head"]:
        """Return the keys in the form that `forward` expects."""
        return self.similarity.prepare(k)

    def forward(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key value"],
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch heads query value"]:
        """Return the average of the values for each query; `k` are prepared keys."""
        return self._attend(q, k, v, mask, bias, dropout=self.dropout if self.training else 0.0, watcher=self.watcher)

    def attend_with_zero_queries(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key value"],
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch heads query value"]:
        """Return what `forward` would return for queries of zeros; the watcher is not called, no weight is dropped."""
        return self._attend(torch.zeros_like(q), k, v, mask, bias)

    def _attend(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key value"],
        mask: Mask | None,
        bias: Bias | None,
        *,
        dropout: float = 0.0,
        watcher: Callable[[Tensor], None] | None = None,
    ) -> Float[Tensor, "batch heads query value"]:
        # A single query is the newest position and may attend to every key. A mask with one row per query
        # already contains the causal order; a mask with one row for all queries only marks padding.
        is_causal = self.is_causal and q.size(2) > 1 and (mask is None or mask.size(2) == 1)
        is_fused = watcher is None and self.retrieval == "soft" and isinstance(self.similarity, DotProduct)
        if is_causal and not (is_fused and mask is None and bias is None and q.size(2) == k.size(2)):
            causal = causal_mask(q.size(2), k.size(2), q.device)
            mask, is_causal = causal if mask is None else mask & causal, False
        if is_fused:
            assert isinstance(self.similarity, DotProduct)
            scale = self.similarity.scale / self.temperature
            bias = bias if bias is None else bias / self.temperature
            return attend_fused(q, k, v, mask, bias, scale=scale, dropout=dropout, is_causal=is_causal)
        scores = self.similarity(q, k)
        scores = scores if bias is None else scores + bias
        averages, weights = attend(
            scores, v, mask, temperature=self.temperature, retrieval=self.retrieval, dropout=dropout
        )
        if watcher is not None:
            watcher(weights)
        return averages


class ShapedLookup(nn.Module):
    r"""Shaped attention: self-attention that is the identity at initialization, so that it needs no residual sum.

    $$ \alpha I + \beta A - \gamma C $$

    $A$ are the attention weights and $C$ the weights for queries of zeros: for an
    inner product the plain average over the positions that a query may attend to,
    changed by the bias of relative positions. With a query projection of zeros
    $A = C$, and with $\alpha = \beta = \gamma = 1$ each position returns its own
    value. The three factors are learned for each head.

    `own` are the values of the query positions. The watcher of the inner lookup
    is called with the weights $A$.
    """

    def __init__(self, lookup: CenteredLookup, num_heads: int) -> None:
        super().__init__()
        self.lookup = lookup
        self.identity, self.attention, self.average = (nn.Parameter(torch.ones(num_heads, 1, 1)) for _ in range(3))

    def prepare(self, k: Float[Tensor, "batch shared key head"]) -> Float[Tensor, "batch shared key head"]:
        return self.lookup.prepare(k)

    def forward(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key head"],
        mask: Mask | None = None,
        bias: Bias | None = None,
        *,
        own: Float[Tensor, "batch shared query head"],
    ) -> Float[Tensor, "batch heads query head"]:
        own = own.repeat_interleave(q.size(1) // own.size(1), dim=1)
        attended = self.lookup(q, k, v, mask, bias)
        centered = self.lookup.attend_with_zero_queries(q, k, v, mask, bias)
        return self.identity * own + self.attention * attended - self.average * centered


class MultiHeadAttention(nn.Module):
    """Multi-head attention over `num_heads` slices of the model dimension.

    Queries are projected from `x`, keys and values from `memory`; without `memory`
    this is self-attention. All query heads together have the width `query_width`,
    by default `model_dim`. Without `has_values` the values of a head are its slice
    of the input; without `has_output` the heads are concatenated and not projected.
    With `has_norm` the queries and keys of each head are divided by their root mean
    square and multiplied by a learned gain.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        num_key_value_heads: int | None = None,
        query_width: int | None = None,
        make_lookup: Callable[[int, int], HeadLookup | ShapedLookup | LinearLookup] | None = None,
        bias: bool = True,
        projection_bias: bool | None = None,
        has_norm: bool = False,
        norm_epsilon: float = 1e-5,
        has_values: bool = True,
        has_output: bool = True,
    ) -> None:
        """Create the projections and the lookup.

        `make_lookup` is called with the width of a head and the number of key/value heads.
        `projection_bias` applies to queries, keys and values, by default `bias`.
        """
        super().__init__()
        shared, width = num_key_value_heads or num_heads, query_width or model_dim
        if width % num_heads or num_heads % shared:
            name = "model_dim" if query_width is None else "query_width"
            raise ConfigError(
                f"{name} must be a multiple of num_heads, and num_heads of num_key_value_heads, "
                f"got {name}={width}, {num_heads=} and num_key_value_heads={shared}"
            )
        if not has_values and shared != num_heads:
            raise ConfigError(
                "without value projections num_key_value_heads must equal num_heads, "
                f"got {num_heads=} and num_key_value_heads={shared}"
            )
        self.head_dim = width // num_heads
        inner = bias if projection_bias is None else projection_bias
        self.query = nn.Linear(model_dim, width, bias=inner)
        self.key = nn.Linear(model_dim, shared * self.head_dim, bias=inner)
        self.value = nn.Linear(model_dim, shared * self.head_dim, bias=inner) if has_values else nn.Identity()
        self.output = nn.Linear(width, model_dim, bias=bias) if has_output else nn.Identity()
        self.query_norm = make_norm("rms", self.head_dim, epsilon=norm_epsilon) if has_norm else None
        self.key_norm = make_norm("rms", self.head_dim, epsilon=norm_epsilon) if has_norm else None
        self.lookup = (make_lookup or scaled_dot_lookup)(self.head_dim, shared)
        self.own_positions: Callable[[PositionEncoding], PositionEncoding] | None = None
        """Where processes share the heads: the encoding of positions for those of this process."""

    def forward(
        self,
        x: Float[Tensor, "batch query model"],
        memory: Float[Tensor, "batch key model"] | None = None,
        mask: Mask | None = None,
        *,
        positions: PositionEncoding | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch query model"]:
        """Attend to `memory` or, without it, to `x`; with a `cache` also to the positions stored there."""
        positions = positions or PositionEncoding()
        if self.own_positions is not None:
            positions = self.own_positions(positions)
        if memory is None:
            q, k, v = (self._split(y) for y in project(x, [self.query, self.key, self.value]))
        else:
            q = self._split(self.query(x))
            k, v = (self._split(y) for y in project(memory, [self.key, self.value]))
        q, k = _normalize(q, self.query_norm), _normalize(k, self.key_norm)
        if isinstance(self.lookup, LinearLookup):
            assert cache is None or isinstance(cache, LinearCache), "the model makes a cache for each lookup"
            mask = mask if cache is None else None  # what is not to be attended to is not in the sums
            return self._combine(self.lookup(q, k, v, mask, rotation=positions.rotation, cache=cache))
        assert not isinstance(cache, LinearCache), "the model makes a cache for each lookup"
        if positions.rotation is not None:
            q, k = rotate(q, positions.rotation), rotate(k, positions.rotation)
        k, own = self.lookup.prepare(k), v
        if cache is not None:
            k, v = cache.append(k, v)
        bias = positions.bias_for(q)
        if isinstance(self.lookup, ShapedLookup):
            return self._combine(self.lookup(q, k, v, mask, bias, own=own))
        return self._combine(self.lookup(q, k, v, mask, bias))

    def project_memory(self, memory: Float[Tensor, "batch key model"], mask: Mask | None) -> CrossAttentionKV:
        """Compute the keys and values of an encoder's output once, for `cross_attend`."""
        k, v = project(memory, [self.key, self.value])
        k = self.lookup.prepare(_normalize(self._split(k), self.key_norm))
        return CrossAttentionKV(k, self._split(v), mask)

    def cross_attend(self, x: Float[Tensor, "rows query model"], kv: CrossAttentionKV) -> Tensor:
        """Attend from `x` to keys and values that are already computed.

        Consecutive rows of `x` may share one row of keys: the hypotheses of a beam
        attend to one source.
        """
        q = self._split(self.query(x.reshape(kv.k.size(0), -1, x.size(2))))
        return self._combine(self.lookup(_normalize(q, self.query_norm), kv.k, kv.v, kv.mask)).reshape(x.shape)

    def _combine(self, heads: Float[Tensor, "batch heads query head"]) -> Float[Tensor, "batch query model"]:
        return self.output(heads.transpose(1, 2).flatten(2))

    def _split(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch heads time head"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def scaled_dot_lookup(head_dim: int, num_heads: int) -> Lookup:
    """Return the lookup of Vaswani et al. (2017)."""
    return Lookup(make_similarity("scaled-dot", head_dim, num_heads))


def project(x: Float[Tensor, "*batch model"], layers: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Apply each of the linear `layers` to `x`, by one matrix product where that is faster.

    It is faster where the weights are already stored as one matrix (`regard.nn.inference.pack_weights`),
    and on a GPU. It is slower under `torch.compile`, which then has to concatenate the three gradients.
    Layers that are not plain `nn.Linear`, such as adapted ones, or have hooks, which divide them over processes, are
    called one by one.
    """
    plain = [layer for layer in layers if type(layer) is nn.Linear and not layer._forward_pre_hooks]
    packed = None if torch.is_grad_enabled() else vars(layers[0]).get("packed")
    if len(plain) < len(layers) or (packed is None and (not x.is_cuda or torch.compiler.is_compiling())):
        return [layer(x) for layer in layers]
    if packed is None:
        weight = torch.cat([layer.weight for layer in plain])
        bias = None if plain[0].bias is None else torch.cat([layer.bias for layer in plain])
    else:
        weight, bias = packed
    return F.linear(x, weight, bias).split([layer.out_features for layer in plain], dim=-1)


def _normalize(x: Float[Tensor, "batch heads time head"], norm: nn.Module | None) -> Tensor:
    return x if norm is None else norm(x)
