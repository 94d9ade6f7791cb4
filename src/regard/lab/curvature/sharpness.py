r"""The largest Hessian eigenvalue of a run's loss on its own data, through training, and the gradient noise scale.

Cohen et al., "Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability" (2021).
https://arxiv.org/abs/2103.00065
Cohen et al., "Adaptive Gradient Methods at the Edge of Stability" (2022). https://arxiv.org/abs/2207.14484
McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), section 2.2 and appendix A.1.
https://arxiv.org/abs/1812.06162

On a quadratic with curvature $\lambda$ an optimizer with learning rate $\eta$ diverges iff $\eta \lambda$ exceeds

$$ \text{gradient descent: } 2, \qquad \text{momentum: } 2 (1 + \beta), \qquad
   \text{Nesterov: } \frac{2 (1 + \beta)}{1 + 2 \beta}, \qquad \text{Adam: } \frac{2 (1 + \beta_1)}{1 - \beta_1} , $$

where for Adam, RMSProp (2) and AdaGrad (2) $\lambda$ is that of the preconditioned Hessian $P^{-1/2} H P^{-1/2}$, with
$P$ the diagonal of $\sqrt{v} + \epsilon$ by which they divide the gradient.

With $n_i$ targets in batch $i$ of $N$ and $g_i$ its mean gradient, the covariance of a target's gradient has the trace

$$ \operatorname{tr} \Sigma \approx \frac{1}{N - 1} \sum_i n_i \lVert g_i - \bar g \rVert^2 , \qquad
   \lVert G \rVert^2 \approx \lVert \bar g \rVert^2 - \frac{\operatorname{tr} \Sigma}{\sum_i n_i} , \qquad
   B_\mathrm{simple} = \frac{\operatorname{tr} \Sigma}{\lVert G \rVert^2} : $$

with batches far below the noise scale $B_\mathrm{simple}$, twice the batch halves the steps to a loss; far above it, a
larger batch gains nothing.

The loss is that of training without dropout, on the first training batches, in float64.

Dimensions: `weights`, all trained parameters of a model in one vector.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from regard.data.prepare import Prepared
from regard.errors import DataError, RegardError, RunError
from regard.evaluation.intervals import Interval
from regard.lab.curvature import CURVATURE
from regard.lab.drawing import COLORS, MUTED, label_axes, make_panels
from regard.lab.hessian import LanczosSpectrum, difference_product, flat_gradient, lanczos
from regard.lab.study import Study, StudyCell, StudyTable, format_cell
from regard.logging import log_info, log_warning, progress_bar, quiet_logs
from regard.runs.run import Run
from regard.runs.train import train
from regard.tasks.capabilities import RolloutTask
from regard.tasks.task import Objective
from regard.training.checkpoints import (
    checkpoint_paths,
    copy_weights,
    read_state,
    read_tensors,
    resize_buffers,
    trained_weights,
)
from regard.training.optimizers import OptimizerName
from regard.training.settings import TrainConfig

_MOST_BYTES = 1 << 31
"""Memory for the vectors of Lanczos: with larger models there are fewer of them."""
_SECOND_MOMENTS = {"adam": "exp_avg_sq", "adamw": "exp_avg_sq", "rmsprop": "square_avg", "adagrad": "sum"}
"""The optimizer's state that its preconditioner is computed from."""


@dataclass(frozen=True, kw_only=True)
class CurvatureSizes:
    """How much is measured; the defaults are those of a quick run."""

    num_batches: int = 2
    """Training batches of the loss whose Hessian is measured."""
    noise_batches: int = 10
    """Training batches whose gradients are compared."""
    max_products: int = 12
    max_points: int = 4
    """Checkpoints that are measured, beside the kept weights."""
    steps: int = 120
    """Steps of the run that is trained where none is given."""
    num_rows: int = 800
    model_dim: int = 32


_FULL = CurvatureSizes(num_batches=12, noise_batches=64, max_products=30, max_points=12, steps=600, model_dim=64)


