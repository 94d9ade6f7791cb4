"""Text is read verbatim, a piece at a time, from files, folders, tables and memory."""

import gzip
import json
import lzma
import re
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard.data.formats.files
import regard.data.formats.plain_text
from regard.data.formats.files import iter_blocks
from regard.data.formats.folders import text_files_by_split
from regard.data.formats.plain_text import Piece, TextFile, cut_documents, join_pieces
from regard.data.settings import DataConfig
from regard.data.sources import IN_MEMORY
from regard.data.text_sources import TextSource, open_texts
from regard.errors import DataError, RegardError


def source(*paths: Path, rows=None, **settings) -> TextSource:
    own = {name: settings.pop(name) for name in ("tokenizer", "documents", "isolate") if name in settings}
    return open_texts(DataConfig.read({"train": [str(path) for path in paths], **settings}), rows, **own)


def write(path: Path, text: str) -> Path:
    data = text.encode()
    compress = {".xz": lzma.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(data))
    return path


def refusal(*paths: Path, **settings) -> str:
    with pytest.raises(RegardError) as caught:
        list(source(*paths, **settings).train)
    assert "\n" not in str(caught.value)
    return str(caught.value)


LINES = st.text(st.sampled_from("ab \t\r\n\x0b\x85\u2028\ufeffé\N{SNOWMAN}\N{CAT FACE}"))


@settings(deadline=None)  # files, and a machine with other work
@given(LINES, st.integers(1, 11), st.integers(5, 13))
def test_a_text_is_read_to_the_letter_wherever_it_is_cut(text: str, block_length: int, chunk: int):
    text = "x" + re.sub("\r+\n", "\n", text) + "x"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "text.txt"
        patch.setattr(regard.data.formats.files, "_CHUNK", chunk)
        for written in (text.encode(), text.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + text.encode()):
            path.write_bytes(written)
            blocks = list(iter_blocks(path, block_length=block_length))
            assert "".join(blocks) == text
            assert all(0 < len(block) <= block_length for block in blocks)


@settings(deadline=None)  # files, and a machine with other work
@given(LINES, st.integers(1, 11))
def test_documents_in_memory_are_cut_and_joined(text: str, length: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regard.data.formats.plain_text, "_PIECE_LENGTH", length)
        assert list(join_pieces(cut_documents([text, "b", text]))) == [text, "b", text]


def test_pieces_end_where_lines_end(tmp_path: Path):
    line = "to be or not to be\n"
    text = line * 10_007 + "that is"
    for name in ("text.txt", "text.txt.xz", "text.txt.gz"):
        pieces = list(TextFile(write(tmp_path / name, text)))
        assert "".join(piece.text for piece in pieces) == text
        assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert all(piece.text.endswith("\n") for piece in pieces[:-1])
        assert max(len(piece.text) for piece in pieces) <= 1 << 16
        assert len(pieces) < 11


