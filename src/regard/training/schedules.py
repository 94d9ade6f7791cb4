r"""Learning rate schedules.

Each schedule is a multiplier of the peak learning rate. With $s$ the step from 1,
$w$ the warmup steps and $p \in [0, 1]$ the share of the budget that is used, it is
the smaller of $s/w$ and

    inverse-sqrt   $\sqrt{w / s}$                    Vaswani et al. (2017), section 5.3
    cosine         $(1 + \cos \pi p) / 2$            Loshchilov & Hutter (2017), arXiv 1608.03983
    linear         $1 - p$
    trapezoid      $\min(1, (1 - p) / 0.3)$          Hägele et al. (2024), arXiv 2405.18392
    constant       $1$

The budget may be in steps, epochs or minutes. Under a time limit the warmup ends with a
tenth of the time at the latest.

Where early stopping ends a run, a cooldown completes the schedule: after the share $q$
of the budget at which it began, the multiplier decays linearly to 0 at $1.2 q$, or at
the end of the budget where that is earlier. Hägele et al. (2024) find a cooldown of 10
to 20 % of the steps as good as a schedule that was planned for that length.
"""

import math
from typing import Literal

ScheduleName = Literal["inverse-sqrt", "cosine", "linear", "trapezoid", "constant"]

_TRAPEZOID_DECAY = 0.3
"""The share of the budget in which a trapezoid decays."""
_LONGEST_WARMUP = 0.1
"""The share of a time limit after which the warmup has ended: in a short run, its steps may be most of the run."""
_COOLDOWN = 0.2
"""The length of a cooldown, as a share of what precedes it."""


def lr_multiplier(
    schedule: ScheduleName, *, step: int, warmup_steps: int, progress: float, is_timed: bool = False
) -> float:
    """The multiplier of the peak learning rate at `step`, counted from 1.

    Args:
        schedule: The name of the schedule.
        step: The number of the step.
        warmup_steps: The steps of the warmup.
        progress: The share of the budget that is used.
        is_timed: Whether the budget is a time limit, a tenth of which ends the warmup.

    Example:
        >>> lr_multiplier("inverse-sqrt", step=400, warmup_steps=100, progress=0.0)
        0.5
        >>> lr_multiplier("linear", step=50, warmup_steps=100, progress=0.2)
        0.5
        >>> lr_multiplier("constant", step=20, warmup_steps=100, progress=0.05, is_timed=True)
        0.5
    """
    warmup = max(1, warmup_steps)
    warm = max(step / warmup, progress / _LONGEST_WARMUP) if is_timed else step / warmup
    decay = _decay(schedule, step=step, warmup=warmup, remaining=max(0.0, 1.0 - progress))
    return min(1.0, warm, decay)


def cooldown_progress(progress: float, start: float) -> float:
    """The share of a cooldown that is over, 0 to 1, where it began at the share `start` of the budget.

    Example:
        >>> [round(cooldown_progress(used, 0.5), 3) for used in (0.5, 0.55, 0.6, 0.7)]
        [0.0, 0.5, 1.0, 1.0]
        >>> round(cooldown_progress(0.95, 0.9), 3)
        0.5
    """
    length = min(1.0, (1.0 + _COOLDOWN) * start) - start
    return min(1.0, max(0.0, progress - start) / length) if length > 0 else 1.0


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
