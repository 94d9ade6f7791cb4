r"""Choosing the best of K functions by their errors on n examples: what the choice costs.

Shalev-Shwartz and Ben-David, *Understanding Machine Learning* (2014), chapters 2 and 4.
Massart, "Some applications of concentration inequalities to statistics" (2000), lemma 5.2.

Each function errs with probability $R_k$, and on $n$ examples in a share $\hat R_k$.
Taken is $\hat k$, the one with the smallest share: empirical risk minimisation. Errors
are numbers in [0, 1], so by Hoeffding's lemma

$$ \mathbb E\,[R_{\hat k} - \hat R_{\hat k}] \le \sqrt{\frac{\ln K}{2n}}, \qquad
   \Pr\Big[\max_k |R_k - \hat R_k| > \sqrt{\tfrac{\ln(2K/\delta)}{2n}}\Big] \le \delta , $$

for examples drawn independently of each other and of the functions, however these
depend on one another. Two families:

    coins        guesses that have nothing to do with the label or with each other
    thresholds   is x at least t, for K places t on a line: neighbours answer nearly alike

Dimensions: `function`, `draw` of n examples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.logging import progress_bar

Family = Literal["coins", "thresholds"]
FAMILIES: tuple[Family, ...] = ("coins", "thresholds")
FLIPPED = 0.2
"""The share of labels turned round, for thresholds: what the best of them errs."""
DELTA = 0.05
_NUMBERS_AT_ONCE = 2**21


@dataclass(frozen=True)
class Choice:
    """What choosing among K functions by n examples came to, draw by draw."""

    family: Family
    num_functions: int
    num_examples: int
    optimism: Float[Tensor, " draw"]
    """How much larger the chosen function's risk is than its share of errors on the examples."""
    excess: Float[Tensor, " draw"]
    """How much larger it is than that of the best function."""
    deviation: Float[Tensor, " draw"]
    """The largest difference between risk and share, over all functions."""

    @property
    def scale(self) -> float:
        """What theory measures the gap in: the root of ln K / n."""
        return math.sqrt(math.log(self.num_functions) / self.num_examples)

    @property
    def bound(self) -> float:
        """The mean optimism can be no more."""
        return self.scale / math.sqrt(2)

    @property
    def violations(self) -> float:
        """Share of draws in which some function deviates by more than is allowed with probability 1 - `DELTA`."""
        allowed = math.sqrt(math.log(2 * self.num_functions / DELTA) / (2 * self.num_examples))
        return float((self.deviation > allowed).double().mean())


def choose(family: Family, num_functions: int, num_examples: int, *, num_draws: int, rng: torch.Generator) -> Choice:
    """Draw examples again and again, and take the function with fewest errors each time."""
    risks, measure = {"coins": (_coin_risks, _coin_shares), "thresholds": (_threshold_risks, _threshold_shares)}[family]
    true = risks(num_functions)
    at_once = max(1, _NUMBERS_AT_ONCE // (num_functions + num_examples))
    parts = []
    for start in range(0, num_draws, at_once):
        shares = measure(num_functions, num_examples, min(at_once, num_draws - start), rng)
        lowest, chosen = shares.min(dim=1)
        parts.append(torch.stack([true[chosen] - lowest, true[chosen] - true.min(), (shares - true).abs().amax(1)]))
    return Choice(family, num_functions, num_examples, *torch.cat(parts, dim=1))


def choose_all(
    counts: Sequence[int], sizes: Sequence[int], *, num_draws: int, rng: torch.Generator
) -> dict[Family, list[Choice]]:
    """Every number of functions with every number of examples, for each family."""
    cases: list[tuple[Family, int, int]] = [(family, k, n) for family in FAMILIES for n in sizes for k in counts]
    choices: dict[Family, list[Choice]] = {family: [] for family in FAMILIES}
    for family, k, n in progress_bar(cases, "choosing among functions", total=len(cases)):
        choices[family].append(choose(family, k, n, num_draws=num_draws, rng=rng))
    return choices


def slope(choices: Sequence[Choice]) -> float:
    """Of the line through 0 that comes nearest to the mean optimism, against the root of ln K / n."""
    scales = torch.tensor([choice.scale for choice in choices], dtype=torch.float64)
    gaps = torch.stack([choice.optimism.mean() for choice in choices])
    return float((scales * gaps).sum() / scales.square().sum())


def power(choices: Sequence[Choice]) -> float:
    """The power of n with which the mean optimism goes at the largest K: theory says -1/2."""
    most = max(choice.num_functions for choice in choices)
    line = [choice for choice in choices if choice.num_functions == most]
    x = torch.tensor([math.log(choice.num_examples) for choice in line], dtype=torch.float64)
    y = torch.stack([choice.optimism.mean() for choice in line]).log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def _coin_risks(num_functions: int) -> Float[Tensor, " function"]:
    return torch.full((num_functions,), 0.5, dtype=torch.float64)


def _coin_shares(
    num_functions: int, num_examples: int, num_draws: int, rng: torch.Generator
) -> Float[Tensor, "draw function"]:
    """Errors of independent guesses are independent binomial numbers, so that nothing else need be drawn."""
    counts = torch.full((num_draws, num_functions), float(num_examples), dtype=torch.float64)
    return torch.binomial(counts, torch.full_like(counts, 0.5), generator=rng) / num_examples


def _places(num_functions: int) -> Float[Tensor, " function"]:
    """Middles of equal parts of [0, 1]."""
    return (torch.arange(num_functions, dtype=torch.float64) + 0.5) / num_functions


def _threshold_risks(num_functions: int) -> Float[Tensor, " function"]:
    """The true threshold is 1/2: where t differs from it, an answer is right only if the label was turned round."""
    return FLIPPED + (1 - 2 * FLIPPED) * (_places(num_functions) - 0.5).abs()


def _threshold_shares(
    num_functions: int, num_examples: int, num_draws: int, rng: torch.Generator
) -> Float[Tensor, "draw function"]:
    """Examples uniform on [0, 1]; the errors of all thresholds are sums over the examples in order."""
    x = torch.rand(num_draws, num_examples, generator=rng, dtype=torch.float64).sort(dim=1).values
    flipped = torch.rand(num_draws, num_examples, generator=rng, dtype=torch.float64) < FLIPPED
    label = (x >= 0.5) ^ flipped
    # A threshold errs on labels of 1 below it and on labels of 0 from it on.
    ones = F.pad(label.double().cumsum(dim=1), (1, 0))
    below = torch.searchsorted(x, _places(num_functions).expand(num_draws, -1).contiguous())
    missed = ones.gather(1, below)
    zeros_above = (num_examples - below) - (ones[:, -1:] - missed)
    return (missed + zeros_above) / num_examples
