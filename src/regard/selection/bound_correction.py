r"""Many tests at once: which of $M$ hypotheses are better than a given score, and how sure of all of them one can be.

Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979).

Dimensions: `hypotheses`.
"""

from collections.abc import Callable, Sequence

from regard.errors import ConfigError
from regard.evaluation.paired import holm
from regard.selection.bound_record import DELTA, check

__all__ = ["binomial_p_value", "bonferroni", "holm", "which_beat"]


def bonferroni(p_values: Sequence[float]) -> list[float]:
    r"""P-values that hold for all $m$ tests together: each times $m$, and 1 at most.

    If a test is called real where its corrected p-value is at most $\delta$, the
    chance of one or more false calls is at most $\delta$, however the tests depend
    on each other. `holm` promises the same and never finds less; this one is
    what the union bound is to intervals.

    Example:
        >>> bonferroni([0.01, 0.04, 0.5])
        [0.03, 0.12, 1.0]
    """
    if not all(0.0 <= p <= 1.0 for p in p_values):
        raise ConfigError(f"p-values must lie in [0, 1], got {list(p_values)}")
    return [min(1.0, len(p_values) * p) for p in p_values]


def binomial_p_value(num_successes: int, num_examples: int, *, baseline: float) -> float:
    r"""The chance of so many successes or more for one whose true share is `baseline`: $P(X \ge k)$, exactly.

    It holds for independent examples that are right or wrong, and a baseline
    that is known, not measured on the same examples.

    Example:
        >>> binomial_p_value(3, 3, baseline=0.5)
        0.125
    """
    from scipy.special import betainc  # which takes a while to load

    check(num_examples=num_examples)
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
    r"""Which of the hypotheses are better than `baseline`, with a chance of at most $\delta$ that any is named wrongly.

    Example:
        >>> which_beat(0.5, [70, 60, 50], 100)
        [True, False, False]
    """
    check(delta=delta)
    p_values = [binomial_p_value(right, num_examples, baseline=baseline) for right in successes]
    return [p <= delta for p in correct(p_values)]
