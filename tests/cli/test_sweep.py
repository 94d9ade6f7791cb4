"""`regard sweep`: errors before anything is written, what it prints, and that a kill changes nothing."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from tests.cli.test_compare_tasks import DATA, SMALL

from regard.experiments.jobs import run_job
from regard.experiments.sweep import run as module
from regard.experiments.sweep.study import trials_of
from regard.experiments.sweep.worker import work
from regard.selection.ledger import Ledger, candidates_in

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
        ("", [], ["must have at least one setting, got none"]),
        ("[train", [], ["space.toml is not TOML"]),
        (SPACE, ["--trials", "0"], ["a sweep needs at least one trial, got 0"]),
        (SPACE, ["--workers", "0"], ["a sweep needs at least one worker, got 0"]),
        (SPACE, ["--repeats", "-1"], ["repeats must be at least 0, got -1"]),
        (SPACE, ["--sampler", "tep"], ["no sampler is called 'tep'; did you mean tpe?"]),
        (SPACE, ["--pruner", "hyperbnad"], ["no pruner is called 'hyperbnad'; did you mean hyperband?"]),
        (SPACE, ["--objective", "exact_mtach"], ["no objective of seq2seq", "did you mean exact_match?"]),
        (SPACE, ["--objective", "accuracy"], ["no objective of seq2seq is called 'accuracy'"]),
        (SPACE, ["--objective", "loss", "--objective", "loss"], ["objectives must differ, got loss, loss"]),
        (SPACE, ["--steps", "3", "--minutes", "1"], ["a trial has one budget, got minutes=1 and steps=3"]),
        (SPACE, ["--pruner", "hyperband", "--minutes", "1"], ["hyperband", "a budget in steps"]),
        (SPACE, ["--sampler", "grid"], ["a grid needs choices", "train.learning_rate is a continuous range"]),
        (SPACE, ["--storage", "postgres://h/x"], ["the storage postgres://h/x cannot be reached"]),
        (SPACE, ["--storage", "sqlite:////no/such/folder/study.db"], ["cannot be reached: unable to open database"]),
        (SPACE, ["--storage", "nonsense"], ["the storage nonsense cannot be reached"]),
        (SPACE, ["--storage", "sqlite://", "--overwrite"], ["is not overwritten"]),
        (SPACE, ["--model", "lstn"], ["no preset is called 'lstn'; did you mean lstm?"]),
        ("[train.max_steps]\nlow = 1\nhigh = 9\n", [], ["train.max_steps cannot be searched: all trials"]),
        ("[task.tokenizer]\nchoices = ['bpe', 'words']\n", ["--objective", "loss"], ["for different task.tokenizer"]),
        ("[model.num_layers]\nchoices = [1, 2]\n", ["--sampler", "grid", "--trials", "3"], ["the grid has 2 points"]),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_an_error_before_anything_is_written(
    regard, dates: Path, tiny: list[str], space: Path, monkeypatch, text: str, options: list[str], parts: list[str]
):
    monkeypatch.chdir(space.parent)
    space.write_text(text)
    regard("sweep", dates, space, "--quiet", *tiny, *options).fails_with(*parts)
    assert list(space.parent.iterdir()) == [space]


def test_data_and_space_are_both_needed(regard, dates: Path):
    regard("sweep", dates).fails_with("a sweep needs data and, last, a TOML file of ranges")


def test_a_password_is_not_shown(regard, dates: Path, tiny: list[str], space: Path):
    answer = regard("sweep", dates, space, "--quiet", *tiny, "--storage", "mysql+nothing://me:secret@host/name")
    answer.fails_with("mysql+nothing://me:***@host/name cannot be reached")
    assert "secret" not in answer.err


def test_a_folder_of_something_else_is_left_alone(regard, dates: Path, tiny: list[str], space: Path):
    before = sorted(space.parent.iterdir())
    for more in ([], ["--overwrite"]):
        regard("sweep", dates, space, "--quiet", *tiny, "--out", space.parent, *more).fails_with(
            f"neither empty nor a sweep, it has {space.name}: name another folder"
        )
    assert sorted(space.parent.iterdir()) == before


@pytest.mark.slow
def test_the_winner_its_repeats_and_the_certificate_are_printed(
    regard, dates: Path, tiny: list[str], space: Path, monkeypatch
):
    monkeypatch.setattr(module, "start_worker", lambda pool, plan, log: work(plan))
    monkeypatch.setattr(module, "run_jobs", lambda jobs, **_: [run_job(job) for job in jobs])
    options = [*tiny, "--trials", 2, "--repeats", 2, "--steps", 3, "--out", space.parent / "s"]
    shown = regard("sweep", dates, space, *options).succeeds()
    assert "M = 12 (2 trials + 2 repeats) x 3 evaluations" in shown.err
    assert "differences above" in shown.err or "no difference is significant" in shown.err
    for words in ("with exact match", "2 other seeds", "Certificate: exact match", "M = 12"):
        assert words in shown.out
    table = json.loads(regard("sweep", dates, space, *options, "--json").succeeds().out.splitlines()[-1])
    assert table["num_trials"] == 2
    assert table["hypotheses"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conversations", "trees"])
def test_conversations_and_trees_are_searched(regard, space: Path, monkeypatch, kind: str):
    """By the loss of answers, and by the F1 of brackets, which has no bound: the certificate says so."""
    monkeypatch.setattr(module, "start_worker", lambda pool, plan, log: work(plan))
    monkeypatch.setattr(module, "run_jobs", lambda jobs, **_: [run_job(job) for job in jobs])
    name, write, options = DATA[kind]
    (space.parent / name).write_text(write())
    small = [*SMALL, *(option for option in options if option not in ("--models", "lstm,gpt"))]
    out = space.parent / "s"
    shown = regard("sweep", space.parent / name, space, *small, "--trials", 2, "--repeats", 1, "--steps", 3,
                   "--out", out, "--json").succeeds()  # fmt: skip
    table = json.loads(shown.out.splitlines()[-1])
    assert table["num_trials"] == 2
    assert table["hypotheses"] == 6
    assert (out / "sweep.html").stat().st_size > 0


@pytest.mark.slow
def test_a_sweep_that_was_stopped_and_killed_ends_as_if_it_had_not_been(
    regard, dates: Path, tiny: list[str], space: Path
):
    """With processes of its own, by Ctrl-C and then by a signal that no process can handle."""
    folder = space.parent / "s"
    options = [*tiny, "--trials", 4, "--steps", 12, "--repeats", 1, "--json", "--out", folder, "--workers"]
    command = [sys.executable, "-m", "regard", "sweep", str(dates), str(space), *map(str, options)]
    stopped, error = stop_at([*command, "1"], folder / "trials" / "0001" / "run.toml", signal.SIGINT)
    assert stopped == 130, error
    assert "the same command continues from there" in error
    assert not (folder / "result.json").exists()
    killed, _ = stop_at([*command, "2"], folder / "trials" / "0002" / "run.toml", signal.SIGKILL)
    assert killed == -signal.SIGKILL
    assert not (folder / "result.json").exists()

    table = json.loads(regard("sweep", dates, space, *options, 1).succeeds().out.splitlines()[-1])
    (name,) = optuna.get_all_study_names(f"sqlite:///{folder / 'study.db'}")
    study = optuna.load_study(study_name=name, storage=f"sqlite:///{folder / 'study.db'}")
    assert list(trials_of(study)) == list(range(4))
    assert len(study.trials) > 4  # those that were running are queued again
    assert table["num_trials"] == len(list((folder / "trials").iterdir())) == 4
    lines = Ledger(folder / "ledger.jsonl").read()
    assert table["hypotheses"] == len(candidates_in(lines)) == (4 + 1) * 3
    assert len(lines) == (4 + 1) * 4  # three evaluations in training, and the last one, each once


def stop_at(command: list[str], path: Path, number: signal.Signals) -> tuple[int, str]:
    """Start a command, send it a signal when `path` exists, and return its exit code and stderr."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not path.exists():
            time.sleep(0.02)
        process.send_signal(number)
        _, error = process.communicate(timeout=120)
    return process.returncode, error
