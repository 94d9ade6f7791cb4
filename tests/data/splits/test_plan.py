"""Splits by group, label and time of every kind of source; the column of the split is not an input."""

import csv
import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import IN_MEMORY
from regard.errors import BadRowsError, ConfigError, DataError, RegardError
from regard.tasks import detect_task, find_task
from regard.tasks.text import TextSettings

AUTHORS = {f"text number {i}": f"author {chr(0x4E00 + i % 29)}" for i in range(290)}
"""The author of each text; every author has a character that occurs nowhere else."""
RECORDS = [
    {
        "author": author,
        "date": str(date(2024, 1, 1) + timedelta(days=(i * 37) % 97)),
        "text": text,
        "label": "ab"[i % 3 == 0],
    }
    for i, (text, author) in enumerate(AUTHORS.items())
]
DATES = {record["text"]: record["date"] for record in RECORDS}
SPLITS = [0.6, 0.2, 0.2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, records=RECORDS) -> Path:
    """A table in the format that its name says."""
    if path.suffix == ".parquet":
        parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        rows = [{**record, "date": date.fromisoformat(record["date"])} for record in records]
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(records)
    return path


def prepared(data: Path | list, task: str = "text-classification", *, image=None, **settings) -> Prepared:
    rows, kind = data if isinstance(data, list) else None, find_task(task)
    own = {"tokenizer": "characters"} if issubclass(kind.Settings, TextSettings) else {"image": image}
    config = {"splits": SPLITS, "train": [IN_MEMORY if rows is not None else str(data)], **settings}
    return kind(kind.Settings.draft({"name": task, **own})).prepare(DataConfig.read(config), rows)


def texts_of(data: Prepared) -> dict[str, list[str]]:
    """The texts of each set."""
    rows = [data.train.sequences(0, [row])[0].tolist() for row in range(len(data.train))]
    held_out = {role: [row[0] for row in some] for role, some in data.held_out.items()}
    return {"train": [text.strip() for text in data.codecs["text"].decode(rows)], **held_out}


def error_of(*arguments, **settings) -> str:
    with pytest.raises(RegardError) as caught:
        prepared(*arguments, **settings)
    return str(caught.value)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("group", ["author", 1])
def test_a_group_is_in_one_set_and_its_column_is_not_read(tmp_path: Path, ending: str, group: str | int):
    data = prepared(write(tmp_path / f"reviews.{ending}"), group=group)
    texts = texts_of(data)
    authors = {role: {AUTHORS[text] for text in some} for role, some in texts.items()}
    assert all(authors.values())
    assert sum(map(len, authors.values())) == 29
    assert sorted(text for some in texts.values() for text in some) == sorted(AUTHORS)
    assert {len(row) for some in data.held_out.values() for row in some} == {2}
    assert not any(ord(letter) > 127 for letter in data.codecs["text"].to_json() if letter != "▁")
    assert any(f"author: {len(authors['train'])} of 29" in note for note in data.notes)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_split_by_time_in_every_format(tmp_path: Path, ending: str):
    data = prepared(write(tmp_path / f"reviews.{ending}"), order="date")
    days = {role: [DATES[text] for text in some] for role, some in texts_of(data).items()}
    assert max(days["train"]) < min(days["valid"]) <= max(days["valid"]) < min(days["test"])
    assert any("date" in note and "2024-01-01" in note for note in data.notes)


def test_a_split_by_the_order_of_the_file(tmp_path: Path):
    texts = texts_of(prepared(write(tmp_path / "reviews.csv"), order="rows"))
    assert [text for role in ("train", "valid", "test") for text in sorted(texts[role], key=list(AUTHORS).index)] == [
        *AUTHORS
    ]


def test_labels_have_the_same_share_in_every_set(tmp_path: Path):
    data = prepared(write(tmp_path / "reviews.csv"), stratify=True)
    for role in ("valid", "test"):
        assert sum(row[-1] == "b" for row in data.held_out[role]) == pytest.approx(58 / 3, abs=1)


def test_the_column_of_the_split_is_not_taken_for_a_text(tmp_path: Path):
    records = [{"who": record["author"], "what": record["text"], "how": record["label"]} for record in RECORDS]
    path = write(tmp_path / "reviews.csv", records)
    texts = texts_of(prepared(path, group="who", header=True))
    assert {text for some in texts.values() for text in some} == set(AUTHORS)
    assert detect_task(DataConfig(train=[str(path)], group="who", header=True))[0] == "text-classification"


@pytest.mark.parametrize("group", ["1", 1])
def test_rows_in_memory_have_columns_by_number(group: str | int):
    rows = [tuple(record.values()) for record in RECORDS]
    texts = texts_of(prepared(rows, group=group, columns=["3", "4"]))
    authors = [{AUTHORS[text] for text in some} for some in texts.values()]
    assert sum(map(len, authors)) == 29
    dated = [(text, "x" + text, date.fromisoformat(DATES[text])) for text in AUTHORS]
    days = texts_of(prepared(dated, "seq2seq", order=3))
    assert max(DATES[text] for text in days["train"]) < min(DATES[text] for text in days["valid"])


