"""Efficiency claims: operations, sequential depth, path length and parameters of model families against the length."""

from regard.lab.study import StudyEntry

__all__ = ["EFFICIENCY"]

EFFICIENCY = StudyEntry(
    name="efficiency",
    title="Operations, sequential steps, path lengths and parameters against the length",
    question="Do the costs of attention, recurrence and convolution grow with the length as stated?",
    function="regard.lab.efficiency.growth:study_efficiency",
    lectures=("L41",),
    minutes=(0.13, None),
)
