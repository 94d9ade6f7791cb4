"""What the study of gradient descent says: sentences and tables made from what was measured."""

import math
from collections.abc import Mapping, Sequence

from regard.evaluation.means import Around, mean_interval
from regard.lab.descent_figure import Measured
from regard.lab.descent_noise import NARROW, WIDE, Classes, Outcome
from regard.lab.descent_rates import Escapes, OneStep, Sharpening, Switch
from regard.lab.study import Cell, Table


def findings(measured: Measured, *, fraction: float) -> list[str]:
    return [
        _step_finding(measured.firsts),
        *(_switch_finding(name, switches) for name, switches in measured.switches.items()),
        _edge_finding(measured.sharpening),
        _condition_finding(measured.steps, fraction),
        _saddle_finding(measured.escapes),
        *_noise_findings(measured),
        _batch_finding(NARROW, measured.narrow),
        _batch_finding(WIDE, measured.wide),
    ]


def _step_finding(firsts: Sequence[OneStep]) -> str:
    crossings = [first.crossing for first in firsts if not math.isnan(first.crossing)]
    at = ", ".join(f"{crossing:.2f}" for crossing in crossings)
    return (
        f"One step back from up the direction of the largest curvature λmax, the loss of the tanh network begins to "
        f"rise at {at or 'none of the rates tried'} times 2 / λmax ({len(crossings)} of {len(firsts)} seeds; a "
        f"quadratic says 1)."
    )


def _held(switches: Sequence[Switch], multiple: float) -> int:
    """In how many seeds the loss never rose above where it started."""
    return sum(switch.holds(multiple) for switch in switches)


def _switch_finding(name: str, switches: Sequence[Switch]) -> str:
    multiples, seeds = list(switches[0].losses), len(switches)
    held = ", ".join(f"{_held(switches, multiple)} at {multiple:g}" for multiple in multiples)
    right = sum(_held(switches, m) if m < 1 else seeds - _held(switches, m) for m in multiples)
    steps = max(len(losses) for losses in switches[0].losses.values()) - 1
    return (
        f"{steps} steps of the {name}, after slow descent: by the rate as a multiple of 2 / λmax, the loss never rises "
        f"above its start in so many of {seeds} seeds: {held}. That it does so below 1 and not above is right in "
        f"{right} of {seeds * len(multiples)} cases."
    )


def _edge_finding(sharpening: Sequence[Sharpening]) -> str:
    parts = [
        f"{found.curvatures[-1]:.3g} at rate {found.rate:g}, where 2 / rate is {found.edge:.3g}" for found in sharpening
    ]
    at = [f"{f.rate:g}" for f in sharpening if abs(f.curvatures[-1] / f.edge - 1) < 0.1]
    return (
        f"In training at one rate the largest curvature goes from {sharpening[0].curvatures[0]:.3g} to "
        f"{'; '.join(parts)}: within a tenth of that edge at rates {', '.join(at) or '- none'}."
    )


def _condition_finding(steps: Mapping[tuple[float, bool], tuple[int, float]], fraction: float) -> str:
    most, least = max(steps)[0], min(steps)[0]
    plain, faster = (steps[most, has][0] for has in (False, True))
    growth = [steps[most, has][0] / steps[least, has][0] for has in (False, True)]
    return (
        f"Down to {fraction:g} of its start, a quadratic of condition number {most:g} takes {plain:,} steps at the "
        f"best rate (formula {steps[most, False][1]:,.0f}) and {faster:,} with momentum "
        f"({steps[most, True][1]:,.0f}): {growth[0]:.0f} and {growth[1]:.1f} times as many as of condition number "
        f"{least:g}."
    )


def _saddle_finding(escapes: Escapes) -> str:
    scales = list(escapes.steps)
    far, near = scales[0], scales[-1]
    more = escapes.steps[near] - escapes.steps[far]
    return (
        f"At weights of 0 the tanh network has a saddle whose least curvature is {escapes.least_curvature:.3g}; from "
        f"weights of scale {near:g} gradient descent takes {more} steps more to leave it than from {far:g}, where the "
        f"curvature says {escapes.expected(near, far):.0f}."
    )


def _noise_findings(measured: Measured) -> list[str]:
    floors = [found[0] / expected for found, expected in measured.floors.values()]
    within = sum(low <= expected <= high for (_, low, high), expected in measured.floors.values())
    ratios = [noise.ratio[0] for noise in measured.noise]
    inside = sum(noise.ratio[1] <= 1 <= noise.ratio[2] for noise in measured.noise)
    return [
        f"The noise floor of a quadratic is {min(floors):.2f} to {max(floors):.2f} times its formula at {len(floors)} "
        f"pairs of rate and batch size; the formula lies in {within} of their 95 % intervals.",
        f"In the tanh network noise adds {min(ratios):.2f} to {max(ratios):.2f} times η² tr(HΣ) / 2B to one step; the "
        f"formula lies in {inside} of {len(ratios)} intervals.",
    ]


