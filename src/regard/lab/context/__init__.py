"""Long context: what windows, strides and linear attention save, and what they lose, beside full attention."""

from regard.lab.study import StudyEntry

__all__ = ["CONTEXT"]

CONTEXT = StudyEntry(
    name="context",
    title="Long context: cost and quality of kinds of attention",
    question="What do windows, strides and linear attention save at which length, and what can they not retrieve?",
    function="regard.lab.context.kinds:study_context",
    reads="a text file",
    lectures=("L23",),
    minutes=(0.41, None),
)
