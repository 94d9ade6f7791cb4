r"""Metrics of retrieval: finding the candidate that belongs to a query among all candidates.

The query of each row should retrieve the candidate of the same row: $r_i$ is the
rank of that candidate, from 1, when all candidates are sorted by their similarity
to the query.

Dimensions:
    rows    queries, and as many candidates
    model   width of the vectors
    kinds   ways in which two rows can be duplicates
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from regard.errors import DataError
from regard.evaluation.counts import Counts, count_right, ratio
from regard.evaluation.registry import Metric

_PRODUCTS_AT_ONCE = 1 << 22  # similarities in memory at a time


def rank_matches(
    queries: Float[np.ndarray, "rows model"],
    candidates: Float[np.ndarray, "rows model"],
    *,
    duplicates: Int[np.ndarray, "kinds rows"] | None = None,
) -> Int[np.ndarray, " rows"]:
    """The rank of each row's candidate among all, by dot products; of equal candidates, the row's own is last.

    Rows that share a number in `duplicates`, such as those of the same text, are
    right answers to each other: they are left out of the ranking.

    Example:
        >>> corners = np.eye(3)
        >>> rank_matches(corners, corners[[1, 0, 2]]).tolist()
        [3, 3, 1]
    """
    if queries.shape != candidates.shape or not len(queries):
        raise DataError(
            f"queries and candidates must have the same shape and at least 1 row, got {queries.shape} and "
            f"{candidates.shape}"
        )
    at_once = max(1, _PRODUCTS_AT_ONCE // len(queries))
    found = []
    for start in range(0, len(queries), at_once):
        rows = np.arange(start, min(start + at_once, len(queries)))
        similarities = queries[rows] @ candidates.T
        right = similarities[np.arange(len(rows)), rows]
        competes = ~_is_duplicate(rows, duplicates, len(queries))
        found.append(1 + ((similarities >= right[:, None]) & competes).sum(axis=1))
    return np.concatenate(found)


def count_recall_at(ranks: Sequence[int] | Int[np.ndarray, " rows"], k: int) -> Counts:
    """Count the rows whose own candidate is among the first `k`.

    It depends on the number of candidates, which is part of the signature.

    Example:
        >>> count_recall_at([1, 2, 1, 20], 10).value
        0.75
    """
    found = _checked(ranks) <= k
    return count_right(found.tolist(), {"candidates": len(found)})


def count_reciprocal_rank(ranks: Sequence[int] | Int[np.ndarray, " rows"]) -> Counts:
    r"""The reciprocal rank $1 / r_i$ of each row, of which the score is the mean.

    Example:
        >>> count_reciprocal_rank([1, 2, 1, 20]).value
        0.6375
    """
    statistics = np.stack([1 / _checked(ranks), np.ones(len(ranks))], axis=1)
    return Counts(statistics=statistics, compute=ratio, settings={"candidates": len(statistics)})


RECALL_AT_1 = Metric(
    name="recall_at_1",
    label="Recall@1",
    counter=lambda examples: count_recall_at(*examples.require("ranks"), k=1),
    needs=("ranks",),
)
RECALL_AT_10 = Metric(
    name="recall_at_10",
    label="Recall@10",
    counter=lambda examples: count_recall_at(*examples.require("ranks"), k=10),
    needs=("ranks",),
)
MEAN_RECIPROCAL_RANK = Metric(
    name="mean_reciprocal_rank",
    label="Mean reciprocal rank",
    counter=lambda examples: count_reciprocal_rank(*examples.require("ranks")),
    needs=("ranks",),
    is_bounded_mean=True,
)


def _is_duplicate(
    rows: Int[np.ndarray, " some"], duplicates: Int[np.ndarray, "kinds rows"] | None, num_rows: int
) -> Bool[np.ndarray, "some rows"]:
    """Which of all rows are duplicates of each of some; each row is one of itself."""
    same = rows[:, None] == np.arange(num_rows)
    for numbers in () if duplicates is None else duplicates:
        same |= numbers[rows][:, None] == numbers
    return same


def _checked(ranks: Sequence[int] | Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    array = np.asarray(ranks)
    if not len(array) or array.min() < 1:
        raise DataError(f"ranks must be at least 1, and there must be at least one, got {array.tolist()[:5]}")
    return array
