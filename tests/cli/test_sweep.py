"""`regard sweep`: what it refuses before anything is written, what it prints, and that a kill changes nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from regard.runs import sweep_pool
from regard.runs.sweep_worker import work
from regard.selection.ledger import Ledger, hypotheses

SPACE = "[train.learning_rate]\nlow = 1e-3\nhigh = 1e-1\nlog = true\n\n[model.dropout]\nlow = 0\nhigh = 0.3\n"


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return path


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        (SPACE.replace("learning_rate", "learning_rat"), [], ["train.learning_rat; did you mean train.learning_rate?"]),
        (SPACE.replace("[model", "[modle"), [], ["unknown setting modle; did you mean model?"]),
        ("", [], ["the space has no settings: there is nothing to search"]),
        ("[train", [], ["space.toml is not TOML"]),
        (SPACE, ["--trials", "0"], ["a sweep needs at least one trial, got 0"]),
        (SPACE, ["--workers", "0"], ["a sweep needs at least one worker, got 0"]),
        (SPACE, ["--again", "-1"], ["no less than 0 times, got -1"]),
        (SPACE, ["--sampler", "tep"], ["no sampler is called 'tep'; did you mean tpe?"]),
        (SPACE, ["--pruner", "hyperbnad"], ["no pruner is called 'hyperbnad'; did you mean hyperband?"]),
        (SPACE, ["--objective", "exact_mtach"], ["no objective of translation", "did you mean exact_match?"]),
        (SPACE, ["--objective", "accuracy"], ["no objective of translation is called 'accuracy'"]),
        (SPACE, ["--objective", "loss", "--objective", "loss"], ["objectives must differ, got loss, loss"]),
        (SPACE, ["--steps", "3", "--minutes", "1"], ["a trial has one budget, got minutes=1 and steps=3"]),
        (SPACE, ["--pruner", "hyperband", "--minutes", "1"], ["hyperband", "a budget in steps"]),
        (SPACE, ["--sampler", "grid"], ["a grid needs choices", "train.learning_rate is a range without one"]),
        (SPACE, ["--storage", "postgres://h/x"], ["the storage postgres://h/x cannot be reached"]),
        (SPACE, ["--storage", "sqlite:////no/such/folder/study.db"], ["cannot be reached: unable to open database"]),
        (SPACE, ["--storage", "nonsense"], ["the storage nonsense cannot be reached"]),
        (SPACE, ["--storage", "sqlite://", "--overwrite"], ["is not overwritten"]),
        (SPACE, ["--model", "lstn"], ["no preset is called 'lstn'; did you mean lstm?"]),
        ("[train.max_steps]\nlow = 1\nhigh = 9\n", [], ["train.max_steps cannot be searched: all trials"]),
        ("[data.tokenizer]\nchoices = ['bpe', 'words']\n", ["--objective", "loss"], ["with another data.tokenizer"]),
        ("[model.num_layers]\nchoices = [1, 2]\n", ["--sampler", "grid", "--trials", "3"], ["the grid has 2 points"]),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_told_before_anything_is_written(
    regard, dates: Path, tiny: list[str], space: Path, monkeypatch, text: str, options: list[str], parts: list[str]
):
    monkeypatch.chdir(space.parent)
    space.write_text(text)
    regard("sweep", dates, space, "--quiet", *tiny, *options).says_no(*parts)
    assert list(space.parent.iterdir()) == [space]


def test_data_and_space_are_both_needed(regard, dates: Path):
    regard("sweep", dates).says_no("a sweep takes data and, last, a TOML file of ranges")


def test_a_password_is_not_shown(regard, dates: Path, tiny: list[str], space: Path):
    answer = regard("sweep", dates, space, "--quiet", *tiny, "--storage", "mysql+nothing://me:secret@host/name")
    answer.says_no("mysql+nothing://me:***@host/name cannot be reached")
    assert "secret" not in answer.err


def test_a_folder_of_something_else_is_left_alone(regard, dates: Path, tiny: list[str], space: Path):
    (space.parent / "trials").mkdir()
    regard("sweep", dates, space, "--quiet", *tiny, "--out", space.parent).says_no("not a sweep: name another folder")


@pytest.mark.slow
def test_what_is_printed_tells_the_luck_and_the_certificate(
    regard, dates: Path, tiny: list[str], space: Path, monkeypatch
):
    monkeypatch.setattr(sweep_pool.Workers, "start", lambda self, order: work(order))
    options = [*tiny, "--trials", 2, "--again", 2, "--steps", 3, "--out", space.parent / "s"]
    shown = regard("sweep", dates, space, *options).is_well()
    assert "M = 12 (2 trials + 2 again) x 3 looks" in shown.err
    assert "only differences above" in shown.err or "no difference is large enough" in shown.err
    for words in (
        "won with exact match",
        "Trained again with 2 other seeds",
        "Certificate: exact match",
        "M = 12 looks",
    ):
        assert words in shown.out
    table = json.loads(regard("sweep", dates, space, *options, "--json").is_well().out.splitlines()[-1])
    assert table["num_trials"] == 2
    assert table["hypotheses"] == 12


@pytest.mark.slow
def test_a_sweep_that_was_killed_ends_as_if_it_had_not_been(regard, dates: Path, tiny: list[str], space: Path):
    """With processes of its own, as a user has it, and a signal that nobody can handle."""
    folder = space.parent / "s"
    options = [*tiny, "--trials", 8, "--workers", 2, "--steps", 12, "--again", 1, "--json", "--out", folder]
    command = [sys.executable, "-m", "regard", "sweep", str(dates), str(space), *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (folder / "trials" / "0003" / "run.toml").exists():
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert not (folder / "result.json").exists()

    table = json.loads(regard("sweep", dates, space, *options).is_well().out.splitlines()[-1])
    (name,) = optuna.get_all_study_names(f"sqlite:///{folder / 'study.db'}")
    study = optuna.load_study(study_name=name, storage=f"sqlite:///{folder / 'study.db'}")
    assert [trial.number for trial in study.trials] == list(range(8))
    assert table["num_trials"] == len(list((folder / "trials").iterdir())) == 8
    lines = Ledger(folder / "ledger.jsonl").read()
    assert table["hypotheses"] == len(hypotheses(lines)) == (8 + 1) * 3
    assert len(lines) == (8 + 1) * 4  # three looks of training, and the report, each once


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(regard, dates: Path, tiny: list[str], space: Path):
    folder = space.parent / "s"
    options = [*tiny, "--trials", 3, "--workers", 1, "--steps", 12, "--again", 0, "--json", "--out", folder]
    command = [sys.executable, "-m", "regard", "sweep", str(dates), str(space), *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (folder / "trials" / "0001" / "run.toml").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on from there" in told
    assert json.loads(regard("sweep", dates, space, *options).is_well().out.splitlines()[-1])["num_trials"] == 3
