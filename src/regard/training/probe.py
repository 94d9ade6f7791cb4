r"""Linear probing: the linear head of a frozen model, solved exactly on vectors that are computed once.

Kumar et al., "Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution" (2022), section 3: a
random head distorts the features of its base while it is learned, so the head is solved first and training starts from
there (LP-FT). https://arxiv.org/abs/2202.10054

    classes   $\sum_i w_i \, \mathrm{CE}(W x_i + b, y_i) + \frac{\lambda}{2} \|W\|^2$, by L-BFGS
    labels    the same with a sigmoid for each output
    numbers   $\frac12 \sum_i w_i (W x_i + b - y_i)^2 + \frac{\lambda}{2} \|W\|^2$, in closed form

The vectors are standardized, and the scaling is folded into the weights. $\lambda$ is chosen on the validation rows,
or by cross-validation on the training rows where validation rows are few.

Dimensions: `rows` vectors, `model` their width, `outputs` logits or numbers.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.prepare import Prepared
from regard.logging import format_duration, log_info
from regard.nn.losses import IGNORED
from regard.tasks.capabilities import LabeledVectors, LinearProber, capability
from regard.tasks.task import Batches, Task, to_device
from regard.training.precision import Hardware

PROBE_SHARE = 0.4
"""The largest share of a time limit that vectors are computed in, where training follows."""
_FEWEST_VALIDATION_ROWS = 100
"""With fewer, the strength of the penalty is chosen by cross-validation on the training rows."""
_STRENGTHS = tuple(10.0 ** (power / 2) for power in range(3, -8, -1))
"""Strengths of the penalty times the width of the vectors, strongest first: at 1, logits have a prior variance of 1."""
_FALLBACK = 1.0
"""The strength where there are too few rows to choose it by."""
_NUM_FOLDS = 5
_MORE_ROWS = 20
"""The weight of the median variance, in rows."""
_PATIENCE = 2
"""Weaker penalties are not tried after this many that did not lower the loss."""
_MOST_NUMBERS = 2**26
"""Vectors are kept in memory up to this many numbers, half a gigabyte; further rows do not change the head much."""
_ROUGH, _EXACT = 1e-4, 1e-7
"""The largest element of the gradient of the mean loss, while strengths are compared and in the end."""
_MAX_ITERATIONS = 1_000


@dataclass(frozen=True)
class LinearHead:
    """The solution."""

    weight: Float[Tensor, "outputs model"]
    bias: Float[Tensor, " outputs"]
    strength: float
    """The penalty on the weights of standardized vectors."""
    chosen_by: str
    """What the strength was chosen by."""


@dataclass(frozen=True)
class _Problem:
    """Standardized vectors and a target for each output."""

    x: Float[Tensor, "rows model"]
    y: Float[Tensor, "rows outputs"]
    weights: Float[Tensor, " rows"]
    kind: str
    """classes, labels or numbers."""

    def part(self, chosen: Tensor) -> "_Problem":
        return _Problem(self.x[chosen], self.y[chosen], self.weights[chosen], self.kind)


def probe_head(
    model: Any,
    task: Task[Any],
    data: Prepared,
    batches: Batches,
    hardware: Hardware,
    *,
    uses_validation_rows: bool = True,
    deadline: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Solve the linear head of a model on its training rows; False if stopped.

    A head that was copied from the base is kept if its loss on the validation rows is lower.

    Args:
        model: Its weights below the head are not changed.
        task: One with a linear head.
        data: The rows.
        batches: The training rows in random order.
        hardware: Where vectors are computed.
        uses_validation_rows: Whether validation rows may choose the strength of the penalty.
        deadline: When to stop computing vectors, in seconds of `time.perf_counter`.
        should_stop: Called after each batch.
    """
    before = time.perf_counter()
    epoch = (batches.batch(number) for number in range(batches.per_epoch))
    train = collect_vectors(model, task, epoch, hardware, deadline=deadline, should_stop=should_stop)
    if train is None:
        return False
    valid = None
    if uses_validation_rows:
        valid = collect_vectors(model, task, task.validation_batches(data), hardware, should_stop=should_stop)
        if valid is None:
            return False
    output: nn.Linear = model.head.output
    can_choose = valid is not None and len(valid.vectors) >= _FEWEST_VALIDATION_ROWS
    found = solve_head(train, valid if can_choose else None, output.out_features)
    log_info(
        f"linear probe: head solved on {len(train.vectors):,} vectors in "
        f"{format_duration(time.perf_counter() - before)}, with a penalty chosen by {found.chosen_by}"
    )
    if valid is not None and head_loss(valid, output.weight, output.bias) < head_loss(valid, found.weight, found.bias):
        log_info("the head of the base has a lower validation loss, and is kept")
        return True
    with torch.no_grad():
        output.weight.copy_(found.weight)
        output.bias.copy_(found.bias)
    return True


