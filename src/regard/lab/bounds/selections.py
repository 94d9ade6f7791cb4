r"""Selections of the best of many candidates with known true scores, and the coverage of bounds on them.

The best of $M$ candidates by their scores on $N$ examples scores higher on these
than in truth; the mean difference over selections is its *optimism*. A bound that
holds uniformly over all $M$ with probability $1 - \delta$,

$$ \varepsilon = \sqrt{\frac{\ln(2M / \delta)}{2N}} \quad \text{(Hoeffding)}, $$

may fail in a share of at most $\delta$ of the selections. The failures are counted, with
exact intervals of their share (Clopper and Pearson); a guarantee counts as violated
if so many failures have a probability below 1 in 1,000. The bounds are defined in
`regard.selection.bounds`.

A *pool* of candidates draws, for each selection, how many of $N$ examples each of
$M$ candidates classifies correctly. In three pools the candidates are simulated; in
the fourth they are classifiers of the built-in dates, and the examples are drawn
with replacement from a set of rows on which the true scores are computed. Bounds
that are not for proportions are simulated by the functions `cover_*`.

Dimensions: `selections`, `candidates`, `examples`, `rows`, `features`, `counts` of correct examples from 0 to N.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from regard.data.builtin import find_builtin
from regard.evaluation.intervals import clopper_pearson
from regard.evaluation.paired import holm
from regard.lab.bounds import BOUNDS_STUDY
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels
from regard.lab.study import Study, StudyCell, StudyTable, format_cell
from regard.logging import log_info, progress_bar
from regard.selection import bounds

TRUE_SCORE = 0.8
"""The true score of candidates that are all equally good."""
_WORST_SCORE = 0.6
"""The lowest true score of candidates that differ: theirs are spread between this and `TRUE_SCORE`."""
SHARED_ANSWERS = 0.8
"""The probability with which similar candidates all give the same answer."""
_SIGNIFICANCE = 1e-3
"""A guarantee counts as violated if so many failures have a smaller probability than this."""
_NUM_EXAMPLES, _NUM_CANDIDATES = 150, 20
"""Sizes of the simulations of other bounds."""

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


@dataclass(frozen=True, kw_only=True)
class BoundSizes:
    """How many selections, among how many candidates, on how many examples; the defaults are those of a quick run."""

    num_candidates: tuple[int, ...] = (1, 10, 100, 1_000)
    num_examples: int = 400
    num_selections: int = 500
    delta: float = 0.05
    num_rows: int = 8_000
    """On which the classifiers' true scores are computed."""
    num_training: int = 200
    num_estimates: int = 100
    """Selections for the bootstrap, which is slow."""


_FULL = BoundSizes(num_candidates=(1, 10, 100, 1_000, 10_000), num_selections=2_000, num_rows=40_000,
                   num_estimates=2_000)  # fmt: skip

_Outcomes = Mapping[tuple[str, int], SelectionOutcome]
"""By pool and M."""


def study_bounds(*, quick: bool = False, seed: int = 0, sizes: BoundSizes | None = None) -> Study:
    """Select repeatedly, and count how often the bounds fail."""
    sizes = sizes or (BoundSizes() if quick else _FULL)
    rng = np.random.default_rng(seed)
    most = max(sizes.num_candidates)
    dates = date_classifiers(min(most, 1_000), num_rows=sizes.num_rows, num_training=sizes.num_training, seed=seed)
    outcomes: dict[tuple[str, int], SelectionOutcome] = {}
    for pool in [*simulated_pools(most), dates]:
        for m in sizes.num_candidates:
            if m <= len(pool.truths):
                outcomes[pool.name, m] = select_repeatedly(
                    pool, m, sizes.num_examples, sizes.num_selections, delta=sizes.delta, rng=rng
                )
        log_info(f"{pool.name}: {sizes.num_selections:,} selections among up to {len(pool.truths):,} candidates")
    figure, axes = make_panels(2, 2, height=4.0)
    example_finding, example_table = _single_selection(
        axes[3], select_once(dates, sizes.num_examples, delta=sizes.delta, rng=rng)
    )
    coverage = [
        *cover_scores(sizes.num_selections, delta=sizes.delta, rng=rng),
        cover_pac_bayes(sizes.num_selections, delta=sizes.delta, rng=rng),
        *cover_tests(sizes.num_selections, delta=sizes.delta, rng=rng),
        *cover_losses(sizes.num_estimates, delta=sizes.delta, rng=rng),
    ]
    _draw_outcomes(axes[:3], outcomes, sizes)
    findings = [*_findings(outcomes, coverage, sizes), example_finding]
    tables = [*_tables(outcomes, sizes), example_table, _coverage_table(coverage, sizes)]
    return BOUNDS_STUDY.result(sizes, [(findings, tables)], figure)


