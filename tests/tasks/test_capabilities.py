"""What only some tasks can do: a task has a capability by its methods, and the base class has none."""

from typing import Any

import pytest
from tests.tiny import tiny

from regard.errors import RunError
from regard.tasks import TASKS, capabilities
from regard.tasks.capabilities import (
    Embedder,
    Forecaster,
    ImageGenerator,
    PolicyProvider,
    SubjectPredictor,
    TextScorer,
    capability,
)
from regard.tasks.task import Task

PROTOCOLS = [each for each in vars(capabilities).values() if getattr(each, "_is_runtime_protocol", False)]
OWNERS = {
    Forecaster: {"forecasting"},
    SubjectPredictor: {"event-prediction"},
    PolicyProvider: {"control"},
    ImageGenerator: {"image-generation"},
}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.__name__)
def test_the_base_class_has_no_capability_and_some_task_has_it(protocol: type[Any]):
    assert not issubclass(Task, protocol)
    assert [task.name for task in TASKS if issubclass(task, protocol)]


@pytest.mark.parametrize("protocol", OWNERS, ids=lambda each: each.__name__)
def test_a_capability_belongs_to_the_tasks_with_its_methods(protocol: type[Any]):
    assert OWNERS[protocol] <= {task.name for task in TASKS if issubclass(task, protocol)}
    assert not issubclass(next(task for task in TASKS if task.name == "regression"), protocol)


def test_what_a_task_cannot_do_is_one_error_that_names_what_can():
    task = tiny("regression", [(f"word {n}", str(n)) for n in range(40)], tokenizer="words").task
    assert capability(task, Embedder) is task
    with pytest.raises(RunError, match="forecasts are for series, and this is a model for regression"):
        capability(task, Forecaster)
    with pytest.raises(RunError, match="for language models, and this is a model for regression"):
        capability(task, TextScorer)
