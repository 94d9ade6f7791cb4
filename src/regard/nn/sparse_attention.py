"""Attention to fewer keys: those of a sparse pattern, or a fixed number of averages of all keys.

Beltagy et al., "Longformer" (2020). https://arxiv.org/abs/2004.05150
Child et al., "Generating Long Sequences with Sparse Transformers" (2019). https://arxiv.org/abs/1904.10509
Wang et al., "Linformer" (2020). https://arxiv.org/abs/2006.04768

    SparseLookup    a `Lookup` whose queries attend to the keys of a `SparsePattern`
    LowRankLookup   learned averages of the keys and values over the positions

Dimensions: see `regard.nn.attention`; `rank` averages.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.logging import log_warning
from regard.nn.attention import Bias, Lookup, Mask, attend_fused
from regard.nn.masks import SparsePattern
from regard.nn.similarity import DotProduct

_MIN_BLOCK = 64
"""Queries that are processed at once at least: smaller matrix products do not use a processor fully."""
_KERNEL_BLOCK = 128
"""Queries and keys of a tile of FlexAttention, its default."""
_KERNEL_HEAD_DIMS = (16, 32, 64, 128, 256)
_MIN_KERNEL_LENGTH = 1_024
"""Shorter sequences have few tiles to leave out, and each new length may be compiled for."""
_COMPILERS = ("torch._dynamo", "torch._inductor", "triton")
"""Whose errors say that FlexAttention cannot be compiled here."""
_MOST_COMPILED = 64
"""Forms of FlexAttention, such as those with and without a gradient, or for the first length and for any."""
_FAILED: list[str] = []
"""Why FlexAttention is not used any more."""
_CAPTURED: set[Any] = set()
"""Masks of tiles that CUDA graphs read, which are kept for as long as the process lives."""


class SparseLookup(nn.Module):
    """A `Lookup` whose queries attend to the keys of a pattern.

    The specification is the mask of the pattern (`attend_densely`). The cost of the
    fast forms is linear in the length: on a GPU FlexAttention leaves out the tiles of
    the score matrix that the pattern excludes; elsewhere each block of queries is
    computed with the keys that one of them attends to, and the pattern's mask of these.

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
        if mask is None and bias is None and self._has_kernel(q):
            try:
                return self.attend_by_tiles(q, k, v, compiled_flex_attention())
            except Exception as error:
                if not type(error).__module__.startswith(_COMPILERS):
                    raise
                _do_without_kernel(error)
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

    def attend_by_tiles(
        self,
        q: Float[Tensor, "batch heads time head"],
        k: Float[Tensor, "batch shared time head"],
        v: Float[Tensor, "batch shared time value"],
        kernel: Callable[..., Any],
    ) -> Float[Tensor, "batch heads time value"]:
        """Compute by `kernel`, which is FlexAttention, compiled or not."""
        assert isinstance(self.lookup.similarity, DotProduct)
        if (group := q.size(1) // k.size(1)) & (group - 1):  # the kernel shares keys among a power of 2 of heads
            k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
        scale = self.lookup.similarity.scale / self.lookup.temperature
        tiles = block_mask(self.pattern, q.size(2), q.device)
        if q.is_cuda and torch.cuda.is_current_stream_capturing():
            _CAPTURED.add(tiles)
        return kernel(q, k, v, block_mask=tiles, scale=scale, enable_gqa=q.size(1) != k.size(1))

    def _has_kernel(self, q: Float[Tensor, "batch heads time head"]) -> bool:
        lookup = self.lookup
        is_plain = lookup.retrieval == "soft" and isinstance(lookup.similarity, DotProduct)
        has_sizes = q.size(3) in _KERNEL_HEAD_DIMS and q.size(2) >= _MIN_KERNEL_LENGTH
        is_on_gpu = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and not torch.compiler.is_compiling()
        return not _FAILED and is_on_gpu and is_plain and has_sizes and not (lookup.training and lookup.dropout)

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


@cache
def compiled_flex_attention() -> Callable[..., Any]:
    """Return FlexAttention, compiled at its first call; only compiled it leaves out tiles."""
    import torch._dynamo
    from torch.nn.attention.flex_attention import flex_attention  # imports the compiler, which takes seconds

    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MOST_COMPILED)
    # A full graph: beyond the limit there is an error, where all scores would silently be computed otherwise.
    return torch.compile(flex_attention, fullgraph=True)


def _do_without_kernel(error: Exception) -> None:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    _FAILED.append(reason)
    log_warning(f"FlexAttention cannot be compiled, windows are computed in blocks, which is slower: {reason}")


@lru_cache(maxsize=64)
def block_mask(pattern: SparsePattern, length: int, device: torch.device) -> Any:
    """Return a `BlockMask`: the tiles of the score matrix that a pattern leaves empty, fills, or fills in part.

    It equals PyTorch's `create_block_mask`, which computes the whole mask at once, eight bytes for each score and more.
    """
    from torch.nn.attention.flex_attention import BlockMask  # imports the compiler, which takes seconds

    some, every = [], []
    with torch.inference_mode(False), torch.no_grad():
        positions = torch.arange(length, device=device)
        for queries in positions.split(_KERNEL_BLOCK):
            # A tile that ends beyond the sequence is never a full one.
            allowed = pattern.mask(queries, positions)
            allowed = F.pad(allowed, (0, -length % _KERNEL_BLOCK, 0, _KERNEL_BLOCK - len(queries)))
            tiles = allowed.unflatten(1, (-1, _KERNEL_BLOCK)).transpose(0, 1).flatten(1)
            some.append(tiles.any(dim=1))
            every.append(tiles.all(dim=1))
        full = torch.stack(every)
        return BlockMask.from_kv_blocks(
            *_ordered(torch.stack(some) & ~full), *_ordered(full), BLOCK_SIZE=_KERNEL_BLOCK,
            mask_mod=lambda batch, head, query, key: pattern.allows(query, key), seq_lengths=(length, length),
        )  # fmt: skip


def _ordered(tiles: Bool[Tensor, "rows columns"]) -> tuple[Int[Tensor, "1 1 rows"], Int[Tensor, "1 1 rows columns"]]:
    """Return the number of true tiles in each row, and the columns, those of the true tiles first."""
    columns = tiles.int().argsort(dim=1, descending=True, stable=True)
    return tiles.sum(dim=1, dtype=torch.int32)[None, None], columns.int()[None, None].contiguous()


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
