"""Boolean formulas and threshold circuits as networks with exact weights, and what gradient descent learns of them."""

from regard.lab.study import StudyEntry

__all__ = ["CIRCUITS"]

CIRCUITS = StudyEntry(
    name="circuits",
    title="Boolean circuits as networks, and what descent can train",
    question="Which Boolean functions can a network represent, and which of them does gradient descent find?",
    function="regard.lab.circuits.report:study_circuits",
    lectures=("L39",),
    options={
        "formula": "A Boolean formula to compile, such as '(a & b) ^ !c' or '[2*a + b - c >= 1] -> d', of at most 16 "
        "variables, instead of a few of the study's own.",
    },
    minutes=(1.5, None),
)
