r"""The curvature of a loss: products with its Hessian, and the largest eigenvalue by power iteration.

Pearlmutter, "Fast Exact Multiplication by the Hessian" (1994).

The Hessian of $n$ weights has $n^2$ entries, which nobody can hold. A product
with it is the gradient of $g(w) \cdot v$, for about the price of two gradients;
and products are all that power iteration needs:

$$ v \leftarrow \frac{H v}{\lVert H v \rVert}, \qquad \lambda = v^\top H v $$

goes to the eigenvalue of the largest size, each step closer by the ratio of
the second to it. For a symmetric matrix some eigenvalue lies within
$\lVert H v - \lambda v \rVert$ of $\lambda$, so the answer says how good it is.

Dimensions: `weights`, all of a model's parameters in one row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Product = Callable[[Float[Tensor, " weights"]], Float[Tensor, " weights"]]


@dataclass(frozen=True)
class Curvature:
    """An eigenvalue of the Hessian, and what is known of it."""

    value: float
    direction: Float[Tensor, " weights"]
    """The eigenvector, of length 1."""
    residual: float
    """How far the product with the direction is from `value` times it; some eigenvalue is no further from `value`."""
    num_products: int


def flat_gradient(loss: Tensor, parameters: Sequence[Tensor], *, keep: bool = False) -> Float[Tensor, " weights"]:
    """The gradient in one row; `keep` it as a function of the weights, to be differentiated again."""
    gradients = torch.autograd.grad(loss, parameters, create_graph=keep, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


def hessian_product(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> Product:
    """The function $v \\mapsto H v$ at the weights as they are now.

    The loss must be twice differentiable by PyTorch; fused attention is not, so
    attention is computed in its plain form meanwhile.
    """
    with sdpa_kernel(SDPBackend.MATH):
        gradient = flat_gradient(loss(), parameters, keep=True)

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
    most_products: int = 500,
) -> Curvature:
    """The largest eigenvalue of the Hessian of `loss`, signs counted: the steepest bend upwards.

    Ends where the residual is below `tolerance` times the value, or after
    `most_products`; the value itself is much closer than its residual, by about
    the square of it. The least eigenvalue is that of the negated loss, negated.
    """
    product = hessian_product(loss, parameters)
    start = torch.randn(sum(p.numel() for p in parameters), generator=rng).to(parameters[0])
    found = _iterate(product, start, 0.0, tolerance=tolerance, most_products=most_products)
    if found.value >= 0:
        return found
    # The largest in size bends downwards. With it taken from all, what was largest is largest in size too.
    return _iterate(product, start, found.value, tolerance=tolerance, most_products=most_products)


def _iterate(product: Product, start: Tensor, shift: float, *, tolerance: float, most_products: int) -> Curvature:
    """Power iteration on the Hessian less `shift` times the identity; the answer is of the Hessian itself."""
    direction, value, residual, count = start / start.norm(), 0.0, 0.0, 0
    for count in range(1, most_products + 1):  # noqa: B007  it is told how many it took
        image = product(direction)
        value = float(direction @ image)
        residual = float((image - value * direction).norm())
        moved = image - shift * direction
        length = float(moved.norm())
        if residual <= tolerance * abs(value - shift) or length == 0.0:
            break
        direction = moved / length
    return Curvature(value, direction, residual, count)


def weights_of(parameters: Sequence[Tensor]) -> Float[Tensor, " weights"]:
    """All parameters in one row, as they are now."""
    return parameters_to_vector(parameters).detach().clone()


@torch.no_grad()
def put_weights(parameters: Sequence[Tensor], weights: Float[Tensor, " weights"]) -> None:
    """Set all parameters from one row."""
    vector_to_parameters(weights, parameters)
