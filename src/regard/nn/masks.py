"""Masks: True where a query may attend.

Beltagy et al., "Longformer" (2020): windows and global tokens. https://arxiv.org/abs/2004.05150
Child et al., "Generating Long Sequences with Sparse Transformers" (2019). https://arxiv.org/abs/1904.10509

Dimensions: see `regard.nn.attention`; `*rows` is empty, or the batch.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def causal_mask(num_queries: int, num_keys: int, device: torch.device | None = None) -> Bool[Tensor, "1 1 query key"]:
    """Return the mask in which each query attends to the keys up to its own position.

    The queries are the *last* positions of the keys: with a cache there are
    more keys than queries.

    Example:
        >>> causal_mask(2, 3).int()[0, 0].tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    everything = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return everything.tril(diagonal=num_keys - num_queries)[None, None]


def padding_mask(lengths: Int[Tensor, " batch"], num_keys: int) -> Bool[Tensor, "batch 1 1 key"]:
    """Return the mask that excludes the positions after the end of each sequence.

    Example:
        >>> padding_mask(torch.tensor([1, 3]), 3).int()[:, 0, 0].tolist()
        [[1, 0, 0], [1, 1, 1]]
    """
    positions = torch.arange(num_keys, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None]


def document_mask(documents: Int[Tensor, "batch time"]) -> Bool[Tensor, "batch 1 time time"]:
    """Return the causal mask within each document, where a row contains several documents.

    Example:
        >>> document_mask(torch.tensor([[0, 0, 1]])).int()[0, 0].tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return same & causal_mask(documents.size(1), documents.size(1), documents.device)


def positions_in_document(documents: Int[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
    """Return each position counted from the start of its document; the documents of a row are consecutive.

    Example:
        >>> positions_in_document(torch.tensor([[4, 4, 4, 5, 5]])).tolist()
        [[0, 1, 2, 0, 1]]
    """
    positions = torch.arange(documents.size(1), device=documents.device).expand_as(documents)
    is_first = torch.ones_like(documents, dtype=torch.bool)
    is_first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return positions - positions.where(is_first, 0).cummax(dim=1).values


@dataclass(frozen=True)
class SparsePattern:
    """Which keys a query attends to: those near it, and some that every query attends to.

    Near are those less than `window` positions away. Every query attends to the
    first `num_global` positions, which in turn attend to all, and with a `stride` to
    the last of every `stride` positions (the "fixed" pattern of Child et al., section 4.3).

    Example:
        >>> positions = torch.arange(5)
        >>> SparsePattern(window=2, num_global=1, is_causal=True).mask(positions, positions).int().tolist()
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]
    """

    window: int
    num_global: int = 0
    stride: int | None = None
    is_causal: bool = False

    @property
    def has_common(self) -> bool:
        """Whether there are keys that every query attends to."""
        return self.num_global > 0 or self.stride is not None

    def is_common(self, positions: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        """Return whether every later query attends to each of these positions."""
        is_global = positions < self.num_global
        return is_global if self.stride is None else is_global | ((positions + 1) % self.stride == 0)

    def common_positions(self, length: int, device: torch.device | None = None) -> Int[Tensor, " common"]:
        """Return the positions below `length` that every later query attends to, in ascending order."""
        found = [torch.arange(min(self.num_global, length), device=device)]
        if self.stride is not None:
            first = (self.num_global // self.stride + 1) * self.stride - 1
            found.append(torch.arange(min(first, length), length, self.stride, device=device))
        return torch.cat(found)

    def num_common(self, length: int) -> int:
        """Return the number of `common_positions`.

        Example:
            >>> pattern = SparsePattern(window=2, num_global=3, stride=2)
            >>> pattern.common_positions(8).tolist(), pattern.num_common(8)
            ([0, 1, 2, 3, 5, 7], 6)
        """
        strided = 0 if self.stride is None else max(0, length // self.stride - self.num_global // self.stride)
        return min(length, self.num_global) + strided

    def mask(
        self, query_positions: Int[Tensor, "*rows query"], key_positions: Int[Tensor, "*rows key"]
    ) -> Bool[Tensor, "*rows query key"]:
        """Return the mask of these queries and keys; keys at negative positions are not there."""
        keys = key_positions[..., None, :]
        return self.allows(query_positions[..., :, None], keys) & (keys >= 0)

    def allows(self, query: Int[Tensor, "*#shape"], key: Int[Tensor, "*#shape"]) -> Bool[Tensor, "*#shape"]:
        """Return whether queries at these positions attend to keys at those, element by element."""
        distance = query - key
        if self.is_causal:
            allowed = distance < self.window
        else:
            allowed = distance.abs() < self.window
        if self.has_common:
            allowed = allowed | self.is_common(key)
        if self.num_global:
            allowed = allowed | (query < self.num_global)
        return allowed & (distance >= 0) if self.is_causal else allowed
