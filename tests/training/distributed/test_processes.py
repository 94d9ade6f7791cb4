"""Several processes as a user sees them: one run folder, one error, one end, and restarts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.command_line import call

import regard
from regard.errors import ConfigError, RunError, WriteError
from regard.runs.folder import RunFolder
from regard.runs.launch import launch
from regard.training.checkpoints import checkpoint_paths, files_of, read_state, step_of

NUM_STEPS = 40
PATIENCE = 240.0
"""Seconds after which a process that shows no progress is taken for hung."""
SETTINGS = {
    "model": {"model_dim": 12, "num_heads": 2, "num_layers": 1, "feedforward_dim": 17, "dropout": 0.0},
    "head": {"dropout": 0.0},
    "task": {"tokenizer": "bytes"},
    "train": {"batch_tokens": 300, "device": "cpu", "patience": 0, "checkpoint_every": 5, "evaluate_every": 50,
              "warmup_steps": 3, "epsilon": 1e-3, "baseline": False, "keep_checkpoints": 100},
}  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("data")
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{'ab' * (row % 9)}{row}\t{row}{'x' * (row % 5)}\n" for row in range(60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield str(path)


@pytest.fixture(scope="module")
def undisturbed(data: str) -> Path:
    """The run of one process."""
    torch.set_default_dtype(torch.float32)
    return regard.train(data, out=Path(data).parent / "one", steps=NUM_STEPS, task="seq2seq", model="transformer-tiny",
                        settings=SETTINGS, show_progress=False).path  # fmt: skip


def options(steps: int) -> list[str]:
    given = ["--task", "seq2seq", "--model", "transformer-tiny", "--steps", str(steps)]
    for section, values in SETTINGS.items():
        given += [part for name, value in values.items() for part in ("--set", f"{section}.{name}={json.dumps(value)}")]
    return given


def wait_for(is_true: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.1)


@pytest.fixture
def start() -> Iterator[Callable[[list[str]], subprocess.Popen[str]]]:
    """Starts a command, which does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(command: list[str]) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        with process:  # which closes its pipes
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=PATIENCE)


def regard_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "regard", *map(str, arguments)]


def last_weights(run: Path) -> dict[str, list[float]]:
    tensors, _ = read_state(checkpoint_paths(run / "checkpoints")[-1])
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


def require_same_weights(one: Path, other: Path) -> None:
    """Training is in float32: sums in another order."""
    expected, found = last_weights(one), last_weights(other)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-4), name


def children_of(process: subprocess.Popen[str]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(number) for number in text.split()]


def test_a_run_of_two_processes_is_stopped_resumed_by_one_and_equal_to_that_of_one(
    data: str, undisturbed: Path, tmp_path: Path, start
):
    one, two = undisturbed, tmp_path / "two"
    process = start(regard_command("train", data, "--out", two, "--processes", 2, *options(NUM_STEPS)))
    wait_for(lambda: len(checkpoint_paths(two / "checkpoints")) > 1, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (128 + signal.SIGTERM, ""), err
    assert err.count("regard: stopped at step") == 1
    assert "the state is saved" in err
    stopped = int(err.split("stopped at step ")[1].split(";")[0])
    assert checkpoint_paths(two / "checkpoints")[-1].stem == f"step-{stopped:09d}"
    torch.set_default_dtype(torch.float32)
    answer = call("train", "--out", two, "--resume", "--quiet")
    assert answer.code == 0, answer.err
    require_same_weights(one, two)
    lines = [[line["step"] for line in RunFolder(path).read_metrics()] for path in (one, two)]
    assert sorted(set(lines[0])) == sorted(set(lines[1]))
    before, after = (RunFolder(path).read_ledger() for path in (one, two))
    assert [line["event"] for line in before] == [line["event"] for line in after]
    assert not (two / "lock").exists()


def test_a_killed_process_is_started_again_by_torchrun_and_the_weights_are_the_same(
    data: str, undisturbed: Path, tmp_path: Path, start
):
    one, two = undisturbed, tmp_path / "two"
    elastic = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1",
               "--standalone", "-m", "regard"]  # fmt: skip
    process = start([*elastic, "train", data, "--out", str(two), *options(NUM_STEPS)])
    wait_for(lambda: len(checkpoint_paths(two / "checkpoints")) > 1, process)
    victim = children_of(process)[-1]
    os.kill(victim, signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "resuming from step" in err
    assert out.splitlines()[-1] == str(two)
    require_same_weights(one, two)


def test_processes_that_share_layers_train_as_one_does_and_one_continues(data: str, tmp_path: Path):
    """Dropout is that of one process, too: what processes of a replica do alike has the same random numbers."""
    torch.set_default_dtype(torch.float32)
    changed = ["--set", "model.feedforward_dim=18", "--set", "model.dropout=0.2", "--set", "head.dropout=0.1"]
    paths = [tmp_path / name for name in ("one", "two")]
    for path, more in zip(paths, ([], ["--processes", 2, "--tensor-parallel", 2]), strict=True):
        answer = call("train", data, "--out", path, *options(12), *changed, *more)
        assert answer.code == 0, answer.err
    assert [len(files_of(checkpoint_paths(path / "checkpoints")[-1])) for path in paths] == [1, 2]
    require_same_weights(*paths)
    answer = call("train", "--out", paths[1], "--resume", "--steps", 20)
    assert (answer.code, answer.out) == (2, "")
    assert "train.tensor_parallel must divide the number of processes, got 2 and 1" in answer.err
    for path in paths:
        answer = call("train", "--out", path, "--resume", "--steps", 20, "--tensor-parallel", 1)
        assert answer.code == 0, answer.err
    require_same_weights(*paths)
    answer = call("train", data, "--out", tmp_path / "run", *options(2), "--processes", 2, "--tensor-parallel", 2)
    assert answer.code == 2
    assert "train.tensor_parallel must divide model.feedforward_dim, got 2 and 17; 17 would divide it" in answer.err
    assert not (tmp_path / "run").exists()


SHARDED = {**SETTINGS, "train": {**SETTINGS["train"], "sharding": "full", "checkpoint_every": 1}}


def test_a_checkpoint_in_shards_waits_for_the_slowest_process(data: str, tmp_path: Path):
    """The first process, which deletes incomplete checkpoints, must not begin one before the last is complete."""
    given = {"data": data, "out": str(tmp_path / "run"), "settings": SHARDED}
    launch("tests.training.distributed.failures:train_with_a_slow_disk", given, 2)
    paths = checkpoint_paths(tmp_path / "run" / "checkpoints")
    assert [step_of(path) for path in paths] == list(range(1, 9))
    assert not list((tmp_path / "run").rglob("*.part"))


def test_a_full_disk_of_one_process_ends_all_with_a_complete_checkpoint(data: str, tmp_path: Path):
    given = {"data": data, "out": str(tmp_path / "run"), "settings": SHARDED}
    with pytest.raises(WriteError, match=r"No space left on device; free some space, then resume"):
        launch("tests.training.distributed.failures:fill_the_disk_of_the_second", given, 2)
    path = checkpoint_paths(tmp_path / "run" / "checkpoints")[-1]
    assert step_of(path) == 1
    torch.set_default_dtype(torch.float32)
    answer = call("train", "--out", tmp_path / "run", "--resume", "--steps", 4, "--set", "train.sharding=none")
    assert answer.code == 0, answer.err
    assert "resuming from step 1" in answer.err


def test_the_error_of_one_process_is_the_one_line_and_ends_all(data: str, tmp_path: Path):
    answer = call("train", data, "--out", tmp_path / "run", "--processes", 2, "--set", "train.lr=1", "--steps", 2)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-1] == "regard: unknown setting train.lr; did you mean train.learning_rate?"
    assert answer.err.count("train.lr") == 1
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="the second process says no"):
        launch("tests.training.distributed.failures:fail_on_the_second", {}, 2)
    with pytest.raises(RunError, match="the process of rank 1 was killed by signal 9"):
        launch("tests.training.distributed.failures:die_on_the_second", {}, 2)


