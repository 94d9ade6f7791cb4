"""What rows are split by is read beside what a task needs, from every source, and reaches no task."""

import csv
import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.errors import BadRowsError, ConfigError, DataError, RegardError
from regard.tasks import find_task, guess_task

AUTHORS = {f"text number {i}": f"author {chr(0x4E00 + i % 29)}" for i in range(290)}
"""Who wrote what; every author has a letter that occurs nowhere else."""
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


def prepared(data: Path | list, task: str = "classification", **settings) -> Prepared:
    rows = data if isinstance(data, list) else None
    given = {"train": ["(rows in memory)" if rows is not None else str(data)], "tokenizer": "characters"}
    return find_task(task).prepare(DataConfig.read({"splits": SPLITS, **given, **settings}), rows)


def texts_of(data: Prepared) -> dict[str, list[str]]:
    """The texts of each set."""
    rows = [data.train.sequences(0, [row])[0].tolist() for row in range(len(data.train))]
    held_out = {role: [row[0] for row in some] for role, some in data.held_out.items()}
    return {"train": [text.strip() for text in data.tokenizer.decode(rows)], **held_out}


def refusal(*arguments, **settings) -> str:
    with pytest.raises(RegardError) as caught:
        prepared(*arguments, **settings)
    return str(caught.value)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("group", ["author", 1])
def test_a_group_stays_together_in_every_format_and_is_never_read(tmp_path: Path, ending: str, group: str | int):
    data = prepared(write(tmp_path / f"reviews.{ending}"), group=group)
    texts = texts_of(data)
    authors = {role: {AUTHORS[text] for text in some} for role, some in texts.items()}
    assert all(authors.values())
    assert sum(map(len, authors.values())) == 29
    assert sorted(text for some in texts.values() for text in some) == sorted(AUTHORS)
    assert {len(row) for some in data.held_out.values() for row in some} == {2}
    assert not any(ord(letter) > 127 for letter in data.tokenizer.to_json() if letter != "▁")
    assert any(note.startswith(f"split by author: {len(authors['train'])} of 29 authors to") for note in data.notes)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_time_decides_in_every_format(tmp_path: Path, ending: str):
    data = prepared(write(tmp_path / f"reviews.{ending}"), order="date")
    days = {role: [DATES[text] for text in some] for role, some in texts_of(data).items()}
    assert max(days["train"]) < min(days["valid"]) <= max(days["valid"]) < min(days["test"])
    assert any("split in the order of date: 2024-01-01 to" in note for note in data.notes)


def test_the_order_of_the_file_may_be_that_of_time(tmp_path: Path):
    texts = texts_of(prepared(write(tmp_path / "reviews.csv"), order="rows"))
    assert [text for role in ("train", "valid", "test") for text in sorted(texts[role], key=list(AUTHORS).index)] == [
        *AUTHORS
    ]


def test_labels_keep_their_shares_in_what_is_prepared(tmp_path: Path):
    data = prepared(write(tmp_path / "reviews.csv"), stratify=True)
    for role in ("valid", "test"):
        assert sum(row[-1] == "b" for row in data.held_out[role]) == pytest.approx(58 / 3, abs=1)


def test_the_column_to_split_by_is_not_taken_for_a_text(tmp_path: Path):
    records = [{"who": record["author"], "what": record["text"], "how": record["label"]} for record in RECORDS]
    path = write(tmp_path / "reviews.csv", records)
    texts = texts_of(prepared(path, group="who", header=True))
    assert {text for some in texts.values() for text in some} == set(AUTHORS)
    assert guess_task(DataConfig.read({"train": [str(path)], "group": "who", "header": True})) == "classification"


@pytest.mark.parametrize("group", ["1", 1])
def test_rows_in_memory_have_columns_by_number(group: str | int):
    rows = [tuple(record.values()) for record in RECORDS]
    texts = texts_of(prepared(rows, group=group, columns=["3", "4"]))
    authors = [{AUTHORS[text] for text in some} for some in texts.values()]
    assert sum(map(len, authors)) == 29
    dated = [(text, "x" + text, date.fromisoformat(DATES[text])) for text in AUTHORS]
    days = texts_of(prepared(dated, "translation", order=3))
    assert max(DATES[text] for text in days["train"]) < min(DATES[text] for text in days["valid"])


def test_rows_in_memory_without_a_column_to_spare_are_told():
    pairs = [(record["text"], record["label"]) for record in RECORDS]
    assert "rows have 2 columns, and source, target take all" in refusal(pairs, "translation", group=2)
    rows = [(record["text"], record["label"], record["author"]) for record in RECORDS]
    assert "has no column 9" in refusal(rows, group=9, columns=["1", "2"])


