"""A sum of ReLUs for any continuous function of an interval: the construction, its error, and what descent finds."""

from regard.lab.study import StudyEntry

__all__ = ["REPRESENTATION"]

REPRESENTATION = StudyEntry(
    name="representation",
    title="Continuous functions as sums of ReLUs",
    question="How many ReLUs does a continuous function need, and does gradient descent find them?",
    function="regard.lab.representation.hinges:study_representation",
    lectures=("L38",),
    options={
        "function": "A formula of x, such as 'sin(3*x)', instead of three functions of the study's own.",
        "interval": "The ends of the interval of x, such as '0,2' (default: 0,1).",
    },
    minutes=(0.23, None),
)