def test_warnings_of_other_processes_are_shown_with_their_rank(capfd: pytest.CaptureFixture[str]):
    assert launch("tests.training.distributed.failures:warn", {"text": "low on memory"}, 2) == [0, 1]
    lines = capfd.readouterr().err.splitlines()
    assert "warning: low on memory" in lines
    assert "warning: rank 1: low on memory" in lines
    assert "rank 1: a line of a library" in lines
    assert not [line for line in lines if "information" in line and "rank" in line]


@pytest.mark.parametrize(
    ("number", "environment", "message"),
    [
        (0, {}, "num_processes must be at least 1, got 0"),
        (2, {"RANK": "0", "WORLD_SIZE": "4"}, "torchrun has started 4 processes already"),
        (2, {"RANK": "0", "WORLD_SIZE": "many"}, "RANK and WORLD_SIZE of the environment are numbers"),
    ],
)
def test_a_wrong_number_of_processes_is_refused(number, environment, message, data, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        regard.train(data, num_processes=number, show_progress=False)


def test_a_run_that_may_be_restarted_replaces_no_other(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ConfigError, match="name another folder"):
        regard.train(data, out=tmp_path / "run", overwrite=True, show_progress=False)
    with pytest.raises(ConfigError, match="name the run folder"):
        regard.train(data, show_progress=False)


def test_more_processes_than_cores_are_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr("regard.runs.launch.num_cores", lambda: 2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for size, warnings in (
        (2, []),
        (3, ["3 processes share 2 cores: more processes than cores are slower"]),
    ):
        caplog.clear()
        with pytest.raises(ConfigError, match="torchrun has started 2 processes already"):
            launch("regard.runs.train:train", {}, size)
        assert [record.getMessage() for record in caplog.records] == warnings


def test_torchrun_is_refused_where_each_process_would_compute_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    answer = call("compare", "pairs.tsv", "--models", "transformer")
    assert answer.code == 2
    assert answer.err == "regard: rank 1: torchrun is for regard train and regard finetune, got regard compare\n"


def test_settings_that_cannot_be_sharded_are_refused(data: str, tmp_path: Path):
    for model, setting, message in (
        ("lstm-tiny", "sharding=full", "train.sharding is for models with the blocks of a Transformer"),
        ("lstm-tiny", "activation_checkpointing=true", "train.activation_checkpointing is for models with the blocks"),
        ("transformer-tiny", "sharding=half", "train.sharding"),
    ):
        answer = call("train", data, "--task", "seq2seq", "--model", model, "--set", f"train.{setting}", "--out",
                      tmp_path / "run", "--steps", 2, "--device", "cpu")  # fmt: skip
        assert (answer.code, message in answer.err) == (2, True), answer.err
