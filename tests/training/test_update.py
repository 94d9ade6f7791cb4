"""One update of the weights, in one piece and in several."""

from typing import Any

import pytest
import torch

from regard.errors import RegardError
from regard.training.update import Updater


@pytest.mark.parametrize("num_pieces", [2, 4, 8])
def test_a_batch_read_in_parts_teaches_what_it_teaches_whole(make_trainer, num_pieces: int):
    whole, parted = (make_trainer(dropout=0.0, epsilon=1e-3) for _ in range(2))
    parted.updater.num_pieces = num_pieces
    one, other = whole._step(1), parted._step(1)
    torch.testing.assert_close(one[0], other[0])
    for a, b in zip(whole.model.parameters(), parted.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


class Narrow:
    """A task whose loss has no room for more than a few rows."""

    def __init__(self, task: Any, most: int) -> None:
        self.task, self.most = task, most

    def loss(self, model: Any, batch: Any, *more: Any) -> torch.Tensor:
        if batch.source.size(0) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.task.loss(model, batch, *more)


def narrowed(trainer: Any, most: int, **changes: Any) -> Updater:
    return Updater(
        trainer.model,
        Narrow(trainer.task, most),  # pyright: ignore[reportArgumentType]
        trainer.optimizer,
        trainer.average,
        trainer.config.changed(**changes),
        trainer.hardware,
    )


def test_where_memory_runs_out_the_batch_is_read_in_parts(make_trainer, caplog):
    trainer, whole = make_trainer(dropout=0.0, epsilon=1e-3), make_trainer(dropout=0.0, epsilon=1e-3)
    batch = trainer.batches.batch(0)
    updater = narrowed(trainer, -(-batch.source.size(0) // 4))
    updater.update([batch], rate=1e-3, decay=0.5)
    assert updater.num_pieces == 4
    assert "out of memory: each batch is read in 4 parts" in caplog.text
    whole.updater.update([batch], rate=1e-3, decay=0.5)
    for a, b in zip(whole.model.parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_where_it_is_forbidden_or_hopeless_it_stops(make_trainer):
    trainer = make_trainer()
    batch = trainer.batches.batch(0)
    for most, auto_batch in ((1, False), (0, True)):
        with pytest.raises(torch.OutOfMemoryError):
            narrowed(trainer, most, auto_batch=auto_batch).update([batch], rate=1e-3, decay=0.5)


def test_another_error_is_not_taken_for_a_lack_of_memory(make_trainer):
    class Broken:
        def loss(self, *given: Any, **more: Any) -> torch.Tensor:
            raise RegardError("not this")

    trainer = make_trainer()
    updater = narrowed(trainer, 10**6)
    updater._loss = Broken().loss
    with pytest.raises(RegardError, match="not this"):
        updater.update([trainer.batches.batch(0)], rate=1e-3, decay=0.5)
