"""What a baseline is: a name, and predictions for inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

_Row = TypeVar("_Row")

_SEED = 0
"""A baseline is part of no experiment over seeds: the same rows always give the same one."""


@dataclass(frozen=True)
class BaselinePredictions:
    """What a baseline predicts for some inputs: outputs, or for running text the likelihoods of its spans."""

    outputs: Sequence[str] = ()
    """One for each input, as `predict` of a run would return it."""
    probabilities: Sequence[dict[str, float]] | None = None
    """For each input the probability of each label, where the baseline has them."""
    losses: Sequence[float] = ()
    """The negative log-likelihood of each span, in nats."""
    num_tokens: Sequence[int] = ()
    """The number of tokens of each span."""


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline."""

    name: str
    """The method."""
    predict: Callable[[Sequence[str]], BaselinePredictions]
    """Predictions for inputs, as a task's `input_of` returns them."""
    num_used: int | None = None
    """The number of rows that it was fitted on; None where nothing was fitted."""
    unit: str = "rows"
    """What the training set is counted in."""

    def name_for(self, total: int) -> str:
        """The name for a training set of this size, of which the baseline may have used a part.

        Example:
            >>> baseline = Baseline("ridge regression", lambda inputs: BaselinePredictions(), 1_000)
            >>> baseline.name_for(1_000), baseline.name_for(20_000)
            ('ridge regression', 'ridge regression on 1,000 of 20,000 rows')
        """
        is_part = self.num_used is not None and self.num_used < total
        return f"{self.name} on {self.num_used:,} of {total:,} {self.unit}" if is_part else self.name


def limit_rows(rows: Sequence[_Row], most: int) -> list[_Row]:
    """At most this many rows, drawn at random and in their order, so that a sorted file loses no label."""
    if len(rows) <= most:
        return list(rows)
    drawn = np.random.default_rng(_SEED).choice(len(rows), most, replace=False)
    return [rows[index] for index in np.sort(drawn)]
