"""One layer of a Transformer.

Vaswani et al. (2017), section 3.1: each sub-layer is followed by a residual
sum and a normalisation ("post-norm").
Xiong et al., "On Layer Normalization in the Transformer Architecture" (2020),
https://arxiv.org/abs/2002.04745: normalise before the sub-layer ("pre-norm").

Dimensions: see `regard.nn.attention`.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.attention import Mask, MultiHeadAttention
from regard.nn.cache import KeyValues
from regard.nn.dropout import Dropout
from regard.nn.feedforward import FeedForward
from regard.nn.positions import Placement

BlockOrder = Literal["pre-norm", "post-norm"]


class Seen(NamedTuple):
    """An encoder's output as one block's cross-attention sees it: keys, values, and where it may look."""

    k: Float[Tensor, "batch shared key head"]
    v: Float[Tensor, "batch shared key head"]
    mask: Mask | None

    def select(self, rows: Tensor) -> "Seen":
        """The same for these rows of the batch, in this order."""
        mask = None if self.mask is None else self.mask.index_select(0, rows)
        return Seen(self.k.index_select(0, rows), self.v.index_select(0, rows), mask)


class Block(nn.Module):
    """Self-attention, cross-attention where there is something seen, feed-forward; each with a residual sum."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        feedforward: FeedForward,
        *,
        cross_attention: MultiHeadAttention | None = None,
        make_norm: Callable[[], nn.Module],
        order: BlockOrder,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.order = order
        self.attention, self.attention_norm = attention, make_norm()
        self.cross_attention = cross_attention
        self.cross_attention_norm = None if cross_attention is None else make_norm()
        self.feedforward, self.feedforward_norm = feedforward, make_norm()
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch query model"],
        mask: Mask | None = None,
        placement: Placement | None = None,
        *,
        seen: Seen | None = None,
        cache: KeyValues | None = None,
    ) -> Float[Tensor, "batch query model"]:
        x = self._add(x, self.attention_norm, lambda y: self.attention(y, mask=mask, placement=placement, cache=cache))
        if seen is not None:
            cross, norm = self.cross_attention, self.cross_attention_norm
            assert cross is not None
            assert norm is not None
            x = self._add(x, norm, lambda y: cross.look(y, seen.k, seen.v, seen.mask))
        return self._add(x, self.feedforward_norm, self.feedforward)

    def see(self, memory: Float[Tensor, "batch key model"], mask: Mask | None) -> Seen:
        """An encoder's output, made ready for this block's cross-attention."""
        assert self.cross_attention is not None, "this block has no cross-attention"
        return Seen(*self.cross_attention.keys_values(memory), mask)

    def _add(self, x: Tensor, norm: nn.Module, layer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.order == "pre-norm":
            return x + self.dropout(layer(norm(x)))
        return norm(x + self.dropout(layer(x)))
