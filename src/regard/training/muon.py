r"""Muon: momentum with orthogonalized updates.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). https://kellerjordan.github.io/posts/muon/
Liu et al., "Muon is Scalable for LLM Training" (2025), sections 2.2 and 2.3. https://arxiv.org/abs/2502.16982

With gradient $G$, momentum $\mu$, rate $\eta$, decay $\lambda$ and a weight of $m \times n$

$$ M \leftarrow \mu M + (1 - \mu) G, \qquad U = \mu M + (1 - \mu) G \quad \text{(Nesterov momentum)} $$
$$ W \leftarrow (1 - \eta \lambda) W - 0.2 \sqrt{\max(m, n)}\; \eta\, \mathrm{orthogonal}(U) $$

The gradient of a matrix has few large singular values, and a step along it changes
the weights mostly in their directions; an orthogonalized update changes them
equally in all directions. The factor gives the entries of an update the root mean
square of AdamW's, so that both can use the same learning rate and weight decay.

Dimensions: `batch` matrices of one shape, `rows` and `columns` of each.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError
from regard.training.precision import choose_hardware

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic that increases small singular values fastest (Jordan et al.) and keeps those near 1."""
_SMALLEST_NORM = 1e-7
_RMS_OF_ADAMW = 0.2


def orthogonalize(
    matrices: Float[Tensor, "batch rows columns"], *, steps: int = 5, dtype: torch.dtype | None = None
) -> Float[Tensor, "batch rows columns"]:
    r"""Each matrix with the same singular vectors and singular values between about 0.7 and 1.2.

    $U \Sigma V^\top$ becomes roughly $U V^\top$, by `steps` of the Newton-Schulz
    iteration $X \leftarrow a X + (b\, X X^\top + c\, (X X^\top)^2) X$, which needs only matrix products.
    A singular value below about a thousandth of the norm of its matrix needs more steps.

    `dtype` is that of the products. Unset: float64 for matrices in float64, and
    for others the faster of bfloat16 and float32 on their device.
    """
    is_tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if is_tall else matrices  # the smaller of the two products of X with itself
    x = x.to(dtype or _product_dtype(x))
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=_SMALLEST_NORM)
    a, b, c = _COEFFICIENTS
    for _ in range(steps):
        squares = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(squares, squares, squares, beta=b, alpha=c), x, beta=a)
    return torch.empty_like(matrices).copy_(x.mT if is_tall else x)


class Muon(torch.optim.Optimizer):
    """An optimizer of matrices only: 2-D parameters of hidden layers.

    Matrices of one shape are orthogonalized together. A step does not synchronize
    with the device, and a group's `lr` may be a 0-dimensional tensor on it, so that
    a CUDA graph can capture any step after the first.

    `dtype` is that of the products of `orthogonalize`.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        steps: int = 5,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._steps, self._dtype = steps, dtype
        self.gather: Callable[[Tensor], Tensor] = lambda matrix: matrix
        """Where matrices are sharded: a part of one to the whole, whose singular vectors an update depends on."""
        self.scatter: Callable[[Tensor, Tensor], Tensor] = lambda own, matrix: matrix
        """The other way round: the part of a matrix that belongs to `own`."""
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of matrices with settings of its own."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.dim() != 2:
                raise ConfigError(f"Muon is for matrices, got a parameter of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]  the overloads of torch are equivalent
        """Update all matrices that have a gradient; returns the value of `closure`, if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [parameter for parameter in group["params"] if parameter.grad is not None]
            for alike in _by_shape(weights):
                self._update(alike, lr=group["lr"], momentum=group["momentum"], weight_decay=group["weight_decay"])
        return loss

    def _update(
        self,
        weights: list[Tensor],
        *,
        lr: float | Tensor,
        momentum: float,
        weight_decay: float,
    ) -> None:
        gradients = [cast(Tensor, weight.grad) for weight in weights]
        momenta = [self._momentum(weight) for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - momentum)  # pyright: ignore[reportPrivateImportUsage]  no public name
        ahead = torch._foreach_lerp(gradients, momenta, momentum)  # pyright: ignore[reportPrivateImportUsage]  no public name
        whole = torch.stack([self.gather(each) for each in ahead])
        updates = orthogonalize(whole, steps=self._steps, dtype=self._dtype)
        updates *= -_RMS_OF_ADAMW * math.sqrt(max(updates.shape[1:])) * lr
        if weight_decay:
            kept: Any = 1 - lr * weight_decay  # torch's overloads accept a number or a tensor, but not a union
            torch._foreach_mul_(weights, kept)  # pyright: ignore[reportPrivateImportUsage]  no public name
        own = [self.scatter(weight, update) for weight, update in zip(weights, updates.unbind(), strict=True)]
        torch._foreach_add_(weights, own)  # pyright: ignore[reportPrivateImportUsage]  no public name

    def _momentum(self, weight: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        memory = self.state[weight]
        if "momentum" not in memory:
            memory["momentum"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return memory["momentum"]


def _by_shape(weights: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group the weights that can be stacked."""
    alike: defaultdict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
    for weight in weights:
        alike[weight.shape, weight.dtype, weight.device, getattr(weight, "placements", None)].append(weight)
    return list(alike.values())


def _product_dtype(matrices: Float[Tensor, "batch rows columns"]) -> torch.dtype:
    """bfloat16 where it is faster on the device: its precision suffices for five steps."""
    if matrices.dtype == torch.float64:
        return torch.float64
    return _fast_dtype(matrices.device.type, matrices.size(-2))


@cache
def _fast_dtype(device: str, width: int) -> torch.dtype:
    return getattr(torch, choose_hardware(device, "auto", width).precision)
