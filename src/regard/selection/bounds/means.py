r"""Bounds on a true mean: Hoeffding's, Chernoff's, empirical Bernstein, the exact one for proportions, and PAC-Bayes.

Hoeffding, "Probability Inequalities for Sums of Bounded Random Variables", JASA 58 (1963), theorems 1 and 2.
Maurer and Pontil, "Empirical Bernstein Bounds and Sample Variance Penalization" (2009). https://arxiv.org/abs/0907.3740
Clopper and Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial" (1934).
Seeger, "PAC-Bayesian Generalisation Error Bounds for Gaussian Process Classification" (2002).
Maurer, "A Note on the PAC Bayesian Theorem" (2004), theorem 5. https://arxiv.org/abs/cs/0411099

They hold when the $N$ examples are independent draws from one distribution,
the $M$ candidates were all fixed before those examples were seen, and $M$ counts
every candidate that was evaluated on them. The candidates may depend on each
other in any way. $\hat\mu$ is the measured mean, $\mu$ the true one.
"""

import math
from collections.abc import Callable, Sequence

from regard.errors import ConfigError
from regard.selection.bounds.bound import (
    DELTA,
    Bound,
    Side,
    check_arguments,
    check_unit_interval,
    describe_guarantee,
    largest_distance,
    log_tail,
)


def hoeffding_epsilon(
    num_examples: int, *, num_candidates: int = 1, delta: float = DELTA, side: Side = "both"
) -> float:
    r"""The largest distance of any of $M$ true means from its measured one.

    $$ \varepsilon = \sqrt{\frac{\ln(2M / \delta)}{2N}} $$

    with $M$ in place of $2M$ where only one side is bounded. It holds for scores
    in [0, 1] of any distribution, under the conditions at the head of this file.

    Example:
        >>> round(hoeffding_epsilon(4_000, num_candidates=1_000_000), 4)
        0.0468
    """
    check_arguments(num_examples=num_examples)
    return math.sqrt(-log_tail(num_candidates, delta, side) / (2 * num_examples))


def hoeffding(
    value: float | None, num_examples: int, *, num_candidates: int = 1, delta: float = DELTA, side: Side = "both"
) -> Bound:
    r"""Hoeffding's inequality for each candidate, and the union bound over all of them.

    $$ P\Big(\exists i: |\hat\mu_i - \mu_i| \ge \varepsilon\Big) \le 2 M e^{-2 N \varepsilon^2} = \delta $$

    It holds for scores in [0, 1] and uses nothing but their range, so that it is
    as wide at 0.99 as at 0.5. `value` may be None: epsilon does not depend on it.

    Example:
        >>> bound = hoeffding(0.93, 4_000, num_candidates=1_000_000)
        >>> round(bound.lower, 4), round(bound.upper, 4)
        (0.8832, 0.9768)
    """
    epsilon = hoeffding_epsilon(num_examples, num_candidates=num_candidates, delta=delta, side=side)
    if value is not None:
        check_unit_interval(value, "Hoeffding's bound")
    return _bound(
        "Hoeffding", "scores in [0, 1]", value, num_examples, num_candidates, delta, side,
        ends=None if value is None else (value - epsilon, value + epsilon), epsilon=epsilon,
    )  # fmt: skip


