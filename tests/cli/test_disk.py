"""A disk that is full, or fills up: it is said, and the existing file is unchanged."""

import resource
import shutil
import subprocess
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Usage = namedtuple("Usage", "total used free")
EVERY = ["--steps", 30, "--set", "train.evaluate_every=10", "--set", "train.checkpoint_every=10"]


@pytest.fixture
def has_room(monkeypatch) -> Callable[[int], None]:
    """Let the system claim that so many bytes are free."""
    return lambda free: monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2 * free, free, free))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """A folder on a disk of its own, and a function that gives it another size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    try:
        yield folder, lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_too_little_room_for_checkpoints_is_told_at_once(regard, tiny, trained, dates, tmp_path, has_room):
    has_room(1 << 19)  # the data is prepared already
    regard("train", dates, "--out", tmp_path / "a" / "run", *tiny, *EVERY, "--quiet").fails_with(
        f"not enough disk space at {tmp_path}", "MiB are free"
    )
    assert not list(tmp_path.iterdir())


def test_too_little_room_for_token_ids_is_told_at_once(regard, tiny, dates, tmp_path, has_room, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    has_room(1 << 10)
    regard("train", dates, "--out", tmp_path / "run", *tiny, *EVERY, "--quiet").fails_with(
        "not enough disk space", "token ids", "REGARD_CACHE"
    )
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_during_preparation(regard, tiny, dates, tmp_path, has_room, small_disk, monkeypatch):
    disk, resize = small_disk
    monkeypatch.setenv("REGARD_CACHE", str(disk))
    resize("16k")
    has_room(1 << 30)
    regard("train", dates, "--out", tmp_path / "run", *tiny, *EVERY, "--quiet").fails_with(
        "cannot write token ids", "No space left", "nothing was kept"
    )
    assert not list(disk.iterdir())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_disk_that_fills_up_during_training(regard, tiny, trained, dates, has_room, small_disk):
    disk, resize = small_disk
    run = disk / "run"
    has_room(1 << 30)
    size = sum(path.stat().st_size for path in (trained / "checkpoints").iterdir())
    resize(f"{size // 1024 + 100}k")  # two checkpoints, and not a third beside them
    answer = regard("train", dates, "--out", run, *tiny, *EVERY, "--quiet")
    answer.fails_with("cannot write", "No space left", "the existing file is unchanged")
    assert not list(run.rglob("*.part"))
    assert list((run / "checkpoints").iterdir())
    resize("8m")
    regard("train", dates, "--out", run, "--resume", "--quiet").succeeds()
    assert (run / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_a_disk_that_is_full_before_the_first_file(regard, tiny, trained, dates, has_room, small_disk):
    disk, resize = small_disk
    has_room(1 << 30)
    resize("4k")
    answer = regard("train", dates, "--out", disk / "run", *tiny, *EVERY, "--quiet")
    answer.fails_with("No space left")
    assert not list(disk.iterdir())


def test_a_file_larger_than_the_system_allows(regard, tiny, trained, dates, tmp_path):
    """The limit on a file's size is a full disk that needs no root."""
    run = tmp_path / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoint = (trained / "checkpoints" / "step-000000030.safetensors").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (checkpoint // 2, hard))
    try:
        answer = regard("train", dates, "--out", run, *tiny, *EVERY, "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    answer.fails_with("cannot write", "step-000000010", "File too large", "the existing file is unchanged")
    assert not list(run.rglob("*.part"))
