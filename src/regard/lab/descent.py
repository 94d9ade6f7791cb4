r"""Gradient descent: how large a step may be, what makes it slow, and what noise does.

$$ f(x - \eta f'(x)) \approx f(x) - \eta f'(x)^2 \Big(1 - \frac{\eta f''(x)}{2}\Big) $$

A step makes progress iff $\eta < 2 / f''$. With many weights $f''$ is a matrix,
and its largest eigenvalue $\lambda_{\max}$ sets the largest rate, while the
smallest says how long it then takes. A gradient from few examples has noise of
variance $\sigma^2 / B$, which adds $\tfrac12 \eta^2 (\sigma^2 / B) f''$ at each step.

The parts: `descent_quadratic` where all of this can be worked out,
`descent_rates` where curvature is measured on networks, `descent_noise`.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from regard.evaluation.means import Around, mean_interval
from regard.lab import STUDIES
from regard.lab.descent_figure import Measured, Noise, compose
from regard.lab.descent_networks import Problem, looking_back, regression
from regard.lab.descent_noise import (
    NARROW,
    WIDE,
    Classes,
    Outcome,
    compare_batches,
    gradients_of_examples,
    noise_curvature,
    noise_of_a_step,
)
from regard.lab.descent_quadratic import measure_floor, noise_floor, predicted_steps, steps_until
from regard.lab.descent_rates import (
    Escapes,
    OneStep,
    Sharpening,
    Switch,
    descend_slowly,
    follow_curvature,
    leave_saddle,
    switch_rates,
    take_one_step,
)
from regard.lab.descent_words import findings, tables
from regard.lab.study import Study
from regard.logging import log_info


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured, and on what."""

    num_seeds: int
    """Of the networks whose rates are tried."""
    multiples: tuple[float, ...] = (0.5, 0.8, 0.95, 1.05, 1.2, 1.5)
    """Of 2 / curvature."""
    slow_steps: int
    fast_steps: int
    num_rows: int = 128
    num_inputs: int = 8
    width: int = 32
    num_layers: int = 3
    """Hidden layers of the network whose curvature is followed; the others have one."""
    sequence_length: int = 8
    model_dim: int = 16
    rates: tuple[float, ...]
    """At which the curvature is followed."""
    followed_steps: int
    every: int = 25
    conditions: tuple[float, ...]
    fraction: float = 1e-6
    """Of its start to which a loss is to fall."""
    scales: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    saddle_rate: float = 0.2
    floor_rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 1.5)
    floor_batches: tuple[int, ...] = (1, 8, 64)
    floor_runs: int
    noise_multiples: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    num_draws: int
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 32, 512)
    wide_batch_sizes: tuple[int, ...] = (2, 16, 128)
    batch_steps: int
    batch_runs: int
    """Networks trained with each size of batch."""


QUICK = Sizes(num_seeds=3, slow_steps=200, fast_steps=100, rates=(0.1, 0.2, 0.4), followed_steps=800,
              conditions=(10.0, 100.0, 1000.0), floor_runs=2000, num_draws=200, batch_steps=1500,
              batch_runs=8)  # fmt: skip
FULL = Sizes(num_seeds=10, slow_steps=300, fast_steps=200, rates=(0.05, 0.1, 0.2, 0.4), followed_steps=3000,
             conditions=(10.0, 100.0, 1000.0, 10_000.0), floor_runs=20_000, num_draws=1000, batch_steps=4000,
             batch_runs=30)  # fmt: skip


