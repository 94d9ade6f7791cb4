"""Scaling laws: the loss of small Transformers against parameters, data and compute, extrapolated to a larger one."""

from regard.lab.study import StudyEntry

__all__ = ["SCALING"]

SCALING = StudyEntry(
    name="scaling",
    title="Scaling laws: loss against parameters, data and compute",
    question="How does the loss fall with parameters, data and compute, and how far can it be extrapolated?",
    function="regard.lab.scaling.laws:study_scaling",
    reads="a text file",
    lectures=("L35",),
    minutes=(2.1, 26),
)
