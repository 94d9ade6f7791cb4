r"""Learning rate schedules.

Each schedule is a multiplier of the peak learning rate. With $s$ the step from 1,
$w$ the warmup steps and $p \in [0, 1]$ the share of the budget that is used, it is
the smaller of $s/w$ and

    inverse-sqrt   $\sqrt{w / s}$                    Vaswani et al. (2017), section 5.3
    cosine         $(1 + \cos \pi p) / 2$            Loshchilov & Hutter (2017), arXiv 1608.03983
    linear         $1 - p$
    trapezoid      $\min(1, (1 - p) / 0.3)$          Hägele et al. (2024), arXiv 2405.18392
    constant       $1$

The budget may be in steps, epochs or minutes.
"""

import math
from typing import Literal

ScheduleName = Literal["inverse-sqrt", "cosine", "linear", "trapezoid", "constant"]

_TRAPEZOID_DECAY = 0.3
"""The share of the budget in which a trapezoid decays."""


def lr_multiplier(schedule: ScheduleName, *, step: int, warmup_steps: int, progress: float) -> float:
    """The multiplier of the peak learning rate at `step`, counted from 1.

    Example:
        >>> lr_multiplier("inverse-sqrt", step=400, warmup_steps=100, progress=0.0)
        0.5
        >>> lr_multiplier("linear", step=50, warmup_steps=100, progress=0.2)
        0.5
    """
    warmup = max(1, warmup_steps)
    return min(step / warmup, _decay(schedule, step=step, warmup=warmup, remaining=max(0.0, 1.0 - progress)))


def _decay(schedule: ScheduleName, *, step: int, warmup: int, remaining: float) -> float:
    match schedule:
        case "inverse-sqrt":
            return math.sqrt(warmup / step)
        case "cosine":
            return (1.0 + math.cos(math.pi * (1.0 - remaining))) / 2.0
        case "linear":
            return remaining
        case "trapezoid":
            return min(1.0, remaining / _TRAPEZOID_DECAY)
        case "constant":
            return 1.0
