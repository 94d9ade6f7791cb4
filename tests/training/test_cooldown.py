"""Early stopping completes the schedule: the learning rate decays to 0, within the budget, and resumes exactly."""

from pathlib import Path

import pytest
import torch

from regard.training.checkpoints import load_checkpoint, save_checkpoint
from regard.training.schedules import cooldown_progress

STALLED = {"learning_rate": 1e-30, "schedule": "constant", "warmup_steps": 1, "patience": 3}
"""Nothing is learned, so that every evaluation but the first is no better."""


def rates(lines: list[dict]) -> dict[int, float]:
    return {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}


@pytest.mark.usefixtures("single_precision")
def test_the_learning_rate_decays_to_zero_after_the_last_improvement(make_trainer, recorder):
    trainer, seen = make_trainer(**STALLED, evaluate_every=10, max_steps=400), recorder()
    outcome = seen.fit(trainer)
    assert (trainer.progress.cooldown_step, trainer.progress.step) == (40, 48), "a fifth of the steps so far"
    assert outcome.reason.endswith("the learning rate was decayed over the last 8 steps")
    found = rates(seen.lines)
    assert found[40] == pytest.approx(1e-30)
    assert found[48] == pytest.approx(1e-30 / 8), "the last step of eight"
    assert trainer._learning_rate(49) == 0.0
    evaluated = [line["step"] for line in seen.lines if "valid_loss" in line]
    assert evaluated == [10, 20, 30, 40, 48], "the weights after the decay are evaluated"


@pytest.mark.usefixtures("single_precision")
def test_a_cooldown_never_exceeds_the_budget(make_trainer, recorder):
    trainer, seen = make_trainer(**STALLED, evaluate_every=10, max_steps=43), recorder()
    outcome = seen.fit(trainer)
    assert (trainer.progress.cooldown_step, trainer.progress.step) == (40, 43)
    assert "over the last 3 steps" in outcome.reason
    assert trainer._learning_rate(44) == 0.0
    assert cooldown_progress(1.0, 0.99) == 1.0


@pytest.mark.usefixtures("single_precision")
def test_a_cooldown_that_begins_with_the_end_of_the_budget_is_none(make_trainer, recorder):
    trainer = make_trainer(**STALLED, evaluate_every=10, max_steps=40)
    assert recorder().fit(trainer).reason == "40 steps completed"
    assert trainer.progress.cooldown_step == 0


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_the_schedule_stays_the_upper_limit_of_a_cooldown(make_trainer, recorder):
    """A cosine near its end falls faster than a line."""
    settings = {**STALLED, "schedule": "cosine", "evaluate_every": 5, "max_steps": 22}
    stopped, plain = make_trainer(**settings), make_trainer(**{**settings, "patience": 0})
    found, whole = recorder(), recorder()
    found.fit(stopped)
    whole.fit(plain)
    assert stopped.progress.cooldown_step == 20
    assert all(rate <= rates(whole.lines)[step] for step, rate in rates(found.lines).items())


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_a_run_stopped_before_and_within_its_cooldown_resumes_bit_for_bit(make_trainer, recorder, tmp_path: Path):
    # A rate at which the loss of the averaged weights rises.
    settings = {"learning_rate": 0.3, "evaluate_every": 2, "patience": 2, "max_steps": 200, "ema_decay": 0.5}
    whole, undisturbed = make_trainer(**settings), recorder()
    reason = undisturbed.fit(whole).reason
    start, end = whole.progress.cooldown_step, whole.progress.step
    assert 0 < start < end - 1
    assert end < 200

    def save(trainer) -> None:
        save_checkpoint(tmp_path / str(stop_at), trainer.progress.step, trainer.tensors(), trainer.progress_note())

    for stop_at in (start - 1, start, start + 1):
        first, second = (make_trainer(**settings) for _ in range(2))
        before, after = recorder(stop_at=stop_at), recorder()
        assert not before.fit(first, save=save).is_finished
        found = load_checkpoint(tmp_path / str(stop_at))
        assert found is not None
        second.restore(*found)
        assert after.fit(second).reason == reason
        assert (second.progress.cooldown_step, second.progress.step) == (start, end)
        for name, tensor in whole.tensors().items():
            assert torch.equal(tensor, second.tensors()[name]), name
        assert before.losses + after.losses == undisturbed.losses
        assert rates([*before.lines, *after.lines]) == rates(undisturbed.lines)


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_a_finished_run_resumes_with_more_patience_at_the_rate_of_its_schedule(make_trainer, recorder, tmp_path: Path):
    settings = {**STALLED, "evaluate_every": 10, "max_steps": 120}
    first = make_trainer(**settings)
    recorder().fit(first)
    note = first.progress_note()
    again = make_trainer(**settings)
    again.restore(first.tensors(), note)
    assert recorder().fit(again).reason.startswith("stopped early")
    assert again.progress.step == 48, "with the same patience it stays finished"
    for patience, end in ((0, 120), (5, 60)):
        longer = make_trainer(**{**settings, "patience": patience})
        longer.restore(first.tensors(), note)
        assert longer._learning_rate(49) == pytest.approx(1e-30)
        recorder().fit(longer)
        assert longer.progress.step == end
