r"""Reading text files, compressed or not, line by line and in constant memory.

A file is in UTF-8, with or without a byte order mark, or in a given or detected encoding. Its lines end in `\n`
or `\r\n`, and nothing else ends a line: a line separator (U+2028), a next-line control (U+0085) or a form feed is part
of the line, as it is for every other tool that counts lines. Every problem with a file is a `DataError` of one line
that states the position.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from regard.data.formats.encodings import detect_encoding, encoding_label, is_utf_8, to_utf_8
from regard.errors import DataError, EncodingError
from regard.files import MAX_EXPANSION, most_expanded

AnyPath = str | os.PathLike[str]

COMPRESSIONS = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2", ".zst": "Zstandard"}
"""File suffixes of compressed files, and the names of the compressions."""

SEALED_HEADER = b"regard: a sealed test set, opened by the test of its run alone\n"
"""The first line of files of sealed rows."""
_CHUNK = 1 << 18
# A Zstandard chunk can grow many thousandfold when it is decompressed, so less is read at a time.
_ZSTANDARD_CHUNK = 1 << 14
_MAX_SAMPLE_LINES = 10_000
_DETECTED_BYTES, _SEARCHED_BYTES = 1 << 19, 1 << 24
"""An encoding is detected by half a MiB from the first byte beyond ASCII on, if that is among the first 16 MiB."""
MAX_LINE_BYTES = 1 << 27
"""A longer line is an error, since lines are read into memory whole: 128 MiB. SQuAD's JSON of 40 MiB is one line."""


