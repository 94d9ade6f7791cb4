"""Loss landscapes: minima from many starts, saddle points and their negative curvatures, and paths between minima."""

from regard.lab.study import StudyEntry

__all__ = ["LANDSCAPE"]

LANDSCAPE = StudyEntry(
    name="landscape",
    title="Local minima, saddle points and the paths between minima",
    question="Do bad local minima trap gradient descent, and are good minima connected?",
    function="regard.lab.landscape.surfaces:study_landscape",
    lectures=("L29",),
    minutes=(0.35, None),
)
