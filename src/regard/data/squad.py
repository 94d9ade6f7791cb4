"""Questions about texts that hold their answers: SQuAD's JSON, JSON lines, or a table.

An answer is a piece of the context, given by its text and the character it begins
at. A question may have several answers, of which each is right, or none at all.

    SQuAD's JSON    versions 1.1 and 2.0: articles, of paragraphs, of questions
    JSON lines      an object for each question, with `answers` as SQuAD has them, or as lists in an object
                    (`{"text": [...], "answer_start": [...]}`), or with one `answer` and perhaps its `answer_start`
    a table         CSV, TSV or Parquet: a row for each question, with columns for question, context and answer

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016). https://arxiv.org/abs/1606.05250
Rajpurkar et al., "Know What You Don't Know: Unanswerable Questions for SQuAD" (2018). https://arxiv.org/abs/1806.03822
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.columns import count_of, listing
from regard.data.fields import decode_json
from regard.data.files import AnyPath, open_text, plain_name
from regard.data.records import BLANK
from regard.data.tables import Table, open_table
from regard.errors import BadRowsError, ConfigError, DataError

ROLES = ("question", "context", "answer")
"""What a row of a table must give; the answer is empty where there is none."""

FORMATS = ("squad", "jsonl", "csv", "tsv", "parquet")

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv"}
_OPTIONAL = ("answer_start", "id", "title", "is_impossible")
_FAULTS_TO_LIST = 5
_LONGEST_QUOTE = 40
_SAMPLE_LINES = 100


class Answer(NamedTuple):
    """A piece of a context."""

    text: str
    start: int
    """Its first character, counted from 0."""

    @property
    def end(self) -> int:
        """The character behind its last: `context[start:end] == text`."""
        return self.start + len(self.text)


class Question(NamedTuple):
    """A question, the text to answer it from, and all answers that are right."""

    id: str
    """As the file gives it; else the line it stands in."""
    title: str
    """Of the article that the context is from; empty where the file does not say."""
    question: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool
    """Whether the context does not hold the answer; then there is none."""


Record = tuple[str, Question | str]
"""What to call a question in a sentence, and the question, or what is wrong with it, to follow the name."""


@dataclass(kw_only=True, eq=False)
class Questions:
    """A source of questions that can be read again and again.

    Iterating yields each good one. At the end of the pass a `DataError` names the bad
    ones, unless `skip_bad`; if there is no good one at all it is raised anyway.
    SQuAD's JSON is read as a whole, the other formats in constant memory.
    """

    path: Path
    format: str
    guesses: list[str]
    """What was not given but concluded from the file, in sentences."""
    skip_bad: bool
    read: Callable[[], Iterator[Record]] = field(repr=False)
    """Start reading from the beginning."""
    num_bad: int = field(init=False, default=0)
    """How many questions could not be used, as of the last pass that came to its end."""
    faults: list[str] = field(init=False, default_factory=list, repr=False)
    """What was wrong with the first of them."""

    def __iter__(self) -> Iterator[Question]:
        num_good = num_bad = 0
        faults: list[str] = []
        for name, question in self.read():
            if isinstance(question, Question):
                num_good += 1
                yield question
            else:
                num_bad += 1
                faults += [f"{name} {question}"] if num_bad <= _FAULTS_TO_LIST else []
        self.num_bad, self.faults = num_bad, faults
        if num_bad and not (self.skip_bad and num_good):
            more = "; …" if num_bad > len(faults) else ""
            share = f"{num_bad:,} of {count_of(num_good + num_bad, 'question')} of {self.path.name} cannot be used"
            raise (BadRowsError if num_good else DataError)(f"{share}: {'; '.join(faults)}{more}")
        if not num_good:
            raise DataError(f"{self.path.name} has no questions")

    def check(self) -> int:
        """Read every question once, and return how many are good.

        Raises:
            DataError: If there is none, or if some are bad and `skip_bad` is not set.
        """
        return sum(1 for _ in self)


def open_questions(
    path: AnyPath, *, columns: Sequence[str] | None = None, format: str | None = None, skip_bad: bool = False
) -> Questions:
    """Find out how to read questions, from the file's name and its beginning; what is given is not guessed.

    A question is bad if it or its context is empty, if it has answers where
    `is_impossible` says that there are none, or none where it says that there are, or
    if an answer does not stand where it is said to. Where that is not said, the answer
    is taken where it first occurs, and must occur. Where nothing else is said, a
    question without an answer is impossible.

    Args:
        path: A file, plain or compressed as `open_text` knows it.
        columns: Of a table those of question, context and answer, and perhaps of where
            the answer starts, by name or by position from 1.
        format: `squad`, `jsonl`, `csv`, `tsv` or `parquet`, if the name does not say it.
        skip_bad: Pass over bad questions, where otherwise the pass ends in an error.

    Raises:
        DataError: If the file cannot be opened, or is not what it is said to be.
        ConfigError: If the arguments do not fit one another.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    format = format or _format_of(path)
    if format in ("squad", "jsonl"):
        if columns is not None:
            raise ConfigError(f"columns are those of a table, got {listing(columns)} for {path.name}, which is JSON")
        read = partial(_read_squad if format == "squad" else _read_jsonl, path)
        return Questions(path=path, format=format, guesses=[], skip_bad=skip_bad, read=read)
    table, guesses = _open_columns(path, columns, format)
    if "answer_start" not in table.roles:
        guesses.append(f"took each answer of {path.name} where it first occurs in its context")
    read = partial(_read_table, table)
    return Questions(path=path, format=table.format, guesses=guesses, skip_bad=skip_bad, read=read)


