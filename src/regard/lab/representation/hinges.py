r"""A continuous function of an interval as a sum of ReLUs: two constructions, their error, and gradient descent.

With knots $t_i = a + ih$, $h = (b - a)/N$, the piecewise linear interpolation of $f$ is a network with $N$ units,

$$ g(x) = f(a) + \sum_{i=0}^{N-1} c_i \operatorname{ReLU}(x - t_i), \qquad
   c_0 = s_0, \quad c_i = s_i - s_{i-1}, \quad s_i = \frac{f(t_{i+1}) - f(t_i)}{h} : $$

each hinge changes the slope at its knot. Its error is at most

    max |f''| h^2 / 8   where f is twice differentiable; attained by x^2
    L h / 2             where |f(x) - f(y)| <= L |x - y|; attained by a kink half-way between two knots
    w(h)                for every continuous f; attained by a spike between two knots. Its modulus of continuity w(h) is
                        the largest |f(x) - f(y)| with |x - y| <= h

The lecture's proof by picture adds boxes instead: a ramp $h_a = (\operatorname{ReLU}(x - a) - \operatorname{ReLU}(x
- a - \delta))/\delta$ is a step in the limit, the difference of two ramps a box, and a sum of boxes a staircase. It
needs two units for each step, and its error falls as $h$ for smooth functions too.

de Boor, *A Practical Guide to Splines* (1978), chapter III; Shalev-Shwartz and Ben-David, *Understanding Machine
Learning* (2014), chapter 20.

Dimensions: `point` of the interval, `unit` hidden units, `run` networks trained in parallel.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.evaluation.intervals import Interval
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.random_features import median_interval
from regard.lab.representation import REPRESENTATION
from regard.lab.representation.functions import RealFunction, parse_function, parse_interval
from regard.lab.study import Study, StudyCell, StudySection, StudyTable
from regard.logging import log_info, progress_bar

ScalarFunction = Callable[[np.ndarray], np.ndarray]
Regularity = Literal["smooth", "Lipschitz", "continuous"]
NUM_POINTS = 2**14
"""Equal parts of the interval, at whose ends errors are measured: a multiple of every number of units of the study."""
_FUNCTIONS = ("sin(6*x)", "abs(3*x - 1)", "sqrt(abs(x - 1/3))")
_RATES: dict[Regularity, str] = {"smooth": "max|f''| h² / 8", "Lipschitz": "L h / 2", "continuous": "w(h)"}
_DRAWN_EVERY = 16
"""Points of the grid for each one of a drawing, which would otherwise take megabytes."""
_NUM_REFINEMENTS = 3
"""Of the grid around the largest error, each by a factor of 32."""
_RAMP = 1 / 64
"""Width of a ramp over that of a box."""
_STEADY = 1.2
"""The largest factor by which a difference quotient may grow when its step is halved, if it has a limit."""
_JUMP = 1.95
"""The factor by which the difference quotient of a function with a jump grows is 2."""


@dataclass(frozen=True, kw_only=True)
class RepresentationSizes:
    """Numbers of units and of training steps; the defaults are those of a quick run."""

    num_units: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    drawn_units: int = 8
    learned_units: tuple[int, ...] = (4, 8, 16, 32, 64)
    num_rows: int = 256
    """Points of the interval on which networks are trained."""
    steps: int = 2_000
    learning_rate: float = 0.02
    num_seeds: int = 6
    """Random starts: the fewest whose range is an interval of 95 % for the median."""


_FULL = RepresentationSizes(
    num_units=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), learned_units=(4, 8, 16, 32, 64, 128), num_rows=1024,
    steps=10_000, num_seeds=10,
)  # fmt: skip


def hinge_network(function: ScalarFunction, interval: tuple[float, float], num_units: int) -> nn.Sequential:
    """A network in float64 that interpolates `function` linearly between `num_units` + 1 equally spaced knots."""
    knots = np.linspace(*interval, num_units + 1)
    values = function(knots)
    slopes = np.diff(values) / np.diff(knots)
    return relu_network(np.diff(slopes, prepend=0.0), np.ones(num_units), -knots[:-1], offset=values[0])


def box_network(
    function: ScalarFunction, interval: tuple[float, float], num_boxes: int, *, ramp: float = _RAMP
) -> nn.Sequential:
    """The lecture's staircase, with two units for each step: the value of `function` at the middle of each box.

    A step is a ramp around the end of a box, of width `ramp` times that of a box.
    """
    ends, width = np.linspace(*interval, num_boxes + 1, retstep=True)
    heights = function((ends[1:] + ends[:-1]) / 2)
    delta = ramp * float(width)
    steps = np.diff(heights) / delta
    starts = ends[1:-1] - delta / 2
    return relu_network(
        np.concatenate([steps, -steps]), np.ones(2 * len(steps)), -np.concatenate([starts, starts + delta]),
        offset=heights[0],
    )  # fmt: skip


def relu_network(
    alphas: Float[np.ndarray, " unit"], betas: Float[np.ndarray, " unit"], gammas: Float[np.ndarray, " unit"],
    *, offset: float,
) -> nn.Sequential:  # fmt: skip
    """The network offset + sum of alpha ReLU(beta x + gamma), in float64, from x of shape (point, 1)."""
    hidden = nn.Linear(1, len(alphas), dtype=torch.float64)
    output = nn.Linear(len(alphas), 1, dtype=torch.float64)
    with torch.no_grad():
        hidden.weight.copy_(torch.from_numpy(betas)[:, None])
        hidden.bias.copy_(torch.from_numpy(gammas))
        output.weight.copy_(torch.from_numpy(alphas)[None])
        output.bias.fill_(offset)
    return nn.Sequential(hidden, nn.ReLU(), output)


@torch.no_grad()
def evaluate_network(network: nn.Module, x: Float[np.ndarray, " point"]) -> Float[np.ndarray, " point"]:
    """The outputs of a network of one input."""
    return network(torch.from_numpy(x)[:, None])[:, 0].numpy()


def smooth_bound(second_derivative: float, spacing: float) -> float:
    """The largest error of linear interpolation, for |f''| of at most `second_derivative`."""
    return second_derivative * spacing**2 / 8


def lipschitz_bound(constant: float, spacing: float) -> float:
    """The largest error of linear interpolation, for a Lipschitz constant of at most `constant`."""
    return constant * spacing / 2


def modulus_of_continuity(values: Float[np.ndarray, " point"], steps: int) -> float:
    """The largest difference of two values that are at most `steps` points apart; a bound with the spacing of knots."""
    from scipy.ndimage import maximum_filter1d, minimum_filter1d

    # A window of steps + 1 points whose first is the point itself; the last ones are repeated.
    padded = np.pad(values, (0, steps), mode="edge")
    size, origin = steps + 1, -((steps + 1) // 2)
    spread = maximum_filter1d(padded, size, origin=origin) - minimum_filter1d(padded, size, origin=origin)
    return float(spread[: len(values)].max())


@dataclass(frozen=True)
class SampledFunction:
    """A function on an interval, with its values on a fine grid and how regular it is."""

    name: str
    function: ScalarFunction
    interval: tuple[float, float]
    x: Float[np.ndarray, " point"]
    values: Float[np.ndarray, " point"]
    regularity: Regularity
    constant: float
    """The largest second derivative of a smooth function, the Lipschitz constant of another; NaN without either."""

    def spacing(self, num_units: int) -> float:
        return (self.interval[1] - self.interval[0]) / num_units

    def bound(self, num_units: int) -> float:
        """Of the error of as many hinges."""
        match self.regularity:
            case "smooth":
                return smooth_bound(self.constant, self.spacing(num_units))
            case "Lipschitz":
                return lipschitz_bound(self.constant, self.spacing(num_units))
            case "continuous":
                return modulus_of_continuity(self.values, math.ceil(NUM_POINTS / num_units))

    def sup_error(self, network: nn.Module) -> float:
        """The largest error over the grid, and over finer ones around it: a cusp lies between two points."""
        x, errors = self.x, np.abs(evaluate_network(network, self.x) - self.values)
        largest = float(errors.max())
        for _ in range(_NUM_REFINEMENTS):
            place = int(errors.argmax())
            x = np.linspace(x[max(0, place - 1)], x[min(len(x) - 1, place + 1)], 65)
            errors = np.abs(evaluate_network(network, x) - self.function(x))
            largest = max(largest, float(errors.max()))
        return largest


def sample_function(name: str, function: ScalarFunction, interval: tuple[float, float]) -> SampledFunction:
    """Evaluate a function on a grid, and estimate its regularity from difference quotients with two steps.

    A quotient that has a limit does not grow when its step is halved; that of a kink
    (second order) or of a jump (first order) doubles.

    Raises:
        ConfigError: If a value is not finite, or the function has a jump.
    """
    x = np.linspace(*interval, NUM_POINTS + 1)
    values = function(x)
    if not (finite := np.isfinite(values)).all():
        where = x[int(np.argmin(finite))]
        raise ConfigError(
            f"the function must be finite on the interval [{interval[0]:g}, {interval[1]:g}], got "
            f"{values[int(np.argmin(finite))]} for {name!r} at x = {where:.6g}"
        )
    step, scale = float(x[1] - x[0]), float(np.abs(values).max())
    fine, coarse = (_largest_quotients(values[::every], every * step, scale) for every in (1, 2))
    if fine[1] <= _STEADY * coarse[1]:
        return SampledFunction(name, function, interval, x, values, "smooth", fine[1])
    if fine[0] <= _STEADY * coarse[0]:
        return SampledFunction(name, function, interval, x, values, "Lipschitz", fine[0])
    if fine[0] > _JUMP * coarse[0]:
        where = x[int(np.abs(np.diff(values)).argmax())]
        raise ConfigError(
            f"a sum of ReLUs is continuous, and so must be its target, got a jump of {name!r} near x = {where:.6g}"
        )
    return SampledFunction(name, function, interval, x, values, "continuous", math.nan)


def _largest_quotients(values: np.ndarray, step: float, scale: float) -> tuple[float, float]:
    """The largest first and second difference quotient; one within rounding error of 0 is 0."""
    rounding = 16 * np.finfo(np.float64).eps * scale
    found = [float(np.abs(np.diff(values, n=order)).max()) for order in (1, 2)]
    first, second = (size if size > rounding else 0.0 for size in found)
    return first / step, second / step**2


def train_networks(
    target: SampledFunction, starts: Sequence[nn.Sequential], sizes: RepresentationSizes, *, description: str
) -> list[nn.Sequential]:
    """Train networks of equal size in parallel on the squared error at equally spaced points, with Adam.

    The learning rate falls to 0 as a cosine. Returns new networks; `starts` are not changed.
    """
    weights = [torch.stack([[*start.parameters()][i].detach() for start in starts]) for i in range(4)]
    weights = [weight.clone().requires_grad_() for weight in weights]
    beta, gamma, alpha, offset = weights
    rows = np.linspace(*target.interval, sizes.num_rows)
    x, y = torch.from_numpy(rows), torch.from_numpy(target.function(rows))
    optimizer = torch.optim.Adam(weights, lr=sizes.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, sizes.steps)
    for _ in progress_bar(range(sizes.steps), description, total=sizes.steps):
        hidden: Float[Tensor, "run point unit"] = (x[None, :, None] * beta.mT + gamma[:, None]).relu()
        predicted = (hidden @ alpha.mT)[..., 0] + offset
        optimizer.zero_grad()
        (predicted - y).square().mean(dim=1).sum().backward()
        optimizer.step()
        schedule.step()
    return [
        relu_network(a[0].numpy(), b[:, 0].numpy(), c.numpy(), offset=float(d))
        for b, c, a, d in zip(*(weight.detach() for weight in weights), strict=True)
    ]


def random_network(interval: tuple[float, float], num_units: int, *, rng: np.random.Generator) -> nn.Sequential:
    """Random hinges of both directions, with knots uniform in the interval, and outputs of a variance of about 1."""
    low, high = interval
    betas = rng.choice([-1.0, 1.0], num_units) * 2 / (high - low)
    knots = rng.uniform(low, high, num_units)
    return relu_network(rng.standard_normal(num_units) / num_units**0.5, betas, -betas * knots, offset=0.0)


def study_representation(
    *, quick: bool = False, seed: int = 0, function: str | None = None, interval: str | None = None,
    sizes: RepresentationSizes | None = None,
) -> Study:  # fmt: skip
    """Build functions from ReLUs, measure the error against the number of units, and train the same networks."""
    sizes = sizes or (RepresentationSizes() if quick else _FULL)
    ends = parse_interval("0,1" if interval is None else interval)
    parsed: list[RealFunction] = [parse_function(text) for text in (_FUNCTIONS if function is None else (function,))]
    targets = [sample_function(each.text, each, ends) for each in parsed]
    figure, axes = make_panels(3, 3)
    first = targets[0]
    drawn = replace(first, x=first.x[::_DRAWN_EVERY], values=first.values[::_DRAWN_EVERY])
    sections = [
        _pieces(axes[:2], drawn, sizes),
        _errors(axes[3], targets, sizes),
        _learned(axes[4:], first, sizes, seed),
    ]
    _draw_boxes(axes[2], drawn, sizes.drawn_units)
    return REPRESENTATION.result(sizes, sections, figure, functions=[each.name for each in targets], interval=ends)


def _pieces(panels: Sequence[Axes], target: SampledFunction, sizes: RepresentationSizes) -> StudySection:
    """The hinges of a small network and their running sum."""
    network = hinge_network(target.function, target.interval, sizes.drawn_units)
    beta, gamma, alpha, offset = (parameter.detach().flatten().numpy() for parameter in network.parameters())
    pieces = alpha[:, None] * np.maximum(0.0, beta[:, None] * target.x + gamma[:, None])
    sums = offset + np.cumsum(pieces, axis=0)
    for i, (piece, running) in enumerate(zip(pieces, sums, strict=True)):
        color = COLORS[i % len(COLORS)]
        panels[0].plot(target.x, piece, color=color, linewidth=1.2)
        # A running sum is drawn up to the next knot, where the next hinge bends it, and faintly beyond.
        own = target.x <= target.interval[0] + (i + 1) * target.spacing(sizes.drawn_units) + 1e-12
        panels[1].plot(target.x, running, color=color, linewidth=0.7, alpha=0.35)
        panels[1].plot(target.x[own], running[own], color=color, linewidth=0.9, alpha=0.7)
    low, high = float(target.values.min()), float(target.values.max())
    margin = 0.35 * (high - low or 1.0)
    panels[1].plot(target.x, target.values, color=MUTED, linewidth=3, alpha=0.45, label=target.name)
    panels[1].plot(target.x, sums[-1], color=INK, linewidth=1.3, label=f"sum of all {sizes.drawn_units}")
    panels[1].set_ylim(low - margin, high + 1.5 * margin)
    label_axes(panels[0], f"The {sizes.drawn_units} hinges", "x", "c ReLU(x - t)")
    label_axes(panels[1], "Running sums, each after one more hinge", "x", "sum", legend="upper right", fontsize=8)
    rows: list[list[StudyCell]] = [
        [i, float(-gamma[i] / beta[i]), float(alpha[i]), float(sums[i][-1])] for i in range(len(alpha))
    ]
    return [], [StudyTable(
        f"the network of {sizes.drawn_units} hinges for {target.name}",
        ["unit", "knot t", "weight c", "sum so far at the end"], rows,
        f"g(x) = {offset[0]:.6g} + sum of c ReLU(x - t).",
    )]  # fmt: skip


def _draw_boxes(axes: Axes, target: SampledFunction, num_boxes: int) -> None:
    """The lecture's picture: ramps, a box, and the staircase of boxes."""
    low, width = target.interval[0], target.spacing(num_boxes)
    scale = float(target.values.max() - target.values.min()) or 1.0
    start, stop, delta = low + 2 * width, low + 3 * width, width / 8
    ramps = [np.clip((target.x - knot) / delta, 0, 1) for knot in (start, stop)]
    bottom = float(target.values.min()) - 0.75 * scale
    for ramp, color, name in ((ramps[0], COLORS[0], "ramp at a"), (ramps[1], COLORS[1], "ramp at b")):
        axes.plot(target.x, bottom + 0.45 * scale * ramp, color=color, linewidth=1, linestyle="--", label=name)
    box = bottom + 0.45 * scale * (ramps[0] - ramps[1])
    axes.fill_between(target.x, bottom, box, color=COLORS[2], alpha=0.35, linewidth=0, label="box: their difference")
    staircase = box_network(target.function, target.interval, num_boxes)
    axes.plot(target.x, target.values, color=MUTED, linewidth=3, alpha=0.45)
    axes.plot(target.x, evaluate_network(staircase, target.x), color=INK, linewidth=1.1)
    axes.set_ylim(bottom - 0.1 * scale, float(target.values.max()) + 0.75 * scale)
    label_axes(axes, f"The lecture's picture: {num_boxes} boxes", "x", "sum", legend="upper right", fontsize=8)


