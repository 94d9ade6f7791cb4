r"""Critical points of small networks, computed to high precision, paths between minima, and the drop of one step.

Dauphin et al., "Identifying and attacking the saddle point problem in high-dimensional non-convex optimization"
(2014), figure 1: saddle points of higher loss have more negative curvatures. https://arxiv.org/abs/1406.2572
Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs" (2018), section 3: two minima and a
learned quadratic Bezier curve between them. https://arxiv.org/abs/1802.10026
Entezari et al., "The Role of Permutation Invariance in Linear Mode Connectivity of Neural Networks" (2021).
https://arxiv.org/abs/2110.06296

Students with one hidden tanh layer learn the outputs of a teacher with a few hidden units, without noise: a student as
wide as the teacher, or wider, can have a loss of 0. Minima are found by Adam from random weights, and then to
high precision by the method of Levenberg and Marquardt. Critical points of any kind are found by Gauss-Newton steps on
the squared norm of the gradient, which Hessians of all weights allow for networks this small.

One step of gradient descent with learning rate $\eta$ lowers the loss, to second order, by

$$ f(w) - f(w - \eta g) \approx \eta \lVert g \rVert^2 \Big(1 - \frac{\eta \kappa}{2}\Big), \qquad
   \kappa = \frac{g^\top H g}{g^\top g} . $$

With one weight that is $\eta f'^2 (1 - \eta f'' / 2)$. Hidden units can be permuted, and the signs of all weights of a
tanh unit inverted, without changing the function: two minima are aligned by the best such change of the second one.

Dimensions: `runs` networks, `rows` examples, `inputs`, `width` hidden units, `weights` of a network as one vector.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from scipy.optimize import linear_sum_assignment
from scipy.stats import spearmanr
from torch import Tensor
from torch.func import grad, jacrev, vmap

from regard.evaluation.intervals import mean_interval
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.landscape import LANDSCAPE
from regard.lab.random_features import median_interval
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info, progress_bar

_GLOBAL = 1e-6
"""A minimum with a loss below this share of the variance of the targets counts as global."""
_CRITICAL = 1e-6
"""The gradient norm below which a point counts as critical."""
_TEACHER_SCALE = 3.0
"""The teacher's weights are larger than initial ones, so that its output is far from linear."""
_ZERO = 1e-5
"""Eigenvalues between -1e-5 and 1e-5 of the largest count as zero: minima of wide networks are flat."""


@dataclass(frozen=True, kw_only=True)
class LandscapeSizes:
    """The networks, and how many are started; the defaults are those of a quick run."""

    num_rows: int = 60
    num_inputs: int = 2
    teacher_width: int = 4
    widths: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12)
    num_starts: int = 40
    """Random starts of each width."""
    adam_steps: int = 300
    polish_steps: int = 60
    critical_width: int = 4
    num_critical: int = 150
    """Random starts from which critical points are searched."""
    critical_steps: int = 150
    path_widths: tuple[int, ...] = (3, 6, 12, 24)
    num_pairs: int = 10
    curve_steps: int = 300
    num_points: int = 25
    """Points of a path."""
    multiples: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25)
    """Learning rates of one step, in multiples of 2 / curvature."""


_FULL = LandscapeSizes(
    widths=(1, 2, 3, 4, 5, 6, 8, 10, 15, 20), num_starts=200, adam_steps=1_000, polish_steps=150, num_critical=1_000,
    critical_steps=300, path_widths=(3, 6, 12, 24, 48), num_pairs=30, curve_steps=1_000,
)  # fmt: skip


