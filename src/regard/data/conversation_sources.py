"""Conversations: messages in OpenAI's or ShareGPT's form, pairs of a prompt and an answer, or a table with templates.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}     ShareGPT's form
    {"prompt": "Hi", "completion": "Hello."}          the values may be lists of messages, too
    {"instruction": "Greet", "input": "Ann", "output": "Hello, Ann."}
    any other table with `task.prompt` and `task.answer`, Jinja templates of its columns

A row of a run is a prompt and an answer, the last message of the assistant. The prompt is everything before it: the
text of the user where that is all, otherwise the messages as JSON. Messages after the last answer are not used.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.formats.cells import as_text, value_kind
from regard.data.formats.columns import closest_name, require_column
from regard.data.formats.files import content_hash, describe_encoding
from regard.data.formats.folders import files_by_split
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_count, format_names
from regard.data.formats.records import RecordTable, cell, open_records
from regard.data.formats.tables import Table, rows_hash
from regard.data.settings import DataConfig
from regard.data.sources import (
    NamedRows,
    Rows,
    Source,
    is_builtin,
    open_source,
    require_files,
    with_folder,
    with_held_out,
)
from regard.data.splits.plan import key_column, with_split_keys
from regard.errors import ConfigError, DataError
from regard.files import load_json
from regard.text.chat import ASSISTANT, TemplateLimitError, render_template, template_variables

CONVERSATION_ROLES = ("prompt", "answer")
MESSAGES = "messages"
"""The field of a list of messages."""
MESSAGE_FIELDS = (MESSAGES, "conversations", "conversation")
"""What the field of a list of messages is called, likeliest first."""
SYSTEM, USER = "system", "user"
PAIR_FORMS = (
    ("prompt", "completion"), ("prompt", "response"), ("instruction", "input", "output"), ("instruction", "output"),
    ("instruction", "response"),
)  # fmt: skip
"""The columns of prompts and answers, by their names; the text of `input` follows that of `instruction`."""
_OPENING_ROLES = (SYSTEM, "developer")
_ROLES_OF_SENDERS = {"human": USER, "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT, "model": ASSISTANT}
"""The roles of the senders of ShareGPT's messages; other senders, such as system, are roles."""
_SAMPLE_ROWS = 100

ChatMessage = dict[str, Any]
CheckMessages = Callable[[Sequence[ChatMessage]], None]


@dataclass(frozen=True)
class RowTemplates:
    """How prompts and answers are made of the columns of a table: Jinja templates whose variables are columns."""

    prompt: str
    answer: str


def read_messages(value: Any, *, role: str = USER) -> list[ChatMessage]:
    """The messages of a value: a text is one message of `role`, a list has an object for each message.

    Contents are text; of a list of parts, as OpenAI has them, the texts are joined.

    Raises:
        DataError: With what is wrong, as the object of `the row has ...`.

    Example:
        >>> read_messages("Hi")
        [{'role': 'user', 'content': 'Hi'}]
        >>> read_messages([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
        [{'role': 'user', 'content': 'Hi'}]
        >>> read_messages([{"from": "gpt", "value": "Hello."}])
        [{'role': 'assistant', 'content': 'Hello.'}]
    """
    if not isinstance(value, list | tuple):
        text = as_text(value)
        if text is None:
            raise DataError(f"{value_kind(value)} instead of a text or a list of messages")
        return [{"role": role, "content": text}]
    return [_read_message(message, number) for number, message in enumerate(value, start=1)]


def split_conversation(messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], str]:
    """The messages before the last answer, and that answer.

    Raises:
        DataError: With what is wrong, as the object of `the row has ...`: no answer, one that is empty, a conversation
            that starts with the assistant, or a message of the user that is empty.

    Example:
        >>> split_conversation([*read_messages("Hi"), *read_messages("Hello.", role="assistant")])
        ([{'role': 'user', 'content': 'Hi'}], 'Hello.')
    """
    if not messages:
        raise DataError("a conversation without messages")
    places = [place for place, message in enumerate(messages) if message["role"] == ASSISTANT]
    if not places:
        raise DataError("a conversation without an answer of the assistant")
    opening = next((place for place, each in enumerate(messages) if each["role"] not in _OPENING_ROLES), len(messages))
    if opening == places[0]:
        raise DataError("a conversation that starts with the assistant")
    for message in messages[: places[-1] + 1]:
        if not message["content"].strip():
            name = "an empty answer" if message["role"] == ASSISTANT else f"an empty message of the {message['role']}"
            raise DataError(name)
    return list(messages[: places[-1]]), messages[places[-1]]["content"]


def format_prompt(messages: Sequence[ChatMessage]) -> str:
    """The messages of a prompt as one text: that of the user where it is the only message, otherwise JSON.

    Example:
        >>> format_prompt(read_messages("Hi"))
        'Hi'
    """
    if len(messages) == 1 and messages[0].keys() == {"role", "content"} and messages[0]["role"] == USER:
        text = messages[0]["content"]
        if parse_prompt(text) == [dict(messages[0])]:
            return text
    return json.dumps([dict(message) for message in messages], ensure_ascii=False)


