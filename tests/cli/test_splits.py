"""`data.group`, `data.stratify` and `data.order` of `regard train`, on a table with authors and dates."""

import csv
from datetime import date, timedelta
from pathlib import Path

import pytest

from regard.runs.folder import RunFolder

SMALL = ["--set", "model.model_dim=16", "--set", "model.num_layers=1", "--tokenizer", "characters", "--device", "cpu",
         "--steps", 1, "--set", "data.splits=[0.6, 0.2, 0.2]"]  # fmt: skip
RECORDS = {
    f"{'good' if number % 3 else 'bad'} film number {number}": (
        f"author {number % 17}",
        str(date(2021, 1, 1) + timedelta(days=(number * 29) % 101)),
    )
    for number in range(204)
}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["author", "date", "text", "label"])
        writer.writerows([*RECORDS[text], text, text.partition(" ")[0]] for text in RECORDS)
    return path


def validation_texts(run: Path) -> list[str]:
    return [text for text, _ in RunFolder(run).read_held_out("valid")]


def test_a_table_of_reviews_is_split_by_author(regard, reviews: Path, tmp_path: Path):
    answer = regard("train", reviews, "--out", tmp_path / "run", "--set", "data.group=author", *SMALL).succeeds()
    assert "split by author: 11 of 17 authors for training, 3 for validation, 3 for the test" in answer.err
    texts = validation_texts(tmp_path / "run")
    authors = {RECORDS[text][0] for text in texts}
    assert len(authors) == 3
    assert len(texts) == sum(author in authors for author, _ in RECORDS.values()) == 36
    again = regard("evaluate", tmp_path / "run", reviews, "--json", "-q").succeeds()
    assert "accuracy" in again.out  # a file is judged without the column that rows were split by


def test_a_table_of_reviews_is_split_by_time(regard, reviews: Path, tmp_path: Path):
    answer = regard("train", reviews, "--out", tmp_path / "run", "--set", "data.order=date", *SMALL).succeeds()
    assert "split in the order of date: 2021-01-01 to 2021-0" in answer.err
    dates = sorted(RECORDS[text][1] for text in validation_texts(tmp_path / "run"))
    told = f"{dates[0]} to {dates[-1]} for validation"
    assert told in answer.err
    first_of_test = str(date.fromisoformat(dates[-1]) + timedelta(days=1))
    assert f"{first_of_test} to 2021-04-11 for the test" in answer.err


def test_labels_keep_their_shares(regard, reviews: Path, tmp_path: Path):
    answer = regard("train", reviews, "--out", tmp_path / "run", "--set", "data.stratify=true", *SMALL).succeeds()
    assert "split within each label, so that its share is the same in every set" in answer.err
    texts = validation_texts(tmp_path / "run")
    assert len(texts) == 41
    assert abs(sum(text.startswith("bad") for text in texts) - 41 / 3) <= 1


def test_the_settings_say_what_they_mean(regard):
    told = regard("settings").succeeds().out
    for name in ("# group =", "stratify = false", "# order ="):
        assert name in told
    assert "Split by time: the first rows are for training" in told


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["data.group=author", "data.order=date"], ["got data.order = 'date' and data.group = 'author'"]),
        (["data.order=date", "data.stratify=true"], ["got data.order = 'date' and data.stratify"]),
        (["data.group=authors"], ["reviews.csv has no column 'authors'", "did you mean 'author'?"]),
        (["data.order=author"], ["204 of 204 rows", "no number and no date as 2024-05-31 in author: lines 2, 3"]),
    ],
)
def test_what_cannot_be_split_so_is_told(regard, reviews: Path, tmp_path: Path, options, parts):
    given = [part for option in options for part in ("--set", option)]
    regard("train", reviews, "--out", tmp_path / "run", "-q", *given, *SMALL).fails_with(*parts)
    assert not (tmp_path / "run").exists()