def test_rows_in_memory_without_another_column_are_an_error():
    pairs = [(record["text"], record["label"]) for record in RECORDS]
    assert "2 columns" in error_of(pairs, "seq2seq", group=2)
    rows = [(record["text"], record["label"], record["author"]) for record in RECORDS]
    assert "has no column 9" in error_of(rows, group=9, columns=["1", "2"])


def test_the_cache_depends_on_how_rows_are_split(tmp_path: Path, cache: Path):
    path = write(tmp_path / "reviews.csv")
    ways = [{}, {"group": "author"}, {"stratify": True}, {"order": "date"}, {"order": "rows"},
            {"group": "author", "stratify": True}]  # fmt: skip
    for number, way in enumerate(ways, 1):
        prepared(path, **way)
        prepared(path, **way)
        assert len(list(cache.iterdir())) == number


def test_shots_are_drawn_from_the_training_rows_of_any_split(tmp_path: Path):
    path = write(tmp_path / "reviews.csv")
    for way in ({"group": "author"}, {"stratify": True}, {"order": "date"}):
        whole, few = (prepared(path, "text-classification", shots=number, **way) for number in (None, 3))
        assert len(few.train) == 6
        assert few.held_out == whole.held_out
        assert set(texts_of(few)["train"]) < set(texts_of(whole)["train"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("soon", "no number and no date"),
        ("2024", "a number in date"),
        (" ", "an empty date"),
    ],
)
def test_invalid_times_are_located_and_can_be_skipped(tmp_path: Path, value: str, message: str):
    records = [{**record, "date": value} if i in (2, 7) else record for i, record in enumerate(RECORDS)]
    path = write(tmp_path / "reviews.csv", records)
    with pytest.raises(BadRowsError, match=rf"2 of 290 rows of reviews\.csv have {message}.*: lines 4, 9"):
        prepared(path, order="date", skip_bad=False)
    data = prepared(path, order="date")
    assert sum(map(len, texts_of(data).values())) == 288


def test_a_row_without_a_group_is_a_bad_row(tmp_path: Path):
    records = [{**record, "author": ""} if i == 5 else record for i, record in enumerate(RECORDS)]
    path = write(tmp_path / "reviews.csv", records)
    message = error_of(path, group="author", skip_bad=False)
    assert all(part in message for part in ("1 of 290 rows", "reviews.csv", "author", "line 7"))


def test_rows_of_two_sets_in_a_split_by_time_are_reported(tmp_path: Path):
    earliest = sorted(RECORDS, key=lambda record: record["date"])[:5]
    path = write(tmp_path / "reviews.csv", [*RECORDS, *({**record, "date": "2025-01-01"} for record in earliest)])
    (note,) = [note for note in prepared(path, order="date").notes if "5 of the 59 test rows" in note]
    assert "training rows" in note
    assert not any("test rows" in note for note in prepared(path).notes)


@pytest.mark.parametrize(
    ("task", "settings", "error", "message"),
    [
        ("text-classification", {"group": "autor"}, DataError, "no column 'autor'.* did you mean 'author'"),
        ("text-classification", {"order": "text"}, DataError, "290 of 290 rows .* no number and no date"),
        ("seq2seq", {"stratify": True}, ConfigError, "one label each"),
        ("text-classification", {"group": "author", "valid": True}, ConfigError, "validation"),
    ],
)
def test_splits_that_are_impossible_are_errors(tmp_path: Path, task: str, settings, error, message: str):
    path = write(tmp_path / "reviews.csv")
    with pytest.raises(error, match=message):
        prepared(path, task, **{**settings, **({"valid": [str(path)]} if "valid" in settings else {})})


def test_rows_with_several_labels_are_not_stratified(tmp_path: Path):
    rows = [(record["text"], "a,b" if record["label"] == "a" else "b") for record in RECORDS]
    task = find_task("text-classification")
    settings = task.Settings.draft({"tokenizer": "characters", "label_separator": ","})
    with pytest.raises(ConfigError, match=r"data\.stratify .*'a,b'"):
        task(settings).prepare(DataConfig(train=[IN_MEMORY], stratify=True), rows)


def test_aligned_files_have_no_columns(tmp_path: Path):
    for name in ("a.de", "a.en"):
        (tmp_path / name).write_text("line\n" * 50)
    config = DataConfig(train=[str(tmp_path / name) for name in ("a.de", "a.en")], group="author")
    task = find_task("seq2seq")
    with pytest.raises(DataError, match=r"a\.de and a\.en.*'author'"):
        task(task.Settings.draft({"tokenizer": "characters"})).prepare(config)


