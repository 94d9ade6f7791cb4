r"""The study of bounds on selected scores: its sizes, findings, tables and figure.

The best of $M$ candidates by their scores on $N$ examples scores higher on these
than in truth; the mean difference over selections is its *optimism*. A bound that
holds uniformly over all $M$ with probability $1 - \delta$,

$$ \varepsilon = \sqrt{\frac{\ln(2M / \delta)}{2N}} \quad \text{(Hoeffding)}, $$

may fail in a share of at most $\delta$ of the selections. The failures are counted, with
exact intervals of their share (Clopper and Pearson); a guarantee counts as violated
if so many failures have a probability below 1 in 1,000.

The bounds are defined in `regard.selection.bounds`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from regard.lab.bounds import BOUNDS_STUDY
from regard.lab.bounds import selections as sel
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels
from regard.lab.study import Study, StudyCell, StudyTable, format_cell
from regard.logging import log_info


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

_Outcomes = Mapping[tuple[str, int], sel.SelectionOutcome]
"""By pool and M."""


def study_bounds(*, quick: bool = False, seed: int = 0, sizes: BoundSizes | None = None) -> Study:
    """Select repeatedly, and count how often the bounds fail."""
    sizes = sizes or (BoundSizes() if quick else _FULL)
    rng = np.random.default_rng(seed)
    most = max(sizes.num_candidates)
    dates = sel.date_classifiers(min(most, 1_000), num_rows=sizes.num_rows, num_training=sizes.num_training, seed=seed)
    outcomes: dict[tuple[str, int], sel.SelectionOutcome] = {}
    for pool in [*sel.simulated_pools(most), dates]:
        for m in sizes.num_candidates:
            if m <= len(pool.truths):
                outcomes[pool.name, m] = sel.select_repeatedly(
                    pool, m, sizes.num_examples, sizes.num_selections, delta=sizes.delta, rng=rng
                )
        log_info(f"{pool.name}: {sizes.num_selections:,} selections among up to {len(pool.truths):,} candidates")
    figure, axes = make_panels(2, 2, height=4.0)
    example_finding, example_table = _single_selection(
        axes[3], sel.select_once(dates, sizes.num_examples, delta=sizes.delta, rng=rng)
    )
    coverage = [
        *sel.cover_scores(sizes.num_selections, delta=sizes.delta, rng=rng),
        sel.cover_pac_bayes(sizes.num_selections, delta=sizes.delta, rng=rng),
        *sel.cover_tests(sizes.num_selections, delta=sizes.delta, rng=rng),
        *sel.cover_losses(sizes.num_estimates, delta=sizes.delta, rng=rng),
    ]
    _draw_outcomes(axes[:3], outcomes, sizes)
    findings = [*_findings(outcomes, coverage, sizes), example_finding]
    tables = [*_tables(outcomes, sizes), example_table, _coverage_table(coverage, sizes)]
    return BOUNDS_STUDY.result(sizes, [(findings, tables)], figure)


def _share(failures: int, sizes: BoundSizes) -> tuple[float, float, float]:
    return sel.Coverage("", "", failures, sizes.num_selections).share


def _findings(outcomes: _Outcomes, coverage: Sequence[sel.Coverage], sizes: BoundSizes) -> list[str]:
    largest = {pool: outcomes[pool, max(m for name, m in outcomes if name == pool)] for pool, _ in outcomes}
    uncorrected = "; ".join(
        f"{pool} {100 * outcome.failures[sel.UNCORRECTED] / sizes.num_selections:.0f} %"
        for pool, outcome in largest.items()
    )
    guaranteed = [
        sel.Coverage(f"{name} ({pool}, M = {m:,})", "", failed, sizes.num_selections)
        for (pool, m), outcome in outcomes.items()
        for name, failed in {**outcome.any_failures, sel.HOLD_OUT: outcome.failures[sel.HOLD_OUT]}.items()
    ] + [each for each in coverage if not each.is_estimate]
    violated = [f"{each.name}: {each.failures}" for each in guaranteed if not each.is_consistent(sizes.delta)]
    worst = max(failed for outcome in outcomes.values() for failed in outcome.any_failures.values())
    looseness = "; ".join(
        f"{pool} {', '.join(f'{name} {outcome.looseness(name):.1f}' for name in sel.UNIFORM_BOUNDS)}"
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
    names, cases = [sel.UNCORRECTED, *sel.UNIFORM_BOUNDS, sel.HOLD_OUT], ["candidates", "M"]

    def rows(cells: Callable[[sel.SelectionOutcome], Iterable[StudyCell]]) -> list[list[StudyCell]]:
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
            f"any candidate {in_selections}", [*cases, *sel.UNIFORM_BOUNDS],
            rows(lambda outcome: (_share(outcome.any_failures[name], sizes) for name in sel.UNIFORM_BOUNDS)),
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


def _coverage_table(coverage: Sequence[sel.Coverage], sizes: BoundSizes) -> StudyTable:
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
        for bound, style, name in ((sel.UNCORRECTED, "-", pool), ("exact binomial", "--", None)):
            shares, low, high = zip(*(_share(each.failures[bound], sizes) for each in found.values()), strict=True)
            failures.plot(list(found), shares, style, color=color, label=name, **dots)
            failures.vlines(list(found), low, high, color=color, linewidth=1.2, alpha=0.6)
        # A single candidate has no optimism to compare with.
        several = {m: outcome for m, outcome in found.items() if m > 1}
        for bound, style, name in (("Hoeffding", ":", None), ("exact binomial", "-", pool)):
            ratios = [each.looseness(bound) for each in several.values()]
            looseness.plot(list(several), ratios, style, color=color, label=name, **dots)
    first, names = by_pool[pools[0]], [*sel.UNIFORM_BOUNDS, sel.HOLD_OUT]
    for color, name in zip(COLORS, names, strict=False):
        style = "--" if name == sel.HOLD_OUT else "-"
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


def _single_selection(axes: Axes, example: sel.SingleSelection) -> tuple[str, StudyTable]:
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
    rows = zip([sel.UNCORRECTED, *sel.UNIFORM_BOUNDS], example.winner_bounds, strict=True)
    return (
        f"In {name} the winner scored {score:.4f}; its true score is {truth:.4f}, rank "
        f"{int((example.truths > truth).sum()) + 1:,}."
    ), StudyTable(
        name,
        ["bound", "measured score", "lower end", "upper end", "true score", "contains it"],
        [[bound, each.value, *each.interval, truth, "yes" if each.holds(truth) else "no"] for bound, each in rows],
    )  # fmt: skip
