"""Adaptive choice: analysts who overfit validation rows by their scores, and mechanisms that release scores."""

from regard.lab.study import StudyEntry

__all__ = ["ADAPTIVITY"]

ADAPTIVITY = StudyEntry(
    name="adaptivity",
    title="Scores that decide what is tried next",
    question="How often do certificates fail when scores decide what is tried next, with and without released scores?",
    function="regard.lab.adaptivity.analysts:study_adaptivity",
    lectures=("L34",),
    minutes=(0.2, 1.4),
)
