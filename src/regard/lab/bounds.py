r"""Bounds on chosen scores, put to the test: how often they fail, and how much room they leave.

The best of $M$ hypotheses by their scores on $N$ examples is better on those
than it truly is; by how much, in the mean over selections, is its *optimism*. A
bound that holds uniformly over all $M$ with probability $1 - \delta$,

$$ \varepsilon = \sqrt{\frac{\ln(2M / \delta)}{2N}} \quad \text{(Hoeffding)}, $$

may fail in a share of at most $\delta$ of the selections. Whether it does is
counted, and the share has Clopper and Pearson's exact interval; a bound is said
to break its promise where so many failures have a chance below 1 in 1,000.

What each bound is and when it holds stands in `regard.selection.bounds`; the
hypotheses are in `bounds_worlds.py`, what is not a proportion in
`bounds_coverage.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from regard.evaluation.bootstrap import clopper_pearson
from regard.lab import STUDIES
from regard.lab.bounds_coverage import Coverage, cover_all
from regard.lab.bounds_figure import compose
from regard.lab.bounds_selections import BOUNDS, FRESH, NAIVE, Example, Outcome, select, select_once
from regard.lab.bounds_worlds import classifiers, coins
from regard.lab.study import Study, Table
from regard.logging import log_info


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many selections, among how many, on how many examples."""

    num_hypotheses: tuple[int, ...]
    num_examples: int = 400
    num_selections: int
    delta: float = 0.05
    num_rows: int
    """Of the pool on which the classifiers' true scores are counted."""
    num_training: int = 200
    num_estimates: int
    """Selections for the bootstrap, which takes longest."""


QUICK = Sizes(num_hypotheses=(1, 10, 100, 1_000), num_selections=500, num_rows=8_000, num_estimates=100)
FULL = Sizes(num_hypotheses=(1, 10, 100, 1_000, 10_000), num_selections=2_000, num_rows=40_000, num_estimates=2_000)


