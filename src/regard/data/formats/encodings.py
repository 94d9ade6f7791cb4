"""Encodings of text files: which one a file has, and how it is read as UTF-8.

A byte order mark decides. Without one, text in UTF-16 has zeros at every other place of its ASCII characters, and what
is valid UTF-8 is UTF-8, since text in another encoding hardly ever is. What remains is Windows-1252, of which Latin-1
is a part, if it has few characters beyond ASCII, as texts in Western languages do.
"""

import codecs
import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain
from typing import NoReturn

from regard.errors import ConfigError, EncodingError

UTF_8 = "utf-8"
_LABELS = {"utf-8": "UTF-8", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16", "utf-16": "UTF-16", "utf-32": "UTF-32",
           "cp1252": "Windows-1252", "iso8859-1": "Latin-1"}  # fmt: skip
_KNOWN = """utf-8 utf-16 utf-16-le utf-16-be utf-32 ascii latin-1 iso-8859-1 iso-8859-2 iso-8859-5 iso-8859-7 iso-8859-9
    iso-8859-15 windows-1250 windows-1251 windows-1252 windows-1253 windows-1254 windows-1255 windows-1256 windows-1257
    windows-1258 cp437 cp850 cp1252 koi8-r koi8-u mac-roman shift-jis euc-jp iso-2022-jp gb2312 gbk gb18030 big5
    euc-kr"""
_MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF8: UTF_8,
          codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}  # fmt: skip
"""The mark of UTF-32 before that of UTF-16, which it begins with."""
_NAMES_OF_HOSTS = ("idna", "punycode")
"""Encodings of the names of hosts, and not of texts."""
_MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")
_LETTER = re.compile(rb"[A-Za-z\x80-\xff]")
_MIN_ZEROS, _MIN_ZERO_SHARE = 4, 0.05
"""The fewest zeros in UTF-16 and their least share: those of spaces and line ends in a script beyond ASCII."""
_MAX_WESTERN, _FEW = 0.4, 3
"""The largest share of letters beyond ASCII in a Western language, and a number of them that any text may have."""
_MAX_MIXED = 0.1
"""The largest share of characters of Windows-1252 that happen to be valid UTF-8."""


def detect_encoding(beginning: bytes, *, is_complete: bool = True) -> str:
    """The encoding of a text by its beginning, or by its first bytes beyond ASCII.

    It is UTF-8 for what is not text, and for text in an encoding that is not detected.

    >>> [detect_encoding("Bär".encode(name)) for name in ("utf-8", "utf-16", "cp1252")]
    ['utf-8', 'utf-16-le', 'cp1252']
    """
    for mark, encoding in _MARKS.items():
        if beginning.startswith(mark):
            return encoding
    if b"\0" in beginning:
        return _utf_16(beginning) or UTF_8
    try:
        codecs.getincrementaldecoder(UTF_8)().decode(beginning, final=is_complete)
    except UnicodeDecodeError as error:
        is_ascii_before = beginning[: error.start].isascii()
        return "cp1252" if is_ascii_before and _is_western(beginning) else UTF_8
    return UTF_8


def check_encoding(name: str) -> str:
    """Return the name of an encoding that Python can read."""
    try:
        "a".encode(name)
        if codecs.lookup(name).name in _NAMES_OF_HOSTS:
            raise LookupError(name)
    except (LookupError, ValueError):
        near = get_close_matches(name.lower().replace("_", "-"), _KNOWN.split(), n=1, cutoff=0.5)
        advice = f"did you mean {near[0]!r}?" if near else "known are utf-8, utf-16, windows-1252 and others"
        raise ConfigError(f"unknown encoding {name!r}; {advice}") from None
    return name


def is_utf_8(encoding: str) -> bool:
    """Whether an encoding is UTF-8 under any of its names."""
    return codecs.lookup(encoding).name in (UTF_8, "utf-8-sig")


def encoding_label(encoding: str) -> str:
    """The name of an encoding in a message.

    >>> encoding_label("cp1252"), encoding_label("koi8-r")
    ('Windows-1252', 'koi8-r')
    """
    return _LABELS.get(codecs.lookup(encoding).name, encoding)


def to_utf_8(chunks: Iterator[bytes], encoding: str, *, where: str) -> Iterator[bytes]:
    """The bytes of a text in UTF-8. The ASCII characters of UTF-16 without a byte order mark determine the order."""
    first = next(chunks, b"")
    is_unmarked = codecs.lookup(encoding).name == "utf-16" and not first.startswith(tuple(_MARKS))
    decoder = codecs.getincrementaldecoder((_utf_16(first) or encoding) if is_unmarked else encoding)()
    line = 1
    for chunk, is_last in chain([(first, False)], ((chunk, False) for chunk in chunks), [(b"", True)]):
        try:
            text = decoder.decode(chunk, final=is_last)
        except UnicodeError as error:
            _reject(error, encoding, where, line)
        line += text.count("\n")
        yield text.encode(UTF_8, "surrogatepass")


def _reject(error: UnicodeError, encoding: str, where: str, line: int) -> NoReturn:
    """Raise with the line of what cannot be decoded; UTF-16 that has no byte order has none."""
    reason = "it has no byte order mark"
    if isinstance(error, UnicodeDecodeError):
        line += error.object[: error.start].decode(encoding, "ignore").count("\n")
        reason = f"line {line:,} has 0x{error.object[error.start]:02x}"
    raise EncodingError(f"{where} is not {encoding_label(encoding)}: {reason}") from error


def _utf_16(beginning: bytes) -> str | None:
    even, odd = beginning[0::2].count(0), beginning[1::2].count(0)
    if even + odd < max(_MIN_ZEROS, _MIN_ZERO_SHARE * len(beginning)) or min(even, odd) * 100 > max(even, odd):
        return None
    encoding = "utf-16-le" if odd > even else "utf-16-be"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(beginning)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else encoding


def _is_western(text: bytes) -> bool:
    try:
        text.decode("cp1252")
    except UnicodeDecodeError:
        return False
    num_beyond, num_letters = len(_BEYOND_ASCII.findall(text)), len(_LETTER.findall(text))
    is_rare = num_beyond <= max(_FEW, _MAX_WESTERN * num_letters)
    is_mixed = sum(map(len, _MULTIBYTE.findall(text))) > _MAX_MIXED * num_beyond
    return is_rare and not is_mixed and _CONTROL.search(text) is None
