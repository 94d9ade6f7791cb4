"""The shape of a curve of risks against capacity: where it falls, rises, and falls again.

Dimensions: `capacity` widths or epochs, from small to large; `draw` repetitions with other data and other weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.evaluation.means import Around, mean_interval
from regard.lab.random_features import median_around

Middle = Callable[[Tensor], Around]
"""What draws come to, and an interval of it."""


@dataclass(frozen=True)
class Peak:
    """A rise between two descents: the places of the lowest point before it, of its top, and of the lowest after it."""

    before: int
    top: int
    after: int


def find_peak(curve: Float[Tensor, " capacity"]) -> Peak | None:
    """The rise that stands out most above the lower of what is before and the lower of what is after; None if none is.

    Example:
        >>> find_peak(torch.tensor([3.0, 2.0, 5.0, 1.0]))
        Peak(before=1, top=2, after=3)
        >>> find_peak(torch.tensor([3.0, 2.0, 1.0])) is None
        True
    """
    best, height = None, 0.0
    for top in range(1, len(curve) - 1):
        before, after = int(curve[:top].argmin()), top + 1 + int(curve[top + 1 :].argmin())
        stands_out = float(curve[top] - max(curve[before], curve[after]))
        if stands_out > height:
            best, height = Peak(before, top, after), stands_out
    return best


@dataclass(frozen=True)
class Shape:
    """A curve of draws, its peak, and whether other draws would show the same."""

    capacities: Sequence[int]
    risks: Float[Tensor, "capacity draw"]
    around: Middle

    @property
    def middles(self) -> Float[Tensor, " capacity"]:
        return torch.tensor([self.around(draws)[0] for draws in self.risks], dtype=torch.float64)

    @property
    def peak(self) -> Peak | None:
        return find_peak(self.middles)

    def differs(self, one: int, other: int) -> int:
        """1 where the risk at place `one` is above that at `other`, -1 below, 0 where the draws do not tell.

        Draws are compared pair by pair, as both places have the same data.
        """
        _, low, high = self.around(self.risks[one] - self.risks[other])
        return int(low > 0) - int(high < 0)

    @property
    def is_double(self) -> bool:
        """Whether both the rise and the second descent are more than luck of the draws."""
        peak = self.peak
        return peak is not None and self.differs(peak.top, peak.before) > 0 and self.differs(peak.after, peak.top) < 0


def describe(shape: Shape, what: str, *, digits: int = 3) -> str:
    """What the curve does, in words, with numbers: `what` is the name of its capacities."""
    middles, peak = shape.middles, shape.peak

    def at(place: int) -> str:
        return f"{middles[place]:.{digits}g} at {shape.capacities[place]:,} {what}"

    if peak is None:
        lowest = int(middles.argmin())
        if lowest in (0, len(middles) - 1):
            turns = "falls all the way" if lowest else "rises all the way"
            return f"{turns}, from {at(0)} to {at(len(middles) - 1)}"
        return f"falls to {at(lowest)} and rises to {at(len(middles) - 1)}, with no second descent"
    verdict = {-1: "below", 0: "not told apart from", 1: "above"}[shape.differs(peak.after, peak.before)]
    luck = "" if shape.is_double else "; the rise, the second descent or both are within the luck of the draws"
    return (
        f"has its first minimum of {at(peak.before)}, a peak of {at(peak.top)} and a second minimum of "
        f"{at(peak.after)}, {verdict} the first{luck}"
    )


MEAN: Middle = mean_interval
MEDIAN: Middle = median_around
