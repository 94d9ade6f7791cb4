"""Checkpoints in shards: several processes write parts of each tensor, and any number reads what it needs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.errors import CheckpointError
from regard.training import checkpoints
from regard.training.checkpoints import (
    Place,
    Shard,
    checkpoint_paths,
    files_of,
    load_checkpoint,
    read_state,
    save_checkpoint,
    step_of,
)

SAVE = "0123abcd-0"
TENSORS = {
    "model:matrix": torch.arange(77.0).view(11, 7),
    "model:empty": torch.zeros(0, 3),
    "optimizer:step": torch.tensor(5.0),
    "ema:matrix": torch.arange(22.0, dtype=torch.bfloat16).view(2, 11),
}


def parts_of(number: int, count: int) -> tuple[dict[str, Tensor], dict[str, Place]]:
    """Rows of the first matrix, columns of the other; the first process has what is not divided."""
    parts: dict[str, Tensor] = {}
    places: dict[str, Place] = {}
    for name, dim in (("model:matrix", 0), ("ema:matrix", 1)):
        whole = TENSORS[name]
        edges = [whole.size(dim) * each // count for each in (number, number + 1)]
        if edges[0] < edges[1]:
            parts[name] = whole.narrow(dim, edges[0], edges[1] - edges[0])
            places[name] = Place((0,) * dim + (edges[0],) + (0,) * (1 - dim), tuple(whole.shape))
    if number == 0:
        for name in ("model:empty", "optimizer:step"):
            parts[name], places[name] = TENSORS[name], Place((0,) * TENSORS[name].dim(), tuple(TENSORS[name].shape))
    return parts, places


def save(folder: Path, step: int, count: int, *, numbers: list[int] | None = None, save: str = SAVE) -> None:
    for number in range(count) if numbers is None else numbers:
        parts, places = parts_of(number, count)
        save_checkpoint(folder, step, parts, {"step": step}, shard=Shard(save, number, count, places))


@pytest.mark.parametrize("count", [2, 3, 13])
def test_shards_are_read_as_a_whole_and_by_parts(count: int, tmp_path: Path):
    save(tmp_path, 4, count)
    (path,) = checkpoint_paths(tmp_path)
    assert len(files_of(path)) == count
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found[1] == {"step": 4}
    assert found[0].keys() == TENSORS.keys()
    assert all(torch.equal(found[0][name], tensor) and found[0][name].dtype == tensor.dtype
               for name, tensor in TENSORS.items())  # fmt: skip
    at = slice(3, 8), slice(2, 5)
    some, _ = read_state(path, lambda name, shape: at if name == "model:matrix" and shape == (11, 7) else None)
    assert torch.equal(some["model:matrix"], TENSORS["model:matrix"][at])
    assert torch.equal(some["ema:matrix"], TENSORS["ema:matrix"])


def test_a_part_that_is_not_needed_is_not_read(tmp_path: Path):
    save(tmp_path, 4, 3)
    (path,) = checkpoint_paths(tmp_path)
    last = files_of(path)[-1]
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    first = {"model:matrix": (slice(0, 2), slice(0, 7)), "ema:matrix": (slice(0, 2), slice(0, 2))}
    found, _ = read_state(path, lambda name, shape: first.get(name))
    assert torch.equal(found["model:matrix"], TENSORS["model:matrix"][:2])
    with pytest.raises(CheckpointError, match="does not have the hash it was written with"):
        read_state(path)


def test_an_incomplete_or_damaged_checkpoint_is_not_used_and_the_one_before_stays(tmp_path: Path, caplog):
    save(tmp_path, 2, 2)
    save(tmp_path, 4, 2)
    save(tmp_path, 6, 2, numbers=[0])  # the second process was killed
    assert [path.name[:14] for path in checkpoint_paths(tmp_path)] == ["step-000000002", "step-000000004"]
    save(tmp_path, 6, 2, numbers=[1], save="ffffffff-0")  # of another start: not a shard of the same checkpoint
    assert len(checkpoint_paths(tmp_path)) == 2
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found[1] == {"step": 4}
    for path in files_of(checkpoint_paths(tmp_path)[-1])[1:]:
        path.write_bytes(path.read_bytes()[:-40])
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found[1] == {"step": 2}
    assert load_checkpoint(tmp_path, at_most=1) is None


def test_old_checkpoints_of_any_number_of_shards_are_deleted(tmp_path: Path):
    save_checkpoint(tmp_path, 1, TENSORS, {"step": 1})
    for step, count in ((2, 3), (3, 2), (4, 2), (5, 4)):
        save(tmp_path, step, count, save=f"{step:08x}-0")
    names = sorted(path.name for path in tmp_path.iterdir())
    # The first process deletes before the others have written: up to one more than two stays.
    assert {int(name[5:14]) for name in names} == {3, 4, 5}
    assert len(names) == 2 + 2 + 4
    save_checkpoint(tmp_path, 6, TENSORS, {"step": 6})
    assert {int(path.name[5:14]) for path in tmp_path.iterdir()} == {5, 6}


def test_a_shard_that_is_complete_while_others_are_deleted_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def look(folder: Path) -> list[Path]:
        save(tmp_path, 1, 2, numbers=[1])
        return checkpoint_paths(folder)

    save(tmp_path, 0, 2)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "checkpoint_paths", look)
        save(tmp_path, 1, 2, numbers=[0])
    assert [step_of(path) for path in checkpoint_paths(tmp_path)] == [0, 1]


def test_until_a_later_checkpoint_is_complete_that_of_step_0_stays(tmp_path: Path):
    save(tmp_path, 0, 2)
    save(tmp_path, 1, 2, numbers=[0])
    assert [step_of(path) for path in checkpoint_paths(tmp_path)] == [0]
    save(tmp_path, 1, 2, numbers=[1])
    save(tmp_path, 2, 2)
    assert [step_of(path) for path in checkpoint_paths(tmp_path)] == [1, 2]


@pytest.mark.parametrize("count", [1, 2])
def test_a_checkpoint_that_is_written_again_leaves_one_of_an_earlier_step(count: int, tmp_path: Path):
    """A run that returned to step 2, or was resumed from it, writes step 4 again: were that damaged, 2 is needed."""

    def write(step: int, save_name: str) -> None:
        if count > 1:
            save(tmp_path, step, count, save=save_name)
        else:
            save_checkpoint(tmp_path, step, TENSORS, {"step": step})

    for step, name in ((2, "aaaa-0"), (4, "aaaa-0"), (4, "bbbb-0"), (4, "cccc-0")):
        write(step, name)
    paths = checkpoint_paths(tmp_path)
    assert [int(path.name[5:14]) for path in paths] == [2, 4]
    assert "cccc" in paths[-1].name or count == 1
    paths[-1].write_bytes(paths[-1].read_bytes()[:-9])
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found[1] == {"step": 2}


def test_a_shard_that_another_process_deletes_is_no_error_of_its_own(tmp_path: Path):
    save(tmp_path, 4, 2)
    (path,) = checkpoint_paths(tmp_path)
    files_of(path)[1].unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        read_state(path)
    assert checkpoint_paths(tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda parts, places: places.update({"model:matrix": Place((9, 0), (11, 7))}),
        lambda parts, places: places.update({"model:matrix": Place((0, 0), (11, 8))}),
        lambda parts, places: places.update({"model:matrix": Place((0,), (11,))}),
        lambda parts, places: places.update({"model:matrix": Place((0, 0), (10**15, 7))}),
        lambda parts, places: parts.pop("model:matrix"),
        lambda parts, places: parts.update({"model:matrix": parts["model:matrix"].double()}),
    ],
)
def test_shards_that_do_not_fit_together_are_an_error(change, tmp_path: Path):
    save(tmp_path, 4, 2, numbers=[1])
    parts, places = parts_of(0, 2)
    change(parts, places)
    save_checkpoint(tmp_path, 4, parts, {"step": 4}, shard=Shard(SAVE, 0, 2, places))
    with pytest.raises(CheckpointError, match="is damaged"):
        read_state(checkpoint_paths(tmp_path)[0])
