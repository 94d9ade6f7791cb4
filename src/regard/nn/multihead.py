"""Multi-head attention: several look-ups side by side, each over its own slice of the width.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2.
https://arxiv.org/abs/1706.03762
Ainslie et al., "GQA" (2023): several query heads share one key/value head.
https://arxiv.org/abs/2305.13245

Dimensions: see `regard.nn.attention`.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.attention import Bias, Lookup, Mask
from regard.nn.cache import KeyValues
from regard.nn.positions import Placement, rotate
from regard.nn.shaped import ShapedLookup
from regard.nn.similarity import make_similarity


class MultiHeadAttention(nn.Module):
    """Queries, keys and values are projected, looked up head by head, joined, and projected back.

    The queries come from `x` and the keys and values from `memory`; leave
    `memory` out for self-attention. Without `has_values` a head's values are its
    slice of what it looks at; without `has_output` the heads are joined and no more.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        num_key_value_heads: int | None = None,
        make_lookup: Callable[[int, int], Lookup | ShapedLookup] | None = None,
        bias: bool = True,
        has_values: bool = True,
        has_output: bool = True,
    ) -> None:
        """`make_lookup` is handed the width of a head and the number of key/value heads."""
        super().__init__()
        shared = num_key_value_heads or num_heads
        if model_dim % num_heads or num_heads % shared:
            raise ConfigError(
                "model_dim must be a multiple of num_heads, and num_heads of num_key_value_heads, "
                f"got {model_dim=}, {num_heads=} and num_key_value_heads={shared}"
            )
        if not has_values and shared != num_heads:
            raise ConfigError(
                "without value projections each head needs a slice of its own, "
                f"got {num_heads=} and num_key_value_heads={shared}"
            )
        self.head_dim = model_dim // num_heads
        self.query = nn.Linear(model_dim, model_dim, bias=bias)
        self.key = nn.Linear(model_dim, shared * self.head_dim, bias=bias)
        self.value = nn.Linear(model_dim, shared * self.head_dim, bias=bias) if has_values else nn.Identity()
        self.output = nn.Linear(model_dim, model_dim, bias=bias) if has_output else nn.Identity()
        self.lookup = (make_lookup or scaled_dot_lookup)(self.head_dim, shared)

    def forward(
        self,
        x: Float[Tensor, "batch query model"],
        memory: Float[Tensor, "batch key model"] | None = None,
        mask: Mask | None = None,
        *,
        placement: Placement | None = None,
        cache: KeyValues | None = None,
    ) -> Float[Tensor, "batch query model"]:
        """Look, and mix what was seen; with a `cache`, also at what earlier calls put there."""
        placement = placement or Placement()
        if memory is None:
            q, k, v = (self._split(y) for y in project(x, [self.query, self.key, self.value]))
        else:
            q = self._split(self.query(x))
            k, v = (self._split(y) for y in project(memory, [self.key, self.value]))
        if placement.rotation is not None:
            q, k = rotate(q, placement.rotation), rotate(k, placement.rotation)
        k = self.lookup.prepare(k)
        if cache is not None:
            k, v = cache.append(k, v)
        return self._mix(q, k, v, mask, placement.bias_for(q))

    def keys_values(
        self, memory: Float[Tensor, "batch key model"]
    ) -> tuple[Float[Tensor, "batch shared key head"], Float[Tensor, "batch shared key head"]]:
        """What is there to look at, ready to be looked at again and again."""
        k, v = project(memory, [self.key, self.value])
        return self.lookup.prepare(self._split(k)), self._split(v)

    def look(
        self,
        x: Float[Tensor, "batch query model"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key head"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch query model"]:
        """Answer the queries of `x` from keys and values already computed."""
        return self._mix(self._split(self.query(x)), k, v, mask)

    def _mix(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key head"],
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch query model"]:
        return self.output(self.lookup(q, k, v, mask, bias).transpose(1, 2).flatten(2))

    def _split(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch heads time head"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def scaled_dot_lookup(head_dim: int, num_heads: int) -> Lookup:
    """The look-up of Vaswani et al. (2017)."""
    return Lookup(make_similarity("scaled-dot", head_dim, num_heads))


def project(x: Float[Tensor, "*batch model"], layers: Sequence[nn.Module]) -> Sequence[Tensor]:
    """What each of the linear `layers` makes of `x`: on a GPU by one matrix product for them all.

    A CPU gains nothing from it. Layers that are not plain `nn.Linear`, such as
    adapted ones, are called one by one as well.
    """
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    if not x.is_cuda or len(plain) < len(layers):
        return [layer(x) for layer in layers]
    weight = torch.cat([layer.weight for layer in plain])
    bias = None if plain[0].bias is None else torch.cat([layer.bias for layer in plain])
    return F.linear(x, weight, bias).split([layer.out_features for layer in plain], dim=-1)
