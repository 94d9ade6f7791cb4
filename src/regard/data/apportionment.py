"""How many rows each set gets, where shares are no whole numbers and rows that belong together are not parted."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray


def apportion(totals: NDArray[np.int64], sizes: Sequence[int], ties: Sequence[int]) -> NDArray[np.int64]:
    """How many rows of each stratum each of three sets is to have: its share, rounded up or down; all sums are right.

    Shares are rounded down first. What is then missing in a stratum goes to the sets where its share was cut most, as
    long as those after it can still fill the sets: a table of zeros and ones has given sums, which for three columns
    is so if no column misses more than there are rows left (Ryser, "Combinatorial Properties of Matrices of Zeros and
    Ones", 1957). The strata that are cut most are served first.

    Args:
        totals: The rows of each stratum.
        sizes: The rows of each set; they sum to those of all strata.
        ties: A number for each stratum, which decides between equals.

    Example:
        >>> apportion(np.array([2, 2, 1, 11]), [8, 5, 3], ties=[0, 1, 2, 3])
        array([[1, 1, 0],
               [1, 1, 0],
               [1, 0, 0],
               [5, 3, 3]])
    """
    table, left_over = np.divmod(totals[:, None] * np.array(sizes), totals.sum())
    missing = np.array(sizes) - table.sum(axis=0)
    order = np.lexsort((np.array(ties, np.uint64), totals, -left_over.max(axis=1)))
    waiting = [stratum for stratum in order if table[stratum].sum() < totals[stratum]]
    for num_served, stratum in enumerate(waiting, 1):
        num_more = int(totals[stratum] - table[stratum].sum())
        choices = np.array(list(combinations(range(len(sizes)), num_more)))
        for chosen in choices[np.lexsort((-missing[choices].sum(axis=1), -left_over[stratum][choices].sum(axis=1)))]:
            after = missing - np.isin(np.arange(len(sizes)), chosen)
            if after.min() >= 0 and after.max() <= len(waiting) - num_served:
                table[stratum, chosen] += 1
                missing = after
                break
    assert not missing.any(), "there is always a way to round"
    return table


def cut_whole(weights: NDArray[np.int64], wanted: Sequence[int], *, least: int = 1) -> list[int]:
    """Where each of several sets ends, which take units one after the other: those that come nearest to what is wanted.

    A set of which any rows are wanted has at least so many units, and leaves as many for each after it, if it can.

    Example:
        >>> cut_whole(np.array([3, 3, 3, 3, 8, 1]), [7, 5, 0])
        [2, 4, 4]
    """
    ends: list[int] = []
    rows_before = np.concatenate([[0], np.cumsum(weights)])
    start = 0
    for place, num_rows in enumerate(wanted, 1):
        if num_rows > 0 and start < len(weights):
            target = rows_before[start] + num_rows
            after = min(int(np.searchsorted(rows_before, target)), len(weights))
            is_nearer_before = target - rows_before[after - 1] < rows_before[after] - target
            room = len(weights) - least * sum(later > 0 for later in wanted[place:])
            start = max(start + least, min(after - is_nearer_before, room))
        ends.append(int(start))
    return ends
