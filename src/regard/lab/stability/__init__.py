"""Algorithmic stability: pairs of SGD runs whose training sets differ in one example, compared with their bounds."""

from regard.lab.study import StudyEntry

__all__ = ["STABILITY"]

STABILITY = StudyEntry(
    name="stability",
    title="Stability of stochastic gradient descent",
    question="How far does one replaced training example move the weights, and what do stability bounds allow?",
    function="regard.lab.stability.pairs:study_stability",
    reads="a table of texts or numbers with labels or numbers",
    lectures=("L37",),
    minutes=(0.33, 7.9),
)
