r"""Bounds before there are scores: how many examples or candidates, which failure probability, which difference.

All from Hoeffding's inequality and the union bound over $M$ candidates,

$$ \varepsilon = \sqrt{\frac{\ln(2M/\delta)}{2N}}, $$

since it needs nothing of the scores but their range [0, 1]. Measured scores can
be bounded more narrowly, by `tightest_bound`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.errors import ConfigError
from regard.selection.bounds.bound import DELTA, Bound, Side, check_arguments, log_tail
from regard.selection.bounds.means import hoeffding, hoeffding_epsilon
from regard.selection.bounds.reporting import ScoreSummary, applicable_bounds, fresh_bound


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a given epsilon requires: each number for given values of the others."""

    epsilon: float
    num_examples: int | None
    """The number needed for the given candidates."""
    num_candidates: int | float | None
    """The number allowed by the given examples; infinite where it exceeds the range of floats."""
    delta: float | None
    """The probability of failure with both."""


@dataclass(frozen=True, kw_only=True)
class Calculation:
    """The given numbers, the bounds, and the requirements; None where a number is missing."""

    num_candidates: int | None
    num_examples: int | None
    delta: float
    score: float | None
    requirements: Requirements | None
    epsilon: float | None = None
    """Hoeffding's, for both sides, uniformly over all candidates."""
    epsilon_one_sided: float | None = None
    smallest_difference: float | None = None
    num_fresh: int | None = None
    bounds: Sequence[Bound] = ()
    lower_bounds: Sequence[Bound] = ()
    """The same where only the lower end is bounded."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values; an infinite number is null."""
        values = dict(vars(self))
        values["bounds"] = [bound.to_json() for bound in self.bounds]
        values["lower_bounds"] = [bound.to_json() for bound in self.lower_bounds]
        values["requirements"] = None if self.requirements is None else dict(vars(self.requirements))
        return _finite(values)


def calculate(
    *,
    num_candidates: int | None = None,
    num_examples: int | None = None,
    delta: float = DELTA,
    scores: ScoreSummary | None = None,
    epsilon: float | None = None,
) -> Calculation:
    """Compute the bounds where M and N are given, and the requirements where an epsilon is given.

    Args:
        num_candidates: M, the number of candidates one was or will be selected from.
        num_examples: N; that of the scores where they are given.
        delta: The probability of failure.
        scores: The scores of the selected candidate.
        epsilon: The largest distance of the true mean that is acceptable.

    Example:
        >>> found = calculate(num_candidates=1_000_000, num_examples=4_000, epsilon=0.05)
        >>> round(found.epsilon, 4), found.num_fresh, found.requirements.num_examples
        (0.0468, 843, 3501)
    """
    num_examples = num_examples if scores is None else scores.num_examples
    check_arguments(delta=delta)
    _check_known(num_candidates, num_examples, epsilon)
    requirements = None if epsilon is None else _requirements(epsilon, num_candidates, num_examples, delta)
    known = Calculation(
        num_candidates=num_candidates,
        num_examples=num_examples,
        delta=delta,
        score=None if scores is None else scores.value,
        requirements=requirements,
    )
    if num_candidates is None or num_examples is None:
        return known
    options: Any = {"num_candidates": num_candidates, "delta": delta}
    return replace(
        known,
        epsilon=hoeffding_epsilon(num_examples, **options),
        epsilon_one_sided=hoeffding_epsilon(num_examples, side="lower", **options),
        smallest_difference=smallest_difference(num_examples, **options),
        num_fresh=equivalent_fresh_examples(num_examples, **options),
        bounds=_bounds(num_candidates, num_examples, delta, scores, "both"),
        lower_bounds=_bounds(num_candidates, num_examples, delta, scores, "lower"),
    )


def examples_needed(epsilon: float, *, num_candidates: int = 1, delta: float = DELTA, side: Side = "both") -> int:
    r"""The smallest number of examples with which all $M$ measured means lie within epsilon of the true ones.

    $$ N = \Big\lceil \frac{\ln(2M/\delta)}{2 \varepsilon^2} \Big\rceil $$

    Ten times as many candidates need $\ln 10 / 2\varepsilon^2$ more examples; half
    the epsilon needs four times as many.

    Example:
        >>> examples_needed(0.02, num_candidates=1_000_000)
        21881
    """
    check_arguments(epsilon=epsilon)
    needed = max(1, math.ceil(-log_tail(num_candidates, delta, side) / (2 * epsilon**2)))
    # The division may be off in its last bit, and the result by one.
    return needed if _reaches(epsilon, needed, num_candidates, delta, side) else needed + 1