@dataclass(frozen=True)
class TanhSurface:
    """The squared error of a network with one hidden tanh layer, as a function of all of its weights."""

    inputs: Float[Tensor, "rows inputs"]
    targets: Float[Tensor, " rows"]
    width: int

    @property
    def num_weights(self) -> int:
        return self.width * (self.inputs.size(1) + 2)

    def residuals(self, weights: Float[Tensor, " weights"]) -> Float[Tensor, " rows"]:
        """Output minus target of each row."""
        return tanh_outputs(weights, self.inputs, self.width) - self.targets

    def loss(self, weights: Float[Tensor, " weights"]) -> Float[Tensor, ""]:
        return 0.5 * self.residuals(weights).square().mean()

    def losses(self, weights: Float[Tensor, "*runs weights"]) -> Float[Tensor, "*runs"]:
        """The loss of each network."""
        return vmap(self.loss)(weights.flatten(0, -2)).view(weights.shape[:-1])

    def gradients(self, weights: Float[Tensor, "runs weights"]) -> Float[Tensor, "runs weights"]:
        return vmap(grad(self.loss))(weights)

    def hessians(self, weights: Float[Tensor, "runs weights"]) -> Float[Tensor, "runs weights weights"]:
        return vmap(jacrev(grad(self.loss)))(weights)

    def draw(self, runs: int, rng: torch.Generator) -> Float[Tensor, "runs weights"]:
        """Random weights with pre-activations and outputs of a variance of about 1."""
        hidden = torch.randn(runs, self.inputs.size(1) * self.width, generator=rng, dtype=torch.float64)
        rest = torch.randn(runs, 2 * self.width, generator=rng, dtype=torch.float64)
        scales = torch.cat([torch.full((self.width,), 0.5), torch.full((self.width,), self.width**-0.5)])
        return torch.cat([hidden / self.inputs.size(1) ** 0.5, rest * scales.double()], dim=1)


def tanh_outputs(
    weights: Float[Tensor, " weights"], inputs: Float[Tensor, "rows inputs"], width: int
) -> Float[Tensor, " rows"]:
    """The outputs of one network; its vector has the hidden weights, their biases and the output weights in turn."""
    hidden, bias, output = weights.split([inputs.size(1) * width, width, width])
    return (inputs @ hidden.view(inputs.size(1), width) + bias).tanh() @ output


def make_surface(sizes: LandscapeSizes, width: int, *, seed: int) -> TanhSurface:
    """Normal inputs and a teacher's outputs, scaled to a variance of 1; the same for every width."""
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(sizes.num_rows, sizes.num_inputs, generator=rng, dtype=torch.float64)
    teacher = TanhSurface(inputs, torch.zeros(sizes.num_rows, dtype=torch.float64), sizes.teacher_width)
    weights = _TEACHER_SCALE * teacher.draw(1, rng)[0]
    # Hidden units of equal weight: none of them can be left out.
    weights[-sizes.teacher_width :] = weights[-sizes.teacher_width :].sign()
    outputs = tanh_outputs(weights, inputs, sizes.teacher_width)
    return TanhSurface(inputs, outputs / outputs.std(), width)


def find_minima(
    surface: TanhSurface, starts: Float[Tensor, "runs weights"], *, adam_steps: int, polish_steps: int
) -> Float[Tensor, "runs weights"]:
    """Descend from each start by Adam, then by Levenberg and Marquardt's damped Gauss-Newton steps."""
    weights = starts.clone().requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, adam_steps))
    for _ in range(adam_steps):
        optimizer.zero_grad()
        surface.losses(weights).sum().backward()
        optimizer.step()
        schedule.step()

    def step(current: Tensor, damping: Tensor) -> Tensor:
        errors = vmap(surface.residuals)(current)
        jacobians = vmap(jacrev(surface.residuals))(current)
        return _damped_step(jacobians, errors, damping)

    return _descend(weights.detach(), step, surface.losses, steps=polish_steps)


def find_critical_points(
    surface: TanhSurface, starts: Float[Tensor, "runs weights"], *, steps: int
) -> Float[Tensor, "runs weights"]:
    """Minimize half the squared gradient norm from each start; returns those that are critical, minima or not."""

    def squared_norms(weights: Tensor) -> Tensor:
        return 0.5 * surface.gradients(weights).square().sum(dim=1)

    def step(current: Tensor, damping: Tensor) -> Tensor:
        return _damped_step(surface.hessians(current), surface.gradients(current), damping)

    found = _descend(starts, step, squared_norms, steps=steps)
    return found[(2 * squared_norms(found)).sqrt() < _CRITICAL]


