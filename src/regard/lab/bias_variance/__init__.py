"""Bias and variance of three learners, and the optimism of selecting the best of K functions."""

from regard.lab.study import StudyEntry

__all__ = ["BIAS_VARIANCE"]

BIAS_VARIANCE = StudyEntry(
    name="bias-variance",
    title="Bias, variance, and selection among functions",
    question="How do bias and variance depend on capacity, and what does selection among K functions cost?",
    function="regard.lab.bias_variance.risks:study_bias_variance",
    reads="a table of texts or numbers with labels or numbers",
    lectures=("L35",),
    minutes=(0.48, None),
)
