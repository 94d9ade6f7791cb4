r"""A Gaussian process beside a network: solved exactly before the first step, and added to the trained network.

Rasmussen & Williams, "Gaussian Processes for Machine Learning" (2006), chapters 2 and 5.
Ralaivola et al., "Graph kernels for chemical informatics" (2005), for the Tanimoto kernel of fingerprints.

From a few thousand rows a network learns less than such a model, which knows by its kernel which rows are alike. The
kernel of two rows is a sum over fingerprints $b^{(k)}$ and a vector $d$ of descriptors,

$$ \sum_k w_k \frac{|b^{(k)} \wedge b'^{(k)}|}{|b^{(k)} \vee b'^{(k)}|} + w_d\, \mathrm{Matern}_{5/2}(\|d - d'\| / l) $$

whose weights, length scale and noise maximize the marginal likelihood of a part of the training rows. Targets are
standardized numbers, or labels as -1 and 1. With $f$ the network and $g$ the mean of the process, the outputs of an
evaluated model are $a f(x) + b\, g(x) + c$; these factors are fitted on the validation rows. A model in training mode
has $f$ alone.

Dimensions: `rows`, `others` that they are compared with, `features` bytes, `outputs` numbers or logits.
"""

import math
import time
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.logging import format_duration, log_info

MOST_ROWS = 8_000
"""Training rows that are used: the time of a solution grows with their cube."""
_TUNED_ROWS, _FEWEST_TUNED, _TUNED_OUTPUTS, _ITERATIONS = 1_000, 100, 4, 50
"""Rows and outputs of which the likelihood is maximized, and steps of L-BFGS."""
_TUNING_SECONDS = 12.0
"""What that takes, roughly; less time is met by fewer rows."""
_JITTER, _SMALLEST_NOISE = 1e-6, 1e-3
_PRIOR = 0.05
"""The weight of the squared distance of a logarithm from its initial value."""
_LARGEST_DESCRIPTOR = 5.0
"""In standard deviations: a few molecules are far from all others."""
_BITS_AT_ONCE = 1 << 27
_SCALES_OF_NUMBERS, _SCALES_OF_LABELS, _EXPECTED_ROWS = (0.2, 0.8), (0.4, 2.4), 5.0
"""Few validation rows leave the factors of the network and of the process near these values; that of labels makes
logits of values from -1 to 1."""