def _share(failures: int, sizes: BoundSizes) -> tuple[float, float, float]:
    return Coverage("", "", failures, sizes.num_selections).share


def _findings(outcomes: _Outcomes, coverage: Sequence[Coverage], sizes: BoundSizes) -> list[str]:
    largest = {pool: outcomes[pool, max(m for name, m in outcomes if name == pool)] for pool, _ in outcomes}
    uncorrected = "; ".join(
        f"{pool} {100 * outcome.failures[UNCORRECTED] / sizes.num_selections:.0f} %"
        for pool, outcome in largest.items()
    )
    guaranteed = [
        Coverage(f"{name} ({pool}, M = {m:,})", "", failed, sizes.num_selections)
        for (pool, m), outcome in outcomes.items()
        for name, failed in {**outcome.any_failures, HOLD_OUT: outcome.failures[HOLD_OUT]}.items()
    ] + [each for each in coverage if not each.is_estimate]
    violated = [f"{each.name}: {each.failures}" for each in guaranteed if not each.is_consistent(sizes.delta)]
    worst = max(failed for outcome in outcomes.values() for failed in outcome.any_failures.values())
    looseness = "; ".join(
        f"{pool} {', '.join(f'{name} {outcome.looseness(name):.1f}' for name in UNIFORM_BOUNDS)}"
        for pool, outcome in largest.items()
    )
    estimates = ", ".join(f"{each.name} {format_cell(each.share)}" for each in coverage if each.is_estimate)
    return [
        f"At the largest M a {100 * (1 - sizes.delta):g} % interval that ignores the selection misses the winner's "
        f"true score in this share of selections on {sizes.num_examples} examples: {uncorrected}.",
        f"Of bounds for all M, the largest share of selections in which any candidate is missed is "
        f"{format_cell(_share(worst, sizes))} (delta = {sizes.delta:g}); of {len(guaranteed)} guarantees "
        f"{'these are violated: ' + ', '.join(violated) if violated else 'none is violated'}.",
        f"The margin below the winner's score, over its optimism, at the largest M: {looseness}.",
        f"Bootstrap estimates for unbounded losses, which have no guarantee, miss the winner's true loss in this "
        f"share: {estimates} (delta = {sizes.delta:g}).",
    ]


def _tables(outcomes: _Outcomes, sizes: BoundSizes) -> list[StudyTable]:
    names, cases = [UNCORRECTED, *UNIFORM_BOUNDS, HOLD_OUT], ["candidates", "M"]

    def rows(cells: Callable[[SelectionOutcome], Iterable[StudyCell]]) -> list[list[StudyCell]]:
        return [[pool, m, *cells(outcome)] for (pool, m), outcome in outcomes.items()]

    in_selections = f"missed in {sizes.num_selections:,} selections, delta = {sizes.delta:g}"
    return [
        StudyTable(
            f"winner {in_selections}", [*cases, *names],
            rows(lambda outcome: (_share(outcome.failures[name], sizes) for name in names)),
            "Share of selections in which the interval missed the winner's true score, with its exact 95 % interval. "
            "Hold-out: the winner is selected on half of the examples and evaluated on the other half.",
        ),
        StudyTable(
            f"any candidate {in_selections}", [*cases, *UNIFORM_BOUNDS],
            rows(lambda outcome: (_share(outcome.any_failures[name], sizes) for name in UNIFORM_BOUNDS)),
            "Guaranteed to be at most delta: the share of selections in which the interval of any of the M candidates "
            "missed its true score.",
        ),
        StudyTable(
            "optimism and margins", [*cases, "optimism", "standard error", *names],
            rows(lambda outcome: [outcome.optimism[0], (outcome.optimism[2] - outcome.optimism[0]) / 1.96,
                                  *(outcome.margins[name] for name in names)]),
            "Optimism: measured minus true score of the winner, mean over selections. Margins: distance from the "
            "winner's score down to the end of each interval.",
        ),
    ]  # fmt: skip


def _coverage_table(coverage: Sequence[Coverage], sizes: BoundSizes) -> StudyTable:
    return StudyTable(
        f"other bounds and tests, delta = {sizes.delta:g}",
        ["bound", "case", "trials", "share of failures", "from", "to", "consistent with delta"],
        [[each.name, each.case, each.trials, *each.share,
          ("yes" if each.is_consistent(sizes.delta) else "no") + (" (estimate)" if each.is_estimate else "")]
         for each in coverage],
        "From, to: the exact 95 % interval of the share. Consistent: at a failure probability of delta, so many "
        "failures or more have a probability above 1 in 1,000.",
    )  # fmt: skip


