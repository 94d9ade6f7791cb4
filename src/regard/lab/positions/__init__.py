"""Position encodings: what each adds, and the accuracy on sequences longer than those in training."""

from regard.lab.study import StudyEntry

__all__ = ["POSITIONS"]

POSITIONS = StudyEntry(
    name="positions",
    title="Position encodings on sequences longer than those in training",
    question="Which position encodings extrapolate to sequences longer than those in training?",
    function="regard.lab.positions.extrapolation:study_positions",
    lectures=("L15",),
    minutes=(0.78, None),
)
