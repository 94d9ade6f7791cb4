r"""Random features, least squares on them, and what draws of them agree on.

Rahimi and Recht, "Random Features for Large-Scale Kernel Machines" (2007).
Cho and Saul, "Kernel Methods for Deep Learning" (2009), section 2.1.

Features $\phi_j(x) = a(w_j \cdot x + b_j) / \sqrt N$ with weights that are drawn
and never trained make a model of any width $N$ that is linear in what is fitted.
As $N \to \infty$ inner products of features become a kernel, so the widest model
of all can be computed:

    fourier   a = sqrt(2) cos, w normal, b uniform on a circle     exp(-|u|^2 / 2), u = bandwidth (x - x') / sqrt(input)
    relu      a = max(0, .), w normal, b = 0                       the arc-cosine kernel of order 1, over 2

Dimensions: `row` examples, `input` numbers of each, `feature`, `target` labels of one example, `draw` repetitions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.evaluation.means import Around

Kind = Literal["fourier", "relu"]


@dataclass(frozen=True)
class RandomFeatures:
    """Features whose weights were drawn once; the first of them are those of a narrower model."""

    kind: Kind
    weights: Float[Tensor, "input feature"]
    phases: Float[Tensor, " feature"]

    def __call__(self, inputs: Float[Tensor, "row input"], width: int | None = None) -> Float[Tensor, "row feature"]:
        """The features of each row, or the first `width` of them, scaled so that inner products tend to the kernel."""
        weights, phases = self.weights[:, :width], self.phases[:width]
        inner = inputs @ weights
        raw = math.sqrt(2) * (inner + phases).cos() if self.kind == "fourier" else inner.relu()
        return raw / math.sqrt(weights.size(1))


def draw_features(
    kind: Kind, input_dim: int, num_features: int, *, bandwidth: float, rng: torch.Generator
) -> RandomFeatures:
    """Draw weights; a larger `bandwidth` makes Fourier features vary faster, and only rescales ReLU ones."""
    weights = torch.randn(input_dim, num_features, generator=rng, dtype=torch.float64) * bandwidth / input_dim**0.5
    phases = 2 * math.pi * torch.rand(num_features, generator=rng, dtype=torch.float64)
    return RandomFeatures(kind, weights, phases)


def kernel(
    kind: Kind, left: Float[Tensor, "row input"], right: Float[Tensor, "other input"], *, bandwidth: float
) -> Float[Tensor, "row other"]:
    """What inner products of infinitely many features are."""
    scale = bandwidth / left.size(1) ** 0.5
    left, right = scale * left, scale * right
    if kind == "fourier":
        return (-torch.cdist(left, right).square() / 2).exp()
    lengths = left.norm(dim=1)[:, None] * right.norm(dim=1)
    cosine = (left @ right.T / lengths).clamp(-1, 1)
    angle = cosine.acos()
    return lengths * (angle.sin() + (math.pi - angle) * cosine) / (2 * math.pi)


def ridgeless(
    features: Float[Tensor, "row feature"], targets: Float[Tensor, "row target"]
) -> Float[Tensor, "feature target"]:
    r"""The shortest of the least-squares solutions, $\Phi^+ y$: what descent from 0 tends to.

    With at least as many independent features as rows it meets every target.
    """
    return torch.linalg.lstsq(features, targets, driver="gelsd", rcond=1e-13).solution


def ridge(
    features: Float[Tensor, "*batch row feature"], targets: Float[Tensor, "*batch row target"], *, strength: float
) -> Float[Tensor, "*batch feature target"]:
    r"""$\operatorname{argmin}_\beta |\Phi\beta - y|^2 / n + \lambda |\beta|^2$, for $\lambda$ = `strength` > 0.

    Solved in the smaller of its two forms, with as many unknowns as features or as rows.
    """
    rows, width = features.shape[-2:]
    transposed = features.mT
    penalty = rows * strength * torch.eye(min(rows, width), dtype=features.dtype)
    if width <= rows:
        return torch.linalg.solve(transposed @ features + penalty, transposed @ targets)
    return transposed @ torch.linalg.solve(features @ transposed + penalty, targets)


def median_around(values: Float[Tensor, " draw"] | Sequence[float]) -> Around:
    """The median, and between which draws that of all draws lies with 95 % or more, whatever their distribution.

    For risks that are now and then enormous, so that they have no mean to speak
    of. Fewer than 6 draws cannot say it with 95 %: then the range is given.

    Example:
        >>> median_around(range(1, 11))
        (5.5, 2.0, 9.0)
    """
    drawn = torch.as_tensor(values, dtype=torch.float64).sort().values
    count, below, left_out = len(drawn), 0.0, 0
    # So many draws are left out at each end as stay below the median with a chance of at most 2.5 %.
    while (below := below + math.comb(count, left_out) / 2**count) <= 0.025:
        left_out += 1
    left_out = max(0, left_out - 1)
    return float(drawn.quantile(0.5)), float(drawn[left_out]), float(drawn[count - 1 - left_out])
