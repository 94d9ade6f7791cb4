"""How often promises fail that are not about proportions: of scores between 0 and 1, losses, weights, tests."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from regard.evaluation.bootstrap import clopper_pearson
from regard.logging import progress_bar
from regard.selection.bounds import (
    Scores,
    applicable,
    binomial_p_value,
    bonferroni,
    bootstrap,
    bootstrap_of_all,
    divergence_from_uniform,
    holm,
    pac_bayes,
    tightest,
    which_beat,
)

SURE = 1e-3
"""Below which chance so many failures are called a broken promise."""
NUM_EXAMPLES, NUM_HYPOTHESES = 150, 20


@dataclass(frozen=True)
class Coverage:
    """How often something that is promised was wrong."""

    name: str
    what: str
    failures: int
    trials: int
    is_estimate: bool = False

    @property
    def interval(self) -> tuple[float, float]:
        """Of the share of failures, exact, 95 %."""
        return clopper_pearson(self.failures, self.trials)

    def is_kept(self, delta: float) -> bool:
        """Whether so many failures can be had where each has a chance of at most delta.

        Example:
            >>> Coverage("", "", 55, 1_000).is_kept(0.05), Coverage("", "", 90, 1_000).is_kept(0.05)
            (True, False)
        """
        return binomial_p_value(self.failures, self.trials, baseline=delta) >= SURE


def cover_all(num_selections: int, num_estimates: int, *, delta: float, rng: np.random.Generator) -> list[Coverage]:
    """Every bound and interval that the simulations of proportions leave out."""
    return [
        *cover_shares(num_selections, delta=delta, rng=rng),
        cover_weights(num_selections, delta=delta, rng=rng),
        *cover_tests(num_selections, delta=delta, rng=rng),
        *cover_losses(num_estimates, delta=delta, rng=rng),
    ]


def cover_shares(num_trials: int, *, delta: float, rng: np.random.Generator) -> Iterator[Coverage]:
    """The winner among hypotheses with scores between 0 and 1 that vary little."""
    missed: dict[str, int] = {}
    for _ in progress_bar(range(num_trials), "scores between 0 and 1", total=num_trials):
        values = rng.beta(16, 4, size=(NUM_HYPOTHESES, NUM_EXAMPLES))
        scores = Scores.of(values[values.mean(axis=1).argmax()])
        bounds = {each.name: each for each in applicable(scores, num_hypotheses=NUM_HYPOTHESES, delta=delta)}
        bounds["tightest"] = tightest(scores, num_hypotheses=NUM_HYPOTHESES, delta=delta)
        for name, bound in bounds.items():
            missed[name] = missed.get(name, 0) + (not bound.holds(0.8))
    for name, count in missed.items():
        yield Coverage(name, f"scores between 0 and 1, best of {NUM_HYPOTHESES}", count, num_trials)


def cover_weights(num_trials: int, *, delta: float, rng: np.random.Generator) -> Coverage:
    """A predictor drawn by weights that grow with the measured score."""
    truths = np.linspace(0.6, 0.8, NUM_HYPOTHESES)
    missed = 0
    for _ in range(num_trials):
        scores = rng.binomial(NUM_EXAMPLES, truths) / NUM_EXAMPLES
        weights = np.exp(40 * (scores - scores.max()))
        weights /= weights.sum()
        divergence = divergence_from_uniform(weights.tolist())
        bound = pac_bayes(float(weights @ scores), NUM_EXAMPLES, divergence=divergence, delta=delta)
        missed += not bound.holds(float(weights @ truths))
    return Coverage("PAC-Bayes", "weights chosen after looking", missed, num_trials)


def cover_tests(num_trials: int, *, delta: float, rng: np.random.Generator) -> Iterator[Coverage]:
    """Tests of hypotheses none of which is better than what it is compared with."""
    counts = rng.binomial(NUM_EXAMPLES, 0.8, size=(num_trials, NUM_HYPOTHESES)).tolist()
    for name, correct in (("Holm", holm), ("Bonferroni", bonferroni)):
        false = sum(any(which_beat(0.8, row, NUM_EXAMPLES, delta=delta, correct=correct)) for row in counts)
        yield Coverage(name, f"{NUM_HYPOTHESES} tests, nothing to find", false, num_trials)


def cover_losses(num_trials: int, *, delta: float, rng: np.random.Generator) -> Iterator[Coverage]:
    """The winner among hypotheses whose losses have a heavy tail."""
    missed = {"bootstrap": 0, "bootstrap of all": 0}
    truth = float(np.exp(0.5))
    for trial in progress_bar(range(num_trials), "losses without a range", total=num_trials):
        losses = rng.lognormal(size=(NUM_EXAMPLES, NUM_HYPOTHESES))
        winner = int(losses.mean(axis=0).argmin())
        one = bootstrap(losses[:, winner], num_hypotheses=NUM_HYPOTHESES, delta=delta, seed=trial)
        every = bootstrap_of_all(losses, winner, delta=delta, seed=trial)
        missed["bootstrap"] += not one.holds(truth)
        missed["bootstrap of all"] += not every.holds(truth)
    for name, count in missed.items():
        yield Coverage(name, f"log-normal losses, best of {NUM_HYPOTHESES}", count, num_trials, is_estimate=True)
