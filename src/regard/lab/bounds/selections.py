r"""Selections of the best of many candidates with known true scores, and the coverage of bounds on them.

A *pool* of candidates draws, for each selection, how many of $N$ examples each of
$M$ candidates classifies correctly. In three pools the candidates are simulated; in
the fourth they are classifiers of the built-in dates, and the examples are drawn
with replacement from a set of rows on which the true scores are computed. Bounds
that are not for proportions are simulated by the functions `cover_*`.

Dimensions: `selections`, `candidates`, `examples`, `rows`, `features`, `counts` of correct examples from 0 to N.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from regard.data.builtin import find_builtin
from regard.evaluation.intervals import clopper_pearson
from regard.evaluation.paired import holm
from regard.logging import log_info, progress_bar
from regard.selection import bounds

TRUE_SCORE = 0.8
"""Of candidates that are all equally good."""
_WORST_SCORE = 0.6
"""Of candidates that are not: their scores are spread between this and `TRUE_SCORE`."""
SHARED_ANSWERS = 0.8
"""The probability with which similar candidates all give the same answer."""
_SIGNIFICANCE = 1e-3
"""A guarantee counts as violated if so many failures have a smaller probability than this."""
_NUM_EXAMPLES, _NUM_CANDIDATES = 150, 20
"""Of the simulations of other bounds."""

UNCORRECTED, HOLD_OUT = "uncorrected (M = 1)", "exact binomial, hold-out"
UNIFORM_BOUNDS: dict[str, Callable[..., bounds.Bound]] = {
    "Hoeffding": lambda k, n, **options: bounds.hoeffding(k / n, n, **options),
    "empirical Bernstein": lambda k, n, **options: bounds.bernstein(k / n, n, **options),
    "Chernoff": lambda k, n, **options: bounds.chernoff(k / n, n, **options),
    "exact binomial": bounds.binomial,
}
"""Bounds that hold for all candidates simultaneously."""

_Counts = Int[np.ndarray, "selections candidates"]


@dataclass(frozen=True, eq=False)
class CandidatePool:
    """Candidates with known true scores."""

    name: str
    truths: Float[np.ndarray, " candidates"]
    draw: Callable[[int, int, int, np.random.Generator], _Counts]
    """From numbers of selections, examples and candidates to the number of examples each classifies correctly."""


def simulated_pools(num_candidates: int) -> list[CandidatePool]:
    """Pools of candidates that are correct at random: equally good, of different quality, and similar to each other."""
    same, spread = np.full(num_candidates, TRUE_SCORE), np.linspace(TRUE_SCORE, _WORST_SCORE, num_candidates)

    def independent(name: str, truths: Float[np.ndarray, " candidates"]) -> CandidatePool:
        return CandidatePool(name, truths, lambda runs, n, m, rng: rng.binomial(n, truths[:m], size=(runs, m)))

    return [
        independent("equally good", same),
        independent("different quality", spread),
        CandidatePool("equally good, similar", same, draw_similar),
    ]


def draw_similar(num_selections: int, num_examples: int, num_candidates: int, rng: np.random.Generator) -> _Counts:
    r"""Counts of candidates that, with probability `SHARED_ANSWERS`, all give one common answer to an example.

    Where the common answer is correct, a candidate is correct with probability
    $s + (1 - s) p$, otherwise with $(1 - s) p$: given the number of correct common
    answers, its count is a sum of two binomial variables.
    """
    common = rng.binomial(num_examples, TRUE_SCORE, size=(num_selections, 1))
    own = (1 - SHARED_ANSWERS) * TRUE_SCORE
    size = (num_selections, num_candidates)
    return rng.binomial(common, SHARED_ANSWERS + own, size=size) + rng.binomial(num_examples - common, own, size=size)


def date_classifiers(num_candidates: int, *, num_rows: int, num_training: int, seed: int) -> CandidatePool:
    """Linear classifiers that predict from a few features of a written date whether it is before July.

    Each is trained on its own rows and features; all are scored on the same rows,
    which are the whole population: true scores are computed, not estimated.
    """
    rng = np.random.default_rng(seed)
    rows = list(find_builtin("dates").generate(num_rows + 10 * num_training, seed))
    features = hashed_ngrams([source for source, _ in rows])
    labels = np.array([int(target[5:7]) <= 6 for _, target in rows])
    log_info(f"{num_candidates:,} classifiers, trained on {num_training} rows each and scored on {num_rows:,}")
    is_correct = np.empty((num_rows, num_candidates), dtype=np.uint8)
    for i in progress_bar(range(num_candidates), "classifiers", total=num_candidates):
        picked = rng.choice(np.arange(num_rows, len(rows)), num_training, replace=False)
        columns = rng.choice(features.shape[1], features.shape[1] // 8, replace=False)
        x, y = features[picked][:, columns], 2.0 * labels[picked] - 1.0
        weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y)  # ridge regression
        is_correct[:, i] = (features[:, columns] @ weights > 0)[:num_rows] == labels[:num_rows]

    def draw(runs: int, n: int, m: int, rng: np.random.Generator) -> _Counts:
        return np.stack(
            [is_correct[rng.integers(num_rows, size=n), :m].sum(axis=0, dtype=np.int64) for _ in range(runs)]
        )

    return CandidatePool("date classifiers", is_correct.mean(axis=0, dtype=np.float64), draw)


def hashed_ngrams(
    texts: Sequence[str], *, num_features: int = 512, length: int = 3
) -> Float[np.ndarray, "rows features"]:
    """Counts of character n-grams, hashed to `num_features`; the first feature is constant."""
    found = np.zeros((len(texts), num_features), dtype=np.float32)
    for row, text in enumerate(texts):
        for start in range(len(text) - length + 1):
            found[row, zlib.crc32(text[start : start + length].encode()) % num_features] += 1
    found[:, 0] = 1.0
    return found


@dataclass(frozen=True)
class SelectionOutcome:
    """Repeated selections among so many candidates of a pool."""

    optimism: tuple[float, float, float]
    """Measured minus true score of the winner, mean over selections with its 95 % interval."""
    failures: Mapping[str, int]
    """In how many selections the winner's interval missed its true score, by bound."""
    any_failures: Mapping[str, int]
    """In how many the interval of any candidate missed its true score."""
    margins: Mapping[str, float]
    """The distance from the winner's score down to the end of its interval, mean over selections."""

    def looseness(self, name: str) -> float:
        """The margin of a bound over the optimism; NaN where the optimism is not positive."""
        return self.margins[name] / self.optimism[0] if self.optimism[0] > 0 else math.nan


