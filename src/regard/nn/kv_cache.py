"""What attention stores between decoding steps, of the decoder itself and of the encoder's output.

    KVCache              all keys and values, in tensors that grow; all rows have the same length
    SparseKVCache        the same, of the positions that a sparse pattern still needs
    StaticKVCache        all keys and values, in tensors of fixed size; each row has its own length
    SparseStaticKVCache  the same, with a ring buffer for the window of a sparse pattern
    LinearCache          the sums of linear attention, which do not grow; in a growing and in a static state
    CrossAttentionKV     the keys and values of the encoder's output

Dimensions: see `regard.nn.attention`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.nn.masks import SparsePattern

_FIRST_CAPACITY = 16


@dataclass
class KVCache:
    """The keys and values of the positions so far; every row of the batch has the same length.

    The capacity grows by doubling, so that appending n positions one at a time
    copies O(n) numbers and not O(n^2).
    """

    keys: Float[Tensor, "batch heads capacity head"]
    values: Float[Tensor, "batch heads capacity head"]
    length: int

    @classmethod
    def empty(cls, like: Float[Tensor, "batch heads time head"]) -> "KVCache":
        """Return a cache without positions, with the sizes, dtype and device of `like`."""
        return cls(like[:, :, :0], like[:, :, :0], 0)

    @property
    def batch_size(self) -> int:
        return self.keys.size(0)

    def append(
        self, k: Float[Tensor, "batch heads new head"], v: Float[Tensor, "batch heads new head"]
    ) -> tuple[Float[Tensor, "batch heads key head"], Float[Tensor, "batch heads key head"]]:
        """Store new positions; returns all keys and all values so far."""
        end = self.length + k.size(2)
        if end > self.keys.size(2):
            capacity = max(end, 2 * self.keys.size(2), _FIRST_CAPACITY)
            self.keys, self.values = (self._enlarge(old, capacity) for old in (self.keys, self.values))
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def select(self, rows: Int[Tensor, " chosen"]) -> "KVCache":
        """Return the cache of these rows of the batch, in this order; a row may occur twice."""
        return KVCache(self.keys.index_select(0, rows), self.values.index_select(0, rows), self.length)

    def keep(self, indices: Int[Tensor, "batch kept"]) -> None:
        """Keep the entries of each row at these indices, in this order, and drop the others."""
        batch, heads, capacity, _ = self.keys.shape
        firsts = capacity * torch.arange(batch * heads, device=indices.device)
        rows = (firsts[:, None] + indices.repeat_interleave(heads, dim=0)).flatten()
        for part in (self.keys, self.values):
            part[:, :, : indices.size(1)] = (
                part.view(-1, part.size(3)).index_select(0, rows).view(batch, heads, -1, part.size(3))
            )
        self.length = indices.size(1)

    def _enlarge(self, old: Tensor, capacity: int) -> Tensor:
        batch, heads, _, head = old.shape
        new = old.new_zeros(batch, heads, capacity, head)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new


@dataclass
class SparseKVCache:
    """The keys and values that later queries of a sparse pattern attend to; every row has the same length.

    Of a window without other keys the size does not depend on the length of the sequence.
    """

    keys: Float[Tensor, "batch heads kept head"]
    values: Float[Tensor, "batch heads kept head"]
    positions: Int[Tensor, " kept"]
    """The positions of the stored keys; on the host."""
    length: int
    """Positions so far."""
    pattern: SparsePattern

    @classmethod
    def empty(cls, like: Float[Tensor, "batch heads time head"], pattern: SparsePattern) -> "SparseKVCache":
        """Return a cache without positions, with the sizes, dtype and device of `like`."""
        return cls(like[:, :, :0], like[:, :, :0], torch.zeros(0, dtype=torch.long), 0, pattern)

    @property
    def batch_size(self) -> int:
        return self.keys.size(0)

    def key_positions(self, num_new: int) -> Int[Tensor, " key"]:
        """Return the positions of the keys that `append` returns for so many new ones."""
        return torch.cat([self.positions, torch.arange(self.length, self.length + num_new)])

    def append(
        self, k: Float[Tensor, "batch heads new head"], v: Float[Tensor, "batch heads new head"]
    ) -> tuple[Float[Tensor, "batch heads key head"], Float[Tensor, "batch heads key head"]]:
        """Store new positions; returns the keys and values of `key_positions` and forgets those not needed later."""
        positions = self.key_positions(k.size(2))
        keys, values = torch.cat([self.keys, k], dim=2), torch.cat([self.values, v], dim=2)
        self.length += k.size(2)
        is_near = positions > self.length - self.pattern.window
        kept = (is_near | self.pattern.is_common(positions)).nonzero()[:, 0]
        self.positions, indices = positions[kept], kept.to(k.device)
        self.keys, self.values = keys.index_select(2, indices), values.index_select(2, indices)
        return keys, values

    def select(self, rows: Int[Tensor, " chosen"]) -> "SparseKVCache":
        """Return the cache of these rows of the batch, in this order; a row may occur twice."""
        keys, values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        return SparseKVCache(keys, values, self.positions, self.length, self.pattern)


@dataclass
class StaticKVCache:
    """Keys and values in tensors of fixed size; each row of the batch has its own length.

    No tensor is moved or resized, so that a step can be captured as a CUDA graph
    and rows can be replaced one by one. Entries beyond the end of a row are
    leftovers that a mask must exclude.
    """

    keys: Float[Tensor, "batch heads capacity head"]
    values: Float[Tensor, "batch heads capacity head"]
    indices: Int[Tensor, "batch new"] | None = None
    """Where `append` stores the new positions of this step."""

    def at(self, indices: Int[Tensor, "batch new"]) -> "StaticKVCache":
        """Return the same tensors, with the indices at which `append` stores new positions."""
        return StaticKVCache(self.keys, self.values, indices)

    def append(
        self, k: Float[Tensor, "batch heads new head"], v: Float[Tensor, "batch heads new head"]
    ) -> tuple[Float[Tensor, "batch heads capacity head"], Float[Tensor, "batch heads capacity head"]]:
        """Store new positions at `indices`; returns the whole tensors."""
        assert self.indices is not None, "`at` sets the indices before a step"
        indices = self.indices[:, None, :, None].expand(k.shape)
        self.keys.scatter_(2, indices, k.to(self.keys.dtype))
        self.values.scatter_(2, indices, v.to(self.values.dtype))
        return self.keys, self.values

    def select(self, rows: Int[Tensor, " chosen"]) -> "StaticKVCache":
        """Return a copy of these rows of the batch, in this order."""
        return StaticKVCache(self.keys.index_select(0, rows), self.values.index_select(0, rows))

    def put(self, rows: Int[Tensor, " chosen"], other: "LayerCache") -> None:
        """Copy row i of `other` into row `rows[i]`."""
        assert isinstance(other, KVCache | StaticKVCache), "both are of one model"
        length = min(other.length if isinstance(other, KVCache) else other.keys.size(2), self.keys.size(2))
        if length:
            self.keys[rows, :, :length] = other.keys[:, :, :length]
            self.values[rows, :, :length] = other.values[:, :, :length]

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Replace row i by row `rows[i]`."""
        self.keys.copy_(self.keys.index_select(0, rows))
        self.values.copy_(self.values.index_select(0, rows))