def iter_lines(
    path: AnyPath,
    *,
    keep_carriage_returns: bool = False,
    encoding: str | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Generator[str]:
    r"""Iterate over the lines of a text file, without their endings, decompressed according to its suffix.

    The path is checked at once, the content while it is read. The file is closed after the last line, or by `close()`.

    Args:
        path: A file, plain or ending in `.gz`, `.xz`, `.bz2` or `.zst`.
        keep_carriage_returns: Keep the `\r` of `\r\n`, for formats in which a line end may be part of a value.
        encoding: The encoding of the file; None to detect it.
        max_line_bytes: A line with more bytes in UTF-8 is an error.

    Raises:
        DataError: If the file is missing, not a file, unreadable, empty or damaged, has another encoding, or contains a
            NUL byte or a line that is too long.
    """
    return _lines(check_file(path), keep_carriage_returns, encoding, max_line_bytes)


def iter_blocks(path: AnyPath, *, block_length: int, encoding: str | None = None) -> Generator[str]:
    r"""Iterate over the text of a file in blocks of at most `block_length` characters, with `\r\n` read as `\n`.

    A block ends at the end of a line, unless the line is longer than a block: then it is cut anywhere, so that a file
    with a single line takes no more memory than another. Errors are those of `iter_lines`.
    """
    return _blocks(check_file(path), block_length, encoding)


def file_encoding(path: AnyPath) -> str:
    """The encoding of a text file by its first bytes that are not plain ASCII."""
    sample: list[bytes] = []
    num_read = 0
    with closing(_byte_chunks(check_file(path))) as chunks:
        for chunk in chunks:
            num_read += len(chunk)
            if sample or not chunk.isascii() or b"\0" in chunk:
                sample.append(chunk)
            if sum(map(len, sample)) >= _DETECTED_BYTES or num_read >= _SEARCHED_BYTES:
                return detect_encoding(b"".join(sample), is_complete=False)
    return detect_encoding(b"".join(sample))


def describe_encoding(paths: Sequence[Path], encoding: str | None = None) -> list[str]:
    """A sentence for each file whose encoding is detected and is not UTF-8."""
    if encoding is not None:
        return []
    found = {path: file_encoding(path) for path in paths}
    return [f"{path.name} is in {encoding_label(name)}" for path, name in found.items() if not is_utf_8(name)]


def cut_blocks(text: str, *, block_length: int) -> Iterator[str]:
    r"""Cut a text into blocks of at most `block_length` characters that end at line ends, unless a line is longer.

    >>> list(cut_blocks("one\ntwo\nthree\n", block_length=8))
    ['one\ntwo\n', 'three\n']
    """
    start = 0
    while len(text) - start > block_length:
        end = text.rfind("\n", start, start + block_length) + 1 or start + block_length
        yield text[start:end]
        start = end
    yield text[start:]


def sample_lines(
    path: AnyPath, num_lines: int, *, keep_carriage_returns: bool = False, encoding: str | None = None
) -> list[str]:
    """The first lines of a file: `num_lines` of them that are not blank, and the blank ones between."""
    sample: list[str] = []
    num_full = 0
    with closing(iter_lines(path, keep_carriage_returns=keep_carriage_returns, encoding=encoding)) as lines:
        for line in lines:
            sample.append(line)
            num_full += bool(line and not line.isspace())
            if num_full == num_lines or len(sample) == _MAX_SAMPLE_LINES:
                break
    if not num_full:
        raise DataError(f"{path} has nothing but blank lines")
    return sample


def content_hash(paths: AnyPath | Sequence[AnyPath]) -> str:
    """The SHA-256 of the files' bytes on disk, as 64 hexadecimal digits.

    The size of each file precedes its bytes, so that moving a line from the end of one file to the start of the next
    changes the hash. Names are not included.
    """
    digest = hashlib.sha256()
    for path in as_paths(paths):
        _file_size(path)
        try:
            with path.open("rb") as stream:
                digest.update(b"%d:" % os.fstat(stream.fileno()).st_size)
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise _unreadable(path, error) from error
    return digest.hexdigest()


def as_paths(paths: AnyPath | Sequence[AnyPath]) -> tuple[Path, ...]:
    """One or several paths, as a tuple."""
    if isinstance(paths, str | os.PathLike):
        return (Path(paths),)
    return tuple(Path(path) for path in paths)


def compression_suffix(path: Path) -> str | None:
    """The suffix of a compressed file, or None.

    >>> compression_suffix(Path("train.de.xz")), compression_suffix(Path("train.de"))
    ('.xz', None)
    """
    suffix = path.suffix.lower()
    return suffix if suffix in COMPRESSIONS else None


def uncompressed_name(path: Path) -> str:
    """The name of a file without its compression suffix.

    >>> uncompressed_name(Path("corpus/train.de.xz"))
    'train.de'
    """
    return path.stem if compression_suffix(path) else path.name


def format_suffix(path: AnyPath) -> str:
    """The suffix of a file before its compression suffix, in lower case.

    >>> format_suffix("corpus/train.TSV.xz")
    '.tsv'
    """
    return Path(uncompressed_name(Path(path))).suffix.lower()


def check_file(path: AnyPath) -> Path:
    """Return the path if it is that of a regular file that is not empty."""
    path = Path(path)
    if _file_size(path) == 0:
        raise DataError(f"{path} is empty")
    return path


def _file_size(path: Path) -> int:
    """The size of a regular file."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}") from error
    except ValueError as error:  # a NUL, or what the file system cannot encode
        raise DataError(f"there is no file {path}: {error}") from None
    except OSError as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"{path} is a folder, expected a file")
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path} is not a regular file: data is read more than once, so it cannot come from a pipe")
    return status.st_size


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot read {path}: {error.strerror or error}")


def _lines(path: Path, keep_carriage_returns: bool, encoding: str | None, max_line_bytes: int) -> Generator[str]:
    for text in _text_blocks(path, encoding, max_line_bytes=max_line_bytes):
        if not keep_carriage_returns and "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        yield from lines


def _blocks(path: Path, block_length: int, encoding: str | None) -> Generator[str]:
    for text in _text_blocks(path, encoding):
        yield from cut_blocks(text.replace("\r\n", "\n"), block_length=block_length)


def _text_blocks(path: Path, encoding: str | None, *, max_line_bytes: int | None = None) -> Iterator[str]:
    """The text in blocks that end at line ends, except the last one and, without `max_line_bytes`, very long lines."""
    position = _Position(line=1, byte=1)
    is_empty = True
    encoding = file_encoding(path) if encoding is None else encoding
    chunks = _byte_chunks(path)
    if not is_utf_8(encoding):
        chunks = to_utf_8(chunks, encoding, where=str(path))
    if max_line_bytes is not None:
        chunks = _with_line_feeds(chunks)
    for block in _byte_blocks(chunks, max_line_bytes=max_line_bytes):
        if block is None:
            limit = f"{(max_line_bytes or 0) / 2**20:,.4g} MiB"
            raise DataError(f"line {position.line:,} of {path} is longer than {limit}, and is not read")
        text = _decode(block, path, position)
        if position.is_beginning:
            if block.startswith(_PDF):
                raise DataError(f"{path} is not text{_format_hint(block, position)}")
            text = text.removeprefix("\ufeff")
        if text:
            is_empty = False
            yield text
        position = position.after(block)
    if is_empty:
        raise DataError(f"{path} is empty")


def _with_line_feeds(chunks: Iterator[bytes]) -> Iterator[bytes]:
    r"""The same text with `\n` at the ends of lines, if only `\r` ends those of its beginning, as on old Macs."""
    first = next(chunks, b"")
    if b"\r" not in first or b"\n" in first:
        yield from chain([first], chunks)
        return
    for chunk in chain([first], chunks):
        yield chunk.replace(b"\r", b"\n")


def _byte_blocks(chunks: Iterator[bytes], *, max_line_bytes: int | None) -> Iterator[bytes | None]:
    """Blocks that end at line ends; None, and no more, for a line that is too long."""
    pending: list[bytes] = []
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join([*pending, chunk[:end]])
            pending = []
        if end < len(chunk):
            pending.append(chunk[end:])
        length = sum(map(len, pending))
        if max_line_bytes is not None:
            if length > max_line_bytes:
                yield None
                return
        elif length > _CHUNK:
            line = b"".join(pending)
            end = _last_character(line)
            yield line[:end]
            pending = [line[end:]]
    if pending:
        yield b"".join(pending)


def _last_character(line: bytes) -> int:
    r"""The start of the last character: a cut there divides neither a character nor a `\r` from its `\n`."""
    start = len(line) - 1
    while start > len(line) - 4 and line[start] & 0xC0 == 0x80:  # a continuation byte
        start -= 1
    return start


def too_large(path: Path, most: int) -> DataError:
    """The error for a compressed file that expands beyond what is read of it."""
    return DataError(
        f"{path} expands to more than {most / 2**20:,.0f} MiB, over {MAX_EXPANSION} times its size, and is not read: "
        "if it is no mistake, decompress it first"
    )


def check_archive(path: Path) -> None:
    """Raise if the members of a ZIP archive expand to more than is read of it; what is no archive is reported later."""
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
    except (OSError, ValueError, NotImplementedError, EOFError, zipfile.BadZipFile):
        return
    if total > (most := most_expanded(path.stat().st_size)):
        raise too_large(path, most)


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


def _byte_chunks(path: Path) -> Generator[bytes]:
    openers: dict[str | None, Callable[[Path], _Stream]] = {
        ".gz": gzip.open,
        ".xz": lzma.open,
        ".bz2": bz2.open,
        ".zst": _ZstandardFile,
    }
    opener = openers.get(compression_suffix(path), lambda path: path.open("rb", buffering=0))
    try:
        stream = opener(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    most = most_expanded(path.stat().st_size) if compression_suffix(path) else None
    with closing(stream):
        is_first, total = True, 0
        while chunk := _read(stream, path):
            total += len(chunk)
            if most is not None and total > most:
                raise too_large(path, most)
            if is_first and chunk.startswith(SEALED_HEADER):
                raise DataError(f"{path} is a sealed test set: only the test of the run it belongs to reads it")
            is_first = False
            yield chunk


def _read(stream: _Stream, path: Path) -> bytes:
    compression = COMPRESSIONS.get(compression_suffix(path) or "")
    try:
        return stream.read(_CHUNK)
    except EOFError as error:
        raise DataError(f"{path} is truncated: its {compression} data ends too early") from error
    except (OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        if compression is None:
            raise DataError(f"cannot read {path}: {error}") from error
        raise DataError(f"{path} is damaged, or is not {compression}: {error}") from error


class _ZstandardFile:
    """A Zstandard file of one or more frames that raises `EOFError` if it is truncated.

    The library's own reader stops at a truncation as if the file ended there.
    """

    def __init__(self, path: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise DataError(f"reading {path} needs the package zstandard: install regard[zstd]") from error
        self._library: Any = zstandard
        self._frame: Any = None
        self._unread = b""
        self._stream = path.open("rb")

    def read(self, _size: int, /) -> bytes:
        while True:
            data = self._unread or self._stream.read(_ZSTANDARD_CHUNK)
            if not data:
                if self._frame is not None:
                    raise EOFError
                return b""
            if out := self._decompress(data):
                return out

    def close(self) -> None:
        self._stream.close()

    def _decompress(self, data: bytes) -> bytes:
        self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
        try:
            out = self._frame.decompress(data)
        except self._library.ZstdError as error:
            raise OSError(str(error)) from error
        self._unread = self._frame.unused_data
        if self._frame.eof:
            self._frame = None
        return out


class _Position(NamedTuple):
    """A line, and a byte of the line, both counted from 1."""

    line: int
    byte: int

    @property
    def is_beginning(self) -> bool:
        return self == (1, 1)

    def after(self, block: bytes) -> "_Position":
        """The position after a block that begins here."""
        num_lines = block.count(b"\n")
        return _Position(self.line + num_lines, len(block) - block.rfind(b"\n") + (0 if num_lines else self.byte - 1))

    def __str__(self) -> str:
        return f"line {self.line:,}, byte {self.byte:,}"


def _decode(block: bytes, path: Path, start: _Position) -> str:
    if b"\0" in block:
        position = start.after(block[: block.index(0)])
        raise DataError(f"{path} is not text: {position} is NUL{_format_hint(block, start)}")
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        position = start.after(block[: error.start])
        hint = _format_hint(block, start)
        if not hint and error.reason == "unexpected end of data":
            hint = " (the file ends inside a character)"
        raise EncodingError(f"{path} is not UTF-8: {position} is 0x{block[error.start]:02x}{hint}") from error


_PDF = b"%PDF-"
"""A document that is text up to its first picture."""
_IMAGE = "looks like an image; images are read from a folder with a folder for each label, or a table of their paths"
_MAGIC_BYTES = {
    b"\x89PNG": _IMAGE,
    b"\xff\xd8\xff": _IMAGE,
    b"GIF8": _IMAGE,
    b"\x1f\x8b": "looks like gzip; let its name end in .gz",
    b"\xfd7zXZ": "looks like xz; let its name end in .xz",
    b"BZh": "looks like bzip2; let its name end in .bz2",
    b"\x28\xb5\x2f\xfd": "looks like Zstandard; let its name end in .zst",
    b"PAR1": "looks like Parquet; let its name end in .parquet",
    b"PK\x03\x04": "looks like a ZIP archive or a spreadsheet; the name of a spreadsheet must end in .xlsx",
    _PDF: "looks like a PDF document; extract its text first",
    b"\xd0\xcf\x11\xe0": "looks like an old spreadsheet, .xls; save it as .xlsx",
}


def _format_hint(block: bytes, start: _Position) -> str:
    """The format of a file that is not text, by its first bytes."""
    if not start.is_beginning:
        return ""
    return next((f" ({hint})" for magic, hint in _MAGIC_BYTES.items() if block.startswith(magic)), "")
