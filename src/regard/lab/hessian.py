r"""The curvature of a loss: Hessian-vector products, and extreme eigenvalues by power iteration or by Lanczos.

Pearlmutter, "Fast Exact Multiplication by the Hessian" (1994).
Golub and Van Loan, *Matrix Computations* (2013), chapter 10, for Lanczos.

The Hessian of $n$ weights has $n^2$ entries, too many to store. A product with a
vector $v$ is the gradient of $g(w) \cdot v$, at about the cost of two gradients;
power iteration needs nothing but products:

$$ v \leftarrow \frac{H v}{\lVert H v \rVert}, \qquad \lambda = v^\top H v $$

converges to the eigenvalue of the largest magnitude, by a factor per step of the
second largest over it. For a symmetric matrix some eigenvalue lies within
$\lVert H v - \lambda v \rVert$ of $\lambda$, which bounds the error. Lanczos finds both ends of the spectrum in
far fewer products, and stores a vector for each.

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


def difference_product(
    gradient: Callable[[], Float[Tensor, " weights"]], parameters: Sequence[Tensor], *, distance: float = 1e-6
) -> HessianProduct:
    r"""Returns $v \mapsto (g(w + h v) - g(w)) / h$ for losses that can be differentiated only once.

    $h$ is `distance` over the norm of $v$. In float64 the error is about $h + 10^{-16} / h$, relative to the
    derivatives of the gradient, at the cost of one gradient. The weights are restored.
    """
    start, origin = flat_weights(parameters), gradient()

    def product(vector: Float[Tensor, " weights"]) -> Float[Tensor, " weights"]:
        step = distance / max(float(vector.norm()), 1e-300)
        set_flat_weights(parameters, start + step * vector)
        moved = gradient()
        set_flat_weights(parameters, start)
        return (moved - origin) / step

    return product


@dataclass(frozen=True)
class LanczosSpectrum:
    """Ritz values, which approximate eigenvalues; those at both ends converge first."""

    values: Float[Tensor, " steps"]
    """Ascending."""
    residuals: Float[Tensor, " steps"]
    """Some eigenvalue is within this distance of each value."""


def lanczos(
    product: HessianProduct, start: Float[Tensor, " weights"], *, max_products: int, tolerance: float = 1e-2
) -> LanczosSpectrum:
    """Extreme eigenvalues of a symmetric matrix, given by its products with vectors.

    Stops when the largest value's residual is below `tolerance` times its magnitude, or after `max_products`. All
    vectors are orthogonalized against each other: rounding errors would otherwise repeat eigenvalues.
    """
    basis: list[Tensor] = []
    diagonal: list[float] = []
    beside: list[float] = []
    vector = start / start.norm()
    while True:
        basis.append(vector)
        image = product(vector)
        diagonal.append(float(vector @ image))
        for _ in range(2):  # once is not enough where the vectors are nearly dependent
            for each in basis:
                image = image - (each @ image) * each
        norm = float(image.norm())
        tridiagonal = torch.tensor(diagonal, dtype=torch.float64).diag()
        for place, value in enumerate(beside):
            tridiagonal[place, place + 1] = tridiagonal[place + 1, place] = value
        values, vectors = torch.linalg.eigh(tridiagonal)
        residuals = norm * vectors[-1].abs()
        is_exact = norm <= 1e-12 * max(1.0, float(values.abs().max()))
        has_converged = len(basis) > 2 and float(residuals[-1]) <= tolerance * abs(float(values[-1]))
        if is_exact or has_converged or len(basis) == min(max_products, len(start)):
            return LanczosSpectrum(values, residuals)
        beside.append(norm)
        vector = image / norm


def flat_weights(parameters: Sequence[Tensor]) -> Float[Tensor, " weights"]:
    """Returns a copy of all parameters as one vector."""
    return parameters_to_vector(parameters).detach().clone()


@torch.no_grad()
def set_flat_weights(parameters: Sequence[Tensor], weights: Float[Tensor, " weights"]) -> None:
    """Set all parameters from one vector."""
    vector_to_parameters(weights, parameters)