def parse_prompt(text: str) -> list[ChatMessage]:
    """The messages that `format_prompt` has written; any other text is a message of the user.

    Example:
        >>> parse_prompt(format_prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]))
        [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hi'}]
    """
    if text.lstrip().startswith("["):
        try:
            found = load_json(text)
            if found and isinstance(found, list) and all(isinstance(each, dict) and "role" in each for each in found):
                return read_messages(found)
        except ValueError:  # a DataError is a ValueError
            pass
    return read_messages(text)


def conversation_of(prompt: str, answer: str) -> list[ChatMessage]:
    """The messages of a row: those of its prompt, and its answer."""
    return [*parse_prompt(prompt), {"role": ASSISTANT, "content": answer}]


def open_conversations(
    config: DataConfig,
    rows: Rows | None = None,
    *,
    templates: RowTemplates | None = None,
    check: CheckMessages | None = None,
) -> Source:
    """Open the conversations that the settings name; invalid ones are bad rows, with their lines.

    Args:
        config: Where the data is; `columns` name the field of the messages, or those of the prompt and the answer.
        rows: Rows in memory: dictionaries, or pairs of a prompt and an answer.
        templates: How prompts and answers are made of the columns of a table.
        check: Raises a DataError, as the object of `the row has ...`, for a conversation that cannot be used.
    """
    reader = partial(_conversation_table, config=config, templates=templates, check=check)

    def open_files(paths: Sequence[str]) -> Table:
        found = [_open_file(path, config, templates) for path in paths]
        return reader(found, tuple(map(Path, paths)))

    if rows is not None:
        records = _records_of(rows)
        train = reader([open_records(records)], ())
        return with_held_out(config, train, open_files, lambda: rows_hash(json.dumps(record) for record in records))
    require_files(config, "a file of conversations, or of prompts and answers")
    if is_builtin(config):
        source = open_source(config, ("source", "target"))
        pairs = [dict(zip(PAIR_FORMS[0], row.values, strict=True)) for row in source.train]
        return with_held_out(config, reader([open_records(pairs)], ()), open_files, source.content_hash)
    config = with_folder(config, lambda folder: files_by_split(folder))
    train = open_files(config.train)
    return with_held_out(config, train, open_files, lambda: content_hash(train.paths))


def conversation_columns(names: Sequence[str]) -> tuple[str, ...] | None:
    """The columns of conversations among these names: that of messages, or those of prompts and answers.

    Example:
        >>> conversation_columns(["id", "Messages"]), conversation_columns(["source", "target"])
        (('Messages',), None)
        >>> conversation_columns(["output", "instruction"])
        ('instruction', 'output')
    """
    known = {name.strip().lower(): name for name in reversed(names)}
    for form in (*((name,) for name in MESSAGE_FIELDS), *PAIR_FORMS):
        if all(name in known for name in form):
            return tuple(known[name] for name in form)
    return None


def _open_file(path: str, config: DataConfig, templates: RowTemplates | None) -> RecordTable:
    own = () if templates is None else tuple(sorted(_variables(templates)))
    wanted = tuple(config.columns) or None
    options: dict[str, Any] = {"encoding": config.encoding, "format": config.format, "header": config.header}
    if wanted is None and not own:
        # The first form whose names are in a header makes the first row of CSV one.
        for form in PAIR_FORMS:
            table = open_records(path, own=form, **options)
            if set(form) <= set(table.names):
                return table
    return open_records(path, wanted=wanted, own=own, **options)


def _records_of(rows: Rows) -> list[dict[str, Any]]:
    """Rows in memory as objects; a pair is a prompt and its completion."""
    if isinstance(rows, NamedRows):
        return [{name: value for name, value in zip(rows.names, row, strict=True) if value is not None} for row in rows]
    for number, row in enumerate(rows, start=1):
        if isinstance(row, str) or len(row) != len(CONVERSATION_ROLES):
            size = "a text" if isinstance(row, str) else format_count(len(row), "value")
            raise DataError(f"a row must be a prompt and an answer, or a dictionary, got {size} in row {number}")
    return [dict(zip(PAIR_FORMS[0], row, strict=True)) for row in rows]


