"""The test set stays shut until it is opened, and who changes what was written is found out."""

import json
import shutil
from pathlib import Path

import pytest

SMALL = ("--set", "model.model_dim=16", "--set", "model.num_heads=2", "--steps", 3, "--quiet")


def sentences_of(answer) -> str:
    return " ".join(json.loads(answer.is_well().out.splitlines()[-1])["sentences"])


@pytest.fixture(scope="module")
def brought(regard, dates: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose test rows are a file of their own, and that file."""
    folder = tmp_path_factory.mktemp("brought")
    header, *rows = dates.read_text(encoding="utf-8").splitlines()
    for name, some in (("train", rows[:-20]), ("test", rows[-20:])):
        (folder / f"{name}.tsv").write_text("\n".join([header, *some]) + "\n", encoding="utf-8")
    regard("train", folder / "train.tsv", "--test", folder / "test.tsv", "--out", folder / "run", *SMALL).is_well()
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
    regard(command, *arguments[command]).says_no("is a sealed test set")
    assert not list(tmp_path.rglob("run.toml"))


def test_a_file_of_the_sealed_rows_is_known_under_any_name(regard, brought: tuple[Path, Path], tmp_path: Path):
    run, file = brought
    regard("evaluate", run, shutil.copy(file, tmp_path / "other.tsv"), "--quiet").says_no("sealed test set of the run")
    assert "still sealed" in sentences_of(regard("certificate", run, "--json"))


def test_the_certificate_counts_openings(regard, run: Path):
    assert "still sealed" in sentences_of(regard("certificate", run, "--json"))
    regard("test", run, "--quiet").is_well()
    once = json.loads(regard("certificate", run, "--json").is_well().out)
    assert "opened once" in " ".join(once["sentences"])
    assert (once["is_sealed"], once["test"]["num_hypotheses"]) == (False, 1)
    regard("test", run, "--quiet").is_well()
    twice = json.loads(regard("certificate", run, "--json").is_well().out)
    assert "opened twice" in " ".join(twice["sentences"])
    assert twice["test"]["num_hypotheses"] == 2
    assert twice["test"]["best"]["lower"] <= once["test"]["best"]["lower"]
    assert twice["ledger"] != once["ledger"]


def test_an_edited_ledger_is_detected_by_whoever_reads_it(regard, run: Path):
    ledger = run / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"step 10"', '"step 20"'), encoding="utf-8")
    for command in ("certificate", "test", "evaluate"):
        regard(command, run).says_no("not as it was written", "line 3 does not fit the chain")


def test_a_sealed_set_that_was_changed_is_detected(regard, run: Path, brought: tuple[Path, Path]):
    (run / "sealed" / "test.rows").write_bytes((brought[0] / "sealed" / "test.rows").read_bytes())
    regard("test", run).says_no("was changed: it is not the one in the ledger")
    (run / "sealed" / "test.rows").write_bytes(b"rows")
    regard("test", run).says_no("cannot be opened")
    assert "still sealed" in sentences_of(regard("certificate", run, "--json"))


@pytest.mark.parametrize(("name", "beginning"), [("c.html", b"<!"), ("c.png", b"\x89PNG"), ("c.svg", b"<?xml")])
def test_a_certificate_is_drawn_to_a_file(regard, trained: Path, tmp_path: Path, name: str, beginning: bytes):
    regard("certificate", trained, "--out", tmp_path / name).is_well()
    assert (tmp_path / name).read_bytes().startswith(beginning)


def test_what_cannot_be_certified_is_told(regard, trained: Path, tmp_path: Path):
    regard("certificate", tmp_path / "nowhere").says_no("no run at")
    regard("certificate", trained, "--metric", "beauty").says_no("no score called 'beauty'", "exact_match")
    regard("certificate", trained, "--delta", 0).says_no("delta must lie between 0 and 1")
    regard("certificate", trained, "--out", "c.docx").says_no("must end in .png, .svg or .html")
    for name in ("c.png", "c.html"):
        regard("certificate", trained, "--out", tmp_path / "nowhere" / name).says_no("cannot write", "No such file")


@pytest.fixture(scope="module")
def beside(regard, dates: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs on the same file, of which the first has opened its test set."""
    folder = tmp_path_factory.mktemp("beside")
    for seed, name in enumerate(("first", "second")):
        regard("train", dates, "--out", folder / name, "--set", f"train.seed={seed}", *SMALL).is_well()
    regard("test", folder / "first", "--quiet").is_well()
    return folder


def test_runs_on_the_same_file_know_of_each_other(regard, beside: Path):
    found = json.loads(regard("certificate", beside / "second", "--json").is_well().out)
    assert found["neighbours"]["others"] == found["neighbours"]["openers"] == ["first"]
    assert found["validation"]["num_hypotheses"] == 2  # each looked at one set of weights, twice
    assert not found["is_sealed"]
    told = " ".join(found["sentences"])
    assert "has not opened its test set" in told
    assert "opened by first beside it" in told
    third = shutil.copytree(beside / "second", beside / "third")
    assert "first beside it has opened the same test rows" in regard("test", third).is_well().err
    shutil.rmtree(third)


def test_looks_at_a_file_of_ones_own_are_counted_too(regard, beside: Path, tmp_path: Path):
    file = tmp_path / "mine.tsv"
    file.write_text("a\tb\n" + "".join(f"{n} May {n}\t{n}\n" for n in range(30)), encoding="utf-8")
    first = regard("evaluate", beside / "first", file).is_well()
    assert "hypotheses here" not in first.err
    assert "these rows have judged 2 hypotheses here" in regard("evaluate", beside / "second", file).is_well().err
    (found,) = json.loads(regard("certificate", beside / "first", "--json").is_well().out)["files"]
    assert (found["name"], found["num_hypotheses"], found["num_examples"]) == ("mine.tsv", 2, 30)


def test_overwriting_a_run_does_not_undo_its_looks(regard, beside: Path, dates: Path):
    before = json.loads(regard("certificate", beside / "first", "--json").is_well().out)
    for seed, more in ((0, 0), (7, 1)):  # the same training again, and another one
        again = ["--set", f"train.seed={seed}", "--overwrite", *SMALL]
        regard("train", dates, "--out", beside / "first", *again).is_well()
        after = json.loads(regard("certificate", beside / "first", "--json").is_well().out)
        assert after["validation"]["num_hypotheses"] == before["validation"]["num_hypotheses"] + more
        assert (after["replaced_openings"], after["is_sealed"], after["openings"]) == (1, False, [])
        assert "overwritten opened the same rows once" in " ".join(after["sentences"])
