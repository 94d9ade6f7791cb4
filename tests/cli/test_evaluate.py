"""`regard evaluate`: tables of scores, columns, bad rows, and rows that the run has seen or sealed."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from regard.errors import ConfigError, DataError
from regard.runs.run import load


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    texts = {"good": ["fine", "great", "lovely", "warm"], "bad": ["poor", "awful", "dull", "cold"]}
    rows = [(f"a {texts[label][i % 4]} film, number {i}", label) for i in range(100) for label in texts]
    for name, some in (("train", rows[:160]), ("valid", rows[160:])):
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *some])
    return folder


@pytest.fixture(scope="module")
def reviews(regard, tiny, files, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("run") / "reviews"
    regard("train", files / "train.csv", "--valid", files / "valid.csv", "--out", run, "--steps", 30, *tiny).succeeds()
    return run


def table_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_labels_have_a_table_of_precision_and_recall(regard, reviews):
    out = regard("evaluate", reviews).succeeds().out
    first, _, second = out.partition("\n\n")
    assert "|" not in out  # no signatures
    names = [cells[0] for cells in table_of(first) if cells[0] != "-:"]
    assert names == ["metric", "accuracy", "macro_f1", "matthews", "calibration_error", "rows:"]
    header, *lines = table_of(second)
    assert header == ["label", "precision", "recall", "F1", "support"]
    found = json.loads(regard("evaluate", reviews, "--json").succeeds().out)
    assert {cells[0]: [float(cell) for cell in cells[1:4]] for cells in lines} == {
        label: [pytest.approx(values[name], abs=5e-4) for name in ("precision", "recall", "f1")]
        for label, values in found["labels"].items()
    }
    right = sum(round(each["recall"] * each["support"]) for each in found["labels"].values())
    assert right / found["rows"] == pytest.approx(found["accuracy"]["value"])


def test_training_rows_are_recognized_in_any_file_and_no_bound_holds_for_them(regard, reviews, files, tmp_path):
    lines = (files / "train.csv").read_text().splitlines()
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("\n".join([lines[0], *lines[5:15], "a film that is new,good", "a new dull film,bad"]) + "\n")
    answer = regard("evaluate", reviews, mixed).succeeds()
    assert "10 of 12 rows are training rows: the scores are too high on average, and no bound holds" in answer.err
    said = regard("certificate", reviews).succeeds().out
    assert "10 of them are training rows, so no bound holds for it" in " ".join(said.split())
    (found,) = (
        each for each in json.loads(regard("certificate", reviews, "--json").succeeds().out)["files"]
        if each["name"] == "mixed.csv"
    )  # fmt: skip
    assert (found["num_training_rows"], found["bounds"], found["best"]) == (10, [], None)
    new = tmp_path / "new.csv"
    new.write_text("text,label\na film that is new,good\na new dull film,bad\n")
    assert "training row" not in regard("evaluate", reviews, new).succeeds().err
    damaged = shutil.copytree(reviews, tmp_path / "damaged")
    (damaged / "held_out" / "train.fingerprints").write_bytes(b"1234567")
    regard("evaluate", damaged, new, "-q").fails_with("fingerprints of a run's rows are damaged: they have 7 bytes")


def test_columns_and_bad_rows(regard, reviews, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("n,kind,what\n1,good,a great film of 1990\n2,bad,an awful film of 1991\n3,good\n")
    wanted = [reviews, other, "--columns", "what,kind"]
    regard("evaluate", *wanted, "-q").fails_with("2 columns instead of 3", "line 4", "--skip-bad skips them")
    answer = regard("evaluate", *wanted, "--skip-bad", "--json").succeeds()
    assert json.loads(answer.out)["rows"] == 2
    assert "warning: skipped: 1 of 3 rows of other.csv has 2 columns instead of 3: line 4" in answer.err
    regard("evaluate", reviews, "--skip-bad", "-q").fails_with("the validation rows are evaluated")


def test_the_validation_file_is_named_as_such(regard, reviews, files):
    answer = regard("evaluate", reviews, files / "valid.csv").succeeds()
    assert "40 of 40 rows are validation rows of this run" in answer.err
    assert "trained on these rows" not in answer.err
    assert "trained on these rows" in regard("evaluate", reviews, files / "train.csv").succeeds().err


def test_training_rows_are_counted_in_a_file_with_validation_rows_too(regard, reviews, files, tmp_path):
    header, *train = (files / "train.csv").read_text().splitlines()
    valid = (files / "valid.csv").read_text().splitlines()[1:]
    (tmp_path / "both.csv").write_text("\n".join([header, *train[:6], valid[0]]) + "\n")
    said = regard("evaluate", reviews, tmp_path / "both.csv").succeeds().err
    assert "1 of 7 rows is a validation row of this run" in said
    assert "6 of 7 rows are training rows" in said


def test_all_rows_can_be_scored_at_the_price_of_an_opening(regard, run, dates, tmp_path):
    some = tmp_path / "some.tsv"
    some.write_text("\n".join(dates.read_text().splitlines()[:101]) + "\n")
    before = regard("evaluate", run, some, "--json").succeeds()
    scored = json.loads(before.out)["rows"]
    assert scored < 100
    assert f"{100 - scored} of 100 rows are of the sealed test set, and are left out" in before.err
    assert json.loads(regard("certificate", run, "--json").succeeds().out)["is_sealed"]
    answer = regard("evaluate", run, some, "--all-rows", "--json").succeeds()
    assert json.loads(answer.out)["rows"] == 100
    certificate = json.loads(regard("certificate", run, "--json").succeeds().out)
    assert not certificate["is_sealed"]
    assert certificate["openings"][0]["reason"] == f"evaluated on {100 - scored} of its rows"


def test_rows_in_memory_may_be_dictionaries(reviews):
    run = load(reviews)
    rows = [("a great film of 1990", "good"), ("an awful film of 1991", "bad"), ("a dull film", "bad")]
    named = [{"n": i, "label": label, "text": text} for i, (text, label) in enumerate(rows)]
    expected, found = run.evaluate(rows, log=False), run.evaluate(named, log=False)
    assert found.rows == expected.rows
    assert found.to_json() == expected.to_json()
    other = [{"a": text, "b": label, "text": "x"} for text, label in rows]
    assert run.evaluate(other, columns=["a", "b"], log=False).rows == expected.rows
    with pytest.raises(DataError, match="null in column 3: row 4"):
        run.evaluate([*named, {"label": "bad"}], log=False)


def test_an_evaluation_is_short_in_python(reviews):
    evaluation = load(reviews).evaluate(log=False)
    assert repr(evaluation).startswith("Evaluation(accuracy=")
    assert repr(evaluation).endswith("rows=40)")
    assert "film" not in repr(evaluation) + evaluation._repr_html_()
    assert evaluation._repr_html_().count("<table>") == 2
    assert str(evaluation).startswith("metric")
    with pytest.raises(ConfigError, match="all_rows"):
        load(reviews).evaluate(all_rows=True)