def study(*, quick: bool, seed: int) -> Study:
    """Try rates around 2 / curvature, follow the curvature, and measure noise against its formulas."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    measured = Measured(
        firsts=try_one_step(sizes, seed=seed),
        switches={
            "tanh network": try_rates(tanh_network, sizes, seed=seed),
            "Transformer": try_rates(transformer, sizes, seed=seed),
        },
        sharpening=[_follow(rate, sizes, seed) for rate in sizes.rates],
        steps={
            (condition, has_momentum): (
                steps_until(condition, sizes.fraction, has_momentum=has_momentum),
                predicted_steps(condition, sizes.fraction, has_momentum=has_momentum),
            )
            for condition in sizes.conditions
            for has_momentum in (False, True)
        },
        escapes=_escape(sizes, seed),
        floors=_floors(sizes, seed),
        noise=_noise(sizes, seed),
        narrow=_batches(sizes.batch_sizes, NARROW, sizes, seed),
        wide=_batches(sizes.wide_batch_sizes, WIDE, sizes, seed),
    )
    return Study(
        name="descent",
        title="Gradient descent and its noise",
        claim=STUDIES["descent"],
        findings=findings(measured, fraction=sizes.fraction),
        tables=tables(measured, fraction=sizes.fraction),
        figure=compose(measured, fraction=sizes.fraction),
        settings=asdict(sizes),
    )


def tanh_network(sizes: Sizes, rng: torch.Generator, *, num_layers: int = 1) -> Problem:
    """Regression by a network with hidden layers of tanh."""
    return regression(
        num_rows=sizes.num_rows, num_inputs=sizes.num_inputs, width=sizes.width, num_layers=num_layers, rng=rng
    )


def transformer(sizes: Sizes, rng: torch.Generator) -> Problem:
    """A Transformer that is to name the token before."""
    return looking_back(num_rows=8, length=sizes.sequence_length, width=sizes.model_dim, rng=rng)


def try_one_step(sizes: Sizes, *, seed: int) -> list[OneStep]:
    """One step of the tanh network at many rates, seed by seed."""
    found = []
    for number in range(sizes.num_seeds):
        rng = torch.Generator().manual_seed(seed + number)
        problem = tanh_network(sizes, rng)
        top = descend_slowly(problem, steps=sizes.slow_steps, rng=rng)
        found.append(take_one_step(problem, top, torch.linspace(0.1, 1.6, 16, dtype=torch.float64)))
    return found


def try_rates(make: Callable[[Sizes, torch.Generator], Problem], sizes: Sizes, *, seed: int) -> list[Switch]:
    """Many steps at a few rates, from where slow descent has led; seed by seed."""
    switches = []
    for number in range(sizes.num_seeds):
        rng = torch.Generator().manual_seed(seed + number)
        problem = make(sizes, rng)
        top = descend_slowly(problem, steps=sizes.slow_steps, rng=rng)
        switch = switch_rates(problem, top, sizes.multiples, steps=sizes.fast_steps)
        switches.append(switch)
        held = [f"{multiple:g}" for multiple in sizes.multiples if switch.holds(multiple)]
        log_info(
            f"{problem.name}, seed {seed + number}: the loss holds at {', '.join(held) or 'no rate'} x 2/curvature"
        )
    return switches


def _follow(rate: float, sizes: Sizes, seed: int) -> Sharpening:
    rng = torch.Generator().manual_seed(seed)
    problem = tanh_network(sizes, rng, num_layers=sizes.num_layers)
    found = follow_curvature(problem, rate, steps=sizes.followed_steps, every=sizes.every, rng=rng)
    log_info(f"rate {rate:g}: the largest curvature ends at {found.curvatures[-1]:.3g}; 2 / rate is {found.edge:.3g}")
    return found


def _escape(sizes: Sizes, seed: int) -> Escapes:
    rng = torch.Generator().manual_seed(seed)
    return leave_saddle(tanh_network(sizes, rng), sizes.scales, rate=sizes.saddle_rate, most_steps=10_000, rng=rng)


def _floors(sizes: Sizes, seed: int) -> dict[tuple[float, int], tuple[Around, float]]:
    rng = torch.Generator().manual_seed(seed)
    return {
        (rate, batch): (measure_floor(rate, batch, runs=sizes.floor_runs, rng=rng), noise_floor(rate, batch))
        for batch in sizes.floor_batches
        for rate in sizes.floor_rates
    }


def _noise(sizes: Sizes, seed: int) -> list[Noise]:
    """What noise adds to one step of a network that slow descent has led somewhere."""
    rng = torch.Generator().manual_seed(seed)
    problem = tanh_network(sizes, rng)
    top = descend_slowly(problem, steps=sizes.slow_steps, rng=rng).value
    gradients = gradients_of_examples(problem)
    trace = noise_curvature(problem, gradients)
    found = []
    for batch in (4, 16, 64):
        for multiple in sizes.noise_multiples:
            rate = multiple * 2 / top
            added = noise_of_a_step(problem, gradients, rate, batch, num_draws=sizes.num_draws, rng=rng)
            found.append(Noise(rate, batch, added, rate**2 * trace / (2 * batch)))
    log_info(f"noise of a step: {math.fsum(n.ratio[0] for n in found) / len(found):.2f} x its formula on average")
    return found


def _batches(batch_sizes: tuple[int, ...], classes: Classes, sizes: Sizes, seed: int) -> list[Outcome]:
    outcomes = compare_batches(batch_sizes, classes, steps=sizes.batch_steps, runs=sizes.batch_runs, seed=seed)
    told = ", ".join(f"{100 * mean_interval(outcome.test)[0]:.1f} at {outcome.batch_size}" for outcome in outcomes)
    log_info(f"{classes.width} units, error on new examples in % by batch size: {told}")
    return outcomes
