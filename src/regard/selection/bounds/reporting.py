"""Which bound to report for given scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError, DataError
from regard.selection.bounds.bound import DELTA, Bound, Side, check_unit_interval
from regard.selection.bounds.estimates import bootstrap_estimate
from regard.selection.bounds.means import bernstein, binomial, chernoff, hoeffding


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreSummary:
    """What is known of the scores of one candidate: the score of each example, or only what a ledger records.

    Example:
        >>> ScoreSummary.from_values([0.0, 1.0, 1.0, 1.0]).num_successes
        3.0
        >>> ScoreSummary.from_successes(3, 4).value, ScoreSummary.from_mean(0.75, 4).num_successes
        (0.75, None)
    """

    value: float
    num_examples: int
    variance: float | None = None
    """Divided by `num_examples - 1`; None where it is unknown."""
    num_successes: float | None = None
    """Set where each example is right or wrong."""
    values: Float[np.ndarray, " examples"] | None = None
    is_bounded: bool = True
    """Whether every possible score lies in [0, 1]."""

    @classmethod
    def from_values(
        cls, values: Sequence[float] | Float[np.ndarray, " examples"], *, is_bounded: bool | None = None
    ) -> "ScoreSummary":
        """From the score of each example.

        Args:
            values: At least one.
            is_bounded: Whether the score lies in [0, 1] by definition. None infers
                it from the values, as it does whether they are 0 or 1: right for
                proportions, exact match or F1, and wrong for a loss that happens to
                stay below 1, for which pass False.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 1 or len(array) == 0 or not np.isfinite(array).all():
            raise DataError(f"scores must be a list of finite numbers, at least one, got the shape {array.shape}")
        seems_bounded = bool(((array >= 0) & (array <= 1)).all())
        if is_bounded and not seems_bounded:
            outside = array[(array < 0) | (array > 1)]
            raise ConfigError(f"bounded scores must be in [0, 1], got {outside[0]:g}")
        is_bounded = seems_bounded if is_bounded is None else is_bounded
        is_binary = is_bounded and bool(np.isin(array, (0.0, 1.0)).all())
        return cls(
            value=float(array.mean()),
            num_examples=len(array),
            variance=float(array.var(ddof=1)) if len(array) > 1 else None,
            num_successes=float(array.sum()) if is_binary else None,
            values=array,
            is_bounded=is_bounded,
        )

    @classmethod
    def from_successes(cls, num_successes: float, num_examples: int) -> "ScoreSummary":
        """From the number of right examples; not necessarily whole, where the proportion was rounded."""
        if num_examples < 1:
            raise ConfigError(f"num_examples, N, must be at least 1, got {num_examples}")
        return cls(value=num_successes / num_examples, num_examples=num_examples, num_successes=num_successes)

    @classmethod
    def from_mean(cls, value: float, num_examples: int, *, variance: float | None = None) -> "ScoreSummary":
        """From the mean of scores in [0, 1], and their variance where it is known."""
        check_unit_interval(value, "a bound from a mean alone")
        return cls(value=value, num_examples=num_examples, variance=variance)


