"""Choosing the best of many, again and again, and counting where what was said of it is wrong.

Dimensions: `selections`, `hypotheses`, `counts` of successes from 0 to the number of examples.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from regard.lab.bounds_worlds import World
from regard.selection.bounds import Bound, bernstein, binomial, chernoff, hoeffding

NAIVE, FRESH = "none, as if M were 1", "exact binomial, on fresh examples"
BOUNDS: dict[str, Callable[..., Bound]] = {
    "Hoeffding": lambda k, n, **options: hoeffding(k / n, n, **options),
    "empirical Bernstein": lambda k, n, **options: bernstein(k / n, n, **options),
    "Chernoff": lambda k, n, **options: chernoff(k / n, n, **options),
    "exact binomial": binomial,
}
"""Those that hold for all hypotheses at once."""


@dataclass(frozen=True)
class Outcome:
    """What selections among so many hypotheses of a world came to."""

    optimism: tuple[float, float, float]
    """How much better the winner looked than it is, in the mean, with a 95 % interval over selections."""
    failures: Mapping[str, int]
    """In how many selections the winner's interval missed its true score, by bound."""
    failures_of_any: Mapping[str, int]
    """In how many some hypothesis' interval did; the fresh examples are the winner's alone."""
    reaches: Mapping[str, float]
    """How far the interval reaches below the winner's score, in the mean."""

    def room(self, name: str) -> float:
        """The reach of a bound as a multiple of the optimism; no number where few selections show none."""
        return self.reaches[name] / self.optimism[0] if self.optimism[0] > 0 else math.nan


@dataclass(frozen=True)
class Example:
    """The first selection among all classifiers: measured and true scores, and what the bounds say of the winner."""

    measured: Float[np.ndarray, " hypotheses"]
    truths: Float[np.ndarray, " hypotheses"]
    bounds: Sequence[Bound]

    @property
    def winner(self) -> int:
        return int(self.measured.argmax())


def select(
    world: World,
    num_hypotheses: int,
    num_examples: int,
    num_selections: int,
    *,
    delta: float,
    rng: np.random.Generator,
) -> Outcome:
    """Choose the best of the first hypotheses of a world, again and again."""
    n, runs = num_examples, num_selections
    counts = world.draw(runs, n, num_hypotheses, rng)
    truths = world.truths[:num_hypotheses]
    winners = counts.argmax(axis=1)
    best, truth = counts[np.arange(runs), winners], truths[winners]
    ends = {name: ends_of(make, n, num_hypotheses, delta) for name, make in BOUNDS.items()}
    missed = {name: (each[counts, 0] > truths) | (each[counts, 1] < truths) for name, each in ends.items()}
    ends[NAIVE] = ends_of(binomial, n, 1, delta)
    failures = {name: int(_misses(each, best, truth).sum()) for name, each in ends.items()}
    reaches = {name: float((best / n - each[best, 0]).mean()) for name, each in ends.items()}
    failures[FRESH], reaches[FRESH] = _on_fresh(world, num_hypotheses, n // 2, runs, delta, rng)
    gains = best / n - truth
    error = 1.96 * float(gains.std()) / runs**0.5
    mean = float(gains.mean())
    return Outcome(
        optimism=(mean, mean - error, mean + error),
        failures=failures,
        failures_of_any={name: int(each.any(axis=1).sum()) for name, each in missed.items()},
        reaches=reaches,
    )


def select_once(world: World, num_examples: int, *, delta: float, rng: np.random.Generator) -> Example:
    """One choice among all hypotheses of a world, and what is said of the winner: by no bound first, then by each."""
    num_hypotheses = len(world.truths)
    counts = world.draw(1, num_examples, num_hypotheses, rng)[0]
    best = int(counts.max())
    bounds = [make(best, num_examples, num_hypotheses=num_hypotheses, delta=delta) for make in BOUNDS.values()]
    return Example(counts / num_examples, world.truths, [binomial(best, num_examples, delta=delta), *bounds])


def ends_of(
    make: Callable[..., Bound], num_examples: int, num_hypotheses: int, delta: float
) -> Float[np.ndarray, "counts 2"]:
    """The interval for each number of successes, so that selections need only look them up."""
    options = {"num_hypotheses": num_hypotheses, "delta": delta}
    return np.array([make(k, num_examples, **options).interval for k in range(num_examples + 1)])


def _misses(
    ends: Float[np.ndarray, "counts 2"],
    counts: Int[np.ndarray, " selections"],
    truths: Float[np.ndarray, " selections"],
) -> Bool[np.ndarray, " selections"]:
    return (ends[counts, 0] > truths) | (ends[counts, 1] < truths)


def _on_fresh(
    world: World, num_hypotheses: int, half: int, num_selections: int, delta: float, rng: np.random.Generator
) -> tuple[int, float]:
    """Choose on half of the examples and look at the winner on the other half: failures, and the mean reach."""
    counts = world.draw(num_selections, half, num_hypotheses, rng)
    truths = world.truths[:num_hypotheses][counts.argmax(axis=1)]
    # Fresh examples are drawn independently, and each is right with the winner's true chance.
    fresh = rng.binomial(half, truths)
    ends = ends_of(binomial, half, 1, delta)
    return int(_misses(ends, fresh, truths).sum()), float((fresh / half - ends[fresh, 0]).mean())
