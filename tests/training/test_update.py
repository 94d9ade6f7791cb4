"""One update of the weights, from a whole batch and from its parts."""

from typing import Any

import pytest
import torch

from regard.errors import RegardError
from regard.training.update import Updater


@pytest.mark.parametrize("num_pieces", [2, 4, 8])
def test_a_batch_in_parts_gives_the_same_update(make_trainer, num_pieces: int):
    whole, parted = (make_trainer(dropout=0.0, epsilon=1e-3) for _ in range(2))
    parted.updater.num_pieces = num_pieces
    one, other = whole._step(1), parted._step(1)
    torch.testing.assert_close(one[0], other[0])
    for a, b in zip(whole.model.parameters(), parted.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


class Narrow:
    """A task whose loss runs out of memory with more than a few rows."""

    def __init__(self, task: Any, most: int) -> None:
        self.task, self.most = task, most
        self.carries_state = False

    def loss(self, model: Any, batch: Any, *more: Any) -> torch.Tensor:
        if batch.source.size(0) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.task.loss(model, batch, *more)


def narrowed(trainer: Any, most: int, **changes: Any) -> Updater:
    return Updater(
        trainer.model,
        Narrow(trainer.task, most),  # pyright: ignore[reportArgumentType]
        trainer.optimizer,
        trainer.ema,
        trainer.settings.changed(train={**trainer.config.model_dump(), **changes}),
        trainer.hardware,
    )


def test_where_memory_runs_out_batches_are_split(make_trainer, caplog):
    trainer, whole = make_trainer(dropout=0.0, epsilon=1e-3), make_trainer(dropout=0.0, epsilon=1e-3)
    batch = trainer.batches.batch(0)
    updater = narrowed(trainer, -(-batch.source.size(0) // 4))
    updater.update([batch], learning_rate=1e-3, decay=0.5)
    assert updater.num_pieces == 4
    assert "out of memory" in caplog.text
    assert "4 parts" in caplog.text
    whole.updater.update([batch], learning_rate=1e-3, decay=0.5)
    for a, b in zip(whole.model.parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_memory_errors_are_raised_where_batches_may_not_or_cannot_be_split(make_trainer):
    trainer = make_trainer()
    batch = trainer.batches.batch(0)
    for most, auto_batch in ((1, False), (0, True)):
        with pytest.raises(torch.OutOfMemoryError):
            narrowed(trainer, most, auto_batch=auto_batch).update([batch], learning_rate=1e-3, decay=0.5)


def test_other_errors_are_not_taken_for_memory_errors(make_trainer):
    class Broken:
        def loss(self, *given: Any, **more: Any) -> torch.Tensor:
            raise RegardError("not this")

    trainer = make_trainer()
    updater = narrowed(trainer, 10**6)
    updater._loss = Broken().loss
    with pytest.raises(RegardError, match="not this"):
        updater.update([trainer.batches.batch(0)], learning_rate=1e-3, decay=0.5)
