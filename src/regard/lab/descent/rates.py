r"""The largest learning rate at which gradient descent makes progress: on quadratics and on the losses of networks.

Polyak, "Some methods of speeding up the convergence of iteration methods" (1964), for momentum.
Cohen et al., "Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability" (2021).
https://arxiv.org/abs/2103.00065

On $f(x) = \tfrac12 \sum_i \lambda_i x_i^2$ each step multiplies coordinate $i$ by
$1 - \eta \lambda_i$, so it shrinks iff $\eta < 2 / \lambda_i$. The best rate for the largest and
the smallest curvature is $2 / (\lambda_{\max} + \lambda_{\min})$; the slowest coordinate then
shrinks by

$$ \rho = \frac{\kappa - 1}{\kappa + 1}, \qquad \kappa = \lambda_{\max} / \lambda_{\min} ; $$

momentum improves this to about $(\sqrt\kappa - 1) / (\sqrt\kappa + 1)$.

On any loss one step along the gradient $g$ changes it, to second order, by

$$ f(w - \eta g) - f(w) \approx -\eta \lVert g \rVert^2 \Big( 1 - \frac{\eta\, \kappa_g}{2} \Big),
   \qquad \kappa_g = \frac{g^\top H g}{\lVert g \rVert^2} \le \lambda_{\max} , $$

so it falls iff $\eta < 2 / \kappa_g$. Over many steps the component along the direction of
the largest curvature is multiplied by $1 - \eta \lambda_{\max}$, and grows iff $\eta > 2 / \lambda_{\max}$.
This holds while the loss is close to its quadratic approximation; otherwise a step
that is too large may lead to a region of smaller curvature.

Dimensions: `coordinate`, `multiple` of 2 / curvature, `step`, `rows` examples.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.lab.exercises import draw_delayed_copy
from regard.lab.hessian import Curvature, flat_gradient, flat_weights, set_flat_weights, top_curvature
from regard.logging import progress_bar
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.losses import IGNORED

_SLOW = 0.3
"""The learning rate of slow descent, as a fraction of 1 / largest curvature."""


def best_heavy_ball(largest: float, smallest: float, *, has_momentum: bool) -> tuple[float, float]:
    """The best rate and momentum for a quadratic with these extreme curvatures (Polyak 1964, section 4)."""
    if not has_momentum:
        return 2 / (largest + smallest), 0.0
    a, b = math.sqrt(largest), math.sqrt(smallest)
    return (2 / (a + b)) ** 2, ((a - b) / (a + b)) ** 2


def descend_quadratic(
    eigenvalues: Float[Tensor, " coordinate"], rate: float, momentum: float, *, steps: int, fraction: float = 0.0
) -> Float[Tensor, " step"]:
    """The loss after each step relative to the initial one, until it is below `fraction`.

    Each coordinate contributes equally to the initial loss.
    """
    x, velocity = eigenvalues.rsqrt(), torch.zeros_like(eigenvalues)
    start, losses = float((eigenvalues * x**2).sum()), []
    for _ in range(steps):
        velocity = momentum * velocity - rate * eigenvalues * x
        x = x + velocity
        losses.append(float((eigenvalues * x**2).sum()) / start)
        if losses[-1] < fraction:
            break
    return torch.tensor(losses, dtype=torch.float64)


def steps_until(condition: float, fraction: float, *, has_momentum: bool, num_coordinates: int = 20) -> int:
    """Steps until the loss is below `fraction` of the initial one, for log-spaced curvatures."""
    eigenvalues = torch.logspace(0, math.log10(condition), num_coordinates, dtype=torch.float64)
    rate, momentum = best_heavy_ball(condition, 1.0, has_momentum=has_momentum)
    most = 20 + round(4 * predicted_steps(condition, fraction, has_momentum=has_momentum))
    return len(descend_quadratic(eigenvalues, rate, momentum, steps=most, fraction=fraction))


def predicted_steps(condition: float, fraction: float, *, has_momentum: bool) -> float:
    """The steps of the slowest coordinate; the loss is quadratic in it, hence the factor 2."""
    kappa = math.sqrt(condition) if has_momentum else condition
    return math.log(fraction) / (2 * math.log((kappa - 1) / (kappa + 1)))


@dataclass(frozen=True)
class DescentProblem:
    """A network and its full-batch loss."""

    name: str
    model: nn.Module
    losses_with: Callable[[nn.Module], Float[Tensor, " rows"]]
    """Returns the loss of each example."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def losses(self) -> Float[Tensor, " rows"]:
        return self.losses_with(self.model)

    def loss(self) -> Float[Tensor, ""]:
        """The mean over the examples."""
        return self.losses().mean()


