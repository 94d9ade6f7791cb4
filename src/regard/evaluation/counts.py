"""Per-example counts, from which the score of any set of examples follows.

A corpus score such as BLEU is not a mean over sentences: it is a function of
counts that are summed over all of them. `Counts` keeps one row of counts per
example, so that resampling, swapping or leaving out examples needs sums only,
and no text is read a second time.

Dimensions:
    examples    independent draws: sentences, sequences, documents
    statistics  what is counted for each example, such as matches and lengths
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from regard.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """The counts of each example, and the function that computes the score from their sums.

    Example:
        >>> counts = count_right([True, True, False])
        >>> counts.statistics.tolist()
        [[1, 1], [1, 1], [0, 1]]
        >>> counts.value, counts.subset([1, 2]).value
        (0.6666666666666666, 0.5)
    """

    statistics: Real[np.ndarray, "examples statistics"]
    compute: Callable[[Float[np.ndarray, " statistics"]], float]
    """The score, from the sum of the rows of some examples."""
    name: str = ""
    """The metric, or the metric and a label; set by `Metric.count`."""
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    """What the score depends on besides the examples, for its signature."""
    digits: int = 3
    """Decimals in printed scores."""
    find_artifact: Callable[[Float[np.ndarray, " statistics"]], str | None] | None = None
    """Why the score of such sums is not comparable with others; None where it is."""

    def __len__(self) -> int:
        return len(self.statistics)

    @property
    def value(self) -> float:
        """The score of all examples."""
        return float(self.compute(self.statistics.sum(axis=0, dtype=np.float64)))

    @property
    def is_proportion(self) -> bool:
        """Whether the score is the proportion of examples that are right."""
        return self.compute is proportion

    @property
    def artifact(self) -> str | None:
        """Why the score of all examples is not comparable with others; None where it is."""
        return None if self.find_artifact is None else self.find_artifact(self.statistics.sum(axis=0, dtype=np.float64))

    def subset(self, rows: Sequence[int] | Int[np.ndarray, " some"] | Bool[np.ndarray, " examples"]) -> "Counts":
        """The counts of some examples, given by their indices or by a mask."""
        chosen = self.statistics[np.asarray(rows)] if len(rows) else self.statistics[:0]
        if len(chosen) == 0:
            raise DataError(f"a subset must have at least 1 example, got 0 of {len(self)}")
        return replace(self, statistics=chosen)

    def compute_each(self, sums: Float[np.ndarray, "*many statistics"]) -> Float[np.ndarray, "*many"]:
        """`compute` of many sums: for a proportion in one division, otherwise by a Python loop."""
        if self.is_proportion:
            return sums[..., 0] / sums[..., 1]
        scores = [self.compute(row) for row in sums.reshape(-1, sums.shape[-1])]
        return np.array(scores, dtype=np.float64).reshape(sums.shape[:-1])


def proportion(sums: Float[np.ndarray, " statistics"]) -> float:
    """The number of right examples divided by the number of examples.

    `Counts.is_proportion` compares `compute` with this function. A ratio whose
    denominator does not count examples is `ratio`: it has no binomial interval.
    """
    return float(sums[0] / sums[1])


def ratio(sums: Float[np.ndarray, " statistics"]) -> float:
    """The first sum divided by the second."""
    return float(sums[0] / sums[1])


def count_right(right: Sequence[bool], settings: Mapping[str, str | int | float] | None = None) -> Counts:
    """The counts of examples of which each is right or wrong."""
    statistics = np.array([right, np.ones(len(right))], dtype=np.int64).T
    return Counts(statistics=statistics, compute=proportion, settings=settings or {})


def check_equal_lengths(
    first: Sequence[object], second: Sequence[object], names: str = "predictions and references"
) -> None:
    """Raise unless both are lists of the same length, at least 1."""
    if isinstance(first, str) or isinstance(second, str):
        raise DataError(f"{names} must be lists, got {first!r} and {second!r}")
    if len(first) != len(second) or len(first) == 0:
        raise DataError(f"{names} must have equal lengths of at least 1, got {len(first)} and {len(second)}")
