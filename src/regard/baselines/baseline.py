"""What a baseline is: a name, and predictions for inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Row = TypeVar("Row")

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
    """The method, and the number of rows that it was fitted on where these are not all."""
    predict: Callable[[Sequence[str]], BaselinePredictions]
    """Predictions for inputs, as a task's `input_of` returns them."""


def limit_rows(rows: Sequence[Row], most: int) -> list[Row]:
    """At most this many rows, drawn at random and in their order, so that a sorted file loses no label."""
    if len(rows) <= most:
        return list(rows)
    drawn = np.random.default_rng(_SEED).choice(len(rows), most, replace=False)
    return [rows[index] for index in np.sort(drawn)]


def limit_characters(rows: Sequence[Row], most: int, length_of: Callable[[Row], int]) -> list[Row]:
    """As many of the rows, drawn as `limit_rows` does, as have about this many characters together."""
    total = sum(map(length_of, rows))
    return limit_rows(rows, max(1, len(rows) * most // total) if total > most else len(rows))


def full_name(method: str, num_used: int, num_rows: int, unit: str = "rows") -> str:
    """The name of a baseline that was fitted on some of the rows.

    Example:
        >>> full_name("ridge regression", 10, 10), full_name("ridge regression", 1_000, 20_000)
        ('ridge regression', 'ridge regression on 1,000 of 20,000 rows')
    """
    return method if num_used == num_rows else f"{method} on {num_used:,} of {num_rows:,} {unit}"
