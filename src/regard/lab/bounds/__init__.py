"""Bounds on the score of a selected candidate: how often they fail, and how far they are from the optimism."""

from regard.lab.study import StudyEntry

__all__ = ["BOUNDS_STUDY"]

BOUNDS_STUDY = StudyEntry(
    name="bounds",
    title="Bounds on the score of the best of many",
    question="How often do bounds on the score of a selected candidate fail, and how loose are they?",
    function="regard.lab.bounds.selections:study_bounds",
    lectures=("L34",),
    minutes=(0.19, 2.0),
)
