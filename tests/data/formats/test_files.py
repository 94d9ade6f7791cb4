"""Reading text files: line ends, encodings, compressions, and invalid files."""

import bz2
import gzip
import hashlib
import lzma
import os
import sys
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.formats.encodings import check_encoding
from regard.data.formats.files import MAX_LINE_BYTES, content_hash, describe_encoding, iter_blocks, iter_lines
from regard.errors import ConfigError, DataError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
COMPRESSED = sorted(set(COMPRESS) - {""})
# More than a chunk of bytes, in lines whose characters take one to four of them.
LONG = [f"{number} läuft über 日本 🐕" * (number % 7) for number in range(7_001)]


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(COMPRESS[path.suffix if path.suffix in COMPRESS else ""](data))
    return path


def refusal(path: Path, encoding: str | None = None) -> str:
    with pytest.raises(DataError) as caught:
        list(iter_lines(path, encoding=encoding))
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(path), path.name)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_lines_come_back_from_every_compression(tmp_path: Path, suffix: str):
    path = write(tmp_path / f"text.txt{suffix}", "\n".join(LONG) + "\n")
    assert list(iter_lines(path)) == LONG


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\r\n\r\nb\n\n", ["a", "", "b", ""]),
        ("\n", [""]),
        ("a\rb\r\r\n", ["a\rb\r"]),
        ("\ufeffa\nb", ["a", "b"]),
        ("a\n\ufeffb", ["a", "\ufeffb"]),
        ("a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\n", ["a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"]),
    ],
)
def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path: Path, content: str, lines: list[str]):
    assert list(iter_lines(write(tmp_path / "text.txt", content))) == lines


def test_a_line_longer_than_many_chunks_is_one_line(tmp_path: Path):
    lines = ["kürzer", "lang " * 500_000, "ß"]
    assert list(iter_lines(write(tmp_path / "text.txt", "\n".join(lines)))) == lines


def test_carriage_returns_can_be_kept(tmp_path: Path):
    path = write(tmp_path / "text.txt", "a\r\nb\n")
    assert list(iter_lines(path, keep_carriage_returns=True)) == ["a\r", "b"]


@settings(deadline=None)  # files, and a machine with other work
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\ufeff"), min_size=1)))
def test_any_lines_that_are_written_are_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    for ending in ("\n", "\r\n"):
        write(path, "".join(f"{line}{ending}" for line in ["first", *lines]))
        assert list(iter_lines(path)) == ["first", *lines]


def test_a_file_is_read_no_further_than_asked(tmp_path: Path):
    path = write(tmp_path / "text.txt", "\n".join(LONG).encode() + b"\xff")
    lines = iter_lines(path)
    assert next(lines) == LONG[0]
    lines.close()


@pytest.mark.parametrize("line", [1, 2, 100_003])
def test_a_wrong_encoding_is_located(tmp_path: Path, line: int):
    before = "".join(f"{text}\n" for text in ["plain"] * (line - 1)).encode()
    path = write(tmp_path / "text.txt", before + "Der Bär\nläuft\n".encode("latin-1"))
    assert refusal(path, encoding="utf-8") == f"text.txt is not UTF-8: line {line:,}, byte 6 is 0xe4"
    path = write(tmp_path / "text.txt", before + b"\x81")
    assert refusal(path, encoding="windows-1252") == f"text.txt is not Windows-1252: line {line:,} has 0x81"