@dataclass
class SparseStaticKVCache:
    """The keys and values of a sparse pattern in tensors of fixed size; each row of the batch has its own length.

    The first entries are a ring buffer: position t is at index t modulo its size, which
    is that of the window. Positions that every query attends to are stored a second
    time behind it, and are used from there once the ring buffer has overwritten them;
    the last entry takes the second copy of all others.
    """

    keys: Float[Tensor, "batch heads entries head"]
    values: Float[Tensor, "batch heads entries head"]
    pattern: SparsePattern
    capacity: int
    """Positions of the longest sequence."""
    indices: Int[Tensor, "batch 1"] | None = None
    """The position that `append` stores."""

    @classmethod
    def zeros(
        cls, like: Float[Tensor, "batch heads time head"], pattern: SparsePattern, capacity: int
    ) -> "SparseStaticKVCache":
        """Return a cache for sequences of up to `capacity` positions, with the sizes, dtype and device of `like`."""
        num_strided = 0 if pattern.stride is None else capacity // pattern.stride
        num_common = pattern.num_global + num_strided + 1 if pattern.has_common else 0
        size = min(pattern.window, capacity) + num_common
        keys = like.new_zeros(like.size(0), like.size(1), size, like.size(3))
        return cls(keys, torch.zeros_like(keys), pattern, capacity)

    @property
    def ring_size(self) -> int:
        return min(self.pattern.window, self.capacity)

    def at(self, indices: Int[Tensor, "batch 1"]) -> "SparseStaticKVCache":
        """Return the same tensors, with the position that `append` stores."""
        return SparseStaticKVCache(self.keys, self.values, self.pattern, self.capacity, indices)

    def key_positions(self) -> Int[Tensor, "batch entries"]:
        """Return the position of each entry that the newest query attends to, and -1 of the others."""
        assert self.indices is not None, "`at` sets the indices before a step"
        newest, size = self.indices, self.ring_size
        near = newest - (newest - torch.arange(size, device=newest.device)) % size
        if not self.pattern.has_common:
            return near.clamp(min=-1)
        far = self._common_positions(newest.device)
        is_used = (far >= 0) & (far <= newest - size)
        return torch.cat([near.clamp(min=-1), torch.where(is_used, far, -1)], dim=1)

    def append(
        self, k: Float[Tensor, "batch heads 1 head"], v: Float[Tensor, "batch heads 1 head"]
    ) -> tuple[Float[Tensor, "batch heads entries head"], Float[Tensor, "batch heads entries head"]]:
        """Store the position `indices`; returns the whole tensors."""
        assert self.indices is not None, "`at` sets the indices before a step"
        entries = self.indices % self.ring_size
        if self.pattern.has_common:
            entries = torch.cat([entries, self._common_entries(self.indices)], dim=1)
        for own, new in ((self.keys, k), (self.values, v)):
            new = new.to(own.dtype).expand(-1, -1, entries.size(1), -1)
            own.scatter_(2, entries[:, None, :, None].expand(new.shape), new)
        return self.keys, self.values

    def select(self, rows: Int[Tensor, " chosen"]) -> "SparseStaticKVCache":
        """Return a copy of these rows of the batch, in this order."""
        keys, values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        return SparseStaticKVCache(keys, values, self.pattern, self.capacity)

    def put(self, rows: Int[Tensor, " chosen"], other: "LayerCache") -> None:
        """Copy row i of `other` into row `rows[i]`."""
        assert isinstance(other, SparseKVCache | SparseStaticKVCache), "both are of one model"
        for entries, chosen in self._places_of(other):
            entries, chosen = entries.to(rows.device), chosen.to(rows.device)
            for own, new in ((self.keys, other.keys), (self.values, other.values)):
                own[rows[:, None], :, entries] = new.index_select(2, chosen).transpose(1, 2).to(own.dtype)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Replace row i by row `rows[i]`."""
        self.keys.copy_(self.keys.index_select(0, rows))
        self.values.copy_(self.values.index_select(0, rows))

    def _places_of(self, other: "SparseKVCache | SparseStaticKVCache") -> list[tuple[Tensor, Tensor]]:
        """Return pairs of own entries and those of `other` that are copied to them."""
        if isinstance(other, SparseKVCache):
            positions, every = other.positions, torch.arange(len(other.positions))
            is_near = positions >= other.length - self.ring_size
            places = [(positions[is_near] % self.ring_size, every[is_near])]
            is_common = self.pattern.is_common(positions) & (positions < self.capacity)
            return [*places, (self._common_entries(positions[is_common]), every[is_common])]
        num_near, size = min(self.ring_size, other.ring_size), other.ring_size
        # A ring buffer that is smaller than the window has not wrapped: its indices are positions.
        num_far = min(self.keys.size(2) - self.ring_size, other.keys.size(2) - size) - 1
        near, far = torch.arange(num_near), torch.arange(max(0, num_far))
        return [(near, near), (self.ring_size + far, size + far)]

    def _common_positions(self, device: torch.device) -> Int[Tensor, " entries"]:
        """Return the positions of the entries behind the ring buffer, and -1 of those never used."""
        num_global, stride = self.pattern.num_global, self.pattern.stride
        first = torch.arange(num_global, device=device)
        last = torch.full((1,), -1, device=device)
        if stride is None:
            return torch.cat([first, last])
        strided = stride * torch.arange(1, self.capacity // stride + 1, device=device) - 1
        return torch.cat([first, torch.where(strided < num_global, -1, strided), last])

    def _common_entries(self, positions: Int[Tensor, "*rows time"]) -> Int[Tensor, "*rows time"]:
        """Return the entry behind the ring buffer of each position; the last one for those not stored there."""
        num_global, stride, unused = self.pattern.num_global, self.pattern.stride, self.keys.size(2) - 1
        if stride is None:
            return torch.where(positions < num_global, self.ring_size + positions, unused)
        is_strided = (positions + 1) % stride == 0
        strided = torch.where(is_strided, self.ring_size + num_global + (positions + 1) // stride - 1, unused)
        return torch.where(positions < num_global, self.ring_size + positions, strided)


@dataclass
class LinearCache:
    """The sums over all positions so far that causal linear attention needs; their size does not grow."""

    sums: Float[Tensor, "batch shared head value"]
    totals: Float[Tensor, "batch shared head"]
    length: int = 0
    """Positions so far, where all rows have the same."""
    is_static: bool = False
    """Whether `update` changes the tensors in place, so that a step can be captured as a CUDA graph."""

    @classmethod
    def zeros(cls, like: Float[Tensor, "batch shared time head"], *, is_static: bool = False) -> "LinearCache":
        """Return the sums over no position."""
        batch, shared, _, head = like.shape
        dtype = torch.promote_types(like.dtype, torch.float32)
        sums = torch.zeros(batch, shared, head, head, dtype=dtype, device=like.device)
        return cls(sums, torch.zeros_like(sums[..., 0]), 0, is_static)

    @property
    def batch_size(self) -> int:
        return self.sums.size(0)

    def at(self, indices: Int[Tensor, "batch new"]) -> "LinearCache":
        """Return itself: sums do not depend on where a position is stored."""
        return self

    def update(self, sums: Tensor, totals: Tensor, num_new: int) -> None:
        """Replace the sums by those that include `num_new` more positions."""
        if self.is_static:
            self.sums.copy_(sums)
            self.totals.copy_(totals)
        else:
            self.sums, self.totals, self.length = sums, totals, self.length + num_new

    def select(self, rows: Int[Tensor, " chosen"]) -> "LinearCache":
        """Return the sums of these rows of the batch, in this order; a row may occur twice."""
        sums, totals = self.sums.index_select(0, rows), self.totals.index_select(0, rows)
        return LinearCache(sums, totals, self.length, self.is_static)

    def put(self, rows: Int[Tensor, " chosen"], other: "LayerCache") -> None:
        """Copy row i of `other` into row `rows[i]`."""
        assert isinstance(other, LinearCache), "both are of one model"
        self.sums[rows], self.totals[rows] = other.sums, other.totals

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Replace row i by row `rows[i]`."""
        self.sums.copy_(self.sums.index_select(0, rows))
        self.totals.copy_(self.totals.index_select(0, rows))