def squad(num_articles: int = 20) -> dict:
    def paragraph(article: int, number: int) -> dict:
        context = f"Town {article} has river {number}."
        answer = {"text": f"river {number}", "answer_start": context.index("river")}
        return {"context": context, "qas": [{"id": f"{article}.{number}", "question": "What has it?",
                                             "answers": [answer]}]}  # fmt: skip

    return {"data": [{"title": f"Town {article}", "paragraphs": [paragraph(article, number) for number in range(5)]}
                     for article in range(num_articles)]}  # fmt: skip


def test_questions_of_an_article_are_in_one_set(tmp_path: Path):
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(squad()))
    data = prepared(path, "question-answering", group="title")
    articles = {role: {row[0].partition(" has")[0] for row in some} for role, some in data.held_out.items()}
    assert {role: len(some) for role, some in articles.items()} == {"valid": 4, "test": 4}
    assert [len(data.held_out[role]) for role in ("valid", "test")] == [20, 20]
    assert any("title: 12 of 20" in note for note in data.notes)
    ordered = prepared(path, "question-answering", order="rows")
    assert {row[0].partition(" has")[0] for row in ordered.held_out["test"]} == {f"Town {n}" for n in range(16, 20)}
    message = error_of(path, "question-answering", group="author")
    assert "'title'" in message
    assert "data.group = 'author'" in message


@pytest.mark.parametrize(("start", "ending"), [("-DOCSTART- O\n\n", "conll"), ("# newdoc id = {}\n", "conllu")])
def test_sentences_of_a_document_are_in_one_set(tmp_path: Path, start: str, ending: str):
    def line(document: int, number: int) -> str:
        word = f"word{document}x{number}"
        return f"1\t{word}\t_\tNOUN" + "\t_" * 6 if ending == "conllu" else f"{word} {'AB'[number % 2]}"

    documents = [
        start.format(document) + "".join(f"{line(document, number)}\n\n" for number in range(7))
        for document in range(20)
    ]
    path = tmp_path / f"words.{ending}"
    path.write_text("".join(documents).replace("NOUN", "VERB", 40))
    data = prepared(path, "token-classification", group="document")
    found = {role: {row[0].partition("x")[0] for row in some} for role, some in data.held_out.items()}
    assert {role: len(some) for role, some in found.items()} == {"valid": 4, "test": 4}
    assert [len(data.held_out[role]) for role in ("valid", "test")] == [28, 28]
    assert any("document: 12 of 20" in note for note in data.notes)
    path.write_text(path.read_text().replace("-DOCSTART- O", "").replace("# newdoc", "# sent"))
    assert f"and words.{ending} has none" in error_of(path, "token-classification", group="document")


def test_documents_are_split_by_a_column_of_their_table(tmp_path: Path):
    records = [{key: record[key] for key in ("author", "date", "text")} for record in RECORDS]
    path = write(tmp_path / "texts.csv", records)
    data = prepared(path, "language-modeling", group="author")
    authors = {role: {AUTHORS[text] for (text,) in some} for role, some in data.held_out.items()}
    assert all(authors.values())
    assert authors["valid"].isdisjoint(authors["test"])
    assert any("author:" in note for note in data.notes)
    days = {role: [DATES[text] for (text,) in some] for role, some in prepared(
        path, "language-modeling", order="date").held_out.items()}  # fmt: skip
    assert max(days["valid"]) < min(days["test"])
    assert "data.stratify" in error_of(path, "language-modeling", stratify=True)


def test_running_text_is_split_by_position(tmp_path: Path):
    path = tmp_path / "play.txt"
    path.write_text("a line of a play\n" * 500)
    assert "data.order" in error_of(path, "language-modeling", order="rows")
    assert "data.group" in error_of(path, "language-modeling", group="author")


def test_images_of_a_table_are_split_by_a_column(tmp_path: Path):
    records = []
    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        records.append({"image": f"{number}.png", "label": "ab"[number % 2], "camera": f"camera {number % 10}"})
    path = write(tmp_path / "images.csv", records)
    size = {"image": {"size": 8, "patch_size": 4}}
    data = prepared(path, "image-classification", group="camera", **size)
    cameras = {role: {int(Path(row[0]).stem) % 10 for row in some} for role, some in data.held_out.items()}
    assert {role: len(some) for role, some in cameras.items()} == {"valid": 2, "test": 2}
    assert cameras["valid"].isdisjoint(cameras["test"])
    write(path, [{**record, "camera": f"camera {number // 4}"} for number, record in enumerate(records)])
    other = prepared(path, "image-classification", group="camera", **size)
    assert {len({int(Path(row[0]).stem) // 4 for row in some}) for some in other.held_out.values()} == {2}
    even = prepared(path, "image-classification", stratify=True, **size)
    assert [sum(row[-1] == "a" for row in even.held_out[role]) for role in ("valid", "test")] == [4, 4]
