"""Attention: a memory of keys and values, looked at by similarity.

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and
Translate" (2014). https://arxiv.org/abs/1409.0473
Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1: scaled dot product.
https://arxiv.org/abs/1706.03762

Dimensions, the same in every file of `regard.nn`:
    batch       sequences read together
    query, key  positions that look, and positions looked at
    time        positions, where it does not matter which of the two
    heads       parallel attentions; `shared` counts the key/value heads, which divide them
    model       width of the residual stream
    head        width of one head, model / heads
    value       width of a value, where it is not that of a head
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.nn.masks import causal_mask
from regard.nn.similarity import DotProduct, Similarity

Mask = Bool[Tensor, "#batch #heads #query key"]
Bias = Float[Tensor, "#batch #heads query key"]
Retrieval = Literal["soft", "hard"]


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

    `hard` retrieval takes the one value with the best score, which is the limit
    of the temperature $\tau$ to 0. It has no slope, so its gradient is that of
    the soft average (Bengio et al., 2013, "straight-through", arXiv 1308.3432).

    `mask` is True where a query may look. A query that may look nowhere gets
    zeros, never NaN: one padding row must not poison a batch.

    `dropout` is the probability with which a weight is left out. Returns the
    averages and the weights that made them.
    """
    v = v.repeat_interleave(scores.size(1) // v.size(1), dim=1)
    scores = scores / temperature
    if mask is not None:
        # The least finite number, not -inf: softmax over a row of -inf is NaN.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if retrieval == "hard":
        best = torch.zeros_like(weights).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0)
        # The bracket is exactly zero and has a slope; without it rounding would leave less or more than one.
        weights = best + (weights - weights.detach())
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    if dropout:
        weights = F.dropout(weights, dropout)
    # A bias in full precision makes full-precision weights, whatever the values are.
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
    """The averages of `attend` for scores `scale * q k + bias`, by PyTorch's fused kernel, which never forms them."""
    if bias is not None:
        allowed = bias.to(q.dtype)
        mask = allowed if mask is None else allowed.masked_fill(~mask, -torch.inf)
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p=dropout, is_causal=is_causal, scale=scale, enable_gqa=q.size(1) != k.size(1)
    )


class Lookup(nn.Module):
    """Looking things up in a memory: score the keys, and average the values by their scores.

    A `watcher`, when one is set, is handed the weights of each call. Where there
    is none, an inner product is looked up softly by the fused kernel, and the
    weights are never formed.
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
        """Keys as `forward` wants them."""
        return self.similarity.prepare(k)

    def forward(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key value"],
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch heads query value"]:
        """What each query finds among prepared keys."""
        return self._find(q, k, v, mask, bias, dropout=self.dropout if self.training else 0.0, watcher=self.watcher)

    def find_unasked(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key value"],
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch heads query value"]:
        """What `forward` would find if the queries were zero; nobody watches, and no weight is dropped."""
        return self._find(torch.zeros_like(q), k, v, mask, bias)

    def _find(
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
        # A single query is the newest position and may see all there is, and a mask that has a row for each
        # query says itself who comes after whom; one row for all of them only says where padding is.
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
        found, weights = attend(
            scores, v, mask, temperature=self.temperature, retrieval=self.retrieval, dropout=dropout
        )
        if watcher is not None:
            watcher(weights)
        return found