def study(*, quick: bool, seed: int) -> Study:
    """Select again and again, and count where the bounds failed."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    rng = np.random.default_rng(seed)
    most = max(sizes.num_hypotheses)
    real = classifiers(min(most, 1_000), num_rows=sizes.num_rows, num_training=sizes.num_training, seed=seed)
    outcomes: dict[tuple[str, int], Outcome] = {}
    for world in [*coins(most), real]:
        for m in sizes.num_hypotheses:
            if m <= len(world.truths):
                outcomes[world.name, m] = select(
                    world, m, sizes.num_examples, sizes.num_selections, delta=sizes.delta, rng=rng
                )
        log_info(f"{world.name}: {sizes.num_selections:,} selections among up to {len(world.truths):,}")
    example = select_once(real, sizes.num_examples, delta=sizes.delta, rng=rng)
    coverage = cover_all(sizes.num_selections, sizes.num_estimates, delta=sizes.delta, rng=rng)
    findings = [_naive_finding(outcomes, sizes), _kept_finding(outcomes, sizes), _room_finding(outcomes, sizes)]
    return Study(
        name="bounds",
        title="What can be said of the best of many",
        claim=STUDIES["bounds"],
        findings=[*findings, _example_finding(example), *_coverage_findings(coverage, sizes)],
        tables=[
            _failure_table(outcomes, sizes),
            _any_table(outcomes, sizes),
            _reach_table(outcomes),
            _example_table(example),
            _coverage_table(coverage, sizes),
        ],
        figure=compose(outcomes, example, sizes.delta, sizes.num_selections),
        settings=asdict(sizes),
    )


def _share(num_failures: int, num_trials: int) -> tuple[float, float, float]:
    return (num_failures / num_trials, *clopper_pearson(num_failures, num_trials))


def _naive_finding(outcomes: Mapping[tuple[str, int], Outcome], sizes: Sizes) -> str:
    most = {world: max(m for name, m in outcomes if name == world) for world, _ in outcomes}
    parts = [
        f"{world} {100 * outcomes[world, m].failures[NAIVE] / sizes.num_selections:.0f} % (M = {m:,})"
        for world, m in most.items()
    ]
    return (
        f"Whoever takes the winner's score as if it were the only one, with an interval of {1 - sizes.delta:.0%}, is "
        f"wrong in this share of selections on {sizes.num_examples} examples: {'; '.join(parts)}."
    )


def _kept_finding(outcomes: Mapping[tuple[str, int], Outcome], sizes: Sizes) -> str:
    broken = [
        f"{name} ({world}, M = {m:,}: {failed})"
        for (world, m), outcome in outcomes.items()
        for name, failed in {**outcome.failures_of_any, FRESH: outcome.failures[FRESH]}.items()
        if not Coverage(name, "", failed, sizes.num_selections).is_kept(sizes.delta)
    ]
    verdict = (
        f"promises broken: {', '.join(broken)}" if broken else "no promise is broken, nor is that on fresh examples"
    )
    worst = max(failed for outcome in outcomes.values() for failed in outcome.failures_of_any.values())
    share, low, high = _share(worst, sizes.num_selections)
    return (
        f"Of the bounds that count all M, the largest share of selections in which any of the M hypotheses was missed "
        f"is {share:.3f} [{low:.3f}, {high:.3f}], beside delta = {sizes.delta:g}; {verdict}."
    )


def _room_finding(outcomes: Mapping[tuple[str, int], Outcome], sizes: Sizes) -> str:
    parts = []
    for world in dict.fromkeys(world for world, _ in outcomes):
        m = max(m for name, m in outcomes if name == world)
        outcome = outcomes[world, m]
        reaches = ", ".join(f"{name} {outcome.room(name):.1f}" for name in BOUNDS)
        parts.append(f"{world} (M = {m:,}, optimism {outcome.optimism[0]:.4f}): {reaches}")
    return f"How far they reach below the winner's score, as a multiple of its optimism: {'; '.join(parts)}."


def _example_finding(example: Example) -> str:
    winner, (naive, *_, exact) = example.winner, example.bounds
    place = int((example.truths > example.truths[winner]).sum()) + 1
    return (
        f"In one selection among {len(example.truths):,} classifiers the winner had {example.measured[winner]:.4f} and "
        f"truly has {example.truths[winner]:.4f}, place {place:,} of all; the interval that does not count the others "
        f"starts at {naive.interval[0]:.4f} and {'holds' if naive.holds(example.truths[winner]) else 'fails'}, the "
        f"exact one over all starts at {exact.interval[0]:.4f} and "
        f"{'holds' if exact.holds(example.truths[winner]) else 'fails'}."
    )


def _coverage_findings(coverage: Sequence[Coverage], sizes: Sizes) -> list[str]:
    promises = [each for each in coverage if not each.is_estimate]
    estimates = [each for each in coverage if each.is_estimate]
    broken = [each.name for each in promises if not each.is_kept(sizes.delta)]
    said = ", ".join(
        f"{each.name} {each.failures / each.trials:.3f} [{each.interval[0]:.3f}, {each.interval[1]:.3f}]"
        for each in estimates
    )
    return [
        f"Of {len(promises)} further promises (scores between 0 and 1, weighted choices, tests of many) "
        f"{'these are broken: ' + ', '.join(broken) if broken else 'none is broken'}.",
        f"The estimates for losses without a range miss the winner's true loss in these shares, beside "
        f"{sizes.delta:g}: {said}.",
    ]


def _failure_table(outcomes: Mapping[tuple[str, int], Outcome], sizes: Sizes) -> Table:
    names = [NAIVE, *BOUNDS, FRESH]
    return Table(
        name=f"winners missed in {sizes.num_selections:,} selections, delta = {sizes.delta:g}",
        columns=["hypotheses", "M", *names],
        rows=[
            [world, m, *(_share(outcome.failures[name], sizes.num_selections) for name in names)]
            for (world, m), outcome in outcomes.items()
        ],
        note="Share of selections in which the interval missed the true score of the winner, with its exact 95 % "
        "interval. On fresh examples: half of them, the winner being chosen on the other half.",
    )


def _any_table(outcomes: Mapping[tuple[str, int], Outcome], sizes: Sizes) -> Table:
    return Table(
        name=f"any hypothesis missed in {sizes.num_selections:,} selections, delta = {sizes.delta:g}",
        columns=["hypotheses", "M", *BOUNDS],
        rows=[
            [world, m, *(_share(outcome.failures_of_any[name], sizes.num_selections) for name in BOUNDS)]
            for (world, m), outcome in outcomes.items()
        ],
        note="What is promised: share of selections in which the interval of any of the M missed its true score.",
    )


def _reach_table(outcomes: Mapping[tuple[str, int], Outcome]) -> Table:
    names = [NAIVE, *BOUNDS, FRESH]
    return Table(
        name="room left",
        columns=["hypotheses", "M", "optimism", "standard error", *names],
        rows=[
            [
                world, m, outcome.optimism[0], (outcome.optimism[2] - outcome.optimism[0]) / 1.96,
                *(outcome.reaches[name] for name in names),
            ]
            for (world, m), outcome in outcomes.items()
        ],
        note="How much better the winner looked than it is, in the mean over selections; how far each interval reaches "
        "below its score.",
    )  # fmt: skip


def _example_table(example: Example) -> Table:
    truth = float(example.truths[example.winner])
    names = [NAIVE, *BOUNDS]
    rows = zip(names, example.bounds, strict=True)
    return Table(
        name=f"one selection among {len(example.truths):,} classifiers",
        columns=["bound", "measured", "lower end", "upper end", "truly", "holds"],
        rows=[[name, each.value, *each.interval, truth, "yes" if each.holds(truth) else "no"] for name, each in rows],
    )


def _coverage_table(coverage: Sequence[Coverage], sizes: Sizes) -> Table:
    return Table(
        name=f"what is not a proportion, delta = {sizes.delta:g}",
        columns=["bound", "of what", "trials", "share wrong", "from", "to", "verdict"],
        rows=[
            [
                each.name, each.what, each.trials, each.failures / each.trials, *each.interval,
                ("estimate: " if each.is_estimate else "") + ("kept" if each.is_kept(sizes.delta) else "broken"),
            ]
            for each in coverage
        ],
        note="From, to: the exact 95 % interval of the share. Kept: so many failures or more would have a chance above "
        "1 in 1,000 if each had that of delta.",
    )  # fmt: skip
