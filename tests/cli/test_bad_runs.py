"""Runs that are missing, foreign, edited or damaged; and folders that are taken."""

import json
import shutil
from pathlib import Path

import pytest


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damage(path: Path) -> None:
    """Change one byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


@pytest.mark.parametrize("command", ["predict", "evaluate", "test", "attention"])
def test_a_run_that_is_none(regard, tmp_path: Path, command: str):
    more = ["x"] if command in ("predict", "attention") else []
    regard(command, tmp_path / "none", *more).fails_with("no run at", "no such folder")
    (tmp_path / "empty").mkdir()
    regard(command, tmp_path / "empty", *more).fails_with("empty is not a run folder: it has no run.toml")
    (tmp_path / "file").write_text("")
    regard(command, tmp_path / "file", *more).fails_with("file is not a run folder")
    (tmp_path / "sweep" / "trials" / "0000").mkdir(parents=True)
    (tmp_path / "sweep" / "trials" / "0000" / "run.toml").touch()
    regard(command, tmp_path / "sweep", *more).fails_with("it has runs, such as", "sweep/trials/0000")


def test_a_folder_that_holds_a_run_is_left_alone(regard, tiny, run: Path, dates: Path):
    before = snapshot(run)
    answer = regard("train", dates, "--out", run, "--steps", 1, *tiny, "--quiet")
    answer.fails_with("already has a run", "--resume", "--overwrite")
    assert snapshot(run) == before


def test_overwriting_replaces_the_run_and_nothing_else(regard, tiny, run: Path, dates: Path):
    (run / "notes.txt").write_text("mine")
    regard("train", dates, "--out", run, "--steps", 1, *tiny, "--quiet", "--overwrite").succeeds()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000000001.safetensors"]
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 1]
    assert (run / "notes.txt").read_text() == "mine"


def test_overwriting_through_a_link(regard, tiny, run: Path, dates: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(run)
    regard("train", dates, "--out", tmp_path / "link", "--steps", 1, *tiny, "--quiet", "--overwrite").succeeds()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000000001.safetensors"]


def test_an_old_run_outlives_a_bad_wish_to_overwrite_it(regard, tiny, run: Path, tmp_path: Path):
    (tmp_path / "empty.tsv").write_text("")
    before = snapshot(run)
    regard("train", tmp_path / "empty.tsv", "--out", run, "--overwrite", *tiny, "--quiet").fails_with("is empty")
    assert snapshot(run) == before


def test_an_output_path_that_is_a_file(regard, tiny, dates: Path, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        answer = regard("train", dates, "--out", out, "--steps", 1, *tiny, "--quiet", "--overwrite")
        answer.fails_with(str(out))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_with_weights_of_something_else_is_left_alone(regard, tiny, dates: Path, tmp_path: Path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "step-000000500.safetensors").write_text("foreign")
    answer = regard("train", dates, "--out", tmp_path / "run", "--steps", 1, *tiny, "--quiet", "--overwrite")
    answer.fails_with("has checkpoints but no run.toml")
    assert list(snapshot(tmp_path / "run").values()) == [b"foreign"]


def edit(run: Path, old: str, new: str) -> None:
    text = (run / "run.toml").read_text()
    assert old in text
    (run / "run.toml").write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("[train]", "[train]\nsede = 3", ["run.toml: unknown setting train.sede; did you mean train.seed?"]),
        ("model_dim = 22", "", ["the weights do not fit the model"]),
        ("model_dim = 22", "model_dim = 24", ["the weights do not fit the model"]),
        ("model_dim = 22", 'model_dim = "22"', ["run.toml: model.model_dim", "got '22'"]),
        ("[train]", "[train", ["run.toml is not TOML"]),
        ("[provenance]", "[record]", ["was written by regard"]),
        ('name = "seq2seq"', 'name = "poetry"', ["run.toml: unknown task 'poetry'"]),
    ],
)
def test_a_badly_edited_run_is_told(regard, run: Path, old: str, new: str, parts: list[str]):
    edit(run, old, new)
    regard("predict", run, "x").fails_with(*parts)


def test_a_run_without_its_provenance_or_a_resolved_setting_is_an_error(regard, run: Path):
    whole = (run / "run.toml").read_text()
    for name, old, new in (
        ("train.max_steps", "max_steps = 30\n", ""),
        ("train.learning_rate", "learning_rate = 0.0064\n", ""),
        ("provenance.num_parameters", "num_parameters = ", "num_params = "),
    ):
        edit(run, old, new)
        regard("train", "--out", run, "--resume", "--quiet").fails_with("run.toml", name)
        (run / "run.toml").write_text(whole)
    (run / "run.toml").write_text(whole[: whole.index("[provenance]")])
    for command in (["train", "--out", run, "--resume", "--quiet"], ["predict", run, "x"]):
        regard(*command).fails_with("was written by regard 0.1")
    (run / "run.toml").write_text("")
    regard("predict", run, "x").fails_with("run.toml is empty: the run was not written completely")


@pytest.mark.parametrize("harm", [damage, truncate, Path.unlink])
def test_damaged_weights_are_noticed_and_a_checkpoint_used(regard, run: Path, trained: Path, harm):
    harm(run / "model.safetensors")
    answer = regard("predict", run, "4 March 2025", "--quiet").succeeds()
    assert answer.err.count("\n") == 1
    assert "model.safetensors" in answer.err
    assert "using the newest complete checkpoint, of step 30" in answer.err
    # The best step was the last, so both hold the same weights.
    assert answer.out == regard("predict", trained, "4 March 2025").succeeds().out


@pytest.mark.parametrize("harm", [damage, truncate])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(regard, run: Path, dates: Path, harm):
    whole = snapshot(run)
    harm(run / "checkpoints" / "step-000000030.safetensors")
    answer = regard("train", dates, "--out", run, "--resume", "--quiet").succeeds()
    assert "step-000000030.safetensors is damaged" in answer.err
    assert "the previous checkpoint is used" in answer.err
    after = snapshot(run)
    assert after["model.safetensors"] == whole["model.safetensors"]
    assert [json.loads(line)["step"] for line in after["metrics.jsonl"].splitlines()] == [10, 10, 20, 20, 30, 30]


def test_the_note_of_a_checkpoint_is_guarded_too(regard, run: Path, dates: Path):
    path = run / "checkpoints" / "step-000000030.safetensors"
    data = path.read_bytes()
    note = b'step\\\\\\": 30'
    assert note in data
    path.write_bytes(data.replace(note, note.replace(b"30", b"29")))
    assert "damaged" in regard("train", dates, "--out", run, "--resume", "--quiet").succeeds().err


def test_nothing_whole_is_left(regard, run: Path, dates: Path):
    for path in [run / "model.safetensors", *(run / "checkpoints").iterdir()]:
        damage(path)
    before = snapshot(run)
    for command in (["predict", run, "x"], ["train", dates, "--out", run, "--resume"]):
        answer = regard(*command, "--quiet")
        assert answer.code == 2
        assert answer.err.splitlines()[-1].startswith("regard: none of the 2 checkpoints in")
        assert "Traceback" not in answer.err
    assert snapshot(run) == before


def test_a_damaged_tokenizer(regard, run: Path):
    truncate(run / "codecs" / "text.json")
    regard("predict", run, "x").fails_with("text.json cannot be read as TextCodec")
    (run / "codecs" / "text.json").unlink()
    regard("predict", run, "x").fails_with("there is no TextCodec at", "text.json")


def test_a_ledger_line_cut_short_is_dropped_and_one_that_is_broken_is_told(regard, run: Path):
    ledger = run / "ledger.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole + b'{"time": "2025-')
    regard("test", run, "--quiet").succeeds()
    assert ledger.read_bytes().startswith(whole)
    looks = [json.loads(line) for line in ledger.read_bytes().splitlines()]
    assert [look["event"] for look in looks[-2:]] == ["opened", "evaluation"]
    assert len(looks) == len(whole.splitlines()) + 2
    ledger.write_bytes(b"{]\n" + whole)
    regard("test", run, "--quiet").fails_with("ledger.jsonl is damaged")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--set", "train.learning_rate=0.1"], ["keeps its settings", "train.learning_rate is 0.1 and was 0.0064"]),
        (["--model", "small"], ["keeps its settings", "preset is 'small' and was 'tiny'"]),
        (["--tokenizer", "bpe"], ["keeps its settings", "task.tokenizer is 'bpe' and was 'bytes'"]),
        (["--seed", 3], ["train.seed is 3 and was 0", "only data.train", "train.max_steps"]),
        (["--overwrite"], ["--resume", "--overwrite"]),
    ],
)
def test_a_resumed_run_keeps_its_settings(regard, run: Path, dates: Path, options: list, parts: list[str]):
    before = snapshot(run)
    regard("train", dates, "--out", run, "--resume", "--quiet", *options).fails_with(*parts)
    assert snapshot(run) == before


def test_resuming_where_there_is_no_run(regard, dates: Path, tmp_path: Path):
    regard("train", dates, "--out", tmp_path / "none", "--resume", "--quiet").fails_with("no run at")
    assert not list(tmp_path.iterdir())


def test_resuming_after_the_data_has_changed(regard, run: Path, dates: Path, tmp_path: Path):
    other = tmp_path / "dates.tsv"
    other.write_bytes(dates.read_bytes() + b"one more\t2025-03-04\n")
    before = snapshot(run)
    regard("train", other, "--out", run, "--resume", "--quiet").fails_with("its content has changed")
    assert snapshot(run) == before


def test_resuming_after_the_data_has_moved(regard, run: Path, dates: Path, tmp_path: Path):
    shutil.copy(dates, tmp_path / "moved.tsv")
    regard("train", tmp_path / "moved.tsv", "--out", run, "--resume", "--steps", 31, "--quiet").succeeds()
    assert (run / "checkpoints" / "step-000000031.safetensors").exists()


def test_resuming_with_another_tokenizer_in_the_run(regard, run: Path, dates: Path):
    text = json.loads((run / "codecs" / "text.json").read_text(encoding="utf-8"))
    text["model"]["vocab"] |= {"9": text["model"]["vocab"]["8"], "8": text["model"]["vocab"]["9"]}
    (run / "codecs" / "text.json").write_text(json.dumps(text), encoding="utf-8")
    regard("train", dates, "--out", run, "--resume", "--quiet").fails_with("the codecs are not those")


def test_a_finished_run_is_resumed_without_a_step(regard, run: Path, dates: Path):
    before = snapshot(run)
    regard("train", dates, "--out", run, "--resume", "--quiet").succeeds()
    after = snapshot(run)
    for name in ("model.safetensors", "metrics.jsonl", "checkpoints/step-000000030.safetensors"):
        assert after[name] == before[name]