def _draw_outcomes(panels: Sequence[Axes], outcomes: _Outcomes, sizes: BoundSizes) -> None:
    failures, margins, looseness = panels
    dots = {"marker": "o", "markersize": 4, "linewidth": 1.5}
    pools = list(dict.fromkeys(pool for pool, _ in outcomes))
    by_pool = {pool: {m: outcome for (name, m), outcome in outcomes.items() if name == pool} for pool in pools}
    for color, (pool, found) in zip(COLORS, by_pool.items(), strict=False):
        for bound, style, name in ((UNCORRECTED, "-", pool), ("exact binomial", "--", None)):
            shares, low, high = zip(*(_share(each.failures[bound], sizes) for each in found.values()), strict=True)
            failures.plot(list(found), shares, style, color=color, label=name, **dots)
            failures.vlines(list(found), low, high, color=color, linewidth=1.2, alpha=0.6)
        # A single candidate has no optimism to compare with.
        several = {m: outcome for m, outcome in found.items() if m > 1}
        for bound, style, name in (("Hoeffding", ":", None), ("exact binomial", "-", pool)):
            ratios = [each.looseness(bound) for each in several.values()]
            looseness.plot(list(several), ratios, style, color=color, label=name, **dots)
    first, names = by_pool[pools[0]], [*UNIFORM_BOUNDS, HOLD_OUT]
    for color, name in zip(COLORS, names, strict=False):
        style = "--" if name == HOLD_OUT else "-"
        margins.plot(
            list(first), [each.margins[name] for each in first.values()], style, color=color, label=name, **dots
        )
    mean, low, high = zip(*(each.optimism for each in first.values()), strict=True)
    margins.plot(list(first), mean, color=INK, label="optimism", **{**dots, "linewidth": 2.2})
    margins.vlines(list(first), low, high, color=INK, linewidth=1.5)
    margins.set_ylim(-0.005, 1.45 * max(each.margins[name] for each in first.values() for name in names))
    failures.axhline(sizes.delta, color=MUTED, linewidth=1.2, linestyle=":")
    failures.text(0.99, sizes.delta + 0.015, f"delta = {sizes.delta:g}", transform=failures.get_yaxis_transform(),
                  ha="right", fontsize=8.5, color=MUTED)  # fmt: skip
    failures.set_ylim(-0.03, 1.05)
    looseness.axhline(1.0, color=MUTED, linewidth=1.2, linestyle=":")
    looseness.set_ylim(bottom=0.0)
    for axes, least, title, y, legend, columns in (
        (
            failures,
            1,
            "Winner missed: uncorrected; dashed: exact bound over all M",
            "share of selections",
            "upper left",
            1,
        ),
        (margins, 1, f"Margin below the winner's score ({pools[0]})", "score", "upper left", 2),
        (looseness, 2, "Margin / optimism: exact; dotted: Hoeffding", "margin / optimism", "upper right", 1),
    ):
        label_axes(axes, title, "candidates, M", y, log="x", legend=legend, ncols=columns)
        numbers = sorted({m for _, m in outcomes if m >= least})
        axes.set_xticks(numbers, labels=[f"{number:,}" for number in numbers])
        axes.xaxis.set_minor_locator(NullLocator())


def _single_selection(axes: Axes, example: SingleSelection) -> tuple[str, StudyTable]:
    winner, (uncorrected, *_, exact) = example.winner, example.winner_bounds
    score, truth = float(example.measured[winner]), float(example.truths[winner])
    axes.plot(example.measured, example.truths, ".", color=COLORS[0], markersize=4, alpha=0.35)
    ends = [min(example.measured.min(), example.truths.min()), max(example.measured.max(), example.truths.max())]
    axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=":", label="measured = true")
    beside = score + 0.03 * (ends[1] - ends[0])
    axes.vlines(score, *exact.interval, color=COLORS[1], linewidth=2.4, label="exact bound over all M")
    axes.vlines(beside, *uncorrected.interval, color=COLORS[3], linewidth=2.4, label="uncorrected interval (M = 1)")
    axes.plot([score], [truth], "o", color=INK, markersize=6, label="true score of the winner", zorder=5)
    name = f"one selection among {len(example.truths):,} date classifiers"
    y = "true score; intervals of the winner"
    label_axes(axes, name[0].upper() + name[1:], "measured score", y, legend="upper left")
    rows = zip([UNCORRECTED, *UNIFORM_BOUNDS], example.winner_bounds, strict=True)
    return (
        f"In {name} the winner scored {score:.4f}; its true score is {truth:.4f}, rank "
        f"{int((example.truths > truth).sum()) + 1:,}."
    ), StudyTable(
        name,
        ["bound", "measured score", "lower end", "upper end", "true score", "contains it"],
        [[bound, each.value, *each.interval, truth, "yes" if each.holds(truth) else "no"] for bound, each in rows],
    )  # fmt: skip
