"""Optimizers, each at its best learning rate: on quadratics and on a Transformer; the adaptive ones written out."""

from regard.lab.study import StudyEntry

__all__ = ["OPTIMIZERS_STUDY"]

OPTIMIZERS_STUDY = StudyEntry(
    name="optimizers",
    title="Optimizers, each at its best learning rate",
    question="What do momentum, adaptive rates and orthogonalized updates gain, each at its best learning rate?",
    function="regard.lab.optimizers.comparison:study_optimizers",
    lectures=("L31",),
    minutes=(0.45, 16),
)
