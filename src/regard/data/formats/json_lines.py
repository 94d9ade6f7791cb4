"""JSON lines, one object on each line, or a JSON array of objects.

A field is named by its keys separated by dots: `en`, or `translation.en` if the texts are one object deeper, as in
`{"translation": {"en": "Hello", "de": "Hallo"}}`. A number is read as the text it is written as. JSON lines are read in
constant memory, an array as a whole.
"""

import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from regard.data.formats.cells import as_text, value_kind
from regard.data.formats.columns import number_columns
from regard.data.formats.files import iter_blocks, iter_lines
from regard.data.formats.layouts import BLANK, TABLE_FORMATS, Layout, ReadOptions, Record
from regard.errors import DataError
from regard.files import require_shallow

Field = tuple[str, ...]
"""The keys of a value: one, or two for an object within an object."""

_SAMPLE_ROWS, _SHOWN = 100, 60
_START = 1 << 16
_BEGIN, _BETWEEN = re.compile(r"\s*\[\s*"), re.compile(r"\s*(?:,\s*|(?=\]))")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_reject_constant)


def decode_json(text: str) -> Any:
    """Decode JSON with numbers as the text they are written as: 1.50 stays 1.50, and no integer is too long.

    What is no JSON, or is nested too deeply, is a ValueError.
    """
    require_shallow(text)
    return _DECODER.decode(text)


def decode_object(line: str) -> dict[str, Any] | None:
    """The JSON object on a line; None if there is none."""
    try:
        record = decode_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def is_json_array(path: Path, encoding: str | None = None) -> bool:
    """Whether a file is one JSON array, and not JSON lines that are lists, by its first characters."""
    with closing(iter_blocks(path, block_length=_START, encoding=encoding)) as blocks:
        start = next(blocks, "").lstrip()
    first, _, others = start.partition("\n")
    return first.startswith("[") and not (first.rstrip().endswith("]") and others.lstrip().startswith("["))


def iter_json_lines(path: Path, *, encoding: str | None = None) -> Generator[str]:
    """The lines of JSON lines; of an array the text of each element, after blank ones where no element begins.

    Raises:
        DataError: If the file cannot be read, or if it is an array that is not JSON.
    """
    if not is_json_array(path, encoding):
        yield from iter_lines(path, encoding=encoding)
        return
    text = "".join(iter_blocks(path, block_length=_START, encoding=encoding))
    number = 1
    try:
        require_shallow(text)
        for line, element in _elements(text):
            yield from [""] * (line - number)
            yield element
            number = max(number, line) + 1
    except ValueError as error:
        raise DataError(f"{path.name} is an array that is not JSON: {error}") from None


def _elements(text: str) -> Iterator[tuple[int, str]]:
    """The elements of a JSON array, each with the line on which it begins; a ValueError for other text."""
    between, line, before = _BEGIN.match(text), 1, 0
    assert between is not None, "it is an array by its first characters"
    while not text.startswith("]", position := between.end()):
        line, before = line + text.count("\n", before, position), position
        try:
            _, end = _DECODER.raw_decode(text, position)
        except json.JSONDecodeError as error:
            line += text.count("\n", position, error.pos)
            is_cut = not text[error.pos :].strip() or error.msg.startswith("Unterminated string")
            reason = "it ends early" if is_cut else f"{text[error.pos]!r} is not expected there"
            raise ValueError(f"line {line:,}: {reason}") from None
        except ValueError as error:  # a constant that is not JSON
            raise ValueError(f"line {line:,}: {error}") from None
        yield line, text[position:end]
        if (between := _BETWEEN.match(text, end)) is None:
            line += text.count("\n", before, end)
            reason = "an element is followed by neither a comma nor the end of the array"
            raise ValueError(f"line {line:,}: {reason if text[end:].strip() else 'it ends early'}")
    if rest := text[position + 1 :].lstrip():
        line += text.count("\n", before, len(text) - len(rest))
        raise ValueError(f"line {line:,}: there is more text after the end of the array")


def sample_json_lines(path: Path, number: int, *, encoding: str | None = None) -> list[str]:
    """The first lines that are not blank, or elements of an array."""
    with closing(iter_json_lines(path, encoding=encoding)) as lines:
        sample = list(islice((line for line in lines if line and not line.isspace()), number))
    if not sample:
        has = "an array without elements" if is_json_array(path, encoding) else "nothing but blank lines"
        raise DataError(f"{path} has {has}")
    return sample


