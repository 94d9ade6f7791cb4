"""Gradients through time: their norm by distance in recurrent networks and a Transformer, and clipping."""

from regard.lab.study import StudyEntry

__all__ = ["GRADIENTS"]

GRADIENTS = StudyEntry(
    name="gradients",
    title="The gradient through time",
    question="How much of the gradient reaches the start of a sequence, and what does clipping change?",
    function="regard.lab.gradients.through_time:study_gradients",
    lectures=("L01",),
    minutes=(0.32, None),
)
