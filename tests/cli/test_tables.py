"""Table in, table out: `regard predict --file`."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.runs.run import load

WORDS = ["red", "green", "blue", "warm", "cold", "soft", "hard", "round"]


@pytest.fixture(scope="module")
def colors(regard, tiny, tmp_path_factory) -> Path:
    """A run on texts in the column `utterance`, with labels in the column `intent`."""
    folder = tmp_path_factory.mktemp("colors")
    rows = [(f"a {WORDS[i % 8]} {WORDS[(i // 8) % 8]} thing {i}", "even" if i % 2 else "odd") for i in range(120)]
    with open(folder / "train.csv", "w", newline="") as file:
        csv.writer(file).writerows([("utterance", "intent"), *rows])
    regard(
        "train", folder / "train.csv", "--task", "text-classification", "--out", folder / "run", "--steps", 20, *tiny
    ).succeeds()
    return folder / "run"


@pytest.fixture(scope="module")
def tagger(regard, tiny, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tags")
    sentences = [f"{WORDS[i % 8]} O\nAda B-PER\nLovelace I-PER\nin O\nParis B-LOC\n" for i in range(60)]
    (folder / "train.conll").write_text("\n".join(sentences))
    regard("train", folder / "train.conll", "--out", folder / "run", "--steps", 60, *tiny).succeeds()
    return folder / "run"


def read_csv(text: str, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


def test_a_workbook_is_read_and_not_written(regard, colors, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (("id", "utterance"), (7, "a red thing"), (8, "a blue thing")):
        book.active.append(row)
    book.save(tmp_path / "in.xlsx")
    rows = read_csv(regard("predict", colors, "--file", tmp_path / "in.xlsx").succeeds().out)
    assert [(row["id"], row["utterance"]) for row in rows] == [("7", "a red thing"), ("8", "a blue thing")]
    assert [row["prediction"] for row in rows] == load(colors).predict(["a red thing", "a blue thing"])
    out = tmp_path / "out.xlsx"
    regard("predict", colors, "--file", tmp_path / "in.xlsx", "--out", out).fails_with("must end in .csv, .tsv")


def test_the_output_has_the_input_columns_and_the_predictions_in_order(regard, colors, tmp_path):
    given, out = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text('id,utterance,note\n7,"a red, warm thing",x\n3,,empty\n5,"two\nlines",""\n')
    answer = regard("predict", colors, "--file", given, "--out", out).succeeds()
    assert answer.out == f"{out}\n"
    assert "text = utterance, as in training" in answer.err
    assert "1 row without an input" in answer.err
    rows = read_csv(out.read_text())
    assert [row["id"] for row in rows] == ["7", "3", "5"]
    assert list(rows[0]) == ["id", "utterance", "note", "prediction", "probability"]
    expected = load(colors).predict_full(["a red, warm thing", "two\nlines"])
    assert [row["prediction"] for row in rows] == [expected[0].output, "", expected[1].output]
    assert float(rows[0]["probability"]) == pytest.approx(
        (expected[0].probabilities or {})[expected[0].output], abs=1e-6
    )
    assert rows[1]["probability"] == ""


def test_a_single_column_with_the_name_of_training_is_a_header(regard, colors, tmp_path):
    given = tmp_path / "in.csv"
    given.write_text("utterance\na red thing\n")
    answer = regard("predict", colors, "--file", given).succeeds()
    assert [row["utterance"] for row in read_csv(answer.out)] == ["a red thing"]


def test_other_columns_are_inferred_and_reported(regard, colors, tmp_path):
    given = tmp_path / "in.tsv"
    given.write_text("number\tdate\treview\n1\t2024-05-01\ta red thing\n2\t2024-05-02\ta blue thing\n")
    answer = regard("predict", colors, "--file", given).succeeds()
    assert "text = review, inferred from the table" in answer.err
    assert [row["date"] for row in read_csv(answer.out, "\t")] == ["2024-05-01", "2024-05-02"]


def test_a_table_changes_its_format_by_the_name_of_the_output(regard, colors, tmp_path):
    given = tmp_path / "in.tsv"
    given.write_text("utterance\tn\na red, warm thing\t1\n")
    regard("predict", colors, "--file", given, "--out", tmp_path / "out.csv").succeeds()
    (row,) = read_csv((tmp_path / "out.csv").read_text())
    assert row["utterance"] == "a red, warm thing"
    regard("predict", colors, "--file", tmp_path / "in.tsv", "--out", tmp_path / "out.tsv").succeeds()
    assert (tmp_path / "out.tsv").read_text().splitlines()[0] == "utterance\tn\tprediction\tprobability"


def test_columns_can_be_named(regard, colors, tmp_path):
    given = tmp_path / "in.csv"
    given.write_text("utterance;other\na red thing;a blue thing\n")
    answer = regard("predict", colors, "--file", given, "--columns", "other").succeeds()
    (row,) = read_csv(answer.out, ";")  # the delimiter stays
    assert row["prediction"] == load(colors).predict("a blue thing")
    regard("predict", colors, "--file", given, "--columns", "othr").fails_with("no column 'othr'", "'other'")
    regard("predict", colors, "--file", given, "--columns", "other,utterance").fails_with("got 2 columns")


def test_json_lines_keep_their_types(regard, colors, tmp_path):
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"n": 1.5, "inner": {"utterance": "a red thing"}}, {"n": None, "inner": {"utterance": "warm"}, "more": [1]}]
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    regard("predict", colors, "--file", given, "--out", out, "--columns", "inner.utterance").succeeds()
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [{key: row[key] for key in given} for row, given in zip(written, rows, strict=True)] == rows
    assert 0 < written[0]["probability"] <= 1
    assert regard("predict", colors, "--file", given, "--columns", "inner.utterance").succeeds().out == out.read_text()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_parquet_in_and_out(regard, colors, tmp_path, suffix):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    given, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(pyarrow.table({"n": [1, 2], "utterance": ["a red thing", "warm"]}), given)
    regard("predict", colors, "--file", given, "--out", out).succeeds()
    written = parquet.read_table(out)
    assert written.column_names == ["n", "utterance", "prediction", "probability"]
    assert written["n"].to_pylist() == [1, 2]
    regard("predict", colors, "--file", given, "--out", tmp_path / f"out.{suffix}").succeeds()
    (tmp_path / f"out.{suffix}").rename(tmp_path / f"in.{suffix}")
    again = tmp_path / "again.parquet"
    answer = regard("predict", colors, "--file", tmp_path / f"in.{suffix}", "--out", again)
    answer.fails_with("already has a column 'prediction'")


def test_tables_become_parquet(regard, tagger, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    given, out = tmp_path / "in.csv", tmp_path / "out.parquet"
    given.write_text("text,n\nAda Lovelace in Paris,1\n")
    regard("predict", tagger, "--file", given, "--out", out).succeeds()
    (row,) = parquet.read_table(out).to_pylist()
    assert row["n"] == "1"
    assert all(row["text"][span["start"] : span["end"]] == span["text"] for span in row["spans"])


def test_tags_have_spans(regard, tagger, tmp_path):
    given = tmp_path / "in.jsonl"
    given.write_text(json.dumps({"tokens": ["soft", "Ada", "Lovelace", "in", "Paris"]}) + "\n")
    row = json.loads(regard("predict", tagger, "--file", given).succeeds().out)
    (found,) = load(tagger).predict_full(["soft Ada Lovelace in Paris"])
    assert row["prediction"] == found.output == "O B-PER I-PER O B-LOC"
    assert [(span["text"], span["label"], span["start"], span["end"]) for span in row["spans"]] == [
        ("Ada Lovelace", "PER", 5, 17), ("Paris", "LOC", 21, 26)]  # fmt: skip
    assert all(0 < span["probability"] <= 1 for span in row["spans"])
    (given.with_suffix(".csv")).write_text("text\nsoft Ada Lovelace in Paris\n")
    (cells,) = read_csv(regard("predict", tagger, "--file", given.with_suffix(".csv")).succeeds().out)
    assert json.loads(cells["spans"]) == row["spans"]


def test_tags_as_json_have_words_spans_and_probabilities(regard, tagger):
    printed = json.loads(regard("predict", tagger, "soft Ada Lovelace in Paris", "--json").succeeds().out)
    (found,) = printed["predictions"]
    assert [word["label"] for word in found["words"]] == found["output"].split()
    assert [word["text"] for word in found["words"]] == ["soft", "Ada", "Lovelace", "in", "Paris"]
    assert [span["label"] for span in found["spans"]] == ["PER", "LOC"]
    assert 0 < found["probability"] <= min(word["probability"] for word in found["words"])


def test_bad_tables_are_reported_before_anything_is_written(regard, colors, tmp_path):
    out = tmp_path / "out.csv"
    given = tmp_path / "in.csv"
    given.write_text("utterance,n\na red thing,1\nfalse\n")
    regard("predict", colors, "--file", given, "--out", out).fails_with("1 column instead of 2", "line 3")
    given.write_text("utterance,n\na red thing,1\n")
    regard("predict", colors, "--file", given, "--out", tmp_path / "out.docx").fails_with(".csv, .tsv, .jsonl or")
    regard("predict", colors, "--file", given, "--out", given).fails_with("another file than the input")
    regard("predict", colors, "--file", tmp_path / "none.csv", "--out", out).fails_with("there is no file")
    regard("predict", colors, "--file", given, "--out", tmp_path / "no" / "out.csv").fails_with("cannot write")
    regard("predict", colors, "--file", given, "a text").fails_with("cannot be combined")
    regard("predict", colors, "--out", out, "a text").fails_with("--out needs --file")
    given.write_text("score,date\n1,2024-05-01\n2,2024-05-02\n")
    regard("predict", colors, "--file", given, "--out", out).fails_with("0 columns of text", "score, date")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv"]


def test_a_text_may_be_longer_than_the_name_of_a_file(regard, colors):
    assert regard("predict", colors, "a red thing " * 30).succeeds().out.strip() in ("even", "odd")


def test_a_path_as_text_names_the_option(regard, colors, tmp_path):
    given = tmp_path / "in.csv"
    given.write_text("utterance\na red thing\n")
    regard("predict", colors, given).fails_with(f"--file {given}")


@pytest.mark.slow
def test_an_interrupted_command_leaves_nothing(colors, tmp_path):
    given, out = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text("utterance\n" + "a red thing and a long text about it\n" * 200_000)
    command = [sys.executable, "-m", "regard.cli.main", "predict", colors, "--file", given, "--out", out]
    # Jobs that a shell has started in the background ignore the signal, and so do their children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        signal.signal(signal.SIGINT, before)
        part = tmp_path / "out.csv.part"
        for _ in range(600):
            if part.exists() and part.stat().st_size:
                break
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_rows_in_memory(colors):
    run = load(colors)
    rows = run.predict_table([{"utterance": "a red thing", "n": 1}, {"utterance": "", "n": 2}])
    assert rows[0]["prediction"] == run.predict("a red thing")
    assert rows[1] == {"utterance": "", "n": 2, "prediction": None, "probability": None}
    assert [row["prediction"] for row in run.predict_table(["a red thing"])] == [run.predict("a red thing")]
    many = [f"a {WORDS[i % 8]} thing {i}" for i in range(600)]
    assert [row["prediction"] for row in run.predict_table(many)] == run.predict(many)