def candidates_allowed(num_examples: int, epsilon: float, *, delta: float = DELTA, side: Side = "both") -> int | float:
    r"""The largest number of candidates for which all measured means lie within epsilon of the true ones.

    $$ M = \Big\lfloor \frac{\delta}{2} e^{2 N \varepsilon^2} \Big\rfloor $$

    0 where it holds for none; infinite where the number exceeds the range of floats.

    Example:
        >>> candidates_allowed(4_000, 0.0468), candidates_allowed(4_000, 0.02), candidates_allowed(4_000, 0.9)
        (1017684, 0, inf)
    """
    check_arguments(num_examples=num_examples, epsilon=epsilon)
    exponent = 2 * num_examples * epsilon**2 + log_tail(1, delta, side)
    return math.floor(math.exp(exponent)) if exponent < 700 else math.inf


def failure_probability(num_examples: int, epsilon: float, *, num_candidates: int = 1, side: Side = "both") -> float:
    r"""The largest probability that some measured mean is farther than epsilon from the true one.

    $$ \delta = \min\big(1,\; 2 M e^{-2 N \varepsilon^2}\big) $$

    1 means that there is no guarantee.

    Example:
        >>> round(failure_probability(4_000, 0.05, num_candidates=1_000_000), 4), failure_probability(4_000, 0.01)
        (0.0041, 0.8986579282344431)
    """
    check_arguments(num_examples=num_examples, num_candidates=num_candidates, epsilon=epsilon)
    sides = 2 if side == "both" else 1
    return math.exp(min(0.0, math.log(sides) + math.log(num_candidates) - 2 * num_examples * epsilon**2))


def smallest_difference(num_examples: int, *, num_candidates: int = 2, delta: float = DELTA) -> float:
    r"""The measured difference above which the order of any two of $M$ candidates is right.

    $$ 2 \varepsilon = 2 \sqrt{\frac{\ln(2M/\delta)}{2N}} $$

    With probability $1 - \delta$: each of the two may be off by epsilon, in opposite
    directions. For the same reason the true score of the winner is at most this much
    worse than that of the best candidate. A search whose candidates differ by less cannot *prove* which is
    best with so many examples; it may still find a good one. It holds as
    Hoeffding's bound does, for scores in [0, 1], before anything is measured.

    Example:
        >>> round(smallest_difference(4_000, num_candidates=1_000_000), 4)
        0.0936
    """
    return 2 * hoeffding_epsilon(num_examples, num_candidates=num_candidates, delta=delta)


def equivalent_fresh_examples(num_examples: int, *, num_candidates: int, delta: float = DELTA) -> int:
    r"""The number of fresh examples that bound the winner as narrowly as the $N$ it was selected on.

    $$ n = \Big\lceil N \, \frac{\ln(2/\delta)}{\ln(2M/\delta)} \Big\rceil $$

    On examples that had no part in the selection there is a single candidate, so
    that $M = 1$.

    Example:
        >>> equivalent_fresh_examples(4_000, num_candidates=1_000_000)
        843
    """
    return examples_needed(hoeffding_epsilon(num_examples, num_candidates=num_candidates, delta=delta), delta=delta)


def _requirements(epsilon: float, num_candidates: int | None, num_examples: int | None, delta: float) -> Requirements:
    """What an epsilon requires, by Hoeffding's bound on both sides."""
    m, n = num_candidates, num_examples
    return Requirements(
        epsilon=epsilon,
        num_examples=None if m is None else examples_needed(epsilon, num_candidates=m, delta=delta),
        num_candidates=None if n is None else candidates_allowed(n, epsilon, delta=delta),
        delta=None if m is None or n is None else failure_probability(n, epsilon, num_candidates=m),
    )


def _bounds(
    num_candidates: int, num_examples: int, delta: float, scores: ScoreSummary | None, side: Side
) -> list[Bound]:
    if scores is None:
        return [hoeffding(None, num_examples, num_candidates=num_candidates, delta=delta, side=side)]
    found = applicable_bounds(scores, num_candidates=num_candidates, delta=delta, side=side)
    return [*found, fresh_bound(scores, delta=delta, side=side)] if num_candidates > 1 else found


def _check_known(num_candidates: int | None, num_examples: int | None, epsilon: float | None) -> None:
    check_arguments(num_candidates=1 if num_candidates is None else num_candidates)
    check_arguments(
        num_examples=1 if num_examples is None else num_examples, epsilon=1.0 if epsilon is None else epsilon
    )
    if [num_candidates, num_examples, epsilon].count(None) > 1:
        given = {"M": num_candidates, "N": num_examples, "epsilon": epsilon}
        known = ", ".join(f"{name} = {value:g}" for name, value in given.items() if value is not None)
        raise ConfigError(f"two of M, N and epsilon must be given, got {known or 'none'}")


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list():
            return [_finite(each) for each in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _reaches(epsilon: float, num_examples: int, num_candidates: int, delta: float, side: Side) -> bool:
    return hoeffding_epsilon(num_examples, num_candidates=num_candidates, delta=delta, side=side) <= epsilon