def chernoff(
    value: float, num_examples: int, *, num_candidates: int = 1, delta: float = DELTA, side: Side = "both"
) -> Bound:
    r"""Chernoff's bound in its sharp form (Hoeffding 1963, theorem 1), and the union bound over all candidates.

    The ends are the smallest and the largest $\mu$ with

    $$ \mathrm{kl}(\hat\mu \,\|\, \mu) \le \frac{\ln(2M/\delta)}{N}, \qquad
       \mathrm{kl}(p \,\|\, q) = p \ln\frac{p}{q} + (1 - p) \ln\frac{1 - p}{1 - q} . $$

    It holds for scores in [0, 1], and needs only their mean. Since
    $2(p - q)^2 \le \mathrm{kl}(p \,\|\, q)$, it is never wider than Hoeffding's;
    near 0 and 1 it is much narrower.

    Example:
        >>> bound = chernoff(0.93, 4_000, num_candidates=1_000_000)
        >>> round(bound.lower, 4), round(bound.upper, 4)
        (0.9036, 0.9514)
    """
    check_arguments(num_examples=num_examples)
    check_unit_interval(value, "Chernoff's bound")
    budget = -log_tail(num_candidates, delta, side) / num_examples
    ends = kl_lower_end(value, budget), kl_upper_end(value, budget)
    return _bound(
        "Chernoff", "scores in [0, 1]", value, num_examples, num_candidates, delta, side,
        ends=ends, epsilon=largest_distance(value, ends, side),
    )  # fmt: skip


def bernstein(
    value: float,
    num_examples: int,
    *,
    variance: float | None = None,
    num_candidates: int = 1,
    delta: float = DELTA,
    side: Side = "both",
) -> Bound:
    r"""The empirical Bernstein bound: narrow where the scores have a small variance.

    $$ \varepsilon = \sqrt{\frac{2 V \ln(4M/\delta)}{N}} + \frac{7 \ln(4M/\delta)}{3 (N - 1)} $$

    with $V$ the sample variance of the $N$ scores, divided by $N - 1$ (Maurer
    and Pontil 2009, theorem 4 and corollary 5, which bound one side, with
    $2M$ in place of $4M$; applied twice here, with half of $\delta$ each). It
    holds for scores in [0, 1] and $N \ge 2$. The second term makes it useless for
    few examples; the first is smaller than Hoeffding's where $V$ is well below 1/4.

    Args:
        value: The measured mean.
        num_examples: The number of scores it is the mean of.
        variance: The sample variance, divided by $N - 1$. None takes the largest that
            scores in [0, 1] with that mean can have, $\hat\mu (1 - \hat\mu) N / (N - 1)$,
            which is that of scores of 0 and 1.
        num_candidates: The number of candidates one was selected from.
        delta: The probability of failure.
        side: Which ends are bounded.

    Example:
        >>> bound = bernstein(0.93, 4_000, variance=0.01, num_candidates=1_000_000)
        >>> round(bound.epsilon, 4)
        0.0202
    """
    check_arguments(num_examples=num_examples, fewest=2)
    check_unit_interval(value, "the empirical Bernstein bound")
    largest = value * (1 - value) * num_examples / (num_examples - 1)
    variance = largest if variance is None else variance
    # By rounding, the variance of scores of 0 and 1 may exceed the largest possible one slightly.
    if not 0.0 <= variance <= largest * (1 + 1e-9) + 1e-12:
        raise ConfigError(
            f"scores in [0, 1] with the mean {value:g} have a sample variance of at most {largest:g}, got {variance:g}"
        )
    log_term = math.log(2) - log_tail(num_candidates, delta, side)
    epsilon = math.sqrt(2 * variance * log_term / num_examples) + 7 * log_term / (3 * (num_examples - 1))
    return _bound(
        "empirical Bernstein", "scores in [0, 1]", value, num_examples, num_candidates, delta, side,
        ends=(value - epsilon, value + epsilon), epsilon=epsilon,
    )  # fmt: skip