def _format_of(path: Path) -> str | None:
    """`squad`, `jsonl`, or what the name says; None for a table whose name does not."""
    suffix = Path(plain_name(path)).suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if suffix in (".parquet", ".pq"):
        return "parquet"
    with closing(open_text(path)) as lines:
        sample = [line.strip() for line in islice(lines, _SAMPLE_LINES)]
    first, *others = [line for line in sample if line] or [""]
    if not first.startswith("{"):
        if suffix == ".json":
            raise DataError(f"{path.name} is neither SQuAD's JSON nor JSON lines: it does not begin with an object")
        return None
    is_jsonl = first.endswith("}") and (any(line.startswith("{") for line in others) or '"paragraphs"' not in first)
    return "jsonl" if is_jsonl else "squad"


def _read_squad(path: Path) -> Iterator[Record]:
    try:
        whole = decode_json("\n".join(open_text(path)))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path.name} is not JSON: line {error.lineno:,}, column {error.colno:,}: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
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
        raise DataError(f"{where} is no object")
    found = whole.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise DataError(f"{where} has no list of objects {key!r}; it has {listing(list(whole)) or 'nothing'}")
    return found


def _read_jsonl(path: Path) -> Iterator[Record]:
    for number, line in enumerate(open_text(path), 1):
        if not line or line.isspace():
            continue
        name = f"line {number:,}"
        try:
            record = decode_json(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            id = str(record.get("id", number))
            yield f"question {id} in {name}" if "id" in record else name, _as_question(record, id)
        else:
            yield name, "is no JSON object"


def _open_columns(path: Path, columns: Sequence[str] | None, format: str | None) -> tuple[Table, list[str]]:
    """The table with as many of the optional columns as it has, and what was guessed."""
    known = (*ROLES, _OPTIONAL[0])
    if columns is not None and (isinstance(columns, str) or len(columns) not in (len(ROLES), len(known))):
        raise ConfigError(f"columns must be those of {', '.join(ROLES)} and perhaps {known[-1]}, got {columns!r}")
    roles = known[: len(columns)] if columns is not None else ROLES
    table = open_table(path, columns=columns, format=format, roles=roles)
    guesses = list(table.guesses)
    for name in _OPTIONAL:
        if name not in table.roles:
            try:
                wanted = [*table.columns, name]
                table = open_table(path, columns=wanted, format=table.format, roles=[*table.roles, name])
            except DataError:  # it has no such column
                continue
    return table, guesses


def _read_table(table: Table) -> Iterator[Record]:
    for line, values, fault in table.read():
        if fault == BLANK:
            continue
        name = f"line {line:,}"
        record: dict[str, Any] = dict(zip(table.roles, values, strict=True)) if not fault else {}
        id = record.get("id") or str(line)
        if "id" in record:
            name = f"question {id} in {name}"
        yield name, f"has {fault}" if fault else _as_question(record, id)


def _as_question(record: Mapping[str, Any], id: str) -> Question | str:
    """The question, or what is wrong with it."""
    for role in ("question", "context"):
        text = record.get(role)
        if not isinstance(text, str) or not text.strip():
            return f"has no {role}" if text is None or isinstance(text, str) else f"has a {role} that is no text"
    raw = _raw_answers(record)
    if isinstance(raw, str):
        return raw
    mark = str(record.get("is_impossible", "")).lower()
    if raw and mark in ("true", "1"):
        return f"has {count_of(len(raw), 'answer')} although it is marked as impossible"
    if not raw and mark in ("false", "0"):
        return "has no answer although it is not marked as impossible"
    answers: list[Answer] = []
    for text, start in raw:
        answer = _placed(text, start, record["context"])
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
    """The text of each answer and where it starts, None where that is not said; or what is wrong with them."""
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
            return "has answers that are not a list of texts and one of their starts"
        return list(zip(texts, starts, strict=True))
    if not isinstance(answers, list):
        return "has answers that are no list"
    return [
        (each.get("text"), each.get("answer_start")) if isinstance(each, dict) else (each, None) for each in answers
    ]


def _placed(text: object, start: object, context: str) -> Answer | str:
    """The answer in its place, or why it cannot have it."""
    if not isinstance(text, str) or not text.strip():
        return "has an answer without text"
    answer = f"has the answer {_quoted(text)}"
    if start is None or start == "":
        start = context.find(text)
        return Answer(text, start) if start >= 0 else f"{answer}, which is not in its context"
    try:
        first = int(str(start))
    except ValueError:
        return f"{answer} with a start that is no number: {start!r}"
    if first >= 0 and context.startswith(text, first):
        return Answer(text, first)
    places = [place for place in range(len(context)) if context.startswith(text, place)]
    hint = f"; it stands at {min(places, key=lambda place: abs(place - first)):,}" if places else ""
    if first < 0 or first + len(text) > len(context):
        return f"{answer} at {first:,}, outside of its context of {count_of(len(context), 'character')}{hint}"
    return f"{answer} at {first:,}, where its context has {_quoted(context[first : first + len(text)])}{hint}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…")
