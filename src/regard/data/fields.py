"""The fields of an object, and what counts as text in them.

A field is named by its keys with dots between: `en`, or `translation.en` where the
texts lie one object deeper, as in `{"translation": {"en": "Hello", "de": "Hallo"}}`.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from numbers import Number
from typing import Any, NoReturn

Field = tuple[str, ...]
"""The keys that lead to a value: one, or two where an object lies within an object."""


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


decode_json: Callable[[str], Any] = json.JSONDecoder(
    parse_float=str, parse_int=str, parse_constant=_reject_constant
).decode
"""JSON in which a number is the text it is written as: 1.50 stays 1.50, and no integer is too long."""


def fields_of(objects: Iterable[dict[str, Any]]) -> list[Field]:
    """The fields in which any of the objects holds text, in the order they are met.

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


def field_name(field: Field) -> str:
    """The keys with dots between."""
    return ".".join(field)


def texts_of(record: dict[str, Any], fields: Sequence[Field]) -> tuple[tuple[str, ...], str]:
    """The texts in the given fields, and what is wrong if one has none."""
    texts: list[str] = []
    for field in fields:
        value: Any = record
        for key in field:
            if not isinstance(value, dict) or key not in value:
                return (), f"no field {field_name(field)!r}"
            value = value[key]
        text = as_text(value)
        if text is None:
            return (), f"{kind_of(value)} in field {field_name(field)!r}"
        texts.append(text)
    return tuple(texts), ""


def as_text(value: object) -> str | None:
    """Text for text, for a number or truth value what JSON writes, for a date what ISO 8601 says; None for the rest.

    Text that no file of text can hold, with a NUL or half a surrogate pair, is none
    either, and neither is a number that is not one.

    >>> as_text("two"), as_text(2), as_text(True), as_text(None)
    ('two', '2', 'true', None)
    """
    if isinstance(value, str):
        return value if _is_writable(value) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number) and not (isinstance(value, float) and math.isnan(value)):
        return str(value)
    return value.isoformat() if isinstance(value, date) else None


def _is_writable(text: str) -> bool:
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def kind_of(value: object) -> str:
    """What a value that is not text is, in words."""
    if isinstance(value, str):
        return "a NUL or half a surrogate pair"
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", float: "NaN"}
    return names.get(type(value), f"a {type(value).__name__}")
