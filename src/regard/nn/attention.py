"""Scaled dot-product attention, and its multi-head form.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.
https://arxiv.org/abs/1706.03762
Ainslie et al., "GQA" (2023): several query heads share one key/value head.
https://arxiv.org/abs/2305.13245

Dimensions, the same in every file of `regard.nn`:
    batch       sequences read together
    query, key  positions that look, and positions looked at
    time        positions, where it does not matter which of the two
    heads       parallel attentions; `shared` counts the key/value heads, which divide them
    model       width of the residual stream
    head        width of one head, model / heads
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.cache import KeyValues
from regard.nn.masks import causal_mask
from regard.nn.positions import Placement, rotate

Mask = Bool[Tensor, "#batch #heads #query key"]
Bias = Float[Tensor, "#batch #heads query key"]


def attend(
    q: Float[Tensor, "batch heads query head"],
    k: Float[Tensor, "batch shared key head"],
    v: Float[Tensor, "batch shared key head"],
    mask: Mask | None = None,
    bias: Bias | None = None,
) -> tuple[Float[Tensor, "batch heads query head"], Float[Tensor, "batch heads query key"]]:
    r"""Average `v` by how well each query matches each key.

    $$ \mathrm{softmax}(q k^\top / \sqrt{d_k} + \mathrm{bias})\, v $$

    `mask` is True where a query may look. A query that may look nowhere gets
    zeros, never NaN: one padding row must not poison a batch.

    Returns the averages and the weights that made them.
    """
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if bias is not None:
        scores = scores + bias
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        # The least finite number, not -inf: softmax over a row of -inf is NaN.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1).masked_fill(~mask, 0.0)
    return weights @ v, weights


def attend_fused(
    q: Float[Tensor, "batch heads query head"],
    k: Float[Tensor, "batch shared key head"],
    v: Float[Tensor, "batch shared key head"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    dropout: float = 0.0,
    is_causal: bool = False,
) -> Float[Tensor, "batch heads query head"]:
    """The averages of `attend`, by PyTorch's fused kernel, which never forms the weights."""
    if bias is not None:
        allowed = bias.to(q.dtype)
        mask = allowed if mask is None else allowed.masked_fill(~mask, -torch.inf)
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=q.size(1) != k.size(1)
    )


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


class MultiHeadAttention(nn.Module):
    """`num_heads` attentions side by side, each over its own slice of the width.

    The queries come from `x` and the keys and values from `memory`; leave
    `memory` out for self-attention.

    A `watcher`, when one is set, is handed the attention weights of each call.
    Without one they are never formed, and the fused kernel is used.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        num_key_value_heads: int | None = None,
        is_causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        shared = num_key_value_heads or num_heads
        if model_dim % num_heads or num_heads % shared:
            raise ConfigError(
                "model_dim must be a multiple of num_heads, and num_heads of num_key_value_heads, "
                f"got {model_dim=}, {num_heads=} and num_key_value_heads={shared}"
            )
        self.head_dim = model_dim // num_heads
        self.is_causal, self.dropout = is_causal, dropout
        self.query = nn.Linear(model_dim, model_dim, bias=bias)
        self.key = nn.Linear(model_dim, shared * self.head_dim, bias=bias)
        self.value = nn.Linear(model_dim, shared * self.head_dim, bias=bias)
        self.output = nn.Linear(model_dim, model_dim, bias=bias)
        self.watcher: Callable[[Tensor], None] | None = None

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
        rotation, bias = (placement.rotation, placement.bias) if placement else (None, None)
        if memory is None:
            q, k, v = (self._split(y) for y in project(x, [self.query, self.key, self.value]))
        else:
            q, (k, v) = self._split(self.query(x)), self.keys_values(memory)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if cache is not None:
            k, v = cache.append(k, v)
        return self._mix(q, k, v, mask, bias)

    def keys_values(
        self, memory: Float[Tensor, "batch key model"]
    ) -> tuple[Float[Tensor, "batch shared key head"], Float[Tensor, "batch shared key head"]]:
        """What is there to look at, ready to be looked at again and again."""
        k, v = project(memory, [self.key, self.value])
        return self._split(k), self._split(v)

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
        # A single query is the newest position and may see all there is.
        is_causal = self.is_causal and q.size(2) > 1
        is_plain = mask is None and bias is None and q.size(2) == k.size(2) and self.watcher is None
        if is_causal and not is_plain:
            causal = causal_mask(q.size(2), k.size(2), q.device)
            mask, is_causal = causal if mask is None else mask & causal, False
        if self.watcher is None:
            dropout = self.dropout if self.training else 0.0
            mixed = attend_fused(q, k, v, mask, bias, dropout=dropout, is_causal=is_causal)
        else:
            mixed, weights = attend(q, k, v, mask, bias)
            self.watcher(weights)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch heads time head"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