def stability_threshold(optimizer: OptimizerName, beta1: float) -> float | None:
    """The largest learning rate times curvature at which a quadratic does not diverge; None where none is known.

    The curvature is that of the preconditioned Hessian for optimizers that have a preconditioner.
    """
    match optimizer:
        case "sgd" | "adagrad" | "rmsprop":
            return 2.0
        case "momentum":
            return 2 * (1 + beta1)
        case "nesterov":
            return 2 * (1 + beta1) / (1 + 2 * beta1)
        case "adam" | "adamw":
            return 2 * (1 + beta1) / (1 - beta1)
    return None


@dataclass(frozen=True)
class GradientNoise:
    """The gradient noise scale, from gradients of batches."""

    squared_gradient: float
    """The estimate of the squared norm of the expected gradient; it can be negative where the gradient is small."""
    trace: float
    """The trace of the covariance of a target's gradient."""
    scale: Interval
    """In targets, with the 95 % interval of the jackknife; infinite where the gradient is lost in the noise."""


def noise_scale(
    squares: Float[Tensor, " batch"], products: Float[Tensor, " batch"], counts: Float[Tensor, " batch"]
) -> GradientNoise:
    """Estimate the noise scale from sums of gradients over the targets of each batch.

    Args:
        squares: The squared norm of each batch's sum.
        products: The inner product of each batch's sum with the sum over all batches.
        counts: The number of targets of each batch.
    """

    def estimate(kept: Tensor, total_square: Tensor) -> tuple[float, float]:
        count = counts[kept].sum()
        trace = ((squares[kept] / counts[kept]).sum() - total_square / count) / (int(kept.sum()) - 1)
        return float(total_square / count**2 - trace / count), float(trace)

    number, total = len(counts), products.sum()
    squared, trace = estimate(torch.ones(number, dtype=torch.bool), total)
    if squared <= 0:
        return GradientNoise(squared, trace, (math.inf, math.inf, math.inf))
    # The jackknife of 1 / scale, which is finite where the gradient is small.
    inverse = squared / trace
    without = []
    for left_out in range(number):
        kept = torch.arange(number) != left_out
        one, other = estimate(kept, total - 2 * products[left_out] + squares[left_out])
        without.append(one / other)
    values = torch.tensor(without, dtype=torch.float64)
    error = 1.96 * float(((number - 1) / number * (values - values.mean()).square().sum()).sqrt())
    low = inverse - error
    return GradientNoise(squared, trace, (1 / inverse, 1 / (inverse + error), 1 / low if low > 0 else math.inf))


