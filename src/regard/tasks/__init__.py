"""The tasks by name; each is one file of this folder."""

from regard.config import nearest
from regard.errors import ConfigError
from regard.tasks.task import Task
from regard.tasks.translation import Translation

TASKS: dict[str, Task] = {task.name: task for task in (Translation(),)}


def find_task(name: str) -> Task:
    """The task called `name`."""
    if name not in TASKS:
        raise ConfigError(f"no task is called {name!r}{nearest(name, list(TASKS))}")
    return TASKS[name]