def sample_objects(path: Path, lines: Sequence[str]) -> list[dict[str, Any]]:
    """The objects among the first lines of a file, of which there must be at least one."""
    objects = [record for line in lines if (record := decode_object(line)) is not None]
    if not objects:
        raise DataError(f"{path.name} {_describe_others(lines)}")
    return objects


def _describe_others(lines: Sequence[str]) -> str:
    """What lines are, or the elements of an array, none of which is an object."""
    try:
        values = [decode_json(line) for line in lines]
    except ValueError:
        return "is not JSON lines: none of its first lines is an object, as {...} on one line"
    kinds = {list: "lists"} if all(isinstance(value, list) for value in values) else {}
    what = kinds.get(type(values[0]), "texts or numbers")
    return f"has {what}, such as {lines[0][:_SHOWN]}: JSON lines and JSON arrays must have an object for each row"


def single_object(path: Path, encoding: str | None = None) -> dict[str, Any] | None:
    """The object that a JSON file consists of as a whole; None for JSON lines, an array, and what is not JSON."""
    with closing(iter_lines(path, encoding=encoding)) as lines:
        full = (line for line in lines if line and not line.isspace())
        first, second = next(full, ""), next(full, None)
        if not first.lstrip().startswith("{") or (second is not None and decode_object(first) is not None):
            return None
        return decode_object("\n".join([first, *([] if second is None else [second, *full])]))


def jsonl_layout(path: Path, options: ReadOptions) -> Layout:
    """The layout of a file of JSON lines; its columns are the fields of its first objects."""
    objects = sample_objects(path, sample_json_lines(path, _SAMPLE_ROWS, encoding=options.encoding))
    fields = fields_of(objects)
    cells = [[text for record in objects if (text := _text_of(record, field)) is not None] for field in fields]
    return Layout(
        format="jsonl",
        label=TABLE_FORMATS["jsonl"],
        names=tuple(map(field_name, fields)),
        lists=tuple(list_fields(objects)),
        numeric=number_columns(cells),
        read=partial(_read, path, options.encoding, tuple(fields)),
    )


def _read(path: Path, encoding: str | None, fields: Sequence[Field], picks: Sequence[int]) -> Generator[Record]:
    chosen = [fields[pick] for pick in picks]
    for number, line in enumerate(iter_json_lines(path, encoding=encoding), 1):
        try:
            record = decode_json(line)
        except ValueError:
            yield number, (), "invalid JSON" if line and not line.isspace() else BLANK
            continue
        if isinstance(record, dict):
            yield number, *field_texts(record, chosen)
        else:
            yield number, (), "a list or a single value instead of an object"


def fields_of(objects: Iterable[dict[str, Any]]) -> list[Field]:
    """The fields that are text in any of the objects, in the order of their first occurrence.

    >>> fields_of([{"id": "7", "translation": {"de": "Hallo", "en": "Hello"}}])
    [('id',), ('translation', 'de'), ('translation', 'en')]
    """
    fields: dict[Field, None] = {}
    for record in objects:
        for key, value in record.items():
            inner = value.items() if isinstance(value, dict) else ()
            fields.update({(key, deeper): None for deeper, text in inner if as_text(text) is not None})
            if as_text(value) is not None:
                fields[key,] = None
    return list(fields)


def _text_of(record: dict[str, Any], field: Field) -> str | None:
    texts, fault = field_texts(record, [field])
    return None if fault else texts[0]


def list_fields(objects: Iterable[dict[str, Any]]) -> list[str]:
    """The fields that are lists in any of the objects, in the order of their first occurrence."""
    return list(dict.fromkeys(key for record in objects for key, value in record.items() if isinstance(value, list)))


def field_name(field: Field) -> str:
    """The keys separated by dots."""
    return ".".join(field)


def field_texts(record: dict[str, Any], fields: Sequence[Field]) -> tuple[tuple[str, ...], str]:
    """The texts of the given fields, and the fault if one has none."""
    texts: list[str] = []
    for field in fields:
        value: Any = record
        for key in field:
            if not isinstance(value, dict) or key not in value:
                return (), f"no field {field_name(field)!r}"
            value = value[key]
        text = as_text(value)
        if text is None:
            return (), f"{value_kind(value)} in field {field_name(field)!r}"
        texts.append(text)
    return tuple(texts), ""
