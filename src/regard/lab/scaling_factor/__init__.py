"""Why attention scores are divided by the square root of the key width.

Measured on random vectors, in untrained Transformers, and in training with and without the factor.
"""

from regard.lab.study import StudyEntry

__all__ = ["SCALING_FACTOR"]

SCALING_FACTOR = StudyEntry(
    name="scaling-factor",
    title="Why attention divides its scores by √d",
    question="Why are attention scores divided by the square root of the key width?",
    function="regard.lab.scaling_factor.attention_scores:study_scaling_factor",
    lectures=("L12",),
    minutes=(0.2, None),
)
