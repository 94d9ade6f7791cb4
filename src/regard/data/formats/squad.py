"""Questions about texts that contain the answers: SQuAD's JSON, JSON lines, or a table.

An answer is a span of the context, given by its text and its first character. A question may have several answers,
each of them correct, or none.

    SQuAD's JSON    versions 1.1 and 2.0: articles with paragraphs with questions
    JSON lines      an object for each question, with `answers` as in SQuAD, or as lists in an object
                    (`{"text": [...], "answer_start": [...]}`), or with one `answer` and optionally its `answer_start`
    a table         CSV, TSV or Parquet: a row for each question, with columns for question, context and answer

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016). https://arxiv.org/abs/1606.05250
Rajpurkar et al., "Know What You Don't Know: Unanswerable Questions for SQuAD" (2018). https://arxiv.org/abs/1806.03822
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.formats.columns import find_column
from regard.data.formats.files import AnyPath, describe_encoding, format_suffix, iter_lines, sample_lines
from regard.data.formats.json_lines import decode_json, decode_object, is_json_array, iter_json_lines
from regard.data.formats.layouts import BLANK, FORMAT_OF_SUFFIX
from regard.data.formats.messages import format_count, format_names
from regard.data.formats.tables import Table, open_table
from regard.errors import ConfigError, DataError

QUESTION_ROLES = ("question", "context", "answer")
"""The values that each row of a table must have; the answer is empty if there is none."""

QUESTION_FORMATS = ("squad", "jsonl", "csv", "tsv", "parquet", "xlsx")

_SUFFIXES = {
    suffix: format
    for suffix, format in FORMAT_OF_SUFFIX.items()
    if format in QUESTION_FORMATS and suffix != ".json"  # which may be SQuAD's
}
_OPTIONAL = ("answer_start", "id", "title", "is_impossible")
_MAX_QUOTE_LENGTH = 40
_SAMPLE_LINES = 100


class Answer(NamedTuple):
    """A span of a context."""

    text: str
    start: int
    """Its first character, counted from 0."""

    @property
    def end(self) -> int:
        """The end of the span: `context[start:end] == text`."""
        return self.start + len(self.text)


class Question(NamedTuple):
    """A question, its context, and all correct answers."""

    id: str
    """The id in the file, or else the line."""
    title: str
    """The title of the article of the context; empty if unknown."""
    question: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool
    """Whether the context does not contain an answer."""


QuestionRecord = tuple[str, Question | str]
"""The name of a question in messages, and the question or its fault, which completes a sentence after the name."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """How questions are read, repeatedly; SQuAD's JSON is read as a whole, the other formats in constant memory."""

    path: Path
    format: str
    inferred: list[str]
    """What was inferred from the file, in sentences."""
    read: Callable[[], Iterator[QuestionRecord]] = field(repr=False)
    """Read from the beginning."""


def open_questions(
    path: AnyPath, *, columns: Sequence[str] | None = None, format: str | None = None, encoding: str | None = None
) -> Questions:
    """Open a file of questions; what is not specified is inferred from the file's name and its beginning.

    A question is invalid if it or its context is empty, if it has answers although `is_impossible` is true, or none
    although it is false, or if an answer is not at its position. Without a position, an answer is taken at its first
    occurrence, and must occur. A question without an answer and without `is_impossible` is impossible.

    Args:
        path: A file, plain or compressed.
        columns: For a table those of question, context and answer, and optionally of the start of the answer, by name
            or by position from 1.
        format: One of `QUESTION_FORMATS`, if the name does not determine it.
        encoding: The encoding of the file, detected by default.

    Raises:
        DataError: If the file cannot be read, or does not have the format.
        ConfigError: If the arguments contradict each other.
    """
    path = Path(path)
    if format is not None and format not in QUESTION_FORMATS:
        raise ConfigError(f"format must be one of {', '.join(QUESTION_FORMATS)}, got {format!r}")
    format = format or question_format(path, encoding)
    if format in ("squad", "jsonl"):
        if columns is not None:
            raise ConfigError(f"columns apply to tables, got {format_names(columns)} for {path.name}, which is JSON")
        read = partial(_read_squad if format == "squad" else _read_jsonl, path, encoding)
        return Questions(path=path, format=format, inferred=describe_encoding([path], encoding), read=read)
    return _open_table(path, columns, format, encoding)


def question_format(path: Path, encoding: str | None = None) -> str | None:
    """`squad`, `jsonl`, or the format of a table by the file's name; None for a table of another name."""
    suffix = format_suffix(path)
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if suffix == ".json" and is_json_array(path, encoding):
        return "jsonl"
    sample = sample_lines(path, _SAMPLE_LINES, encoding=encoding)
    first, *others = [line.strip() for line in sample if line.strip()]
    if not first.startswith("{"):
        if suffix == ".json":
            raise DataError(f"{path.name} is neither SQuAD's JSON nor JSON lines: it does not begin with an object")
        return None
    is_jsonl = first.endswith("}") and (any(line.startswith("{") for line in others) or '"paragraphs"' not in first)
    return "jsonl" if is_jsonl else "squad"


def _read_squad(path: Path, encoding: str | None) -> Iterator[QuestionRecord]:
    try:
        whole = decode_json("\n".join(iter_lines(path, encoding=encoding)))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path.name} is not JSON: line {error.lineno:,}, column {error.colno:,}: {error.msg}"
        ) from error
    except ValueError as error:
        raise DataError(f"{path.name} is not JSON: {error}") from error
    where = f"{path.name} is not SQuAD's JSON: it"
    for number, article in enumerate(_objects(whole, "data", where), 1):
        where = f"{path.name} is not SQuAD's JSON: article {number:,}"
        title = article.get("title")
        for place, paragraph in enumerate(_objects(article, "paragraphs", where), 1):
            for count, question in enumerate(_objects(paragraph, "qas", f"{where}, paragraph {place:,}"), 1):
                id = str(question.get("id", f"{number}.{place}.{count}"))
                record = {"title": title, "context": paragraph.get("context"), **question}
                yield f"question {id}", _as_question(record, id)


