"""Two processes that train together compute what one computes: the same weights, figures and rows."""

from pathlib import Path
from typing import Any

import pytest
from tests.training.distributed import jobs

from regard.runs.launch import launch
from regard.training.checkpoints import checkpoint_paths, files_of, read_state, read_tensors

JOBS = "tests.training.distributed.jobs:"
ONE_PROCESS = {
    "sentence-embedding": "the rows of a batch are examples for each other",
    "preference-optimization": "answers are sampled from the whole batch",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def both(names: list[str], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of one process and of two; the states are in the folders `one` and `two`."""
    for name in ("one", "two"):
        (folder / name).mkdir()
    one = jobs.train_all(names, str(folder / "one"), joins=False)
    two = launch(f"{JOBS}train_all", {"names": names, "folder": str(folder / "two")}, 2)
    return one, two


def require_equal(name: str, folder: Path, *, atol: float = 1e-12) -> None:
    one, two = (read_tensors(folder / each / f"{name}.safetensors")[0] for each in ("one", "two"))
    assert one.keys() == two.keys()
    for key, tensor in one.items():
        if tensor.numel():
            scale = max(1.0, float(tensor.double().abs().max()))
            difference = float((two[key].double() - tensor.double()).abs().max())
            assert difference <= atol * scale, (name, key, difference)


def require_equal_figures(one: list[dict[str, Any]], two: list[dict[str, Any]], *, rel: float) -> None:
    assert [line.keys() for line in one] == [line.keys() for line in two]
    for expected, line in zip(one, two, strict=True):
        for name, value in expected.items():
            assert line[name] == (value if isinstance(value, str) else pytest.approx(value, rel=rel)), (name, line)


def test_two_processes_compute_the_weights_and_figures_of_one(tmp_path: Path):
    names = [name for name in jobs.TRAININGS if not name.startswith(("sharded", "divided"))]
    one, two = both(names, tmp_path)
    for name in names:
        require_equal(name, tmp_path)
        require_equal_figures(one[name], two[name], rel=1e-9)
        assert len(one[name]) > 2


def test_sharded_training_computes_what_one_process_does_with_a_whole_model(tmp_path: Path):
    names = ["sharded adamw", "sharded muon", "sharded float32", "sharded bfloat16"]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    two = launch(f"{JOBS}train_all", {"names": names, "folder": str(tmp_path / "two")}, 2)
    one = jobs.train_all(names, str(tmp_path / "one"), joins=False, changes={"sharding": "none"})
    for name in names:
        is_exact = name in ("sharded adamw", "sharded muon")
        # Rounding to bfloat16 happens in another order, and so six steps differ by about their own size in it.
        require_equal(name, tmp_path, atol=1e-12 if is_exact else 5e-3 if "bfloat16" in name else 1e-5)
        require_equal_figures(one[name], two[name], rel=1e-9 if is_exact else 5e-3 if "bfloat16" in name else 1e-4)


@pytest.mark.parametrize("size", [2, 4])
def test_layers_that_processes_share_compute_what_one_process_does(size: int, tmp_path: Path):
    """Two processes are one replica of the model; four are two, which compute rows, and draw dropout, of their own."""
    kinds = ("divided ",) if size == 2 else ("divided adamw", "divided and sharded")
    names = [name for name in jobs.TRAININGS if name.startswith(kinds) and (size == 4 or "sharded" not in name)]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    given = {"names": names, "folder": str(tmp_path / "two"), "tensor_parallel": 2}
    several = launch(f"{JOBS}train_all", given, size)
    plain = {"sharding": "none", "tensor_parallel": 1}
    one = jobs.train_all(names, str(tmp_path / "one"), joins=False, changes=plain)
    for name in names:
        assert not isinstance(several[name], str), several[name]
        is_exact = "bfloat16" not in name
        require_equal(name, tmp_path, atol=1e-12 if is_exact else 5e-3)
        require_equal_figures(one[name], several[name], rel=1e-9 if is_exact else 5e-3)


def test_two_processes_train_tasks_as_one_does_or_say_why_not(tmp_path: Path):
    names = [
        "seq2seq-lstm", "language-modeling", "masked-language-modeling", "text-classification-multi-label",
        "token-classification-crf", "question-answering", "image-classification-cnn", "forecasting-linear",
        "event-prediction", "control", "captioning", "graph-classification-messages", "node-classification", "parsing",
        "reward-modeling", "sentence-embedding", "preference-optimization",
    ]  # fmt: skip
    one, two = both(names, tmp_path)
    for name in names:
        if isinstance(two[name], str):
            reason = next(reason for task, reason in ONE_PROCESS.items() if name.startswith(task))
            assert reason in two[name]
            continue
        require_equal(name, tmp_path, atol=1e-7)  # some losses are computed in float32 from the logits on
        require_equal_figures(one[name], two[name], rel=1e-6)


def test_a_checkpoint_of_two_processes_is_continued_by_one_and_the_other_way_round(tmp_path: Path):
    """Each row is computed once in an epoch, whoever computes it, and the last checkpoint is that of one process."""
    found = {}
    for name, sizes in {"one": (1, 1), "two, one": (2, 1), "one, two": (1, 2)}.items():
        steps: list[Any] = []
        for size, stop_at in zip(sizes, (4, 9), strict=True):
            arguments = {"folder": str(tmp_path / name), "size": size, "stop_at": stop_at}
            (tmp_path / name).mkdir(exist_ok=True)
            if size == 1:
                steps += jobs.rows_of_each_step(**arguments)
            else:
                steps += launch(f"{JOBS}rows_of_each_step", arguments, size)
        found[name] = [sorted(row for own in step for row in own) for step in steps]
        assert all(len(own) > 0 for step in steps for own in step)
        assert len(steps) == 9
    assert found["two, one"] == found["one"] == found["one, two"]
    expected, _ = read_tensors(tmp_path / "one" / "step-000000009.safetensors")
    for name in ("two, one", "one, two"):
        tensors, _ = read_tensors(tmp_path / name / "step-000000009.safetensors")
        for key, tensor in expected.items():
            assert float((tensors[key] - tensor).abs().max()) < 1e-12, key


def test_a_checkpoint_in_shards_is_continued_by_another_number_of_processes(tmp_path: Path):
    """One process, two that shard, four that also share layers, and one: the last checkpoint is that of one alone."""
    name, one, several = "divided and sharded muon", str(tmp_path / "one"), str(tmp_path / "several")
    whole = {"joins": False, "changes": {"sharding": "none"}}
    for stop_at in (2, 4, 6, 8):
        jobs.continue_training(name, one, stop_at, **whole)
    jobs.continue_training(name, several, 2, **whole)
    given = {"name": name, "folder": several}
    assert launch(f"{JOBS}continue_training", {**given, "stop_at": 4}, 2) == 2
    assert launch(f"{JOBS}continue_training", {**given, "stop_at": 6, "tensor_parallel": 2}, 4) == 4
    assert jobs.continue_training(name, several, 8, **whole) == 6
    checkpoints = [checkpoint_paths(Path(folder)) for folder in (one, several)]
    assert [len(files_of(path)) for path in checkpoints[1]] == [1, 2, 4, 1]
    for expected, path in zip(*checkpoints, strict=True):
        tensors, note = read_state(path)
        reference, reference_note = read_state(expected)
        assert tensors.keys() == reference.keys()
        assert note["step"] == reference_note["step"]
        for key, tensor in reference.items():
            assert float((tensors[key].double() - tensor.double()).abs().max()) < 1e-12, (path.name, key)
