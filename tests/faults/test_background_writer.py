"""Checkpoints are written while training continues: copied at once, in order, waited for at the end."""

import errno
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from regard import files
from regard.errors import StoppedError, WriteError
from regard.runs import train as train_module
from regard.runs.folder import RunFolder
from regard.runs.train import train
from regard.training.checkpoints import checkpoint_paths, load_checkpoint, save_checkpoint, write_tensors
from regard.training.loop import Trainer
from regard.training.writing import BackgroundWriter

PATIENCE = 120.0
ROWS = [(f"in {i}", f"out {i}") for i in range(40)]
SETTINGS = {
    "task": {"tokenizer": "bytes"},
    "model": {"model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "num_layers": 1},
    "train": {
        "max_steps": 12, "evaluate_every": 50, "checkpoint_every": 3, "device": "cpu", "batch_tokens": 100,
        "baseline": False,
    },
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "run"


def test_files_are_those_of_safetensors(tmp_path: Path):
    """The order and the alignment of tensors too: of each size of element, and without elements or dimensions."""
    dtypes = [torch.float32, torch.int64, torch.bfloat16, torch.uint8, torch.bool, torch.float16, torch.float64]
    tensors = {f"{'ab'[n % 2]}{n}": torch.arange(3 + n).to(dtype) for n, dtype in enumerate(dtypes)}
    tensors |= {"none": torch.zeros(0, 5), "one": torch.tensor(3.0), "part": torch.arange(12.0).reshape(3, 4)[:, ::2]}
    path = tmp_path / "file"
    write_tensors(path, tensors, {"step": 7, "text": 'ü "'})
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)
    alone = {"a": torch.arange(5.0), "b": torch.arange(6.0).reshape(2, 3)}
    write_tensors(path, alone, {})
    assert path.read_bytes()[-44:] == save(alone)[-44:]


def test_what_is_written_is_what_it_was_at_the_call():
    begin, written = threading.Event(), []

    def write(copies):
        assert begin.wait(PATIENCE)
        written.append({name: tensor.clone() for name, tensor in copies.items()})

    weights = {"a": torch.ones(3)}
    with BackgroundWriter() as writer:
        writer.submit("weights", weights, write)
        weights["a"].fill_(7.0)
        assert not written, "the call does not wait"
        begin.set()
    assert torch.equal(written[0]["a"], torch.ones(3))


def test_one_file_of_a_kind_is_pending_and_all_are_written_in_order():
    begin, order = threading.Event(), []

    def write(name: str):
        def note(copies):
            assert begin.wait(PATIENCE)
            order.append((name, float(copies["a"])))

        return note

    with BackgroundWriter() as writer:
        writer.submit("model", {"a": torch.tensor(1.0)}, write("model"))
        writer.submit("checkpoint", {"a": torch.tensor(2.0)}, write("checkpoint"))
        second = threading.Thread(target=lambda: writer.submit("model", {"a": torch.tensor(3.0)}, write("model")))
        second.start()
        second.join(0.2)
        assert second.is_alive(), "it waits for the first of its kind"
        begin.set()
        second.join(PATIENCE)
    assert order == [("model", 1.0), ("checkpoint", 2.0), ("model", 3.0)]


def test_after_a_file_that_cannot_be_written_no_other_is():
    begin, written = threading.Event(), []

    def fail(copies):
        assert begin.wait(PATIENCE)
        raise WriteError("no space")

    def submit_all() -> None:
        with BackgroundWriter() as writer:
            writer.submit("model", {}, fail)
            writer.submit("checkpoint", {}, written.append)  # before the first has failed
            begin.set()

    with pytest.raises(WriteError, match="no space"):
        submit_all()
    assert written == []


def test_steps_are_taken_while_a_checkpoint_is_written(place: Path, monkeypatch):
    """The checkpoint of step 3 is not complete before step 5 has begun: training would wait for ever if it waited."""
    step_of, begun = Trainer._step, threading.Event()

    def step(self: Trainer, number: int):
        if number == 5:
            assert [path.stem for path in checkpoint_paths(place / "checkpoints")] == ["step-000000000"]
            begun.set()
        return step_of(self, number)

    def write(folder: Path, number: int, *arguments, **more):
        if number == 3:
            assert begun.wait(PATIENCE), "training waits for the checkpoint"
        save_checkpoint(folder, number, *arguments, **more)

    monkeypatch.setattr(Trainer, "_step", step)
    monkeypatch.setattr(train_module, "save_checkpoint", write)
    train(ROWS, out=place, settings=SETTINGS, show_progress=False)
    assert begun.is_set()
    found = load_checkpoint(place / "checkpoints")
    assert found is not None
    assert found[1]["step"] == 12


def test_an_interruption_waits_for_its_checkpoint(place: Path, monkeypatch):
    step_of, stopped = Trainer._step, threading.Event()

    def step(self: Trainer, number: int):
        if number == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            stopped.set()
        return step_of(self, number)

    def write(folder: Path, number: int, *arguments, **more):
        if number:
            assert stopped.wait(PATIENCE)
        save_checkpoint(folder, number, *arguments, **more)

    monkeypatch.setattr(Trainer, "_step", step)
    monkeypatch.setattr(train_module, "save_checkpoint", write)
    with pytest.raises(StoppedError, match="stopped at step 4"):
        train(ROWS, out=place, settings=SETTINGS, show_progress=False)
    found = load_checkpoint(place / "checkpoints")
    assert found is not None
    assert found[1]["step"] == 4


def test_an_error_of_the_writer_ends_training_with_what_to_do(place: Path, monkeypatch):
    real = os.fsync

    def fail(descriptor: int) -> None:
        if "step-000000006" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", fail)
        with pytest.raises(WriteError) as caught:
            train(ROWS, out=place, settings=SETTINGS, show_progress=False)
    message = str(caught.value)
    assert message.startswith(f"cannot write {place / 'checkpoints' / 'step-000000006.safetensors'} (")
    assert message.endswith(
        f"No space left on device; the existing file is unchanged; free some space, then resume {place}"
    )
    assert [path.stem for path in checkpoint_paths(place / "checkpoints")] == ["step-000000003"]
    train(ROWS, out=place, resume=True, show_progress=False)
    whole = place.with_name("whole")
    train(ROWS, out=whole, settings=SETTINGS, show_progress=False)
    assert RunFolder(place).model_path.read_bytes() == RunFolder(whole).model_path.read_bytes()
