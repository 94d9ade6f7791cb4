"""Questions as rows of three texts, the context, the question and its answers as JSON, and how they are encoded.

The answers are a list of objects with `text` and `start`, the offset of the answer's first character; an empty list
where the context has no answer. A question is a row of a table like any other, and is split, hashed and stored like
one. The context comes first because rows are split by their first text: all questions about a context are in the same
set.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.formats.columns import choose_columns
from regard.data.formats.files import content_hash
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_names
from regard.data.formats.squad import QUESTION_ROLES, Answer, Question, Questions, open_questions
from regard.data.formats.tables import Table
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Source, hash_of_table, require_files, with_folder, with_held_out
from regard.data.splits.plan import reject_split_columns, with_split_keys
from regard.errors import ConfigError, DataError
from regard.text.tokenizer import Tokenizer

SPAN_ROLES = ("context", "question", "answers")

_HALF = 1 << 16
"""A position is stored as two 16-bit numbers."""
_QUESTION_SHARE = 4
"""A question has at most this part of a window."""
_SHORTEST = 12
_TITLE = "title"
"""What questions can be grouped by: the article of their context."""


class QuestionWindow(NamedTuple):
    """A part of a context, with the question before it."""

    tokens: list[int]
    """The start, the question, an end, the part of the context, an end."""
    first: int
    """The position of the part in the context, in tokens."""
    start: int
    """The position of the part in the window; it ends before the last token."""
    span: tuple[int, int]
    """The first and the last token of the answer in the window; 0, the start token, for both without an answer."""


def encode_questions(rows: Sequence[Sequence[str]], tokenizer: Tokenizer) -> tuple[list[list[int]], list[list[int]]]:
    """Questions in two columns: all their tokens, and the positions of context and answer.

    The tokens are the start, the question, an end, the whole context, an end. The
    positions are the number of tokens of the question and, where there is an answer,
    its first and last token in the context, each as two 16-bit numbers. Of several
    answers the first is learned.
    """
    contexts = tokenizer.encode_with_offsets([row[0] for row in rows])
    questions = tokenizer.encode([row[1] for row in rows])
    tokens, positions = [], []
    for row, question, (context, offsets) in zip(rows, questions, contexts, strict=True):
        answers = read_answers(row[2])
        found = (len(question), *(tokens_of(answers[0], offsets) if answers else ()))
        tokens.append([tokenizer.start, *question, tokenizer.end, *context, tokenizer.end])
        positions.append([part for place in found for part in divmod(place, _HALF)])
    return tokens, positions


def windows_of(
    tokens: Sequence[int], positions: Sequence[int], *, max_length: int, stride: int | None = None
) -> list[QuestionWindow]:
    """An encoded question as overlapping windows of at most `max_length` tokens, `stride` tokens apart.

    Unset, `stride` is half of a window. A window without the whole answer has none.
    """
    step = stride_of(max_length, stride)
    num_question, *span = (high * _HALF + low for high, low in zip(positions[::2], positions[1::2], strict=True))
    start, end = tokens[0], tokens[-1]
    question = tokens[1 : 1 + num_question][: max_length // _QUESTION_SHARE]
    context = tokens[2 + num_question : -1]
    limit, before = max_length - 3 - len(question), 2 + len(question)
    windows = []
    for first in range(0, max(1, len(context) - limit + step), step):
        piece = context[first : first + limit]
        is_inside = span and first <= span[0] and span[1] < first + len(piece)
        inside = (span[0] - first + before, span[1] - first + before) if is_inside else (0, 0)
        windows.append(QuestionWindow([start, *question, end, *piece, end], first, before, inside))
    return windows


def most_windows(num_tokens: int, *, max_length: int, stride: int | None = None) -> int:
    """The largest number of windows of an encoded question with this many tokens."""
    return 1 + max(0, -(-(num_tokens - max_length) // stride_of(max_length, stride)))


def stride_of(max_length: int, stride: int | None) -> int:
    """The distance between windows: what is set, but no more than their length."""
    if max_length < _SHORTEST:
        raise ConfigError(f"a window of question and context needs max_length of {_SHORTEST}, got {max_length}")
    return min(stride or max_length // 2, max_length - max_length // _QUESTION_SHARE - 3)


def tokens_of(answer: Answer, offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | tuple[()]:
    """The first and the last token of an answer, by the offsets of its context; empty if it has no token."""
    inside = [
        number
        for number, (start, end) in enumerate(offsets)
        if start < answer.end and end > answer.start and start < end
    ]
    return (inside[0], inside[-1]) if inside else ()


def write_answers(answers: Sequence[Answer]) -> str:
    """Answers as the text of a row.

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
    """Open the questions that the settings name, or those in memory.

    A row in memory is a question, a context, and the answer, in this order. The answer
    is a text, located at its first occurrence in the context, a list of texts, an
    empty text or list where there is none, or what `write_answers` returns.
    """
    open_file = partial(_open, config)
    if rows is not None:
        reject_split_columns(config, "questions in memory")
        if isinstance(rows, NamedRows):
            picks = choose_columns(rows.names, config.columns or None, QUESTION_ROLES, where="the table in memory")
            rows = [tuple(row[pick] for pick in picks) for row in rows]
        train = _table((), [], config.skip_bad, partial(_read_rows, list(rows)))
        return with_held_out(config, with_split_keys(train, config), open_file, partial(hash_of_table, train))
    require_files(config, "a file of questions, or a folder of them")
    config = with_folder(config)
    reject_split_columns(config, "a file of questions", group=_TITLE)
    train = with_split_keys(open_file(config.train, has_titles=config.group is not None), config)
    return with_held_out(config, train, open_file, lambda: content_hash(train.paths))


def _open(config: DataConfig, paths: Sequence[str], *, has_titles: bool = False) -> Table:
    if len(paths) != 1:
        raise ConfigError(f"questions are read from one file, got {len(paths)}: {format_names(paths)}")
    # Bad questions are counted by the table.
    questions = open_questions(paths[0], columns=config.columns or None, format=config.format, encoding=config.encoding)
    read = partial(_read, questions, has_titles=has_titles)
    return _table((questions.path,), questions.inferred, config.skip_bad, read, key=_TITLE if has_titles else None)


def _table(
    paths: tuple[Path, ...],
    inferred: list[str],
    skip_bad: bool,
    read: Callable[[], Iterator[Record]],
    key: str | None = None,
) -> Table:
    columns = tuple(str(position) for position in range(1, len(SPAN_ROLES) + 1))
    # The unit of messages is the question: a line of a file may have several.
    return Table(
        paths=paths,
        format="rows",
        roles=SPAN_ROLES,
        columns=columns,
        key=key,
        inferred=inferred,
        skip_bad=skip_bad,
        read=read,
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
        if len(row) != len(SPAN_ROLES):
            yield number, (), f"{len(row)} values instead of {len(SPAN_ROLES)}"
            continue
        question, context, given = row
        answers = _answers_in(given, context)
        lost = [answer.text for answer in answers if not context.startswith(answer.text, answer.start)]
        lost += [answer.text for answer in answers if answer.start < 0 or not answer.text.strip()]
        if lost:
            yield number, (), f"the answer {lost[0]!r}, which is not at its offset in the context"
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
