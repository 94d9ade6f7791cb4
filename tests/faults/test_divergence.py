"""Training that diverges returns to its last checkpoint, at half the learning rate, and says so."""

import logging
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import DivergedError, StoppedError
from regard.runs.folder import RunFolder
from regard.runs.train import train
from regard.training.checkpoints import checkpoint_paths, read_tensors
from regard.training.loop import Trainer
from regard.training.update import Updater

ROWS = [(f"in {i}", f"out {i}") for i in range(40)]
SETTINGS = {
    "task": {"tokenizer": "bytes"},
    "model": {"model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "num_layers": 1},
    "train": {
        "max_steps": 40, "evaluate_every": 8, "checkpoint_every": 10, "device": "cpu", "batch_tokens": 100,
        "learning_rate": 0.001, "patience": 0, "baseline": False,
    },
}  # fmt: skip
BAD = 26
"""The number of the first batch, from 0, that is damaged: that of step 27, between the checkpoints of 20 and 30."""
Damage = Callable[[Trainer], None]


def change(**train: Any) -> dict[str, Any]:
    return {**SETTINGS, "train": {**SETTINGS["train"], **train}}


def with_nan_gradient(trainer: Trainer) -> None:
    """As a division by zero gives: it is not in the loss of this step, and in everything after it."""
    gradient = next(trainer.model.parameters()).grad
    assert gradient is not None
    gradient.view(-1)[0] = math.nan


def with_huge_weights(trainer: Trainer) -> None:
    """All losses stay finite: logits are a hundred times what they were."""
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(100)


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Damages the update of the batches with some numbers, and may send a signal before a step."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    step_of, apply_of = Trainer._step, Updater._apply

    def begin(how: Damage, when: Callable[[int], bool], *, stop_at: tuple[int, int] | None = None) -> None:
        current: list[Trainer] = []

        def step(self: Trainer, number: int) -> Any:
            current[:] = [self]
            if stop_at == (number, self.progress.num_rollbacks):
                os.kill(os.getpid(), signal.SIGTERM)
            return step_of(self, number)

        def apply(self: Updater, decay: Any) -> None:
            (trainer,) = current
            if when(trainer.progress.step - 1 + trainer.progress.num_skipped):
                how(trainer)
            apply_of(self, decay)

        monkeypatch.setattr(Trainer, "_step", step)
        monkeypatch.setattr(Updater, "_apply", apply)

    return begin


def run_all(path: Path, **more: Any) -> RunFolder:
    train(ROWS, out=path, settings=SETTINGS, show_progress=False, **more)
    return RunFolder(path)


def test_a_gradient_that_is_not_finite_costs_some_steps(tmp_path: Path, damage, caplog):
    damage(with_nan_gradient, lambda batch: batch == BAD)
    with caplog.at_level(logging.WARNING):
        folder = run_all(tmp_path / "run")
    (warning,) = [record.message for record in caplog.records if "returns to step" in record.message]
    assert warning == (
        "the loss is nan at step 30: training returns to step 20, at 0.5 times the learning rate (1 of at most 3 times)"
    )
    lines = folder.read_metrics()
    (line,) = [line for line in lines if "rolled_back_from" in line]
    assert (line["step"], line["rolled_back_from"], line["learning_rate_factor"]) == (20, 30, 0.5)
    assert line["reason"] == "the loss is nan at step 30"
    place = lines.index(line)
    assert all("rollbacks" not in each for each in lines[:place])
    assert all(each["rollbacks"] == 1 for each in lines[place:])
    steps = [each["step"] for each in lines if "loss" in each]
    assert steps == [8, 10, 16, 20, 24, 30, 32, 40], "each step has one line"
    names = [each["candidate"] for each in folder.read_ledger() if each["event"] == "training"]
    assert names == ["step 8", "step 16", "step 24"] + [f"step {n} after 1 rollback" for n in (24, 32, 40)]
    assert "the loss is nan at step 30, continued from step 20 at 0.5 x learning rate" in folder.report_path.read_text()
    for path in [*checkpoint_paths(folder.checkpoints), folder.model_path]:
        assert all(bool(tensor.isfinite().all()) for tensor in read_tensors(path)[0].values())


def test_the_learning_rate_is_halved_and_the_batches_that_follow_are_used(tmp_path: Path, damage, monkeypatch):
    damage(with_nan_gradient, lambda batch: batch == BAD)
    rates, batches, update, take = {}, [], Updater.update, Trainer.training_batch

    def note(self, given, **more):
        rates[len(batches)] = more["learning_rate"]
        return update(self, given, **more)

    monkeypatch.setattr(Updater, "update", note)
    monkeypatch.setattr(Trainer, "training_batch", lambda self, number: batches.append(number) or take(self, number))
    run_all(tmp_path / "run")
    assert batches == list(range(50)), "no batch is used twice"
    assert rates[31] == pytest.approx(rates[21] / 2, rel=1e-12), "step 21, before and after"


@pytest.mark.slow
def test_a_run_that_is_interrupted_and_diverges_ends_as_one_that_only_diverges(tmp_path: Path, damage):
    damage(with_nan_gradient, lambda batch: batch == BAD)
    whole = run_all(tmp_path / "whole")
    # Before it diverges; while its weights are not finite, and not saved; right after it has returned; at the end.
    for number, stop_at in enumerate([(13, 0), (28, 0), (21, 1), (39, 1)]):
        path = tmp_path / str(number)
        damage(with_nan_gradient, lambda batch: batch == BAD, stop_at=stop_at)
        with pytest.raises(StoppedError):
            run_all(path)
        damage(with_nan_gradient, lambda batch: batch == BAD)
        train(ROWS, out=path, resume=True, show_progress=False)
        assert RunFolder(path).model_path.read_bytes() == whole.model_path.read_bytes()
        assert figures(RunFolder(path)) == figures(whole)


def figures(folder: RunFolder) -> list[tuple[Any, ...]]:
    """The metrics but for times."""
    return [
        (line["step"], line.get("rollbacks"), line.get("loss"), line.get("valid_loss"), line.get("reason"))
        for line in folder.read_metrics()
    ]


def test_training_that_diverges_again_and_again_ends_with_an_error(tmp_path: Path, damage):
    damage(with_nan_gradient, lambda batch: batch >= BAD)
    with pytest.raises(DivergedError) as caught:
        run_all(tmp_path / "run")
    assert str(caught.value) == (
        "the loss is nan at step 24, after training has returned to a checkpoint 3 times: "
        "a lower train.learning_rate than 1.0e-03 may help"
    )
    folder = RunFolder(tmp_path / "run")
    assert [path.stem for path in checkpoint_paths(folder.checkpoints)] == ["step-000000010", "step-000000020"]
    assert all(bool(each.isfinite().all()) for each in read_tensors(folder.model_path)[0].values())


def test_without_rollbacks_the_first_divergence_is_an_error(tmp_path: Path, damage):
    damage(with_nan_gradient, lambda batch: batch == BAD)
    with pytest.raises(DivergedError, match="the loss is nan at step 30: a lower"):
        train(ROWS, out=tmp_path / "run", settings=change(max_rollbacks=0), show_progress=False)
    assert not list((tmp_path / "run" / "checkpoints").glob("*00000.safetensors"))


def test_before_the_first_checkpoint_training_returns_to_its_start(tmp_path: Path, damage):
    damage(with_nan_gradient, lambda batch: batch == 3)
    folder = run_all(tmp_path / "run")
    (line,) = [line for line in folder.read_metrics() if "rolled_back_from" in line]
    assert (line["step"], line["rolled_back_from"]) == (0, 8)
    assert [path.stem for path in checkpoint_paths(folder.checkpoints)] == ["step-000000030", "step-000000040"]


def test_a_loss_that_explodes_is_a_divergence(tmp_path: Path, damage):
    damage(with_huge_weights, lambda batch: batch == 61)
    settings = change(max_steps=110, evaluate_every=200)
    train(ROWS, out=tmp_path / "run", settings=settings, show_progress=False)
    lines = RunFolder(tmp_path / "run").read_metrics()
    (line,) = [line for line in lines if "rolled_back_from" in line]
    # The loss of steps 61 to 70 is the first that is high; the checkpoints after it are not what training returns to.
    assert (line["step"], line["rolled_back_from"]) == (60, 90)
    assert "and was" in line["reason"]
    assert max(each["loss"] for each in lines if "loss" in each) < 10


def test_an_explosion_that_cannot_be_undone_is_only_a_warning(tmp_path: Path, damage, caplog):
    damage(with_huge_weights, lambda batch: batch in (61, 95))
    with caplog.at_level(logging.WARNING):
        settings = change(max_steps=130, evaluate_every=40, max_rollbacks=1)
        train(ROWS, out=tmp_path / "run", settings=settings, show_progress=False)
    assert len([record for record in caplog.records if "returns to step 60" in record.message]) == 1
    (warning,) = [
        each.message for each in caplog.records if "and was" in each.message and "returns" not in each.message
    ]
    assert warning.endswith("a lower train.learning_rate than 1.0e-03 may help")


def test_training_returns_further_where_the_checkpoint_is_damaged(tmp_path: Path, damage, caplog, monkeypatch):
    damage(with_nan_gradient, lambda batch: batch == BAD)
    step_of = Trainer._step

    def step(self: Trainer, number: int) -> Any:
        if number == 29:
            path = checkpoint_paths(tmp_path / "run" / "checkpoints")[-1]
            assert path.stem == "step-000000020"
            path.write_bytes(path.read_bytes()[:-100])
        return step_of(self, number)

    monkeypatch.setattr(Trainer, "_step", step)
    with caplog.at_level(logging.WARNING):
        folder = run_all(tmp_path / "run")
    assert "step-000000020.safetensors is damaged" in caplog.text
    (line,) = [line for line in folder.read_metrics() if "rolled_back_from" in line]
    assert (line["step"], line["rolled_back_from"]) == (10, 30)
