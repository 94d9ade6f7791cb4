r"""The agreement of raters: Krippendorff's alpha for categories.

Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011). With $o_{ck}$ the coincidences of categories $c$ and
$k$ within units, each unit weighted by its number of values minus 1, and $n_c$ their sums,

$$ \alpha = 1 - (n - 1) \frac{\sum_{c \ne k} o_{ck}}{\sum_{c \ne k} n_c n_k} $$

1 is perfect agreement, 0 that of chance. Raters may have rated any number of units; those with one value do not count.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from regard.data.formats.messages import format_count


@dataclass(frozen=True)
class Agreement:
    """How far raters agree."""

    alpha: float
    """Krippendorff's alpha, for categories."""
    share: float
    """The share of pairs of ratings of the same unit that are equal."""
    num_units: int
    """Units with at least two ratings."""
    num_raters: int

    def __str__(self) -> str:
        return (
            f"Krippendorff's alpha {self.alpha:.2f} (two raters agree on {100 * self.share:.0f} % of pairs; "
            f"{format_count(self.num_raters, 'rater')}, {format_count(self.num_units, 'pair')} rated more than once)"
        )


def krippendorff_alpha(units: Iterable[Sequence[Hashable]]) -> tuple[float, float, int]:
    """Alpha, the share of equal pairs, and the number of units with two values or more; NaN where there are none.

    Example:
        >>> alpha, share, count = krippendorff_alpha([["a", "a"], ["a", "b"], ["b", "b"], ["b"]])
        >>> round(alpha, 4), round(share, 4), count
        (0.4444, 0.6667, 3)
    """
    counted = [Counter(values) for values in units if len(values) > 1]
    totals: Counter[Hashable] = Counter()
    different = num_equal = num_pairs = 0.0
    for values in counted:
        size = values.total()
        equal = sum(count * (count - 1) for count in values.values())
        pairs = size * (size - 1)
        totals.update(values)
        different += (pairs - equal) / (size - 1)
        num_equal, num_pairs = num_equal + equal, num_pairs + pairs
    n = totals.total()
    by_chance = n * n - sum(count * count for count in totals.values())
    if not num_pairs:
        return float("nan"), float("nan"), 0
    # All values are equal: there is no disagreement, observed or expected.
    alpha = 1.0 if not by_chance else 1.0 - (n - 1) * different / by_chance
    return alpha, num_equal / num_pairs, len(counted)


def agreement_on_pairs(rows: Iterable[Sequence[str]]) -> Agreement | None:
    """The agreement on pairs of answers: rows of prompt, chosen, rejected and rater; None where no pair is rated twice.

    Which of the two answers is the first of its pair is decided by their order as text, not by who has chosen what.
    """
    units: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    raters = set()
    for prompt, chosen, rejected, rater in rows:
        units[prompt, *sorted((chosen, rejected))].append(chosen < rejected)
        raters.add(rater)
    alpha, share, num_units = krippendorff_alpha(units.values())
    return Agreement(alpha, share, num_units, len(raters)) if num_units else None
