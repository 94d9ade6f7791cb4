"""Stretches of one text that several models have scored.

A language model scores a text window by window, and windows may differ in length
from model to model. Where two of them end at the same token, everything before it
was scored by both: between two such places lies a stretch of the same bytes for
all, on which the models can be held side by side.

Dimensions:
    windows     of one model, in the order of the text
    stretches   that all models share
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
from jaxtyping import Int, Real

from regard.errors import DataError


def shared_ends(counts: Sequence[Sequence[int]]) -> Int[np.ndarray, " stretches"]:
    """Where windows of every model end, in tokens from the beginning of the text; the last is its length.

    Args:
        counts: For each model how many tokens each of its windows scored.

    Raises:
        DataError: If the models have not scored equally many tokens.

    Example:
        >>> shared_ends([[4, 4, 4, 1], [6, 6, 1]]).tolist()
        [12, 13]
    """
    ends = [np.cumsum(some) for some in counts]
    totals = sorted({int(each[-1]) for each in ends})
    if len(totals) > 1:
        raise DataError(f"models must score the same text, got texts of {' and '.join(map(str, totals))} tokens")
    return reduce(np.intersect1d, ends)


def sum_between(
    values: Sequence[float], counts: Sequence[int], ends: Int[np.ndarray, " stretches"]
) -> Real[np.ndarray, " stretches"]:
    """What the windows of one model have in each stretch; `ends` must be among those of its windows.

    Example:
        >>> sum_between([0.5, 1.0, 2.0, 4.0], [4, 4, 4, 1], shared_ends([[4, 4, 4, 1], [6, 6, 1]])).tolist()
        [3.5, 4.0]
    """
    last_windows = np.searchsorted(np.cumsum(counts), ends)
    return np.add.reduceat(np.asarray(values), np.concatenate([[0], last_windows[:-1] + 1]))
