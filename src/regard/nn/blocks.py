"""One layer of a Transformer, in the orders that its parts can stand in.

    post-norm   norm(x + f(x)) for each sub-layer f           Vaswani et al. (2017), section 3.1
    pre-norm    x + f(norm(x)) for each sub-layer f           Xiong et al. (2020), arXiv 2002.04745
    parallel    x + f(n) + g(n) + h(n) with n = norm(x)       Wang & Komatsuzaki, GPT-J (2021)

Each can do without its residual sum, and without a feed-forward network. The
simplified block of He & Hofmann (2023), arXiv 2311.01906, section 4.3, is the
parallel one without residual sum over shaped attention: the sub-layers are
summed, each with a learned gain.

Dimensions: see `regard.nn.attention`.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.attention import Mask
from regard.nn.cache import Cache, Seen
from regard.nn.dropout import Dropout
from regard.nn.feedforward import FeedForward
from regard.nn.multihead import MultiHeadAttention
from regard.nn.positions import Placement

BlockOrder = Literal["pre-norm", "post-norm", "parallel"]
SubLayer = Callable[[Tensor], Tensor]

_SMALL_GAIN = 0.1
"""Of what stands beside shaped attention, so that a deep model starts out near the identity."""


class Block(nn.Module):
    """Self-attention, cross-attention where there is something seen, feed-forward where there is one."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        feedforward: FeedForward | None,
        *,
        cross_attention: MultiHeadAttention | None = None,
        make_norm: Callable[[], nn.Module],
        order: BlockOrder,
        has_residual: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.order, self.has_residual = order, has_residual
        self.attention, self.cross_attention, self.feedforward = attention, cross_attention, feedforward
        self.dropout = Dropout(dropout)
        others = sum(part is not None for part in (cross_attention, feedforward))
        if order == "parallel":
            self.norm = make_norm()
            self.gains = None if has_residual else nn.Parameter(torch.tensor([1.0] + [_SMALL_GAIN] * others))
        else:
            self.attention_norm = make_norm()
            self.cross_attention_norm = None if cross_attention is None else make_norm()
            self.feedforward_norm = None if feedforward is None else make_norm()

    def forward(
        self,
        x: Float[Tensor, "batch query model"],
        mask: Mask | None = None,
        placement: Placement | None = None,
        *,
        seen: Seen | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch query model"]:
        def look_around(y: Tensor) -> Tensor:
            return self.attention(y, mask=mask, placement=placement, cache=cache)

        layers: list[SubLayer | None] = [look_around]
        cross = self.cross_attention
        if cross is not None:
            layers.append(None if seen is None else lambda y: cross.look(y, seen.k, seen.v, seen.mask))
        else:
            assert seen is None, "there is something seen, but no cross-attention to see it by"
        if self.feedforward is not None:
            layers.append(self.feedforward)
        return self._side_by_side(x, layers) if self.order == "parallel" else self._one_by_one(x, layers)

    def see(self, memory: Float[Tensor, "batch key model"], mask: Mask | None) -> Seen:
        """An encoder's output, made ready for this block's cross-attention."""
        assert self.cross_attention is not None, "this block has no cross-attention"
        return Seen(*self.cross_attention.keys_values(memory), mask)

    def _one_by_one(self, x: Tensor, layers: Sequence[SubLayer | None]) -> Tensor:
        norms = (self.attention_norm, self.cross_attention_norm, self.feedforward_norm)
        for layer, norm in zip(layers, (norm for norm in norms if norm is not None), strict=True):
            if layer is None:
                continue
            y = self.dropout(layer(norm(x) if self.order == "pre-norm" else x))
            y = x + y if self.has_residual else y
            x = norm(y) if self.order == "post-norm" else y
        return x

    def _side_by_side(self, x: Tensor, layers: Sequence[SubLayer | None]) -> Tensor:
        n = self.norm(x)
        if self.gains is None:
            parts = [layer(n) for layer in layers if layer is not None]
        else:
            parts = [gain * layer(n) for gain, layer in zip(self.gains, layers, strict=True) if layer is not None]
        y = self.dropout(torch.stack(parts).sum(dim=0))
        return x + y if self.has_residual else y
