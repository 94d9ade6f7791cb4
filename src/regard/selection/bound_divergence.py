r"""The divergence between two coins, and the coins within a distance of one: what some bounds invert.

$$ \mathrm{kl}(p \,\|\, q) = p \ln\frac{p}{q} + (1 - p) \ln\frac{1 - p}{1 - q} $$

It is 0 at $q = p$ and grows to both sides, so that each side is crossed once.
"""

import math
from collections.abc import Callable, Sequence

from regard.errors import ConfigError


def coin_divergence(p: float, q: float) -> float:
    """How far a coin that falls heads with chance `q` is from one with `p`, in nats.

    Example:
        >>> coin_divergence(0.5, 0.5), round(coin_divergence(0.0, 0.5), 4), coin_divergence(0.5, 1.0)
        (0.0, 0.6931, inf)
    """
    parts = [(p, q), (1 - p, 1 - q)]
    if any(a > 0 and b <= 0 for a, b in parts):
        return math.inf
    return max(0.0, sum(a * math.log(a / b) for a, b in parts if a > 0))


def largest_mean(p: float, room: float) -> float:
    """The largest q with kl(p || q) <= room.

    Example:
        >>> q = largest_mean(0.1, 0.05)
        >>> round(q, 4), round(coin_divergence(0.1, q), 6)
        (0.2201, 0.05)
    """
    return _last_within(lambda q: coin_divergence(p, q) <= room, p, 1.0)


def smallest_mean(p: float, room: float) -> float:
    """The smallest q with kl(p || q) <= room.

    Example:
        >>> round(smallest_mean(0.9, 0.05), 4)
        0.7799
    """
    return _last_within(lambda q: coin_divergence(p, q) <= room, p, 0.0)


def divergence_from_uniform(weights: Sequence[float]) -> float:
    r"""$\mathrm{KL}(Q \,\|\, P)$ of a choice by these weights from one in which all $M$ are alike: $\ln M - H(Q)$.

    Example:
        >>> round(divergence_from_uniform([0.25] * 4), 6), round(divergence_from_uniform([1, 0, 0, 0]), 4)
        (0.0, 1.3863)
    """
    total = math.fsum(weights)
    if not weights or min(weights) < 0 or not 0 < total < math.inf:
        raise ConfigError("weights must be at least one, none below 0 and not all 0")
    shares = [weight / total for weight in weights if weight > 0]
    return max(0.0, math.log(len(weights)) + math.fsum(share * math.log(share) for share in shares))


def _last_within(is_within: Callable[[float], bool], inside: float, outside: float) -> float:
    """Between a place within and an end that may be without: the border, as the first float known to be without.

    A bound that errs by the last bit should err outwards.
    """
    if is_within(outside):
        return outside
    while (middle := (inside + outside) / 2) not in (inside, outside):
        if is_within(middle):
            inside = middle
        else:
            outside = middle
    return outside
