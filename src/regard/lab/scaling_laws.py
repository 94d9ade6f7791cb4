r"""Laws of the loss of a language model, and how they are fitted.

Kaplan et al., "Scaling Laws for Neural Language Models" (2020). https://arxiv.org/abs/2001.08361
Hoffmann et al., "Training Compute-Optimal Large Language Models" (2022), section 3.3. https://arxiv.org/abs/2203.15556

With $N$ parameters and $D$ tokens read once,

$$ L(N, D) = E + \frac{A}{N^\alpha} + \frac{B}{D^\beta} : $$

what no model can foretell, what a model of that size cannot hold, and what was
not learnt from so little. With a compute of $C = 6 N D$ the least loss is had at

$$ N^* = \Big(\frac{\alpha A}{\beta B}\Big)^{\frac{1}{\alpha + \beta}}
   \Big(\frac{C}{6}\Big)^{\frac{\beta}{\alpha + \beta}} , \qquad D^* = \frac{C}{6 N^*} . $$

A single power law $L = c\, x^{-\gamma}$ has no such floor, and so cannot hold for
ever: it foretells a loss of 0 at last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares
from scipy.special import logsumexp, softmax

from regard.errors import DataError

HUBER_DELTA = 1e-3
"""Beyond this a residual of the logarithm counts by its size, not its square, so that no bad run decides by itself."""
LARGEST_EXPONENT = 3.0
_MOST_DRAWS = 50

_STARTS = tuple(product((0.5, 0.9), (0.2, 1.0)))
"""Share of the least loss that is E; both exponents."""
_LEAST_START = 0.3
"""Of the least loss: nearer to 0, E is lost sight of, for nothing changes with its logarithm any more."""
_FACTOR = float(np.log(0.3))
"""A / N^alpha and B / D^beta, at a middle N and D."""
_TOLERANCE = 1e-6

Numbers = Float[np.ndarray, " runs"]
Fitted = TypeVar("Fitted")


@dataclass(frozen=True)
class Law:
    """The loss by parameters and data."""

    floor: float
    """E, what is left with endless parameters and data."""
    size_factor: float
    size_exponent: float
    """A and alpha."""
    data_factor: float
    data_exponent: float
    """B and beta."""

    def loss(self, parameters: float, tokens: float) -> float:
        of_size = self.size_factor * parameters**-self.size_exponent
        return self.floor + of_size + self.data_factor * tokens**-self.data_exponent

    @property
    def share_of_size(self) -> float:
        """The exponent with which the best number of parameters grows with compute; that of the data is 1 minus it."""
        return self.data_exponent / (self.size_exponent + self.data_exponent)

    def best_size(self, compute: float) -> float:
        """The number of parameters of the least loss at a compute of 6 N D."""
        ratio = self.size_exponent * self.size_factor / (self.data_exponent * self.data_factor)
        return ratio ** (1 / (self.size_exponent + self.data_exponent)) * (compute / 6) ** self.share_of_size


@dataclass(frozen=True)
class PowerLaw:
    """The loss by one number alone."""

    factor: float
    exponent: float

    def loss(self, x: float) -> float:
        return self.factor * x**-self.exponent


def fit_law(parameters: Numbers, tokens: Numbers, losses: Numbers, *, start: Law | None = None) -> Law:
    r"""The law with the least Huber loss of $\log L$, from several starts, or from one that is near.

    As Hoffmann et al. do it, but with both logarithms counted from their means,
    where factor and exponent hardly depend on each other. Exponents are held
    between 0.01 and `LARGEST_EXPONENT`.
    """
    x, y, z = np.log(parameters), np.log(tokens), np.log(losses)
    x_mean, y_mean = float(x.mean()), float(y.mean())
    x, y = x - x_mean, y - y_mean

    def terms(theta: Float[np.ndarray, " 5"]) -> Float[np.ndarray, "3 runs"]:
        """The logarithm of each summand of the law."""
        e, a, alpha, b, beta = theta
        return np.stack([np.full_like(z, e), a - alpha * x, b - beta * y])

    def residuals(theta: Float[np.ndarray, " 5"]) -> Numbers:
        return logsumexp(terms(theta), axis=0) - z

    def slopes(theta: Float[np.ndarray, " 5"]) -> Float[np.ndarray, "runs 5"]:
        shares = softmax(terms(theta), axis=0)
        return np.stack([shares[0], shares[1], -shares[1] * x, shares[2], -shares[2] * y], axis=1)

    factors, exponents = (-12.0, 5.0), (0.01, LARGEST_EXPONENT)
    bounds = [(float(z.min()) - 7.0, float(z.max())), factors, exponents, factors, exponents]
    derivative: Any = slopes  # scipy's annotation knows only the names of its own
    search = partial(
        least_squares, residuals, jac=derivative, bounds=tuple(zip(*bounds, strict=True)), loss="huber",
        f_scale=HUBER_DELTA, max_nfev=300, ftol=_TOLERANCE, xtol=_TOLERANCE,
    )  # fmt: skip
    least = float(losses.min())
    if start is None:
        starts = [[np.log(share * least), _FACTOR, exponent, _FACTOR, exponent] for share, exponent in _STARTS]
    else:
        starts = [_centered(start, x_mean, y_mean, least=least)]
    found = [search(theta) for theta in starts]
    e, a, alpha, b, beta = min(found, key=lambda result: result.cost).x.tolist()
    return Law(
        float(np.exp(e)), float(np.exp(a + alpha * x_mean)), alpha, float(np.exp(b + beta * y_mean)), beta
    )  # fmt: skip


def _centered(law: Law, x_mean: float, y_mean: float, *, least: float) -> list[float]:
    of_size = float(np.log(law.size_factor)) - law.size_exponent * x_mean
    of_data = float(np.log(law.data_factor)) - law.data_exponent * y_mean
    floor = max(law.floor, _LEAST_START * least)
    return [float(np.log(floor)), of_size, law.size_exponent, of_data, law.data_exponent]


def fit_power(x: Numbers, losses: Numbers) -> PowerLaw:
    """The line of least squares through the logarithms."""
    slope, intercept = np.polyfit(np.log(x), np.log(losses), 1)
    return PowerLaw(float(np.exp(intercept)), -float(slope))


def frontier(compute: Numbers, losses: Numbers) -> list[int]:
    """The runs than which none is better at the same compute or less, by their numbers, the cheapest first."""
    order = np.lexsort([losses, compute])
    lowest = np.minimum.accumulate(losses[order])
    is_better = np.concatenate([[True], losses[order][1:] < lowest[:-1]])
    return order[is_better].tolist()


@dataclass(frozen=True)
class Misfit:
    """How far runs lie from a law, beside how far they lie from each other."""

    off: float
    """The root mean square of what the law leaves of the mean log loss of runs that differ in their seed alone."""
    spread: float
    """The standard deviation of the log loss among such runs."""
    p_value: float
    """How probable as much is if the law holds."""


def misfit(runs: Sequence[tuple[float, float, float]], law: Law) -> Misfit | None:
    """The F test of lack of fit (Fisher 1922), from parameters, tokens and loss of each run.

    Runs of the same size and data tell how much is luck, whatever the law; None
    without such runs, or with no more sizes and amounts than the law has numbers.
    The test supposes normal errors, as wide everywhere, and a fit of least squares.
    """
    from scipy.stats import f as fisher

    alike: dict[tuple[float, float], list[float]] = {}
    for parameters, tokens, loss in runs:
        alike.setdefault((parameters, tokens), []).append(float(np.log(loss)))
    num_repeated, num_left = len(runs) - len(alike), len(alike) - 5
    if num_repeated < 1 or num_left < 1:
        return None
    within = sum(len(logs) * float(np.var(logs)) for logs in alike.values()) / num_repeated
    lacks = [(len(logs), float(np.mean(logs) - np.log(law.loss(*of)))) for of, logs in alike.items()]
    between = sum(count * lack**2 for count, lack in lacks) / num_left
    off = float(np.sqrt(np.mean([lack**2 for _, lack in lacks])))
    return Misfit(off, float(np.sqrt(within)), float(fisher.sf(between / within, num_left, num_repeated)))


def resampled(
    fit: Callable[[Sequence[int]], Fitted],
    num_runs: int,
    *,
    num_resamples: int,
    rng: np.random.Generator,
    is_enough: Callable[[Sequence[int]], bool],
) -> list[Fitted]:
    """What is fitted to as many runs, drawn with replacement; a draw that is not enough to fit is drawn again.

    The runs are taken for independent draws of size, data and seed, which a grid
    is not quite: the intervals read off this are a guide, and with few runs too narrow.
    """
    fits: list[Fitted] = []
    for _ in range(_MOST_DRAWS * num_resamples):
        drawn = sorted(rng.integers(num_runs, size=num_runs).tolist())
        if is_enough(drawn):
            fits.append(fit(drawn))
        if len(fits) == num_resamples:
            return fits
    raise DataError(
        f"one draw of runs in {_MOST_DRAWS} must be enough to fit laws to, got {len(fits)} in "
        f"{_MOST_DRAWS * num_resamples:,}: give more runs"
    )


def interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile interval."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
