"""Attention to fewer keys: those of a sparse pattern, or a fixed number of averages of all keys.

Beltagy et al., "Longformer" (2020). https://arxiv.org/abs/2004.05150
Child et al., "Generating Long Sequences with Sparse Transformers" (2019). https://arxiv.org/abs/1904.10509
Wang et al., "Linformer" (2020). https://arxiv.org/abs/2006.04768

    SparseLookup    a `Lookup` whose queries attend to the keys of a `SparsePattern`
    LowRankLookup   learned averages of the keys and values over the positions

Dimensions: see `regard.nn.attention`; `rank` averages.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.attention import Bias, Lookup, Mask, attend_fused
from regard.nn.masks import SparsePattern

_MIN_BLOCK = 64
"""Queries that are processed at once at least: smaller matrix products do not use a processor fully."""


class SparseLookup(nn.Module):
    """A `Lookup` whose queries attend to the keys of a pattern.

    The specification is the mask of the pattern (`attend_densely`). The cost of the
    fast form is linear in the length: for each block of queries it computes with the
    keys that one of them attends to, and with the pattern's mask of these.

    A mask with one row per query, or for a single query, already contains the pattern.
    """

    def __init__(self, lookup: Lookup, pattern: SparsePattern) -> None:
        super().__init__()
        self.lookup, self.pattern = lookup, pattern
        # Shorter blocks compute fewer scores that the mask excludes, longer ones copy fewer keys.
        self.block_length = max(_MIN_BLOCK, pattern.window // 2)

    def prepare(self, k: Float[Tensor, "batch shared key head"]) -> Float[Tensor, "batch shared key head"]:
        return self.lookup.prepare(k)

    def forward(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key value"],
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch heads query value"]:
        if q.size(2) == 1 or (mask is not None and mask.size(2) > 1):
            return self.lookup(q, k, v, mask, bias)
        # Weights are recorded as one matrix, and a graph with a variable length has no loop over it.
        is_dense = self.lookup.watcher is not None or torch.compiler.is_exporting()
        if is_dense or q.size(2) <= 2 * self.block_length:
            return self.attend_densely(q, k, v, mask, bias)
        return self._attend_in_blocks(q, k, v, mask, bias)

    def attend_densely(
        self,
        q: Float[Tensor, "batch heads time head"],
        k: Float[Tensor, "batch shared time head"],
        v: Float[Tensor, "batch shared time value"],
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch heads time value"]:
        """Compute all scores and exclude those outside the pattern; `mask` marks padding."""
        positions = torch.arange(q.size(2), device=q.device)
        allowed = self.pattern.mask(positions, positions)[None, None]
        return self.lookup(q, k, v, allowed if mask is None else allowed & mask, bias)

    def attend_with_zero_queries(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key value"],
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch heads query value"]:
        """Return what `forward` would return for queries of zeros; the watcher is not called."""
        watcher, self.lookup.watcher = self.lookup.watcher, None
        try:
            return self(torch.zeros_like(q), k, v, mask, bias)
        finally:
            self.lookup.watcher = watcher

    def _attend_in_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, bias: Bias | None
    ) -> Float[Tensor, "batch heads time value"]:
        pattern, length, num_global, time = self.pattern, self.block_length, self.pattern.num_global, q.size(2)
        # Places are computed on the host and ranges on the device: nothing is read from a GPU, and nothing is copied
        # to it, which a CUDA graph cannot capture.
        common = pattern.common_positions(time, q.device)
        # Splitting has a gradient of linear cost; slices would each add to one of full length.
        keys, values = k.split(length, dim=2), v.split(length, dim=2)
        common_keys, common_values = (part.index_select(2, common) for part in (k, v))
        reach = -(-(pattern.window - 1) // length)
        masks: dict[tuple[int, int, int], Tensor] = {}
        parts = []
        for i, queries in enumerate(q.split(length, dim=2)):
            first, last = max(0, i - reach), i + 1 if pattern.is_causal else min(len(keys), i + reach + 1)
            start, end = first * length, min(last * length, time)
            before, after = pattern.num_common(start), time if pattern.is_causal else pattern.num_common(end)
            far = [slice(before), *([] if pattern.is_causal else [slice(after, None)])]
            near = torch.arange(start, end, device=q.device)
            indices = torch.cat([near, *(common[each] for each in far)])
            shape = (queries.size(2), len(near), i - first) if len(indices) == len(near) else (i, 0, 0)
            if shape not in masks:
                positions = torch.arange(i * length, i * length + queries.size(2), device=q.device)
                masks[shape] = pattern.mask(positions, indices)[None, None]
            allowed = masks[shape] if mask is None else masks[shape] & mask.index_select(3, indices)
            block_k = torch.cat([*keys[first:last], *(common_keys[:, :, each] for each in far)], dim=2)
            block_v = torch.cat([*values[first:last], *(common_values[:, :, each] for each in far)], dim=2)
            own_bias = None if bias is None else bias.split(length, dim=2)[i].index_select(3, indices)
            parts.append(self.lookup(queries, block_k, block_v, allowed, own_bias))
        found = torch.cat(parts, dim=2)
        if pattern.is_causal or not num_global:
            return found
        rows = None if bias is None else bias[:, :, :num_global]
        return torch.cat([self.lookup(q[:, :, :num_global], k, v, mask, rows), found[:, :, num_global:]], dim=2)


class LowRankLookup(nn.Module):
    r"""Attention to `rank` learned averages of the keys and values, $\mathrm{softmax}(q (E k)^\top / \sqrt d) F v$.

    An average includes all positions, later ones too, so that it cannot be causal:
    Linformer is for encoders. Up to `context_length` positions are averaged; padding is
    left out.
    """

    def __init__(self, rank: int, context_length: int, *, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale, self.dropout, self.context_length = scale, dropout, context_length
        std = context_length**-0.5
        self.key_averages, self.value_averages = (nn.Parameter(std * torch.randn(rank, context_length)) for _ in "kv")

    def prepare(self, k: Float[Tensor, "batch shared key head"]) -> Float[Tensor, "batch shared key head"]:
        return k

    def forward(
        self,
        q: Float[Tensor, "batch heads time head"],
        k: Float[Tensor, "batch shared time head"],
        v: Float[Tensor, "batch shared time value"],
        mask: Mask | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "batch heads time value"]:
        assert bias is None, "the settings exclude positions with a bias"
        length = k.size(2)
        if length > self.context_length:
            raise ConfigError(
                f"low-rank attention averages up to context_length={self.context_length} positions, "
                f"the sequence has {length}"
            )
        if mask is not None and mask.size(2) > 1:
            raise ConfigError("low-rank attention averages all positions of a row: it cannot isolate documents in it")
        if mask is not None:
            k, v = (part * mask.transpose(2, 3).to(part.dtype) for part in (k, v))
        averaged_k = self.key_averages[:, :length].to(k.dtype) @ k
        averaged_v = self.value_averages[:, :length].to(v.dtype) @ v
        return attend_fused(q, averaged_k, averaged_v, scale=self.scale, dropout=self.dropout if self.training else 0.0)
