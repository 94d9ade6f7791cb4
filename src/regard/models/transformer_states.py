"""What a Transformer's decoder remembers between steps, in four forms.

    TransformerState     keys and values that grow, all rows at one length
    TransformerSlots     room of fixed size, each row at a length of its own: sequences come and go
    TransformerTree      the hypotheses of beam search, which share what they begin with
    TransformerBranches  the same in room of fixed size, so that a step can be recorded

Dimensions: see `regard.nn.attention`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.models.protocols import State
from regard.nn.cache import KeyValues, Seen, StaticKeyValues, select_seen

_DEAD_BRANCHES = 4
"""Positions for each hypothesis that nobody descends from, which a tree puts up with."""
_SOURCE_ROOM = 32
"""Rooms for memories are multiples of this, so that one serves sources of about the same length."""


@dataclass
class TransformerState:
    """Each decoder block's keys and values so far, and its view of the encoder's output."""

    caches: list[KeyValues]
    seen: list[Seen] | None
    """As many rows as the batch has, or fewer, each of which serves as many rows that stand together."""

    def select(self, rows: Int[Tensor, " chosen"]) -> "TransformerState":
        caches = [cache.select(rows) for cache in self.caches]
        if self.seen is None:
            return TransformerState(caches, None)
        num_sharing = self.caches[0].keys.size(0) // self.seen[0].k.size(0)
        return TransformerState(caches, select_seen(self.seen, rows // num_sharing))

    def tree(self) -> "TransformerTree":
        """The same, ready for rows that branch into several hypotheses."""
        batch, length = self.caches[0].keys.size(0), self.caches[0].length
        depths = torch.arange(length, device=self.caches[0].keys.device).expand(batch, length)
        ancestors = torch.ones_like(depths, dtype=torch.bool)[:, None]
        return TransformerTree(self.caches, self.seen, ancestors, depths, length)

    def branches(self, width: int, capacity: int) -> "TransformerBranches":
        """Room for `width` hypotheses of each row, of up to `capacity` tokens."""
        like = self.caches[0].keys
        batch, heads, _, head = like.shape
        keys = like.new_zeros(batch, heads, capacity * width, head)
        return TransformerBranches(
            caches=[StaticKeyValues(keys.clone(), keys.clone()) for _ in self.caches],
            seen=None if self.seen is None else [each.room(_SOURCE_ROOM) for each in self.seen],
            ancestors=torch.zeros(batch, width, capacity * width, dtype=torch.bool, device=like.device),
            depths=(torch.arange(capacity * width, device=like.device) // width).expand(batch, -1),
            length=torch.zeros((), dtype=torch.long, device=like.device),
        )


@dataclass
class TransformerSlots:
    """Room for keys and values of fixed size; each row of the batch has a length of its own."""

    caches: list[StaticKeyValues]
    lengths: Int[Tensor, " batch"]
    """Positions of each row that are filled."""
    seen: list[Seen] | None

    @property
    def capacity(self) -> int:
        return self.caches[0].keys.size(2)

    def select(self, rows: Int[Tensor, " chosen"]) -> "TransformerSlots":
        caches = [
            StaticKeyValues(cache.keys.index_select(0, rows), cache.values.index_select(0, rows))
            for cache in self.caches
        ]
        seen = None if self.seen is None else [each.select(rows) for each in self.seen]
        return TransformerSlots(caches, self.lengths.index_select(0, rows), seen)

    def put(self, slot: int, state: State) -> None:
        assert isinstance(state, TransformerState)
        for own, new in zip(self.caches, state.caches, strict=True):
            own.keys[slot, :, : new.length] = new.keys[0, :, : new.length]
            own.values[slot, :, : new.length] = new.values[0, :, : new.length]
        self.lengths[slot] = state.caches[0].length
        for seen, new in zip(self.seen or (), state.seen or (), strict=True):
            seen.put(slot, new)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for cache in self.caches:
            cache.keys.copy_(cache.keys.index_select(0, rows))
            cache.values.copy_(cache.values.index_select(0, rows))
        self.lengths.copy_(self.lengths.index_select(0, rows))


@dataclass
class TransformerTree:
    """The hypotheses of each row, side by side, as a tree whose branches have their trunk in common.

    A step adds a position to each hypothesis, which sees the positions that it
    descends from. Where hypotheses change places, or one goes on as two, it is
    only written down anew who descends from whom: keys and values stay where
    they are. Those that nobody descends from are cleared away now and then.
    """

    caches: list[KeyValues]
    seen: list[Seen] | None
    ancestors: Bool[Tensor, "batch width key"]
    """The positions that each hypothesis descends from."""
    depths: Int[Tensor, "batch key"]
    """Where in its hypothesis a position stands."""
    length: int
    """Positions of each hypothesis."""

    @property
    def reach(self) -> int:
        """Positions of each hypothesis once it has grown."""
        return self.length + 1

    def grow(self) -> tuple[list[KeyValues], Int[Tensor, "batch width"]]:
        """Add a position to each hypothesis; where its keys and values go, and where it stands."""
        batch, width, _ = self.ancestors.shape
        own = torch.eye(width, dtype=torch.bool, device=self.depths.device)
        positions = torch.full((batch, width), self.length, device=self.depths.device)
        self.ancestors = torch.cat([self.ancestors, own.expand(batch, width, width)], dim=2)
        self.depths = torch.cat([self.depths, positions], dim=1)
        self.length += 1
        return self.caches, positions

    def select(self, rows: Int[Tensor, " chosen"]) -> "TransformerTree":
        """The tree of these hypotheses, of each row as many, standing together. This tree is used up."""
        batch, width, num_places = self.ancestors.shape
        chosen = (rows // width).unique_consecutive()
        ancestors = self.ancestors.flatten(0, 1).index_select(0, rows).unflatten(0, (len(chosen), -1))
        caches, seen, depths = self.caches, self.seen, self.depths
        if not torch.equal(chosen, torch.arange(batch, device=rows.device)):
            caches = [cache.select(chosen) for cache in caches]
            seen = None if seen is None else [each.select(chosen) for each in seen]
            depths = depths.index_select(0, chosen)
        tree = TransformerTree(caches, seen, ancestors, depths, self.length)
        is_alive = ancestors.any(dim=1)
        most = int(is_alive.sum(dim=1).max())
        if num_places - most > _DEAD_BRANCHES * ancestors.size(1):
            tree._clear(is_alive.byte().argsort(dim=1, descending=True, stable=True)[:, :most])
        return tree

    def _clear(self, places: Int[Tensor, "batch kept"]) -> None:
        for cache in self.caches:
            cache.keep(places)
        self.ancestors = self.ancestors.gather(2, places[:, None].expand(-1, self.ancestors.size(1), -1))
        self.depths = self.depths.gather(1, places)


@dataclass
class TransformerBranches:
    """A `TransformerTree` of fixed size, which a step changes in place, so that it can be recorded and replayed."""

    caches: list[StaticKeyValues]
    """Of step t, hypothesis b is at place t * width + b."""
    seen: list[Seen] | None
    ancestors: Bool[Tensor, "batch width key"]
    depths: Int[Tensor, "batch key"]
    length: Int[Tensor, ""]
    """Steps taken."""

    @property
    def reach(self) -> int:
        """Positions of the longest hypothesis there is room for."""
        return self.ancestors.size(2) // self.ancestors.size(1)

    def fits(self, state: State) -> bool:
        """Whether it has as many rows as `state`, and about as much room for its memory as that needs."""
        assert isinstance(state, TransformerState)
        if self.ancestors.size(0) != state.caches[0].keys.size(0) or (self.seen is None) != (state.seen is None):
            return False
        pairs = zip(self.seen or (), state.seen or (), strict=True)
        return all(0 <= own.k.size(2) - new.k.size(2) < _SOURCE_ROOM for own, new in pairs)

    def fill(self, state: State) -> None:
        """Start anew from `state`, before the first token."""
        assert isinstance(state, TransformerState)
        assert state.caches[0].length == 0, "hypotheses branch off behind their first token"
        for own, new in zip(self.seen or (), state.seen or (), strict=True):
            own.fill(new)
        self.ancestors.fill_(False)
        self.length.fill_(0)

    def grow(self) -> tuple[list[StaticKeyValues], Int[Tensor, "batch width"]]:
        """Add a position to each hypothesis; where its keys and values go, and where it stands."""
        batch, width, _ = self.ancestors.shape
        places = self.length * width + torch.arange(width, device=self.length.device)
        places = places.expand(batch, width)
        self.ancestors.scatter_(2, places[:, :, None], True)
        positions = self.length.repeat(batch, width)
        self.length.add_(1)
        return [cache.at(places) for cache in self.caches], positions

    def select(self, rows: Int[Tensor, " chosen"]) -> "TransformerBranches":
        """The same for these hypotheses, of each row all or none."""
        width = self.ancestors.size(1)
        chosen = rows[::width] // width
        caches = [
            StaticKeyValues(cache.keys.index_select(0, chosen), cache.values.index_select(0, chosen))
            for cache in self.caches
        ]
        seen = None if self.seen is None else [each.select(chosen) for each in self.seen]
        ancestors = self.ancestors.flatten(0, 1).index_select(0, rows).unflatten(0, (-1, width))
        return TransformerBranches(caches, seen, ancestors, self.depths[: len(chosen)], self.length.clone())

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let hypothesis i go on where `rows[i]` stands, which is one of the same row."""
        self.ancestors.copy_(self.ancestors.flatten(0, 1).index_select(0, rows).view_as(self.ancestors))
