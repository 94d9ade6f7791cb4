r"""Bias, variance and noise of a learner over repeated training sets, and selection of the best of K functions.

Geman, Bienenstock and Doursat, "Neural Networks and the Bias/Variance Dilemma" (1992).
Shalev-Shwartz and Ben-David, *Understanding Machine Learning* (2014), chapters 2 and 4.
Massart, "Some applications of concentration inequalities to statistics" (2000), lemma 5.2.

For $y = f(x) + \varepsilon$ and $\hat f_D$ fitted to a training set $D$,

$$ \underbrace{\mathbb E\,(y - \hat f_D(x))^2}_{\text{risk}}
   = \underbrace{\mathbb E_x\big(f(x) - \mathbb E_D \hat f_D(x)\big)^2}_{\text{bias}^2}
   + \underbrace{\mathbb E_x \operatorname{Var}_D \hat f_D(x)}_{\text{variance}}
   + \underbrace{\sigma^2}_{\text{noise}} , $$

where the randomness of the learner itself, such as its features, is drawn with $D$.
The right side is measured where $f$ is known; the left side on other training sets
and on test examples with noise, so that the two are independent.

Of $K$ functions with error probabilities $R_k$ and error rates $\hat R_k$ on $n$ examples,
$\hat k$ has the lowest error rate: empirical risk minimization. By Hoeffding's lemma

$$ \mathbb E\,[R_{\hat k} - \hat R_{\hat k}] \le \sqrt{\frac{\ln K}{2n}}, \qquad
   \Pr\Big[\max_k |R_k - \hat R_k| > \sqrt{\tfrac{\ln(2K/\delta)}{2n}}\Big] \le \delta , $$

for examples drawn independently of each other and of the functions, which may
depend on each other. Two families are measured:

    coins        random predictions, independent of the label and of each other
    thresholds   1 if x is at least t, for K equally spaced t: neighbors predict almost the same

Dimensions: `draw` of a training set or of n examples, `row`, `input`, `point` of evaluation, `feature`, `function`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.lab.random_features import draw_random_features, ridge_regression
from regard.logging import progress_bar

_NUM_BATCHES = 10
"""Independent repetitions of each measurement, over which intervals are computed."""


@dataclass(frozen=True)
class RegressionProblem:
    """Inputs uniform on the cube from -1 to 1, a function of them, and normal noise on it."""

    truth: Callable[[Tensor], Tensor]
    input_dim: int
    noise: float
    """Standard deviation."""

    def draw(self, *shape: int, rng: torch.Generator) -> Float[Tensor, "draw row input"]:
        return 2 * torch.rand(*shape, self.input_dim, generator=rng, dtype=torch.float64) - 1

    def targets(self, inputs: Float[Tensor, "draw row input"], rng: torch.Generator) -> Float[Tensor, "draw row"]:
        """The function with noise."""
        truth = self.truth(inputs)
        return truth + self.noise * torch.randn(truth.shape, generator=rng, dtype=truth.dtype)


RegressionLearner = Callable[[Tensor, Tensor, Tensor, torch.Generator], Float[Tensor, "draw point"]]
"""From inputs and targets of training sets, and points, to the predictions of the fitted models at the points."""


@dataclass(frozen=True)
class RiskDecomposition:
    """Bias, variance and risk at one capacity, for each repetition."""

    capacity: float
    bias: Tensor
    """Unbiased estimates of the squared bias: corrected for the variance of a mean over finitely many training sets,
    so that they can be negative where the squared bias is close to 0."""
    variance: Tensor
    noise: float
    risk: Tensor

    @property
    def total(self) -> Tensor:
        """Squared bias + variance + noise."""
        return self.bias + self.variance + self.noise


def decompose_risk(
    problem: RegressionProblem, learner: RegressionLearner, capacity: float, *, num_rows: int, num_draws: int,
    num_points: int, rng: torch.Generator,
) -> RiskDecomposition:  # fmt: skip
    """Fit `num_draws` training sets for bias and variance and as many others for the risk, in each repetition."""

    def predict(points: Float[Tensor, "draw point input"]) -> Float[Tensor, "draw point"]:
        inputs = problem.draw(num_draws, num_rows, rng=rng)
        return learner(inputs, problem.targets(inputs, rng), points, rng)

    repetitions = []
    for _ in range(_NUM_BATCHES):
        shared = problem.draw(1, num_points, rng=rng)
        predicted = predict(shared.expand(num_draws, -1, -1))
        variance = predicted.var(dim=0)
        bias = (predicted.mean(dim=0) - problem.truth(shared)[0]).square() - variance / num_draws
        test = problem.draw(num_draws, num_points, rng=rng)
        residuals = predict(test) - problem.targets(test, rng)
        repetitions.append(torch.stack([bias.mean(), variance.mean(), residuals.square().mean()]))
    bias, variance, risk = torch.stack(repetitions, dim=1)
    return RiskDecomposition(capacity, bias, variance, problem.noise**2, risk)


def polynomial_learner(degree: int, *, strength: float) -> RegressionLearner:
    """Ridge regression on Legendre polynomials of the first input."""

    def learn(inputs: Tensor, targets: Tensor, points: Tensor, rng: torch.Generator) -> Tensor:
        weights = ridge_regression(legendre(inputs[..., 0], degree), targets[..., None], strength=strength)
        return (legendre(points[..., 0], degree) @ weights)[..., 0]

    return learn


def feature_learner(width: int, *, bandwidth: float, strength: float) -> RegressionLearner:
    """Ridge regression on random Fourier features, drawn anew for each training set."""

    def learn(inputs: Tensor, targets: Tensor, points: Tensor, rng: torch.Generator) -> Tensor:
        predicted = []
        for rows, target, test in zip(inputs, targets, points, strict=True):
            features = draw_random_features("fourier", rows.size(-1), width, bandwidth=bandwidth, rng=rng)
            weights = ridge_regression(features(rows), target[:, None], strength=strength)
            predicted.append((features(test) @ weights)[:, 0])
        return torch.stack(predicted)

    return learn


def legendre(x: Float[Tensor, "*batch"], degree: int) -> Float[Tensor, "*batch feature"]:
    r"""$\sqrt{2k + 1}\, P_k(x)$ for $k$ up to `degree`: uncorrelated where x is uniform on [-1, 1]."""
    values = [torch.ones_like(x), x]
    for k in range(1, degree):
        values.append(((2 * k + 1) * x * values[k] - k * values[k - 1]) / (k + 1))
    return torch.stack([math.sqrt(2 * k + 1) * value for k, value in enumerate(values[: degree + 1])], dim=-1)


FunctionFamily = Literal["coins", "thresholds"]
FUNCTION_FAMILIES: tuple[FunctionFamily, ...] = ("coins", "thresholds")
FLIPPED = 0.2
"""The fraction of flipped labels for thresholds, which is the risk of the best one."""
FAILURE_PROBABILITY = 0.05
_NUMBERS_AT_ONCE = 2**21


@dataclass(frozen=True)
class FunctionSelection:
    """Selections among K functions on n examples, for each draw."""

    family: FunctionFamily
    num_functions: int
    num_examples: int
    optimism: Float[Tensor, " draw"]
    """Risk minus error rate of the selected function."""
    excess: Float[Tensor, " draw"]
    """Its risk minus that of the best function."""
    deviation: Float[Tensor, " draw"]
    """The largest difference of risk and error rate over all functions."""

    @property
    def scale(self) -> float:
        """The square root of ln K / n."""
        return math.sqrt(math.log(self.num_functions) / self.num_examples)

    @property
    def bound(self) -> float:
        """Of the mean optimism."""
        return self.scale / math.sqrt(2)

    @property
    def violations(self) -> float:
        """Fraction of draws in which the uniform bound at `FAILURE_PROBABILITY` fails."""
        allowed = math.sqrt(math.log(2 * self.num_functions / FAILURE_PROBABILITY) / (2 * self.num_examples))
        return float((self.deviation > allowed).double().mean())


def select_function(
    family: FunctionFamily, num_functions: int, num_examples: int, *, num_draws: int, rng: torch.Generator
) -> FunctionSelection:
    """Draw examples repeatedly, and select the function with the fewest errors each time."""
    draw_rates = _coin_error_rates if family == "coins" else _threshold_error_rates
    risks = torch.full((num_functions,), 0.5, dtype=torch.float64)
    if family == "thresholds":
        # The true threshold is 1/2: between it and t, a prediction is correct only if the label was flipped.
        risks = FLIPPED + (1 - 2 * FLIPPED) * (_thresholds(num_functions) - 0.5).abs()
    at_once = max(1, _NUMBERS_AT_ONCE // (num_functions + num_examples))
    parts = []
    for start in range(0, num_draws, at_once):
        rates = draw_rates(num_functions, num_examples, min(at_once, num_draws - start), rng)
        lowest, selected = rates.min(dim=1)
        deviation = (rates - risks).abs().amax(1)
        parts.append(torch.stack([risks[selected] - lowest, risks[selected] - risks.min(), deviation]))
    return FunctionSelection(family, num_functions, num_examples, *torch.cat(parts, dim=1))


def select_all(
    counts: Sequence[int], sizes: Sequence[int], *, num_draws: int, rng: torch.Generator
) -> dict[FunctionFamily, list[FunctionSelection]]:
    """Every number of functions with every number of examples, for each family."""
    cases: list[tuple[FunctionFamily, int, int]] = [
        (family, k, n) for family in FUNCTION_FAMILIES for n in sizes for k in counts
    ]
    selections: dict[FunctionFamily, list[FunctionSelection]] = {family: [] for family in FUNCTION_FAMILIES}
    for family, k, n in progress_bar(cases, "selection among functions", total=len(cases)):
        selections[family].append(select_function(family, k, n, num_draws=num_draws, rng=rng))
    return selections


def optimism_slope(selections: Sequence[FunctionSelection]) -> float:
    """The slope of a line through 0 fitted to the mean optimism against the square root of ln K / n."""
    scales = torch.tensor([each.scale for each in selections], dtype=torch.float64)
    gaps = torch.stack([each.optimism.mean() for each in selections])
    return float((scales * gaps).sum() / scales.square().sum())


def optimism_exponent(selections: Sequence[FunctionSelection]) -> float:
    """The exponent of n in the mean optimism at the largest K: -1/2 in theory."""
    most = max(each.num_functions for each in selections)
    points = [(each.num_examples, float(each.optimism.mean())) for each in selections if each.num_functions == most]
    x, y = np.log(points).T
    return float(np.polyfit(x, y, 1)[0])


def _coin_error_rates(
    num_functions: int, num_examples: int, num_draws: int, rng: torch.Generator
) -> Float[Tensor, "draw function"]:
    """Error counts of independent random predictions are independent binomial variables."""
    counts = torch.full((num_draws, num_functions), float(num_examples), dtype=torch.float64)
    return torch.binomial(counts, torch.full_like(counts, 0.5), generator=rng) / num_examples


def _thresholds(num_functions: int) -> Float[Tensor, " function"]:
    """The midpoints of equal parts of [0, 1]."""
    return (torch.arange(num_functions, dtype=torch.float64) + 0.5) / num_functions


def _threshold_error_rates(
    num_functions: int, num_examples: int, num_draws: int, rng: torch.Generator
) -> Float[Tensor, "draw function"]:
    """Examples uniform on [0, 1]; the errors of all thresholds are cumulative sums over the sorted examples."""
    x = torch.rand(num_draws, num_examples, generator=rng, dtype=torch.float64).sort(dim=1).values
    flipped = torch.rand(num_draws, num_examples, generator=rng, dtype=torch.float64) < FLIPPED
    labels = (x >= 0.5) ^ flipped
    # A threshold errs on labels of 1 below it and on labels of 0 from it on.
    ones = F.pad(labels.double().cumsum(dim=1), (1, 0))
    below = torch.searchsorted(x, _thresholds(num_functions).expand(num_draws, -1).contiguous())
    ones_below = ones.gather(1, below)
    zeros_above = (num_examples - below) - (ones[:, -1:] - ones_below)
    return (ones_below + zeros_above) / num_examples
