"""Masks: True where a query may look.

Dimensions: see `regard.nn.attention`.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def causal_mask(num_queries: int, num_keys: int, device: torch.device | None = None) -> Bool[Tensor, "1 1 query key"]:
    """Each query sees the keys up to its own position.

    The queries are the *last* positions of the keys: with a cache there are
    more keys than queries.

    Example:
        >>> causal_mask(2, 3).int()[0, 0].tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    everything = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return everything.tril(diagonal=num_keys - num_queries)[None, None]


def padding_mask(lengths: Int[Tensor, " batch"], num_keys: int) -> Bool[Tensor, "batch 1 1 key"]:
    """Nobody looks at the positions behind the end of a sequence.

    Example:
        >>> padding_mask(torch.tensor([1, 3]), 3).int()[:, 0, 0].tolist()
        [[1, 0, 0], [1, 1, 1]]
    """
    positions = torch.arange(num_keys, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None]
