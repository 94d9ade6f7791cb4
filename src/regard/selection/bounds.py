r"""What can still be said of a score that was chosen among many.

Whoever takes the best of $M$ hypotheses by their scores on $N$ examples takes
good luck along with good work: the measured score of the winner is too high.
How much too high it can be is what the bounds here say:

| scores | bounds | file |
|---|---|---|
| in [0, 1] | Hoeffding, Chernoff, empirical Bernstein | `bound_means` |
| 0 or 1 | exact binomial, too | `bound_means` |
| without a range | none; an estimate by the bootstrap | `bound_estimates` |
| of a predictor drawn by weights | PAC-Bayes | `bound_pac_bayes` |

Before there are scores: `bound_questions`. Of many tests: `bound_correction`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError, DataError
from regard.selection.bound_correction import binomial_p_value, bonferroni, holm, which_beat
from regard.selection.bound_divergence import coin_divergence, divergence_from_uniform
from regard.selection.bound_estimates import bootstrap, bootstrap_of_all
from regard.selection.bound_means import bernstein, binomial, chernoff, hoeffding, hoeffding_epsilon
from regard.selection.bound_pac_bayes import pac_bayes
from regard.selection.bound_questions import delta_for, examples_for, fresh_worth, looks_for, smallest_difference
from regard.selection.bound_record import DELTA, Bound, Side, check_share

__all__ = [
    "DELTA",
    "Bound",
    "Scores",
    "Side",
    "applicable",
    "bernstein",
    "binomial",
    "binomial_p_value",
    "bonferroni",
    "bootstrap",
    "bootstrap_of_all",
    "chernoff",
    "coin_divergence",
    "delta_for",
    "divergence_from_uniform",
    "examples_for",
    "fresh",
    "fresh_worth",
    "hoeffding",
    "hoeffding_epsilon",
    "holm",
    "looks_for",
    "pac_bayes",
    "smallest_difference",
    "tightest",
    "which_beat",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """What is known of the scores of one hypothesis: of each example, or no more than a ledger keeps.

    Example:
        >>> Scores.of([0.0, 1.0, 1.0, 1.0]).num_successes
        3.0
        >>> Scores.counted(3, 4).value, Scores.averaged(0.75, 4).num_successes
        (0.75, None)
    """

    value: float
    num_examples: int
    variance: float | None = None
    """Divided by `num_examples - 1`; None where it is not known."""
    num_successes: float | None = None
    """Where each example is right or wrong."""
    values: Float[np.ndarray, " examples"] | None = None
    is_bounded: bool = True
    """Whether all scores that could come lie in [0, 1]."""

    @classmethod
    def of(
        cls, values: Sequence[float] | Float[np.ndarray, " examples"], *, is_bounded: bool | None = None
    ) -> "Scores":
        """From the score of each example.

        Args:
            values: At least one.
            is_bounded: Whether the score lies in [0, 1] by what it is. None reads
                it off the values, as it does whether they are 0 or 1: right for
                shares, exact match or F1, and wrong for a loss that happened to
                stay below 1, of which say False.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 1 or len(array) == 0 or not np.isfinite(array).all():
            raise DataError(f"scores must be a row of finite numbers, at least one, got the shape {array.shape}")
        seems_bounded = bool(((array >= 0) & (array <= 1)).all())
        if is_bounded and not seems_bounded:
            outside = array[(array < 0) | (array > 1)]
            raise ConfigError(f"bounded scores must lie in [0, 1], got {outside[0]:g}")
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
    def counted(cls, num_successes: float, num_examples: int) -> "Scores":
        """From how many examples were right; where the share was rounded, not necessarily a whole number."""
        if num_examples < 1:
            raise ConfigError(f"num_examples, N, must be at least 1, got {num_examples}")
        return cls(value=num_successes / num_examples, num_examples=num_examples, num_successes=num_successes)

    @classmethod
    def averaged(cls, value: float, num_examples: int, *, variance: float | None = None) -> "Scores":
        """From the mean of scores that each lie in [0, 1], and their variance where it is known."""
        check_share(value, "a bound from a mean alone")
        return cls(value=value, num_examples=num_examples, variance=variance)


