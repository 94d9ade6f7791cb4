"""Training that diverges: how it is recognized, and the return to a state before it.

A loss that is not finite, weights that are not, and a loss that has exploded end a run, unless it has a
checkpoint from before. Training then continues from there at half the learning rate, with the batches that follow
those that it has seen: a batch with damaged rows, and the noise that has made it diverge, are not repeated.

Checkpoints at multiples of `train.checkpoint_every`, and that of the end of a budget, are those that a run returns to,
since they do not depend on when it was interrupted. Which is the last of them, and how often the run has returned, is
part of each checkpoint. A run that is interrupted and resumed thus ends with the weights of one that was not.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.errors import DivergedError
from regard.logging import log_warning

if TYPE_CHECKING:
    from regard.training.loop import Trainer

LoadState = Callable[[int], tuple[Mapping[str, Tensor], Mapping[str, Any]] | None]
"""Returns the tensors and the progress that were saved at a step, or the newest ones before it; None if there are none.
"""
RATE_FACTOR = 0.5
"""Of the learning rate, each time that training returns to a checkpoint."""
_HIGH = 2.0
"""How far a loss is above the usual one, in units of the largest of: the usual loss, that of the first steps, and 1.
Twice the loss of the first steps is worse than the untrained model by its whole loss: a run that merely learns badly,
or whose loss is near 0, is not affected, nor are rows that are harder than others."""
_FEWEST, RECENT_LINES = 5, 20
"""Lines of figures, ten steps each, from which the usual loss is computed: their median."""
HIGH_LINES = 3
"""Lines in a row with such a loss that make an explosion: an outlier among the targets makes one."""


def is_high(loss: float, first: float | None, recent: Sequence[float]) -> bool:
    """Whether a loss is far above the recent ones.

    Example:
        >>> is_high(15.0, 4.0, [0.5] * 5), is_high(8.0, 4.0, [0.5] * 5), is_high(0.1, 0.01, [0.0001] * 5)
        (True, False, False)
    """
    if first is None or len(recent) < _FEWEST:
        return False
    usual = statistics.median(recent)
    return loss > usual + _HIGH * max(1.0, abs(first), abs(usual))


def roll_back(trainer: "Trainer", error: DivergedError, load: LoadState | None) -> dict[str, Any]:
    """Return to the last good checkpoint, at a lower learning rate; the error is raised again where that is impossible.

    Returns what happened, as a line of figures.
    """
    before, config = trainer.progress, trainer.config
    number = before.num_rollbacks + 1
    if load is None or not config.max_rollbacks:
        raise error
    if number > config.max_rollbacks:
        times = f"{config.max_rollbacks} time{'' if config.max_rollbacks == 1 else 's'}"
        raise DivergedError(f"{error.reason}, after training has returned to a checkpoint {times}", error.advice)
    found = load(before.last_good)
    if found is None:
        raise error
    trainer.restore(*found)
    after = trainer.progress
    trainer.progress = replace(
        after,
        num_rollbacks=number,
        num_skipped=before.num_skipped + (before.step - after.step) * config.accumulate,
        # The weights that are kept are the best so far, also where they are of a later step than the checkpoint.
        **{
            name: getattr(before, name)
            for name in ("best_loss", "best_score", "best_step", "kept_loss", "kept_score", "kept_rollbacks")
        },
        **{name: getattr(before, name) for name in ("seconds", "seconds_at_line", "evaluated_at", "tokens")},
    )
    trainer.updater.carried.clear()  # the next batch does not continue the text of the one before the checkpoint
    factor = RATE_FACTOR**number
    log_warning(
        f"{error.reason}: training returns to step {after.step:,}, at {factor:g} times the learning rate "
        f"({number} of at most {config.max_rollbacks} times)"
    )
    return {
        "step": after.step,
        "rollbacks": number,
        "rolled_back_from": before.step,
        "reason": error.reason,
        "learning_rate_factor": factor,
        "seconds": before.seconds,
    }
