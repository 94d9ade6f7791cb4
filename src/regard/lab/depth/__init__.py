"""Degradation: deeper networks with a higher training loss, and what residual connections and norms change."""

from regard.lab.study import StudyEntry

__all__ = ["DEPTH"]

DEPTH = StudyEntry(
    name="depth",
    title="Depth, residual connections and normalization",
    question="Why do plain networks train worse when they are deeper, and what prevents it?",
    function="regard.lab.depth.degradation:study_depth",
    lectures=("L16",),
    minutes=(2.5, None),
)
