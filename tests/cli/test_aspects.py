"""Aspects by the command line: train, predict, highlight, compare."""

import json
from pathlib import Path

import pytest
import torch
from tests.meals import meals

TINY = ["--set", "model.model_dim=16", "--tokenizer", "words", "--device", "cpu"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "meals.tsv"
    path.write_text("\n".join(["sentence\tcategory\tpolarity", *map("\t".join, meals(100))]) + "\n")
    return path


@pytest.fixture(scope="module")
def run(regard, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "meals"
    torch.set_default_dtype(torch.float32)
    answer = regard("train", table, "--model", "bag", "--out", folder, "--steps", 20, *TINY).succeeds()
    assert "task aspect-sentiment" in answer.err
    assert "3 aspects: " in answer.err
    return folder


def test_one_aspect_gives_a_label_and_none_a_line_for_each(regard, run: Path):
    label = regard("predict", run, "great soup but rude waiter", "--aspect", "food").succeeds().out.strip()
    assert label in ("positive", "negative")
    lines = regard("predict", run, "great soup but rude waiter").succeeds().out.splitlines()
    found = dict(line.split("\t") for line in lines)
    assert sorted(found) == ["food", "price", "service"]
    assert found["food"] == label
    told = regard("predict", run, "great soup but rude waiter", "--json").succeeds().out
    first = json.loads(told)["predictions"][0]
    assert set(first) == {"input", "output", "score", "probabilities", "aspect", "weights", "probability"}
    assert sum(weight for _, weight in first["weights"]) == pytest.approx(1.0)


def test_lines_in_and_lines_out_stay_aligned(regard, run: Path):
    piped = regard("predict", run, "--aspect", "food", stdin="great soup\n\nrude waiter\n").succeeds().out
    assert [bool(line) for line in piped.splitlines()] == [True, False, True]
    each = regard("predict", run, stdin="great soup\n\nrude waiter\n").succeeds().out.splitlines()
    assert [bool(line) for line in each] == [True] * 3 + [False] + [True] * 3


def test_a_table_is_judged_by_its_column_of_aspects_or_for_each(regard, run: Path, tmp_path: Path):
    given = tmp_path / "in.tsv"
    given.write_text("category\tsentence\nfood\tgreat soup but rude waiter\nservice\tgreat soup but rude waiter\n")
    by_aspect = regard("predict", run, "great soup but rude waiter").succeeds().out.splitlines()
    labels = dict(line.split("\t") for line in by_aspect)
    rows = [line.split("\t") for line in regard("predict", run, "--file", given).succeeds().out.splitlines()]
    assert [row[2] for row in rows] == ["prediction", labels["food"], labels["service"]]
    given.write_text("sentence\ngreat soup but rude waiter\n")
    (_, line) = regard("predict", run, "--file", given).succeeds().out.splitlines()
    assert json.loads(line.split("\t")[1]) == labels
    (_, line) = regard("predict", run, "--file", given, "--aspect", "food").succeeds().out.splitlines()
    assert line.split("\t")[1] == labels["food"]


def test_words_are_highlighted_in_the_terminal_and_in_files(regard, run: Path, tmp_path: Path):
    shown = regard("attention", run, "great soup but rude waiter", "--aspect", "food").succeeds().out
    assert shown.startswith("food  ")
    assert "soup" in shown
    for name, beginning in (("a.html", b"<!"), ("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        regard("attention", run, "great soup but rude waiter", "--out", tmp_path / name).succeeds()
        assert (tmp_path / name).read_bytes().startswith(beginning)
    told = json.loads(regard("attention", run, "great soup", "--json").succeeds().out)
    assert [len(each["pieces"]) for each in told["attributions"]] == [2, 2, 2]
    regard("attention", run, "great soup", "--out", tmp_path / "a.pdf").fails_with("must end in .html, .png or .svg")
    regard("attention", run, "great soup", "--layer", 1).fails_with("--kind, --layer and --head are for other tasks")


def test_bad_input_is_told_in_one_line(regard, run: Path, trained: Path, tmp_path: Path):
    found = regard("predict", run, "great soup", "--aspect", "decor").succeeds()
    assert "no training row has 1 aspect of the input: decor" in found.err
    regard("predict", run, " ", "--aspect", "food").fails_with("input 1 is empty")
    regard("predict", trained, "4 March", "--aspect", "food").fails_with(
        "aspects and weights of words are for aspect sentiment"
    )
    (tmp_path / "book.xml").write_text("<book/>")
    regard("train", tmp_path / "book.xml", "--quiet").fails_with("its first element must be <sentences>")


def test_the_report_shows_the_words_that_mattered(run: Path):
    page = (run / "report.html").read_text()
    assert '"texts":[{"text":' in page
    assert '"attributions":[{"aspect":' in page


def test_simple_attention_with_and_without_projections_is_compared(regard, table: Path, tmp_path: Path, jobs_inside):
    (tmp_path / "plain.toml").write_text('preset = "bag"\n[task]\nprojections = false\n')
    models = f"{tmp_path / 'plain.toml'},bag,convolution"
    with jobs_inside():
        answer = regard("compare", table, "--models", models, "--steps", 5, "--out", tmp_path / "c", "--json",
                        *TINY).succeeds()  # fmt: skip
    found = json.loads(answer.out.splitlines()[-1])
    assert [model["name"] for model in found["models"]] == ["plain", "bag", "convolution"]
    assert found["metric"] == "accuracy"
    assert len(found["pairs"]) == 3
    params = {model["name"]: model["params"] for model in found["models"]}
    assert params["bag"] - params["plain"] == 3 * (16 * 16 + 16)