GrowingCache = KVCache | SparseKVCache | LinearCache
StaticLayerCache = StaticKVCache | SparseStaticKVCache | LinearCache
LayerCache = GrowingCache | StaticLayerCache
"""What one self-attention layer stores."""


class CrossAttentionKV(NamedTuple):
    """The encoder's output as one cross-attention reads it: prepared keys, values and the padding mask."""

    k: Float[Tensor, "batch shared key head"]
    v: Float[Tensor, "batch shared key value"]
    mask: Bool[Tensor, "batch 1 1 key"] | None

    def select(self, rows: Int[Tensor, " chosen"]) -> "CrossAttentionKV":
        """Return these rows of the batch, in this order."""
        mask = None if self.mask is None else self.mask.index_select(0, rows)
        return CrossAttentionKV(self.k.index_select(0, rows), self.v.index_select(0, rows), mask)

    def empty_like(self, *, multiple: int) -> "CrossAttentionKV":
        """Return zeros of the same sizes, the length rounded up to a multiple, with every position masked."""
        length = -(-self.k.size(2) // multiple) * multiple
        k, v = (part.new_zeros(part.size(0), part.size(1), length, part.size(3)) for part in (self.k, self.v))
        return CrossAttentionKV(k, v, torch.zeros(k.size(0), 1, 1, length, dtype=torch.bool, device=k.device))

    def put(self, rows: Int[Tensor, " chosen"], other: "CrossAttentionKV") -> None:
        """Copy row i of `other` into row `rows[i]`; a sequence longer than this one's is cut.

        Where `other` has fewer rows, each of them serves as many consecutive ones.
        """
        assert self.mask is not None, "rows of different lengths need a mask"
        if other.k.size(0) != len(rows):
            other = other.select(torch.arange(len(rows), device=rows.device) * other.k.size(0) // len(rows))
        length = min(other.k.size(2), self.k.size(2))
        self.k[rows, :, :length], self.v[rows, :, :length] = other.k[:, :, :length], other.v[:, :, :length]
        self.mask[rows] = False
        self.mask[rows, :, :, :length] = True if other.mask is None else other.mask[..., :length]


def select_shared(kvs: list[CrossAttentionKV], rows: Int[Tensor, " chosen"]) -> list[CrossAttentionKV]:
    """Return these rows of each layer, in this order.

    Equal consecutive rows are stored once, if all of them occur equally often. Nothing is
    copied where the rows are all there are, in their order.
    """
    shared, counts = rows.unique_consecutive(return_counts=True)
    rows = shared if (counts == counts[:1]).all() else rows
    if torch.equal(rows, torch.arange(kvs[0].k.size(0), device=rows.device)):
        return kvs
    return [kv.select(rows) for kv in kvs]
