"""Spans of one text that several models have scored.

A language model scores a text window by window, and windows may differ in length
between models. Where windows of all models end at the same token, every model has
scored the same text up to there: between two such tokens lies a span of the same
bytes for all models, on which their likelihoods are compared.

Dimensions:
    windows     of one model, in the order of the text
    spans       that all models share
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
from jaxtyping import Int, Real

from regard.errors import DataError


def shared_ends(num_tokens: Sequence[Sequence[int]]) -> Int[np.ndarray, " spans"]:
    """The positions at which windows of every model end, in tokens; the last one is the length of the text.

    Args:
        num_tokens: For each model the number of tokens that each of its windows scored.

    Raises:
        DataError: If the models have scored different numbers of tokens.

    Example:
        >>> shared_ends([[4, 4, 4, 1], [6, 6, 1]]).tolist()
        [12, 13]
    """
    ends = [np.cumsum(some) for some in num_tokens]
    totals = sorted({int(each[-1]) for each in ends})
    if len(totals) > 1:
        raise DataError(f"models must score the same text, got texts of {' and '.join(map(str, totals))} tokens")
    return reduce(np.intersect1d, ends)


def sum_between(
    values: Sequence[float], num_tokens: Sequence[int], ends: Int[np.ndarray, " spans"]
) -> Real[np.ndarray, " spans"]:
    """The sums of a model's values over the windows of each span; `ends` must be among those of its windows.

    Example:
        >>> sum_between([0.5, 1.0, 2.0, 4.0], [4, 4, 4, 1], shared_ends([[4, 4, 4, 1], [6, 6, 1]])).tolist()
        [3.5, 4.0]
    """
    last_windows = np.searchsorted(np.cumsum(num_tokens), ends)
    return np.add.reduceat(np.asarray(values), np.concatenate([[0], last_windows[:-1] + 1]))
