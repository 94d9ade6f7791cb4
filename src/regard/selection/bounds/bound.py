r"""The record of a bound, and how the probability of failure is shared among many candidates or tests.

All bounds of this folder are constructed in the same way. A bound on one end of
the interval of one candidate, fixed before the examples were seen, fails with
probability at most `tail`. There are $M$ candidates with one or two ends each, so
that with

$$ \text{tail} = \frac{\delta}{s M}, \qquad s = 1 \text{ or } 2 \text{ ends} $$

the probability that any of them fails is at most $\delta$ (the union bound). What
holds for all $M$ at once holds for the selected one, however it was selected, and
however similar the candidates are. For tests the counterpart is a correction of
p-values, by Bonferroni or by Holm.

Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from regard.errors import ConfigError
from regard.evaluation.paired import holm

Side = Literal["both", "lower", "upper"]
"""Which ends of the interval are bounded: for accuracies often the lower alone, for losses the upper."""

DELTA = 0.05


@dataclass(frozen=True, kw_only=True)
class Bound:
    """An interval for the true mean of a score, with its probability of failure and the candidates it covers.

    The true mean is that over the distribution from which the `num_examples`
    were drawn independently.
    """

    name: str
    statement: str
    """The guarantee in words, with its conditions."""
    value: float | None
    """The measured mean; None where the bound does not depend on it."""
    lower: float | None
    upper: float | None
    """Where only one side is bounded, the other end is that of the scale."""
    epsilon: float
    """The largest distance of the true mean from the measured one, over the bounded sides."""
    num_candidates: int | None
    """The number of candidates one was selected from; all are covered at once. None where it does not enter."""
    num_examples: int
    delta: float
    """The probability with which the bound may fail."""
    side: Side = "both"
    is_estimate: bool = False
    """Whether it holds only approximately, for many examples: then it is not a bound."""

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends; an error where there is no measured value."""
        if self.lower is None or self.upper is None:
            raise ConfigError(f"{self.name} has no interval without a measured value")
        return self.lower, self.upper

    def holds(self, truth: float) -> bool:
        """Whether a true mean lies in the interval."""
        lower, upper = self.interval
        return lower <= truth <= upper

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def log_tail(num_candidates: int, delta: float, side: Side) -> float:
    """The logarithm of the failure probability of one end of one candidate.

    A logarithm, since the number of candidates may exceed the range of floats.

    Example:
        >>> round(math.exp(log_tail(10, 0.05, "both")), 6)
        0.0025
    """
    check_arguments(num_candidates=num_candidates, delta=delta)
    if side not in ("both", "lower", "upper"):
        raise ConfigError(f"side must be both, lower or upper, got {side!r}")
    return math.log(delta) - math.log(num_candidates) - math.log(2 if side == "both" else 1)


def largest_distance(value: float, ends: tuple[float, float], side: Side) -> float:
    """The distance of the bounded ends from the measured value; of two, the larger.

    Example:
        >>> largest_distance(0.5, (0.25, 0.625), "both"), largest_distance(0.5, (0.25, 0.625), "upper")
        (0.25, 0.125)
    """
    # With delta above one half a single end may lie on the other side of the value.
    below, above = max(0.0, value - ends[0]), max(0.0, ends[1] - value)
    return {"both": max(below, above), "lower": below, "upper": above}[side]


def describe_guarantee(num_candidates: int, delta: float, side: Side) -> str:
    """The beginning of a statement.

    Example:
        >>> describe_guarantee(1000, 0.05, "both")
        'with probability at least 0.95, for all 1,000 candidates at once, the true mean lies in the interval'
        >>> describe_guarantee(1, 0.1, "lower")
        'with probability at least 0.9, the true mean is at least the lower end'
    """
    for_all = f"for all {num_candidates:,} candidates at once, " if num_candidates > 1 else ""
    lies = {
        "both": "the true mean lies in the interval",
        "lower": "the true mean is at least the lower end",
        "upper": "the true mean is at most the upper end",
    }[side]
    return f"with probability at least {1 - delta:.6g}, {for_all}{lies}"


def check_arguments(
    *, num_examples: int = 1, num_candidates: int = 1, delta: float = DELTA, epsilon: float = 1.0, fewest: int = 1
) -> None:
    """Raise if a number lies outside its range."""
    if num_candidates < 1:
        raise ConfigError(f"num_candidates, M, must be at least 1, got {num_candidates}")
    if num_examples < fewest:
        raise ConfigError(f"num_examples, N, must be at least {fewest}, got {num_examples}")
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta must lie between 0 and 1, both excluded, got {delta:g}")
    if not epsilon > 0.0:  # which is false for NaN
        raise ConfigError(f"epsilon must be above 0, got {epsilon:g}")


def check_unit_interval(value: float, bound: str) -> None:
    """Raise if a value lies outside [0, 1], where the bound does not hold."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(
            f"{bound} needs scores in [0, 1], got {value:g}; for scores without such a range only the bootstrap gives "
            f"an estimate, from the score of each example, and no bound; a score with a known range a to b can be "
            f"rescaled by (score - a) / (b - a)"
        )


def bonferroni(p_values: Sequence[float]) -> list[float]:
    r"""P-values that hold for all $m$ tests together: each multiplied by $m$, and at most 1.

    If a test is called significant where its corrected p-value is at most $\delta$,
    the probability of one or more false positives is at most $\delta$, however the
    tests depend on each other. `holm` has the same guarantee and at least the power.

    Example:
        >>> bonferroni([0.01, 0.04, 0.5])
        [0.03, 0.12, 1.0]
    """
    if not all(0.0 <= p <= 1.0 for p in p_values):
        raise ConfigError(f"p-values must be in [0, 1], got {list(p_values)}")
    return [min(1.0, len(p_values) * p) for p in p_values]


def binomial_p_value(num_successes: int, num_examples: int, *, baseline: float) -> float:
    r"""The probability of at least `num_successes` if the true proportion is `baseline`: $P(X \ge k)$, exactly.

    It holds for independent examples that are right or wrong, and a baseline
    that is known, not measured on the same examples.

    Example:
        >>> binomial_p_value(3, 3, baseline=0.5)
        0.125
    """
    from scipy.special import betainc  # imported here, since scipy loads slowly

    check_arguments(num_examples=num_examples)
    if not 0 <= num_successes <= num_examples or not 0.0 <= baseline <= 1.0:
        raise ConfigError(
            f"0 <= num_successes <= num_examples and 0 <= baseline <= 1 must hold, got {num_successes=}, "
            f"{num_examples=} and {baseline=}"
        )
    if num_successes == 0:
        return 1.0
    return float(betainc(num_successes, num_examples - num_successes + 1, baseline))


def which_beat(
    baseline: float,
    successes: Sequence[int],
    num_examples: int,
    *,
    delta: float = DELTA,
    correct: Callable[[Sequence[float]], list[float]] = holm,
) -> list[bool]:
    r"""Which candidates are better than `baseline`, with a probability of at most $\delta$ of any false positive.

    Example:
        >>> which_beat(0.5, [70, 60, 50], 100)
        [True, False, False]
    """
    check_arguments(delta=delta)
    p_values = [binomial_p_value(right, num_examples, baseline=baseline) for right in successes]
    return [p <= delta for p in correct(p_values)]