def binomial(
    num_successes: float, num_examples: int, *, num_candidates: int = 1, delta: float = DELTA, side: Side = "both"
) -> Bound:
    r"""Clopper and Pearson's exact interval of a proportion, and the union bound over all candidates.

    With $k$ successes, $t = \delta / 2M$ and $B(q; a, b)$ the $q$ quantile of the
    beta distribution,

    $$ \big[\, B(t;\; k,\; N - k + 1),\;\; B(1 - t;\; k + 1,\; N - k) \,\big] $$

    and $t = \delta / M$ where only one side is bounded. It holds where each example
    is right or wrong, and each is right with the same probability, as is the case
    for examples drawn at random. Chernoff's bound is an upper bound on the tails that
    are exact here, so this interval always lies inside Chernoff's.

    Args:
        num_successes: $k$. If it is not a whole number, such as a rounded proportion
            times $N$, the lower end is computed for the whole number below and the
            upper end for the one above.
        num_examples: The number of examples.
        num_candidates: The number of candidates one was selected from.
        delta: The probability of failure.
        side: Which ends are bounded.

    Example:
        >>> bound = binomial(3_720, 4_000, num_candidates=1_000_000)
        >>> round(bound.lower, 4), round(bound.upper, 4)
        (0.9057, 0.95)
    """
    from scipy.special import betaincinv  # imported here, since scipy loads slowly

    check_arguments(num_examples=num_examples)
    if not 0 <= num_successes <= num_examples:
        raise ConfigError(
            f"0 <= num_successes <= num_examples must hold, got {num_successes=:g} and {num_examples=}; for "
            f"scores other than 0 and 1 use Hoeffding's, Chernoff's or the empirical Bernstein bound"
        )
    tail = math.exp(log_tail(num_candidates, delta, side))
    # 0.57 * 100 is slightly below 57 in floating point.
    whole = round(num_successes)
    num_successes = whole if math.isclose(num_successes, whole, rel_tol=1e-12) else num_successes
    num_right, num_wrong = math.floor(num_successes), num_examples - math.ceil(num_successes)
    value = num_successes / num_examples
    lower = 0.0 if num_right == 0 else float(betaincinv(num_right, num_examples - num_right + 1, tail))
    upper = 1.0 if num_wrong == 0 else 1.0 - float(betaincinv(num_wrong, num_examples - num_wrong + 1, tail))
    return _bound(
        "exact binomial", "scores of 0 or 1", value, num_examples, num_candidates, delta, side,
        ends=(lower, upper), epsilon=largest_distance(value, (lower, upper), side),
    )  # fmt: skip


def pac_bayes(value: float, num_examples: int, *, divergence: float, delta: float = DELTA) -> Bound:
    r"""PAC-Bayes for a predictor drawn at random for each example: the kl form, inverted numerically.

    Let a prior $P$ over candidates be fixed before the examples are seen. With
    probability at least $1 - \delta$, for *all* posteriors $Q$ at once,

    $$ \mathrm{kl}\big(\hat\mu_Q \,\|\, \mu_Q\big)
       \le \frac{\mathrm{KL}(Q \,\|\, P) + \ln(2\sqrt{N} / \delta)}{N} $$

    where $\hat\mu_Q$ and $\mu_Q$ are the measured and the true mean score of a
    candidate drawn from $Q$. It holds for scores in [0, 1] and independent
    examples. $Q$ may depend on the examples: that is its purpose.

    The guarantee is about the *randomized* predictor, which draws a candidate
    for each example: not about a vote, and not about the best candidate. With a
    uniform prior over $M$ and all of $Q$ on one, the divergence is $\ln M$, and
    this is the union bound up to $\ln \sqrt N$; with $Q$ uniform over the best
    $m$ it is $\ln(M/m)$, so that it is narrower where many candidates are nearly
    as good as the best.

    Args:
        value: The mean of the measured scores, weighted by $Q$.
        num_examples: The number of examples each score is the mean of.
        divergence: $\mathrm{KL}(Q \,\|\, P)$ in nats, such as from `kl_from_uniform`.
        delta: The probability of failure.

    Example:
        >>> one = pac_bayes(0.93, 4_000, divergence=math.log(1_000_000))
        >>> best_tenth = pac_bayes(0.925, 4_000, divergence=math.log(10))
        >>> round(one.lower, 4), round(best_tenth.lower, 4)
        (0.9003, 0.9048)
    """
    check_arguments(num_examples=num_examples, delta=delta)
    check_unit_interval(value, "the PAC-Bayes bound")
    if not 0.0 <= divergence < math.inf:
        raise ConfigError(f"divergence must be finite and not below 0, got {divergence:g}")
    budget = (divergence + math.log(2 * math.sqrt(num_examples) / delta)) / num_examples
    lower, upper = kl_lower_end(value, budget), kl_upper_end(value, budget)
    return Bound(
        name="PAC-Bayes",
        statement=f"with probability at least {1 - delta:.6g}, for all weightings at once, the true mean of a "
        f"candidate drawn by its weight lies in the interval; for scores in [0, 1], independent examples, and a "
        f"prior fixed before them",
        value=value,
        lower=lower,
        upper=upper,
        epsilon=max(value - lower, upper - value),
        num_candidates=None,
        num_examples=num_examples,
        delta=delta,
    )


