"""A clock that jumps, a second process, memory that runs out, data that changes, files that are left behind."""

import json
import logging
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import DataError, DeviceError, RunError
from regard.runs.folder import RunFolder
from regard.runs.train import train
from regard.tasks.seq2seq import Seq2Seq
from regard.training.precision import is_out_of_memory

PATIENCE = 120.0
ROWS = [(f"in {i}", f"out {i}") for i in range(40)]
SETTINGS = {
    "task": {"tokenizer": "bytes"},
    "model": {"model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "num_layers": 1, "dropout": 0.0},
    "train": {
        "max_steps": 12, "evaluate_every": 5, "checkpoint_every": 4, "device": "cpu", "batch_tokens": 100,
        "baseline": False,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def change(**train: Any) -> dict[str, Any]:
    return {**SETTINGS, "train": {**SETTINGS["train"], **train}}


def table(path: Path, *, first: int = 0) -> str:
    path.write_text("".join(f"in {i}\tout {i}\n" for i in range(first, first + 40)), encoding="utf-8")
    return str(path)


def jump(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lets the wall clock jump a year back, and two years forward, at each call in turn."""
    asked: list[float] = []
    now, gmtime, year = time.time, time.gmtime, 365 * 86_400.0

    def jumping() -> float:
        asked.append(0.0)
        return now() + (-year if len(asked) % 2 else 2 * year)

    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(time, "gmtime", lambda seconds=None: gmtime(jumping() if seconds is None else seconds))
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * jumping()))
    return asked


def test_a_clock_that_jumps_changes_neither_weights_nor_figures(place: Path, monkeypatch):
    train(ROWS, out=place / "steady", settings=SETTINGS, show_progress=False)
    asked = jump(monkeypatch)
    train(ROWS, out=place / "jumping", settings=SETTINGS, show_progress=False)
    assert asked, "the ledger notes the time"
    steady, jumping = (RunFolder(place / name) for name in ("steady", "jumping"))
    assert steady.model_path.read_bytes() == jumping.model_path.read_bytes()
    assert all(line["seconds"] < 3_600 for line in jumping.read_metrics() if "seconds" in line)
    assert len(jumping.read_ledger()) == len(steady.read_ledger()), "its chain does not depend on the order of times"


def test_a_budget_in_minutes_is_not_measured_by_the_wall_clock(place: Path, monkeypatch):
    jump(monkeypatch)
    before = time.monotonic()
    run = train(ROWS, out=place / "run", settings=change(max_steps=None, minutes=0.02), show_progress=False)
    assert time.monotonic() - before >= 1.2
    last = [line for line in run.folder.read_metrics() if "loss" in line][-1]
    assert last["seconds"] < 3_600
    assert last["step"] > 1


HOLD = """
import sys, time
from regard.runs.folder import RunFolder
with RunFolder(sys.argv[1]).lock():
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_the_lock_names_its_holder_and_ends_with_it(place: Path):
    data, path = table(place / "data.tsv"), place / "run"
    train(data, out=path, settings=SETTINGS, show_progress=False)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        for more in ({"resume": True}, {"overwrite": True, "settings": SETTINGS}):
            with pytest.raises(RunError) as caught:
                train(data, out=path, show_progress=False, **more)
            assert str(caught.value) == (
                f"another process, {holder.pid} on {platform.node()}, is training in {path}: name another folder"
            )
        run = RunFolder(path)
        before = len(run.read_ledger())
        command = [sys.executable, "-m", "regard", "evaluate", str(path), data, "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
        assert len(run.read_ledger()) > before, "an evaluation needs no lock but that of the ledger"
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=PATIENCE)
    train(data, out=path, resume=True, steps=14, show_progress=False)
    assert RunFolder(path).read_settings().train.max_steps == 14
    assert not (path / "lock").exists()


def test_where_files_cannot_be_locked_training_warns(place: Path, monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise OSError(37, "No locks available")

    import fcntl

    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda file, how: fail() if how & fcntl.LOCK_NB else real(file, how))
    with caplog.at_level(logging.WARNING), RunFolder(place / "run").lock():
        pass
    assert "cannot be locked (No locks available)" in caplog.text


def test_an_allocation_that_fails_is_recognized():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def allocate_more_than_there_is(monkeypatch: pytest.MonkeyPatch, *, most_rows: int) -> list[int]:
    """A batch of more rows asks the allocator for a petabyte, within the loss, and gets its error."""
    loss_of, sizes = Seq2Seq.loss, []

    def loss(self, model, batch, *arguments, **more):
        rows = next(tensor.size(0) for tensor in batch.tensors() if tensor is not None)
        if torch.is_grad_enabled():
            sizes.append(rows)
            if rows > most_rows:
                torch.empty(1 << 50)
        return loss_of(self, model, batch, *arguments, **more)

    monkeypatch.setattr(Seq2Seq, "loss", loss)
    return sizes


def test_batches_are_split_where_memory_runs_out(place: Path, monkeypatch, caplog):
    settings = change(clip_norm=0.0)
    train(ROWS, out=place / "whole", settings=settings, show_progress=False)
    sizes = allocate_more_than_there_is(monkeypatch, most_rows=3)
    with caplog.at_level(logging.WARNING):
        run = train(ROWS, out=place / "split", settings=settings, show_progress=False)
    splits = [each.message for each in caplog.records if "out of memory" in each.message]
    assert splits[0] == "out of memory: each batch is split into 2 parts from now on, with accumulated gradients"
    assert max(sizes) > 3, "the error did occur"
    assert max(sizes[-12:]) <= 3
    losses = [
        [line["loss"] for line in RunFolder(place / name).read_metrics() if "loss" in line]
        for name in ("whole", "split")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4), "the parts of a batch are one batch"
    assert run.predict("in 3")


def test_a_row_that_does_not_fit_into_memory_ends_training_with_advice(place: Path, monkeypatch):
    allocate_more_than_there_is(monkeypatch, most_rows=0)
    with pytest.raises(DeviceError, match=r"cpu ran out of memory: a smaller train\.batch_tokens than 100 may help"):
        train(ROWS, out=place / "run", settings=SETTINGS, show_progress=False)


def test_a_file_that_changes_while_it_is_read_is_an_error(place: Path, monkeypatch):
    data = Path(table(place / "data.tsv"))
    fit_codecs = Seq2Seq.fit_codecs

    def fit(self, given):  # between the pass that splits the rows and the one that encodes them
        with data.open("a", encoding="utf-8") as file:
            file.write("in 99\tout 99\n")
        return fit_codecs(self, given)

    with monkeypatch.context() as patch:
        patch.setattr(Seq2Seq, "fit_codecs", fit)
        with pytest.raises(DataError, match=r"data\.tsv changed while it was read: nothing was kept"):
            train(str(data), out=place / "run", settings=SETTINGS, show_progress=False)
    assert not (place / "run").exists()
    assert not [path for path in (place / "cache").rglob("*") if path.is_file()]
    run = train(str(data), out=place / "run", settings=SETTINGS, show_progress=False)
    assert any(note.startswith("41 rows") for note in run.folder.read_provenance().notes), "those of the whole file"


def test_a_file_that_changed_under_a_run_is_an_error_until_it_is_restored(place: Path):
    data, path = place / "data.tsv", place / "run"
    train(table(data), out=path, settings=SETTINGS, show_progress=False)
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    table(data, first=1)
    with pytest.raises(RunError, match="its content has changed; restore it, or name another folder for a new run"):
        train(out=path, resume=True, steps=14, show_progress=False)
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before
    table(data)
    train(out=path, resume=True, steps=14, show_progress=False)
    assert json.loads(RunFolder(path).metrics_path.read_text().splitlines()[-1])["step"] == 14


def test_what_a_crash_has_left_is_ignored_and_removed(place: Path):
    data, path = table(place / "data.tsv"), place / "run"
    train(data, out=path, settings=SETTINGS, show_progress=False)
    left = [path / "model.safetensors.part", path / "metrics.jsonl.part", path / "run.toml.part",
            path / "checkpoints" / "step-000000099.safetensors.part"]  # fmt: skip
    for each in left:
        each.write_bytes(b"half")
    (prepared,) = [each for each in (place / "cache").iterdir() if each.is_dir()]
    (prepared.with_name(f"{prepared.name}.{os.getpid()}.part") / "train").mkdir(parents=True)
    with RunFolder(path).metrics_path.open("a") as file:
        file.write('{"step": 12, "lo')
    run = train(data, out=path, resume=True, steps=14, show_progress=False)
    assert not list(path.rglob("*.part"))
    assert [line["step"] for line in run.folder.read_metrics()][-1] == 14
