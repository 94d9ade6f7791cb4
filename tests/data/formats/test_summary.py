"""A source is described by its kind, its format and the statistics of its columns, from its first rows."""

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from regard.data.formats.summary import ColumnSummary, describe, describe_rows
from regard.errors import DataError


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as stream:
        stream.write(content)
    return path


def save_image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(path)
    return path


def test_the_statistics_of_a_column(tmp_path: Path):
    save_image(tmp_path / "a.png")
    cells = ("7", "-2.5e3", "2024-05-31", "31.5.2024 8:00", "a.png", "b.JPG", "a.png", "one two")
    column = ColumnSummary("x.Seen At", cells, tmp_path)
    assert (column.share_numeric, column.share_dates) == (2 / 8, 2 / 8)
    assert (column.share_image_names, column.share_images) == (3 / 8, 2 / 8)
    assert (column.num_distinct, column.max_characters) == (7, 14)
    assert (column.mean_characters, column.mean_words) == ((1 + 6 + 10 + 14 + 5 + 5 + 5 + 7) / 8, 10 / 8)
    assert column.plain_name == "seen at"
    empty = ColumnSummary("1", ())
    assert (empty.share_numeric, empty.num_distinct, empty.mean_words) == (0.0, 0, 0.0)


@pytest.mark.parametrize("name", ["rows.tsv", "rows.tsv.gz", "rows.tab", "rows.dat"])
def test_a_table_with_a_header(tmp_path: Path, name: str):
    content = "date\topen\ttext\n" + "".join(f"2024-01-{day:02}\t{day}.5\ta word\n" for day in range(1, 31))
    summary = describe(write(tmp_path / name, content))
    assert (summary.kind, summary.format, summary.suffix) == ("file", "tsv", "." + name.split(".")[1])
    assert (summary.names, summary.has_names, summary.paths) == (("date", "open", "text"), True, (tmp_path / name,))
    assert [column.share_dates for column in summary.columns] == [1.0, 0.0, 0.0]
    assert [column.share_numeric for column in summary.columns] == [0.0, 1.0, 0.0]
    assert (summary.num_rows, summary.num_bad, summary.is_complete) == (30, 0, True)


def test_a_table_without_a_header_and_with_bad_rows(tmp_path: Path):
    summary = describe(write(tmp_path / "pairs.csv", "Hallo,Hello\n\nWelt\nJa,yes\n"))
    assert (summary.format, summary.names, summary.has_names) == ("csv", ("1", "2"), False)
    assert (summary.num_rows, summary.num_bad) == (2, 1)
    assert summary.columns[1].cells == ("Hello", "yes")
    assert describe(tmp_path / "pairs.csv", header=True).names == ("Hallo", "Hello")
    assert describe(tmp_path / "pairs.csv", columns=["Hallo"]).has_names


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_objects_may_lack_fields(tmp_path: Path, name: str):
    rows = [
        {"id": "1", "t": {"de": "a", "en": "b"}, "tokens": ["a"], "label": 1.5},
        {"id": "2", "t": {"de": "c", "en": None}, "tokens": ["b", "c"], "label": 2.0},
    ]
    if name.endswith("parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
    else:
        write(tmp_path / name, "\n".join([json.dumps(rows[0]), "broken", "", json.dumps(rows[1])]))
    summary = describe(tmp_path / name)
    assert summary.format == ("parquet" if name.endswith("parquet") else "jsonl")
    assert (summary.names, summary.lists) == (("id", "t.de", "t.en", "label"), ("tokens",))
    assert [column.cells for column in summary.columns] == [("1", "2"), ("a", "c"), ("b",), ("1.5", "2.0")]
    assert (summary.num_rows, summary.num_bad) == (2, 0 if name.endswith("parquet") else 1)
    assert summary.columns[2].plain_name == "en"


def test_plain_text_is_lines(tmp_path: Path):
    summary = describe(write(tmp_path / "play.txt", "To be,\n\nor not\n"))
    assert (summary.kind, summary.format, summary.has_names) == ("file", "lines", False)
    assert summary.columns[0].cells == ("To be,", "or not")


def test_several_files_and_their_lines(tmp_path: Path):
    paths = [write(tmp_path / "a.de", "eins\nzwei\ndrei\n"), write(tmp_path / "a.en", "one\ntwo\n")]
    summary = describe(paths)
    assert (summary.kind, summary.format, summary.names) == ("files", "aligned", ("de", "en"))
    assert [column.cells for column in summary.columns] == [("eins", "zwei"), ("one", "two")]
    assert summary.paths == tuple(paths)
    tables = [write(tmp_path / f"{i}.jsonl", '{"text": "a"}\n') for i in range(3)]
    assert (describe(tables).kind, describe(tables).format, describe(tables).paths) == ("files", "jsonl", tuple(tables))


@pytest.mark.parametrize(("name", "format"), [("a.conll", "columns"), ("a.bio.gz", "columns"), ("a.conllu", "conllu")])
def test_tagged_sentences(tmp_path: Path, name: str, format: str):
    more = "\t_" * 6 if format == "conllu" else ""
    first = "1\tAda\t_\tB" if format == "conllu" else "Ada B"
    summary = describe(write(tmp_path / name, f"{first}{more}\n\n{first}{more}\n"))
    assert (summary.format, summary.names, summary.lists) == (format, ("words", "tags"), ("words", "tags"))
    assert (summary.columns[0].cells, summary.num_rows) == (("Ada", "Ada"), 2)
    assert describe(write(tmp_path / "b.txt", "Ada B\n"), format="columns").format == "columns"


def test_questions_and_aspects(tmp_path: Path):
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "c", "qas": []}]}]}
    assert describe(write(tmp_path / "q.json", json.dumps(squad))).format == "squad"
    aspects = '<aspectCategories><aspectCategory category="food" polarity="positive"/></aspectCategories>'
    xml = f"<sentences><sentence><text>Good soup</text>{aspects}</sentence></sentences>"
    summary = describe(write(tmp_path / "s.xml", xml))
    assert (summary.format, summary.names) == ("semeval", ("text", "aspect", "label"))


