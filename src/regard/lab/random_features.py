r"""Random features, least squares on them, and the interval of a median.

Rahimi and Recht, "Random Features for Large-Scale Kernel Machines" (2007).
Cho and Saul, "Kernel Methods for Deep Learning" (2009), section 2.1.

Features $\phi_j(x) = a(w_j \cdot x + b_j) / \sqrt N$ with random, untrained weights
give a model of any width $N$ that is linear in its fitted parameters. As
$N \to \infty$ inner products of features converge to a kernel, so the infinitely
wide model can be computed:

    fourier   a = sqrt(2) cos, w normal, b uniform in [0, 2 pi]   exp(-|u|^2 / 2), u = bandwidth (x - x') / sqrt(input)
    relu      a = max(0, .), w normal, b = 0                      the arc-cosine kernel of order 1, over 2

Dimensions: `row` examples, `input` of an example, `feature` random features, `target` labels, `draw` repetitions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.evaluation.intervals import Interval

FeatureKind = Literal["fourier", "relu"]


@dataclass(frozen=True)
class RandomFeatures:
    """Random features; the first ones are the features of a narrower model."""

    kind: FeatureKind
    weights: Float[Tensor, "input feature"]
    phases: Float[Tensor, " feature"]

    def __call__(self, inputs: Float[Tensor, "row input"], width: int | None = None) -> Float[Tensor, "row feature"]:
        """The first `width` features of each row (default: all), scaled so that inner products tend to the kernel."""
        weights, phases = self.weights[:, :width], self.phases[:width]
        inner = inputs @ weights
        raw = math.sqrt(2) * (inner + phases).cos() if self.kind == "fourier" else inner.relu()
        return raw / math.sqrt(weights.size(1))


def draw_random_features(
    kind: FeatureKind, input_dim: int, num_features: int, *, bandwidth: float, rng: torch.Generator
) -> RandomFeatures:
    """Draw weights; a larger `bandwidth` makes Fourier features vary faster, and only rescales ReLU features."""
    weights = torch.randn(input_dim, num_features, generator=rng, dtype=torch.float64) * bandwidth / input_dim**0.5
    phases = 2 * math.pi * torch.rand(num_features, generator=rng, dtype=torch.float64)
    return RandomFeatures(kind, weights, phases)


def limit_kernel(
    kind: FeatureKind, left: Float[Tensor, "row input"], right: Float[Tensor, "other input"], *, bandwidth: float
) -> Float[Tensor, "row other"]:
    """The kernel that inner products of features converge to as their number grows."""
    scale = bandwidth / left.size(1) ** 0.5
    left, right = scale * left, scale * right
    if kind == "fourier":
        return (-torch.cdist(left, right).square() / 2).exp()
    norms = left.norm(dim=1)[:, None] * right.norm(dim=1)
    cosine = (left @ right.T / norms).clamp(-1, 1)
    angle = cosine.acos()
    return norms * (angle.sin() + (math.pi - angle) * cosine) / (2 * math.pi)


def min_norm_least_squares(
    features: Float[Tensor, "row feature"], targets: Float[Tensor, "row target"]
) -> Float[Tensor, "feature target"]:
    r"""The least-squares solution of minimum norm, $\Phi^+ y$: the limit of gradient descent from 0.

    With at least as many independent features as rows it interpolates the targets.
    """
    return torch.linalg.lstsq(features, targets, driver="gelsd", rcond=1e-13).solution


def ridge_regression(
    features: Float[Tensor, "*batch row feature"], targets: Float[Tensor, "*batch row target"], *, strength: float
) -> Float[Tensor, "*batch feature target"]:
    r"""$\operatorname{argmin}_\beta |\Phi\beta - y|^2 / n + \lambda |\beta|^2$, for $\lambda$ = `strength` > 0.

    Solved in the primal or the dual form, whichever has fewer unknowns.
    """
    rows, width = features.shape[-2:]
    transposed = features.mT
    penalty = rows * strength * torch.eye(min(rows, width), dtype=features.dtype)
    if width <= rows:
        return torch.linalg.solve(transposed @ features + penalty, transposed @ targets)
    return transposed @ torch.linalg.solve(features @ transposed + penalty, targets)


def median_interval(values: Float[Tensor, " draw"] | Sequence[float]) -> Interval:
    """The median of the draws and a distribution-free interval of at least 95 % for that of their distribution.

    For risks with outliers so large that their mean is not informative. With
    fewer than 6 draws no such interval exists: the range is returned.

    Example:
        >>> median_interval(range(1, 11))
        (5.5, 2.0, 9.0)
    """
    drawn = torch.as_tensor(values, dtype=torch.float64).sort().values
    count, below, dropped = len(drawn), 0.0, 0
    # Drop as many draws at each end as lie below the median with a probability of at most 2.5 %.
    while (below := below + math.comb(count, dropped) / 2**count) <= 0.025:
        dropped += 1
    dropped = max(0, dropped - 1)
    return float(drawn.quantile(0.5)), float(drawn[dropped]), float(drawn[count - 1 - dropped])