def tanh_regression(
    *, num_rows: int, num_inputs: int, width: int, num_layers: int, rng: torch.Generator
) -> DescentProblem:
    """Half the squared error of a network with tanh layers, on the outputs of another such network."""
    teacher, model = (_tanh_layers(num_inputs, width, num_layers, gain, rng) for gain in (3.0, 1.0))
    inputs = torch.randn(num_rows, num_inputs, generator=rng, dtype=torch.float64)
    targets = teacher(inputs).detach()
    targets = (targets - targets.mean()) / targets.std()

    def squared_errors(model: nn.Module) -> Tensor:
        return 0.5 * (model(inputs) - targets).square().squeeze(-1)

    return DescentProblem("tanh network", model, squared_errors)


def transformer_copy(*, num_rows: int, length: int, width: int, rng: torch.Generator) -> DescentProblem:
    """The loss of a Transformer that predicts the previous token, on one fixed batch."""
    config = TransformerConfig(
        encoder_layers=0, decoder_layers=2, model_dim=width, num_heads=2, feedforward_dim=2 * width, block="pre-norm",
        activation="gelu", dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(int(torch.randint(2**31, (), generator=rng)))
    model = Transformer(config, 8).double()
    batch = draw_delayed_copy(num_rows, length, distance=1, vocab_size=8)

    def cross_entropies(model: nn.Module) -> Tensor:
        """Returns each sequence's cross-entropy: the mean over the positions that have a target."""
        logits = model(batch.inputs).transpose(1, 2)
        losses = F.cross_entropy(logits, batch.targets, ignore_index=IGNORED, reduction="none")
        return losses.sum(dim=1) / (batch.targets != IGNORED).sum(dim=1)

    return DescentProblem("Transformer", model, cross_entropies)


def _tanh_layers(num_inputs: int, width: int, num_layers: int, gain: float, rng: torch.Generator) -> nn.Sequential:
    """Hidden tanh layers and one output; pre-activations have a variance of about gain²."""
    modules: list[nn.Module] = []
    for before, after in pairwise([num_inputs, *[width] * num_layers, 1]):
        linear = nn.Linear(before, after).double()
        drawn = torch.randn(after, before, generator=rng, dtype=torch.float64)
        nn.init.zeros_(linear.bias)
        with torch.no_grad():
            linear.weight.copy_(gain * drawn / before**0.5)
        modules += [linear, nn.Tanh()]
    return nn.Sequential(*modules[:-1])


def descend(
    problem: DescentProblem, learning_rate: float, steps: int, description: str = "gradient descent"
) -> list[float]:
    """Full-batch gradient descent; returns the loss before each step and after the last, while it is finite."""
    losses = []
    for _ in progress_bar(range(steps), description, total=steps):
        loss = problem.loss()
        if not math.isfinite(loss.item()):
            break
        losses.append(loss.item())
        _step(problem, loss, learning_rate)
    with torch.no_grad():
        losses.append(float(problem.loss()))
    return losses


def _step(problem: DescentProblem, loss: Tensor, learning_rate: float) -> None:
    gradient = flat_gradient(loss, problem.parameters)
    set_flat_weights(problem.parameters, flat_weights(problem.parameters) - learning_rate * gradient)


def descend_slowly(problem: DescentProblem, *, steps: int, rng: torch.Generator) -> Curvature:
    """Descend at a rate far below the largest; returns the largest curvature at the end."""
    start = top_curvature(problem.loss, problem.parameters, rng=rng).value
    descend(problem, _SLOW / start, steps, problem.name)
    return top_curvature(problem.loss, problem.parameters, rng=rng)


def rise_crossing(multiples: Float[Tensor, " multiple"], changes: Float[Tensor, " multiple"]) -> float:
    """The multiple from which the change of the loss is positive, interpolated; NaN if it never is."""
    rising = (changes > 0).nonzero().flatten()
    if not len(rising) or rising[0] == 0:
        return math.nan
    (low, high), (a, b) = (each[rising[0] - 1 : rising[0] + 1].tolist() for each in (changes, multiples))
    return a - low * (b - a) / (high - low)


def quadratic_changes(multiples: Float[Tensor, " multiple"]) -> Float[Tensor, " multiple"]:
    """The changes of `take_single_step` for a quadratic: a parabola with zeros at 0 and 1."""
    return -2 * multiples * (1 - multiples)


def take_single_step(
    problem: DescentProblem, top: Curvature, multiples: Float[Tensor, " multiple"]
) -> Float[Tensor, " multiple"]:
    """Move the weights along the direction of the largest curvature, and take one step from there at each rate.

    They are moved so far that the gradient along that direction is ten times the
    previous gradient, so that the curvature along it decides. The weights are restored.
    Rates are multiples of 2 / largest curvature. Returns the change of the loss for
    each, times the curvature over the squared gradient norm.
    """
    parameters, start = problem.parameters, flat_weights(problem.parameters)
    distance = 10 * float(flat_gradient(problem.loss(), parameters).norm()) / top.value
    moved = start + distance * top.direction
    set_flat_weights(parameters, moved)
    gradient = flat_gradient(problem.loss(), parameters)
    before, changes = problem.loss().item(), []
    for multiple in multiples.tolist():
        set_flat_weights(parameters, moved - 2 * multiple / top.value * gradient)
        with torch.no_grad():
            changes.append(problem.loss().item() - before)
    set_flat_weights(parameters, start)
    scale = top.value / float(gradient @ gradient)
    return scale * torch.tensor(changes, dtype=multiples.dtype)


def switch_rates(
    problem: DescentProblem, top: Curvature, multiples: Sequence[float], *, steps: int
) -> dict[float, list[float]]:
    """Continue from the current weights, which are not changed, at each multiple of 2 / largest curvature.

    Returns the loss after each step relative to the initial loss, by multiple.
    """
    losses = {}
    for multiple in multiples:
        branch = copy.deepcopy(problem)
        found = descend(branch, multiple * 2 / top.value, steps, f"{problem.name}, {multiple:g} x 2/curvature")
        losses[multiple] = [loss / found[0] for loss in found]
    return losses


def track_curvature(
    problem: DescentProblem, learning_rate: float, *, steps: int, every: int, rng: torch.Generator
) -> tuple[list[float], list[float]]:
    """Descend; returns the largest curvature and the loss every `every` steps."""
    curvatures, losses = [], []
    description = f"curvature at learning rate {learning_rate:g}"
    for _ in progress_bar(range(0, steps + 1, every), description, total=steps // every + 1):
        curvatures.append(top_curvature(problem.loss, problem.parameters, rng=rng, max_products=100).value)
        losses.append(descend(problem, learning_rate, every)[0])
    return curvatures, losses


def escape_saddle(
    problem: DescentProblem, scales: Sequence[float], *, learning_rate: float, max_steps: int, rng: torch.Generator
) -> tuple[float, dict[float, int]]:
    """Start near a saddle point, from random weights of each scale; at weights of 0 the network has one.

    Returns the least curvature at the saddle point, which is negative, and by scale the
    number of steps until the loss is half of that at the saddle point.
    """
    weights = flat_weights(problem.parameters)
    set_flat_weights(problem.parameters, torch.zeros_like(weights))
    least = -top_curvature(lambda: -problem.loss(), problem.parameters, rng=rng).value
    at_saddle = problem.loss().item()
    steps = dict.fromkeys(scales, 0)
    for scale in scales:
        set_flat_weights(problem.parameters, scale * weights)
        while steps[scale] < max_steps and (loss := problem.loss()).item() >= at_saddle / 2:
            _step(problem, loss, learning_rate)
            steps[scale] += 1
    set_flat_weights(problem.parameters, weights)
    return least, steps


def predicted_delay(scale: float, other: float, *, learning_rate: float, least_curvature: float) -> float:
    """How many more steps `escape_saddle` takes from `scale` than from `other`: each scales the distance equally."""
    return math.log(other / scale) / math.log(1 - learning_rate * least_curvature)
