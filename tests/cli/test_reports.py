"""The report page of runs on tags and labels, and of a run that has learned nothing."""

import json
from pathlib import Path

import pytest

from regard.explanation.pages import page_data


@pytest.fixture(scope="module")
def tagger(regard, tiny, tmp_path_factory) -> Path:
    """Tags in IOB1, which the model predicts in BIO."""
    folder = tmp_path_factory.mktemp("tags")
    sentences = [f"{word} O\nAda I-PER\nLovelace I-PER\nin O\nParis I-LOC\n" for word in "abcdefghij" for _ in range(8)]
    (folder / "train.conll").write_text("\n".join(f"{text}no{i} O\n" for i, text in enumerate(sentences)))
    regard("train", folder / "train.conll", "--out", folder / "run", "--steps", 60, *tiny).succeeds()
    return folder / "run"


def test_a_tagger_has_a_few_scores_and_a_table_of_types(tagger):
    page = page_data(tagger / "report.html")
    assert [score["name"] for score in page["scores"]] == [
        "entity_f1", "entity_precision", "entity_recall", "entity_macro_f1"]  # fmt: skip
    ((columns, rows),) = [table.values() for table in page["labels"]]
    assert columns == ["label", "precision", "recall", "F1", "support"]
    assert [row[0] for row in rows] == ["LOC", "PER"]


def test_tags_in_another_scheme_are_right_where_their_entities_are(tagger):
    samples = page_data(tagger / "report.html")["samples"]
    assert samples
    assert all(sample["right"] for sample in samples)
    assert {sample["target"] for sample in samples} == {"O B-PER I-PER O B-LOC O"}


def test_a_classifier_shows_its_attention(regard, tagger, tmp_path):
    page = page_data(tagger / "report.html")
    (maps,) = page["attention"]
    assert maps["source_tokens"][0] == "<s>"


def test_a_run_that_has_learned_nothing_says_so(regard, tiny, tmp_path):
    dates = tmp_path / "dates.tsv"
    dates.write_text(regard("data", "show", "dates", "--rows", 500).succeeds().out)
    answer = regard("train", dates, "--out", tmp_path / "run", "--steps", 1, *tiny).succeeds()
    said = "the model has not learned the task: exact match is 0 (50 rows)"
    assert f"warning: {said}" in answer.err
    assert page_data(tmp_path / "run" / "report.html")["warning"].startswith(said)
    assert "most likely to help" in answer.err
    assert "Try a longer budget" not in answer.err, "the line on the baseline has what may help"
    assert "trained 1 step in" in answer.err


def test_a_model_that_predicts_one_label_says_so(regard, tiny, tmp_path):
    rows = [f"a film number {i}\t{'good' if i % 5 else 'bad'}\n" for i in range(600)]
    (tmp_path / "rows.tsv").write_text("".join(rows))
    answer = regard(
        "train", tmp_path / "rows.tsv", "--out", tmp_path / "run", "--steps", 1, *tiny, "--set", "task.ngrams=0"
    )
    answer.succeeds()
    found = json.loads(regard("evaluate", tmp_path / "run", "--json", "-q").succeeds().out)
    predicted = [label for label, scores in found["labels"].items() if scores["recall"]]
    assert len(predicted) == 1
    assert f"'{predicted[0]}' is predicted for every row" in answer.err
