r"""A linear forecast beside the network: one map from the past to all steps, shared by all columns, solved exactly.

Toner and Darlow, "An Analysis of Linear Time Series Forecasting Models" (2024), https://arxiv.org/abs/2403.14587:
linear models of a window whose mean is subtracted are as good as deep ones on many series, and have a closed form. With
windows $x$ and their targets $y$, both minus the mean of $x$, the weights are
$W = (X^\top X + \lambda I)^{-1} X^\top Y$; $\lambda$ is the best of a few on the validation part.

Features that are known in advance have a linear effect, which is solved first, by least squares between the values and
the features of each window, both minus their means.

The average with the network's forecast has the smallest weight of the network that is within one standard error of the
best on the validation part: Breiman et al., "Classification and Regression Trees" (1984), section 3.4.3.

Dimensions: `batch` windows, `time` steps that are read, `horizon` steps that are forecast, `columns` of numbers,
`steps` that are read and forecast, `features` of each.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.models.series import SeriesShape

_STRENGTHS = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Values of lambda, in units of the mean square of an input."""
_EFFECT_STRENGTH = 1e-4
_LEAST_KNOWN = 0.9
"""A window is used if at least this share of its targets is known; missing ones are filled."""
_NUM_WEIGHTS = 21
_FEWEST_SPANS = 4
"""Fewer spans have no standard error to speak of."""


class LinearForecast(nn.Module):
    """The linear forecast; its weights are buffers, which no optimizer changes."""

    weight: Tensor
    effects: Tensor
    network_weight: Tensor

    def __init__(self, shape: SeriesShape) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(shape.input_length, shape.horizon))
        self.register_buffer("effects", torch.zeros(shape.num_features, shape.num_columns))
        self.register_buffer("network_weight", torch.ones(()))

    def forward(
        self, values: Float[Tensor, "batch time columns"], features: Float[Tensor, "batch steps features"] | None = None
    ) -> Float[Tensor, "batch horizon columns"]:
        """The linear forecast."""
        with torch.autocast(values.device.type, enabled=False):
            return self._predict(values, features, self.weight)

    def _predict(self, values: Tensor, features: Tensor | None, weight: Tensor) -> Tensor:
        values, future = self._without_effects(values, features)
        mean = values.mean(dim=1, keepdim=True)
        found = torch.einsum("btc,th->bhc", values - mean, weight.to(values.dtype)) + mean
        return found if future is None else found + future

    def _without_effects(self, values: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The values without the effects of features, and the effects of the steps to forecast."""
        if features is None:
            return values, None
        effects = features.to(values.dtype) @ self.effects.to(values.dtype)
        return values - effects[:, : values.size(1)], effects[:, values.size(1) :]

    def shift(
        self, network: Float[Tensor, "batch horizon columns"], own: Float[Tensor, "batch horizon columns"]
    ) -> Float[Tensor, "batch horizon columns"]:
        """What is to be added to the forecast of the network."""
        return (1 - self.network_weight) * (own - network)

    @torch.no_grad()
    def solve(self, train: Callable[[], Iterator[Any]], valid: Callable[[], Iterator[Any]]) -> float:
        """Solve the weights on batches of the training part, and choose lambda on those of the validation part.

        Returns:
            The mean squared error on the validation part; NaN where too much is missing for a solution.
        """
        if len(self.effects):
            self.effects.copy_(self._solve_effects(train()))
        gram, cross = self._sums(train())
        if not gram.any():
            return math.nan
        values, vectors = torch.linalg.eigh(gram)
        rotated, size = vectors.T @ cross, gram.diagonal().mean()
        candidates = torch.stack(
            [vectors @ (rotated / (values + strength * size)[:, None]) for strength in _STRENGTHS]
        ).to(self.weight.dtype)  # fmt: skip
        errors, count = torch.zeros(len(_STRENGTHS), device=gram.device, dtype=gram.dtype), 0.0
        for batch in valid():
            predicted = (self._predict(batch.values, batch.features, weight) for weight in candidates)
            errors += torch.stack([((each - batch.targets).square() * batch.known).sum() for each in predicted])
            count += float(batch.known.sum())
        best = int(errors.argmin())
        self.weight.copy_(candidates[best])
        return float(errors[best]) / max(1.0, count)

    def _solve_effects(self, batches: Iterator[Any]) -> Tensor:
        gram = cross = torch.zeros((), device=self.weight.device, dtype=torch.float64)
        for batch in batches:
            x = batch.features.double()
            y = torch.cat([batch.values, batch.targets], dim=1).double()
            x, y = ((each - each.mean(dim=1, keepdim=True)).flatten(0, 1) for each in (x, y))
            gram, cross = gram + x.T @ x, cross + x.T @ y
        penalty = _EFFECT_STRENGTH * gram.diagonal().mean().clamp(min=1e-9)
        return torch.linalg.solve(gram + penalty * torch.eye(len(gram), device=gram.device, dtype=gram.dtype), cross)

    def _sums(self, batches: Iterator[Any]) -> tuple[Tensor, Tensor]:
        """The products of inputs with inputs and with targets, where most targets of a column are known."""
        length, horizon = self.weight.shape
        gram, cross = (self.weight.new_zeros(length, size, dtype=torch.float64) for size in (length, horizon))
        for batch in batches:
            values, future = self._without_effects(batch.values.double(), batch.features)
            targets = batch.targets.double() - (0.0 if future is None else future)
            mean = values.mean(dim=1, keepdim=True)
            is_known = (batch.known.double().mean(dim=1) >= _LEAST_KNOWN).flatten()
            x, y = ((each - mean).transpose(1, 2).flatten(0, 1)[is_known] for each in (values, targets))
            gram, cross = gram + x.T @ x, cross + x.T @ y
        return gram, cross

    def fit_weight(
        self,
        network: Float[Tensor, "windows horizon columns"],
        own: Float[Tensor, "windows horizon columns"],
        targets: Float[Tensor, "windows horizon columns"],
        known: Bool[Tensor, "windows horizon columns"],
        spans: Int[Tensor, " windows"],
    ) -> None:
        """Fit the weight of the network in the average, from 0 to 1, by the squared error.

        The weight is the smallest with an error within one standard error of the least, over spans of origins and
        columns: the validation part of a long horizon has few of them, and the linear forecast varies less.
        """
        differences = torch.where(known, network - own, 0.0).double()
        residuals = torch.where(known, targets - own, 0.0).double()
        numbers = spans.unique(return_inverse=True)[1]
        sums = torch.stack([differences.square().sum(dim=1), (differences * residuals).sum(dim=1)])
        of_spans = sums.new_zeros(2, int(numbers.max()) + 1, sums.size(2)).index_add_(1, numbers, sums)
        squares, products = of_spans.flatten(1)
        weights = torch.linspace(0, 1, _NUM_WEIGHTS, device=sums.device, dtype=sums.dtype)[:, None]
        errors = weights.square() * squares - 2 * weights * products
        best = errors.sum(dim=1).argmin()
        worse, count = errors - errors[best], errors.size(1)
        is_near = (
            worse.mean(dim=1) <= worse.std(dim=1) / count**0.5 if count >= _FEWEST_SPANS else worse.sum(dim=1) <= 0
        )
        self.network_weight.copy_(weights[is_near.nonzero()[0, 0], 0])
