"""All that the bounds say of M hypotheses and N examples, and of whichever of the two is still open."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.errors import ConfigError
from regard.selection.bound_means import hoeffding, hoeffding_epsilon
from regard.selection.bound_questions import delta_for, examples_for, fresh_worth, looks_for, smallest_difference
from regard.selection.bound_record import DELTA, Bound, Side, check
from regard.selection.bounds import Scores, applicable, fresh


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a wish for a certain epsilon takes: each number where the others are as given."""

    epsilon: float
    num_examples: int | None
    """Needed for the hypotheses that were given."""
    num_hypotheses: int | float | None
    """That may be looked at with the examples that were given; infinite where a float cannot count them."""
    delta: float | None
    """The chance of being wrong with both."""


@dataclass(frozen=True, kw_only=True)
class Calculation:
    """What was given, the bounds, and the answers; None where something is not known."""

    num_hypotheses: int | None
    num_examples: int | None
    delta: float
    score: float | None
    answers: Answers | None
    epsilon: float | None = None
    """Hoeffding's, of both sides, uniformly over all hypotheses."""
    epsilon_one_sided: float | None = None
    smallest_difference: float | None = None
    fresh_worth: int | None = None
    bounds: Sequence[Bound] = ()
    lower_bounds: Sequence[Bound] = ()
    """The same where the lower end alone is asked for."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it; what is infinite has no number there."""
        values = dict(vars(self))
        values["bounds"] = [bound.to_dict() for bound in self.bounds]
        values["lower_bounds"] = [bound.to_dict() for bound in self.lower_bounds]
        values["answers"] = None if self.answers is None else dict(vars(self.answers))
        return _finite(values)


def calculate(
    *,
    num_hypotheses: int | None = None,
    num_examples: int | None = None,
    delta: float = DELTA,
    scores: Scores | None = None,
    epsilon: float | None = None,
) -> Calculation:
    """Work out what can be worked out: bounds where M and N are known, answers where an epsilon is wished for.

    Args:
        num_hypotheses: M, among how many one was or will be chosen.
        num_examples: N; that of the scores where there are any.
        delta: The chance of being wrong.
        scores: What the chosen one got.
        epsilon: How near the true mean should be.

    Example:
        >>> found = calculate(num_hypotheses=1_000_000, num_examples=4_000, epsilon=0.05)
        >>> round(found.epsilon, 4), found.fresh_worth, found.answers.num_examples
        (0.0468, 843, 3501)
    """
    num_examples = num_examples if scores is None else scores.num_examples
    check(delta=delta)
    _check_known(num_hypotheses, num_examples, epsilon)
    answers = None if epsilon is None else answer(epsilon, num_hypotheses, num_examples, delta)
    known = Calculation(
        num_hypotheses=num_hypotheses,
        num_examples=num_examples,
        delta=delta,
        score=None if scores is None else scores.value,
        answers=answers,
    )
    if num_hypotheses is None or num_examples is None:
        return known
    options: Any = {"num_hypotheses": num_hypotheses, "delta": delta}
    return replace(
        known,
        epsilon=hoeffding_epsilon(num_examples, **options),
        epsilon_one_sided=hoeffding_epsilon(num_examples, side="lower", **options),
        smallest_difference=smallest_difference(num_examples, **options),
        fresh_worth=fresh_worth(num_examples, **options),
        bounds=_bounds(num_hypotheses, num_examples, delta, scores, "both"),
        lower_bounds=_bounds(num_hypotheses, num_examples, delta, scores, "lower"),
    )


def answer(epsilon: float, num_hypotheses: int | None, num_examples: int | None, delta: float) -> Answers:
    """What such an epsilon takes, by Hoeffding's bound over both sides."""
    m, n = num_hypotheses, num_examples
    return Answers(
        epsilon=epsilon,
        num_examples=None if m is None else examples_for(epsilon, num_hypotheses=m, delta=delta),
        num_hypotheses=None if n is None else looks_for(n, epsilon, delta=delta),
        delta=None if m is None or n is None else delta_for(n, epsilon, num_hypotheses=m),
    )


def _bounds(num_hypotheses: int, num_examples: int, delta: float, scores: Scores | None, side: Side) -> list[Bound]:
    if scores is None:
        return [hoeffding(None, num_examples, num_hypotheses=num_hypotheses, delta=delta, side=side)]
    found = applicable(scores, num_hypotheses=num_hypotheses, delta=delta, side=side)
    return [*found, fresh(scores, delta=delta, side=side)] if num_hypotheses > 1 else found


def _check_known(num_hypotheses: int | None, num_examples: int | None, epsilon: float | None) -> None:
    check(num_hypotheses=1 if num_hypotheses is None else num_hypotheses)
    check(num_examples=1 if num_examples is None else num_examples, epsilon=1.0 if epsilon is None else epsilon)
    if [num_hypotheses, num_examples, epsilon].count(None) > 1:
        given = {"M": num_hypotheses, "N": num_examples, "epsilon": epsilon}
        known = ", ".join(f"{name} = {value:g}" for name, value in given.items() if value is not None)
        raise ConfigError(f"two of M, N and epsilon must be known, got {known or 'none'}")


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
