"""What attention remembers between the steps of decoding: keys and values, its own and an encoder's.

Dimensions: see `regard.nn.attention`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_FIRST_CAPACITY = 16


@dataclass
class KeyValues:
    """Keys and values already computed, side by side.

    Room grows by doubling, so that appending n positions one at a time copies
    O(n) numbers and not O(n^2).
    """

    keys: Float[Tensor, "batch heads capacity head"]
    values: Float[Tensor, "batch heads capacity head"]
    length: int

    @classmethod
    def empty(cls, like: Float[Tensor, "batch heads time head"]) -> "KeyValues":
        """No positions yet, with the sizes, type and device of `like`."""
        return cls(like[:, :, :0], like[:, :, :0], 0)

    def append(
        self, k: Float[Tensor, "batch heads new head"], v: Float[Tensor, "batch heads new head"]
    ) -> tuple[Float[Tensor, "batch heads key head"], Float[Tensor, "batch heads key head"]]:
        """Remember new positions; returns all keys and all values so far."""
        end = self.length + k.size(2)
        if end > self.keys.size(2):
            capacity = max(end, 2 * self.keys.size(2), _FIRST_CAPACITY)
            self.keys, self.values = (self._enlarged(old, capacity) for old in (self.keys, self.values))
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def select(self, rows: Int[Tensor, " chosen"]) -> "KeyValues":
        """The memory of these rows of the batch, in this order; a row may occur twice."""
        return KeyValues(self.keys.index_select(0, rows), self.values.index_select(0, rows), self.length)

    def keep(self, places: Int[Tensor, "batch kept"]) -> None:
        """Forget all positions of a row but those at these places, which follow one another in this order."""
        batch, heads, capacity, _ = self.keys.shape
        firsts = capacity * torch.arange(batch * heads, device=places.device)
        rows = (firsts[:, None] + places.repeat_interleave(heads, dim=0)).flatten()
        for part in (self.keys, self.values):
            part[:, :, : places.size(1)] = (
                part.view(-1, part.size(3)).index_select(0, rows).view(batch, heads, -1, part.size(3))
            )
        self.length = places.size(1)

    def _enlarged(self, old: Tensor, capacity: int) -> Tensor:
        batch, heads, _, head = old.shape
        new = old.new_zeros(batch, heads, capacity, head)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new


@dataclass
class StaticKeyValues:
    """Keys and values in a room of fixed size, each row of the batch with a length of its own.

    Nothing changes its place or size, so a step can be recorded once and
    replayed; rows come and go without moving the others. What stands behind a
    row's end is left over, and a mask must keep queries from it.
    """

    keys: Float[Tensor, "batch heads capacity head"]
    values: Float[Tensor, "batch heads capacity head"]
    places: Int[Tensor, "batch new"] | None = None
    """Where the new positions of this step go."""

    def at(self, places: Int[Tensor, "batch new"]) -> "StaticKeyValues":
        """The same room, with places for new positions."""
        return StaticKeyValues(self.keys, self.values, places)

    def append(
        self, k: Float[Tensor, "batch heads new head"], v: Float[Tensor, "batch heads new head"]
    ) -> tuple[Float[Tensor, "batch heads capacity head"], Float[Tensor, "batch heads capacity head"]]:
        """Put new positions in their places; returns all there is room for."""
        assert self.places is not None, "where do they go"
        places = self.places[:, None, :, None].expand(k.shape)
        self.keys.scatter_(2, places, k.to(self.keys.dtype))
        self.values.scatter_(2, places, v.to(self.values.dtype))
        return self.keys, self.values


Cache = KeyValues | StaticKeyValues


class Seen(NamedTuple):
    """An encoder's output as one attention sees it: prepared keys, values, and where it may look."""

    k: Float[Tensor, "batch shared key head"]
    v: Float[Tensor, "batch shared key value"]
    mask: Bool[Tensor, "batch 1 1 key"] | None

    def select(self, rows: Int[Tensor, " chosen"]) -> "Seen":
        """The same for these rows of the batch, in this order."""
        mask = None if self.mask is None else self.mask.index_select(0, rows)
        return Seen(self.k.index_select(0, rows), self.v.index_select(0, rows), mask)

    def room(self, multiple: int) -> "Seen":
        """Nothing seen yet, and room for as much as is seen here, rounded up to a multiple."""
        length = -(-self.k.size(2) // multiple) * multiple
        k, v = (part.new_zeros(part.size(0), part.size(1), length, part.size(3)) for part in (self.k, self.v))
        return Seen(k, v, torch.zeros(k.size(0), 1, 1, length, dtype=torch.bool, device=k.device))

    def fill(self, other: "Seen") -> None:
        """Let all rows, which have a mask and room enough, see what those of `other` see."""
        assert self.mask is not None, "room to be filled needs a mask"
        length = other.k.size(2)
        self.k[:, :, :length] = other.k
        self.v[:, :, :length] = other.v
        self.mask.fill_(False)
        self.mask[:, :, :, :length] = True if other.mask is None else other.mask

    def put(self, slot: int, other: "Seen") -> None:
        """Let row `slot`, which has a mask and room enough, see what the one row of `other` sees."""
        assert self.mask is not None, "rows of different length need a mask"
        length = other.k.size(2)
        self.k[slot, :, :length] = other.k[0]
        self.v[slot, :, :length] = other.v[0]
        self.mask[slot] = False
        self.mask[slot, :, :, :length] = True if other.mask is None else other.mask[0]


def select_seen(seen: list[Seen], rows: Int[Tensor, " chosen"]) -> list[Seen]:
    """What these rows see, in this order; kept once where as many rows, standing together, see the same.

    Where each row stays with what it has seen, nothing is copied.
    """
    shared, counts = rows.unique_consecutive(return_counts=True)
    rows = shared if (counts == counts[:1]).all() else rows
    if torch.equal(rows, torch.arange(seen[0].k.size(0), device=rows.device)):
        return seen
    return [each.select(rows) for each in seen]
