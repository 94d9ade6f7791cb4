"""`regard lab`: studies by name, those of other packages included."""

import json
from pathlib import Path

import pytest

from regard.lab import STUDIES

PLUGIN = """
from regard.lab import Study, StudyEntry, StudyTable
from regard.lab.drawing import make_panels

DICE = StudyEntry(
    name="dice", title="Dice", question="What is the mean of a die?", function="dice_study:study_dice",
    lectures=("L33", "L34"), minutes=(0.25, 2.0),
)


def study_dice(*, quick: bool, seed: int) -> Study:
    table = StudyTable(name="mean", columns=["sides", "mean"], rows=[[6, 3.5]])
    return Study(
        name="dice", title="Dice", question=DICE.question, findings=["It is 3.5."], tables=[table],
        figure=make_panels(1)[0], settings={},
    )
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package, installed on the path, with one study that works and one that cannot be imported."""
    site = tmp_path / "site"
    metadata = site / "dice_study-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "dice_study.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dice-study\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[regard.studies]\ndice = dice_study:DICE\ncards = dice_study:CARDS\n")
    monkeypatch.syspath_prepend(site)
    # What was found before and after is not to be remembered.
    monkeypatch.setattr(STUDIES, "_loaded", {})
    monkeypatch.setattr(STUDIES, "_broken", set())


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_studies_are_listed_with_their_questions(regard, arguments: list[str]):
    lines = regard("lab", *arguments).succeeds().out.splitlines()
    assert [line.split("\t")[::4] for line in lines] == [[entry.name, entry.question] for entry in STUDIES]
    (context,) = [line for line in lines if line.startswith("context\t")]
    assert context.endswith("\ta text file")
    assert "softmax" in STUDIES.names()


def test_the_list_as_json(regard):
    (line,) = regard("lab", "list", "--json").succeeds().out.splitlines()
    assert [study["name"] for study in json.loads(line)["studies"]] == STUDIES.names()


def test_a_study_of_another_package_is_listed_and_runs(regard, plugin: None, tmp_path: Path):
    answer = regard("lab").succeeds()
    assert "dice\tL33 L34\t15 s\t2 min\tWhat is the mean of a die?\t-" in answer.out.splitlines()
    assert "softmax" in answer.out
    assert "'cards' of package dice-study" in answer.err
    answer = regard("lab", "dice", "--out", tmp_path / "out").succeeds()
    assert "It is 3.5." in answer.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "dice.csv",
        "dice.html",
        "dice.json",
        "dice.png",
    ]
    regard("lab", "dise", "--out", tmp_path / "none").fails_with("unknown study 'dise'", "did you mean dice?")
    regard("lab", "cards", "--out", tmp_path / "none").fails_with("'cards' of package dice-study", "CARDS")
    assert not (tmp_path / "none").exists()


def test_an_unknown_study_is_one_line(regard, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    regard("lab", "scaling_factor").fails_with("unknown study 'scaling_factor'", "did you mean scaling-factor?")
    regard("lab", "poetry").fails_with("unknown study 'poetry'", "softmax")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["taken", "taken/deeper"])
def test_an_output_folder_that_is_a_file_is_rejected_before_the_study_runs(regard, tmp_path: Path, out: str):
    (tmp_path / "taken").write_text("mine")
    regard("lab", "positions", "--out", tmp_path / out).fails_with("a study is written to a folder", "taken is a file")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["circuits", "--formula", "(a & ) ^ c"], ["'(a & ) ^ c' does not parse at character 6", "got ')'"]),
        (["circuits", "--formula", " | ".join(f"v{i}" for i in range(17))], ["at most 16 variables, got 17"]),
        (["circuits", "--formula"], ["--formula needs a value"]),
        (["representation", "--function", "sin(3*y)"], ["at character 7: unknown name 'y'"]),
        (["representation", "--function=-1/x"], ["must be finite on the interval [0, 1]", "at x = 0"]),
        (["representation", "--interval", "2,1"], ["low < high", "low=2.0 and high=1.0"]),
        (["softmax", "--formula", "a"], ["--formula"]),
        (["circuits", "--function", "x"], ["--function"]),
    ],
)
def test_an_option_that_a_study_cannot_use_is_one_line(regard, tmp_path: Path, arguments: list[str], parts: list[str]):
    regard("lab", "--quick", "--out", tmp_path / "none", *arguments).fails_with(*parts)
    assert not (tmp_path / "none").exists()


def test_the_help_lists_the_options_of_single_studies(regard):
    out = regard("lab", "--help").succeeds().out
    assert "--formula TEXT   circuits: " in out
    assert "--function TEXT  representation: " in out


@pytest.mark.slow
def test_softmax_from_end_to_end(regard, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = regard("lab", "softmax", "--quick").succeeds()
    assert answer.err == ""
    assert "Softmax and its temperature" in answer.out
    assert "effective choices" in answer.out
    assert answer.out.splitlines()[-1].endswith("lab/softmax.png, lab/softmax.html, lab/softmax.json, lab/softmax.csv")
    assert sorted(path.name for path in (tmp_path / "lab").iterdir()) == [
        "softmax.csv", "softmax.html", "softmax.json", "softmax.png"
    ]  # fmt: skip


@pytest.mark.slow
def test_json_is_the_last_line_and_complete(regard, tmp_path: Path):
    answer = regard("lab", "softmax", "--quick", "--seed", 3, "--json", "--quiet", "--out", tmp_path).succeeds()
    printed = json.loads(answer.out.splitlines()[-1])
    assert printed["name"] == "softmax"
    assert printed["settings"]["seed"] == 3
    assert printed["command"] == "regard lab softmax --quick --seed 3"
    assert [Path(path).name for path in printed["files"]] == [
        "softmax.png",
        "softmax.html",
        "softmax.json",
        "softmax.csv",
    ]
    kept = json.loads((tmp_path / "softmax.json").read_text(encoding="utf-8"))
    assert {key: printed[key] for key in kept} == kept


@pytest.mark.slow
def test_scaling_factor_from_end_to_end(regard, tmp_path: Path):
    answer = regard("lab", "scaling-factor", "--quick", "--out", tmp_path).succeeds()
    assert "after 500 steps" in answer.err
    written = json.loads((tmp_path / "scaling-factor.json").read_text(encoding="utf-8"))
    variances = {row[0]: row[1] for row in written["tables"][0]["rows"]}
    for dim, variance in variances.items():
        assert variance == pytest.approx(dim, rel=0.1)