class RunLoss:
    """The training loss of a run without dropout, on fixed batches, as a function of its trained weights."""

    def __init__(self, run: Run, *, num_batches: int) -> None:
        if isinstance(run.task, RolloutTask):
            raise RunError(
                f"the loss of {run.task.description} depends on what the model samples: curvature needs a task whose "
                "batches are data"
            )
        self.run, self.task = run, run.task
        self.model = run.unmerged().double()
        # The model's own flag alone: layers without dropout, and no parts that are solved rather than trained.
        self.model.training = True
        self.batches, self.source = _batches_of(run, num_batches)
        config = run.settings.train
        has_smoothing = "label_smoothing" in self.task.objective_terms()
        self._objective = Objective(label_smoothing=config.label_smoothing if has_smoothing else 0.0)

    @cached_property
    def parameters(self) -> list[Tensor]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def num_targets(self) -> int:
        return sum(batch.num_targets for batch in self.batches)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the trained weights to those of a checkpoint."""
        resize_buffers(self.model, tensors)
        own = trained_weights(self.model)
        copy_weights(own, {name: tensor.to(own[name].dtype) for name, tensor in tensors.items() if name in own})

    def batch_loss(self, number: int) -> Float[Tensor, ""]:
        """The loss summed over the targets of one batch."""
        return self.task.loss(self.model, self.batches[number], self._objective)

    def batch_gradient(self, number: int) -> Float[Tensor, " weights"]:
        """The gradient of `batch_loss`."""
        return flat_gradient(self.batch_loss(number), self.parameters)

    def gradient(self, num_batches: int) -> Float[Tensor, " weights"]:
        """The gradient of the mean loss over the targets of the first batches."""
        number = min(num_batches, len(self.batches))
        total = self.batch_gradient(0)
        for batch in range(1, number):
            total += self.batch_gradient(batch)
        return total / sum(batch.num_targets for batch in self.batches[:number])

    @torch.no_grad()
    def value(self) -> float:
        """The mean loss over the targets of all batches."""
        return sum(float(self.batch_loss(number)) for number in range(len(self.batches))) / self.num_targets

    def noise(self) -> GradientNoise:
        """The gradient noise scale at the current weights; each gradient is computed twice and none is stored."""
        numbers = range(len(self.batches))
        total = self.gradient(len(self.batches)) * self.num_targets
        squares, products = [], []
        for number in numbers:
            gradient = self.batch_gradient(number)
            squares.append(float(gradient @ gradient))
            products.append(float(gradient @ total))
        counts = torch.tensor([batch.num_targets for batch in self.batches], dtype=torch.float64)
        as_tensor = partial(torch.tensor, dtype=torch.float64)
        return noise_scale(as_tensor(squares), as_tensor(products), counts)


def _batches_of(run: Run, num_batches: int) -> tuple[list[Any], str]:
    """The first training batches, or batches of the stored validation rows where the training data is gone."""
    config, task = run.settings.train, run.task
    try:
        with quiet_logs():
            data: Prepared = task.prepare(run.settings.data)
        batches = task.batches(data, batch_tokens=config.batch_tokens, seed=config.seed)
        found, source = [batches.batch(number) for number in range(min(num_batches, batches.per_epoch))], "training"
    except RegardError as error:
        rows = run.folder.read_held_out("valid")
        if not rows:
            raise DataError(
                f"{run.path} has no validation rows, and its training data cannot be read: {error}"
            ) from None
        log_warning(f"the training data cannot be read, and the validation rows are used: {error}")
        groups = [rows[start::num_batches] for start in range(min(num_batches, len(rows)))]
        found, source = [batch for group in groups for batch in task.row_batches(group)], "validation"
    if len(found) < 3:
        raise DataError(
            f"the noise of gradients needs at least 3 batches, and {run.path} has {len(found)}: more rows, or a "
            f"smaller train.batch_tokens than {config.batch_tokens:,}"
        )
    return [batch.with_tensors([_in_float64(tensor) for tensor in batch.tensors()]) for batch in found], source


def _in_float64(tensor: Tensor | None) -> Tensor | None:
    return tensor.double() if tensor is not None and tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class CurvaturePoint:
    """What is measured at some weights of a run."""

    name: str
    step: int
    loss: float
    gradient_norm: float
    spectrum: LanczosSpectrum
    learning_rate: float | None
    """None where the run has no figures of that step."""
    preconditioned: LanczosSpectrum | None
    """Where the optimizer has a preconditioner, and the checkpoint its state."""
    threshold: float | None
    noise: GradientNoise

    @property
    def largest(self) -> float:
        return float(self.spectrum.values[-1])

    @property
    def share(self) -> float | None:
        """The learning rate over the largest one that the curvature allows to the optimizer."""
        found = self.preconditioned or self.spectrum
        if self.threshold is None or self.learning_rate is None:
            return None
        return self.learning_rate * float(found.values[-1]) / self.threshold


def measure_point(
    loss: RunLoss, sizes: CurvatureSizes, *, name: str, step: int, tensors: Mapping[str, Tensor], rng: torch.Generator
) -> CurvaturePoint:
    """Measure curvature and noise at the current weights; `tensors` are the optimizer's of a checkpoint, or none."""
    config, size = loss.run.settings.train, sum(parameter.numel() for parameter in loss.parameters)
    budget = max(5, min(sizes.max_products, _MOST_BYTES // (8 * size)))
    product = difference_product(lambda: loss.gradient(sizes.num_batches), loss.parameters)
    start = torch.randn(size, generator=rng, dtype=torch.float64)
    spectrum = lanczos(product, start, max_products=budget)
    scales = preconditioner(config, loss, tensors)
    preconditioned = None
    if scales is not None:
        root = scales.rsqrt()
        preconditioned = lanczos(lambda vector: root * product(root * vector), start, max_products=budget)
    has_scales = config.optimizer not in _SECOND_MOMENTS or preconditioned is not None
    return CurvaturePoint(
        name, step, loss.value(), float(loss.gradient(len(loss.batches)).norm()), spectrum,
        learning_rate_at(loss.run, step), preconditioned,
        stability_threshold(config.optimizer, config.beta1) if has_scales else None, loss.noise(),
    )  # fmt: skip


def preconditioner(
    config: TrainConfig, loss: RunLoss, tensors: Mapping[str, Tensor]
) -> Float[Tensor, " weights"] | None:
    """What the optimizer divides the gradient by, from its state in a checkpoint; None where it has none."""
    kind = _SECOND_MOMENTS.get(config.optimizer)
    names = [name for name, parameter in loss.model.named_parameters() if parameter.requires_grad]
    if kind is None or any(f"{name}/{kind}" not in tensors for name in names):
        return None
    moments = torch.cat([tensors[f"{name}/{kind}"].double().flatten() for name in names])
    if config.optimizer in ("adam", "adamw"):
        moments = moments / (1 - config.beta2 ** float(tensors[f"{names[0]}/step"]))
    return moments.sqrt() + config.epsilon


def learning_rate_at(run: Run, step: int) -> float | None:
    """The learning rate that the run's figures have for the step nearest to this one."""
    lines = [line for line in run.folder.read_metrics() if line.get("learning_rate") is not None]
    return min(lines, key=lambda line: abs(line["step"] - step))["learning_rate"] if lines else None


def study_curvature(
    *, quick: bool = False, seed: int = 0, data: str | None = None, sizes: CurvatureSizes | None = None
) -> Study:
    """Measure the curvature of a run's checkpoints and of its kept weights; without a run, one is trained."""
    sizes = sizes or (CurvatureSizes() if quick else _FULL)
    if data is not None:
        return _study(Run(data, device="cpu"), sizes, seed)
    with TemporaryDirectory() as folder:
        log_info(f"no run is given: {sizes.steps} steps of gradient descent on majorities of symbols are measured")
        (Path(folder) / "votes.tsv").write_text(_votes(sizes.num_rows, seed), encoding="utf-8")
        every = max(1, sizes.steps // sizes.max_points)
        settings = {
            "task": {"ngrams": 0, "tokenizer": "words"},
            "model": {"dropout": 0.0, "model_dim": sizes.model_dim, "feedforward_dim": 2 * sizes.model_dim,
                      "num_heads": 2},
            "train": {"optimizer": "sgd", "schedule": "constant", "warmup_steps": 0, "ema_decay": 0.0,
                      "label_smoothing": 0.0, "checkpoint_every": every, "keep_checkpoints": sizes.max_points + 1},
        }  # fmt: skip
        with quiet_logs():
            run = train(
                Path(folder) / "votes.tsv", out=Path(folder) / "run", model="transformer-tiny", steps=sizes.steps,
                seed=seed, device="cpu", baseline=False, settings=settings, show_progress=False,
            )  # fmt: skip
        return _study(run, sizes, seed)


def _votes(num_rows: int, seed: int) -> str:
    """A table of nine symbols each, of which half vote for one label and half for the other."""
    symbols = torch.randint(12, (num_rows, 9), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = [f"{' '.join(f's{each}' for each in row)}\t{'ab'[sum(each < 6 for each in row) > 4]}" for row in symbols]
    return "\n".join(["text\tlabel", *rows]) + "\n"


def _study(run: Run, sizes: CurvatureSizes, seed: int) -> Study:
    rng = torch.Generator().manual_seed(seed)
    loss = RunLoss(run, num_batches=max(sizes.num_batches, sizes.noise_batches))
    kept = read_tensors(run.folder.model_path)
    points = []
    paths = _spread(checkpoint_paths(run.folder.checkpoints), sizes.max_points)
    for path in progress_bar(paths, "checkpoints", total=len(paths)):
        tensors, note = read_state(path)
        parts = {
            part: {name.removeprefix(f"{part}:"): each for name, each in tensors.items() if name.startswith(f"{part}:")}
            for part in ("model", "optimizer")
        }
        loss.load(parts["model"])
        step = int(note["step"])
        points.append(measure_point(loss, sizes, name="checkpoint", step=step, tensors=parts["optimizer"], rng=rng))
        log_info(f"step {step:,}: largest eigenvalue {points[-1].largest:.4g}")
    if len(paths) < 2:
        log_warning(
            f"{run.path} has {len(paths) or 'no'} checkpoint{'s' * (len(paths) != 1)}: curvature through training "
            "needs train.checkpoint_every and train.keep_checkpoints in training; the kept weights are measured"
        )
    loss.load(kept[0])
    step = int(kept[1].get("step", 0))
    points.append(measure_point(loss, sizes, name="kept weights", step=step, tensors={}, rng=rng))
    figure, axes = make_panels(2, 2, height=3.3)
    _draw(axes, points, run, loss)
    batch = _targets_per_step(run, loss)
    section = _findings(points, run, batch), _tables(points, loss, sizes, batch)
    return CURVATURE.result(
        sizes, [section], figure, run=run.path.name, optimizer=run.settings.train.optimizer, rows=loss.source,
        parameters=sum(parameter.numel() for parameter in loss.parameters),
    )  # fmt: skip


def _spread(paths: Sequence[Path], most: int) -> list[Path]:
    """At most so many of the paths, at equal distances, the last one included."""
    if len(paths) <= most:
        return list(paths)
    return [paths[round((len(paths) - 1) * number / (most - 1))] for number in range(most)]


def _targets_per_step(run: Run, loss: RunLoss) -> float:
    """The mean number of targets of an update."""
    return loss.num_targets / len(loss.batches) * run.settings.train.accumulate


def _findings(points: Sequence[CurvaturePoint], run: Run, batch: float) -> list[str]:
    last, checkpoints = points[-1], [point for point in points if point.name == "checkpoint"]
    config = run.settings.train
    compared = ""
    if last.learning_rate is not None and last.largest > 0:
        share = last.learning_rate * last.largest / 2
        compared = f"; the learning rate there was {last.learning_rate:.3g}, {share:.2g} times that"
    findings = [
        f"At the kept weights (step {last.step:,}) the largest eigenvalue of the Hessian is {last.largest:.4g}, the "
        f"smallest found {float(last.spectrum.values[0]):.3g}: a plain gradient step makes progress along it for "
        f"learning rates below 2 / λ = {2 / last.largest:.3g}{compared}."
    ]
    shares = [(point.step, point.share) for point in checkpoints if point.share is not None]
    if shares:
        step, most = max(shares, key=lambda each: each[1] or 0.0)
        kind = "preconditioned " if config.optimizer in _SECOND_MOMENTS else ""
        findings.append(
            f"Over {len(shares)} checkpoint{'s' * (len(shares) != 1)} the learning rate is at most {most:.2g} of "
            f"what the {kind}curvature allows to {config.optimizer} (at step {step:,}), and at the last one "
            f"{shares[-1][1]:.2g}; above 1, a quadratic would diverge."
        )
    if len(checkpoints) > 1:
        first, final = checkpoints[0], checkpoints[-1]
        findings.append(
            f"From step {first.step:,} to {final.step:,} the largest eigenvalue "
            f"{'rises' if final.largest > first.largest else 'falls'} from {first.largest:.4g} to {final.largest:.4g}, "
            f"and the loss changes from {first.loss:.3f} to {final.loss:.3f}."
        )
    scale, low, high = last.noise.scale
    relation = "inside" if low <= batch <= high else "below" if batch < low else "above"
    findings.append(
        f"The gradient noise scale at the kept weights is {format_cell(scale)} targets (95 % interval "
        f"{format_cell(low)} to {format_cell(high)}); an update of this run has {batch:,.0f} targets, which is "
        f"{relation} that interval."
    )
    return findings


def _tables(points: Sequence[CurvaturePoint], loss: RunLoss, sizes: CurvatureSizes, batch: float) -> list[StudyTable]:
    curvature: list[list[StudyCell]] = [
        [point.name, point.step, point.loss, point.largest, float(point.spectrum.residuals[-1]),
         float(point.spectrum.values[0]), 2 / point.largest if point.largest > 0 else None, point.learning_rate,
         None if point.preconditioned is None else float(point.preconditioned.values[-1]), point.share]
        for point in points
    ]  # fmt: skip
    noise: list[list[StudyCell]] = [
        [point.name, point.step, point.gradient_norm, point.noise.squared_gradient, point.noise.trace,
         *point.noise.scale, batch] for point in points
    ]  # fmt: skip
    number = min(sizes.num_batches, len(loss.batches))
    return [
        StudyTable(
            "curvature through training",
            ["weights", "step", "loss", "largest eigenvalue λ", "its residual", "smallest found", "2 / λ",
             "learning rate", "largest, preconditioned", "rate / largest stable rate"],
            curvature,
            f"Loss on {len(loss.batches)} batches of {loss.source} rows, Hessian on {number} of them, without dropout. "
            "Preconditioned by the optimizer's state in the checkpoint, where it has one.",
        ),
        StudyTable(
            "gradient noise scale",
            ["weights", "step", "gradient norm", "squared expected gradient", "trace of the covariance", "noise scale",
             "low", "high", "targets of an update"],
            noise,
            f"From the gradients of {len(loss.batches)} batches, in targets; low and high: the 95 % interval of the "
            "jackknife over batches.",
        ),
    ]  # fmt: skip


def _draw(panels: Sequence[Axes], points: Sequence[CurvaturePoint], run: Run, loss: RunLoss) -> None:
    config = run.settings.train
    checkpoints = [point for point in points if point.name == "checkpoint"]
    last = points[-1]
    curvature, share, losses, noise = panels
    steps = [point.step for point in checkpoints]
    curvature.plot(steps, [point.largest for point in checkpoints], "o-", color=COLORS[0], label="largest eigenvalue")
    curvature.plot([last.step], [last.largest], "D", color=COLORS[1], label="kept weights")
    rates = [(point.step, 2 / point.learning_rate) for point in points if point.learning_rate]
    if rates:
        curvature.plot(*zip(*sorted(rates), strict=True), "--", color=MUTED, label="2 / learning rate")
    label_axes(curvature, "Curvature", "step", "eigenvalue of the Hessian", log="y", legend="best")
    shares = [(point.step, point.share) for point in checkpoints if point.share is not None]
    if shares:
        share.plot(*zip(*shares, strict=True), "o-", color=COLORS[0])
    else:
        share.text(0.5, 0.5, "no checkpoints, or no known threshold", transform=share.transAxes, ha="center",
                   fontsize=8.5, color=MUTED)  # fmt: skip
    share.axhline(1, color=MUTED, linewidth=1, linestyle="--")
    label_axes(share, f"Learning rate over the largest stable one ({config.optimizer})", "step", "ratio", log="y")
    losses.plot(steps, [point.loss for point in checkpoints], "o-", color=COLORS[0])
    losses.plot([last.step], [last.loss], "D", color=COLORS[1])
    label_axes(losses, f"Loss on {loss.source} rows", "step", "mean loss of a target")
    for some, color, style in ((checkpoints, COLORS[0], "o-"), ([last], COLORS[1], "D")):
        finite = [point for point in some if math.isfinite(point.noise.scale[0])]
        noise.plot([point.step for point in finite], [point.noise.scale[0] for point in finite], style, color=color)
        for point in finite:
            high = min(point.noise.scale[2], 1e3 * point.noise.scale[0])
            noise.plot([point.step] * 2, [point.noise.scale[1], high], color=color, linewidth=0.9)
    noise.axhline(_targets_per_step(run, loss), color=MUTED, linewidth=1, linestyle="--", label="targets of an update")
    label_axes(noise, "Gradient noise scale", "step", "targets", log="y", legend="best")
