r"""Algorithmic stability: one example exchanged, two trainings, and how far apart they come to lie.

Hardt, Recht & Singer, "Train faster, generalize better: Stability of stochastic gradient descent" (2016).
https://arxiv.org/abs/1509.01240

Pairs of training sets that differ in one example are trained on from the same
weights, in the same order. Measured are the distance of the weights, the largest
difference of the losses on new examples, and how much higher the loss on new
examples is than on the training examples; beside them stand the bounds of
`stability_bounds`. The bounds are for the worst sets and examples, while the sets
here are drawn at random, so that what is measured should lie below them.

For logistic regression the constants of the bounds are known. For the network
they are measured on the way, which can only be too small: that bound is what the
theorem would say if nothing worse lay elsewhere.
"""

from dataclasses import asdict, dataclass

import torch

from regard.lab import STUDIES
from regard.lab.descent_networks import draw_networks
from regard.lab.stability_bounds import (
    convex_distance,
    convex_stability,
    nonconvex_stability,
    strongly_convex_distance,
)
from regard.lab.stability_figure import Bounded, Measured, compose
from regard.lab.stability_twins import World, constants, follow, logistic, network
from regard.lab.stability_words import findings, tables
from regard.lab.study import Study
from regard.logging import log_info


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sets, the rates, and how many pairs are trained."""

    runs: int
    """Pairs."""
    num_rows: int = 200
    num_inputs: int = 10
    flipped: float = 0.1
    """Share of labels that are turned over, in training and in new examples."""
    steps: int
    rates: tuple[float, ...] = (0.05, 0.3, 2.0)
    """Of logistic regression."""
    row_counts: tuple[int, ...] = (50, 100, 200, 400, 800)
    """Sizes of training sets that are compared, at the middle rate."""
    convexities: tuple[float, ...] = (0.03, 0.1)
    radius: float = 5.0
    width: int = 32
    network_rates: tuple[float, ...] = (0.2, 0.7, 2.0)
    scales: tuple[float, ...] = (0.5, 2.0)
    """The c of rates that fall as c / t."""


QUICK = Sizes(runs=200, steps=2000)
FULL = Sizes(runs=500, steps=20_000, row_counts=(50, 100, 200, 400, 800, 1600))

LIPSCHITZ, SMOOTHNESS = 1.0, 0.25
"""Of logistic regression, for inputs of length 1."""


def study(*, quick: bool, seed: int) -> Study:
    """Train pairs of models on sets that differ in one example, and hold them against the bounds."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    teacher = draw_networks(1, sizes.num_inputs, 3, rng=torch.Generator().manual_seed(seed))
    world = World(teacher, sizes.flipped)
    middle = sizes.rates[len(sizes.rates) // 2]
    measured = Measured(
        convex={rate: follow_convex(rate, sizes.num_rows, world, sizes, seed=seed) for rate in sizes.rates},
        counts={count: follow_convex(middle, count, world, sizes, seed=seed) for count in sizes.row_counts},
        strongly={gamma: follow_strongly(gamma, world, sizes, seed=seed) for gamma in sizes.convexities},
        network={rate: follow_network([rate] * sizes.steps, world, sizes, seed=seed) for rate in sizes.network_rates},
        falling={scale: follow_falling(scale, world, sizes, seed=seed) for scale in sizes.scales},
    )
    return Study(
        name="stability",
        title="Stability of stochastic gradient descent",
        claim=STUDIES["stability"],
        findings=findings(measured),
        tables=tables(measured),
        figure=compose(measured),
        settings=asdict(sizes),
    )


def records(steps: int) -> list[int]:
    """The steps at which a training is looked at: four in each factor of ten from 10 on, and the last."""
    some = {round(10 ** (k / 4)) for k in range(4, 40)}
    return sorted({step for step in some if step < 0.8 * steps} | {steps})


def follow_convex(rate: float, num_rows: int, world: World, sizes: Sizes, *, seed: int) -> Bounded:
    """Logistic regression at one rate, beside theorem 3.8."""
    known = {"num_rows": num_rows, "lipschitz": LIPSCHITZ, "smoothness": SMOOTHNESS}
    path = follow(
        logistic(world.num_inputs), world, [rate] * sizes.steps, num_rows=num_rows, runs=sizes.runs,
        records=records(sizes.steps), seed=seed, what=f"logistic regression, rate {rate:g}",
    )  # fmt: skip
    found = Bounded(
        path,
        distance=[convex_distance([rate] * step, **known) for step in path.steps],
        stability=[convex_stability([rate] * step, **known) for step in path.steps],
    )
    _tell(f"logistic regression, {num_rows} examples, rate {rate:g}", found)
    return found


def follow_strongly(convexity: float, world: World, sizes: Sizes, *, seed: int) -> Bounded:
    """Logistic regression whose weights are drawn towards 0, at the middle rate, beside theorem 3.9."""
    rate = sizes.rates[len(sizes.rates) // 2]
    lipschitz = LIPSCHITZ + convexity * sizes.radius
    path = follow(
        logistic(world.num_inputs, convexity=convexity, radius=sizes.radius), world, [rate] * sizes.steps,
        num_rows=sizes.num_rows, runs=sizes.runs, records=records(sizes.steps), seed=seed,
        what=f"logistic regression, convexity {convexity:g}",
    )  # fmt: skip
    distance = strongly_convex_distance(
        rate, num_rows=sizes.num_rows, lipschitz=lipschitz, smoothness=SMOOTHNESS + convexity, convexity=convexity
    )
    found = Bounded(path, distance=[distance] * len(path.steps), stability=[lipschitz * distance] * len(path.steps))
    _tell(f"logistic regression, convexity {convexity:g}", found)
    return found


def follow_network(rates: list[float], world: World, sizes: Sizes, *, seed: int) -> Bounded:
    """The network, for which no theorem holds at a constant rate."""
    path = follow(
        network(world.num_inputs, sizes.width), world, rates, num_rows=sizes.num_rows, runs=sizes.runs,
        records=records(sizes.steps), seed=seed, what="network",
    )  # fmt: skip
    found = Bounded(path)
    _tell(f"network, rate {rates[0]:g} first", found)
    return found


def follow_falling(scale: float, world: World, sizes: Sizes, *, seed: int) -> Bounded:
    """The network at rates that fall as `scale` / t, beside theorem 3.12 with constants measured on the way."""
    rates = [scale / step for step in range(1, sizes.steps + 1)]
    path = follow_network(rates, world, sizes, seed=seed).path
    learner = network(world.num_inputs, sizes.width)
    lipschitz, smoothness = constants(
        learner, world, rates, num_rows=sizes.num_rows, records=path.steps[::4], seed=seed
    )
    log_info(f"network, rates {scale:g} / t: gradients up to {lipschitz:.3g}, curvature up to {smoothness:.3g}")
    known = {"scale": scale, "num_rows": sizes.num_rows, "lipschitz": lipschitz, "smoothness": smoothness}
    stability = [nonconvex_stability(step, **known) for step in path.steps]
    return Bounded(path, stability=stability, lipschitz=lipschitz, smoothness=smoothness)


def _tell(what: str, found: Bounded) -> None:
    log_info(f"{what}: weights {float(found.path.distances[-1].mean()):.3g} apart after {found.path.steps[-1]:,} steps")
