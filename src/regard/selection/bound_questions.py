r"""The bound read backwards: how many examples, how many looks, what chance of being wrong, what difference.

All from Hoeffding's inequality and the union over $M$ hypotheses,

$$ \varepsilon = \sqrt{\frac{\ln(2M/\delta)}{2N}}, $$

since it needs to know nothing of the scores but that they lie in [0, 1]: these
are questions one asks before there are any. What is measured afterwards may be
bounded more narrowly, by `regard.selection.bounds.tightest`.
"""

import math

from regard.selection.bound_means import hoeffding_epsilon
from regard.selection.bound_record import DELTA, Side, check, log_tail


def examples_for(epsilon: float, *, num_hypotheses: int = 1, delta: float = DELTA, side: Side = "both") -> int:
    r"""The fewest examples with which all $M$ measured means lie within epsilon of the true ones.

    $$ N = \Big\lceil \frac{\ln(2M/\delta)}{2 \varepsilon^2} \Big\rceil $$

    Ten times as many hypotheses cost $\ln 10 / 2\varepsilon^2$ examples more; half
    of epsilon costs four times as many.

    Example:
        >>> examples_for(0.02, num_hypotheses=1_000_000)
        21881
    """
    check(epsilon=epsilon)
    needed = max(1, math.ceil(-log_tail(num_hypotheses, delta, side) / (2 * epsilon**2)))
    # The division may be off by its last bit, and with it the whole number by one.
    return needed if _reaches(epsilon, needed, num_hypotheses, delta, side) else needed + 1


def looks_for(num_examples: int, epsilon: float, *, delta: float = DELTA, side: Side = "both") -> int | float:
    r"""How many hypotheses may be looked at, if all measured means are to lie within epsilon of the true ones.

    $$ M = \Big\lfloor \frac{\delta}{2} e^{2 N \varepsilon^2} \Big\rfloor $$

    0 where not even one may; infinite where there are more than a float can count.

    Example:
        >>> looks_for(4_000, 0.0468), looks_for(4_000, 0.02), looks_for(4_000, 0.9)
        (1017684, 0, inf)
    """
    check(num_examples=num_examples, epsilon=epsilon)
    exponent = 2 * num_examples * epsilon**2 + log_tail(1, delta, side)
    return math.floor(math.exp(exponent)) if exponent < 700 else math.inf


def delta_for(num_examples: int, epsilon: float, *, num_hypotheses: int = 1, side: Side = "both") -> float:
    r"""The chance that some measured mean lies farther than epsilon from the true one, at most.

    $$ \delta = \min\big(1,\; 2 M e^{-2 N \varepsilon^2}\big) $$

    1 says that nothing is promised.

    Example:
        >>> round(delta_for(4_000, 0.05, num_hypotheses=1_000_000), 4), delta_for(4_000, 0.01)
        (0.0041, 0.8986579282344431)
    """
    check(num_examples=num_examples, num_hypotheses=num_hypotheses, epsilon=epsilon)
    sides = 2 if side == "both" else 1
    return math.exp(min(0.0, math.log(sides) + math.log(num_hypotheses) - 2 * num_examples * epsilon**2))


def smallest_difference(num_examples: int, *, num_hypotheses: int = 2, delta: float = DELTA) -> float:
    r"""The measured difference above which, of any two among $M$ hypotheses, the one ahead is truly better.

    $$ 2 \varepsilon = 2 \sqrt{\frac{\ln(2M/\delta)}{2N}} $$

    Each of the two may be off by epsilon, in opposite directions. For the same
    reason the winner is truly worse than the best of all $M$ by at most this. A
    search whose hypotheses will differ by less than this cannot *prove* which is
    best with so many examples; it may still find a good one. It holds as
    Hoeffding's bound does, for scores in [0, 1], before anything is measured.

    Example:
        >>> round(smallest_difference(4_000, num_hypotheses=1_000_000), 4)
        0.0936
    """
    return 2 * hoeffding_epsilon(num_examples, num_hypotheses=num_hypotheses, delta=delta)


def fresh_worth(num_examples: int, *, num_hypotheses: int, delta: float = DELTA) -> int:
    r"""How many fresh examples, for the winner alone, bound it as narrowly as the $N$ it was chosen on.

    $$ n = \Big\lceil N \, \frac{\ln(2/\delta)}{\ln(2M/\delta)} \Big\rceil $$

    On examples that had no part in the choice there is one hypothesis, so that
    $M$ falls out of the bound.

    Example:
        >>> fresh_worth(4_000, num_hypotheses=1_000_000)
        843
    """
    return examples_for(hoeffding_epsilon(num_examples, num_hypotheses=num_hypotheses, delta=delta), delta=delta)


def _reaches(epsilon: float, num_examples: int, num_hypotheses: int, delta: float, side: Side) -> bool:
    return hoeffding_epsilon(num_examples, num_hypotheses=num_hypotheses, delta=delta, side=side) <= epsilon