TEXTS = [
    "Der Bär läuft.\nÜber Stock und Stein\n",
    "“Quotes” and € signs",
    "A\n" * 300_000 + "é",
    "é",
    "日本 и\n" * 3,
]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
@pytest.mark.parametrize("text", TEXTS)
def test_the_encoding_is_detected(tmp_path: Path, text: str, encoding: str, suffix: str):
    if (text == TEXTS[-1] and encoding == "cp1252") or (text == "é" and encoding in ("utf-16-le", "utf-16-be")):
        pytest.skip("not in this encoding, or nothing by which it could be recognized")
    path = write(tmp_path / f"text.txt{suffix}", text.encode(encoding))
    for name in (None, encoding):
        assert list(iter_lines(path, encoding=name)) == text.removesuffix("\n").split("\n")
        assert "".join(iter_blocks(path, block_length=1 << 16, encoding=name)) == text
    label = {"cp": "Windows-1252", "ut": "UTF-16"}[encoding[:2]]
    expected = [] if "utf-8" in encoding else [f"text.txt{suffix} is in {label}"]
    assert describe_encoding([path]) == expected
    assert describe_encoding([path], encoding) == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_that_is_named_without_its_order_needs_no_mark(tmp_path: Path, encoding: str):
    path = write(tmp_path / "text.txt", "Der Bär\n".encode(encoding))
    assert list(iter_lines(path, encoding="utf-16")) == ["Der Bär"]
    path = write(tmp_path / "text.txt", b"The bear\n")
    assert refusal(path, encoding="utf-16") == "text.txt is not UTF-16: it has no byte order mark"


def test_utf_32_is_detected_by_its_mark(tmp_path: Path):
    path = write(tmp_path / "text.txt", "Der Bär\n".encode("utf-32"))
    assert list(iter_lines(path)) == ["Der Bär"]
    assert describe_encoding([path]) == ["text.txt is in UTF-32"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_carriage_returns_end_lines_where_nothing_else_does(tmp_path: Path, encoding: str):
    path = write(tmp_path / "text.txt", "one\rtwo\r\rfour\r".encode(encoding))
    for keeps in (False, True):
        assert list(iter_lines(path, keep_carriage_returns=keeps)) == ["one", "two", "", "four"]
    path = write(tmp_path / "text.txt", "one\rtwo\nthree\r".encode(encoding))
    assert list(iter_lines(path)) == ["one\rtwo", "three\r"]


@pytest.mark.parametrize("content", ["Привет, мир".encode("cp1251"), "日本語の文".encode("shift-jis"),
                                     "é\n".encode("cp1252") + "è ü\n".encode()])  # fmt: skip
def test_an_encoding_that_is_not_detected_must_be_given(tmp_path: Path, content: bytes):
    assert "text.txt is not UTF-8: line 1, byte " in refusal(write(tmp_path / "text.txt", content))


def test_an_unknown_encoding_gets_the_nearest():
    for name, nearest in [("windos-1252", "windows-1252"), ("utf8-16", "utf-16"), ("shift-jiss", "shift-jis")]:
        with pytest.raises(ConfigError, match=f"unknown encoding '{name}'; did you mean '{nearest}'"):
            check_encoding(name)
    for name in ("base64", "", "a\0b", "idna", "punycode"):
        with pytest.raises(ConfigError, match="unknown encoding"):
            check_encoding(name)
    assert [check_encoding(name) for name in ("UTF-8", "Latin1", "cp437")] == ["UTF-8", "Latin1", "cp437"]


def test_a_line_that_is_too_long_is_not_read(tmp_path: Path):
    path = write(tmp_path / "text.txt", b"short\n" + b"x" * 700_000 + b"\nshort\n")
    lines = iter_lines(path, max_line_bytes=500_000)
    assert next(lines) == "short"
    with pytest.raises(DataError, match=r"line 2 of .*text.txt is longer than 0.4768 MiB, and is not read"):
        next(lines)
    assert len(list(iter_lines(path, max_line_bytes=700_001))) == 3


def test_a_line_beyond_the_limit_takes_little_memory(tmp_path: Path):
    path = tmp_path / "long.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(9):
            stream.write(b"x" * (1 << 24))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"line 1 of .* is longer than 128 MiB"):
        next(iter_lines(path))
    assert tracemalloc.get_traced_memory()[1] < 1.2 * MAX_LINE_BYTES
    tracemalloc.stop()


def test_the_place_is_counted_in_bytes_and_from_the_mark(tmp_path: Path):
    path = write(tmp_path / "text.txt", b"\xef\xbb\xbf\xc3\xa4\xe4b\n")
    assert refusal(path) == "text.txt is not UTF-8: line 1, byte 6 is 0xe4"


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("Bär".encode() + "ä".encode()[:1], "(the file ends inside a character)"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "(looks like an old spreadsheet, .xls; save it as .xlsx)"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "a folder with a folder for each label, or a table of their paths)"),
        (b"%PDF-1.4\0", "(looks like a PDF document; extract its text first)"),
        (gzip.compress(b"Hello", mtime=0), "(looks like gzip; let its name end in .gz)"),
        (lzma.compress(b"Hello"), "(looks like xz; let its name end in .xz)"),
    ],
)
def test_what_is_not_utf8_gets_a_hint(tmp_path: Path, content: bytes, end: str):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    assert refusal(path).endswith(end)