def test_a_single_huge_line_takes_little_memory(tmp_path: Path):
    path = write(tmp_path / "line.txt", "word " * 1_000_003)
    num_characters = 0
    tracemalloc.start()
    for piece in source(path).train:
        num_characters += len(piece.text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_characters == 5_000_015
    assert peak < 2_500_000


def test_lines_are_documents_without_their_ends(tmp_path: Path):
    path = write(tmp_path / "text.txt", " = title = \n\n the cat \r\n   \n\tran")
    texts = source(path, documents="lines").train
    assert list(texts) == [Piece(" = title = ", True), Piece(" the cat ", True), Piece("\tran", True)]
    assert list(texts) == list(texts)
    assert list(source(path, documents="file").train.documents()) == [" = title = \n\n the cat \n   \n\tran"]


def test_every_table_with_a_column_of_text_will_do(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    documents = ["one\ntwo", "three, four", "five"]
    rows = [{"id": i, "content": text} for i, text in enumerate(documents)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    parquet.write_table(pyarrow.table({"content": documents}), tmp_path / "text.parquet")
    quoted = "".join(f'{i},"{text}"\n' for i, text in enumerate(documents))
    for path in (
        write(tmp_path / "text.jsonl.xz", lines),
        write(tmp_path / "text.txt", lines),
        write(tmp_path / "text.csv", "id,content\n" + quoted),
        tmp_path / "text.parquet",
    ):
        found = source(path)
        assert list(found.train.documents()) == documents
        assert (found.train.form, found.is_isolated) == ("rows", True)
    found = source(write(tmp_path / "text.tsv", "a\tb\nc\td\n"), columns=["2"])
    assert list(found.train.documents()) == ["b", "d"]


def test_several_tables_are_read_one_after_the_other(tmp_path: Path):
    paths = [write(tmp_path / f"{name}.jsonl", json.dumps({"text": name}) + "\n") for name in "ba"]
    assert list(source(*paths).train.documents()) == ["b", "a"]


def test_rows_in_memory_are_documents():
    for rows in (["one", "two\n"], [("one",), ("two\n",)], iter(["one", "two\n"])):
        found = source(rows=rows)
        assert list(found.train.documents()) == ["one", "two\n"]
        assert (found.is_isolated, found.inferred) == (True, [])
    assert source(rows=["one"]).content_hash() != source(rows=["two"]).content_hash()


@pytest.mark.parametrize(
    ("settings", "number", "form", "is_isolated"),
    [
        ({}, 1, "file", False),
        ({}, 2, "file", True),
        ({"tokenizer": "bytes"}, 1, "file", False),
        ({"tokenizer": "words"}, 1, "lines", False),
        ({"tokenizer": "words"}, 2, "lines", False),
        ({"tokenizer": "words", "documents": "file"}, 1, "file", False),
        ({"documents": "lines"}, 1, "lines", False),
        ({"format": "lines"}, 1, "lines", False),
        ({"documents": "lines", "isolate": True}, 1, "lines", True),
        ({"isolate": True}, 1, "file", True),
        ({"isolate": False}, 2, "file", False),
    ],
)
def test_what_a_document_is_is_concluded_or_given(tmp_path: Path, settings, number: int, form: str, is_isolated: bool):
    paths = [write(tmp_path / f"{i}.txt", f"a{i}\nb{i}\n") for i in range(number)]
    found = source(*paths, **settings)
    assert (found.train.form, found.is_isolated) == (form, is_isolated)
    lines = [f"{letter}{i}" for i in range(number) for letter in "ab"]
    files = [f"a{i}\nb{i}\n" for i in range(number)]
    assert list(found.train.documents()) == (lines if form == "lines" else files)


def test_what_was_inferred_is_reported(tmp_path: Path):
    one, two = (write(tmp_path / f"{name}.txt", "text") for name in ("one", "two"))
    table = write(tmp_path / "table.jsonl", '{"id": 3, "body": "text"}\n')
    assert source(one).inferred == ["read one.txt as contiguous text"]
    assert source(one, tokenizer="words").inferred == ["read one.txt line by line as consecutive documents"]
    assert source(one, two).inferred == ["read one.txt and two.txt as independent documents"]
    assert source(one, two, isolate=False).inferred == ["read one.txt and two.txt as consecutive documents"]
    assert source(one, documents="file", isolate=False).inferred == []
    first = "read table.jsonl as JSON lines; text = body of 2 columns"
    assert source(table).inferred == [first, "read table.jsonl row by row as independent documents"]
    assert source(table, columns=["body"], isolate=True).inferred == []


def make(folder: Path, names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names.split():
        write(folder / name, f"{name}\n")
    return folder


@pytest.mark.parametrize(
    ("names", "train", "valid", "test"),
    [
        ("train.txt valid.txt test.txt README.md", "train.txt", "valid.txt", "test.txt"),
        (
            "ptb.train.txt.xz ptb.valid.txt.xz ptb.test.txt.xz",
            "ptb.train.txt.xz",
            "ptb.valid.txt.xz",
            "ptb.test.txt.xz",
        ),
        ("wiki.train.tokens wiki.dev.tokens", "wiki.train.tokens", "wiki.dev.tokens", ""),
        ("Train.txt my_val.txt", "Train.txt", "my_val.txt", ""),
        ("x-train-1.txt x-train-0.txt x-validation.txt", "x-train-0.txt x-train-1.txt", "x-validation.txt", ""),
        ("train.txt train.txt.xz val.txt", "train.txt", "val.txt", ""),
        ("train.txt test.txt test.easy.txt test.hard.txt", "train.txt", "", "test.txt"),
        ("b.txt a.txt trains.txt .hidden LICENSE", "a.txt b.txt trains.txt", "", ""),
        ("all.txt test.txt", "all.txt", "", "test.txt"),
        ("train.jsonl valid.jsonl", "train.jsonl", "valid.jsonl", ""),
    ],
)
def test_the_names_in_a_folder_determine_the_splits(tmp_path: Path, names: str, train: str, valid: str, test: str):
    found = text_files_by_split(make(tmp_path, names))
    expected = {split: some.split() for split, some in (("train", train), ("valid", valid), ("test", test)) if some}
    assert {split: [path.name for path in paths] for split, paths in found.items()} == expected


def test_a_folder_takes_the_place_of_its_files(tmp_path: Path):
    folder = make(tmp_path / "ptb", "ptb.train.txt ptb.valid.txt ptb.test.txt")
    found = source(folder, documents="file")
    assert found.valid is not None
    assert found.test is not None
    assert [texts.name for texts in (found.train, found.valid, found.test)] == [
        "ptb.train.txt",
        "ptb.valid.txt",
        "ptb.test.txt",
    ]
    what = "ptb.train.txt for training, ptb.valid.txt for validation, ptb.test.txt for the test"
    assert found.inferred[0] == f"from the folder ptb: {what}"
    other = source(folder, valid=[str(write(tmp_path / "mine.txt", "mine"))])
    assert other.valid is not None
    assert list(other.valid.documents()) == ["mine"]
    essays = source(make(tmp_path / "essays", "d.txt c.txt b.txt a.txt"))
    assert essays.inferred == [
        "from the folder essays: 4 files for training",
        "read 4 files as independent documents",
    ]
    assert (essays.valid, essays.is_isolated) == (None, True)


def test_the_same_file_in_another_set_is_other_data(tmp_path: Path):
    train, extra = write(tmp_path / "a.txt", "a"), write(tmp_path / "b.txt", "b")
    hashes = {
        source(train).content_hash(),
        source(train, valid=[str(extra)]).content_hash(),
        source(train, test=[str(extra)]).content_hash(),
        source(train, extra).content_hash(),
    }
    assert len(hashes) == 4


def test_an_invalid_file_is_an_error(tmp_path: Path):
    (tmp_path / "binary.txt").write_bytes(b"ab\0c")
    assert refusal(tmp_path / "binary.txt").endswith("binary.txt is not text: line 1, byte 3 is NUL")
    (tmp_path / "long.txt").write_bytes(b"x\n" + b"a" * 600_011 + b"\xe9 \xc3\xa9")
    for form in ("file", "lines"):
        assert refusal(tmp_path / "long.txt", documents=form).endswith("is not UTF-8: line 2, byte 600,012 is 0xe9")
    assert refusal(write(tmp_path / "empty.txt", "")).endswith("empty.txt is empty")
    assert refusal(write(tmp_path / "empty.txt.xz", "")).endswith("empty.txt.xz is empty")
    assert refusal(tmp_path / "nowhere.txt").startswith("there is no file")
    blank = write(tmp_path / "blank.txt", "\n  \n")
    assert refusal(blank).endswith("blank.txt has nothing but blank lines")
    assert refusal(blank, documents="lines").endswith("blank.txt has no rows")


def test_files_that_do_not_match_are_an_error(tmp_path: Path):
    plain, table = write(tmp_path / "a.txt", "a"), write(tmp_path / "b.jsonl", '{"text": "b"}\n')
    assert refusal(plain, table).endswith("must be of one kind, but b.jsonl is a table and a.txt is not")
    assert refusal(table, documents="lines").endswith("is a document, got task.documents = 'lines' for b.jsonl")
    assert refusal(plain, tmp_path).endswith("is a folder, expected a file")
    assert refusal() == "no training data: name a file, several files or a folder of them"
    assert refusal(Path(IN_MEMORY)).startswith("this run was trained on rows in memory")
    assert refusal(Path("dates")) == "dates has the columns source, target, the task needs text"
    assert "only TSV, CSV and Excel may have a header" in refusal(plain, header=True)
    empty = tmp_path / "empty"
    assert "has nothing to train on" in refusal(make(empty, "README.md .gitignore"))
    both = make(tmp_path / "both", "ptb.train.txt ptb.char.train.txt")
    assert refusal(both).endswith("has more than one text to train on: ptb.char.train.txt, ptb.train.txt")
    with pytest.raises(DataError, match="have an empty text"):
        list(source(rows=["a", "", " ", "b"]).train)
    assert list(source(rows=["a", "", "b"], skip_bad=True).train.documents()) == ["a", "b"]
