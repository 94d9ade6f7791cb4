"""A write that fails at any moment leaves the file that was there, and nothing else."""

import builtins
import errno
import os
from pathlib import Path

import pytest
import torch

from regard import files
from regard.errors import CheckpointError, DeviceError
from regard.files import write_atomically
from regard.training.checkpoints import load_checkpoint, read_tensors, save_checkpoint, write_tensors

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c": torch.zeros(0, 5)}


def fail_with(error: BaseException):
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("place", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), DeviceError),
        (OSError(errno.EIO, os.strerror(errno.EIO)), DeviceError),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), DeviceError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (MemoryError(), MemoryError),
    ],
    ids=lambda each: getattr(each, "__name__", None) or repr(each),
)
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch, place: str, error, raised):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, place, fail_with(error))
    with pytest.raises(raised) as caught:
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    if raised is DeviceError:
        assert str(caught.value).endswith(f"{os.strerror(error.errno)}; the existing file is unchanged")


@pytest.mark.parametrize("written", [0, 1, 100])
def test_a_write_cut_at_any_byte_leaves_the_old_file(tmp_path: Path, monkeypatch, written: int):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    real = builtins.open

    def cut(*arguments, **more):
        file = real(*arguments, **more)
        whole = file.write

        class Cut:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                file.close()

            def write(self, data: bytes) -> None:
                whole(data[:written])
                raise OSError(errno.ENOSPC, "No space left on device")

        return Cut()

    monkeypatch.setattr(builtins, "open", cut)
    with pytest.raises(DeviceError):
        write_atomically(path, b"n" * 200)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_tensors_go_there_and_back(tmp_path: Path):
    write_tensors(tmp_path / "file", TENSORS, {"step": 7, "best": float("inf")})
    tensors, note = read_tensors(tmp_path / "file")
    assert note == {"step": 7, "best": float("inf")}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_the_same_tensors_are_the_same_bytes(tmp_path: Path):
    for name in ("one", "two"):
        write_tensors(tmp_path / name, TENSORS, {"step": 7})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_every_damaged_byte_is_noticed(tmp_path: Path):
    path = tmp_path / "file"
    write_tensors(path, TENSORS, {"step": 7})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            tensors, note = read_tensors(path)
        except CheckpointError:
            continue
        # Where one sign of the header stands for another, as in a name's escape or a space, nothing has changed.
        assert note == {"step": 7}
        assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


def test_every_truncation_is_noticed(tmp_path: Path):
    path = tmp_path / "file"
    write_tensors(path, TENSORS, {"step": 7})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="is damaged"):
            read_tensors(path)


def test_weights_without_a_hash_are_not_trusted(tmp_path: Path):
    from safetensors.torch import save_file

    save_file(TENSORS, tmp_path / "file")
    with pytest.raises(CheckpointError, match="hash"):
        read_tensors(tmp_path / "file")


def save(folder: Path, *steps: int) -> None:
    for step in steps:
        save_checkpoint(folder, step, {"a": torch.tensor(float(step))}, {"step": step})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_checkpoints_are_kept(tmp_path: Path):
    folder = tmp_path / "checkpoints"
    assert load_checkpoint(folder) is None
    save(folder, 5, 10, 15)
    assert names(folder) == ["step-000000010.safetensors", "step-000000015.safetensors"]
    found = load_checkpoint(folder)
    assert found is not None
    assert found[1] == {"step": 15}


def test_an_unfinished_file_is_no_checkpoint_and_goes_with_the_next_one(tmp_path: Path):
    folder = tmp_path / "checkpoints"
    save(folder, 5)
    (folder / "step-000000010.safetensors.part").write_bytes(b"half")
    found = load_checkpoint(folder)
    assert found is not None
    assert found[1] == {"step": 5}
    save(folder, 10)
    assert names(folder) == ["step-000000005.safetensors", "step-000000010.safetensors"]


def test_a_damaged_checkpoint_is_passed_over_and_then_replaced(tmp_path: Path, caplog):
    folder = tmp_path / "checkpoints"
    save(folder, 10, 20)
    (folder / "step-000000020.safetensors").write_bytes(b"damaged")
    found = load_checkpoint(folder)
    assert found is not None
    assert found[1] == {"step": 10}
    assert "step-000000020.safetensors is damaged" in caplog.text
    save(folder, 13)  # from 10 on, with other steps between checkpoints
    assert names(folder) == ["step-000000010.safetensors", "step-000000013.safetensors"]


def test_a_checkpoint_that_cannot_be_written_costs_no_other(tmp_path: Path, monkeypatch):
    folder = tmp_path / "checkpoints"
    save(folder, 10, 20)
    monkeypatch.setattr(files.os, "fsync", fail_with(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DeviceError, match="No space left on device"):
        save(folder, 30)
    assert names(folder) == ["step-000000010.safetensors", "step-000000020.safetensors"]
