"""Which task a source is for, by its files, columns and rows; and that data of no task is an error."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.data.settings import DataConfig
from regard.data.sources import NamedRows
from regard.errors import ConfigError, DataError, UnknownTaskError
from regard.runs.train import train
from regard.tasks import TaskSettings, detect_task, find_task, make_task

LISTED = ("food", "service", "food,service", "price", "food,price,service")
LABELED = "".join(f"a film {number}\t{'yes' if number % 2 else 'no'}\n" for number in range(40))
DAYS = [f"2024-{month:02}-{day:02}" for month in range(1, 7) for day in range(1, 11)]


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def images(folder: Path, number: int = 30) -> list[str]:
    """Paths of images, which are all the same."""
    folder.mkdir()
    for place in range(number):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / f"{place}.png")
    return [f"{folder.name}/{place}.png" for place in range(number)]


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("a.tsv", "label\tsentence\n0\tbad film\n1\tgood film\n", "text-classification"),
        ("b.csv", "text,sentiment\nbad film,0\ngood film,1\n", "text-classification"),
        ("c.tsv", LABELED, "text-classification"),
        ("d.csv", "text,category\ngood soup,food\nrude waiter,service\n", "text-classification"),
        ("e.tsv", "question1\tquestion2\tis_duplicate\nwho?\twhom?\t1\nwhy?\twhen?\t0\n", "text-classification"),
        ("a.tsv", "".join(f"{number}\tnumber {number}\n" for number in range(40)), "seq2seq"),
        ("b.tsv", "eins\tone\nzwei\ttwo\n", "seq2seq"),
        ("b.csv", "anchor,positive\na cat,a kitten\na dog,a puppy\n", "sentence-embedding"),
        ("c.csv", "id,positive,anchor,negative\n7,a cat,a kitten,a car\n3,a dog,a puppy,a day\n", "sentence-embedding"),
        ("c.txt", "eins\tone\nzwei\ttwo\n", "seq2seq"),
        ("d.jsonl", '{"de": "eins", "en": "one"}\n', "seq2seq"),
        ("a.txt", "Once upon a time\nthere was a file.\n", "language-modeling"),
        ("b.jsonl", '{"text": "one"}\n{"text": "two"}\n', "language-modeling"),
        ("c.jsonl", '{"id": "1", "text": "one"}\n{"id": "2", "text": "two"}\n', "language-modeling"),
        ("d.tsv", "text\nonce upon a time\nthere was a table\n", "language-modeling"),
        ("e.csv", 'text\n"once, upon a time"\nthere was a table\n', "language-modeling"),
        ("a.tsv", "text\taspect\tlabel\ngood soup\tfood\t+\nrude waiter\tservice\t-\n", "aspect-sentiment"),
        ("b.csv", "review,category,sentiment\ngood soup,food,+\nrude waiter,service,-\n", "aspect-sentiment"),
        ("c.jsonl", '{"sentence": "good soup", "target": "soup", "polarity": "+"}\n', "aspect-sentiment"),
        ("d.xml.xz", "", "aspect-sentiment"),
        ("a.conll", "", "token-classification"),
        ("b.jsonl", '{"tokens": "a b", "ner_tags": "O O"}\n', "token-classification"),
        ("a.json", '{"data": [\n{"paragraphs": []}]}', "question-answering"),
        ("b.jsonl", '{"question": "q", "context": "c", "answers": "c"}\n', "question-answering"),
    ],
)
def test_a_file_is_recognized(tmp_path: Path, name: str, text: str, task: str):
    found, detection = detect_task(DataConfig(train=[write(tmp_path, name, text)]))
    assert found == task == find_task(found).name
    assert detection.reason


def test_rows_in_memory_and_built_in_data_are_recognized():
    rows: list[tuple[Any, str]] = [
        ([("eins", "one")], "seq2seq"),
        ([("eins",)], "language-modeling"),
        (["eins", "zwei"], "language-modeling"),
        ([(["a", "b"], ["O", "O"])], "token-classification"),
        ([(f"text {number}", "ab"[number % 2]) for number in range(40)], "text-classification"),
        ([(f"text {number}", f"other {number}", "ab"[number % 2]) for number in range(40)], "text-classification"),
    ]
    for given, task in rows:
        assert detect_task(DataConfig(), given)[0] == task
    assert detect_task(DataConfig(train=["dates"]))[0] == "seq2seq"


@pytest.mark.parametrize(
    ("rows", "task"),
    [
        ([{"id": 1, "label": "yes", "text": "a"}, {"id": 2, "label": "no", "text": "b"}], "text-classification"),
        ([{"premise": "a", "hypothesis": "b", "label": 1}, {"premise": "c", "hypothesis": "d", "label": 0}],
         "text-classification"),
        ([{"de": "Hallo", "en": "Hello"}, {"de": "Welt", "en": "world"}], "seq2seq"),
        ([{"tokens": ["Ada", "sang"], "ner_tags": ["B-PER", "O"]}] * 2, "token-classification"),
    ],
)  # fmt: skip
def test_rows_with_names_are_read_by_their_names(rows: list[dict[str, Any]], task: str):
    named = NamedRows(rows)
    assert detect_task(DataConfig(), named)[0] == task
    opened = make_task(TaskSettings(name=task)).open(DataConfig(), named).train
    wanted = {
        "text-classification": [["premise", "hypothesis", "label"], ["text", "label"]],
        "seq2seq": [["de", "en"]],
        "token-classification": [["tokens", "ner_tags"]],
    }
    (columns,) = [names for names in wanted[task] if set(names) <= set(rows[0])]
    cells = [rows[0][name] for name in columns]
    assert next(iter(opened)).values == tuple(" ".join(c) if isinstance(c, list) else str(c) for c in cells)


def test_images_with_labels_are_recognized(tmp_path: Path):
    paths = images(tmp_path / "images")
    table = "".join(f"{path},{'cat' if place % 2 else 'dog'}\n" for place, path in enumerate(paths))
    assert (
        detect_task(DataConfig(train=[write(tmp_path, "t.csv", f"image,label\n{table}")]))[0] == "image-classification"
    )
    folder = tmp_path / "images"
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        (folder / "0.png").rename(folder / label / "0.png")
        images(tmp_path / f"more-{label}", 1)
        (tmp_path / f"more-{label}" / "0.png").rename(folder / "0.png")
    assert detect_task(DataConfig(train=[str(folder)]))[0] == "image-classification"


SERIES = {
    "two columns": (["date", "temperature"], [(day, f"{place / 7:.2f}") for place, day in enumerate(DAYS)]),
    "whole numbers": (["date", "visitors"], [(day, str(17 * place)) for place, day in enumerate(DAYS)]),
    "several series": (
        ["date", "temperature", "wind"],
        [(day, f"{place / 7:.2f}", f"{place % 5}.5") for place, day in enumerate(DAYS)],
    ),
    "times": (["time", "load"], [(f"{day}T12:00", f"{place / 7:.2f}") for place, day in enumerate(DAYS)]),
    "numbers alone": (["x", "y"], [(f"{place / 3:.3f}", f"{place / 7:.3f}") for place in range(60)]),
    "numbers first": (["temperature", "date"], [(f"{place / 7:.2f}", day) for place, day in enumerate(DAYS)]),
    "few values": (["date", "rain"], [(day, f"{place % 2}.5") for place, day in enumerate(DAYS)]),
}


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("name", SERIES)
def test_a_table_of_dates_and_numbers_is_a_series_and_numbers_alone_are_an_error(
    tmp_path: Path, name: str, suffix: str, has_header: bool
):
    header, rows = SERIES[name]
    separator = "," if suffix == "csv" else "\t"
    lines = [separator.join(row) for row in ([header] if has_header else []) + rows]
    path = write(tmp_path, f"series.{suffix}", "\n".join(lines) + "\n")
    if name != "numbers alone":
        assert detect_task(DataConfig(train=[path]))[0] == "forecasting"
        return
    with pytest.raises(DataError) as error:
        train(path, out=tmp_path / "run", steps=1, show_progress=False)
    assert f"series.{suffix}" in str(error.value)
    assert "numbers" in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("column", ["caption", "text", "sentence"])
@pytest.mark.parametrize("has_header", [True, False])
def test_a_table_of_images_and_captions_is_recognized(tmp_path: Path, column: str, has_header: bool):
    rows = [f"{path},a picture of thing number {place}" for place, path in enumerate(images(tmp_path / "images"))]
    lines = [f"image,{column}", *rows] if has_header else rows
    path = write(tmp_path, "captions.csv", "\n".join(lines) + "\n")
    config = DataConfig(train=[str(path)])
    assert detect_task(config)[0] == "captioning"
    found = make_task(find_task("captioning").Settings(name="captioning")).open(config).train.rows
    assert [text for _, text in found] == [row.partition(",")[2] for row in rows]


def test_an_unknown_task_names_the_nearest_and_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="text-classification"):
        find_task("text-clasification")
    with pytest.raises(DataError, match=r"none\.txt"):
        detect_task(DataConfig(train=[str(tmp_path / "none.txt")]))


TENS = ["", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ONES = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def spelled(number: int) -> str:
    hundreds = f"{ONES[number // 100]} hundred" if number >= 100 else ""
    return " ".join(filter(None, [hundreds, TENS[number // 10 % 10], ONES[number % 10]]))


def texts(values: list[Any], separator: str = "\t", header: str = "") -> str:
    """A table with a text and a value in each row."""
    return header + "".join(f"a review of {place}{separator}{value}\n" for place, value in enumerate(values))


VALUES = {
    "decimals": [f"{place / 7:.2f}" for place in range(60)],
    "decimal commas": [f"{place / 7:.2f}".replace(".", ",") for place in range(60)],
    "half stars": [f"{1 + place % 9 / 2}" for place in range(90)],
    "percentages": [place * 37 % 101 for place in range(80)],
    "years": [1980 + place * 7 % 31 for place in range(310)],
    "with a missing one": [*(f"{place / 7:.2f}" for place in range(60)), "n/a"],
    "mixed marks": [*(f"{place / 7:.2f}" for place in range(60)), "3,5"],
}


@pytest.mark.parametrize("header", ["", "review\tscore\n", "\treview\tBewertung\n"])
@pytest.mark.parametrize("name", VALUES)
def test_a_target_of_many_numbers_is_regression(tmp_path: Path, name: str, header: str):
    text = texts(VALUES[name], header="" if header.startswith("\t") else header)
    if header.startswith("\t"):
        text = header + "".join(f"{place}\t{line}\n" for place, line in enumerate(text.splitlines()))
    found, detection = detect_task(DataConfig(train=[write(tmp_path, "data.tsv", text)]))
    assert found == "regression"
    assert "distinct values from" in detection.reason


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("stars.tsv", texts([1 + place % 5 for place in range(100)]), "text-classification"),
        ("whole.tsv", texts([f"{place % 2}.0" for place in range(100)]), "text-classification"),
        ("intents.tsv", texts([place % 77 for place in range(1_000)]), "text-classification"),
        ("intents.tsv", texts([place % 77 for place in range(90)], header="text\tlabel\n"), "text-classification"),
        ("sts.csv", texts([f"{place / 7:.2f}" for place in range(60)], ",", "text,label\n"), "regression"),
        ("pairs.csv", "sentence1,sentence2,score\n" + "".join(f"a {n} b,b {n} a,{n / 7:.2f}\n" for n in range(60)),
         "regression"),
        ("first.csv", "p_np,molecule\n" + "".join(f"{n % 2},C{n}O\n" for n in range(60)), "text-classification"),
        ("goods.tsv", "".join(f"{'abc'[n % 3] * 9}\t{n / 7:.2f}\n" for n in range(60)), "regression"),
        ("spelled.tsv", "".join(f"{spelled(n)}\t{n}\n" for n in range(1, 1_000)), "seq2seq"),
        ("digits.tsv", "".join(f"{n}\t{spelled(n)}\n" for n in range(1, 1_000)), "seq2seq"),
        ("reversed.tsv", "".join(f"{n}\t{str(n)[::-1]}\n" for n in range(100, 999, 7)), "seq2seq"),
    ],
)  # fmt: skip
def test_numbers_that_name_classes_or_are_spelled_are_not_regression(tmp_path: Path, name: str, text: str, task: str):
    assert detect_task(DataConfig(train=[write(tmp_path, name, text)]))[0] == task


def test_rows_in_memory_with_numbers_and_with_names_are_recognized():
    floats = [(f"text {number}", number / 7) for number in range(40)]
    assert detect_task(DataConfig(), floats)[0] == "regression"
    assert (
        detect_task(DataConfig(), [(f"text {number}", number % 3) for number in range(40)])[0] == "text-classification"
    )
    named = NamedRows([{"id": place, "review": text, "score": score} for place, (text, score) in enumerate(floats)])
    assert detect_task(DataConfig(), named)[0] == "regression"
    tagged = NamedRows([{"tokens": ["a", "b"], "ner_tags": ["O", "O"]}])
    assert detect_task(DataConfig(), tagged)[0] == "token-classification"


def test_dates_as_targets_are_text_and_that_is_said(tmp_path: Path):
    path = write(tmp_path, "days.tsv", texts(DAYS, header="review\tday\n"))
    found, detection = detect_task(DataConfig(train=[path]))
    assert found == "seq2seq"
    assert detection.reason == "two columns of text; the targets are dates, which are generated as text"
    path = write(tmp_path, "days.csv", texts(DAYS, ",", "text,day\n"))
    found, detection = detect_task(DataConfig(train=[path]))
    assert (found, detection.reason) == ("language-modeling", "a column of text (text); not used: day")


TABLES = {
    "iris.csv": ("length,width,species", [f"{n / 7:.2f},{n / 3:.2f},{'xyz'[n % 3]}" for n in range(60)],
                 "numbers (length, width) and labels (species)"),
    "named.csv": ("length,width,class", [f"{n / 7:.2f},{n / 3:.2f},{'xyz'[n % 3]}" for n in range(60)],
                  "numbers (length, width) and labels (class)"),
    "whole.csv": ("x,y,z", [f"{n * 7 % 31},{n * 5 % 37},{n % 4}" for n in range(60)], "numbers (x, y, z)"),
    "two.csv": ("x,y", [f"{n * 7 % 31},{n * 5 % 37}" for n in range(60)], "numbers (x, y)"),
    "ids.tsv": ("", [f"{10_000 + n * 7919 % 5000}\tsome text {n}\tother text {n}" for n in range(60)],
                "numbers (column 1) and text (column 2, column 3)"),
    "people.csv": ("height,weight,remark", [f"{n * 7 % 31},{n / 3:.1f},some remark {n}" for n in range(60)],
                   "numbers (height, weight) and text (remark)"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_numbers_is_an_error_that_says_what_was_seen(tmp_path: Path, name: str):
    header, rows, seen = TABLES[name]
    with pytest.raises(UnknownTaskError) as caught:
        detect_task(DataConfig(train=[write(tmp_path, name, "\n".join([header, *rows] if header else rows))]))
    assert str(caught.value).startswith(f"{name} has {seen}; no task recognizes this: name the columns of an input and")
    assert ("a table of features has no sequence" in str(caught.value)) == ("text" not in seen)


def test_columns_that_are_named_decide(tmp_path: Path):
    header, rows, _ = TABLES["people.csv"]
    path = write(tmp_path, "people.csv", "\n".join([header, *rows]))
    for columns in (["remark", "height"], ["remark", "weight"]):
        assert detect_task(DataConfig(train=[path], columns=columns))[0] == "regression"
    assert detect_task(DataConfig(train=[path], columns=["height", "remark"]))[0] == "seq2seq"


def table_of(folder: Path, column: str, cells: Sequence[str]) -> DataConfig:
    rows = [f'"a sentence, number {number} of this table","{cells[number % len(cells)]}"' for number in range(60)]
    return DataConfig(train=[write(folder, "table.csv", "\n".join([f"text,{column}", *rows]) + "\n")])


@pytest.mark.parametrize("separator", [",", ";", "|"])
def test_a_column_that_lists_labels_has_several_in_a_row(tmp_path: Path, separator: str):
    config = table_of(tmp_path, "topics", [each.replace(",", separator) for each in LISTED])
    name, found = detect_task(config)
    assert (name, found.columns) == ("text-classification", ("text", "topics"))
    assert found.settings == {"label_separator": separator}
    assert found.reason == f"several labels in a row (topics, separated by {separator!r})"


@pytest.mark.parametrize(
    ("column", "cells"),
    [("category", ["Paris, France", "Rome, Italy", "Oslo"]), ("remark", LISTED), ("rating", ["1,5", "2,5", "3"])],
)
def test_other_cells_with_commas_are_no_lists_of_labels(tmp_path: Path, column: str, cells: Sequence[str]):
    assert "label_separator" not in detect_task(table_of(tmp_path, column, cells))[1].settings
