"""Gradient descent: the largest stable learning rate, ill-conditioning, saddle points and gradient noise."""

from regard.lab.study import StudyEntry

__all__ = ["DESCENT"]

DESCENT = StudyEntry(
    name="descent",
    title="Gradient descent and its noise",
    question="How large may a learning rate be, what slows gradient descent down, and what does gradient noise add?",
    function="regard.lab.descent.report:study_descent",
    lectures=("L29", "L30"),
    minutes=(0.39, 2.5),
)
