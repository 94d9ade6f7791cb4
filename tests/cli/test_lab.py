"""`regard lab`: studies by name."""

import json
from pathlib import Path

import pytest

from regard.lab import STUDIES


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_studies_are_listed_with_what_they_ask(regard, arguments: list[str]):
    lines = regard("lab", *arguments).is_well().out.splitlines()
    assert [line.split("\t") for line in lines] == [[name, claim] for name, claim in STUDIES.items()]


def test_the_list_as_json(regard):
    (line,) = regard("lab", "list", "--json").is_well().out.splitlines()
    assert [study["name"] for study in json.loads(line)["studies"]] == list(STUDIES)


def test_a_study_that_is_not_there_is_one_line(regard, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    regard("lab", "scaling_factor").says_no("no study is called 'scaling_factor'; did you mean scaling-factor?")
    regard("lab", "poetry").says_no("no study is called 'poetry'; known: softmax, scaling-factor, gradients, positions")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["taken", "taken/deeper"])
def test_a_place_that_is_a_file_is_told_before_anything_is_computed(regard, tmp_path: Path, out: str):
    (tmp_path / "taken").write_text("mine")
    regard("lab", "positions", "--out", tmp_path / out).says_no("a study is written to a folder", "taken is a file")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.slow
def test_softmax_from_end_to_end(regard, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = regard("lab", "softmax", "--quick").is_well()
    assert answer.err == ""
    assert "Softmax and its temperature" in answer.out
    assert "effective choices" in answer.out
    assert answer.out.splitlines()[-1].endswith("lab/softmax.png, lab/softmax.html, lab/softmax.json")
    assert sorted(path.name for path in (tmp_path / "lab").iterdir()) == [
        "softmax.html", "softmax.json", "softmax.png"
    ]  # fmt: skip


@pytest.mark.slow
def test_json_is_the_last_line_and_says_all(regard, tmp_path: Path):
    answer = regard("lab", "softmax", "--quick", "--seed", 3, "--json", "--quiet", "--out", tmp_path).is_well()
    told = json.loads(answer.out.splitlines()[-1])
    assert told["name"] == "softmax"
    assert told["settings"]["seed"] == 3
    assert told["command"] == "regard lab softmax --quick --seed 3"
    assert [Path(path).name for path in told["files"]] == ["softmax.png", "softmax.html", "softmax.json"]
    kept = json.loads((tmp_path / "softmax.json").read_text(encoding="utf-8"))
    assert {key: told[key] for key in kept} == kept


@pytest.mark.slow
def test_scaling_factor_from_end_to_end(regard, tmp_path: Path):
    answer = regard("lab", "scaling-factor", "--quick", "--out", tmp_path).is_well()
    assert "after 500 steps" in answer.err
    told = json.loads((tmp_path / "scaling-factor.json").read_text(encoding="utf-8"))
    variances = {row[0]: row[1] for row in told["tables"][0]["rows"]}
    for dim, variance in variances.items():
        assert variance == pytest.approx(dim, rel=0.1)
