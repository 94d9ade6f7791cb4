"""Masks: True where a query may attend.

Dimensions: see `regard.nn.attention`.
"""

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
