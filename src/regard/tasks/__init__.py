"""The tasks by name; each is one file of this folder."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from regard.config import nearest
from regard.data.config import DataConfig
from regard.data.documents import open_texts
from regard.data.files import plain_name
from regard.data.sources import Rows, open_source
from regard.data.tables import Table
from regard.errors import ConfigError, DataError, RegardError
from regard.tasks.answering import Answering
from regard.tasks.classification import Classification
from regard.tasks.embedding import Embedding
from regard.tasks.language import Language
from regard.tasks.masked import Masked
from regard.tasks.regression import Regression
from regard.tasks.tagging import Tagging
from regard.tasks.task import Task
from regard.tasks.translation import ROLES, Translation

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Translation(),
        Language(),
        Classification(),
        Regression(),
        Tagging(),
        Answering(),
        Masked(),
        Embedding(),
    )
}


_TEXT_COLUMNS = ("text", "content", "document")
_LABEL_COLUMNS = ("label", "labels", "class", "category", "sentiment", "intent", "topic", "gold_label", "polarity",
                  "is_duplicate")  # fmt: skip
_TAG_COLUMNS = ("tags", "ner_tags", "pos_tags", "chunk_tags")
_TAGGED_FILES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
_ROWS_SEEN, _FEWEST_LABELLED = 1_000, 20
_LEAST_REPEATED, _LONGEST_LABEL = 10, 40
"""A label comes so often on average, and has at most so many characters."""


def guess_task(config: DataConfig, rows: Rows | None = None) -> str:
    """What data is for, judged by what it looks like: texts with labels, rows of two sides, or running text.

    Tagged sentences and questions about texts are known by the names of their files or columns. Rows have labels where
    a column is called so, or where few distinct short texts stand on their last side. A table with a column called
    text and no label is text, and so is whatever cannot be read as rows of two sides, tables apart: one of those that
    has a single column is more likely broken.
    """
    if rows is not None:
        if rows and (isinstance(rows[0], str) or len(rows[0]) == 1):
            return Language.name
        if rows and isinstance(rows[0][0], list | tuple):
            return Tagging.name
        return Classification.name if _are_labels([row[-1] for row in rows[:_ROWS_SEEN]]) else Translation.name
    if len(config.train) > len(ROLES):
        return Language.name
    ending = _ending(config.train[0]) if len(config.train) == 1 else ""
    if ending in _TAGGED_FILES or ending == ".json":
        return Tagging.name if ending in _TAGGED_FILES else Answering.name
    if config.label_separator is not None or len(config.columns) == len(ROLES) + 1:
        return Classification.name
    try:
        table = open_source(config, ROLES).train
    except (DataError, ConfigError) as error:
        return _text_or(error, config)
    names = {column.rpartition(".")[2].lower() for column in (config.columns or table.names)}
    if {"question", "context"} <= names:
        return Answering.name
    if {"tokens", "words"} & names and names & set(_TAG_COLUMNS):
        return Tagging.name
    if names & set(_LABEL_COLUMNS) or _are_labels(_last_texts(table)):
        return Classification.name
    is_text = not config.columns and any(column in _TEXT_COLUMNS for column in table.columns)
    return Language.name if is_text else Translation.name


def _last_texts(table: Table) -> list[str]:
    """What stands on the last side of the first rows; nothing where they cannot be read, which is told in its place."""
    try:
        return [row.values[-1] for row in islice(table, _ROWS_SEEN)]
    except DataError:
        return []


def _are_labels(texts: Sequence[str]) -> bool:
    """Whether these are names of a few kinds, each of which comes again and again."""
    distinct = set(texts)
    is_short = all(len(text) <= _LONGEST_LABEL for text in distinct)
    return len(texts) >= _FEWEST_LABELLED and is_short and len(distinct) * _LEAST_REPEATED <= len(texts)


def _text_or(error: RegardError, config: DataConfig) -> str:
    """Language, if the data can be read as text; or else what was wrong with it as rows of two sides."""
    if any(_ending(name) in (".tsv", ".tab", ".csv") for name in config.train):
        raise error
    try:
        open_texts(config)
    except (DataError, ConfigError):
        raise error from None
    return Language.name


def _ending(name: str) -> str:
    return Path(plain_name(Path(name))).suffix.lower()


def find_task(name: str) -> Task:
    """The task called `name`."""
    if name not in TASKS:
        raise ConfigError(f"no task is called {name!r}{nearest(name, list(TASKS))}")
    return TASKS[name]