def test_a_folder_is_described_by_its_training_files(tmp_path: Path):
    write(tmp_path / "pairs" / "train.de", "a\n")
    write(tmp_path / "pairs" / "train.en", "b\n")
    summary = describe(tmp_path / "pairs")
    assert (summary.kind, summary.format, summary.names) == ("folder", "aligned", ("de", "en"))
    path = write(tmp_path / "table" / "train.csv", "text,label\na,b\n")
    assert (describe(path.parent).format, describe(path.parent).paths) == ("csv", (path,))
    write(tmp_path / "texts" / "wiki.train.tokens", "a\n")
    assert (describe(tmp_path / "texts").kind, describe(tmp_path / "texts").format) == ("folder", "lines")


@pytest.mark.parametrize("prefix", ["", "train"])
def test_a_folder_of_images_by_label(tmp_path: Path, prefix: str):
    for label in ("cat", "dog"):
        save_image(tmp_path / "images" / prefix / label / "1.png")
    summary = describe(tmp_path / "images")
    assert (summary.kind, summary.format, summary.names) == ("image-folder", "images", ("image", "label"))
    assert summary.columns[0].share_images == 1.0
    assert summary.columns[1].cells == ("cat", "dog")


def test_a_table_of_images(tmp_path: Path):
    save_image(tmp_path / "images" / "1.png")
    summary = describe(write(tmp_path / "t.csv", "image,caption\nimages/1.png,A dog runs\nimages/2.png,It sleeps\n"))
    assert (summary.columns[0].share_image_names, summary.columns[0].share_images) == (1.0, 0.5)


def test_a_builtin_data_set_is_not_generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    summary = describe("dates")
    assert (summary.kind, summary.names, summary.num_rows) == ("builtin", ("source", "target"), 0)
    write(Path("dates"), "a\tb\n")
    assert describe("dates").kind == "file"


def test_only_the_first_rows_are_read(tmp_path: Path):
    path = write(tmp_path / "long.tsv", "text\tlabel\n" + "".join(f"row {i}\t{i % 7}\n" for i in range(300_000)))
    tracemalloc.start()
    summary = describe(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (summary.num_rows, summary.is_complete, summary.columns[1].num_distinct) == (1_000, False, 7)
    assert peak < path.stat().st_size
    with open(path, "ab") as stream:
        stream.write(b"\xff")
    assert describe(path).num_rows == 1_000


def test_rows_in_memory():
    assert describe_rows(["a b", "c"]).columns[0].mean_words == 1.5
    pairs = describe_rows([("a", 1), ("b", 2.5)] * 600)
    assert (pairs.kind, pairs.format, pairs.names, pairs.has_names) == ("rows", "rows", ("1", "2"), False)
    assert (pairs.columns[1].share_numeric, pairs.num_rows, pairs.is_complete) == (1.0, 1_000, False)
    tagged = describe_rows([(["Ada", "sang"], ("B", "O"))])
    assert (tagged.lists, tagged.columns) == (("1", "2"), ())
    objects = describe_rows({"text": f"t{i}", "meta": {"stars": i}} for i in range(3))
    assert (objects.names, objects.has_names, objects.columns[1].cells) == (
        ("text", "meta.stars"),
        True,
        ("0", "1", "2"),
    )
    assert describe_rows([]).columns == ()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.tsv", None, "there is no file .*none.tsv; built-in data sets: answers, dates"),
        ("empty.csv", "", "is empty"),
        ("blank.tsv", "\n\n", "has nothing but blank lines"),
        ("a.json", "1", "neither SQuAD's JSON nor JSON lines"),
        ("a.jsonl", "a\n", "is not JSON lines"),
        ("a.parquet", "a\n", "is not Parquet"),
        ("a.xml", "<reviews/>", "is not a SemEval file"),
        ("a.conll", "one\n", "has 1 column, but 2 are needed"),
        ("a.csv", 'a,b\n"c,d\n', "is not closed"),
    ],
)
def test_what_cannot_be_read_is_an_error(tmp_path: Path, name: str, content: str | None, message: str):
    path = tmp_path / name
    if content is not None:
        write(path, content)
    with pytest.raises(DataError, match=message):
        describe(path)
    with pytest.raises(DataError, match="no training data"):
        describe([])
