"""The tasks by name; each is one file of this folder."""

from pathlib import Path

from regard.config import nearest
from regard.data.config import DataConfig
from regard.data.documents import open_texts
from regard.data.files import plain_name
from regard.data.sources import Rows, open_source
from regard.errors import ConfigError, DataError, RegardError
from regard.tasks.language import Language
from regard.tasks.task import Task
from regard.tasks.translation import ROLES, Translation

TASKS: dict[str, Task] = {task.name: task for task in (Translation(), Language())}


_TEXT_COLUMNS = ("text", "content", "document")


def guess_task(config: DataConfig, rows: Rows | None = None) -> str:
    """What data is for, judged by what it looks like: rows of two sides, or running text.

    A table with a column called text is text, and so is whatever cannot be read as rows of two sides, tables apart:
    one of those that has a single column is more likely broken.
    """
    if rows is not None:
        return Language.name if rows and (isinstance(rows[0], str) or len(rows[0]) == 1) else Translation.name
    if len(config.train) > len(ROLES):
        return Language.name
    try:
        table = open_source(config, ROLES).train
    except (DataError, ConfigError) as error:
        return _text_or(error, config)
    is_text = not config.columns and any(column in _TEXT_COLUMNS for column in table.columns)
    return Language.name if is_text else Translation.name


def _text_or(error: RegardError, config: DataConfig) -> str:
    """Language, if the data can be read as text; or else what was wrong with it as rows of two sides."""
    if any(Path(plain_name(Path(name))).suffix.lower() in (".tsv", ".tab", ".csv") for name in config.train):
        raise error
    try:
        open_texts(config)
    except (DataError, ConfigError):
        raise error from None
    return Language.name


def find_task(name: str) -> Task:
    """The task called `name`."""
    if name not in TASKS:
        raise ConfigError(f"no task is called {name!r}{nearest(name, list(TASKS))}")
    return TASKS[name]
