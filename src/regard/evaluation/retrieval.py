r"""Scores of finding what belongs to a query among all candidates.

Each row's query is to find its own candidate: $r_i$ is the place of that among
all candidates, ordered by how near they are to the query, counted from 1.

Dimensions:
    rows    queries, and as many candidates
    model   width of the vectors
    kinds   ways in which two rows can be the same
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from regard.errors import DataError
from regard.evaluation.metrics import score_tally
from regard.evaluation.scores import Score
from regard.evaluation.tallies import Tally, share

_PRODUCTS_AT_ONCE = 1 << 22
"""Similarities that are held at once."""


def rank_matches(
    queries: Float[np.ndarray, "rows model"],
    candidates: Float[np.ndarray, "rows model"],
    *,
    twins: Int[np.ndarray, "kinds rows"] | None = None,
) -> Int[np.ndarray, " rows"]:
    """The rank of each row's candidate among all, by the products of vectors; a tie counts against it.

    Rows that have a number of `twins` in common, such as those of the same text, are right answers to one another:
    they do not compete.

    Example:
        >>> corners = np.eye(3)
        >>> rank_matches(corners, corners[[1, 0, 2]]).tolist()
        [3, 3, 1]
    """
    if queries.shape != candidates.shape or not len(queries):
        raise DataError(
            f"queries and candidates must be equally many and at least one, got {queries.shape} and {candidates.shape}"
        )
    at_once = max(1, _PRODUCTS_AT_ONCE // len(queries))
    found = []
    for start in range(0, len(queries), at_once):
        rows = np.arange(start, min(start + at_once, len(queries)))
        scores = queries[rows] @ candidates.T
        right = scores[np.arange(len(rows)), rows]
        competes = ~are_twins(rows, twins, len(queries))
        found.append(1 + ((scores >= right[:, None]) & competes).sum(axis=1))
    return np.concatenate(found)


def are_twins(
    rows: Int[np.ndarray, " some"], twins: Int[np.ndarray, "kinds rows"] | None, num_rows: int
) -> Bool[np.ndarray, "some rows"]:
    """Which of all rows are the same as each of some, itself among them."""
    same = rows[:, None] == np.arange(num_rows)
    for numbers in () if twins is None else twins:
        same |= numbers[rows][:, None] == numbers
    return same


def score_ranks(ranks: Sequence[int] | Int[np.ndarray, " rows"]) -> list[Score]:
    r"""The shares of rows whose own candidate is the first, and among the first ten; and the mean of $1 / r_i$.

    All of them depend on how many candidates there are, which their signature says.

    Example:
        >>> for score in score_ranks([1, 2, 1, 20]):
        ...     print(score.name, score.value)
        recall_at_1 0.5
        recall_at_10 0.75
        mean_reciprocal_rank 0.6375
    """
    return [score_tally(each) for each in (tally_recall(ranks, 1), tally_recall(ranks, 10), tally_reciprocal(ranks))]


def tally_recall(ranks: Sequence[int] | Int[np.ndarray, " rows"], most: int) -> Tally:
    """Which rows find their own candidate among the first `most`."""
    found = _checked(ranks) <= most
    statistics = np.stack([found, np.ones(len(found))], axis=1).astype(np.int64)
    return Tally(
        name=f"recall_at_{most}", statistics=statistics, compute=share, settings={"candidates": len(statistics)}
    )


def tally_reciprocal(ranks: Sequence[int] | Int[np.ndarray, " rows"]) -> Tally:
    """One over the rank of each row."""
    statistics = np.stack([1 / _checked(ranks), np.ones(len(ranks))], axis=1)
    return Tally(
        name="mean_reciprocal_rank",
        statistics=statistics,
        compute=lambda sums: float(sums[0] / sums[1]),
        settings={"candidates": len(statistics)},
    )


def _checked(ranks: Sequence[int] | Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    array = np.asarray(ranks)
    if not len(array) or array.min() < 1:
        raise DataError(f"ranks count from 1, and there must be at least one, got {array.tolist()[:5]}")
    return array
