"""The test set stays shut until it is opened, and who changes what was written is found out."""

import json
import shutil
from pathlib import Path

import pytest

from regard.explanation.pages import page_data

SMALL = ("--set", "model.model_dim=16", "--set", "model.num_heads=2", "--steps", 3, "--quiet")


def sentences_of(answer) -> str:
    return " ".join(json.loads(answer.succeeds().out.splitlines()[-1])["sentences"])


@pytest.fixture(scope="module")
def brought(regard, dates: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose test rows are a file of their own, and that file."""
    folder = tmp_path_factory.mktemp("brought")
    header, *rows = dates.read_text(encoding="utf-8").splitlines()
    for name, some in (("train", rows[:-20]), ("test", rows[-20:])):
        (folder / f"{name}.tsv").write_text("\n".join([header, *some]) + "\n", encoding="utf-8")
    regard("train", folder / "train.tsv", "--test", folder / "test.tsv", "--out", folder / "run", *SMALL).succeeds()
    return folder / "run", folder / "test.tsv"


@pytest.mark.parametrize("command", ["evaluate", "train", "finetune", "compare", "sweep"])
def test_no_command_reads_the_sealed_file(regard, trained: Path, tmp_path: Path, command: str):
    sealed = trained / "sealed" / "test.rows"
    space = tmp_path / "space.toml"
    space.write_text("[train.learning_rate]\nlow = 1e-4\nhigh = 1e-2\n", encoding="utf-8")
    arguments = {
        "evaluate": [trained, sealed],
        "train": [sealed, "--out", tmp_path / "out"],
        "finetune": [trained, sealed, "--out", tmp_path / "out"],
        "compare": [sealed, "--models", "tiny,lstm", "--steps", 1, "--out", tmp_path / "out"],
        "sweep": [sealed, space, "--trials", 1, "--out", tmp_path / "out"],
    }
    regard(command, *arguments[command]).fails_with("is a sealed test set")
    assert not list(tmp_path.rglob("run.toml"))


def test_a_file_of_the_sealed_rows_is_known_under_any_name(regard, brought: tuple[Path, Path], tmp_path: Path):
    run, file = brought
    regard("evaluate", run, shutil.copy(file, tmp_path / "other.tsv"), "--quiet").fails_with(
        "sealed test set of the run"
    )
    assert "still sealed" in sentences_of(regard("certificate", run, "--json"))


def test_the_report_says_that_the_test_set_was_opened(regard, run: Path):
    assert "still sealed" in " ".join(page_data(run / "report.html")["certificate"]["findings"])
    assert page_data(run / "report.html")["commands"][-1][0].startswith("regard test ")
    regard("test", run, "--quiet").succeeds()
    findings = " ".join(page_data(run / "report.html")["certificate"]["findings"])
    assert "sealed" not in findings
    assert [command.split()[1] for command, _ in page_data(run / "report.html")["commands"]] == ["predict", "evaluate"]
    assert "was opened once" in findings
    assert "Measured on 30 test rows" in findings


def test_the_certificate_counts_openings(regard, run: Path):
    assert "still sealed" in sentences_of(regard("certificate", run, "--json"))
    regard("test", run, "--quiet").succeeds()
    once = json.loads(regard("certificate", run, "--json").succeeds().out)
    assert "opened once" in " ".join(once["sentences"])
    assert (once["is_sealed"], once["test"]["num_candidates"]) == (False, 1)
    regard("test", run, "--quiet").succeeds()
    twice = json.loads(regard("certificate", run, "--json").succeeds().out)
    assert "opened twice" in " ".join(twice["sentences"])
    assert twice["test"]["num_candidates"] == 2
    assert twice["test"]["best"]["lower"] <= once["test"]["best"]["lower"]
    assert twice["ledger"] != once["ledger"]


def test_an_edited_ledger_is_detected_by_every_command_that_reads_it(regard, run: Path):
    ledger = run / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"step 10"', '"step 20"'), encoding="utf-8")
    for command in ("certificate", "test", "evaluate"):
        regard(command, run).fails_with("was changed", "line 3 does not match the chain")


def test_a_ledger_of_version_1_is_refused_in_one_line(regard, run: Path):
    (run / "ledger.jsonl").write_text('{"time": "", "set": "valid", "what": "training"}\n', encoding="utf-8")
    for command in ("certificate", "test", "evaluate"):
        regard(command, run).fails_with("ledger version 1, written by regard 0.1", "reads version 2")


def test_a_sealed_set_that_was_changed_is_detected(regard, run: Path, brought: tuple[Path, Path]):
    (run / "sealed" / "test.rows").write_bytes((brought[0] / "sealed" / "test.rows").read_bytes())
    regard("test", run).fails_with("was changed: it is not the one in the ledger")
    (run / "sealed" / "test.rows").write_bytes(b"rows")
    regard("test", run).fails_with("cannot be opened")
    assert "still sealed" in sentences_of(regard("certificate", run, "--json"))


@pytest.mark.parametrize(("name", "beginning"), [("c.html", b"<!"), ("c.png", b"\x89PNG"), ("c.svg", b"<?xml")])
def test_a_certificate_is_drawn_to_a_file(regard, trained: Path, tmp_path: Path, name: str, beginning: bytes):
    regard("certificate", trained, "--out", tmp_path / name).succeeds()
    assert (tmp_path / name).read_bytes().startswith(beginning)


def test_what_cannot_be_certified_is_refused(regard, trained: Path, tmp_path: Path):
    regard("certificate", tmp_path / "nowhere").fails_with("no run at")
    regard("certificate", trained, "--metric", "beauty").fails_with("no score called 'beauty'", "exact_match")
    regard("certificate", trained, "--delta", 0).fails_with("delta must lie between 0 and 1")
    regard("certificate", trained, "--out", "c.docx").fails_with("must end in .png, .svg or .html")
    for name in ("c.png", "c.html"):
        regard("certificate", trained, "--out", tmp_path / "nowhere" / name).fails_with("cannot write", "No such file")


@pytest.fixture(scope="module")
def beside(regard, dates: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs on the same file, of which the first has opened its test set."""
    folder = tmp_path_factory.mktemp("beside")
    for seed, name in enumerate(("first", "second")):
        regard("train", dates, "--out", folder / name, "--set", f"train.seed={seed}", *SMALL).succeeds()
    regard("test", folder / "first", "--quiet").succeeds()
    return folder


@pytest.mark.slow
def test_runs_on_the_same_file_are_siblings(regard, beside: Path):
    found = json.loads(regard("certificate", beside / "second", "--json").succeeds().out)
    assert found["siblings"]["others"] == found["siblings"]["opened_by"] == ["first"]
    assert found["validation"]["num_candidates"] == 2  # each evaluated one set of weights, twice
    assert not found["is_sealed"]
    text = " ".join(found["sentences"])
    assert "has not opened its test set" in text
    assert "Sibling runs have opened the same rows: first." in text
    third = shutil.copytree(beside / "second", beside / "third")
    assert "first has opened the same test rows" in regard("test", third).succeeds().err
    shutil.rmtree(third)


def test_evaluations_on_a_file_of_ones_own_are_counted_too(regard, beside: Path, tmp_path: Path):
    file = tmp_path / "mine.tsv"
    file.write_text("a\tb\n" + "".join(f"{n} May {n}\t{n}\n" for n in range(30)), encoding="utf-8")
    first = regard("evaluate", beside / "first", file).succeeds()
    assert "candidates" not in first.err
    assert (
        "2 candidates have been evaluated on these rows" in regard("evaluate", beside / "second", file).succeeds().err
    )
    (found,) = json.loads(regard("certificate", beside / "first", "--json").succeeds().out)["files"]
    assert (found["name"], found["num_candidates"], found["num_examples"]) == ("mine.tsv", 2, 30)


@pytest.mark.slow
def test_overwriting_a_run_does_not_undo_its_evaluations(regard, beside: Path, dates: Path):
    before = json.loads(regard("certificate", beside / "first", "--json").succeeds().out)
    for seed, more in ((0, 0), (7, 1)):  # the same training again, and another one
        again = ["--set", f"train.seed={seed}", "--overwrite", *SMALL]
        regard("train", dates, "--out", beside / "first", *again).succeeds()
        after = json.loads(regard("certificate", beside / "first", "--json").succeeds().out)
        assert after["validation"]["num_candidates"] == before["validation"]["num_candidates"] + more
        assert (after["replaced_openings"], after["is_sealed"], after["openings"]) == (1, False, [])
        assert "overwritten opened the same rows once" in " ".join(after["sentences"])
