"""The tasks by name; each is one file of this folder."""

from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path

from regard.data.config import DataConfig
from regard.data.documents import open_texts
from regard.data.files import plain_name
from regard.data.picture_sources import has_pictures
from regard.data.pictures import is_picture
from regard.data.sources import Rows, is_builtin, open_source
from regard.data.tables import Table
from regard.errors import ConfigError, DataError, RegardError
from regard.settings import nearest
from regard.tasks.answering import Answering
from regard.tasks.aspects import Aspects
from regard.tasks.classification import Classification
from regard.tasks.embedding import Embedding
from regard.tasks.language import Language
from regard.tasks.masked import Masked
from regard.tasks.recognition import Recognition
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
        Aspects(),
        Regression(),
        Tagging(),
        Answering(),
        Masked(),
        Embedding(),
        Recognition(),
    )
}


_TEXT_COLUMNS = ("text", "content", "document")
_LABEL_COLUMNS = ("label", "labels", "class", "category", "sentiment", "intent", "topic", "gold_label", "polarity",
                  "is_duplicate")  # fmt: skip
_ASPECT_COLUMNS = ("aspect", "category", "target")
_JUDGED_COLUMNS = ("text", "sentence", "review")
_JUDGEMENT_COLUMNS = ("label", "polarity", "sentiment")
_TAG_COLUMNS = ("tags", "ner_tags", "pos_tags", "chunk_tags")
_TAGGED_FILES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
_ROWS_SEEN, _FEWEST_LABELLED = 1_000, 20
_LEAST_REPEATED, _LONGEST_LABEL = 10, 40
"""A label comes so often on average, and has at most so many characters."""


def guess_task(config: DataConfig, rows: Rows | None = None) -> str:
    """What data is for, judged by what it looks like: texts with labels, rows of two sides, or running text.

    Pictures, tagged sentences and questions about texts are known by the names of files or columns. Rows have labels
    where a column is called so, or where few distinct short texts stand on their last side. A table with a column
    called text and no label is text, and so is whatever cannot be read as rows of two sides, tables apart: one of those
    that has a single column is more likely broken.
    """
    if rows is not None:
        if rows and (isinstance(rows[0], str) or len(rows[0]) == 1):
            return Language.name
        if rows and isinstance(rows[0][0], list | tuple):
            return Tagging.name
        if rows and all(is_picture(row[0]) for row in rows[:_ROWS_SEEN]):
            return Recognition.name
        return Classification.name if _are_labels([row[-1] for row in rows[:_ROWS_SEEN]]) else Translation.name
    if is_builtin(config):
        return Translation.name  # all of them are pairs
    if len(config.train) > len(ROLES):
        return Language.name
    if len(config.train) == 1 and has_pictures(Path(config.train[0])):
        return Recognition.name
    ending = _ending(config.train[0]) if len(config.train) == 1 else ""
    if ending in _TAGGED_FILES or ending == ".json":
        return Tagging.name if ending in _TAGGED_FILES else Answering.name
    if ending == ".xml" or _name_aspects(config.columns):
        return Aspects.name
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
    if _name_aspects(names):
        return Aspects.name
    if _name_pictures(table):
        return Recognition.name
    if names & set(_LABEL_COLUMNS) or _are_labels(_last_texts(table)):
        return Classification.name
    is_text = not config.columns and any(column in _TEXT_COLUMNS for column in table.columns)
    return Language.name if is_text else Translation.name


def _name_aspects(columns: Collection[str]) -> bool:
    """Whether columns of these names hold a text, an aspect of it, and what is said about that."""
    names = {column.rpartition(".")[2].lower() for column in columns}
    return all(names & set(some) for some in (_JUDGED_COLUMNS, _ASPECT_COLUMNS, _JUDGEMENT_COLUMNS))


def _name_pictures(table: Table) -> bool:
    """Whether the first side of the first rows are paths of pictures."""
    try:
        paths = [row.values[0] for row in islice(table, _FEWEST_LABELLED)]
    except DataError:
        return False
    return bool(paths) and all(map(is_picture, paths))


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
