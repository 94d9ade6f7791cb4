r"""What a bound says, and how the chance of its failure is shared out.

All bounds of this folder are made alike. A bound on one end of one hypothesis,
fixed before the examples were seen, may fail with a chance of `tail`. There are
$M$ hypotheses and one or two ends each, so that with

$$ \text{tail} = \frac{\delta}{s M}, \qquad s = 1 \text{ or } 2 \text{ ends} $$

the chance that any of them fails is at most $\delta$ (the union bound). What
holds for all $M$ at once holds for the one that was chosen, however it was
chosen, and however much the hypotheses are alike.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from regard.errors import ConfigError

Side = Literal["both", "lower", "upper"]
"""Which ends of the interval are promised: of accuracies often the lower alone, of losses the upper."""

DELTA = 0.05


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Between which ends the true mean of a score lies, with what chance of being wrong, and for whom.

    The true mean is that over all examples from which the `num_examples` were
    independently drawn.
    """

    name: str
    statement: str
    """What is promised, in words, and when."""
    value: float | None
    """The mean that was measured; None where the bound does not ask for it."""
    lower: float | None
    upper: float | None
    """Where one side is promised, the other end is that of the scale."""
    epsilon: float
    """How far the true mean can lie from the measured one, on the side where it can lie farther."""
    num_hypotheses: int | None
    """Among how many one was chosen; all of them are covered at once. None where no number is asked for."""
    num_examples: int
    delta: float
    """The chance with which what is said may be wrong."""
    side: Side = "both"
    is_estimate: bool = False
    """Whether it holds only about, for many examples: then it is no bound."""

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends, which are there where there is a measured value."""
        if self.lower is None or self.upper is None:
            raise ConfigError(f"{self.name} has no ends without a measured value")
        return self.lower, self.upper

    def holds(self, truth: float) -> bool:
        """Whether a true mean lies where this says."""
        lower, upper = self.interval
        return lower <= truth <= upper

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return dict(vars(self))


def log_tail(num_hypotheses: int, delta: float, side: Side) -> float:
    """The logarithm of the chance left to one end of one hypothesis.

    A logarithm, since there can be more hypotheses than a float can count.

    Example:
        >>> round(math.exp(log_tail(10, 0.05, "both")), 6)
        0.0025
    """
    check(num_hypotheses=num_hypotheses, delta=delta)
    if side not in ("both", "lower", "upper"):
        raise ConfigError(f"side must be both, lower or upper, got {side!r}")
    return math.log(delta) - math.log(num_hypotheses) - math.log(2 if side == "both" else 1)


def reach(value: float, ends: tuple[float, float], side: Side) -> float:
    """How far the promised ends lie from the measured value; of two, the farther.

    Example:
        >>> reach(0.5, (0.25, 0.625), "both"), reach(0.5, (0.25, 0.625), "upper")
        (0.25, 0.125)
    """
    # One end alone may lie on the other side of the value where delta is above a half.
    below, above = max(0.0, value - ends[0]), max(0.0, ends[1] - value)
    return {"both": max(below, above), "lower": below, "upper": above}[side]


def spell_promise(num_hypotheses: int, delta: float, side: Side) -> str:
    """How a statement begins.

    Example:
        >>> spell_promise(1000, 0.05, "both")
        'with probability at least 0.95, for all 1,000 hypotheses at once, the true mean lies in the interval'
        >>> spell_promise(1, 0.1, "lower")
        'with probability at least 0.9, the true mean is no less than the lower end'
    """
    for_whom = f"for all {num_hypotheses:,} hypotheses at once, " if num_hypotheses > 1 else ""
    lies = {
        "both": "the true mean lies in the interval",
        "lower": "the true mean is no less than the lower end",
        "upper": "the true mean is no more than the upper end",
    }[side]
    return f"with probability at least {1 - delta:.6g}, {for_whom}{lies}"


def check(
    *, num_examples: int = 1, num_hypotheses: int = 1, delta: float = DELTA, epsilon: float = 1.0, fewest: int = 1
) -> None:
    """Say which number is outside its range."""
    if num_hypotheses < 1:
        raise ConfigError(f"num_hypotheses, M, must be at least 1, got {num_hypotheses}")
    if num_examples < fewest:
        raise ConfigError(f"num_examples, N, must be at least {fewest}, got {num_examples}")
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta must lie between 0 and 1, both excluded, got {delta:g}")
    if not epsilon > 0.0:  # which NaN is not, either
        raise ConfigError(f"epsilon must be above 0, got {epsilon:g}")


def check_share(value: float, needs: str) -> None:
    """Refuse a value outside [0, 1] to a bound that holds only there."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(
            f"{needs} needs scores in [0, 1], got {value:g}; of scores without such a range only the bootstrap gives "
            f"an estimate, from the score of each example, and no bound; a score of a known range a to b can be "
            f"rescaled by (score - a) / (b - a)"
        )
