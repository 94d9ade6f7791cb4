"""Preferences: rows of a prompt, a chosen and a rejected answer, and the rater.

A table has such pairs (`prompt`, `chosen`, `rejected`, and `rater` where there are several), or ratings (`prompt`,
`answer`, `rating`, and `rater`): then two answers to a prompt that the same rater has rated differently are a pair.
Without a column of raters, all rows are of one rater, `-`. A prompt may be a list of messages, and answers too: then
the last one of the assistant is the answer, and without a column of prompts the messages before it are the prompt.
Methods that sample answers need no others: their table may have prompts alone, or be a text with a prompt on each line.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeGuard

from regard.data.builtin import builtin_names, find_builtin
from regard.data.conversation_sources import format_prompt, read_messages, split_conversation
from regard.data.formats.cells import is_number
from regard.data.formats.files import content_hash
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_column, format_count, format_names
from regard.data.formats.records import cell, input_text, open_records
from regard.data.formats.tables import Table, rows_hash
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, Source, hash_with_held_out, is_builtin, require_files
from regard.errors import ConfigError, DataError

PREFERENCE_ROLES = ("prompt", "chosen", "rejected", "rater")
_RATING_ROLES = ("prompt", "answer", "rating", "rater")
_PROMPT_ROLES = ("prompt",)
NO_RATER = "-"
_NAMES = {
    "prompt": ("prompt", "question", "instruction", "input", "messages"),
    "chosen": ("chosen", "preferred", "winner"),
    "rejected": ("rejected", "dispreferred", "loser"),
    "answer": ("answer", "response", "completion", "output"),
    "rating": ("rating", "score", "stars", "reward"),
    "rater": ("rater", "annotator", "worker", "judge", "user"),
}
"""What the columns are called, the likeliest first."""
_NO_EFFECT = ("group", "stratify", "order", "shots")


@dataclass(frozen=True)
class _Columns:
    """The column of each role; the rater's is None where there is none."""

    roles: tuple[str, ...]
    names: tuple[str | None, ...]

    @property
    def are_ratings(self) -> bool:
        return "rating" in self.roles


