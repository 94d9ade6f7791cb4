r"""How stable stochastic gradient descent must be: the bounds of Hardt, Recht and Singer.

Hardt, Recht & Singer, "Train faster, generalize better: Stability of stochastic gradient descent" (2016).
https://arxiv.org/abs/1509.01240

A learner is $\varepsilon$-uniformly stable if exchanging one of its $n$ training
examples changes its expected loss on any example by at most $\varepsilon$. Then the
loss on new examples exceeds that on the training examples by at most
$\varepsilon$ on average (theorem 2.2).

All bounds are for one example at each step, drawn uniformly, and for a loss that
is $L$-Lipschitz and $\beta$-smooth in the weights for every example. They follow how
far apart the two weights can be: a step with the same example expands their
distance by a factor that convexity holds at 1, and a step with the exchanged
one, which comes with probability $1/n$, adds at most $2 \alpha L$.
"""

from collections.abc import Sequence

from regard.errors import ConfigError


def convex_distance(rates: Sequence[float], *, num_rows: int, lipschitz: float, smoothness: float) -> float:
    r"""Of the weights, on average: $\frac{2L}{n} \sum_t \alpha_t$ (theorem 3.8, in its proof).

    Holds for a convex loss and rates up to $2 / \beta$.
    """
    if rates and max(rates) > 2 / smoothness:
        raise ConfigError(f"rates must not exceed 2 / smoothness, got {max(rates)=} and {smoothness=}")
    return 2 * lipschitz / num_rows * sum(rates)


def convex_stability(rates: Sequence[float], *, num_rows: int, lipschitz: float, smoothness: float) -> float:
    r"""Of losses: $\frac{2L^2}{n} \sum_t \alpha_t$ (theorem 3.8)."""
    return lipschitz * convex_distance(rates, num_rows=num_rows, lipschitz=lipschitz, smoothness=smoothness)


def strongly_convex_distance(
    rate: float, *, num_rows: int, lipschitz: float, smoothness: float, convexity: float
) -> float:
    r"""Of the weights, on average: $\frac{2L}{\gamma n}$, however long it goes on (theorem 3.9, in its proof).

    Holds for a $\gamma$-strongly convex loss, weights that are kept in a ball
    where it is $L$-Lipschitz, and one rate up to $1 / \beta$.
    """
    if rate > 1 / smoothness:
        raise ConfigError(f"rate must not exceed 1 / smoothness, got {rate=} and {smoothness=}")
    return 2 * lipschitz / (convexity * num_rows)


def nonconvex_stability(steps: int, *, scale: float, num_rows: int, lipschitz: float, smoothness: float) -> float:
    r"""Of losses between 0 and 1 that need not be convex, after $T$ steps at rates up to $c / t$ (theorem 3.12).

    $$ \varepsilon \le \frac{1 + 1 / \beta c}{n - 1}
       \big(2 c L^2\big)^{\frac{1}{\beta c + 1}}\, T^{\frac{\beta c}{\beta c + 1}} $$

    `scale` is $c$. A bound above 1 says nothing.
    """
    if num_rows < 2:
        raise ConfigError(f"num_rows must be at least 2, got {num_rows=}")
    growth = smoothness * scale
    factor = (2 * scale * lipschitz**2) ** (1 / (growth + 1)) * steps ** (growth / (growth + 1))
    return (1 + 1 / growth) / (num_rows - 1) * factor
