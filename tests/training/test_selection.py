"""Which evaluated weights are kept: by score, with loss as the tie-breaker; and when evaluations are due."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.tiny import tiny

from regard.errors import ConfigError
from regard.tasks.task import SelectionScore
from regard.training.loop import Progress, Trainer
from regard.training.precision import choose_hardware


def kept(
    evaluations: Sequence[tuple[float, float | None]], *, metric: str = "accuracy", num_rows: int = 100
) -> list[int]:
    """The numbers, from 1, of the evaluations (loss, score) whose weights are kept."""
    progress, found = Progress(), []
    for number, (loss, value) in enumerate(evaluations, start=1):
        progress.step = number
        if progress.add_evaluation(loss, None if value is None else SelectionScore(metric, value, num_rows)):
            found.append(number)
            assert progress.best_step == number
    return found


def test_the_best_score_is_kept_although_its_loss_is_higher():
    assert kept([(0.5, 0.70), (0.4, 0.80), (0.6, 0.90), (0.3, 0.80)]) == [1, 2, 3]


def test_without_a_score_the_lowest_loss_is_kept():
    assert kept([(0.5, None), (0.4, None), (0.6, None), (0.3, None)]) == [1, 2, 4]


def test_of_nearly_equal_scores_the_lowest_loss_is_kept():
    """Of 100 rows at 0.8, one row more or less is a near tie, and two are not."""
    assert kept([(0.5, 0.80), (0.6, 0.81), (0.4, 0.80), (0.7, 0.82)]) == [1, 3, 4]
    assert kept([(0.5, 0.80), (0.6, 0.82)]) == [1, 2]


def test_near_ties_do_not_add_up():
    losing = [(0.5 - 0.01 * number, 0.800 - 0.0009 * number) for number in range(40)]
    assert kept(losing, num_rows=200)[-1] == 9, "0.8 - 0.0072 is the last within two of 200 rows of the best"
    gaining = [(0.5 + 0.01 * number, 0.800 + 0.001 * number) for number in range(40)]
    assert kept(gaining, num_rows=200)[-1] > 30


def test_of_an_error_the_lowest_is_kept():
    assert kept([(0.5, 3.0), (0.4, 2.0), (0.3, 4.0)], metric="rmse") == [1, 2]


def test_a_score_that_is_not_a_number_leaves_the_choice_to_the_loss():
    assert kept([(0.5, float("nan")), (0.4, 0.1), (0.3, float("nan")), (0.2, 0.2)]) == [1, 2, 3, 4]


def test_patience_counts_evaluations_without_a_better_score_or_loss():
    progress, counts = Progress(), []
    for loss, value in [(0.5, 0.7), (0.4, 0.6), (0.6, 0.7), (0.45, 0.6), (0.6, 0.9), (0.6, 0.8)]:
        progress.add_evaluation(loss, SelectionScore("accuracy", value, 100))
        counts.append(progress.num_worse)
    assert counts == [0, 0, 1, 2, 0, 1]


@pytest.fixture(scope="module")
def opinions(cache: None) -> Any:
    """Few and noisy rows: confidence in wrong labels grows, and with it the loss, while more labels become right."""
    rng, rows = random.Random(5), []
    for number in range(160):
        label = rng.randrange(4)
        words = [f"w{label if rng.random() < 0.6 else rng.randrange(4)}{rng.randrange(4)}" for _ in range(3)]
        rows.append((f"{' '.join(words)} {number}", f"label{label}"))
    return tiny("text-classification", rows, tokenizer="words", ngrams=0, data={"splits": [0.4, 0.6, 0.0]},
                train={"max_steps": 60, "evaluate_every": 4, "learning_rate": 0.02, "batch_tokens": 150,
                       "ema_decay": 0.5, "patience": 0, "device": "cpu"})  # fmt: skip


def fit(opinions: Any, recorder: Any, **train: Any) -> tuple[Trainer, Any]:
    settings = opinions.settings.changed(train={**opinions.settings.train.model_dump(), **train})
    torch.manual_seed(0)
    model = opinions.task.build(settings.model, settings.head)
    trainer, seen = (
        Trainer(model, opinions.task, opinions.data, settings, choose_hardware("cpu", "float32", 12)),
        recorder(),
    )
    seen.fit(trainer)
    return trainer, seen


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_a_run_on_labels_keeps_the_weights_with_the_best_accuracy(opinions: Any, recorder):
    assert opinions.settings.train.select_by == "score"
    by_score, seen = fit(opinions, recorder)
    lines = {line["step"]: line for line in seen.lines if "valid_score" in line}
    assert {line["valid_metric"] for line in lines.values()} == {"accuracy"}
    accuracies = [line["valid_score"] for line in lines.values()]
    num_valid = len(opinions.data.held_out["valid"])
    near = 2 / num_valid * max(accuracies)
    assert max(accuracies) - lines[by_score.progress.best_step]["valid_score"] <= near + 1e-9
    by_loss, other = fit(opinions, recorder, select_by="loss")
    assert not any("valid_score" in line for line in other.lines)
    losses = {line["step"]: line["valid_loss"] for line in other.lines if "valid_loss" in line}
    assert by_loss.progress.best_step == min(losses, key=losses.__getitem__)
    assert by_score.progress.best_step != by_loss.progress.best_step, "score and loss disagree on this data"
    for one, two in zip(by_score.model.parameters(), by_loss.model.parameters(), strict=True):
        assert torch.equal(one, two), "selection changes nothing about training"


@pytest.mark.usefixtures("single_precision")
def test_the_score_is_that_of_the_averaged_weights_on_the_validation_rows(opinions: Any, recorder):
    trainer, seen = fit(opinions, recorder, max_steps=30)
    rows = opinions.data.held_out["valid"]
    with trainer.ema.applied():
        predictions = opinions.predict(trainer.model.eval(), [row[0] for row in rows])
    right = [each.output == row[-1] for each, row in zip(predictions, rows, strict=True)]
    last = [line for line in seen.lines if "valid_score" in line][-1]
    assert last["valid_score"] == pytest.approx(sum(right) / len(rows))


def test_a_task_without_predictions_cannot_be_selected_by_score(cache: None):
    with pytest.raises(ConfigError, match="select_by must be loss"):
        tiny("language-modeling", ["the cat sat on the mat " * 20] * 9, preset="gpt-tiny", tokenizer="characters",
             window=16, train={"select_by": "score"})  # fmt: skip


def due_at(trainer: Trainer, evaluation_seconds: float, *, step_seconds: float = 0.01) -> list[float]:
    """The seconds at which a simulated run of a minute evaluates, if each evaluation takes this long."""
    progress, found = trainer.progress, []
    while trainer.used() < 1.0:
        progress.step += 1
        progress.seconds += step_seconds
        if trainer._is_evaluation_due():
            found.append(progress.seconds)
            progress.seconds += evaluation_seconds
            progress.evaluated_at, progress.evaluation_seconds = progress.seconds, evaluation_seconds
    return found


def test_under_a_time_limit_evaluations_are_timed(make_trainer):
    timed = {"max_steps": None, "minutes": 1.0, "evaluate_every": None}
    quick = due_at(make_trainer(**timed), 0.01)
    assert 20 <= len(quick) <= 25
    assert 20 <= len(due_at(make_trainer(**timed), 0.01, step_seconds=0.5)) <= 25, "whatever a step takes"
    slow = due_at(make_trainer(**timed), 3.0)
    assert 1 <= len(slow) <= 2
    assert 3.0 * len(slow) <= 0.1 * 60 + 3.0, "a tenth of the time, and the one by which it was measured"
    assert 60 - max(quick) > 1.2, "none shortly before the last one"


def test_in_a_budget_of_steps_evaluations_are_counted(make_trainer):
    trainer = make_trainer(max_steps=1000, evaluate_every=None)
    assert [step for step in range(1, 1001) if _is_due(trainer, step)] == [200, 400, 600, 800, 1000]
    trainer = make_trainer(max_steps=None, minutes=60.0, evaluate_every=70)
    assert [step for step in range(1, 200) if _is_due(trainer, step)] == [70, 140]


def _is_due(trainer: Trainer, step: int) -> bool:
    trainer.progress.step = step
    return trainer._is_evaluation_due()
