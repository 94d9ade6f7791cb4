"""One layer of a Transformer, in the orders in which its sub-layers can be combined.

    post-norm   norm(x + f(x)) for each sub-layer f           Vaswani et al. (2017), section 3.1
    pre-norm    x + f(norm(x)) for each sub-layer f           Xiong et al. (2020), arXiv 2002.04745
    parallel    x + f(n) + g(n) + h(n) with n = norm(x)       Wang & Komatsuzaki, GPT-J (2021)

The residual sum and the feed-forward network are optional. The simplified block
of He & Hofmann (2023), arXiv 2311.01906, section 4.3, is the parallel order
without residual sum and with shaped attention: the outputs of the sub-layers are
summed, each multiplied by a learned gain.

Dimensions: see `regard.nn.attention`.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.attention import Lookup, Mask, MultiHeadAttention
from regard.nn.dropout import Dropout, StochasticDepth
from regard.nn.feedforward import FeedForward
from regard.nn.kv_cache import CrossAttentionKV, LayerCache
from regard.nn.positions import PositionEncoding
from regard.nn.sparse_attention import LowRankLookup

BlockOrder = Literal["pre-norm", "post-norm", "parallel"]
SubLayer = Callable[[Tensor], Tensor]

_SMALL_GAIN = 0.1
"""Initial gain of the sub-layers beside shaped attention, so that a deep model is near the identity at first."""


class Block(nn.Module):
    """Self-attention, then cross-attention and a feed-forward network where the block has them."""

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
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        self.order, self.has_residual = order, has_residual
        self.attention, self.cross_attention, self.feedforward = attention, cross_attention, feedforward
        self.dropout = Dropout(dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth)
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
        positions: PositionEncoding | None = None,
        *,
        cross_kv: CrossAttentionKV | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch query model"]:
        """Return the output of the block; `cross_kv` is what `project_memory` returned, where there is cross-attention.

        Raises:
            ConfigError: If the block has cross-attention and `cross_kv` is missing, or the other way round.
        """
        if (self.cross_attention is None) != (cross_kv is None):
            has, got = ("no", "one") if self.cross_attention is None else ("a", "none")
            raise ConfigError(
                f"a block must be given an encoder output if it has cross-attention: has {has}, got {got}"
            )
        layers: list[SubLayer] = [lambda y: self.attention(y, mask=mask, positions=positions, cache=cache)]
        if (cross := self.cross_attention) is not None and cross_kv is not None:
            layers.append(lambda y: cross.cross_attend(y, cross_kv))
        if self.feedforward is not None:
            layers.append(self.feedforward)
        return self._parallel(x, layers) if self.order == "parallel" else self._sequential(x, layers)

    def project_memory(self, memory: Float[Tensor, "batch key model"], mask: Mask | None) -> CrossAttentionKV:
        """Compute the keys and values of an encoder's output for the cross-attention of this block."""
        assert self.cross_attention is not None, "the model checks that it has an encoder"
        return self.cross_attention.project_memory(memory, mask)

    def _sequential(self, x: Tensor, layers: Sequence[SubLayer]) -> Tensor:
        norms = (self.attention_norm, self.cross_attention_norm, self.feedforward_norm)
        for layer, norm in zip(layers, (norm for norm in norms if norm is not None), strict=True):
            y = self.stochastic_depth(self.dropout(layer(norm(x) if self.order == "pre-norm" else x)))
            y = x + y if self.has_residual else y
            x = norm(y) if self.order == "post-norm" else y
        return x

    def _parallel(self, x: Tensor, layers: Sequence[SubLayer]) -> Tensor:
        n = self.norm(x)
        if self.gains is None:
            parts = [layer(n) for layer in layers]
        else:
            parts = [gain * layer(n) for gain, layer in zip(self.gains, layers, strict=True)]
        y = self.stochastic_depth(self.dropout(torch.stack(parts).sum(dim=0)))
        return x + y if self.has_residual else y


def has_dropout(module: nn.Module) -> bool:
    """Whether a module, or one inside of it, computes something random in training."""
    parts = list(module.modules())
    rates = [part.probability for part in parts if isinstance(part, Dropout | StochasticDepth)]
    return any(rates) or any(part.dropout > 0.0 for part in parts if isinstance(part, Lookup | LowRankLookup))


def blocks_of(model: nn.Module) -> list[Block]:
    """The blocks of a Transformer, which sharding gathers and activation checkpointing computes again, one by one."""
    return [module for module in model.modules() if isinstance(module, Block)]
