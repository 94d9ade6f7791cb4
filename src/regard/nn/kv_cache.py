"""Keys and values that attention stores between decoding steps, of the decoder itself and of the encoder's output.

Dimensions: see `regard.nn.attention`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

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
