r"""Bounds on the true score of a model that was selected among many by its measured score.

The best of $M$ candidates by their scores on $N$ examples is selected partly by
chance: its measured score is too high. The bounds here state how much too high it
can be.

| scores | bounds | file |
|---|---|---|
| in [0, 1] | Hoeffding, Chernoff, empirical Bernstein, PAC-Bayes | `means` |
| 0 or 1 | exact binomial, too | `means` |
| without a range | none; an estimate by the bootstrap | `estimates` |

`reporting` selects the bound that applies to given scores, `planning` answers
questions before there are any, and `bound` has what they share: the record, the
union bound, and its counterpart for tests.
"""

from regard.selection.bounds.bound import DELTA, Bound, Side, binomial_p_value, bonferroni, which_beat
from regard.selection.bounds.estimates import bootstrap_estimate, bootstrap_estimate_of_all
from regard.selection.bounds.means import (
    bernstein,
    binary_kl,
    binomial,
    chernoff,
    hoeffding,
    hoeffding_epsilon,
    kl_from_uniform,
    pac_bayes,
)
from regard.selection.bounds.planning import (
    Calculation,
    Requirements,
    calculate,
    candidates_allowed,
    equivalent_fresh_examples,
    examples_needed,
    failure_probability,
    smallest_difference,
)
from regard.selection.bounds.reporting import ScoreSummary, applicable_bounds, fresh_bound, tightest_bound

__all__ = [
    "DELTA",
    "Bound",
    "Calculation",
    "Requirements",
    "ScoreSummary",
    "Side",
    "applicable_bounds",
    "bernstein",
    "binary_kl",
    "binomial",
    "binomial_p_value",
    "bonferroni",
    "bootstrap_estimate",
    "bootstrap_estimate_of_all",
    "calculate",
    "candidates_allowed",
    "chernoff",
    "equivalent_fresh_examples",
    "examples_needed",
    "failure_probability",
    "fresh_bound",
    "hoeffding",
    "hoeffding_epsilon",
    "kl_from_uniform",
    "pac_bayes",
    "smallest_difference",
    "tightest_bound",
    "which_beat",
]