def _objects(whole: object, key: str, where: str) -> list[dict[str, Any]]:
    """The objects in a list under a key."""
    if not isinstance(whole, dict):
        raise DataError(f"{where} is not an object")
    found = whole.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise DataError(f"{where} has no list of objects {key!r}; it has {format_names(list(whole)) or 'nothing'}")
    return found


def _read_jsonl(path: Path, encoding: str | None) -> Iterator[QuestionRecord]:
    for number, line in enumerate(iter_json_lines(path, encoding=encoding), 1):
        if not line or line.isspace():
            continue
        name = f"line {number:,}"
        record = decode_object(line)
        if record is None:
            yield name, "is not a JSON object"
        else:
            id = str(record.get("id", number))
            yield f"question {id} in {name}" if "id" in record else name, _as_question(record, id)


def _open_table(path: Path, columns: Sequence[str] | None, format: str | None, encoding: str | None) -> Questions:
    """A table with the columns of `QUESTION_ROLES` and all of the optional ones that it has."""
    known = (*QUESTION_ROLES, _OPTIONAL[0])
    if columns is not None and (isinstance(columns, str) or len(columns) not in (len(QUESTION_ROLES), len(known))):
        raise ConfigError(
            f"columns must be those of {', '.join(QUESTION_ROLES)} and optionally {known[-1]}, got {columns!r}"
        )
    roles = known[: len(columns or QUESTION_ROLES)]
    table = open_table(path, columns=columns, format=format, roles=roles, encoding=encoding)
    inferred = list(table.inferred)
    missing = [name for name in _OPTIONAL if name not in table.roles]
    more = [name for name in missing if find_column(name, table.names, where=path.name) is not None]
    if more:
        wanted = [*table.columns, *more]
        roles = [*table.roles, *more]
        table = open_table(path, columns=wanted, format=table.format, roles=roles, encoding=encoding)
    if "answer_start" not in table.roles:
        inferred.append(f"took each answer of {path.name} at its first occurrence in the context")
    return Questions(path=path, format=table.format, inferred=inferred, read=partial(_read_table, table))


def _read_table(table: Table) -> Iterator[QuestionRecord]:
    for line, values, fault in table.read():
        if fault == BLANK:
            continue
        record: dict[str, Any] = dict(zip(table.roles, values, strict=True)) if not fault else {}
        id = record.get("id") or str(line)
        name = f"question {id} in line {line:,}" if "id" in record else f"line {line:,}"
        yield name, f"has {fault}" if fault else _as_question(record, id)


def _as_question(record: Mapping[str, Any], id: str) -> Question | str:
    """The question, or its fault."""
    for role in ("question", "context"):
        text = record.get(role)
        if not isinstance(text, str) or not text.strip():
            return f"has no {role}" if text is None or isinstance(text, str) else f"has a {role} that is not text"
    raw = _raw_answers(record)
    if isinstance(raw, str):
        return raw
    mark = str(record.get("is_impossible", "")).lower()
    if raw and mark in ("true", "1"):
        return f"has {format_count(len(raw), 'answer')} although it is marked as impossible"
    if not raw and mark in ("false", "0"):
        return "has no answer although it is not marked as impossible"
    answers: list[Answer] = []
    for text, start in raw:
        answer = _at_position(text, start, record["context"])
        if isinstance(answer, str):
            return answer
        answers.append(answer)
    title = record.get("title")
    return Question(
        id=id,
        title=title if isinstance(title, str) else "",
        question=record["question"],
        context=record["context"],
        answers=tuple(answers),
        is_impossible=not answers,
    )


def _raw_answers(record: Mapping[str, Any]) -> list[tuple[Any, Any]] | str:
    """The text of each answer and its start, None if unknown; or the fault of the answers."""
    if "answers" not in record:
        if "answer" not in record:
            return "has no answers"
        answer = record["answer"]
        return [] if answer is None or answer == "" else [(answer, record.get("answer_start"))]
    answers = record["answers"]
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
        starts = [None] * len(texts) if starts is None and isinstance(texts, list) else starts
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            return "has answers that are not a list of texts and a list of their starts"
        return list(zip(texts, starts, strict=True))
    if not isinstance(answers, list):
        return "has answers that are not a list"
    return [
        (each.get("text"), each.get("answer_start")) if isinstance(each, dict) else (each, None) for each in answers
    ]


def _at_position(text: object, start: object, context: str) -> Answer | str:
    """The answer at its position, or its fault."""
    if not isinstance(text, str) or not text.strip():
        return "has an answer without text"
    answer = f"has the answer {_quoted(text)}"
    if start is None or start == "":
        start = context.find(text)
        return Answer(text, start) if start >= 0 else f"{answer}, which is not in its context"
    try:
        first = int(str(start))
    except ValueError:
        return f"{answer} with a start that is not a number: {start!r}"
    if first >= 0 and context.startswith(text, first):
        return Answer(text, first)
    places = [place for place in range(len(context)) if context.startswith(text, place)]
    hint = f"; it occurs at {min(places, key=lambda place: abs(place - first)):,}" if places else ""
    if first < 0 or first + len(text) > len(context):
        return f"{answer} at {first:,}, outside of its context of {format_count(len(context), 'character')}{hint}"
    return f"{answer} at {first:,}, where its context has {_quoted(context[first : first + len(text)])}{hint}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTE_LENGTH else f"{text[:_MAX_QUOTE_LENGTH]}…")
