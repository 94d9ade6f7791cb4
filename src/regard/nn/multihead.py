"""Multi-head attention: several look-ups side by side, each over its own slice of the width.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2.
https://arxiv.org/abs/1706.03762
Ainslie et al., "GQA" (2023): several query heads share one key/value head.
https://arxiv.org/abs/2305.13245
Henry et al., "Query-Key Normalization for Transformers" (2020). https://arxiv.org/abs/2010.04245

Dimensions: see `regard.nn.attention`.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.attention import Lookup, Mask
from regard.nn.cache import Cache
from regard.nn.norms import make_norm
from regard.nn.positions import Placement, rotate
from regard.nn.shaped import ShapedLookup
from regard.nn.similarity import make_similarity


class MultiHeadAttention(nn.Module):
    """Queries, keys and values are projected, looked up head by head, joined, and projected back.

    The queries come from `x` and the keys and values from `memory`; leave
    `memory` out for self-attention. Without `has_values` a head's values are its
    slice of what it looks at; without `has_output` the heads are joined and no more.
    With `has_norm` the queries and keys of each head are normalised by their root
    mean square and given a learned gain. All query heads together are `query_width`
    wide, where that is not `model_dim`.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        num_key_value_heads: int | None = None,
        query_width: int | None = None,
        make_lookup: Callable[[int, int], Lookup | ShapedLookup] | None = None,
        bias: bool = True,
        projection_bias: bool | None = None,
        has_norm: bool = False,
        norm_epsilon: float = 1e-5,
        has_values: bool = True,
        has_output: bool = True,
    ) -> None:
        """`make_lookup` is handed the width of a head and the number of key/value heads.

        `projection_bias` is that of queries, keys and values, where it is not `bias`.
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
                "without value projections each head needs a slice of its own, "
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

    def forward(
        self,
        x: Float[Tensor, "batch query model"],
        memory: Float[Tensor, "batch key model"] | None = None,
        mask: Mask | None = None,
        *,
        placement: Placement | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch query model"]:
        """Look, and mix what was seen; with a `cache`, also at what earlier calls put there."""
        placement = placement or Placement()
        if memory is None:
            q, k, v = (self._split(y) for y in project(x, [self.query, self.key, self.value]))
        else:
            q = self._split(self.query(x))
            k, v = (self._split(y) for y in project(memory, [self.key, self.value]))
        q, k = self._normed(q, self.query_norm), self._normed(k, self.key_norm)
        if placement.rotation is not None:
            q, k = rotate(q, placement.rotation), rotate(k, placement.rotation)
        k, own = self.lookup.prepare(k), v
        if cache is not None:
            k, v = cache.append(k, v)
        bias = placement.bias_for(q)
        if isinstance(self.lookup, ShapedLookup):
            return self._joined(self.lookup(q, k, v, mask, bias, own=own))
        return self._joined(self.lookup(q, k, v, mask, bias))

    def keys_values(
        self, memory: Float[Tensor, "batch key model"]
    ) -> tuple[Float[Tensor, "batch shared key head"], Float[Tensor, "batch shared key head"]]:
        """What is there to look at, ready to be looked at again and again."""
        k, v = project(memory, [self.key, self.value])
        return self.lookup.prepare(self._normed(self._split(k), self.key_norm)), self._split(v)

    def look(
        self,
        x: Float[Tensor, "rows query model"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key head"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "rows query model"]:
        """Answer the queries of `x` from keys and values already computed.

        Several rows of `x`, standing together, may share a row of keys: the
        hypotheses of a beam look at one source.
        """
        shared = k.size(0)
        q = self._normed(self._split(self.query(x.reshape(shared, -1, x.size(2)))), self.query_norm)
        return self._joined(self.lookup(q, k, v, mask)).reshape(x.shape)

    def _joined(self, found: Float[Tensor, "batch heads query head"]) -> Float[Tensor, "batch query model"]:
        return self.output(found.transpose(1, 2).flatten(2))

    def _normed(self, x: Float[Tensor, "batch heads time head"], norm: nn.Module | None) -> Tensor:
        return x if norm is None else norm(x)

    def _split(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch heads time head"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def scaled_dot_lookup(head_dim: int, num_heads: int) -> Lookup:
    """The look-up of Vaswani et al. (2017)."""
    return Lookup(make_similarity("scaled-dot", head_dim, num_heads))


def project(x: Float[Tensor, "*batch model"], layers: Sequence[nn.Module]) -> Sequence[Tensor]:
    """What each of the linear `layers` makes of `x`: by one matrix product for them all where that is the faster way.

    It is where their matrices already lie one behind the other, as `regard.generation.inference`
    lays them, and on a GPU; but not where the step is compiled, for then the three gradients need
    not be joined, which costs more than reading `x` three times. Layers that are not plain
    `nn.Linear`, such as adapted ones, are called one by one.
    """
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    joined = None if torch.is_grad_enabled() else vars(layers[0]).get("joined")
    if len(plain) < len(layers) or (joined is None and (not x.is_cuda or torch.compiler.is_compiling())):
        return [layer(x) for layer in layers]
    if joined is None:
        weight = torch.cat([layer.weight for layer in plain])
        bias = None if plain[0].bias is None else torch.cat([layer.bias for layer in plain])
    else:
        weight, bias = joined
    return F.linear(x, weight, bias).split([layer.out_features for layer in plain], dim=-1)
