"""Softmax and its temperature: entropy and largest probability between the two limits, for given and random scores."""

from regard.lab.study import StudyEntry

__all__ = ["SOFTMAX"]

SOFTMAX = StudyEntry(
    name="softmax",
    title="Softmax and its temperature",
    question="How does the temperature move softmax between argmax and the uniform distribution?",
    function="regard.lab.softmax.temperature:study_softmax",
    lectures=("L22",),
    minutes=(0.07, None),
)
