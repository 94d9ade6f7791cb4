r"""How the learning rate rises and falls.

Each schedule is a factor on the peak rate. With $s$ the step from 1, $w$ the
warm-up and $p \in [0, 1]$ how much of the budget is used, the factor is the
smaller of $s/w$ and

    inverse-sqrt   $\sqrt{w / s}$                    Vaswani et al. (2017), section 5.3
    cosine         $(1 + \cos \pi p) / 2$            Loshchilov & Hutter (2017), arXiv 1608.03983
    linear         $1 - p$
    trapezoid      $\min(1, (1 - p) / 0.3)$          Hägele et al. (2024), arXiv 2405.18392
    constant       $1$

The budget may be steps, epochs or minutes: only $p$ knows.
"""

import math
from typing import Literal

ScheduleName = Literal["inverse-sqrt", "cosine", "linear", "trapezoid", "constant"]

_TRAPEZOID_DECAY = 0.3
"""The share of the budget in which a trapezoid falls."""


def rate_factor(schedule: ScheduleName, *, step: int, warmup_steps: int, progress: float) -> float:
    """The factor on the peak rate at `step`, counted from 1.

    Example:
        >>> rate_factor("inverse-sqrt", step=400, warmup_steps=100, progress=0.0)
        0.5
        >>> rate_factor("linear", step=50, warmup_steps=100, progress=0.2)
        0.5
    """
    warmup = max(1, warmup_steps)
    return min(step / warmup, _fall(schedule, step=step, warmup=warmup, rest=max(0.0, 1.0 - progress)))


def _fall(schedule: ScheduleName, *, step: int, warmup: int, rest: float) -> float:
    match schedule:
        case "inverse-sqrt":
            return math.sqrt(warmup / step)
        case "cosine":
            return (1.0 + math.cos(math.pi * (1.0 - rest))) / 2.0
        case "linear":
            return rest
        case "trapezoid":
            return min(1.0, rest / _TRAPEZOID_DECAY)
        case "constant":
            return 1.0
