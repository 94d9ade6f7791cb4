"""Scores of predictions, with what makes them trustworthy: intervals, signatures and paired tests.

A task returns `Examples`; a registered `Metric` counts per example, and from these
`Counts` follow the score, its interval, its interval over training
seeds, and paired comparisons. Nothing here imports torch.
"""

from regard.evaluation.counts import Counts, count_right
from regard.evaluation.examples import Examples
from regard.evaluation.intervals import Interval, bootstrap_interval, clopper_pearson, mean_interval
from regard.evaluation.paired import ComparedPair, compare_all, holm
from regard.evaluation.registry import (
    METRICS,
    Metric,
    find_metric,
    find_metric_of,
    on_pairs,
    score_examples,
    score_label,
)
from regard.evaluation.scores import Score, score_counts
from regard.evaluation.seeds import score_over_seeds

__all__ = [
    "METRICS",
    "ComparedPair",
    "Counts",
    "Examples",
    "Interval",
    "Metric",
    "Score",
    "bootstrap_interval",
    "clopper_pearson",
    "compare_all",
    "count_right",
    "find_metric",
    "find_metric_of",
    "holm",
    "mean_interval",
    "on_pairs",
    "score_counts",
    "score_examples",
    "score_label",
    "score_over_seeds",
]