def _damped_step(jacobians: Tensor, errors: Tensor, damping: Tensor) -> Tensor:
    """The least-squares step: minus (J^T J + damping)^-1 J^T r."""
    normal = jacobians.mT @ jacobians
    identity = torch.eye(normal.size(-1), dtype=normal.dtype)
    return -torch.linalg.solve(normal + damping[:, None, None] * identity, (jacobians.mT @ errors[..., None]))[..., 0]


def _descend(
    weights: Tensor, step: Callable[[Tensor, Tensor], Tensor], value: Callable[[Tensor], Tensor], *, steps: int
) -> Tensor:
    """Take each network's step where it lowers the value; damping falls after a success and rises after a failure."""
    damping = torch.full((len(weights),), 1e-2, dtype=weights.dtype)
    current = value(weights)
    for _ in range(steps):
        moved = weights + step(weights, damping)
        reached = value(moved)
        is_lower = reached < current
        weights = torch.where(is_lower[:, None], moved, weights)
        current = torch.where(is_lower, reached, current)
        damping = torch.where(is_lower, damping / 3, damping * 4).clamp(1e-14, 1e6)
    return weights


def count_negative(eigenvalues: Float[Tensor, "runs weights"]) -> Float[Tensor, " runs"]:
    """The number of negative eigenvalues, without those that are zero up to rounding."""
    return (eigenvalues < -_ZERO * eigenvalues.abs().amax(dim=1, keepdim=True)).sum(dim=1).to(eigenvalues)


def predicted_drop(learning_rate: float, squared_gradient: float, curvature: float) -> float:
    r"""$\eta \lVert g \rVert^2 (1 - \eta \kappa / 2)$: by how much one step lowers a loss, to second order."""
    return learning_rate * squared_gradient * (1 - learning_rate * curvature / 2)


def measure_drops(
    surface: TanhSurface, weights: Float[Tensor, "runs weights"], multiples: Sequence[float]
) -> tuple[Float[Tensor, "multiple runs"], Float[Tensor, "multiple runs"]]:
    """Predicted and measured drops of one step at learning rates of 2 / curvature along the gradient, times multiples.

    Networks whose loss is not convex along their gradient are left out.
    """
    gradients = surface.gradients(weights)
    squares = gradients.square().sum(dim=1)
    curvatures = (gradients[:, None] @ surface.hessians(weights) @ gradients[..., None]).flatten() / squares
    kept = curvatures > 0
    weights, gradients, squares, curvatures = (each[kept] for each in (weights, gradients, squares, curvatures))
    before, predicted, measured = surface.losses(weights), [], []
    for multiple in multiples:
        rates = 2 * multiple / curvatures
        pairs = zip(rates.tolist(), squares.tolist(), curvatures.tolist(), strict=True)
        predicted.append(torch.tensor([predicted_drop(*each) for each in pairs], dtype=weights.dtype))
        measured.append(before - surface.losses(weights - rates[:, None] * gradients))
    return torch.stack(predicted), torch.stack(measured)


def align_units(
    one: Float[Tensor, " weights"], other: Float[Tensor, " weights"], width: int
) -> Float[Tensor, " weights"]:
    """The other network with its hidden units permuted and inverted so that its weights are nearest to the first's."""

    def units(weights: Tensor) -> Tensor:
        return weights.view(-1, width).T

    first, second = units(one), units(other)
    # The squared distance is least where inner products are largest; an inverted unit has the opposite one.
    products = first @ second.T
    _, chosen = linear_sum_assignment(-products.abs().numpy())
    aligned = second[torch.from_numpy(chosen)]
    signs = torch.where((first * aligned).sum(dim=1) < 0, -1.0, 1.0).to(aligned)
    return (signs[:, None] * aligned).T.flatten()