def test_the_cache_depends_on_how_rows_are_split(tmp_path: Path, cache: Path):
    path = write(tmp_path / "reviews.csv")
    ways = [{}, {"group": "author"}, {"stratify": True}, {"order": "date"}, {"order": "rows"},
            {"group": "author", "stratify": True}]  # fmt: skip
    for number, way in enumerate(ways, 1):
        prepared(path, **way)
        prepared(path, **way)
        assert len(list(cache.iterdir())) == number


def test_few_rows_are_drawn_from_the_training_rows_of_any_way(tmp_path: Path):
    path = write(tmp_path / "reviews.csv")
    for way in ({"group": "author"}, {"stratify": True}, {"order": "date"}):
        whole, few = (prepared(path, "classification", few=number, **way) for number in (None, 3))
        assert len(few.train) == 6
        assert few.held_out == whole.held_out
        assert set(texts_of(few)["train"]) < set(texts_of(whole)["train"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("soon", "2 of 290 rows of reviews.csv have no number and no date as 2024-05-31 in date: lines 4, 9"),
        ("2024", "2 of 290 rows of reviews.csv have a number in date where the first row has a date: lines 4, 9"),
        (" ", "2 of 290 rows of reviews.csv have an empty date: lines 4, 9"),
    ],
)
def test_bad_times_are_told_with_their_lines_and_can_be_skipped(tmp_path: Path, value: str, message: str):
    records = [{**record, "date": value} if i in (2, 7) else record for i, record in enumerate(RECORDS)]
    path = write(tmp_path / "reviews.csv", records)
    with pytest.raises(BadRowsError) as caught:
        prepared(path, order="date")
    assert str(caught.value) == message
    data = prepared(path, order="date", skip_bad=True)
    assert sum(map(len, texts_of(data).values())) == 288


def test_a_row_without_a_group_is_a_bad_row(tmp_path: Path):
    records = [{**record, "author": ""} if i == 5 else record for i, record in enumerate(RECORDS)]
    path = write(tmp_path / "reviews.csv", records)
    assert refusal(path, group="author") == "1 of 290 rows of reviews.csv has an empty author: line 7"


def test_what_is_in_two_sets_because_time_decides_is_told(tmp_path: Path):
    earliest = sorted(RECORDS, key=lambda record: record["date"])[:5]
    path = write(tmp_path / "reviews.csv", [*RECORDS, *({**record, "date": "2025-01-01"} for record in earliest)])
    told = [note for note in prepared(path, order="date").notes if "flatter" in note]
    assert told == ["5 of the 59 test rows are training rows too: scores on them flatter the model"]
    assert not any("flatter" in note for note in prepared(path).notes)


@pytest.mark.parametrize(
    ("task", "settings", "error", "message"),
    [
        ("classification", {"group": "autor"}, DataError, "no column 'autor'.* did you mean 'author'"),
        ("classification", {"order": "text"}, DataError, "290 of 290 rows .* no number and no date"),
        ("translation", {"stratify": True}, ConfigError, "one label each, which these have not"),
        ("classification", {"group": "author", "valid": True}, ConfigError, "there are validation rows of their own"),
    ],
)
def test_what_cannot_be_split_so_is_told(tmp_path: Path, task: str, settings, error, message: str):
    path = write(tmp_path / "reviews.csv")
    with pytest.raises(error, match=message):
        prepared(path, task, **{**settings, **({"valid": [str(path)]} if "valid" in settings else {})})


def test_lines_have_no_columns(tmp_path: Path):
    for name in ("a.de", "a.en"):
        (tmp_path / name).write_text("line\n" * 50)
    config = DataConfig.read({"train": [str(tmp_path / name) for name in ("a.de", "a.en")], "group": "author"})
    with pytest.raises(DataError, match=r"a.de and a.en has no column 'author' to split by: it is read as aligned"):
        find_task("translation").prepare(config)


def squad(num_articles: int = 20) -> dict:
    def paragraph(article: int, number: int) -> dict:
        context = f"Town {article} has river {number}."
        answer = {"text": f"river {number}", "answer_start": context.index("river")}
        return {"context": context, "qas": [{"id": f"{article}.{number}", "question": "What has it?",
                                             "answers": [answer]}]}  # fmt: skip

    return {"data": [{"title": f"Town {article}", "paragraphs": [paragraph(article, number) for number in range(5)]}
                     for article in range(num_articles)]}  # fmt: skip


