"""Questions about texts as rows of three texts: the context, the question, and its answers as JSON.

The answers are a list of objects with `text` and `start`, the character that the answer begins at; an empty list where
the context has none. So a row is a row of a table like any other, and is split, hashed and kept like one. The context
stands first because rows are split by what stands first: all questions about a context are in the same set.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.coding import Columns, Learned, Row
from regard.data.columns import listing
from regard.data.config import DataConfig
from regard.data.files import content_hash
from regard.data.folders import text_files
from regard.data.keys import ordered, refuse_columns
from regard.data.records import Record
from regard.data.sources import IN_MEMORY, Source, hash_with_held_out
from regard.data.squad import Answer, Question, Questions, open_questions
from regard.data.tables import Table, rows_hash
from regard.errors import ConfigError, DataError
from regard.text.tokenizer import Tokenizer

ROLES = ("context", "question", "answers")

_HALF = 1 << 16
"""What a place is divided by, to be stored in two numbers of sixteen bits."""
_QUESTION_SHARE = 4
"""A question takes at most one of so many parts of a window."""
_SHORTEST = 12
_TITLE = "title"
"""What questions can be grouped by: the article that their context is from."""


class Window(NamedTuple):
    """A piece of a context, with the question before it."""

    tokens: list[int]
    """The start, the question, an end, the piece, an end."""
    first: int
    """Where the piece begins in the context, in tokens."""
    start: int
    """Where the piece begins in the window; it ends before the last token."""
    span: tuple[int, int]
    """The first and the last token of the answer in the window; 0, the start, for both where it has none."""


class QuestionCoding:
    """Questions in two columns: all their tokens, and, in two numbers each, where context and answer stand.

    The tokens are the start, the question, an end, the whole context, an end. The
    places are how many tokens the question has, and, where there is an answer, its
    first and last token in the context. Of several answers the first is learned.
    """

    columns: tuple[str, ...] = ("tokens", "places")

    def see(self, row: Row) -> None:
        """There is nothing to learn."""

    def texts(self, row: Row) -> Sequence[str]:
        return row[:2]

    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Columns:
        contexts = tokenizer.encode_with_offsets([row[0] for row in rows])
        questions = tokenizer.encode([row[1] for row in rows])
        tokens, places = [], []
        for row, question, (context, offsets) in zip(rows, questions, contexts, strict=True):
            answers = read_answers(row[2])
            found = (len(question), *(tokens_of(answers[0], offsets) if answers else ()))
            tokens.append([tokenizer.start, *question, tokenizer.end, *context, tokenizer.end])
            places.append([part for place in found for part in divmod(place, _HALF)])
        return [tokens, places]

    def learned(self) -> Learned:
        return Learned()


def windows_of(
    tokens: Sequence[int], places: Sequence[int], *, max_length: int, stride: int | None = None
) -> list[Window]:
    """A coded question as windows of at most `max_length` tokens, which start `stride` tokens apart and overlap.

    Unset, `stride` is half of a window. A window that does not hold all of the answer
    has none.
    """
    step = stride_of(max_length, stride)
    num_question, *span = (high * _HALF + low for high, low in zip(places[::2], places[1::2], strict=True))
    start, end = tokens[0], tokens[-1]
    question = tokens[1 : 1 + num_question][: max_length // _QUESTION_SHARE]
    context = tokens[2 + num_question : -1]
    room, before = max_length - 3 - len(question), 2 + len(question)
    windows = []
    for first in range(0, max(1, len(context) - room + step), step):
        piece = context[first : first + room]
        is_inside = span and first <= span[0] and span[1] < first + len(piece)
        inside = (span[0] - first + before, span[1] - first + before) if is_inside else (0, 0)
        windows.append(Window([start, *question, end, *piece, end], first, before, inside))
    return windows


def most_windows(num_tokens: int, *, max_length: int, stride: int | None = None) -> int:
    """How many windows a coded question of so many tokens has at most."""
    return 1 + max(0, -(-(num_tokens - max_length) // stride_of(max_length, stride)))


def stride_of(max_length: int, stride: int | None) -> int:
    """How far apart windows start: what is set, but no farther than they reach."""
    if max_length < _SHORTEST:
        raise ConfigError(f"a window of question and context needs max_length of {_SHORTEST}, got {max_length}")
    return min(stride or max_length // 2, max_length - max_length // _QUESTION_SHARE - 3)


def tokens_of(answer: Answer, offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | tuple[()]:
    """The first and the last token of an answer, by the offsets of its context; nothing if it has none."""
    inside = [
        number
        for number, (start, end) in enumerate(offsets)
        if start < answer.end and end > answer.start and start < end
    ]
    return (inside[0], inside[-1]) if inside else ()


def write_answers(answers: Sequence[Answer]) -> str:
    """Answers as a row has them.

    Example:
        >>> write_answers([Answer("Rome", 4)]), read_answers('[{"text": "Rome", "start": 4}]')
        ('[{"text": "Rome", "start": 4}]', [Answer(text='Rome', start=4)])
    """
    return json.dumps([answer._asdict() for answer in answers], ensure_ascii=False)


def read_answers(text: str) -> list[Answer]:
    """The answers of a row."""
    try:
        return [Answer(each["text"], each["start"]) for each in json.loads(text)]
    except (ValueError, TypeError, KeyError):
        raise DataError(f"answers are a JSON list of objects with text and start, got {text[:60]!r}") from None


def open_question_source(config: DataConfig, rows: Sequence[Any] | None = None) -> Source:
    """Find the questions that the settings name, or those in memory, and how to read them.

    A row in memory is a question, a context, and the answer, in this order. The answer
    is a text that is taken where it first occurs in the context, several of them in a
    list, an empty text or list where there is none, or what `write_answers` writes.
    """
    if rows is not None:
        refuse_columns(config, "questions in memory")
        train = _table((), [], config.skip_bad, partial(_read_rows, list(rows)))
        hash_of_train = partial(_hash_of_rows, train)
        return _with_held_out(config, ordered(train, config), hash_of_train)
    if not config.train:
        raise DataError("no data to train on: name a file of questions, or a folder of them")
    if config.train == [IN_MEMORY]:
        raise DataError("this run was trained on rows in memory: hand in the same rows to go on")
    if len(config.train) == 1 and Path(config.train[0]).is_dir():
        found = {role: [str(path) for path in paths] for role, paths in text_files(config.train[0]).items()}
        given = {"valid": config.valid, "test": config.test}
        config = config.changed(
            train=found["train"], **{role: paths or found.get(role, []) for role, paths in given.items()}
        )
    refuse_columns(config, "a file of questions", group=_TITLE)
    train = ordered(_open(config, config.train, has_titles=config.group is not None), config)
    return _with_held_out(config, train, lambda: content_hash(train.paths))


def _hash_of_rows(table: Table) -> str:
    return rows_hash(values for _, values, _ in table.read())


def _open(config: DataConfig, paths: Sequence[str], *, has_titles: bool = False) -> Table:
    if len(paths) != 1:
        raise ConfigError(f"questions are read from one file, got {len(paths)}: {listing(paths)}")
    # Bad questions are counted by the table.
    questions = open_questions(paths[0], columns=config.columns or None, format=config.format)
    read = partial(_read, questions, has_titles=has_titles)
    return _table((questions.path,), questions.guesses, config.skip_bad, read, key=_TITLE if has_titles else None)


def _table(
    paths: tuple[Path, ...],
    guesses: list[str],
    skip_bad: bool,
    read: Callable[[], Iterator[Record]],
    key: str | None = None,
) -> Table:
    columns = tuple(str(position) for position in range(1, len(ROLES) + 1))
    # Questions are counted, not the lines of a file: several may stand in one.
    return Table(
        paths=paths, format="rows", roles=ROLES, columns=columns, key=key, guesses=guesses, skip_bad=skip_bad, read=read
    )


def _read(questions: Questions, *, has_titles: bool) -> Iterator[Record]:
    for number, (_, found) in enumerate(questions.read(), 1):
        if isinstance(found, Question):
            values = found.context, found.question, write_answers(found.answers)
            yield number, (*values, found.title) if has_titles else values, ""
        else:
            yield number, (), found.removeprefix("has ").removeprefix("is ")


def _read_rows(rows: Sequence[Any]) -> Iterator[Record]:
    for number, row in enumerate(rows, 1):
        if len(row) != len(ROLES):
            yield number, (), f"{len(row)} values instead of {len(ROLES)}"
            continue
        question, context, given = row
        answers = _answers_in(given, context)
        lost = [answer.text for answer in answers if not context.startswith(answer.text, answer.start)]
        lost += [answer.text for answer in answers if answer.start < 0 or not answer.text.strip()]
        if lost:
            yield number, (), f"the answer {lost[0]!r}, which is not where it is said to be in its context"
        else:
            yield number, (context, question, write_answers(answers)), ""


def _answers_in(given: Any, context: str) -> list[Answer]:
    """Answers of a row in memory; one that does not occur has a start below 0."""
    if isinstance(given, str) and given.lstrip().startswith("["):
        try:
            return read_answers(given)
        except DataError:  # a text that begins like this
            pass
    texts = [given] if isinstance(given, str) else given
    return [Answer(text, context.find(text)) for text in texts if text]


def _with_held_out(config: DataConfig, train: Table, hash_of_train: Callable[[], str]) -> Source:
    valid, test = (_open(config, paths) if paths else None for paths in (config.valid, config.test))
    held_out = {role: table.paths for role, table in (("valid", valid), ("test", test)) if table is not None}
    return Source(train, valid, test, lambda: hash_with_held_out(hash_of_train(), held_out))
