"""Child processes: threads, the lock of a folder, a child that exits with its parent."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.errors import RunError
from regard.experiments import processes
from regard.experiments.processes import folder_lock, process_pool, split_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "num_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_jobs_share_the_cores():
    assert split_cores(20, "cpu") == (8, 1)
    assert split_cores(3, "cpu") == (3, 2)
    assert split_cores(20, "cpu", 1) == (1, 8)
    assert split_cores(20, "cuda") == (1, 8)


@pytest.mark.parametrize(("value", "threads"), [("3", 3), (" 2 , 4", 2), ("", 8), ("many", 8), ("0", 8)])
def test_the_number_of_threads_that_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch, value: str, threads: int):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert split_cores(20, "cpu", 1) == (1, threads)


def test_one_experiment_at_a_time_uses_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_LOCK_SECONDS", 0.1)
    with folder_lock(tmp_path), pytest.raises(RunError, match="another process is using"), folder_lock(tmp_path):
        pass
    with folder_lock(tmp_path):
        pass


def test_a_child_holds_the_lock_until_it_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A killed parent leaves its lock to its children, so that nobody else uses the folder while they save."""
    with folder_lock(tmp_path) as lock:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock])
    with open(tmp_path / ".lock", "a") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.communicate(b"\n")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
def test_a_child_saves_and_exits_when_its_parent_is_killed(tmp_path: Path):
    """The parent starts a job that trains for long, and is killed."""
    log, run = tmp_path / "log", tmp_path / "run"
    code = f"""
import time
from dataclasses import asdict
from pathlib import Path
from regard.experiments.jobs import Job
from regard.experiments.processes import process_pool

settings = {{"model": {{"model_dim": 16, "num_layers": 1}}, "train": {{"max_steps": 100000, "device": "cpu"}},
             "data": {{"num_rows": 300}}, "task": {{"tokenizer": "characters"}}}}
job = Job(label="a", seed=0, path={str(run)!r}, data=["dates"], settings=settings, threads=1)
with process_pool() as pool:
    child = pool.start("regard.experiments.jobs", asdict(job), Path({str(log)!r}), threads=1)
    print(child.pid, flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "REGARD_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        deadline = time.monotonic() + 120
        while not (run / "metrics.jsonl").exists() and Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        parent.kill()
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
    assert list((run / "checkpoints").iterdir())
    assert "stopped at step" in log.read_text()


def test_children_are_stopped_with_the_pool(tmp_path: Path):
    """The child is a module that reads stdin to its end."""
    with process_pool() as pool:
        child = pool.start("json.tool", {}, tmp_path / "log", threads=1)
        assert child.poll() is None
    assert child.returncode is not None
    assert pool.processes == []
