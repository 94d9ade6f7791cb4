"""What the study of stability says: sentences and tables made from what was measured."""

import math
from collections.abc import Mapping

from regard.evaluation.means import mean_interval
from regard.lab.stability_figure import Bounded, Measured
from regard.lab.study import Cell, Table

_COLUMNS = ("what", "distance", "bound of it", "difference of losses", "new less training", "bound of both",
            "training loss")  # fmt: skip


def findings(measured: Measured) -> list[str]:
    return [
        _convex_finding(measured.convex),
        _count_finding(measured.counts),
        _strongly_finding(measured),
        _network_finding(measured.network),
        *(_falling_finding(scale, found) for scale, found in measured.falling.items()),
        _gap_finding(measured),
    ]


def _convex_finding(convex: Mapping[float, Bounded]) -> str:
    held = sum(_holds(found) for found in convex.values())
    parts = [
        f"{found.at_end(found.path.distances)[0]:.3g} at rate {rate:g} (bound {found.distance[-1]:.3g})"
        for rate, found in convex.items()
    ]
    steps = next(iter(convex.values())).path.steps[-1]
    return (
        f"Logistic regression: after {steps:,} steps one changed example has led the weights apart by "
        f"{', '.join(parts)}; the mean stays below the bound at every step looked at for {held} of {len(convex)} rates."
    )


def _holds(found: Bounded) -> bool:
    return all(
        mean <= bound for mean, bound in zip(found.path.distances.mean(dim=1).tolist(), found.distance, strict=True)
    )


def _count_finding(counts: Mapping[int, Bounded]) -> str:
    apart = slope({count: found.at_end(found.path.apart)[0] for count, found in counts.items()})
    gaps = {count: found.at_end(found.path.gaps) for count, found in counts.items()}
    least, most = min(counts), max(counts)
    return (
        f"From {least} to {most} examples the largest difference of losses changes as n to the power {apart:.2f} (the "
        f"bound: -1); the loss on new examples is {gaps[least][0]:.3f} [{gaps[least][1]:.3f}, {gaps[least][2]:.3f}] "
        f"nats higher than on {least} training examples, and {gaps[most][0]:.3f} [{gaps[most][1]:.3f}, "
        f"{gaps[most][2]:.3f}] than on {most}."
    )


def slope(points: Mapping[int, float]) -> float:
    """The power of a power law: of the line through the logarithms; NaN where fewer than two values have one."""
    kept = {place: value for place, value in points.items() if value > 0}
    if len(kept) < 2:
        return math.nan
    x, y = ([math.log(value) for value in values] for values in (kept, kept.values()))
    middle_x, middle_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    above = math.fsum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return above / math.fsum((a - middle_x) ** 2 for a in x)


def _strongly_finding(measured: Measured) -> str:
    parts = []
    for gamma, found in measured.strongly.items():
        means = found.path.distances.mean(dim=1)
        quarter = next(i for i, step in enumerate(found.path.steps) if step >= found.path.steps[-1] / 4)
        parts.append(
            f"{float(means[-1]):.3g} at convexity {gamma:g} ({float(means[-1] / means[quarter]):.2f} times that at a "
            f"quarter of the steps; bound {found.distance[-1]:.3g})"
        )
    return f"Where weights are drawn to 0, the distance comes to {', '.join(parts)}."


def _network_finding(network: Mapping[float, Bounded]) -> str:
    parts = []
    for rate, found in network.items():
        means = dict(zip(found.path.steps, found.path.distances.mean(dim=1).tolist(), strict=True))
        late = {step: value for step, value in means.items() if step >= found.path.steps[-1] / 10}
        power = slope(late)
        growth = "" if math.isnan(power) else f" (growing as steps to the power {power:.2f})"
        parts.append(f"{means[found.path.steps[-1]]:.3g} at rate {rate:g}{growth}")
    return f"Network at constant rates, for which there is no bound: weights apart by {', '.join(parts)} at the end."


def _falling_finding(scale: float, found: Bounded) -> str:
    apart, bound = found.at_end(found.path.apart), found.stability[-1]
    use = "which says nothing of losses between 0 and 1" if bound >= 1 else "of at most 1"
    return (
        f"Network at rates {scale:g} / t: where they differ most, losses differ by {apart[0]:.3g} [{apart[1]:.2g}, "
        f"{apart[2]:.2g}] on average over pairs; theorem 3.12 with the constants met on the way "
        f"(L = {found.lipschitz:.3g}, β = {found.smoothness:.3g}) allows "
        f"{bound:.3g}, {use}; the training loss has come from {float(found.path.train[0].mean()):.3f} to "
        f"{float(found.path.train[-1].mean()):.3f}."
    )


def _gap_finding(measured: Measured) -> str:
    parts = []
    for rate, found in measured.network.items():
        middle, low, high = found.at_end(found.path.gaps)
        early = mean_interval(found.path.gaps[0])[0]
        parts.append(
            f"{middle:.3f} [{low:.3f}, {high:.3f}] at rate {rate:g} ({early:.3f} after {found.path.steps[0]} steps)"
        )
    inside = [found for found in measured.convex.values() if found.at_end(found.path.gaps)[0] <= found.stability[-1]]
    return (
        f"The network's loss on new examples exceeds that on its training examples by {', '.join(parts)}; for logistic "
        f"regression this is below its bound at {len(inside)} of {len(measured.convex)} rates."
    )


def tables(measured: Measured) -> list[Table]:
    named = {
        **{f"logistic, rate {rate:g}": found for rate, found in measured.convex.items()},
        **{f"logistic, convexity {gamma:g}": found for gamma, found in measured.strongly.items()},
        **{f"network, rate {rate:g}": found for rate, found in measured.network.items()},
        **{f"network, rates {scale:g} / t": found for scale, found in measured.falling.items()},
    }
    counted = {f"{count} examples": found for count, found in measured.counts.items()}
    return [_table("one example exchanged", named), _table("logistic regression by size of the set", counted)]


def _table(name: str, named: Mapping[str, Bounded]) -> Table:
    rows: list[list[Cell]] = []
    for what, found in named.items():
        path = found.path
        bound = 100 * found.stability[-1] if found.stability else None
        distance = 100 * found.distance[-1] if found.distance else None
        means = [mean_interval(100 * values[-1]) for values in (path.distances, path.apart, path.gaps)]
        rows.append([what, means[0], distance, means[1], means[2], bound, float(path.train[-1].mean())])
    steps = next(iter(named.values())).path.steps[-1]
    return Table(
        name=f"{name}, after {steps:,} steps",
        columns=_COLUMNS,
        rows=rows,
        note="All but the last column in hundredths; in brackets the 95 % interval of the mean over pairs. The "
        "difference is the largest on any new example. For c / t the bound takes constants measured on the way.",
    )
