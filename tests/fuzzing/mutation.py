"""Changes of an input: of its bytes, of its words, of its lines, and of the values of its JSON."""

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

MAX_BYTES = 1 << 16
"""The length of an input: longer ones find little more, and take longer."""
_STRUCTURED = 0.7
"""The share of changes that keep a JSON text one."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|[A-Za-z_][\w.-]*|[^\w\s]')
_NUMBERS = (
    b"0", b"-1", b"1", b"2", b"255", b"256", b"65536", b"2147483647", b"-2147483648", b"4294967296",
    b"9223372036854775807", b"-9223372036854775809", b"18446744073709551616", b"1e308", b"1e999", b"-1e999", b"0.5",
    b"1e-320", b"NaN", b"nan", b"Infinity", b"-inf", b"9" * 400, b"9" * 5_000, b"0x7f", b"1_000", b"007", b"-0",
)  # fmt: skip
_VALUES = (
    b"null", b"true", b"false", b"[]", b"{}", b'""', b'"a"', b"[[]]", b"[null]", b"[1,2]", b'{"a":1}', b'["a","b"]',
    b"[1.5]", b'{"type":"x"}',
)  # fmt: skip
_WORDS = (
    b"../", b"../../../../../../etc/passwd", b"/etc/passwd", b"/dev/zero", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe2\x80\xa8",
    b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\0", b"\r", b"\r\n", b"\x85", b"\x0c", b"\xe2\x80\xae", b"%s%n", b"{0}",
    b"{}", b"{{", b"}}", b"$(id)", b"__class__", b"os:system", b"nan,inf", b"\t", b",", b";", b"|", b'"', b"'", b"\\",
    b"\n\n", b"#", b"<", b">", b"&", b"&amp;", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"=", b":", b"\xd9\xa3", b"\xc2\xb2",
)  # fmt: skip
_OPENING = (b"[", b"{", b"(", b'{"a":', b"<a>", b"[[", b"{% if a %}", b"!", b"-", b"not ", b"a.")
_STRUCT = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**62, 2**63, 2**64 - 1)

Mutation = Callable[[Random, bytes, Sequence[bytes], Sequence[bytes]], bytes]
"""A change of an input; the other arguments are the corpus and the words of a format."""


def mutate(rng: Random, data: bytes, corpus: Sequence[bytes], words: Sequence[bytes], *, is_text: bool) -> bytes:
    """The input after one to eight changes."""
    if is_text and rng.random() < _STRUCTURED and (changed := _change_json(rng, data, words)) is not None:
        return changed[:MAX_BYTES]
    choices = _OF_TEXT if is_text else _OF_BYTES
    for _ in range(1 << rng.choice((0, 0, 0, 1, 1, 2, 3))):
        data = rng.choice(choices)(rng, data, corpus, words)
    return data[:MAX_BYTES]


def _change_json(rng: Random, data: bytes, words: Sequence[bytes]) -> bytes | None:
    """Change one to three values of a JSON text, or of one of its lines; None where it is none."""
    lines = data.split(b"\n")
    place = rng.randrange(len(lines)) if len(lines) > 1 and not data.startswith((b"{\n", b"[\n")) else -1
    try:
        value = json.loads(lines[place] if place >= 0 else data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict | list):
        return None
    for _ in range(rng.randint(1, 3)):
        value = _changed_value(rng, value, words)
    try:
        text = json.dumps(value).encode()
    except (ValueError, RecursionError):
        return None
    if place < 0:
        return text
    lines[place] = text
    return b"\n".join(lines)


def _changed_value(rng: Random, value: Any, words: Sequence[bytes]) -> Any:
    """The value, in which one value at any depth is replaced, removed, copied or renamed."""
    is_leaf = not isinstance(value, dict | list) or not value
    if is_leaf or rng.random() < 0.15:
        return _other_value(rng, value, words)
    if isinstance(value, list):
        place, kind = rng.randrange(len(value)), rng.randrange(8)
        if kind == 0:
            return value[:place] + value[place + 1 :]
        if kind == 1:
            return value[:place] + [value[place]] * rng.choice((2, 3, 100)) + value[place:]
        return [_changed_value(rng, each, words) if at == place else each for at, each in enumerate(value)]
    name, kind = rng.choice(list(value)), rng.randrange(12)
    if kind == 0:
        return {key: each for key, each in value.items() if key != name}
    if kind == 1:
        new = rng.choice(words).decode("latin-1").strip('"') if words else "x"
        return {(new if key == name else key): each for key, each in value.items()}
    if kind == 2:
        return {**value, name: value[rng.choice(list(value))]}
    return {key: _changed_value(rng, each, words) if key == name else each for key, each in value.items()}


def _other_value(rng: Random, value: Any, words: Sequence[bytes]) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.7:
        return rng.choice(
            (value + 1, value - 1, -value, value * 2 if abs(value) < 1e300 else 2, 0, 1, -1, 2, 255, 65_536, 2**31 - 1, 2**31, 2**53, 2**63, 10**30,
             float(value) if abs(value) < 1e300 else 0.25, 0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"), str(value), [value], True, 10**400)
        )  # fmt: skip
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice(
            ("", " ", value * 2, value * 100, value.upper(), value[::-1], value[: len(value) // 2], value + "\n",
             value + "\0", "\ud800", "../" + value, "/etc/passwd", "{}", "{0}", "%s", "nan", "1", "\u202e", value + "/..",
             "__class__", "os:system", 7)
        )  # fmt: skip
    known = (None, True, False, 0, -1, 1.5, "", "a", [], {}, [[]], [None], [1, 2], ["a"], {"a": 1}, {"": []}, [{}])
    if words and rng.random() < 0.3:
        return rng.choice(words).decode("latin-1").strip('"')
    return rng.choice(known)


def _part(rng: Random, data: bytes, longest: int = 64) -> slice:
    start = rng.randrange(len(data) + 1)
    return slice(start, min(len(data), start + rng.randint(1, longest)))


def _flip(rng: Random, data: bytes, *_: Sequence[bytes]) -> bytes:
    if not data:
        return bytes([rng.randrange(256)])
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def _set(rng: Random, data: bytes, *_: Sequence[bytes]) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + bytes([rng.choice((0, 255, 10, 32, 34, 44, rng.randrange(256)))]) + data[place + 1 :]


def _number(rng: Random, data: bytes, *_: Sequence[bytes]) -> bytes:
    """Overwrite a binary number."""
    size = rng.choice((1, 2, 4, 8))
    place = rng.randrange(len(data) + 1)
    value = rng.choice(_STRUCT) & ((1 << 8 * size) - 1)
    return data[:place] + value.to_bytes(size, rng.choice(("little", "little", "big"))) + data[place + size :]


def _delete(rng: Random, data: bytes, *_: Sequence[bytes]) -> bytes:
    part = _part(rng, data)
    return data[: part.start] + data[part.stop :]


def _repeat(rng: Random, data: bytes, *_: Sequence[bytes]) -> bytes:
    part = _part(rng, data)
    times = rng.choice((1, 2, 10, 100))
    return data[: part.stop] + data[part] * times + data[part.stop :]


def _truncate(rng: Random, data: bytes, *_: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _insert(rng: Random, data: bytes, _corpus: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    place = rng.randrange(len(data) + 1)
    word = rng.choice(words) if words and rng.random() < 0.5 else rng.choice((*_WORDS, *_NUMBERS, *_VALUES))
    return data[:place] + word + data[place:]


def _splice(rng: Random, data: bytes, corpus: Sequence[bytes], _words: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _nest(rng: Random, data: bytes, *_: Sequence[bytes]) -> bytes:
    """Open brackets many levels deep, mostly without closing them."""
    place, opening = rng.randrange(len(data) + 1), rng.choice(_OPENING)
    times = rng.choice((3, 100, 2_000, 20_000))
    closing = {b"[": b"]", b"{": b"}", b"(": b")", b'{"a":': b"}", b"<a>": b"</a>"}.get(opening, b"")
    return data[:place] + opening * times + closing * (times * rng.randrange(2)) + data[place:]


def _replace_word(rng: Random, data: bytes, corpus: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Replace a word, a number or a quoted string by another, of this input, of the format or of none."""
    places = [found.span() for found in _TOKEN.finditer(data[: 1 << 13])]
    if not places:
        return _insert(rng, data, corpus, words)
    start, end = rng.choice(places)
    kind = rng.randrange(5)
    if kind == 0:
        new = rng.choice(_NUMBERS)
    elif kind == 1:
        new = rng.choice(_VALUES)
    elif kind == 2 and words:
        new = rng.choice(words)
    elif kind == 3:
        new = rng.choice(_WORDS)
    else:
        new = data[slice(*rng.choice(places))]
    if data[start : start + 1] == b'"' and rng.random() < 0.3:
        new = b'"' + new.strip(b'"') + b'"'
    return data[:start] + new + data[end:]


def _remove_word(rng: Random, data: bytes, *_: Sequence[bytes]) -> bytes:
    places = [found.span() for found in _TOKEN.finditer(data[: 1 << 13])]
    if not places:
        return data
    start, end = rng.choice(places)
    return data[:start] + data[end:]


def _lines(rng: Random, data: bytes, *_: Sequence[bytes]) -> bytes:
    """Delete, copy or move a line."""
    lines = data.split(b"\n")
    line = lines[rng.randrange(len(lines))]
    kind = rng.randrange(3)
    if kind < 2:
        lines.remove(line)
    if kind:
        lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\n".join(lines)


_OF_BYTES: tuple[Mutation, ...] = (
    _flip, _flip, _set, _number, _number, _number, _delete, _repeat, _truncate, _insert, _splice, _replace_word,
)  # fmt: skip
_OF_TEXT: tuple[Mutation, ...] = (
    _flip, _set, _delete, _repeat, _truncate, _insert, _insert, _splice, _nest, _replace_word, _replace_word,
    _replace_word, _replace_word, _remove_word, _lines,
)  # fmt: skip
