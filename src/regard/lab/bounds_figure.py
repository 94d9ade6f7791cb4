"""The figure of the study of bounds: failures, reach and optimism, room left, and one selection."""

from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from regard.evaluation.bootstrap import clopper_pearson
from regard.lab.bounds_selections import BOUNDS, FRESH, NAIVE, Example, Outcome
from regard.lab.drawing import COLORS, INK, MUTED, label, legend, panels

Outcomes = Mapping[tuple[str, int], Outcome]

EXACT = "exact binomial"


def compose(outcomes: Outcomes, example: Example, delta: float, num_selections: int) -> Figure:
    """Draw what the selections came to."""
    figure, (failures, reaches, room, one) = panels(2, 2, height=4.0)
    worlds = list(dict.fromkeys(world for world, _ in outcomes))
    _draw_failures(failures, outcomes, worlds, delta, num_selections)
    _draw_reaches(reaches, {m: outcome for (world, m), outcome in outcomes.items() if world == worlds[0]}, worlds[0])
    _draw_room(room, outcomes, worlds)
    _draw_example(one, example)
    return figure


def _draw_failures(axes: Axes, outcomes: Outcomes, worlds: list[str], delta: float, num_selections: int) -> None:
    for color, world in zip(COLORS, worlds, strict=False):
        sizes = [m for name, m in outcomes if name == world]
        for bound, style in ((NAIVE, "-"), (EXACT, "--")):
            counts = [outcomes[world, m].failures[bound] for m in sizes]
            shares = [count / num_selections for count in counts]
            ends = [clopper_pearson(count, num_selections) for count in counts]
            text = world if bound == NAIVE else None
            axes.plot(sizes, shares, style, color=color, label=text, marker="o", markersize=4, linewidth=1.5)
            axes.vlines(sizes, *zip(*ends, strict=True), color=color, linewidth=1.2, alpha=0.6)
    axes.axhline(delta, color=MUTED, linewidth=1.2, linestyle=":")
    axes.text(0.99, delta + 0.015, f"delta = {delta:g}", transform=axes.get_yaxis_transform(), ha="right", fontsize=8.5,
              color=MUTED)  # fmt: skip
    label(axes, "Winners missed; dashed, by the exact bound over all M", "hypotheses, M", "share of selections")
    axes.set_ylim(-0.03, 1.05)
    _count(axes, [m for _, m in outcomes])
    legend(axes, loc="upper left", title="interval as if M were 1:", title_fontsize=8.5, alignment="left")
    drawn = axes.get_legend()
    assert drawn is not None
    drawn.get_title().set_color(INK)


def _draw_reaches(axes: Axes, outcomes: Mapping[int, Outcome], world: str) -> None:
    sizes = list(outcomes)
    for color, name in zip(COLORS, [*BOUNDS, FRESH], strict=False):
        style = "--" if name == FRESH else "-"
        text = "half the examples fresh, exact" if name == FRESH else name
        axes.plot(sizes, [outcomes[m].reaches[name] for m in sizes], style, color=color, label=text, marker="o",
                  markersize=4, linewidth=1.5)  # fmt: skip
    optimism = [outcomes[m].optimism for m in sizes]
    axes.plot(sizes, [mean for mean, _, _ in optimism], color=INK, linewidth=2.2, marker="o", markersize=4,
              label="optimism: what is to be covered")  # fmt: skip
    axes.vlines(sizes, [low for _, low, _ in optimism], [high for _, _, high in optimism], color=INK, linewidth=1.5)
    label(axes, f"How far intervals reach below the winner ({world})", "hypotheses, M", "score")
    _count(axes, sizes)
    most = max(outcomes[m].reaches[name] for m in sizes for name in [*BOUNDS, FRESH])
    axes.set_ylim(-0.005, 1.45 * most)
    legend(axes, loc="upper left", ncols=2)


def _draw_room(axes: Axes, outcomes: Outcomes, worlds: list[str]) -> None:
    for color, world in zip(COLORS, worlds, strict=False):
        # The only hypothesis there is has no optimism to compare with.
        kept = {m: outcome for (name, m), outcome in outcomes.items() if name == world and m > 1}
        for bound, style in (("Hoeffding", ":"), (EXACT, "-")):
            ratios = [outcome.room(bound) for outcome in kept.values()]
            text = world if bound == EXACT else None
            axes.plot(list(kept), ratios, style, color=color, label=text, marker="o", markersize=4, linewidth=1.5)
    axes.axhline(1.0, color=MUTED, linewidth=1.2, linestyle=":")
    label(axes, "Reach / optimism: exact, and Hoeffding's dotted", "hypotheses, M", "reach / optimism")
    axes.set_ylim(bottom=0.0)
    _count(axes, [m for _, m in outcomes if m > 1])
    legend(axes, loc="upper right")


def _draw_example(axes: Axes, example: Example) -> None:
    winner, (naive, *_, exact) = example.winner, example.bounds
    axes.plot(example.measured, example.truths, ".", color=COLORS[0], markersize=4, alpha=0.35)
    ends = [min(example.measured.min(), example.truths.min()), max(example.measured.max(), example.truths.max())]
    axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=":", label="measured = true")
    x, y = example.measured[winner], example.truths[winner]
    beside = x + 0.03 * (ends[1] - ends[0])
    axes.vlines(x, *exact.interval, color=COLORS[1], linewidth=2.4, label="exact bound, over all M")
    axes.vlines(beside, *naive.interval, color=COLORS[3], linewidth=2.4, label="interval as if M were 1")
    axes.plot([x], [y], "o", color=INK, markersize=6, label="the winner, truly", zorder=5)
    title = f"One selection among {len(example.truths):,} classifiers of dates"
    label(axes, title, "measured score", "true score; intervals of the winner")
    legend(axes, loc="upper left")


def _count(axes: Axes, sizes: Iterable[int]) -> None:
    """Ticks at the numbers of hypotheses."""
    numbers = sorted(set(sizes))
    axes.set_xscale("log")
    axes.set_xticks(numbers, labels=[f"{number:,}" for number in numbers])
    axes.xaxis.set_minor_locator(NullLocator())
