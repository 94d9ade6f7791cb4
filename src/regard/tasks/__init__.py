"""Tasks: each is one file or folder of this package, or of another that registers it under `regard.tasks`."""

from regard.tasks.content import Prediction
from regard.tasks.registry import TASKS, detect_task, find_task, make_task
from regard.tasks.task import Detection, Task, TaskSettings

__all__ = ["TASKS", "Detection", "Prediction", "Task", "TaskSettings", "detect_task", "find_task", "make_task"]