def has_preferences(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of preferences or ratings among these names of columns; none where they are neither."""
    plain = {name.lower() for name in names}
    for roles in (PREFERENCE_ROLES[:3], _RATING_ROLES[:3]):
        known = tuple(next((name for name in _NAMES[role] if name in plain), "") for role in roles)
        if all(known):
            return known
    return ()


def open_preferences(config: DataConfig, rows: Rows | None = None, *, are_prompts: bool | None = False) -> Source:
    """Open the preferences that the settings name, or rows in memory.

    Args:
        config: The settings of the data.
        rows: Rows in memory, in place of files.
        are_prompts: Whether only prompts are read, each a row of one value; None: where the table has no answers.
    """
    defaults = DataConfig()
    for name in _NO_EFFECT:
        if (value := getattr(config, name)) != getattr(defaults, name):
            raise ConfigError(f"data.{name} has no effect on preferences, which are split by prompt, got {value!r}")
    if rows is not None:
        records: Any = rows
        if isinstance(rows, NamedRows):
            records = [dict(zip(rows.names, row, strict=True)) for row in rows]
        elif rows:
            records = [dict(zip(_unnamed(rows[0], config), row, strict=False)) for row in rows]
        train = _open(records, config, "the table in memory", are_prompts)
        hash_of_train = partial(rows_hash, [[str(each) for each in row] for row in rows])
    elif is_builtin(config):
        data = find_builtin(config.train[0])
        if not has_preferences(data.columns):
            raise DataError(f"{data.name} has the columns {', '.join(data.columns)}, and no preferences")
        num_rows = config.num_rows or data.num_rows
        generated = [dict(zip(data.columns, row, strict=True)) for row in data.generate(num_rows, config.split_seed)]
        train = _open(generated, config.changed(columns=[]), data.name, are_prompts)
        hash_of_train = partial(data.content_hash, num_rows, config.split_seed)
    else:
        require_files(config, "a table of preferences or a built-in data set")
        train = _open_file(config.train, config, are_prompts)
        hash_of_train = partial(content_hash, train.paths)
    only = train.roles == _PROMPT_ROLES
    valid, test = (_open_file(paths, config, only) if paths else None for paths in (config.valid, config.test))
    held_out = {split: table.paths for split, table in (("valid", valid), ("test", test)) if table is not None}
    return Source(train, valid, test, lambda: hash_with_held_out(hash_of_train(), held_out))


def _open_file(paths: Sequence[str], config: DataConfig, are_prompts: bool | None) -> Table:
    if len(paths) > 1:
        raise DataError(f"preferences are read from one table, got {len(paths)} files")
    path = Path(paths[0])
    if not path.exists():
        raise DataError(f"there is no file {path}; built-in data sets: {', '.join(builtin_names())}")
    return replace(_open(str(path), config, path.name, are_prompts), paths=(path,))


def _unnamed(row: Sequence[Any], config: DataConfig) -> Sequence[str]:
    """Names for the cells of rows without names: those of pairs, or of ratings where the third is a number."""
    if config.columns:
        return [str(place) for place in range(1, len(row) + 1)]
    is_rating = len(row) > 2 and (isinstance(row[2], int | float) or is_number(str(row[2])))
    return _RATING_ROLES if is_rating else PREFERENCE_ROLES


def _open(data: Any, config: DataConfig, where: str, are_prompts: bool | None) -> Table:
    """A table of pairs, or of prompts; the file is read when its rows are."""
    known = [name for names in _NAMES.values() for name in names]
    records = open_records(data, wanted=config.columns or None, own=known, encoding=config.encoding)
    first = next(iter(records), None)
    if first is None:
        raise DataError(f"{where} has no rows")
    columns = _find_prompts(config.columns, first, where) if are_prompts else None
    columns = columns or _find_columns(config.columns, first, where, allows_prompts=are_prompts is None)
    pairs = [(role, name) for role, name in zip(columns.roles, columns.names, strict=True) if name]
    used = [name if role == name else f"{role} = {format_column(name)}" for role, name in pairs]
    inferred = [f"read {where}; {', '.join(used)}"]
    reader = {_PROMPT_ROLES: _read_prompts, _RATING_ROLES: _read_ratings}.get(columns.roles, _read_pairs)
    read = partial(reader, records.read, columns)
    if columns.are_ratings:
        inferred.append("answers that a rater has rated differently are pairs of a chosen and a rejected one")
    return Table(
        paths=(), format=records.format,
        roles=_PROMPT_ROLES if columns.roles == _PROMPT_ROLES else PREFERENCE_ROLES,
        columns=tuple(name or role for role, name in zip(columns.roles, columns.names, strict=True)),
        inferred=inferred, skip_bad=config.skip_bad, read=read,
    )  # fmt: skip


def _find_prompts(given: Sequence[str], first: Mapping[str, Any], where: str) -> _Columns | None:
    """The column of prompts by the name that is set, by its usual ones, or because there is no other."""
    if given:
        if given[0] not in first:
            raise DataError(f"{where} has no column {given[0]!r}; it has {format_names(list(first))}")
        return _Columns(_PROMPT_ROLES, (given[0],))
    plain = {name.lower(): name for name in first}
    name = next((plain[name] for name in _NAMES["prompt"] if name in plain), None)
    name = next(iter(first)) if name is None and len(first) == 1 else name
    return None if name is None else _Columns(_PROMPT_ROLES, (name,))


def _find_columns(
    given: Sequence[str], first: Mapping[str, Any], where: str, *, allows_prompts: bool = False
) -> _Columns:
    """The columns of pairs, of ratings, or of prompts, by the names that are set or by their usual ones."""
    if given and not (allows_prompts and len(given) == 1):
        if len(given) not in (3, 4):
            raise ConfigError(f"data.columns must be prompt, chosen, rejected[, rater], or prompt, answer, rating[, "
                              f"rater], got {len(given)}")  # fmt: skip
        if missing := [name for name in given if name not in first]:
            raise DataError(f"{where} has no column {missing[0]!r}; it has {format_names(list(first))}")
        roles = _RATING_ROLES if is_number(input_text(first[given[2]])) else PREFERENCE_ROLES
        return _Columns(roles, (*given, *[None] * (4 - len(given))))
    plain = {name.lower(): name for name in first}
    for roles in (PREFERENCE_ROLES, _RATING_ROLES):
        names = tuple(next((plain[name] for name in _NAMES[role] if name in plain), None) for role in roles)
        are_conversations = all(name is not None and isinstance(first[name], list) for name in names[1:3])
        if all(names[:3]) or are_conversations:
            return _Columns(roles, names)
    prompts = _find_prompts(given, first, where)
    if allows_prompts and prompts is not None:
        return prompts
    alone = "" if prompts is None or allows_prompts else "; prompts alone are for methods that sample answers"
    raise DataError(
        f"preferences need the columns prompt, chosen and rejected, or prompt, answer and rating; {where} has "
        f"{format_names(list(first))}{alone}"
    )


def _cells(row: Mapping[str, Any], columns: _Columns) -> list[str]:
    """The text of each role of a row; a prompt of messages is JSON.

    Raises:
        DataError: With what is wrong, as the object of `the row has ...`.
    """
    prompt, *answers, rater = [None if name is None else cell(row, name) for name in columns.names]
    if prompt is None and isinstance(answers[0], list):
        prompts, answers = zip(*(split_conversation(read_messages(each)) for each in answers), strict=True)
        if prompts[0] != prompts[-1]:
            raise DataError("conversations that differ before their last answers")
        prompt = prompts[0]
    found = [input_text(each[-1]["content"] if _is_messages(each) else each) for each in answers]
    return [format_prompt(read_messages(prompt)) if _is_messages(prompt) else input_text(prompt), *found,
            input_text(rater) if input_text(rater).strip() else NO_RATER]  # fmt: skip


def _is_messages(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Whether a cell is a list of messages."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "role" in each for each in value)


def _read_prompts(read: Any, columns: _Columns) -> Iterator[Record]:
    for line, row, fault in read():
        values: tuple[str, ...] = ()
        try:
            if not fault:
                value = cell(row, str(columns.names[0]))
                values = (format_prompt(read_messages(value)) if _is_messages(value) else input_text(value),)
        except DataError as error:
            fault = str(error)
        yield line, values, fault


def _read_pairs(read: Any, columns: _Columns) -> Iterator[Record]:
    for line, row, fault in read():
        values: list[str] = []
        try:
            values = [] if fault else _cells(row, columns)
        except DataError as error:
            fault = str(error)
        empty = [role for role, value in zip(columns.roles[1:3], values[1:3], strict=False) if not value.strip()]
        if not fault and empty:
            fault = f"an empty {empty[0]} answer"
        elif not fault and values[1] == values[2]:
            fault = "a chosen answer that is equal to the rejected one"
        yield line, () if fault else tuple(values), fault


def _read_ratings(read: Any, columns: _Columns) -> Iterator[Record]:
    """Pairs of answers to a prompt, in the order of the second of them."""
    rated: dict[tuple[str, str], list[tuple[int, str, float]]] = defaultdict(list)
    num_ratings = 0
    for line, row, fault in read():
        if fault:
            yield line, (), fault
            continue
        try:
            prompt, answer, rating, rater = _cells(row, columns)
        except DataError as error:
            yield line, (), str(error)
            continue
        if not prompt.strip() or not answer.strip():
            yield line, (), "an empty prompt" if not prompt.strip() else "an empty answer"
        elif not is_number(rating):
            yield line, (), f"no finite number in {format_column(str(columns.names[2]))}"
        else:
            num_ratings += 1
            rated[prompt, rater].append((line, answer, float(rating)))
    num_pairs = 0
    for (prompt, rater), answers in rated.items():
        for (_, one, worth), (line, other, other_worth) in combinations(answers, 2):
            if worth != other_worth and one != other:
                num_pairs += 1
                chosen, rejected = (one, other) if worth > other_worth else (other, one)
                yield line, (prompt, chosen, rejected, rater), ""
    if num_ratings and not num_pairs:
        raise DataError(
            f"ratings are compared within a prompt and a rater, and of {format_count(num_ratings, 'rating')} no two "
            "differ there: two answers to a prompt need different ratings by the same rater"
        )
