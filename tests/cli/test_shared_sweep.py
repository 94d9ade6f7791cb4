"""`regard sweep --storage`: two machines, one PostgreSQL, and one machine that is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from tests.postgresql import TIMEOUT_SECONDS, Machine, Server, running_server, two_machines, why_not

from regard.errors import RunError
from regard.experiments.sweep.study import (
    TrialKey,
    close_storage,
    open_storage,
    trials_of,
    with_driver,
    without_password,
)

REASON = why_not()
needs_postgresql = pytest.mark.skipif(REASON is not None, reason=str(REASON))

SPACE = "[train.learning_rate]\nlow = 1e-3\nhigh = 1e-1\nlog = true\n"
TRIALS, STEPS, GRACE_SECONDS = 4, 300, 12
COMMAND = f"""
from regard.experiments.sweep import run, study
study.GRACE_SECONDS, study.HEARTBEAT_SECONDS, run.HEARTBEAT_SECONDS = {GRACE_SECONDS}, 1, 1
from regard.cli.main import main
main()
"""
"""The command, which notices sooner that a machine is lost: five minutes are long for a test."""


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Server, tuple[Machine, Machine]]]:
    with two_machines() as machines:
        hosts = dict.fromkeys(["127.0.0.1", *(machine.host for machine in machines)])
        with running_server(list(hosts)) as server:
            yield server, machines


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Data and space."""
    data, space = tmp_path / "films.tsv", tmp_path / "space.toml"
    rows = [(f"{word} film number {n}", label) for n in range(70) for word, label in (("good", "+"), ("bad", "-"))]
    data.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    space.write_text(SPACE)
    return data, space


def start(machine: Machine, storage: str, files: tuple[Path, Path], out: Path) -> subprocess.Popen[str]:
    small = [
        "model.num_layers=1",
        "model.model_dim=8",
        "model.num_heads=1",
        "model.feedforward_dim=11",
        "task.ngrams=0",
    ]
    options = [word for setting in small for word in ("--set", setting)]
    command = [*machine.prefix, sys.executable, "-c", COMMAND, "sweep", *map(str, files), "--storage", storage,
               "--model", "tiny", "--tokenizer", "characters", "--device", "cpu", "--trials", TRIALS, "--steps", STEPS,
               "--workers", 1, "--repeats", 0, "--sampler", "random", "--out", out, "--json", *options]  # fmt: skip
    environment = {**os.environ, "REGARD_CACHE": str(out.with_suffix(".cache")), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment)  # fmt: skip


def wait_until(is_true: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 2 * TIMEOUT_SECONDS
    while not is_true():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def database(network: tuple[Server, tuple[Machine, Machine]]) -> Iterator[RDBStorage]:
    storage = open_storage(network[0].url())
    yield storage
    close_storage(storage)


def study_in(database: RDBStorage) -> optuna.Study | None:
    names = optuna.get_all_study_names(database)
    return optuna.load_study(study_name=names[0], storage=database) if names else None


def owner_of(out: Path) -> str | None:
    path = out / "sweep.json"
    return json.loads(path.read_text())["owner"] if path.is_file() else None


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL a process and its children at once, as if its machine had lost power."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for number in [process.pid, *map(int, children)]:
        os.kill(number, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_SECONDS)


@needs_postgresql
@pytest.mark.slow
def test_two_machines_share_a_sweep_and_one_of_them_is_lost(
    network: tuple[Server, tuple[Machine, Machine]], database: RDBStorage, files: tuple[Path, Path], tmp_path: Path
):
    server, machines = network
    first, second = tmp_path / "a", tmp_path / "b"
    lost = start(machines[0], server.url(machines[0].host), files, first)
    kept = start(machines[1], server.url(machines[1].host), files, second)
    try:

        def is_training() -> bool:
            """Whether the first machine has begun a trial that it has not ended."""
            study, owner = study_in(database), owner_of(first)
            running = [
                trial.user_attrs[TrialKey.INDEX]
                for trial in ([] if study is None or owner is None else study.trials)
                if trial.state == TrialState.RUNNING
                and trial.user_attrs.get(TrialKey.OWNER) == owner
                and TrialKey.INDEX in trial.user_attrs
            ]
            return any((first / "trials" / f"{index:04d}" / "run.toml").is_file() for index in running)

        wait_until(is_training, lost, kept)
        kill(lost)
        answer, messages = kept.communicate(timeout=5 * TIMEOUT_SECONDS)
    finally:
        for process in (lost, kept):
            if process.poll() is None:
                kill(process)
    assert kept.returncode == 0, messages
    table = json.loads(answer.splitlines()[-1])
    assert sorted(trial["number"] for trial in table["trials"]) == list(range(TRIALS))
    assert {trial["state"] for trial in table["trials"]} == {"finished"}
    assert {trial["evaluations"] for trial in table["trials"]} == {3}
    assert table["hypotheses"] == 3 * TRIALS

    study = study_in(database)
    assert study is not None
    ended = trials_of(study)
    assert sorted(ended) == list(range(TRIALS))
    assert {trial.state for trial in ended.values()} == {TrialState.COMPLETE}
    assert Counter(trial.state for trial in study.trials)[TrialState.COMPLETE] == TRIALS
    given_up = [
        trial for trial in study.trials if trial.state == TrialState.FAIL and not trial.user_attrs.get("surplus")
    ]
    (attempt,) = [trial for trial in given_up if trial.user_attrs[TrialKey.OWNER] == owner_of(first)]
    again = ended[attempt.user_attrs[TrialKey.INDEX]]
    assert again.number != attempt.number
    assert again.params == attempt.params
    assert again.user_attrs[TrialKey.OWNER] == owner_of(second)

    assert server.password not in answer + messages
    written = [path for folder in (first, second) for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in written if server.password.encode() in path.read_bytes()]


@needs_postgresql
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (lambda server: server.url(password="sesame"), 'password authentication failed for user "regard"'),
        (lambda server: server.url(database="sweeps"), 'database "sweeps" does not exist'),
        (lambda server: server.url("127.0.0.2", password="sesame"), "Connection refused"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line_without_the_password(
    network: tuple[Server, tuple[Machine, Machine]],
    regard: Callable[..., "object"],
    files: tuple[Path, Path],
    tmp_path: Path,
    url: Callable[[Server], str],
    reason: str,
):
    storage = url(network[0])
    answer = regard("sweep", *files, "--quiet", "--tokenizer", "characters", "--device", "cpu", "--storage", storage,
                    "--out", tmp_path / "s")  # fmt: skip
    answer.fails_with("the storage postgresql://regard:***@127.0.0.", reason)
    assert "sesame" not in answer.err
    assert network[0].password not in answer.err
    assert not (tmp_path / "s").exists()


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    message = (
        r"^the storage postgresql://me:\*\*\*@host/name cannot be reached: it needs the package psycopg: "
        r"install regard\[postgresql\]$"
    )
    with pytest.raises(RunError, match=message):
        open_storage("postgresql://me:secret@host/name")


def test_a_password_with_special_characters_is_passed_on_and_not_shown():
    url = "postgresql://me:p%40ss%3Aword@host:5433/name?sslmode=require"
    assert with_driver(url) == "postgresql+psycopg://me:p%40ss%3Aword@host:5433/name?sslmode=require"
    assert without_password(url) == "postgresql://me:***@host:5433/name?sslmode=require"
    assert with_driver("postgresql+asyncpg://me@host/name") == "postgresql+asyncpg://me@host/name"
    assert with_driver("sqlite:///study.db") == "sqlite:///study.db"
