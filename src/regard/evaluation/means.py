"""The mean of a few runs, and how far it can be from that of all runs there could be."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Around = tuple[float, float, float]
"""A middle, and the ends of its interval."""


def mean_interval(values: Sequence[float] | Any, *, confidence: float = 0.95) -> Around:
    r"""The mean of independent runs with its interval, $\bar x \pm t_{n-1} s / \sqrt n$ (Student 1908).

    Exact for normal draws, about right for the mean of many, and wide for few. Of a
    single run the ends are not numbers: nothing is known of how runs differ.

    Args:
        values: A number for each run; a list, an array or a tensor.
        confidence: The probability with which the interval covers the mean over all runs.

    Example:
        >>> mean, low, high = mean_interval([1.0, 2.0, 3.0])
        >>> f"{mean:.2f} [{low:.2f}, {high:.2f}]"
        '2.00 [-0.48, 4.48]'
    """
    from scipy.special import stdtrit  # which takes a while to load

    drawn = np.asarray(values, dtype=np.float64)
    mean = float(drawn.mean())
    if len(drawn) < 2:
        return mean, math.nan, math.nan
    reach = float(stdtrit(len(drawn) - 1, 0.5 + confidence / 2) * drawn.std(ddof=1)) / math.sqrt(len(drawn))
    return mean, mean - reach, mean + reach