def _batch_finding(classes: Classes, outcomes: Sequence[Outcome]) -> str:
    whole = outcomes[-1]
    apart = {outcome.batch_size: mean_interval(100 * (outcome.test - whole.test)) for outcome in outcomes[:-1]}
    better = [_differs(size, found) for size, found in apart.items() if found[2] < 0]
    worse = [_differs(size, found) for size, found in apart.items() if found[1] > 0]
    return (
        f"Batch size, {classes.width} units: trained on all {whole.batch_size} examples at each step, "
        f"{100 * float(whole.train.mean()):.1f} % of the training labels and {100 * float(whole.test.mean()):.1f} % of "
        f"new ones are wrong. From the same starts, new ones are better by more than chance with batches of "
        f"{', '.join(better) or 'no size'}; worse with {', '.join(worse) or 'none'}."
    )


def _differs(size: int, found: Around) -> str:
    return f"{size} ({found[0]:+.1f} [{found[1]:.1f}, {found[2]:.1f}] points)"


def tables(measured: Measured, *, fraction: float) -> list[Table]:
    return [
        _switch_table(measured.switches),
        _edge_table(measured.sharpening),
        _condition_table(measured.steps, fraction),
        _noise_table(measured),
        _batch_table("narrow", NARROW, measured.narrow),
        _batch_table("wide", WIDE, measured.wide),
    ]


def _switch_table(kinds: Mapping[str, Sequence[Switch]]) -> Table:
    rows: list[list[Cell]] = []
    for name, switches in kinds.items():
        for multiple in switches[0].losses:
            highest = max(max(switch.losses[multiple]) for switch in switches)
            last = sorted(switch.losses[multiple][-1] for switch in switches)[len(switches) // 2]
            rows.append([name, multiple, f"{_held(switches, multiple)} of {len(switches)}", highest, last])
    return Table(
        name="rates around 2 / λmax, after slow descent",
        columns=["network", "rate / (2 / λmax)", "seeds whose loss holds", "highest loss", "loss at the end"],
        rows=rows,
        note="Losses relative to where the rate was changed: the highest of all seeds, and the median at the end.",
    )


def _edge_table(sharpening: Sequence[Sharpening]) -> Table:
    return Table(
        name="largest curvature in training, tanh network",
        columns=["rate", "2 / rate", "at the start", "highest", "at the end", "loss at the end"],
        rows=[
            [found.rate, found.edge, found.curvatures[0], max(found.curvatures), found.curvatures[-1], found.losses[-1]]
            for found in sharpening
        ],
    )


def _condition_table(steps: Mapping[tuple[float, bool], tuple[int, float]], fraction: float) -> Table:
    return Table(
        name=f"steps until a quadratic's loss is {fraction:g} of its start",
        columns=["condition number", "momentum", "steps", "formula"],
        rows=[[kind[0], "yes" if kind[1] else "no", taken, expected] for kind, (taken, expected) in steps.items()],
        note="The formula is that of the slowest coordinate alone, so it is an upper bound without momentum; with "
        "it, the loss falls somewhat later.",
    )


def _noise_table(measured: Measured) -> Table:
    rows: list[list[Cell]] = [
        ["floor, quadratic", rate, batch, (found[0] / expected, found[1] / expected, found[2] / expected), expected]
        for (rate, batch), (found, expected) in measured.floors.items()
    ]
    rows += [
        ["added to a step, network", noise.rate, noise.batch_size, noise.ratio, noise.expected]
        for noise in measured.noise
    ]
    return Table(
        name="noise, measured over its formula",
        columns=["what", "rate", "batch size", "measured / formula", "formula"],
        rows=rows,
        note="In brackets the 95 % interval over runs or draws.",
    )


def _batch_table(name: str, classes: Classes, outcomes: Sequence[Outcome]) -> Table:
    whole = outcomes[-1]
    return Table(
        name=f"{name} network: {classes.width} units, {classes.num_rows} training examples",
        columns=["batch size", "training loss, nats", "training, % wrong", "new, % wrong", "less all examples"],
        rows=[
            [
                outcome.batch_size,
                float(outcome.losses.mean()),
                mean_interval(100 * outcome.train),
                mean_interval(100 * outcome.test),
                mean_interval(100 * (outcome.test - whole.test)) if outcome is not whole else None,
            ]
            for outcome in outcomes
        ],
        note="Equally many steps at the same rate, from the same weights; in brackets the 95 % interval over runs. "
        f"{100 * classes.flipped:g} % of the training labels are wrong, those of new examples are right.",
    )
