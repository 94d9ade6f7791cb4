r"""Random features by their number: risks of minimum-norm least squares, and those of the kernel at the end.

Belkin et al., "Reconciling modern machine-learning practice and the classical bias-variance trade-off" (2019).
https://arxiv.org/abs/1812.11118
Mei and Montanari, "The generalization error of random features regression" (2019). https://arxiv.org/abs/1908.05355

The label of $x \sim \mathcal N(0, I_d)$ is the sign of its first coordinate, and a
share of labels is turned round. No feature knows the direction that matters: few
random ones hardly see it, and many can.

Dimensions: as in `random_features.py`; `noise` shares of labels turned round, `capacity` numbers of features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.lab.double_descent_shape import MEDIAN, Shape
from regard.lab.random_features import Kind, draw_features, kernel, ridgeless
from regard.logging import log_info, progress_bar


@dataclass(frozen=True)
class Rows:
    """Examples with their true labels, and with labels of which a share is turned round."""

    inputs: Float[Tensor, "row input"]
    truth: Float[Tensor, " row"]
    labels: Float[Tensor, "row noise"]


@dataclass(frozen=True)
class FeatureRisks:
    """What each number of features comes to on fresh examples."""

    kind: Kind
    widths: Sequence[int]
    squared: Float[Tensor, "noise capacity draw"]
    """Mean square of the difference from labels with the same noise."""
    wrong: Float[Tensor, "noise capacity draw"]
    """Share of true labels whose sign is missed."""
    limit_squared: Float[Tensor, "noise draw"]
    limit_wrong: Float[Tensor, "noise draw"]

    def shapes(self, *, of_wrong: bool = False) -> list[Shape]:
        """The curve of each noise."""
        return [Shape(self.widths, risks, MEDIAN) for risks in (self.wrong if of_wrong else self.squared)]


def draw_rows(num_rows: int, input_dim: int, noises: Sequence[float], *, rng: torch.Generator) -> Rows:
    """Fresh examples; labels turned round at a small share of noise are so at every larger one."""
    inputs = torch.randn(num_rows, input_dim, generator=rng, dtype=torch.float64)
    truth = torch.where(inputs[:, 0] > 0, 1.0, -1.0).to(inputs)
    luck = torch.rand(num_rows, generator=rng, dtype=torch.float64)
    labels = torch.stack([torch.where(luck < noise, -truth, truth) for noise in noises], dim=1)
    return Rows(inputs, truth, labels)


def measure_features(
    kind: Kind,
    widths: Sequence[int],
    noises: Sequence[float],
    *,
    num_rows: int,
    num_fresh: int,
    input_dim: int,
    bandwidth: float,
    seeds: Sequence[int],
) -> FeatureRisks:
    """Fit each number of features in each draw of data and of features; all noises share both."""
    risks, limits = [], []
    for seed in progress_bar(seeds, f"{kind} features", total=len(seeds)):
        rng = torch.Generator().manual_seed(seed)
        rows = draw_rows(num_rows, input_dim, noises, rng=rng)
        fresh = draw_rows(num_fresh, input_dim, noises, rng=rng)
        features = draw_features(kind, input_dim, max(widths), bandwidth=bandwidth, rng=rng)
        fitted = [
            features(fresh.inputs, width) @ ridgeless(features(rows.inputs, width), rows.labels) for width in widths
        ]
        risks.append(torch.stack([_risks(predicted, fresh) for predicted in fitted], dim=-1))
        limits.append(_risks(_predict_by_kernel(kind, rows, fresh, bandwidth), fresh))
    squared, wrong = torch.stack(risks, dim=-1)
    limit_squared, limit_wrong = torch.stack(limits, dim=-1)
    log_info(f"{kind} features: {len(widths)} widths, {len(seeds)} draws")
    return FeatureRisks(kind, widths, squared, wrong, limit_squared, limit_wrong)


def _predict_by_kernel(kind: Kind, rows: Rows, fresh: Rows, bandwidth: float) -> Float[Tensor, "row noise"]:
    among = kernel(kind, rows.inputs, rows.inputs, bandwidth=bandwidth)
    return kernel(kind, fresh.inputs, rows.inputs, bandwidth=bandwidth) @ torch.linalg.solve(among, rows.labels)


def _risks(predicted: Float[Tensor, "row noise"], fresh: Rows) -> Float[Tensor, "2 noise"]:
    squared = (predicted - fresh.labels).square().mean(dim=0)
    wrong = (predicted * fresh.truth[:, None] <= 0).double().mean(dim=0)
    return torch.stack([squared, wrong])