def binary_kl(p: float, q: float) -> float:
    r"""The divergence of two Bernoulli distributions in nats: $p \ln(p/q) + (1 - p) \ln((1 - p)/(1 - q))$.

    It is 0 at $q = p$ and increases monotonically on both sides.

    Example:
        >>> binary_kl(0.5, 0.5), round(binary_kl(0.0, 0.5), 4), binary_kl(0.5, 1.0)
        (0.0, 0.6931, inf)
    """
    parts = [(p, q), (1 - p, 1 - q)]
    if any(a > 0 and b <= 0 for a, b in parts):
        return math.inf
    return max(0.0, sum(a * math.log(a / b) for a, b in parts if a > 0))


def kl_upper_end(p: float, budget: float) -> float:
    """The largest q with kl(p || q) <= budget.

    Example:
        >>> q = kl_upper_end(0.1, 0.05)
        >>> round(q, 4), round(binary_kl(0.1, q), 6)
        (0.2201, 0.05)
    """
    return _last_within(lambda q: binary_kl(p, q) <= budget, p, 1.0)


def kl_lower_end(p: float, budget: float) -> float:
    """The smallest q with kl(p || q) <= budget.

    Example:
        >>> round(kl_lower_end(0.9, 0.05), 4)
        0.7799
    """
    return _last_within(lambda q: binary_kl(p, q) <= budget, p, 0.0)


def kl_from_uniform(weights: Sequence[float]) -> float:
    r"""$\mathrm{KL}(Q \,\|\, P)$ of the distribution with these weights from the uniform one: $\ln M - H(Q)$.

    Example:
        >>> round(kl_from_uniform([0.25] * 4), 6), round(kl_from_uniform([1, 0, 0, 0]), 4)
        (0.0, 1.3863)
    """
    total = math.fsum(weights)
    if not weights or min(weights) < 0 or not 0 < total < math.inf:
        raise ConfigError("there must be at least one weight, none below 0 and not all 0")
    shares = [weight / total for weight in weights if weight > 0]
    return max(0.0, math.log(len(weights)) + math.fsum(share * math.log(share) for share in shares))


def _bound(
    name: str,
    which: str,
    value: float | None,
    num_examples: int,
    num_candidates: int,
    delta: float,
    side: Side,
    *,
    ends: tuple[float, float] | None,
    epsilon: float,
) -> Bound:
    """The record of an interval of means in [0, 1]; an end that is not bounded is that of the scale."""
    lower = upper = None
    if ends is not None:
        lower = 0.0 if side == "upper" else max(0.0, ends[0])
        upper = 1.0 if side == "lower" else min(1.0, ends[1])
    return Bound(
        name=name,
        statement=f"{describe_guarantee(num_candidates, delta, side)}; for {which}, independent examples, and "
        f"candidates fixed before them",
        value=value,
        lower=lower,
        upper=upper,
        epsilon=epsilon,
        num_candidates=num_candidates,
        num_examples=num_examples,
        delta=delta,
        side=side,
    )


def _last_within(is_within: Callable[[float], bool], inside: float, outside: float) -> float:
    """The boundary between `inside`, which is within, and `outside`, as the first float that is not within.

    Rounding is outwards, so that a bound stays valid in its last bit.
    """
    if is_within(outside):
        return outside
    while (middle := (inside + outside) / 2) not in (inside, outside):
        if is_within(middle):
            inside = middle
        else:
            outside = middle
    return outside
