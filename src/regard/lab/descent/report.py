"""The study of gradient descent: its sizes, and one section for each part of its findings, tables and figure.

The formulas are in `rates` (learning rates, quadratics, saddle points) and `noise` (stochastic gradients).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from regard.evaluation.intervals import Interval, mean_interval
from regard.lab.descent import DESCENT, noise, rates
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.hessian import Curvature
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info


@dataclass(frozen=True, kw_only=True)
class DescentSizes:
    """How much is measured, and on what; the defaults are those of a quick run."""

    num_seeds: int = 3
    """Networks on which learning rates are tried."""
    multiples: tuple[float, ...] = (0.5, 0.8, 0.95, 1.05, 1.2, 1.5)
    """Learning rates, over 2 / curvature."""
    slow_steps: int = 200
    fast_steps: int = 100
    num_rows: int = 128
    num_inputs: int = 8
    width: int = 32
    num_layers: int = 3
    """Hidden layers of the network whose curvature is tracked; the others have one."""
    sequence_length: int = 8
    model_dim: int = 16
    rates: tuple[float, ...] = (0.1, 0.2, 0.4)
    """Learning rates at which the curvature is tracked."""
    tracked_steps: int = 800
    every: int = 25
    conditions: tuple[float, ...] = (10.0, 100.0, 1000.0)
    fraction: float = 1e-6
    """The loss to reach, relative to the initial one."""
    scales: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    saddle_rate: float = 0.2
    floor_rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 1.5)
    floor_batches: tuple[int, ...] = (1, 8, 64)
    floor_runs: int = 2000
    noise_multiples: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    num_draws: int = 200
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 32, 512)
    wide_batch_sizes: tuple[int, ...] = (2, 16, 128)
    batch_steps: int = 1500
    batch_runs: int = 8
    """Networks trained with each batch size."""


_FULL = DescentSizes(num_seeds=10, slow_steps=300, fast_steps=200, rates=(0.05, 0.1, 0.2, 0.4), tracked_steps=3000,
                     conditions=(10.0, 100.0, 1000.0, 10_000.0), floor_runs=20_000, num_draws=1000, batch_steps=4000,
                     batch_runs=30)  # fmt: skip


def study_descent(*, quick: bool = False, seed: int = 0, sizes: DescentSizes | None = None) -> Study:
    """Try learning rates around 2 / curvature, track the curvature, and compare gradient noise with its formulas."""
    sizes = sizes or (DescentSizes() if quick else _FULL)
    figure, axes = make_panels(3, 3, 3, height=3.2)
    sections = [
        _single_step(axes[0], sizes, seed),
        _switch_rates(axes[1:3], sizes, seed),
        _track_curvature(axes[3], sizes, seed),
        _condition_numbers(axes[4], sizes.conditions, sizes.fraction),
        _saddle_point(axes[5], sizes, seed),
        _gradient_noise(axes[6], axes[7], sizes, seed),
        _batch_sizes(axes[8], sizes, seed),
    ]
    return DESCENT.result(sizes, sections, figure)


def _tanh_network(sizes: DescentSizes, rng: torch.Generator, *, num_layers: int = 1) -> rates.DescentProblem:
    return rates.tanh_regression(
        num_rows=sizes.num_rows, num_inputs=sizes.num_inputs, width=sizes.width, num_layers=num_layers, rng=rng
    )


def _transformer(sizes: DescentSizes, rng: torch.Generator) -> rates.DescentProblem:
    return rates.transformer_copy(num_rows=8, length=sizes.sequence_length, width=sizes.model_dim, rng=rng)


def _descended(
    make: Callable[[DescentSizes, torch.Generator], rates.DescentProblem], sizes: DescentSizes, rng: torch.Generator
) -> tuple[rates.DescentProblem, Curvature]:
    """A problem after slow descent, and the largest curvature there."""
    problem = make(sizes, rng)
    return problem, rates.descend_slowly(problem, steps=sizes.slow_steps, rng=rng)


def _single_step(axes: Axes, sizes: DescentSizes, seed: int) -> StudySection:
    crossings = []
    multiples = torch.linspace(0.1, 1.6, 16, dtype=torch.float64)
    for number in range(sizes.num_seeds):
        problem, top = _descended(_tanh_network, sizes, torch.Generator().manual_seed(seed + number))
        changes = rates.take_single_step(problem, top, multiples)
        crossing = rates.rise_crossing(multiples, changes)
        crossings += [] if math.isnan(crossing) else [f"{crossing:.2f}"]
        # Each seed shows other rates, so that overlapping points stay visible.
        some, color = slice(number % 3, None, 3), COLORS[number % len(COLORS)]
        axes.plot(multiples[some], changes[some], "o", color=color, markersize=4, label=f"seed {number + 1}")
    grid = torch.linspace(0, 1.6, 81)
    axes.plot(grid, rates.quadratic_changes(grid), color=INK, linewidth=1, label="quadratic")
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.axvline(1, color=MUTED, linewidth=0.8, linestyle=":")
    y = "change of the loss, scaled"
    label_axes(axes, "Tanh network: one step", "learning rate / (2 / λmax)", y, legend="upper left")
    return [
        f"One step along the direction of the largest curvature λmax raises the loss of the tanh network from "
        f"{', '.join(crossings) or 'no tried multiple'} times 2 / λmax on ({len(crossings)} of {sizes.num_seeds} "
        f"seeds; for a quadratic: 1)."
    ], []


def _switch_rates(panels: Sequence[Axes], sizes: DescentSizes, seed: int) -> StudySection:
    findings, rows = [], []
    for axes, name, make in zip(panels, ("tanh network", "Transformer"), (_tanh_network, _transformer), strict=True):
        switches = []
        for number in range(seed, seed + sizes.num_seeds):
            problem, top = _descended(make, sizes, torch.Generator().manual_seed(number))
            switches.append(rates.switch_rates(problem, top, sizes.multiples, steps=sizes.fast_steps))
            log_info(f"{name}, seed {number}: largest curvature {top.value:.3g}")
        num_correct = 0
        for multiple, color in zip(sizes.multiples, COLORS, strict=False):
            stable = sum(max(switch[multiple]) <= 1 for switch in switches)
            num_correct += stable if multiple < 1 else len(switches) - stable
            highest = max(max(switch[multiple]) for switch in switches)
            last = sorted(switch[multiple][-1] for switch in switches)[len(switches) // 2]
            rows.append([name, multiple, f"{stable} of {len(switches)}", highest, last])
            style = "-" if multiple < 1 else "--"
            axes.semilogy(switches[0][multiple], style, color=color, linewidth=1.3, label=f"{multiple:g}")
        findings.append(
            f"The rule that the loss of the {name} stays below its initial value iff the learning rate is below "
            f"2 / λmax holds in {num_correct} of {len(switches) * len(sizes.multiples)} cases over "
            f"{sizes.fast_steps} steps."
        )
        axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
        axes.tick_params(which="minor", labelsize=8, labelcolor=MUTED)
        low, high = axes.get_ylim()
        axes.set_ylim(low, min(high, 1e4) * (min(high, 1e4) / low) ** 0.4)
        title = f"{name[0].upper()}{name[1:]}: rate / (2 / λmax)"
        label_axes(axes, title, "steps since the rate changed", "loss, relative", legend="upper center", ncols=3,
                   columnspacing=1.2)  # fmt: skip
    return findings, [StudyTable(
        "learning rates around 2 / λmax, after slow descent",
        ["network", "learning rate / (2 / λmax)", "stable seeds", "maximum loss", "final loss"],
        rows,
        "Stable: the loss never exceeds its value when the rate was changed, to which losses are relative; maximum "
        "over seeds, median of the final losses.",
    )]  # fmt: skip


def _track_curvature(axes: Axes, sizes: DescentSizes, seed: int) -> StudySection:
    rows, near_edge = [], []
    for rate, color in zip(sizes.rates, COLORS, strict=False):
        rng = torch.Generator().manual_seed(seed)
        problem = _tanh_network(sizes, rng, num_layers=sizes.num_layers)
        steps = range(0, sizes.tracked_steps + 1, sizes.every)
        found, losses = rates.track_curvature(problem, rate, steps=sizes.tracked_steps, every=sizes.every, rng=rng)
        log_info(f"learning rate {rate:g}: final curvature {found[-1]:.3g}, 2 / rate {2 / rate:.3g}")
        rows.append([rate, 2 / rate, found[0], max(found), found[-1], losses[-1]])
        near_edge += [f"{rate:g}"] * (abs(found[-1] / (2 / rate) - 1) < 0.1)
        axes.plot(steps, found, color=color, label=f"rate {rate:g}")
        axes.axhline(2 / rate, color=color, linewidth=0.9, linestyle=":")
    axes.set_ylim(0, 1.5 * max(row[3] for row in rows))
    title, y = "Deeper network: curvature; dotted: 2 / rate", "largest eigenvalue of the Hessian"
    label_axes(axes, title, "step", y, legend="upper right", ncols=2)
    columns = ["learning rate", "2 / rate", "initial", "maximum", "final", "final loss"]
    return [
        f"In training at one learning rate the largest curvature of the deeper network ends within 10 % of 2 / rate at "
        f"learning rates of {', '.join(near_edge) or 'none'}."
    ], [StudyTable("largest curvature in training, tanh network", columns, rows)]


def _condition_numbers(axes: Axes, conditions: Sequence[float], fraction: float) -> StudySection:
    cases = [(condition, has_momentum) for condition in conditions for has_momentum in (False, True)]
    rows = [
        [condition, "yes" if momentum else "no"]
        + [count(condition, fraction, has_momentum=momentum) for count in (rates.steps_until, rates.predicted_steps)]
        for condition, momentum in cases
    ]
    for momentum, name, color in (("no", "best rate", COLORS[0]), ("yes", "best rate and momentum", COLORS[1])):
        steps, formula = zip(*(row[2:] for row in rows if row[1] == momentum), strict=True)
        axes.loglog(conditions, steps, "o", color=color, markersize=4, label=name)
        axes.loglog(conditions, formula, color=color, linewidth=1, linestyle=":")
    title, y = f"Quadratic: steps to {fraction:g} of the loss", "steps; dotted: formula"
    label_axes(axes, title, "condition number", y, legend="upper left")
    return [], [StudyTable(
        f"steps until the loss of a quadratic is {fraction:g} of the initial one",
        ["condition number", "momentum", "steps", "formula"],
        rows,
        "The formula counts the slowest coordinate only: without momentum it is an upper bound, with momentum the loss "
        "falls somewhat later.",
    )]  # fmt: skip


def _saddle_point(axes: Axes, sizes: DescentSizes, seed: int) -> StudySection:
    rng = torch.Generator().manual_seed(seed)
    problem = _tanh_network(sizes, rng)
    rate, scales = sizes.saddle_rate, sizes.scales
    least, steps = rates.escape_saddle(problem, scales, learning_rate=rate, max_steps=10_000, rng=rng)
    far, near = scales[0], scales[-1]
    delays = [rates.predicted_delay(scale, far, learning_rate=rate, least_curvature=least) for scale in scales]
    axes.semilogx(scales, list(steps.values()), "o", color=COLORS[0], markersize=4, label="measured")
    axes.semilogx(scales, [steps[far] + delay for delay in delays], color=COLORS[0], linewidth=1, linestyle=":",
                  label="ln(scale) / ln(1 + η |λmin|)")  # fmt: skip
    axes.set_ylim(0, 1.3 * max(steps.values()))
    x, y = "scale of the initial weights", "steps to half of the loss"
    label_axes(axes, "Saddle point at weights of 0", x, y, legend="upper right")
    return [
        f"At weights of 0 the tanh network has a saddle point with a least curvature of {least:.3g}; from weights of "
        f"scale {near:g} gradient descent takes {steps[near] - steps[far]} more steps to escape than from {far:g}; the "
        f"curvature predicts {delays[-1]:.0f}."
    ], []


@dataclass(frozen=True)
class _Noise:
    """Added to the loss by gradient noise: measured, and by the formula."""

    rate: float
    batch_size: int
    added: Interval
    expected: float

    @property
    def ratio(self) -> Interval:
        mean, low, high = self.added
        return mean / self.expected, low / self.expected, high / self.expected


def _gradient_noise(floor_axes: Axes, step_axes: Axes, sizes: DescentSizes, seed: int) -> StudySection:
    rng = torch.Generator().manual_seed(seed)
    floors = [
        _Noise(rate, size, noise.measure_noise_floor(rate, size, runs=sizes.floor_runs, rng=rng),
               noise.noise_floor(rate, size))
        for size in sizes.floor_batches for rate in sizes.floor_rates
    ]  # fmt: skip
    rng = torch.Generator().manual_seed(seed)
    problem, top = _descended(_tanh_network, sizes, rng)
    gradients = noise.example_gradients(problem)
    trace = noise.noise_curvature(problem, gradients)
    steps = []
    for size in (4, 16, 64):
        for rate in (multiple * 2 / top.value for multiple in sizes.noise_multiples):
            added = noise.step_noise(problem, gradients, rate, size, num_draws=sizes.num_draws, rng=rng)
            steps.append(_Noise(rate, size, added, rate**2 * trace / (2 * size)))
    findings = []
    for axes, name, found in (
        (floor_axes, "The noise floor of a quadratic", floors),
        (step_axes, "The noise added to one step of the tanh network", steps),
    ):
        ratios = [each.ratio for each in found]
        covered = sum(low <= 1 <= high for _, low, high in ratios)
        findings.append(
            f"{name} is {min(ratios)[0]:.2f} to {max(ratios)[0]:.2f} times its formula, which is in {covered} of "
            f"{len(ratios)} 95 % intervals."
        )
        for size, color in zip(dict.fromkeys(each.batch_size for each in found), COLORS, strict=False):
            some = [each for each in found if each.batch_size == size]
            x = [each.rate for each in some]
            plot_errorbars(
                axes, x, [each.added for each in some], fmt="o", color=color, markersize=3.5, label=f"batch {size}"
            )
            axes.plot(x, [each.expected for each in some], color=color, linewidth=1, linestyle=":")
    title = "Quadratic: noise floor; dotted: formula"
    label_axes(floor_axes, title, "learning rate", "final loss", log="xy", legend="upper left", ncols=3,
               columnspacing=1.0, handletextpad=0.3)  # fmt: skip
    floor_axes.set_ylim(top=12 * max(each.added[0] for each in floors))
    title, y = "Tanh network: noise in one step", "added to the loss; dotted: η² tr(HΣ) / 2B"
    label_axes(step_axes, title, "learning rate", y, log="xy", legend="upper left")
    step_axes.xaxis.set_minor_formatter(NullFormatter())
    return findings, [StudyTable(
        "gradient noise, measured / formula",
        ["quantity", "learning rate", "batch size", "measured / formula", "formula"],
        [[name, each.rate, each.batch_size, each.ratio, each.expected]
         for name, found in (("floor, quadratic", floors), ("added to a step, network", steps)) for each in found],
        "In brackets the 95 % interval over runs or draws.",
    )]  # fmt: skip


def _batch_sizes(axes: Axes, sizes: DescentSizes, seed: int) -> StudySection:
    findings, tables = [], []
    for name, task, batch_sizes, color in zip(
        ("narrow", "wide"),
        (noise.NARROW, noise.WIDE),
        (sizes.batch_sizes, sizes.wide_batch_sizes),
        COLORS,
        strict=False,
    ):
        results = noise.compare_batch_sizes(
            batch_sizes, task, steps=sizes.batch_steps, runs=sizes.batch_runs, seed=seed
        )
        full, rows = results[-1], []
        better, worse = [], []
        for each in results:
            errors = [mean_interval(100 * part) for part in (each.train_errors, each.test_errors)]
            mean, low, high = difference = mean_interval(100 * (each.test_errors - full.test_errors))
            rows.append([each.batch_size, float(each.losses.mean()), *errors, None if each is full else difference])
            text = f"{each.batch_size} ({mean:+.1f} [{low:.1f}, {high:.1f}] points)"
            better += [text] * (high < 0)
            worse += [text] * (low > 0)
        train, test = ([row[column] for row in rows] for column in (2, 3))
        plot_errorbars(axes, batch_sizes, test, fmt="o-", color=color, markersize=3.5, linewidth=1.3,
                       label=f"{task.width} units: test")  # fmt: skip
        axes.plot(batch_sizes, [each[0] for each in train], "x--", color=color, markersize=4, linewidth=1,
                  label=f"{task.width} units: training")  # fmt: skip
        log_info(f"{task.width} units: trained with batch sizes {', '.join(map(str, batch_sizes))}")
        findings.append(
            f"With {task.width} units the test error is significantly lower than with the full batch of "
            f"{full.batch_size} for batch sizes of {', '.join(better) or 'none'}, and higher for "
            f"{', '.join(worse) or 'none'}."
        )
        tables.append(StudyTable(
            f"{name} network: {task.width} units, {task.num_rows} training examples",
            ["batch size", "training loss, nats", "training error, %", "test error, %", "test error - full batch"],
            rows,
            "The same number of steps, learning rate and initial weights; in brackets the 95 % interval over runs. "
            f"{100 * task.flipped:g} % of the training labels are flipped, no test labels.",
        ))  # fmt: skip
    axes.set_xscale("log", base=2)
    ticks = sorted({*sizes.batch_sizes, *sizes.wide_batch_sizes})
    axes.set_xticks(ticks, labels=[str(size) for size in ticks], minor=False)
    axes.set_ylim(-2, 1.75 * axes.get_ylim()[1])
    title = "Error after the same number of steps"
    label_axes(axes, title, "batch size", "error, %", legend="upper right", ncols=2, columnspacing=1.0)
    return findings, tables