@dataclass(frozen=True)
class SingleSelection:
    """One selection: measured and true scores, and the winner's bounds, the uncorrected one first."""

    measured: Float[np.ndarray, " candidates"]
    truths: Float[np.ndarray, " candidates"]
    winner_bounds: Sequence[bounds.Bound]

    @property
    def winner(self) -> int:
        return int(self.measured.argmax())


def select_repeatedly(
    pool: CandidatePool, num_candidates: int, num_examples: int, num_selections: int, *, delta: float,
    rng: np.random.Generator,
) -> SelectionOutcome:  # fmt: skip
    """Select the best of the first candidates of a pool, again and again."""
    n, runs = num_examples, num_selections
    counts = pool.draw(runs, n, num_candidates, rng)
    truths = pool.truths[:num_candidates]
    winners = counts.argmax(axis=1)
    best, truth = counts[np.arange(runs), winners], truths[winners]
    ends = {name: interval_table(make, n, num_candidates, delta) for name, make in UNIFORM_BOUNDS.items()}
    missed = {name: _misses(each, counts, truths) for name, each in ends.items()}
    ends[UNCORRECTED] = interval_table(bounds.binomial, n, 1, delta)
    failures = {name: int(_misses(each, best, truth).sum()) for name, each in ends.items()}
    margins = {name: float((best / n - each[best, 0]).mean()) for name, each in ends.items()}
    failures[HOLD_OUT], margins[HOLD_OUT] = _hold_out(pool, num_candidates, n // 2, runs, delta, rng)
    gains = best / n - truth
    mean, error = float(gains.mean()), 1.96 * float(gains.std()) / runs**0.5
    return SelectionOutcome(
        optimism=(mean, mean - error, mean + error),
        failures=failures,
        any_failures={name: int(each.any(axis=1).sum()) for name, each in missed.items()},
        margins=margins,
    )


def select_once(pool: CandidatePool, num_examples: int, *, delta: float, rng: np.random.Generator) -> SingleSelection:
    """One selection among all candidates of a pool."""
    m = len(pool.truths)
    counts = pool.draw(1, num_examples, m, rng)[0]
    best = int(counts.max())
    uniform = [make(best, num_examples, num_candidates=m, delta=delta) for make in UNIFORM_BOUNDS.values()]
    uncorrected = bounds.binomial(best, num_examples, delta=delta)
    return SingleSelection(counts / num_examples, pool.truths, [uncorrected, *uniform])


def interval_table(
    make: Callable[..., bounds.Bound], num_examples: int, num_candidates: int, delta: float
) -> Float[np.ndarray, "counts 2"]:
    """The interval for each number of correct examples, for look-up."""
    options = {"num_candidates": num_candidates, "delta": delta}
    return np.array([make(k, num_examples, **options).interval for k in range(num_examples + 1)])


def _misses(ends: Float[np.ndarray, "counts 2"], counts: np.ndarray, truths: np.ndarray) -> np.ndarray:
    return (ends[counts, 0] > truths) | (ends[counts, 1] < truths)


def _hold_out(
    pool: CandidatePool, num_candidates: int, half: int, num_selections: int, delta: float, rng: np.random.Generator
) -> tuple[int, float]:
    """Select on half of the examples and evaluate the winner on the others: failures, and the mean margin."""
    counts = pool.draw(num_selections, half, num_candidates, rng)
    truths = pool.truths[:num_candidates][counts.argmax(axis=1)]
    # Held-out examples are independent, and each is correct with the winner's true score.
    held_out = rng.binomial(half, truths)
    ends = interval_table(bounds.binomial, half, 1, delta)
    return int(_misses(ends, held_out, truths).sum()), float((held_out / half - ends[held_out, 0]).mean())


@dataclass(frozen=True)
class Coverage:
    """How often a bound or a test failed."""

    name: str
    case: str
    failures: int
    trials: int
    is_estimate: bool = False
    """Whether it is an estimate without a guarantee."""

    @property
    def share(self) -> tuple[float, float, float]:
        """The share of failures with its exact 95 % interval."""
        return self.failures / self.trials, *clopper_pearson(self.failures, self.trials)

    def is_consistent(self, delta: float) -> bool:
        """Whether so many failures are consistent with a failure probability of at most `delta`.

        Example:
            >>> Coverage("", "", 55, 1_000).is_consistent(0.05), Coverage("", "", 90, 1_000).is_consistent(0.05)
            (True, False)
        """
        return bounds.binomial_p_value(self.failures, self.trials, baseline=delta) >= _SIGNIFICANCE


def cover_scores(num_trials: int, *, delta: float, rng: np.random.Generator) -> Iterator[Coverage]:
    """Bounds for the winner among candidates with scores in [0, 1] of small variance."""
    missed: dict[str, int] = {}
    for _ in progress_bar(range(num_trials), "scores in [0, 1]", total=num_trials):
        values = rng.beta(16, 4, size=(_NUM_CANDIDATES, _NUM_EXAMPLES))
        scores = bounds.ScoreSummary.from_values(values[values.mean(axis=1).argmax()])
        found = {
            each.name: each for each in bounds.applicable_bounds(scores, num_candidates=_NUM_CANDIDATES, delta=delta)
        }
        found["tightest"] = bounds.tightest_bound(scores, num_candidates=_NUM_CANDIDATES, delta=delta)
        for name, bound in found.items():
            missed[name] = missed.get(name, 0) + (not bound.holds(0.8))
    for name, count in missed.items():
        yield Coverage(name, f"scores in [0, 1], best of {_NUM_CANDIDATES}", count, num_trials)


def cover_pac_bayes(num_trials: int, *, delta: float, rng: np.random.Generator) -> Coverage:
    """The PAC-Bayes bound for a randomized predictor whose weights increase with the measured scores."""
    truths = np.linspace(0.6, 0.8, _NUM_CANDIDATES)
    missed = 0
    for _ in range(num_trials):
        scores = rng.binomial(_NUM_EXAMPLES, truths) / _NUM_EXAMPLES
        weights = np.exp(40 * (scores - scores.max()))
        weights /= weights.sum()
        divergence = bounds.kl_from_uniform(weights.tolist())
        bound = bounds.pac_bayes(float(weights @ scores), _NUM_EXAMPLES, divergence=divergence, delta=delta)
        missed += not bound.holds(float(weights @ truths))
    return Coverage("PAC-Bayes", "weights depend on the measured scores", missed, num_trials)


def cover_tests(num_trials: int, *, delta: float, rng: np.random.Generator) -> Iterator[Coverage]:
    """Multiple tests of candidates none of which is better than the baseline."""
    counts = rng.binomial(_NUM_EXAMPLES, 0.8, size=(num_trials, _NUM_CANDIDATES)).tolist()
    for name, correct in (("Holm", holm), ("Bonferroni", bounds.bonferroni)):
        false = sum(any(bounds.which_beat(0.8, row, _NUM_EXAMPLES, delta=delta, correct=correct)) for row in counts)
        yield Coverage(name, f"{_NUM_CANDIDATES} tests, all null hypotheses true", false, num_trials)


def cover_losses(num_trials: int, *, delta: float, rng: np.random.Generator) -> Iterator[Coverage]:
    """Bootstrap estimates for the winner among candidates with heavy-tailed losses."""
    missed = {"bootstrap": 0, "bootstrap of all": 0}
    truth = float(np.exp(0.5))
    for trial in progress_bar(range(num_trials), "unbounded losses", total=num_trials):
        losses = rng.lognormal(size=(_NUM_EXAMPLES, _NUM_CANDIDATES))
        winner = int(losses.mean(axis=0).argmin())
        one = bounds.bootstrap_estimate(losses[:, winner], num_candidates=_NUM_CANDIDATES, delta=delta, seed=trial)
        every = bounds.bootstrap_estimate_of_all(losses, winner, delta=delta, seed=trial)
        missed["bootstrap"] += not one.holds(truth)
        missed["bootstrap of all"] += not every.holds(truth)
    for name, count in missed.items():
        yield Coverage(name, f"log-normal losses, best of {_NUM_CANDIDATES}", count, num_trials, is_estimate=True)