def collect_vectors(
    model: nn.Module,
    task: Task[Any],
    batches: Iterable[Any],
    hardware: Hardware,
    *,
    deadline: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> LabeledVectors | None:
    """The inputs of the head for these batches, up to a time or to the memory they may take; None if stopped."""
    found: list[LabeledVectors] = []
    num_numbers = 0
    model.eval()
    for batch in batches:
        with torch.inference_mode(), hardware.autocast():
            some = capability(task, LinearProber).head_inputs(model, to_device(batch, hardware.device))
        is_kept = some.weights > 0
        if some.targets.dim() == 1 and not some.targets.is_floating_point():
            is_kept &= some.targets != IGNORED
        vectors = some.vectors[is_kept]
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        found.append(LabeledVectors(vectors, some.targets[is_kept], some.weights[is_kept]))
        num_numbers += found[-1].vectors.numel()
        if should_stop():
            return None
        if num_numbers > _MOST_NUMBERS or (deadline is not None and time.perf_counter() > deadline):
            break
    parts = ([getattr(each, name) for each in found] for name in ("vectors", "targets", "weights"))
    return LabeledVectors(*(torch.cat(part) for part in parts))


def solve_head(
    train: LabeledVectors, valid: LabeledVectors | None, num_outputs: int, *, strength: float | None = None
) -> LinearHead:
    """The linear head with the least regularized loss on `train`.

    Args:
        train: The vectors to fit.
        valid: The vectors to choose the strength of the penalty by; None for cross-validation on `train`.
        num_outputs: The number of classes, labels or numbers.
        strength: The strength, where it is not to be chosen.
    """
    mean, scale = _standardization(train.vectors.double())
    problem = _problem(train, mean, scale, num_outputs)
    chosen_by = "set"
    if strength is None:
        strengths = [each * problem.x.size(1) for each in _STRENGTHS]
        if valid is not None:
            held_out = _problem(valid, mean, scale, num_outputs)
            strength = _choose(strengths, [(problem, held_out)])
            chosen_by = f"{len(held_out.x):,} validation vectors"
        elif folds := _folds(problem):
            strength = _choose(strengths, [(problem.part(~fold), problem.part(fold)) for fold in folds])
            chosen_by = f"{len(folds)}-fold cross-validation"
        else:
            strength, chosen_by = _FALLBACK * problem.x.size(1), "the width of the vectors: there are too few rows"
    solution = torch.from_numpy(_solve(problem, strength, tolerance=_EXACT)).to(problem.x)
    weight = solution[:, :-1] / scale
    return LinearHead(weight, solution[:, -1] - weight @ mean, strength, chosen_by)


def head_loss(vectors: LabeledVectors, weight: Tensor, bias: Tensor) -> float:
    """The mean loss of a head on vectors."""
    one = torch.ones((), dtype=torch.float64, device=vectors.vectors.device)
    problem = _problem(vectors, 0 * one, one, len(bias))
    return _mean_loss(problem, torch.cat([weight, bias[:, None]], dim=1).detach().double().cpu().numpy())


def _standardization(x: Float[Tensor, "rows model"]) -> tuple[Float[Tensor, " model"], Float[Tensor, " model"]]:
    """The mean of each feature, and its standard deviation or the median of all, whichever is larger.

    A feature that hardly varies would get a large weight, which a small change of the base then turns into large
    logits. The variance, which a few rows give only roughly, is averaged with the median as if that were of more rows.
    """
    variance = x.var(dim=0, correction=0)
    median = variance.median()
    mixed = (len(x) * variance + _MORE_ROWS * median) / (len(x) + _MORE_ROWS)
    largest = mixed.clamp(min=median)
    return x.mean(dim=0), torch.where(largest > 0, largest, 1.0).sqrt()


def _problem(vectors: LabeledVectors, mean: Tensor, scale: Tensor, num_outputs: int) -> _Problem:
    targets = vectors.targets
    x = (vectors.vectors.double() - mean) / scale
    if targets.dim() == 2:
        kind, y = "labels", targets.double()
    elif targets.is_floating_point():
        kind, y = "numbers", targets[:, None].double()
    else:
        kind, y = "classes", F.one_hot(targets, num_outputs).double()
    return _Problem(x, y, vectors.weights.double(), kind)


def _choose(strengths: Sequence[float], pairs: Sequence[tuple[_Problem, _Problem]]) -> float:
    """The strength with the least loss, summed over pairs of a problem to solve and one to evaluate on."""
    best, best_loss, num_worse = strengths[0], float("inf"), 0
    starts: list[NDArray[np.float64] | None] = [None] * len(pairs)
    for strength in strengths:
        loss = 0.0
        for number, (fitted, held_out) in enumerate(pairs):
            starts[number] = solution = _solve(fitted, strength, starts[number], tolerance=_ROUGH)
            loss += _mean_loss(held_out, solution) * len(held_out.x)
        if loss < best_loss:
            best, best_loss, num_worse = strength, loss, 0
        else:
            num_worse += 1
        if num_worse == _PATIENCE:
            break
    return best


def _folds(problem: _Problem) -> list[Tensor]:
    """For each fold of a cross-validation the mask of its rows, with as many of each class; none for too few rows."""
    num_rows, device = len(problem.x), problem.x.device
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0)).to(device)
    fewest = num_rows
    if problem.kind == "classes":
        classes = problem.y.argmax(dim=1)
        order = order[classes[order].argsort(stable=True)]
        fewest = int(classes.bincount()[classes.unique()].min())
    count = min(_NUM_FOLDS, fewest)
    if count < 2:
        return []
    fold_of = torch.empty(num_rows, dtype=torch.long, device=device)
    fold_of[order] = torch.arange(num_rows, device=device) % count
    return [fold_of == fold for fold in range(count)]


