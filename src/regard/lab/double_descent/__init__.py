"""Double descent: the test risk of random features, perceptrons and Transformers against their capacity."""

from regard.lab.study import StudyEntry

__all__ = ["DOUBLE_DESCENT"]

DOUBLE_DESCENT = StudyEntry(
    name="double-descent",
    title="Double descent",
    question="Does the risk fall a second time when a model grows beyond the size that interpolates its labels?",
    function="regard.lab.double_descent.risks:study_double_descent",
    reads="a table of texts or numbers with labels or numbers",
    lectures=("L36",),
    minutes=(1.9, 93),
)