def applicable(
    scores: Scores | Sequence[float] | Float[np.ndarray, " examples"],
    *,
    num_hypotheses: int = 1,
    delta: float = DELTA,
    side: Side = "both",
) -> list[Bound]:
    r"""Every bound that holds for such scores, each by itself with probability $1 - \delta$.

    They do not all hold together with that probability: who looks at all of
    them and reports the narrowest has chosen once more. Decide on one before
    looking, or take `tightest`. Where scores have no range there is no bound,
    and what comes back is marked as an estimate.

    Example:
        >>> [bound.name for bound in applicable([0.0, 1.0, 1.0, 1.0])]
        ['Hoeffding', 'Chernoff', 'empirical Bernstein', 'exact binomial']
        >>> [bound.name for bound in applicable([0.2, 0.9, 7.5])]
        ['bootstrap']
    """
    scores = scores if isinstance(scores, Scores) else Scores.of(scores)
    if not scores.is_bounded:
        if scores.values is None:
            raise DataError("of scores without a range there is an estimate only from the score of each example")
        return [bootstrap(scores.values, num_hypotheses=num_hypotheses, delta=delta, side=side)]
    value, n = scores.value, scores.num_examples
    found = [
        hoeffding(value, n, num_hypotheses=num_hypotheses, delta=delta, side=side),
        chernoff(value, n, num_hypotheses=num_hypotheses, delta=delta, side=side),
    ]
    if n > 1:
        variance = scores.variance
        found.append(bernstein(value, n, variance=variance, num_hypotheses=num_hypotheses, delta=delta, side=side))
    if scores.num_successes is not None:
        found.append(binomial(scores.num_successes, n, num_hypotheses=num_hypotheses, delta=delta, side=side))
    return found


def tightest(
    scores: Scores | Sequence[float] | Float[np.ndarray, " examples"],
    *,
    num_hypotheses: int = 1,
    delta: float = DELTA,
    side: Side = "both",
) -> Bound:
    r"""The narrowest interval that one may report, chosen so that it still holds with probability $1 - \delta$.

    Which bounds are compared is settled by what kind of scores they are, never
    by the scores themselves:

    - 0 or 1: the exact binomial one, with all of $\delta$. It always lies inside
      Chernoff's, which always lies inside Hoeffding's, so nothing is chosen.
    - in [0, 1], their variance known: Chernoff's and the empirical Bernstein
      bound, with half of $\delta$ each. Both hold with probability $1 - \delta$, and so
      does the narrower. At most $\ln 2$ is paid for it, beside $\ln(2M/\delta)$.
    - in [0, 1], the mean alone: Chernoff's, with all of $\delta$.
    - without a range: the bootstrap's, which is an estimate.

    Example:
        >>> bound = tightest(Scores.counted(3_720, 4_000), num_hypotheses=1_000_000)
        >>> bound.name, round(bound.lower, 4)
        ('exact binomial', 0.9057)
    """
    scores = scores if isinstance(scores, Scores) else Scores.of(scores)
    value, n = scores.value, scores.num_examples
    if scores.num_successes is not None:
        return binomial(scores.num_successes, n, num_hypotheses=num_hypotheses, delta=delta, side=side)
    if not scores.is_bounded:
        (estimate,) = applicable(scores, num_hypotheses=num_hypotheses, delta=delta, side=side)
        return estimate
    if scores.variance is None or n < 2:
        return chernoff(value, n, num_hypotheses=num_hypotheses, delta=delta, side=side)
    half = delta / 2
    candidates = [
        chernoff(value, n, num_hypotheses=num_hypotheses, delta=half, side=side),
        bernstein(value, n, variance=scores.variance, num_hypotheses=num_hypotheses, delta=half, side=side),
    ]
    narrowest = min(candidates, key=lambda bound: bound.interval[1] - bound.interval[0])
    promised = chernoff(value, n, num_hypotheses=num_hypotheses, delta=delta, side=side).statement
    statement = f"{promised}; the narrower of Chernoff's and the empirical Bernstein bound, with half of delta each"
    return replace(narrowest, delta=delta, statement=statement)


def fresh(scores: Scores | Sequence[float], *, delta: float = DELTA, side: Side = "both") -> Bound:
    r"""The alternative: choose on some examples, and bound the one winner on others that had no part in the choice.

    On those there is one hypothesis, so that $M$ falls out. It holds where
    nobody looked at the fresh examples before, and nobody goes back to choose
    again after: a second look makes it $M = 2$.

    Example:
        >>> round(fresh(Scores.counted(930, 1_000)).lower, 4)
        0.9124
    """
    bound = tightest(scores, num_hypotheses=1, delta=delta, side=side)
    return replace(bound, name=f"fresh examples, {bound.name}")