def _conversation_table(
    found: Sequence[RecordTable],
    paths: tuple[Path, ...],
    *,
    config: DataConfig,
    templates: RowTemplates | None,
    check: CheckMessages | None,
) -> Table:
    first = found[0]
    names = [*first.names, *(key for row in islice(first, _SAMPLE_ROWS) for key in row)]
    names = list(dict.fromkeys(names))
    columns = _choose_form(names, first.name, config, templates)
    key = key_column(config)
    key = None if key is None else names[require_column(key, names, where=first.name)]

    def read() -> Iterator[Record]:
        for table in found:
            for line, row, fault in table.read():
                yield _read_row(line, row, fault, columns=columns, key=key, templates=templates, check=check)

    what = _describe_form(columns, templates)
    table = Table(
        paths=paths,
        format=first.format if first.format in ("jsonl", "csv", "tsv", "parquet", "xlsx") else "rows",
        roles=CONVERSATION_ROLES,
        columns=columns if len(columns) == len(CONVERSATION_ROLES) else (columns[0], columns[-1]),
        names=tuple(names),
        key=key,
        inferred=[*describe_encoding(paths, config.encoding), f"read {first.name} as {what}"] if paths else [],
        skip_bad=config.skip_bad,
        read=read,
    )
    return with_split_keys(table, config)


def _choose_form(
    names: Sequence[str], where: str, config: DataConfig, templates: RowTemplates | None
) -> tuple[str, ...]:
    """The columns of messages, of a prompt and an answer, or of the variables of templates."""
    if templates is not None:
        variables = sorted(_variables(templates))
        for name in variables:
            if name not in names:
                near = closest_name(name, names)
                raise DataError(f"task.prompt and task.answer name {name!r}, which {where} does not have{near}")
        return tuple(variables)
    if config.columns:
        if len(config.columns) > len(PAIR_FORMS[2]):
            raise ConfigError(
                "data.columns names the messages, or the prompt and the answer, or instruction, input and output, "
                f"got {format_count(len(config.columns), 'column')}"
            )
        return tuple(names[require_column(name, names, where=where)] for name in config.columns)
    form = conversation_columns(names)
    if form is None:
        raise DataError(
            f"{where} has neither messages nor prompt and completion, only {format_names(names)}: name the columns of "
            "the prompt and of the answer, or write task.prompt and task.answer"
        )
    return form


def _variables(templates: RowTemplates) -> set[str]:
    return {name for source in (templates.prompt, templates.answer) for name in template_variables(source)}


def _describe_form(columns: Sequence[str], templates: RowTemplates | None) -> str:
    if templates is not None:
        return f"prompts and answers made of {', '.join(columns)}"
    if len(columns) == 1:
        return f"conversations ({columns[0]})"
    return f"prompts ({', '.join(columns[:-1])}) and answers ({columns[-1]})"


def _read_row(
    line: int,
    row: Mapping[str, Any],
    fault: str,
    *,
    columns: Sequence[str],
    key: str | None,
    templates: RowTemplates | None,
    check: CheckMessages | None,
) -> Record:
    if fault:
        return line, (), fault
    try:
        messages = _messages_of(row, columns, templates)
        prompt, answer = split_conversation(messages)
        if check is not None:
            check([*prompt, {"role": ASSISTANT, "content": answer}])
    except TemplateLimitError:  # every other row would take as long
        raise
    except DataError as error:
        return line, (), str(error)
    values = (format_prompt(prompt), answer)
    return line, values if key is None else (*values, as_text(cell(row, key)) or ""), ""


def _messages_of(
    row: Mapping[str, Any], columns: Sequence[str], templates: RowTemplates | None
) -> Sequence[ChatMessage]:
    if templates is not None:
        values = {name: as_text(row.get(name)) or "" for name in columns}
        texts = (
            render_template(templates.prompt, values, what="task.prompt"),
            render_template(templates.answer, values, what="task.answer"),
        )
        return [*read_messages(texts[0]), *read_messages(texts[1], role=ASSISTANT)]
    is_optional = len(columns) == len(PAIR_FORMS[2])
    for place, name in enumerate(columns):
        if cell(row, name) is None and not (is_optional and place == 1):
            raise DataError(f"no {name}")
    if len(columns) == 1:
        value = cell(row, columns[0])
        if not isinstance(value, list | tuple):
            raise DataError(f"no list of messages in {columns[0]}")
        return read_messages(value)
    prompt, answer = cell(row, columns[0]), cell(row, columns[-1])
    if is_optional and (more := as_text(cell(row, columns[1]))) and more.strip():
        if not isinstance(prompt, str):
            raise DataError(f"an {columns[0]} that is not a text, beside {columns[1]}")
        prompt = f"{prompt}\n\n{more}"
    return [*read_messages(prompt), *read_messages(answer, role=ASSISTANT)]


def _read_message(message: Any, number: int) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise DataError(f"{value_kind(message)} instead of message {number}")
    role, content = message.get("role"), message.get("content")
    if "role" not in message and isinstance(sender := message.get("from"), str):
        role, content = _ROLES_OF_SENDERS.get(sender.lower(), sender), message.get("value")
    if not isinstance(role, str) or not role:
        raise DataError(f"a message without a role: message {number}")
    if isinstance(content, list | tuple):
        parts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
                 for part in content]  # fmt: skip
        content = None if None in parts else "".join(map(str, parts))
    if not isinstance(content, str):
        raise DataError(f"a message whose content is not text: message {number} ({role})")
    return {"role": role, "content": content}