def _errors(axes: Axes, targets: Sequence[SampledFunction], sizes: RepresentationSizes) -> StudySection:
    tables, exponents, ratios = [], [], []
    for target, color, marker in zip(targets, COLORS, "osD", strict=False):
        rows: list[list[StudyCell]] = []
        errors, bounds = [], []
        for n in sizes.num_units:
            error, bound = target.sup_error(hinge_network(target.function, target.interval, n)), target.bound(n)
            boxes = target.sup_error(box_network(target.function, target.interval, n // 2 + 1)) if n > 1 else None
            rows.append([n, target.spacing(n), error, bound, error / bound if bound else math.nan, boxes])
            errors.append(error)
            bounds.append(bound)
        axes.plot(sizes.num_units, errors, f"{marker}-", color=color, markersize=4, linewidth=1.2, label=target.name)
        axes.plot(sizes.num_units, bounds, ":", color=color, linewidth=1.2)
        measured, allowed = (error_exponent(sizes.num_units, values) for values in (errors, bounds))
        exponents.append(f"{target.name}: {measured:.2f} (bound: {allowed:.2f})")
        ratios += [error / bound for error, bound in zip(errors, bounds, strict=True) if bound]
        tables.append(StudyTable(
            f"{target.name}: largest error by number of units",
            ["units", "h", "hinges", f"bound, {_RATES[target.regularity]}", "hinges / bound", "boxes"], rows,
            f"Its difference quotients are those of a {target.regularity} function; boxes: the lecture's staircase "
            "with at most as many units.",
        ))  # fmt: skip
    label_axes(axes, "Largest error; dotted: bound", "units", "sup |f - g|", log="xy", legend="lower left", fontsize=8)
    return [
        f"The largest error of N hinges changes as N to the power of: {'; '.join(exponents)}.",
        f"It is at most {max(ratios, default=0.0):.3f} times its bound at all {len(ratios)} sizes.",
    ], tables


def error_exponent(num_units: Sequence[int], errors: Sequence[float]) -> float:
    """The slope of log error against log units over the larger half of the sizes; NaN where an error is 0."""
    half = len(errors) // 2
    if min(errors[half:]) <= 0 or len(errors) - half < 2:
        return math.nan
    return float(np.polyfit(np.log(num_units[half:]), np.log(errors[half:]), 1)[0])


def _learned(panels: Sequence[Axes], target: SampledFunction, sizes: RepresentationSizes, seed: int) -> StudySection:
    rows: list[list[StudyCell]] = []
    curves: dict[str, list[Interval]] = {"random weights": [], "the construction": []}
    built = []
    for n in sizes.learned_units:
        rng = np.random.default_rng(seed)
        starts = [random_network(target.interval, n, rng=rng) for _ in range(sizes.num_seeds)]
        construction = hinge_network(target.function, target.interval, n)
        *learned, tuned = train_networks(target, [*starts, construction], sizes, description=f"{n} units")
        errors = [target.sup_error(network) for network in learned]
        built.append(target.sup_error(construction))
        curves["random weights"].append(median_interval(errors))
        curves["the construction"].append((end := target.sup_error(tuned), end, end))
        log_info(f"{n} units: error {built[-1]:.2g} by construction, {min(errors):.2g} to {max(errors):.2g} learned")
        rows.append([n, built[-1], curves["random weights"][-1], min(errors), end])
        if n == sizes.drawn_units:
            x, values = target.x[::_DRAWN_EVERY], target.values[::_DRAWN_EVERY]
            for network in learned:
                panels[0].plot(x, evaluate_network(network, x) - values, color=COLORS[1],
                               linewidth=0.8, alpha=0.7)  # fmt: skip
            panels[0].plot(x, evaluate_network(construction, x) - values, color=INK, linewidth=1.3)
    label_axes(panels[0], f"g - f with {sizes.drawn_units} units; black: construction", "x", "error")
    panels[1].plot(sizes.learned_units, built, color=INK, linewidth=1.3, label="construction")
    for (start, estimates), color, marker in zip(curves.items(), (COLORS[1], COLORS[2]), "os", strict=True):
        plot_errorbars(panels[1], sizes.learned_units, estimates, fmt=f"{marker}-", color=color, markersize=4,
                       linewidth=1.2, label=f"descent from {start}")  # fmt: skip
    label_axes(panels[1], "The same networks by descent", "units", "sup |f - g|", log="xy", legend="lower left")
    panels[1].set_xticks(sizes.learned_units, labels=[str(n) for n in sizes.learned_units])
    panels[1].minorticks_off()
    ratios, tuned_ratios = (
        [estimate[0] / error for estimate, error in zip(curves[start], built, strict=True) if error] for start in curves
    )
    better = [n for n, ratio in zip(sizes.learned_units, ratios, strict=False) if ratio < 1]
    return [
        f"From random weights descent reaches a largest error of {', '.join(f'{ratio:.2g}' for ratio in ratios)} times "
        f"that of the construction with {', '.join(map(str, sizes.learned_units))} units (medians over "
        f"{sizes.num_seeds} starts), less than 1 with {', '.join(map(str, better)) or 'none of them'}; from the "
        f"construction {', '.join(f'{ratio:.2g}' for ratio in tuned_ratios)} times.",
    ], [StudyTable(
        f"{target.name}: largest error of networks by descent",
        ["units", "construction", "descent from random weights", "best start", "descent from the construction"], rows,
        f"Adam for {sizes.steps:,} steps on the mean squared error at {sizes.num_rows} points; median over "
        f"{sizes.num_seeds} random starts, in brackets its distribution-free 95 % interval.",
    )]  # fmt: skip
