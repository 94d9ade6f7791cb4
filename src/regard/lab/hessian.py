r"""The curvature of a loss: Hessian-vector products, and the largest eigenvalue by power iteration.

Pearlmutter, "Fast Exact Multiplication by the Hessian" (1994).

The Hessian of $n$ weights has $n^2$ entries, too many to store. A product with a
vector $v$ is the gradient of $g(w) \cdot v$, at about the cost of two gradients;
power iteration needs nothing but products:

$$ v \leftarrow \frac{H v}{\lVert H v \rVert}, \qquad \lambda = v^\top H v $$

converges to the eigenvalue of the largest magnitude, by a factor per step of the
second largest over it. For a symmetric matrix some eigenvalue lies within
$\lVert H v - \lambda v \rVert$ of $\lambda$, which bounds the error.

Dimensions: `weights`, all of a model's parameters in one vector.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

HessianProduct = Callable[[Float[Tensor, " weights"]], Float[Tensor, " weights"]]


@dataclass(frozen=True)
class Curvature:
    """An eigenvalue of the Hessian, with its eigenvector and error bound."""

    value: float
    direction: Float[Tensor, " weights"]
    """The eigenvector, normalized."""
    residual: float
    """Norm of H v - value v; some eigenvalue is within this distance of `value`."""


def flat_gradient(
    loss: Tensor, parameters: Sequence[Tensor], *, create_graph: bool = False
) -> Float[Tensor, " weights"]:
    """Returns the gradient as one vector; with `create_graph` it can be differentiated again."""
    gradients = torch.autograd.grad(loss, parameters, create_graph=create_graph, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


def hessian_product(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> HessianProduct:
    r"""Returns the function $v \mapsto H v$ at the current weights.

    Fused attention cannot be differentiated twice, so attention is computed by
    its plain implementation.
    """
    with sdpa_kernel(SDPBackend.MATH):
        gradient = flat_gradient(loss(), parameters, create_graph=True)

    def product(vector: Float[Tensor, " weights"]) -> Float[Tensor, " weights"]:
        rows = torch.autograd.grad(gradient, parameters, vector, retain_graph=True, materialize_grads=True)
        return torch.cat([row.flatten() for row in rows])

    return product


def top_curvature(
    loss: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    *,
    rng: torch.Generator,
    tolerance: float = 1e-2,
    max_products: int = 500,
) -> Curvature:
    """The largest (most positive) eigenvalue of the Hessian of `loss`.

    Stops when the residual is below `tolerance` times the value, or after
    `max_products`; the error of the value is about the square of its residual.
    The smallest eigenvalue is the negative of that of the negated loss.
    """
    product = hessian_product(loss, parameters)
    start = torch.randn(sum(p.numel() for p in parameters), generator=rng).to(parameters[0])
    found = _power_iteration(product, start, 0.0, tolerance=tolerance, max_products=max_products)
    if found.value >= 0:
        return found
    # The eigenvalue of largest magnitude is negative: shifted by it, the largest one is largest in magnitude too.
    return _power_iteration(product, start, found.value, tolerance=tolerance, max_products=max_products)


def _power_iteration(
    product: HessianProduct, start: Tensor, shift: float, *, tolerance: float, max_products: int
) -> Curvature:
    """Power iteration on H - shift I; value and residual are those of H."""
    direction, value, residual = start / start.norm(), 0.0, 0.0
    for _ in range(max_products):
        image = product(direction)
        value = float(direction @ image)
        residual = float((image - value * direction).norm())
        shifted = image - shift * direction
        norm = float(shifted.norm())
        if residual <= tolerance * abs(value - shift) or norm == 0.0:
            break
        direction = shifted / norm
    return Curvature(value, direction, residual)


def flat_weights(parameters: Sequence[Tensor]) -> Float[Tensor, " weights"]:
    """Returns a copy of all parameters as one vector."""
    return parameters_to_vector(parameters).detach().clone()


@torch.no_grad()
def set_flat_weights(parameters: Sequence[Tensor], weights: Float[Tensor, " weights"]) -> None:
    """Set all parameters from one vector."""
    vector_to_parameters(weights, parameters)
