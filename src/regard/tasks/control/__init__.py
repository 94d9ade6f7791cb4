"""Control: the next action of an agent, learned from recorded episodes.

`model` has the network, `policy` how it acts in an environment, `task` the task and its batches.
"""

from regard.tasks.control.model import ActionModel
from regard.tasks.control.policy import TrajectoryPolicy
from regard.tasks.control.task import Control

__all__ = ["ActionModel", "Control", "TrajectoryPolicy"]
