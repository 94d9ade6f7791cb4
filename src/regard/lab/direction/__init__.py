"""Reading direction: bidirectional and causal encoders of equal size on tasks that need the right context or not."""

from regard.lab.study import StudyEntry

__all__ = ["DIRECTION"]

DIRECTION = StudyEntry(
    name="direction",
    title="Bidirectional and causal encoders",
    question="When does an encoder have to read a text in both directions?",
    function="regard.lab.direction.encoders:study_direction",
    lectures=("L03", "L19"),
    minutes=(0.4, None),
)
