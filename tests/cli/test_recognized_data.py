"""Data as spreadsheets write it, from the file to the scores: encodings, decimal commas, index columns, workbooks."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard as library

TEXTS = [f"{'schön' if place % 2 else 'öde'} und {place} Mal gesehen" for place in range(60)]
SMALL = {"model": {"model_dim": 16, "num_heads": 1, "feedforward_dim": 16, "num_layers": 1},
         "task": {"tokenizer": "bytes"}}  # fmt: skip


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """A table as a spreadsheet exports it in Germany, with the index of a data frame."""
    lines = [f"{place};{text};{place % 7 + 0.25 * (place % 2)}".replace(".", ",") for place, text in enumerate(TEXTS)]
    path = tmp_path / "ratings.csv"
    path.write_bytes("\r\n".join([";Text;Note", *lines]).encode("cp1252"))
    return path


def test_a_spreadsheet_of_ratings_is_regression(regard, tiny, ratings: Path, tmp_path: Path):
    answer = regard("train", ratings, "--out", tmp_path / "run", "--steps", 1, *tiny).succeeds()
    for line in [
        "task regression, by the data: numbers in Note",
        "ratings.csv is in Windows-1252\n",
        "as CSV separated by ';' with a header; text = Text, number = Note of 3 columns\n",
        "column 1 of ratings.csv numbers the rows, and is not used\n",
        "numbers in Note have a decimal comma\n",
    ]:
        assert line in answer.err
    assert "sch\u00f6n" in (tmp_path / "run" / "held_out" / "valid.jsonl").read_text()
    other = tmp_path / "other.csv"
    other.write_text("Text;Note\n" + "".join(f"gut {n};{n},5\n" for n in range(9)), encoding="utf-16")
    for options in ([], ["--encoding", "utf-16"]):
        found = json.loads(regard("evaluate", tmp_path / "run", other, *options, "--json").succeeds().out)
        assert found["rows"] == 9
    wrong = regard("evaluate", tmp_path / "run", ratings, "--encoding", "utf-8", "--quiet")
    wrong.fails_with("ratings.csv is not UTF-8", "--encoding names another encoding")


def test_columns_of_0_and_1_are_labels_of_which_a_row_may_have_any_number(regard, tiny, tmp_path: Path):
    names = ["toxic", "rude, or so", "threat"]
    rows = [(text, place % 2, place % 3 == 0, int(place % 10 == 0)) for place, text in enumerate(TEXTS)]
    with open(tmp_path / "train.csv", "w", newline="") as file:
        csv.writer(file).writerows([("comment", *names), *rows])
    run = tmp_path / "run"
    answer = regard("train", tmp_path / "train.csv", "--out", run, "--steps", 1, *tiny).succeeds()
    assert "several columns of 0 and 1 (toxic, rude, or so, threat) for the text in comment" in answer.err
    assert "3 labels: toxic (" in answer.err
    chosen = {text: ";".join(name for name, flag in zip(names, flags, strict=True) if flag) for text, *flags in rows}
    held_out = [json.loads(line) for line in (run / "held_out" / "valid.jsonl").read_text().splitlines()]
    assert all(labels == (chosen[text] or ";") for text, labels in held_out)
    with open(tmp_path / "more.csv", "w", newline="") as file:
        csv.writer(file).writerows([("comment", *names), ("gut", 1, 0, 0), ("so", 0, 0, 0), ("nicht", -1, 0, 0)])
    regard("evaluate", run, tmp_path / "more.csv", "--quiet").fails_with(
        "1 of 3 rows of more.csv has neither 0 nor 1 in toxic: line 4", "--skip-bad"
    )
    scored = regard("evaluate", run, tmp_path / "more.csv", "--skip-bad", "--json").succeeds()
    assert json.loads(scored.out)["rows"] == 2
    (tmp_path / "new.csv").write_text("id,comment\n7,gut\n")
    table = regard("predict", run, "--file", tmp_path / "new.csv").succeeds()
    assert table.out.startswith("id,comment,prediction,probability\n7,gut,")


def test_an_encoding_is_given_to_every_command_that_reads_data(regard, tiny, tmp_path: Path):
    path = tmp_path / "data.tsv"
    lines = [f"всегда хорошие книги {place}\t{'нет' if place % 2 else 'да'}\n" for place in range(60)]
    path.write_bytes("".join(lines).encode("cp1251"))
    (tmp_path / "space.toml").write_text("[train.seed]\nlow = 1\nhigh = 2\n")
    run = tmp_path / "run"
    regard("train", path, "--out", run, "--steps", 1, *tiny, "--quiet").fails_with("data.tsv is not UTF-8")
    encoding = ["--encoding", "windows-1251"]
    options = ["--steps", 1, *tiny, "--set", "data.splits=[0.9,0.05,0.05]"]
    assert "2 labels: да (" in regard("train", path, "--out", run, *options, *encoding).succeeds().err
    # Evaluation reads files as training did.
    assert json.loads(regard("evaluate", run, path, "--json").succeeds().out)["rows"] == 57
    # So does prediction; another suffix is detected, and cannot be here.
    by_training = regard("predict", run, "--file", path, "--columns", 1).succeeds().out
    assert by_training.startswith("всегда хорошие книги 0\t")
    other = path.rename(tmp_path / "data.csv")
    table = ["predict", run, "--file", other, "--columns", 1]
    regard(*table, "--quiet").fails_with("data.csv is not UTF-8", "--encoding names another encoding")
    regard(*table, "--quiet", "--encoding", "windos-1251").fails_with("did you mean 'windows-1251'?")
    rows = library.load(run).predict_table(other, columns=["1"], encoding="windows-1251")
    assert len(rows) == 60
    assert regard(*table, *encoding).succeeds().out.count("всегда") == 60
    objects = tmp_path / "data.jsonl"
    objects.write_bytes('{"text": "книги"}\n'.encode("cp1251"))
    assert library.load(run).predict_table(objects, encoding="windows-1251")[0]["text"] == "книги"
    regard("predict", run, "x", *encoding).fails_with("--encoding needs --file")
    regard("evaluate", run, *encoding, "--quiet").fails_with("encoding is for a file or rows")
    path = other.rename(path)
    options = ["--steps", 1, "--out", tmp_path / "other", "--quiet"]
    for command in (["finetune", run, path], ["compare", path, "--models", "gru,lstm"],
                    ["sweep", path, tmp_path / "space.toml"]):  # fmt: skip
        regard(*command, *options).fails_with("data.tsv is not UTF-8", "--encoding names another encoding")
        regard(*command, *options, "--encoding", "windos-1251").fails_with("did you mean 'windows-1251'?")
    regard("finetune", run, path, *options, *encoding).succeeds()


def test_labels_that_training_did_not_see_count_as_errors_and_are_named(regard, tiny, tmp_path: Path):
    path, other = tmp_path / "data.tsv", tmp_path / "other.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{'ab'[place % 2]}\n" for place, text in enumerate(TEXTS)))
    other.write_text("text\tlabel\n" + "x\tneu\n" * 3 + "y\tfremd\n")
    regard("train", path, "--out", tmp_path / "run", "--steps", 1, *tiny).succeeds()
    answer = regard("evaluate", tmp_path / "run", other, "--json").succeeds()
    warning = "4 rows of other.tsv have a label that no training row has: neu (3), fremd (1); each counts as an error"
    assert answer.err.count("that no training row has") == 1
    assert f"warning: {warning}" in answer.err
    assert json.loads(answer.out)["accuracy"]["value"] == 0.0


def test_tags_that_training_did_not_see_count_as_errors_and_are_named(regard, tiny, tmp_path: Path):
    path, other = tmp_path / "data.conll", tmp_path / "other.conll"
    path.write_text("".join(f"w{place} A\nv{place} B\n\n" for place in range(60)))
    other.write_text("w1 NEW\n\nv1 NEW\nw1 NEW\n")
    regard("train", path, "--out", tmp_path / "run", "--steps", 1, *tiny).succeeds()
    answer = regard("evaluate", tmp_path / "run", other, "--json").succeeds()
    assert "2 rows of other.conll have a tag that no training row has: NEW (3); each counts as an error" in answer.err
    assert json.loads(answer.out)["accuracy"]["value"] == 0.0


def test_bad_rows_are_reported_where_they_are_skipped(regard, tiny, tmp_path: Path):
    path = tmp_path / "data.tsv"
    path.write_text("a b\n" + "".join(f"ein {n}\tone {n}\n" for n in range(60)))
    regard("train", path, "--out", tmp_path / "run", "--steps", 1, *tiny, "--skip-bad").succeeds()
    answer = regard("evaluate", tmp_path / "run", path)
    assert "1 of 61 rows of data.tsv has 1 column instead of 2: line 1" in answer.err


def test_a_budget_of_a_month_is_used_with_a_warning(tmp_path: Path, capsys, caplog):
    def stop(step: int, loss: float) -> None:
        raise KeyboardInterrupt

    settings = {**SMALL, "train": {"evaluate_every": 1}}
    rows = [(text, "ab"[place % 2]) for place, text in enumerate(TEXTS)]
    with pytest.raises(KeyboardInterrupt):
        library.train(rows, out=tmp_path / "run", minutes=43_200, settings=settings, device="cpu", on_evaluation=stop)
    assert "the budget is 30 days of training" in caplog.text + capsys.readouterr().err


def test_workbooks_are_tables(regard, tiny, tmp_path: Path):
    openpyxl = pytest.importorskip("openpyxl", reason="the extra regard[excel] is not installed")
    workbook = openpyxl.Workbook()
    for row in [("Text", "Note"), *((text, place % 7 + 0.25) for place, text in enumerate(TEXTS))]:
        workbook.active.append(row)
    workbook.save(tmp_path / "ratings.xlsx")
    answer = regard("train", tmp_path / "ratings.xlsx", "--out", tmp_path / "run", "--steps", 1, *tiny).succeeds()
    assert "task regression" in answer.err
    assert "as Excel (sheet Sheet) with a header; text = Text, number = Note\n" in answer.err
    assert json.loads(regard("evaluate", tmp_path / "run", tmp_path / "ratings.xlsx", "--json").succeeds().out)


@pytest.mark.parametrize("is_named", [True, False])
def test_rows_in_memory_may_be_dictionaries_and_labels_numbers(tmp_path: Path, is_named: bool):
    rows = [(text, place % 2) for place, text in enumerate(TEXTS)]
    named = [{"id": place, "label": label, "text": text} for place, (text, label) in enumerate(rows)]
    run = library.train(named if is_named else rows, out=tmp_path / "run", steps=1, settings=SMALL, device="cpu")
    assert run.task.name == "text-classification"
    assert {row[1] for row in run.folder.read_held_out("valid")} <= {"0", "1"}
    assert len(run.evaluate(named[:5], log=False).rows) <= 5
    with pytest.raises(library.RegardError, match="rows must be all dictionaries or all lists of values"):
        library.train([*named, ("text", 1)], out=tmp_path / "other", steps=1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the table in memory has no rows"),
        ([1, 2, 3], "row 1 must be a dictionary or a list of values, got int"),
        ([("a", "b"), None], "row 2 must be a dictionary or a list of values, got NoneType"),
        ({"text": ["a"], "label": ["b"]}, "rows must be in a list, each a dictionary or a list of values"),
        (TEXTS, "none of 60 strings is the name of a file, such as .* a text in memory is a row with one value"),
    ],
)
def test_rows_in_memory_that_are_none_are_an_error(tmp_path: Path, data: Any, message: str):
    with pytest.raises(library.RegardError, match=message):
        library.train(data, out=tmp_path / "run", steps=1)
    assert not list(tmp_path.iterdir())


def test_an_array_of_texts_and_labels_is_a_table(tmp_path: Path):
    rows = np.array([(text, "ab"[place % 2]) for place, text in enumerate(TEXTS)])
    run = library.train(rows, out=tmp_path / "run", steps=1, settings=SMALL, device="cpu")
    assert run.task.name == "text-classification"
    for wrong in (3, [None]):
        with pytest.raises(library.RegardError, match="input 1 must be a text, got"):
            run.predict(wrong)  # pyright: ignore[reportArgumentType, reportCallIssue]
