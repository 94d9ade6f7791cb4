"""The training loop: what a step computes, when training ends, and that it resumes where it was stopped."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.errors import CheckpointError, RunError
from regard.training.checkpoints import load_checkpoint, save_checkpoint


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_a_run_stopped_within_an_epoch_resumes_bit_for_bit(make_trainer, recorder, tmp_path: Path):
    settings = {"accumulate": 2, "evaluate_every": 7, "checkpoint_every": 100}
    whole, undisturbed = make_trainer(**settings), recorder()
    undisturbed.fit(whole)

    def save(trainer) -> None:
        save_checkpoint(tmp_path / str(stop_at), trainer.progress.step, trainer.tensors(), trainer.progress_note())

    for stop_at in (3, 9, 14):
        assert 2 * stop_at % whole.batches.per_epoch, "this would be the end of an epoch"
        first, second = (make_trainer(**settings) for _ in range(2))
        before, after = recorder(stop_at=stop_at), recorder()
        outcome = before.fit(first, save=save)
        assert (outcome.is_finished, before.saved) == (False, [stop_at])
        found = load_checkpoint(tmp_path / str(stop_at))
        assert found is not None
        torch.manual_seed(12345)
        second.restore(*found)
        assert second.progress.step == stop_at
        assert after.fit(second).is_finished
        assert whole.tensors().keys() == second.tensors().keys()
        for name, tensor in whole.tensors().items():
            assert torch.equal(tensor, second.tensors()[name]), name
        assert before.losses + after.losses == undisturbed.losses
        assert whole.progress.tokens == second.progress.tokens


@pytest.mark.parametrize(
    ("settings", "step", "since_save", "save_seconds", "is_due"),
    [
        ({}, 500, 10.0, 9.0, True),
        ({}, 499, 10.0, 0.0, False),
        ({"minutes": 3.0}, 500, 10.0, 0.1, True),
        ({"minutes": 3.0}, 500, 10.0, 0.3, False),
        ({"minutes": 3.0, "checkpoint_every": 7}, 14, 10.0, 9.0, True),
        ({"minutes": 3.0}, 3, 301.0, 9.0, True),
    ],
)
def test_saving_takes_a_small_part_of_a_time_limit(make_trainer, settings, step, since_save, save_seconds, is_due):
    trainer = make_trainer(**settings)
    trainer.progress.step = step
    assert trainer._is_checkpoint_due(since_save, save_seconds) == is_due


def test_accumulated_batches_are_one_step_over_their_union(make_trainer):
    """The loss is normalized by tokens, not by batches: batches of unequal length would show the difference."""
    settings = {"dropout": 0.0, "clip_norm": 0.0, "batch_tokens": 100, "epsilon": 1e-3}
    parted, whole = make_trainer(accumulate=2, **settings), make_trainer(**settings)
    rows = [parted.batches.sampler.rows(number) for number in (0, 1)]
    tokens = [parted.batches.batch(number).num_targets for number in (0, 1)]
    assert tokens[0] != tokens[1]
    whole.batches.sampler.rows = lambda number: np.concatenate(rows)
    one, two = (trainer._step(1) for trainer in (parted, whole))
    torch.testing.assert_close(one[0], two[0])
    assert one[1:] == two[1:]
    for a, b in zip(parted.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_steps_of_several_batches_use_every_row_once_an_epoch(make_trainer):
    trainer = make_trainer(accumulate=3, batch_tokens=60)
    asked, rows = [], trainer.batches.sampler.rows
    trainer.batches.sampler.rows = lambda number: asked.append(number) or rows(number)
    for step in range(1, 8):
        trainer._step(step)
    assert asked == list(range(21))


def test_clipping_bounds_the_norm_of_the_gradient(make_trainer):
    free, clipped = (make_trainer(dropout=0.0, clip_norm=norm) for norm in (0.0, 1e-6))
    lengths = []
    for trainer in (free, clipped):
        trainer.optimizer.step = lambda: None
        trainer.optimizer.zero_grad = lambda set_to_none: None
        trainer._step(1)
        lengths.append(math.sqrt(sum(float(p.grad.square().sum()) for p in trainer.model.parameters())))
    assert lengths[0] > 1e-3
    assert lengths[1] == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_the_loss_decreases(make_trainer, recorder):
    trainer, seen = make_trainer(max_steps=60, learning_rate=0.01, evaluate_every=20), recorder()
    seen.fit(trainer)
    losses = [line["loss"] for line in seen.lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_budgets_in_steps_epochs_and_minutes(make_trainer, recorder):
    trainer = make_trainer(max_steps=11)
    assert "11 steps" in recorder().fit(trainer).reason
    assert trainer.progress.step == 11
    trainer = make_trainer(max_steps=None, max_epochs=1.5, accumulate=2)
    recorder().fit(trainer)
    assert trainer.progress.step == math.ceil(1.5 * trainer.batches.per_epoch / 2)
    trainer = make_trainer(max_steps=None, minutes=0.2 / 60, evaluate_every=10**6)
    recorder().fit(trainer)
    assert trainer.progress.seconds >= 0.2
    trainer = make_trainer(max_steps=4, max_epochs=100.0, minutes=100.0)
    recorder().fit(trainer)
    assert trainer.progress.step == 4, "the shortest budget ends the run"


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_early_stopping(make_trainer, recorder):
    trainer, seen = make_trainer(learning_rate=1e-30, evaluate_every=2, patience=3, max_steps=100), recorder()
    outcome = seen.fit(trainer)
    assert outcome.is_finished
    assert "stopped early" in outcome.reason
    assert " 3 evaluations; the learning rate was decayed over the last 2 steps" in outcome.reason
    assert (seen.best, trainer.progress.step) == ([2], 10)
    trainer = make_trainer(learning_rate=1e-30, evaluate_every=2, patience=0, max_steps=20)
    recorder().fit(trainer)
    assert trainer.progress.step == 20


@pytest.mark.usefixtures("single_precision")
def test_a_loss_that_is_not_finite_ends_training_before_it_is_saved(make_trainer, recorder):
    trainer, finite = make_trainer(learning_rate=1e30, warmup_steps=0, clip_norm=0.0, checkpoint_every=1), []

    def save(trainer) -> None:
        finite.append(all(bool(t.isfinite().all()) for t in trainer.model.parameters()))

    with pytest.raises(RunError, match=r"at step \d+: a lower train.learning_rate than 1.0e\+30 may help"):
        recorder().fit(trainer, save=save)
    assert all(finite)
    trainer = make_trainer(evaluate_every=1)
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(math.nan)
    with pytest.raises(RunError, match="the loss is nan at step 1"):
        recorder().fit(trainer)


@pytest.mark.usefixtures("single_precision")
def test_validation_uses_the_averaged_weights_and_restores_the_others(make_trainer, recorder):
    trainer = make_trainer(max_steps=5, ema_decay=0.5)
    recorder().fit(trainer)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    found = trainer.validate()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(trainer.ema.tensors()[name])
    trainer.ema._averages = []
    assert found == trainer.validate()


def test_a_checkpoint_of_something_else_is_an_error(make_trainer):
    with pytest.raises(CheckpointError, match="weight"):
        make_trainer().restore({"weight": torch.zeros(3)}, {})
    with pytest.raises(CheckpointError, match="weight"):
        make_trainer().restore({"model:weight": torch.zeros(3)}, {})