def test_questions_stay_with_their_article(tmp_path: Path):
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(squad()))
    data = prepared(path, "answering", group="title")
    articles = {role: {row[0].partition(" has")[0] for row in some} for role, some in data.held_out.items()}
    assert {role: len(some) for role, some in articles.items()} == {"valid": 4, "test": 4}
    assert [len(data.held_out[role]) for role in ("valid", "test")] == [20, 20]
    assert any(note.startswith("split by title: 12 of 20 titles to train on") for note in data.notes)
    ordered = prepared(path, "answering", order="rows")
    assert {row[0].partition(" has")[0] for row in ordered.held_out["test"]} == {f"Town {n}" for n in range(16, 20)}
    assert "data.group may be 'title' and data.order 'rows', got data.group = 'author'" in refusal(
        path, "answering", group="author"
    )


@pytest.mark.parametrize(("start", "ending"), [("-DOCSTART- O\n\n", "conll"), ("# newdoc id = {}\n", "conllu")])
def test_sentences_stay_with_their_document(tmp_path: Path, start: str, ending: str):
    def line(document: int, number: int) -> str:
        word = f"word{document}x{number}"
        return f"1\t{word}\t_\tNOUN" + "\t_" * 6 if ending == "conllu" else f"{word} {'AB'[number % 2]}"

    documents = [
        start.format(document) + "".join(f"{line(document, number)}\n\n" for number in range(7))
        for document in range(20)
    ]
    path = tmp_path / f"words.{ending}"
    path.write_text("".join(documents).replace("NOUN", "VERB", 40))
    data = prepared(path, "tagging", group="document")
    found = {role: {row[0].partition("x")[0] for row in some} for role, some in data.held_out.items()}
    assert {role: len(some) for role, some in found.items()} == {"valid": 4, "test": 4}
    assert [len(data.held_out[role]) for role in ("valid", "test")] == [28, 28]
    assert any(note.startswith("split by document: 12 of 20 documents to") for note in data.notes)
    path.write_text(path.read_text().replace("-DOCSTART- O", "").replace("# newdoc", "# sent"))
    assert f"and words.{ending} has none" in refusal(path, "tagging", group="document")


def test_documents_are_split_by_a_column_of_their_table(tmp_path: Path):
    records = [{key: record[key] for key in ("author", "date", "text")} for record in RECORDS]
    path = write(tmp_path / "texts.csv", records)
    data = prepared(path, "language", group="author")
    authors = {role: {AUTHORS[text] for (text,) in some} for role, some in data.held_out.items()}
    assert all(authors.values())
    assert authors["valid"].isdisjoint(authors["test"])
    assert any(note.startswith("split by author:") for note in data.notes)
    days = {role: [DATES[text] for (text,) in some] for role, some in prepared(
        path, "language", order="date").held_out.items()}  # fmt: skip
    assert max(days["valid"]) < min(days["test"])
    assert "which these have not" in refusal(path, "language", stratify=True)


def test_running_text_is_divided_by_position_already(tmp_path: Path):
    path = tmp_path / "play.txt"
    path.write_text("a line of a play\n" * 500)
    assert "data.order is for many documents by themselves" in refusal(path, "language", order="rows")
    assert "data.group is for many documents by themselves" in refusal(path, "language", group="author")


def test_pictures_of_a_table_are_split_by_a_column(tmp_path: Path):
    records = []
    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        records.append({"picture": f"{number}.png", "label": "ab"[number % 2], "camera": f"camera {number % 10}"})
    path = write(tmp_path / "pictures.csv", records)
    form = {"picture": {"size": 8, "patch_size": 4}}
    data = prepared(path, "recognition", group="camera", **form)
    cameras = {role: {int(Path(row[0]).stem) % 10 for row in some} for role, some in data.held_out.items()}
    assert {role: len(some) for role, some in cameras.items()} == {"valid": 2, "test": 2}
    assert cameras["valid"].isdisjoint(cameras["test"])
    write(path, [{**record, "camera": f"camera {number // 4}"} for number, record in enumerate(records)])
    other = prepared(path, "recognition", group="camera", **form)
    assert {len({int(Path(row[0]).stem) // 4 for row in some}) for some in other.held_out.values()} == {2}
    even = prepared(path, "recognition", stratify=True, **form)
    assert [sum(row[-1] == "a" for row in even.held_out[role]) for role in ("valid", "test")] == [4, 4]