def bezier(
    start: Float[Tensor, "*runs weights"], bend: Float[Tensor, "*runs weights"], end: Float[Tensor, "*runs weights"],
    t: Float[Tensor, " point"],
) -> Float[Tensor, "point *runs weights"]:  # fmt: skip
    """Points of the curve (1 - t)^2 start + 2 t (1 - t) bend + t^2 end; with the bend halfway it is the segment."""
    shape = (-1, *[1] * start.dim())
    t = t.view(shape)
    return (1 - t) ** 2 * start + 2 * t * (1 - t) * bend + t**2 * end


def learn_bend(
    surface: TanhSurface, start: Float[Tensor, "runs weights"], end: Float[Tensor, "runs weights"], *, steps: int,
    rng: torch.Generator,
) -> Float[Tensor, "runs weights"]:  # fmt: skip
    """Minimize the mean loss over the curve by Adam, at random points of it in each step, from the segment."""
    bend = ((start + end) / 2).requires_grad_()
    optimizer = torch.optim.Adam([bend], lr=0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        t = torch.rand(5, generator=rng, dtype=start.dtype)
        surface.losses(bezier(start, bend, end, t)).mean(dim=0).sum().backward()
        optimizer.step()
    return bend.detach()


def barriers(losses: Float[Tensor, "point runs"]) -> Float[Tensor, " runs"]:
    """The largest excess of a path's loss over the line between the losses of its ends (Frankle et al. 2020)."""
    t = torch.linspace(0, 1, len(losses), dtype=losses.dtype)[:, None]
    return (losses - ((1 - t) * losses[0] + t * losses[-1])).amax(dim=0)


def study_landscape(*, quick: bool = False, seed: int = 0, sizes: LandscapeSizes | None = None) -> Study:
    """Find minima and saddle points, connect minima, and compare the drop of one step with its prediction."""
    sizes = sizes or (LandscapeSizes() if quick else _FULL)
    rng = torch.Generator().manual_seed(seed)
    figure, axes = make_panels(3, 2, height=3.4)
    sections = [
        _minima(axes[0], sizes, rng, seed),
        _saddles(axes[1], sizes, rng, seed),
        _drops(axes[2], sizes, rng, seed),
        _paths(axes[3:], sizes, rng, seed),
    ]
    return LANDSCAPE.result(sizes, sections, figure)


def _minima(axes: Axes, sizes: LandscapeSizes, rng: torch.Generator, seed: int) -> StudySection:
    rows, shares = [], {}
    for place, width in enumerate(progress_bar(sizes.widths, "minima", total=len(sizes.widths))):
        surface = make_surface(sizes, width, seed=seed)
        steps = {"adam_steps": sizes.adam_steps, "polish_steps": sizes.polish_steps}
        weights = find_minima(surface, surface.draw(sizes.num_starts, rng), **steps)
        losses, norms = surface.losses(weights), surface.gradients(weights).norm(dim=1)
        negative = count_negative(torch.linalg.eigvalsh(surface.hessians(weights)))
        shares[width] = float((2 * losses < _GLOBAL).double().mean())
        quantiles = losses.quantile(torch.tensor([0.0, 0.5, 0.9, 1.0], dtype=losses.dtype)).tolist()
        distinct = len({round(loss, 5) for loss in losses.tolist()})
        rows.append([width, surface.num_weights, *quantiles, distinct, shares[width], float(norms.median()),
                     int((negative > 0).sum())])  # fmt: skip
        shaken = place + 0.25 * (torch.rand(len(losses), generator=rng) - 0.5)
        axes.plot(shaken, losses.clamp(min=1e-12), "o", color=COLORS[0], markersize=2.5, alpha=0.5)
    axes.set_xticks(range(len(sizes.widths)), labels=[str(width) for width in sizes.widths])
    label_axes(axes, f"Minima from {sizes.num_starts} starts", "hidden units", "loss", log="y")
    log_info(f"share of starts that end at a loss of 0, by width: {shares}")
    narrow, wide = min(sizes.widths, key=lambda w: abs(w - sizes.teacher_width)), max(sizes.widths)
    finding = (
        f"With the teacher's {sizes.teacher_width} hidden units {100 * shares[narrow]:.0f} % of {sizes.num_starts} "
        f"starts reach a loss below {_GLOBAL:g} of the variance, with {wide} units {100 * shares[wide]:.0f} %; of the "
        f"points that descent found, {sum(row[-1] for row in rows)} of {len(rows) * sizes.num_starts} have a negative "
        "eigenvalue."
    )
    columns = ["hidden units", "weights", "lowest loss", "median", "90 % quantile", "highest", "distinct losses",
               "share at 0", "median gradient norm", "with a negative eigenvalue"]  # fmt: skip
    note = (
        f"{sizes.num_starts} random starts each; a loss is at 0 if it is below {_GLOBAL:g} of the variance of targets."
    )
    return [finding], [StudyTable("minima by width", columns, rows, note)]


def _saddles(axes: Axes, sizes: LandscapeSizes, rng: torch.Generator, seed: int) -> StudySection:
    surface = make_surface(sizes, sizes.critical_width, seed=seed)
    starts = surface.draw(sizes.num_critical, rng)
    # Every other start is first moved downhill: random weights are nearest to saddle points of a high loss.
    starts[::2] = find_minima(surface, starts[::2], adam_steps=sizes.adam_steps // 3, polish_steps=0)
    weights = find_critical_points(surface, starts, steps=sizes.critical_steps)
    losses = surface.losses(weights)
    negative = count_negative(torch.linalg.eigvalsh(surface.hessians(weights))) if len(weights) else torch.zeros(0)
    shaken = negative + 0.3 * (torch.rand(len(negative), generator=rng) - 0.5)
    axes.plot(losses, shaken, "o", color=COLORS[1], markersize=3, alpha=0.5)
    label_axes(axes, f"Critical points, {sizes.critical_width} hidden units", "loss", "negative eigenvalues")
    axes.set_yticks(range(int(negative.max()) + 1 if len(negative) else 1))
    rows = [
        [int(count), int((negative == count).sum()), float(some.min()), float(some.median()), float(some.max())]
        for count in sorted(set(negative.tolist()))
        if len(some := losses[negative == count])
    ]
    is_saddle = int((negative > 0).sum())
    correlation = math.nan
    if len(rows) > 1:
        correlation, _ = spearmanr(losses.numpy(), negative.numpy())
    finding = (
        f"Of {len(weights)} critical points that {sizes.num_critical} searches found, {is_saddle} are saddle points "
        f"with up to {max(rows, default=[0])[0]} negative eigenvalues of {surface.num_weights}; the rank correlation "
        f"of their number with the loss is {correlation:.2f}."
    )
    columns = ["negative eigenvalues", "critical points", "lowest loss", "median loss", "highest loss"]
    note = f"Points with a gradient norm below {_CRITICAL:g}, found by minimizing the gradient norm."
    return [finding], [StudyTable("critical points by their index", columns, rows, note)]


def _drops(axes: Axes, sizes: LandscapeSizes, rng: torch.Generator, seed: int) -> StudySection:
    surface = make_surface(sizes, sizes.critical_width, seed=seed)
    weights = find_minima(surface, surface.draw(sizes.num_starts, rng), adam_steps=20, polish_steps=0)
    predicted, measured = measure_drops(surface, weights, sizes.multiples)
    best, _ = measure_drops(surface, weights, (0.5,))  # the largest predicted drop
    rows, ratios = [], []
    for multiple, expected, found in zip(sizes.multiples, predicted / best, measured / best, strict=True):
        rows.append([multiple, float(expected.mean()), median_interval(found)])
        ratios.append(rows[-1][2][0])
    grid = torch.linspace(0, max(sizes.multiples), 60)
    axes.plot(grid, 4 * grid * (1 - grid), color=INK, linewidth=1.1, label="η g² (1 - η κ / 2)")
    plot_errorbars(axes, sizes.multiples, [row[2] for row in rows], fmt="o", color=COLORS[2], markersize=4,
                   label="measured")  # fmt: skip
    axes.axhline(0, color=MUTED, linewidth=0.8)
    label_axes(axes, "Drop of the loss in one step", "learning rate · κ / 2", "drop / largest predicted", legend="best")
    errors = [abs(row[1] - ratio) for row, ratio in zip(rows, ratios, strict=True)]
    finding = (
        f"The measured drop of one step differs from η g² (1 - η κ / 2) by {errors[0]:.3f} of the largest predicted "
        f"drop at {sizes.multiples[0]:g} times 2 / κ, and by at most {max(errors):.2f} up to {max(sizes.multiples):g} "
        f"times; beyond 2 / κ the loss rises in {100 * float((measured[-1] < 0).double().mean()):.0f} % of "
        f"{measured.size(1)} networks."
    )
    columns = ["learning rate · κ / 2", "predicted drop", "measured drop"]
    note = (
        "In units of the largest predicted drop, that at half of 2 / κ; κ is the curvature along the gradient. Medians."
    )
    return [finding], [StudyTable("drop of the loss in one step", columns, rows, note)]


def _paths(panels: Sequence[Axes], sizes: LandscapeSizes, rng: torch.Generator, seed: int) -> StudySection:
    t = torch.linspace(0, 1, sizes.num_points, dtype=torch.float64)
    rows, found = [], {}
    for width in progress_bar(sizes.path_widths, "paths", total=len(sizes.path_widths)):
        surface = make_surface(sizes, width, seed=seed)
        starts = surface.draw(2 * sizes.num_pairs, rng)
        minima = find_minima(surface, starts, adam_steps=sizes.adam_steps, polish_steps=0)
        one, other = minima[::2], minima[1::2]
        aligned = torch.stack([align_units(*pair, width) for pair in zip(one, other, strict=True)])
        bend = learn_bend(surface, one, other, steps=sizes.curve_steps, rng=rng)
        paths = {
            "segment": surface.losses(bezier(one, (one + other) / 2, other, t)),
            "segment, aligned": surface.losses(bezier(one, (one + aligned) / 2, aligned, t)),
            "learned curve": surface.losses(bezier(one, bend, other, t)),
        }
        found[width] = {name: barriers(losses) for name, losses in paths.items()}
        rows.append([width, float(surface.losses(minima).mean()), *map(mean_interval, found[width].values())])
        if width == max(sizes.path_widths):
            for (name, losses), color in zip(paths.items(), COLORS, strict=False):
                panels[0].plot(t, losses[:, 0].clamp(min=1e-9), color=color, label=name)
    names = list(found[sizes.path_widths[0]])
    for name, color, marker in zip(names, COLORS, "osD", strict=False):
        means = [max(float(each[name].mean()), 1e-6) for each in found.values()]
        panels[1].plot(sizes.path_widths, means, f"{marker}-", color=color, markersize=4, label=name)
    title = f"Two minima of {max(sizes.path_widths)} hidden units"
    label_axes(panels[0], title, "from one to the other", "loss", log="y", legend="best")
    label_axes(panels[1], "Barriers between minima", "hidden units", "barrier", log="xy", legend="best")
    panels[1].set_xticks(sizes.path_widths, labels=[str(width) for width in sizes.path_widths])
    panels[1].minorticks_off()
    means = {name: float(found[max(sizes.path_widths)][name].mean()) for name in names}
    finding = (
        f"Between two minima of {max(sizes.path_widths)} hidden units the loss rises by {means['segment']:.3g} along "
        f"the segment, by {means['segment, aligned']:.3g} if the units are aligned, and by "
        f"{means['learned curve']:.2g} along a learned curve (variance of the targets: 1)."
    )
    columns = ["hidden units", "loss of the minima", *(f"barrier, {name}" for name in names)]
    note = f"Means over {sizes.num_pairs} pairs with 95 % intervals."
    return [finding], [StudyTable("barriers on paths between minima", columns, rows, note)]
