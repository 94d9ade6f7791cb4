"""Curvature of a run: the largest Hessian eigenvalue through training, and the gradient noise scale."""

from regard.lab.study import StudyEntry

__all__ = ["CURVATURE"]

CURVATURE = StudyEntry(
    name="curvature",
    title="The curvature of a run's loss, and the noise of its gradients",
    question="How does the learning rate of a run compare with the largest one that its curvature allows?",
    function="regard.lab.curvature.sharpness:study_curvature",
    reads="a run folder",
    lectures=("L29", "L30"),
    minutes=(0.17, None),
)
