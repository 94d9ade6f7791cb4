"""The states of a Transformer's decoder between steps.

    TransformerState   a KV cache that grows; all rows have the same length
    StaticCache        a KV cache of fixed size; each row has its own length: continuous batching
    BeamTreeCache      the hypotheses of beam search, which share the entries of their common prefixes
    StaticBeamCache    the same in tensors of fixed size, so that a step can be captured as a CUDA graph

Dimensions: see `regard.nn.attention`; `beam` hypotheses of a row.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.models.protocols import DecoderState
from regard.nn.kv_cache import (
    CrossAttentionKV,
    GrowingCache,
    KVCache,
    StaticKVCache,
    StaticLayerCache,
    select_shared,
)

_UNUSED_ENTRIES = 4
"""Unused entries per hypothesis from which on a tree is compacted."""
_SOURCE_MULTIPLE = 32
"""Static source lengths are multiples of this, so that one CUDA graph serves sources of similar length."""


@dataclass
class TransformerState:
    """What each decoder block stores of the positions so far, and the keys and values of its cross-attention."""

    caches: list[GrowingCache]
    cross_kvs: list[CrossAttentionKV] | None
    """With as many rows as the batch, or fewer, each of which serves as many consecutive rows."""

    def select(self, rows: Int[Tensor, " chosen"]) -> "TransformerState":
        caches = [cache.select(rows) for cache in self.caches]
        if self.cross_kvs is None:
            return TransformerState(caches, None)
        num_sharing = self.caches[0].batch_size // self.cross_kvs[0].k.size(0)
        return TransformerState(caches, select_shared(self.cross_kvs, rows // num_sharing))

    def full_caches(self) -> list[KVCache] | None:
        """Return the caches if each stores all positions, which hypotheses can then share; otherwise None."""
        full = [cache for cache in self.caches if isinstance(cache, KVCache)]
        return full if len(full) == len(self.caches) else None

    def to_tree(self) -> "BeamTreeCache | None":
        """Return the same state as a tree with one hypothesis per row; None where some positions are not stored."""
        if (caches := self.full_caches()) is None:
            return None
        batch, length = caches[0].batch_size, caches[0].length
        depths = torch.arange(length, device=caches[0].keys.device).expand(batch, length)
        ancestors = torch.ones_like(depths, dtype=torch.bool)[:, None]
        return BeamTreeCache(caches, self.cross_kvs, ancestors, depths, length)

    def to_static_beams(self, beam_size: int, capacity: int) -> "StaticBeamCache | None":
        """Return an empty static cache for `beam_size` hypotheses of each row, of up to `capacity` tokens.

        None where some positions are not stored.
        """
        if (caches := self.full_caches()) is None:
            return None
        like = caches[0].keys
        batch, heads, _, head = like.shape
        keys = like.new_zeros(batch, heads, capacity * beam_size, head)
        cross_kvs = self.cross_kvs and [kv.empty_like(multiple=_SOURCE_MULTIPLE) for kv in self.cross_kvs]
        return StaticBeamCache(
            caches=[StaticKVCache(keys.clone(), keys.clone()) for _ in caches],
            cross_kvs=cross_kvs,
            ancestors=torch.zeros(batch, beam_size, capacity * beam_size, dtype=torch.bool, device=like.device),
            depths=(torch.arange(capacity * beam_size, device=like.device) // beam_size).expand(batch, -1),
            length=torch.zeros((), dtype=torch.long, device=like.device),
        )


@dataclass
class StaticCache:
    """A KV cache of fixed size; each row of the batch has its own length."""

    caches: list[StaticLayerCache]
    lengths: Int[Tensor, " batch"]
    """Positions processed in each row."""
    cross_kvs: list[CrossAttentionKV] | None
    capacity: int
    """Positions of the longest sequence."""

    @property
    def num_bytes(self) -> int:
        """Bytes of what the layers store of the positions so far."""
        parts = [part for cache in self.caches for part in vars(cache).values() if isinstance(part, Tensor)]
        return sum(part.untyped_storage().nbytes() for part in parts)

    def select(self, rows: Int[Tensor, " chosen"]) -> "StaticCache":
        cross_kvs = self.cross_kvs and [kv.select(rows) for kv in self.cross_kvs]
        caches = [cache.select(rows) for cache in self.caches]
        return StaticCache(caches, self.lengths.index_select(0, rows), cross_kvs, self.capacity)

    def put(self, rows: Int[Tensor, " chosen"], state: DecoderState) -> None:
        assert isinstance(state, TransformerState | StaticCache)
        for own, new in zip(self.caches, state.caches, strict=True):
            own.put(rows, new)
        self.lengths[rows] = state.lengths if isinstance(state, StaticCache) else state.caches[0].length
        for own, new in zip(self.cross_kvs or (), state.cross_kvs or (), strict=True):
            own.put(rows, new)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for cache in self.caches:
            cache.reorder(rows)
        self.lengths.copy_(self.lengths.index_select(0, rows))


@dataclass
class BeamTreeCache:
    """The hypotheses of each row as a tree, in which common prefixes are stored once.

    A step adds an entry for each hypothesis, which attends to its ancestors. Where
    hypotheses change places, or one is continued as two, only the table of ancestors
    changes: keys and values are not copied. Entries without descendants are removed
    from time to time.
    """

    caches: list[KVCache]
    cross_kvs: list[CrossAttentionKV] | None
    ancestors: Bool[Tensor, "batch beam key"]
    """The entries that each hypothesis consists of."""
    depths: Int[Tensor, "batch key"]
    """The position of each entry in its hypothesis."""
    length: int
    """Positions of each hypothesis."""

    @property
    def max_length(self) -> int:
        """Positions of each hypothesis after the next step."""
        return self.length + 1

    def grow(self) -> tuple[list[KVCache], Int[Tensor, "batch beam"]]:
        """Add an entry to each hypothesis; returns the caches to store it in, and its position."""
        batch, beam, _ = self.ancestors.shape
        own = torch.eye(beam, dtype=torch.bool, device=self.depths.device)
        positions = torch.full((batch, beam), self.length, device=self.depths.device)
        self.ancestors = torch.cat([self.ancestors, own.expand(batch, beam, beam)], dim=2)
        self.depths = torch.cat([self.depths, positions], dim=1)
        self.length += 1
        return self.caches, positions

    def select(self, rows: Int[Tensor, " chosen"]) -> "BeamTreeCache":
        """Return the tree of these hypotheses, of each row equally many and consecutive. This tree is consumed."""
        batch, beam, num_entries = self.ancestors.shape
        chosen = (rows // beam).unique_consecutive()
        ancestors = self.ancestors.flatten(0, 1).index_select(0, rows).unflatten(0, (len(chosen), -1))
        caches, cross_kvs, depths = self.caches, self.cross_kvs, self.depths
        if not torch.equal(chosen, torch.arange(batch, device=rows.device)):
            caches = [cache.select(chosen) for cache in caches]
            cross_kvs = cross_kvs and [kv.select(chosen) for kv in cross_kvs]
            depths = depths.index_select(0, chosen)
        tree = BeamTreeCache(caches, cross_kvs, ancestors, depths, self.length)
        is_used = ancestors.any(dim=1)
        most = int(is_used.sum(dim=1).max())
        if num_entries - most > _UNUSED_ENTRIES * ancestors.size(1):
            tree._keep(is_used.byte().argsort(dim=1, descending=True, stable=True)[:, :most])
        return tree

    def _keep(self, entries: Int[Tensor, "batch kept"]) -> None:
        for cache in self.caches:
            cache.keep(entries)
        self.ancestors = self.ancestors.gather(2, entries[:, None].expand(-1, self.ancestors.size(1), -1))
        self.depths = self.depths.gather(1, entries)


@dataclass
class StaticBeamCache:
    """A `BeamTreeCache` of fixed size, which a step changes in place, so that it can be captured as a CUDA graph."""

    caches: list[StaticKVCache]
    """The entry of hypothesis b of step t is at index t * beam + b."""
    cross_kvs: list[CrossAttentionKV] | None
    ancestors: Bool[Tensor, "batch beam key"]
    depths: Int[Tensor, "batch key"]
    length: Int[Tensor, ""]
    """Steps so far."""

    @property
    def max_length(self) -> int:
        """Positions of the longest hypothesis that can be stored."""
        return self.ancestors.size(2) // self.ancestors.size(1)

    def fits(self, state: DecoderState) -> bool:
        assert isinstance(state, TransformerState)
        has_cross = self.cross_kvs is not None
        if self.ancestors.size(0) != state.caches[0].batch_size or has_cross != (state.cross_kvs is not None):
            return False
        pairs = zip(self.cross_kvs or (), state.cross_kvs or (), strict=True)
        return all(0 <= own.k.size(2) - new.k.size(2) < _SOURCE_MULTIPLE for own, new in pairs)

    def reset(self, state: DecoderState) -> None:
        assert isinstance(state, TransformerState)
        assert state.caches[0].length == 0, "hypotheses branch after their first token"
        rows = torch.arange(self.ancestors.size(0), device=self.ancestors.device)
        for own, new in zip(self.cross_kvs or (), state.cross_kvs or (), strict=True):
            own.put(rows, new)
        self.ancestors.fill_(False)
        self.length.fill_(0)

    def grow(self) -> tuple[list[StaticKVCache], Int[Tensor, "batch beam"]]:
        """Add an entry to each hypothesis; returns the caches to store it in, and its position."""
        batch, beam, _ = self.ancestors.shape
        indices = self.length * beam + torch.arange(beam, device=self.length.device)
        indices = indices.expand(batch, beam)
        self.ancestors.scatter_(2, indices[:, :, None], True)
        positions = self.length.repeat(batch, beam)
        self.length.add_(1)
        return [cache.at(indices) for cache in self.caches], positions

    def select(self, rows: Int[Tensor, " chosen"]) -> "StaticBeamCache":
        """Return a copy for these hypotheses, of each row all or none."""
        beam = self.ancestors.size(1)
        chosen = rows[::beam] // beam
        cross_kvs = self.cross_kvs and [kv.select(chosen) for kv in self.cross_kvs]
        ancestors = self.ancestors.flatten(0, 1).index_select(0, rows).unflatten(0, (-1, beam))
        caches = [cache.select(chosen) for cache in self.caches]
        return StaticBeamCache(caches, cross_kvs, ancestors, self.depths[: len(chosen)], self.length.clone())

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        self.ancestors.copy_(self.ancestors.flatten(0, 1).index_select(0, rows).view_as(self.ancestors))