def _solve(
    problem: _Problem, strength: float, start: NDArray[np.float64] | None = None, *, tolerance: float
) -> NDArray[np.float64]:
    """The weights, and in the last column the biases."""
    if problem.kind == "numbers":
        return _ridge(problem, strength)
    from scipy.optimize import minimize  # imported here, since scipy loads slowly

    shape = problem.y.size(1), problem.x.size(1) + 1
    total = float(problem.weights.sum())

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        solution = torch.from_numpy(flat.reshape(shape)).to(problem.x)
        weight = solution[:, :-1]
        losses, residuals = _losses(problem, solution)
        residuals = residuals * problem.weights[:, None]
        gradient = torch.cat([residuals.T @ problem.x + strength * weight, residuals.sum(dim=0)[:, None]], dim=1)
        value = (losses * problem.weights).sum() + strength / 2 * weight.square().sum()
        return float(value) / total, (gradient / total).cpu().numpy().ravel()

    options = {"maxiter": _MAX_ITERATIONS, "gtol": tolerance, "ftol": 1e-14}
    first = np.zeros(shape) if start is None else start
    return minimize(objective, first.ravel(), jac=True, method="L-BFGS-B", options=options).x.reshape(shape)


def _losses(
    problem: _Problem, solution: Float[Tensor, "outputs wider"]
) -> tuple[Float[Tensor, " rows"], Float[Tensor, "rows outputs"]]:
    """The loss of each row, and its gradient with respect to the outputs."""
    outputs = problem.x @ solution[:, :-1].T + solution[:, -1]
    if problem.kind == "classes":
        log_probs = outputs.log_softmax(dim=1)
        return -(problem.y * log_probs).sum(dim=1), log_probs.exp() - problem.y
    if problem.kind == "labels":
        losses = F.binary_cross_entropy_with_logits(outputs, problem.y, reduction="none").sum(dim=1)
        return losses, outputs.sigmoid() - problem.y
    return (outputs - problem.y).square().sum(dim=1) / 2, outputs - problem.y


def _mean_loss(problem: _Problem, solution: NDArray[np.float64]) -> float:
    return float(_losses(problem, torch.from_numpy(solution).to(problem.x))[0].mean())


def _ridge(problem: _Problem, strength: float) -> NDArray[np.float64]:
    weights = problem.weights[:, None] / problem.weights.sum()
    mean_x, mean_y = (weights * problem.x).sum(dim=0), (weights * problem.y).sum(dim=0)
    x, y = problem.x - mean_x, problem.y - mean_y
    weighted = x * problem.weights[:, None]
    penalty = strength * torch.eye(x.size(1), dtype=x.dtype, device=x.device)
    weight = torch.linalg.solve(weighted.T @ x + penalty, weighted.T @ y).T
    return torch.cat([weight, (mean_y - weight @ mean_x)[:, None]], dim=1).cpu().numpy()