def applicable_bounds(
    scores: ScoreSummary | Sequence[float] | Float[np.ndarray, " examples"],
    *,
    num_candidates: int = 1,
    delta: float = DELTA,
    side: Side = "both",
) -> list[Bound]:
    r"""Every bound that holds for such scores, each by itself with probability $1 - \delta$.

    They do not all hold together with that probability: reporting the narrowest
    of them is one more selection. Decide on one before computing them, or use
    `tightest_bound`. Where scores have no range there is no bound, and the result
    is marked as an estimate.

    Example:
        >>> [bound.name for bound in applicable_bounds([0.0, 1.0, 1.0, 1.0])]
        ['Hoeffding', 'Chernoff', 'empirical Bernstein', 'exact binomial']
        >>> [bound.name for bound in applicable_bounds([0.2, 0.9, 7.5])]
        ['bootstrap']
    """
    scores = scores if isinstance(scores, ScoreSummary) else ScoreSummary.from_values(scores)
    if not scores.is_bounded:
        if scores.values is None:
            raise DataError("an estimate for scores without a range needs the score of each example")
        return [bootstrap_estimate(scores.values, num_candidates=num_candidates, delta=delta, side=side)]
    value, n = scores.value, scores.num_examples
    found = [
        hoeffding(value, n, num_candidates=num_candidates, delta=delta, side=side),
        chernoff(value, n, num_candidates=num_candidates, delta=delta, side=side),
    ]
    if n > 1:
        variance = scores.variance
        found.append(bernstein(value, n, variance=variance, num_candidates=num_candidates, delta=delta, side=side))
    if scores.num_successes is not None:
        found.append(binomial(scores.num_successes, n, num_candidates=num_candidates, delta=delta, side=side))
    return found


def tightest_bound(
    scores: ScoreSummary | Sequence[float] | Float[np.ndarray, " examples"],
    *,
    num_candidates: int = 1,
    delta: float = DELTA,
    side: Side = "both",
) -> Bound:
    r"""The narrowest interval that may be reported: it still holds with probability $1 - \delta$.

    Which bounds are compared depends on the kind of scores, never on their values:

    - 0 or 1: the exact binomial one, with all of $\delta$. It always lies inside
      Chernoff's, which always lies inside Hoeffding's, so nothing is selected.
    - in [0, 1], with known variance: Chernoff's and the empirical Bernstein bound,
      with half of $\delta$ each. Both hold with probability $1 - \delta$, and so
      does the narrower. The price is at most $\ln 2$, added to $\ln(2M/\delta)$.
    - in [0, 1], with the mean alone: Chernoff's, with all of $\delta$.
    - without a range: the bootstrap's, which is an estimate.

    Example:
        >>> bound = tightest_bound(ScoreSummary.from_successes(3_720, 4_000), num_candidates=1_000_000)
        >>> bound.name, round(bound.lower, 4)
        ('exact binomial', 0.9057)
    """
    scores = scores if isinstance(scores, ScoreSummary) else ScoreSummary.from_values(scores)
    value, n = scores.value, scores.num_examples
    if scores.num_successes is not None:
        return binomial(scores.num_successes, n, num_candidates=num_candidates, delta=delta, side=side)
    if not scores.is_bounded:
        (estimate,) = applicable_bounds(scores, num_candidates=num_candidates, delta=delta, side=side)
        return estimate
    if scores.variance is None or n < 2:
        return chernoff(value, n, num_candidates=num_candidates, delta=delta, side=side)
    half = delta / 2
    candidates = [
        chernoff(value, n, num_candidates=num_candidates, delta=half, side=side),
        bernstein(value, n, variance=scores.variance, num_candidates=num_candidates, delta=half, side=side),
    ]
    narrowest = min(candidates, key=lambda bound: bound.interval[1] - bound.interval[0])
    guarantee = chernoff(value, n, num_candidates=num_candidates, delta=delta, side=side).statement
    statement = f"{guarantee}; the narrower of Chernoff's and the empirical Bernstein bound, with half of delta each"
    return replace(narrowest, delta=delta, statement=statement)


def fresh_bound(scores: ScoreSummary | Sequence[float], *, delta: float = DELTA, side: Side = "both") -> Bound:
    r"""The alternative: select on some examples, and bound the winner on others that had no part in the selection.

    On those there is a single candidate, so that $M = 1$. It holds if nothing was
    evaluated on the fresh examples before, and nothing is selected by them after:
    a second evaluation makes it $M = 2$.

    Example:
        >>> round(fresh_bound(ScoreSummary.from_successes(930, 1_000)).lower, 4)
        0.9124
    """
    bound = tightest_bound(scores, num_candidates=1, delta=delta, side=side)
    return replace(bound, name=f"fresh examples, {bound.name}")