class GaussianProcess(nn.Module):
    """The process; what it has learned are buffers, which no optimizer changes.

    Args:
        num_fingerprints: The number of fingerprints of a row.
        num_bits: The bits of each; in a row of features they come first, packed.
        num_descriptors: The numbers after them, as bytes of float32.
        num_outputs: The number of targets.
    """

    features: Tensor
    """The features of the training rows."""
    coefficients: Tensor
    shift: Tensor
    spread: Tensor
    hyperparameters: Tensor
    centers: Tensor
    scales: Tensor
    offsets: Tensor

    def __init__(self, num_fingerprints: int, num_bits: int, num_descriptors: int, num_outputs: int) -> None:
        super().__init__()
        self.num_fingerprints, self.num_bits, self.num_descriptors = num_fingerprints, num_bits, num_descriptors
        num_bytes = num_fingerprints * num_bits // 8 + 4 * num_descriptors
        self.register_buffer("features", torch.zeros(0, num_bytes, dtype=torch.uint8))
        self.register_buffer("coefficients", torch.zeros(0, num_outputs))
        self.register_buffer("shift", torch.zeros(num_descriptors))
        self.register_buffer("spread", torch.ones(num_descriptors))
        self.register_buffer("hyperparameters", torch.zeros(num_fingerprints + 3))
        self.register_buffer("centers", torch.zeros(num_outputs))
        self.register_buffer("scales", torch.tensor([1.0, 0.0]))
        self.register_buffer("offsets", torch.zeros(num_outputs))

    def resize_buffers(self, shapes: Mapping[str, torch.Size]) -> None:
        """Those with a row for each training row."""
        for name in ("features", "coefficients"):
            if name in shapes:
                setattr(self, name, getattr(self, name).new_zeros(shapes[name]))

    @property
    def is_solved(self) -> bool:
        return len(self.features) > 0

    def forward(self, features: UInt8[Tensor, "rows bytes"]) -> Float[Tensor, "rows outputs"]:
        """The mean of the process for each row."""
        if not self.is_solved:
            return self.centers.expand(len(features), -1)
        with torch.autocast(features.device.type, enabled=False):
            # In float64: coefficients are large and of both signs, and rounding would depend on the batch.
            similarities, distances = (each.double() for each in self._compare(features, self.features))
            kernel = _kernel(self.hyperparameters.double(), similarities, distances)
            return (kernel @ self.coefficients.double() + self.centers).to(self.centers.dtype)

    def blend(
        self, network: Float[Tensor, "rows outputs"], own: Float[Tensor, "rows outputs"]
    ) -> Float[Tensor, "rows outputs"]:
        """The outputs of the network and of the process, each with its factor."""
        return self.scales[0] * network + self.scales[1] * own.to(network.dtype) + self.offsets

    @torch.no_grad()
    def solve(
        self,
        features: UInt8[np.ndarray, "rows bytes"],
        targets: Float[np.ndarray, "rows outputs"],
        *,
        are_labels: bool,
        seconds: float | None = None,
    ) -> bool:
        """Fit the process; False where no target varies.

        Args:
            features: Those of the training rows.
            targets: Standardized numbers, or labels 0 and 1; NaN where one is missing.
            are_labels: Whether targets are labels.
            seconds: What tuning the kernel may take, roughly; unset, as long as it needs.
        """
        before, device = time.perf_counter(), self.shift.device
        if len(features) > MOST_ROWS:
            kept = np.sort(np.random.default_rng(0).permutation(len(features))[:MOST_ROWS])
            features, targets = features[kept], targets[kept]
        values = torch.from_numpy(2 * targets - 1 if are_labels else targets).double().to(device)
        known = ~values.isnan()
        if len(features) < 2 or not known.any():
            return False
        rows = torch.from_numpy(features).to(device)
        descriptors = self._descriptors(rows)
        self.shift.copy_(descriptors.mean(dim=0))
        spread = descriptors.std(dim=0)
        self.spread.copy_(torch.where(spread > _JITTER, spread, torch.inf))
        self.centers.copy_(values.nanmean(dim=0).nan_to_num())
        residuals = torch.where(known, values - self.centers, 0.0)
        self._tune(rows, residuals, known, seconds)
        similarities, distances = self._compare(rows, rows)
        kernel = _kernel(self.hyperparameters.to(distances.dtype), similarities, distances).double()
        del similarities, distances
        noise = self.hyperparameters[-1].double().exp() + _SMALLEST_NOISE
        coefficients = torch.zeros_like(residuals)
        for places, outputs in _alike(known):
            part = kernel if len(places) == len(kernel) else kernel[places][:, places]
            part = part + noise * torch.eye(len(places), dtype=part.dtype, device=device)
            solved = torch.cholesky_solve(residuals[places][:, outputs], torch.linalg.cholesky(part))
            coefficients[places[:, None], outputs[None]] = solved
        self.features, self.coefficients = rows, coefficients.to(self.coefficients.dtype)
        self.scales.copy_(torch.tensor([0.0, 1.0]))
        log_info(
            f"Gaussian process of fingerprints and {self.num_descriptors} descriptors solved on {len(rows):,} rows in "
            f"{format_duration(time.perf_counter() - before)}"
        )
        return True

    def fit_scales(
        self,
        network: Float[Tensor, "rows outputs"],
        own: Float[Tensor, "rows outputs"],
        targets: Float[Tensor, "rows outputs"],
        known: Bool[Tensor, "rows outputs"],
        *,
        are_labels: bool,
    ) -> None:
        """Choose the factors with the least loss on these rows.

        Args:
            network: The outputs of the network.
            own: The outputs of the process.
            targets: Standardized numbers, or labels 0 and 1.
            known: Which of them are not missing.
            are_labels: Whether targets are labels, of which the outputs are logits.
        """
        from scipy.optimize import minimize  # imported here, since scipy loads slowly

        both = torch.stack([network, own]).double().cpu()
        wanted, mask = targets.double().cpu(), known.cpu()
        expected = torch.tensor(_SCALES_OF_LABELS if are_labels else _SCALES_OF_NUMBERS, dtype=torch.float64)

        def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            found = torch.from_numpy(values).requires_grad_()
            outputs = torch.einsum("s,sro->ro", found[:2], both) + found[2:]
            losses = property_losses(outputs, wanted, are_labels=are_labels)
            loss = losses[mask].sum() + _EXPECTED_ROWS * (found[:2] - expected).square().sum()
            loss = loss + _EXPECTED_ROWS * found[2:].square().sum()
            loss.backward()
            assert found.grad is not None
            return loss.item(), found.grad.numpy()

        initial = np.concatenate([expected.numpy(), np.zeros(both.size(2))])
        bounds = [(0.0, None)] * 2 + [(None, None)] * both.size(2)
        with torch.enable_grad(), torch.inference_mode(False):
            found = minimize(objective, initial, jac=True, method="L-BFGS-B", bounds=bounds)
        self.scales.copy_(torch.from_numpy(found.x[:2]))
        self.offsets.copy_(torch.from_numpy(found.x[2:]))

    def _descriptors(self, features: UInt8[Tensor, "rows bytes"]) -> Float[Tensor, "rows descriptors"]:
        packed = features[:, self.num_fingerprints * self.num_bits // 8 :].contiguous()
        return packed.view(torch.float32)

    def _compare(
        self, features: UInt8[Tensor, "rows bytes"], others: UInt8[Tensor, "others bytes"]
    ) -> tuple[Float[Tensor, "kinds rows others"], Float[Tensor, "rows others"]]:
        """The Tanimoto index of each fingerprint, and the distance of the descriptors, of each pair of rows."""
        one, two = (((self._descriptors(some) - self.shift) / self.spread) for some in (features, others))
        limit = _LARGEST_DESCRIPTOR
        # By differences: with products, distances of near rows would depend on the other rows of the batch.
        by_differences = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(one.clamp(-limit, limit), two.clamp(-limit, limit), compute_mode=by_differences)
        similarities = distances.new_empty(self.num_fingerprints, len(features), len(others))
        for kind, found in enumerate(similarities):
            places = slice(kind * self.num_bits // 8, (kind + 1) * self.num_bits // 8)
            right = unpack_bits(others[:, places]).to(found.dtype)
            at_once = max(1, _BITS_AT_ONCE // self.num_bits)
            for start in range(0, len(features), at_once):
                left = unpack_bits(features[start : start + at_once, places]).to(found.dtype)
                shared = left @ right.T
                either = left.sum(dim=1)[:, None] + right.sum(dim=1)[None] - shared
                found[start : start + at_once] = shared / either.clamp(min=1.0)
        return similarities, distances

    def _tune(
        self,
        features: UInt8[Tensor, "rows bytes"],
        residuals: Float[Tensor, "rows outputs"],
        known: Bool[Tensor, "rows outputs"],
        seconds: float | None,
    ) -> None:
        """Maximize the marginal likelihood of some rows."""
        from scipy.optimize import minimize  # imported here, since scipy loads slowly

        share = 1.0 if seconds is None else min(1.0, (seconds / _TUNING_SECONDS) ** (1 / 3))
        most = max(_FEWEST_TUNED, int(share * _TUNED_ROWS))
        drawn = torch.from_numpy(np.random.default_rng(0).permutation(len(features))[:most]).to(features.device)
        compared = self._compare(features[drawn], features[drawn])
        similarities, distances = (each.double() for each in compared)
        parts = [(torch.nonzero(known[drawn, output])[:, 0], output) for output in range(known.size(1))]
        parts = [(places, output) for places, output in parts if len(places) > 1][:_TUNED_OUTPUTS]
        middle = math.log(max(_JITTER, float(distances.median())))
        weight = math.log(1 / (self.num_fingerprints + 1))
        initial = np.array([weight] * (self.num_fingerprints + 1) + [middle, math.log(0.1)])

        def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            found = torch.from_numpy(values).to(features.device).requires_grad_()
            kernel = _kernel(found, similarities, distances)
            loss = _PRIOR * (found - torch.from_numpy(initial).to(found)).square().sum()
            for places, output in parts:
                part = kernel if len(places) == len(kernel) else kernel[places][:, places]
                noise = (found[-1].exp() + _SMALLEST_NOISE) * torch.eye(
                    len(places), dtype=part.dtype, device=part.device
                )
                factor = torch.linalg.cholesky(part + noise)
                target = residuals[drawn[places], output][:, None]
                fit = (target * torch.cholesky_solve(target, factor)).sum() / 2
                loss = loss + fit + factor.diagonal().log().sum()
            loss.backward()
            assert found.grad is not None
            return loss.item(), found.grad.cpu().numpy()

        with torch.enable_grad():
            found = minimize(objective, initial, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS})
        self.hyperparameters.copy_(torch.from_numpy(found.x))


def property_losses(
    outputs: Float[Tensor, "rows outputs"], targets: Float[Tensor, "rows outputs"], *, are_labels: bool
) -> Float[Tensor, "rows outputs"]:
    """The cross-entropy of each label, or half of the squared error of each number."""
    if are_labels:
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return (outputs - targets).square() / 2


def unpack_bits(packed: UInt8[Tensor, "rows bytes"]) -> UInt8[Tensor, "rows bits"]:
    """The bits of bytes, the highest first, as in `numpy.unpackbits`.

    Example:
        >>> unpack_bits(torch.tensor([[5]], dtype=torch.uint8)).tolist()
        [[0, 0, 0, 0, 0, 1, 0, 1]]
    """
    places = torch.arange(7, -1, -1, device=packed.device, dtype=torch.uint8)
    return ((packed[..., None] >> places) & 1).flatten(1)


def _kernel(
    hyperparameters: Float[Tensor, " some"],
    similarities: Float[Tensor, "kinds rows others"],
    distances: Float[Tensor, "rows others"],
) -> Float[Tensor, "rows others"]:
    """The kernel; `hyperparameters` are logarithms of the weights, of the length scale, and of the noise."""
    *weights, weight, length = hyperparameters[:-1].exp()
    scaled = math.sqrt(5.0) * distances / length
    found = weight * (1 + scaled + scaled.square() / 3) * (-scaled).exp()
    for factor, similarity in zip(weights, similarities, strict=True):
        found = found + factor * similarity
    return found


def _alike(known: Bool[Tensor, "rows outputs"]) -> list[tuple[Int[Tensor, " some"], Int[Tensor, " few"]]]:
    """Outputs that are known in the same rows, which are solved together: these rows, and the outputs."""
    groups: dict[bytes, list[int]] = {}
    for output, column in enumerate(known.T.cpu().numpy()):
        groups.setdefault(column.tobytes(), []).append(output)
    found = [
        (torch.nonzero(known[:, some[0]])[:, 0], torch.tensor(some, device=known.device)) for some in groups.values()
    ]
    return [(places, outputs) for places, outputs in found if len(places)]