def test_a_nul_byte_is_located(tmp_path: Path):
    path = write(tmp_path / "text.txt", b"one\ntwo\nth\0ree\n")
    assert refusal(path) == "text.txt is not text: line 3, byte 3 is NUL"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    write(tmp_path / "empty.txt", "")
    for path, message in [
        (tmp_path / "none.txt", f"there is no file {tmp_path / 'none.txt'}"),
        (tmp_path, f"{tmp_path} is a folder, expected a file"),
        (tmp_path / "empty.txt", f"{tmp_path / 'empty.txt'} is empty"),
        (tmp_path / ("n" * 300), f"cannot read {tmp_path / ('n' * 300)}: File name too long"),
        (pipe, f"{pipe} is not a regular file: data is read more than once, so it cannot come from a pipe"),
    ]:
        with pytest.raises(DataError) as caught:
            iter_lines(path)
        assert str(caught.value) == message


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path):
    path = write(tmp_path / "text.txt", "secret")
    path.chmod(0)
    assert refusal(path) == "cannot read text.txt: Permission denied"


@pytest.mark.parametrize("name", ["mark.txt", *(f"nothing.txt{suffix}" for suffix in COMPRESSED)])
def test_a_file_without_content_is_empty_whatever_its_size(tmp_path: Path, name: str):
    path = write(tmp_path / name, b"\xef\xbb\xbf" if name == "mark.txt" else b"")
    assert path.stat().st_size > 0
    assert refusal(path) == f"{name} is empty"


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_compressed_file_that_is_cut_short_is_refused(tmp_path: Path, suffix: str, share: float):
    path = write(tmp_path / f"text.txt{suffix}", "\n".join(LONG))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert refusal(path).startswith(f"text.txt{suffix} is truncated: its ")


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_that_is_damaged_or_foreign_is_refused(tmp_path: Path, suffix: str):
    path = write(tmp_path / f"text.txt{suffix}", "\n".join(LONG))
    data = bytearray(path.read_bytes())
    # Gzip only notices at its end, by the checksum, that what it decompressed was wrong.
    damaged = len(data) - 8 if suffix == ".gz" else len(data) // 2
    data[damaged : damaged + 4] = bytes(4)
    for content in (bytes(data), b"Just a line of text, and no compression at all\n"):
        path.write_bytes(content)
        assert refusal(path).startswith(f"text.txt{suffix} is damaged, or is not ")


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_files_can_be_joined(tmp_path: Path, suffix: str):
    path = tmp_path / f"text.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one\ntw") + COMPRESS[suffix](b"o\nthree\n"))
    assert list(iter_lines(path)) == ["one", "two", "three"]


def test_a_missing_decompressor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "text.zst", "Hello")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert refusal(path) == "reading text.zst needs the package zstandard: install regard[zstd]"


def test_the_hash_is_of_sizes_and_bytes(tmp_path: Path):
    first, second = write(tmp_path / "1", "Hallo\n"), write(tmp_path / "2", "Welt\n")
    expected = hashlib.sha256(b"6:Hallo\n5:Welt\n").hexdigest()
    assert content_hash([first, second]) == expected
    assert content_hash(str(first)) == content_hash([first]) != content_hash(second)


def test_the_hash_sees_where_one_file_ends(tmp_path: Path):
    whole = [write(tmp_path / "1", "ab"), write(tmp_path / "2", "c")]
    before = content_hash(whole)
    write(whole[0], "a")
    write(whole[1], "bc")
    assert content_hash(whole) != before


def test_the_hash_needs_files(tmp_path: Path):
    with pytest.raises(DataError, match="there is no file"):
        content_hash(tmp_path / "none.txt")
    with pytest.raises(DataError, match="is a folder, expected a file"):
        content_hash(tmp_path)
