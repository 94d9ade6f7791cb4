"""The registered tasks, and which of them a source is for."""

from typing import Any

from regard.data.formats.messages import format_column
from regard.data.settings import DataConfig
from regard.data.sources import Rows
from regard.errors import ConfigError, UnknownTaskError
from regard.models.family import InputKind, ModelConfig
from regard.registry import Registry
from regard.tasks.detection import DetectionSummary, describe_source
from regard.tasks.feature_tables import find_interactions
from regard.tasks.task import Detection, Task, TaskSettings

TASKS: Registry[type[Task[Any]]] = Registry(
    "regard.tasks", "task", members=("name", "description", "Settings", "codec_types", "store_columns", "metrics")
)


def find_task(name: str) -> type[Task[Any]]:
    """The task registered as `name`; for a name that a task has elsewhere, the error has the right one."""
    if isinstance(name, str) and name not in TASKS.names():
        plain = name.lower().replace("_", "-").replace(" ", "-")
        if meant := [task.name for task in TASKS if plain in task.other_names]:
            raise ConfigError(f"unknown task {name!r}; did you mean {meant[0]}?")
    return TASKS.find(name)


def task_for_head(head: str | None) -> type[Task[Any]]:
    """The task whose models have this head."""
    return next(task for task in TASKS if task.head_kind == head and task.receives_imports)


def alignment_task() -> type[Task[Any]]:
    """The task that continues the training of a language model by preferences or rewards."""
    return next(task for task in TASKS if task.needs_base)


def task_for_model(model: ModelConfig) -> type[Task[Any]]:
    """The task that a model with these stacks and this kind of input is for; raises if there are several."""
    stacks = "encoder-" * bool(model.encoder_depth) + "decoder" * bool(model.decoder_depth)
    architecture = stacks.removesuffix("-") or "encoder"
    found = [
        each
        for each in TASKS
        if (each.architecture, each.input_kind) == (architecture, model.input_kind) and each.receives_imports
    ]
    if len(found) != 1:
        names = ", ".join(task.name for task in found)
        raise ConfigError(f"models of family {model.family} without a decoder have several tasks: name one of {names}")
    return found[0]


def make_task(settings: TaskSettings, codecs: Any = None) -> Task[Any]:
    """The task that these settings are for."""
    return find_task(settings.name)(settings, codecs)


def detect_task(
    config: DataConfig,
    rows: Rows | None = None,
    *,
    given: dict[str, Any] | None = None,
    input_kind: InputKind | None = None,
) -> tuple[str, Detection]:
    """The name of the task that recognizes a source with the highest confidence, with the reason and the columns.

    Args:
        config: Where the data is.
        rows: Rows in memory, instead of files.
        given: Values of the `[task]` section that the user has set.
        input_kind: What the model reads that the user has named: tasks for such models take precedence.

    Raises:
        UnknownTaskError: If no task recognizes the source.
    """
    summary = describe_source(config, rows, given or {})
    found = [
        (task.input_kind == input_kind, detection.confidence, task.name, detection)
        for task in TASKS
        if (detection := task.detect(summary))
    ]
    if not found:
        raise UnknownTaskError(
            f"{_describe(summary)}; no task recognizes this: name the columns of an input and a target, and one of "
            f"{', '.join(_tasks_of_tables())}{_describe_features(summary)}"
        )
    *_, name, detection = max(found, key=lambda each: each[:3])
    return name, detection


def _describe(summary: DetectionSummary) -> str:
    if columns := summary.describe_columns():
        return f"{summary.name} has {columns}"
    return f"{summary.name} {'has lines of numbers' if summary.is_measured else 'is neither a table, text nor images'}"


def _tasks_of_tables() -> list[str]:
    """The tasks that a table of texts is likely to be for, where it does not say so."""
    return [task.name for task in TASKS if task.input_kind == "tokens" and task.receives_imports]


def _describe_features(summary: DetectionSummary) -> str:
    """What is missing in a table of features, or in one of events whose columns have other names."""
    if times := find_interactions(summary.columns):
        subject, item, time = map(format_column, times)
        return (
            f"; rows of {subject} and {item} over {time} are events, which event-prediction reads if "
            "task.subject_column, task.time_column and task.event_column are named"
        )
    if not any(column.kind == "numbers" for column in summary.columns) or not (
        summary.is_table_of_features or {column.kind for column in summary.columns} <= {"numbers", "labels"}
    ):
        return ""
    return "; numbers are read as a series, which has a column of time: a table of features has no sequence to model"
