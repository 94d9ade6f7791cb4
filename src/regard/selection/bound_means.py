r"""Bounds on a true mean: Hoeffding's, Chernoff's, the empirical Bernstein bound, and the exact one for proportions.

Hoeffding, "Probability Inequalities for Sums of Bounded Random Variables", JASA 58 (1963), theorems 1 and 2.
Maurer and Pontil, "Empirical Bernstein Bounds and Sample Variance Penalization" (2009). https://arxiv.org/abs/0907.3740
Clopper and Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial" (1934).

They hold when the $N$ examples are independent draws from one distribution,
the $M$ hypotheses were all fixed before those examples were seen, and $M$ counts
every one that was looked at. Nothing is asked of how the hypotheses depend on
each other. $\hat\mu$ is the mean that was measured, $\mu$ the true one.
"""

import math

from regard.errors import ConfigError
from regard.selection.bound_divergence import largest_mean, smallest_mean
from regard.selection.bound_record import DELTA, Bound, Side, check, check_share, log_tail, reach, spell_promise


def hoeffding_epsilon(
    num_examples: int, *, num_hypotheses: int = 1, delta: float = DELTA, side: Side = "both"
) -> float:
    r"""How far any of $M$ true means lies from its measured one, at most.

    $$ \varepsilon = \sqrt{\frac{\ln(2M / \delta)}{2N}} $$

    with $M$ in the place of $2M$ where one side is enough. It holds for scores
    in [0, 1], whatever their distribution; see the head of this file.

    Example:
        >>> round(hoeffding_epsilon(4_000, num_hypotheses=1_000_000), 4)
        0.0468
    """
    check(num_examples=num_examples)
    return math.sqrt(-log_tail(num_hypotheses, delta, side) / (2 * num_examples))


def hoeffding(
    value: float | None, num_examples: int, *, num_hypotheses: int = 1, delta: float = DELTA, side: Side = "both"
) -> Bound:
    r"""Hoeffding's inequality for each hypothesis, and the union over all of them.

    $$ P\Big(\exists i: |\hat\mu_i - \mu_i| \ge \varepsilon\Big) \le 2 M e^{-2 N \varepsilon^2} = \delta $$

    It holds for scores in [0, 1] and knows nothing else of them, so that it is
    as wide at 0.99 as at 0.5. `value` may be left out (None): epsilon does not
    ask for it.

    Example:
        >>> bound = hoeffding(0.93, 4_000, num_hypotheses=1_000_000)
        >>> round(bound.lower, 4), round(bound.upper, 4)
        (0.8832, 0.9768)
    """
    epsilon = hoeffding_epsilon(num_examples, num_hypotheses=num_hypotheses, delta=delta, side=side)
    if value is not None:
        check_share(value, "Hoeffding's bound")
    return _bound(
        "Hoeffding", "scores in [0, 1]", value, num_examples, num_hypotheses, delta, side,
        ends=None if value is None else (value - epsilon, value + epsilon), epsilon=epsilon,
    )  # fmt: skip


def chernoff(
    value: float, num_examples: int, *, num_hypotheses: int = 1, delta: float = DELTA, side: Side = "both"
) -> Bound:
    r"""Chernoff's bound in its sharp form (Hoeffding 1963, theorem 1), and the union over all hypotheses.

    The ends are the smallest and the largest $\mu$ with

    $$ \mathrm{kl}(\hat\mu \,\|\, \mu) \le \frac{\ln(2M/\delta)}{N}, \qquad
       \mathrm{kl}(p \,\|\, q) = p \ln\frac{p}{q} + (1 - p) \ln\frac{1 - p}{1 - q} . $$

    It holds for scores in [0, 1], and needs no more than their mean. Since
    $2(p - q)^2 \le \mathrm{kl}(p \,\|\, q)$, it never is wider than Hoeffding's;
    near 0 and 1 it is much narrower.

    Example:
        >>> bound = chernoff(0.93, 4_000, num_hypotheses=1_000_000)
        >>> round(bound.lower, 4), round(bound.upper, 4)
        (0.9036, 0.9514)
    """
    check(num_examples=num_examples)
    check_share(value, "Chernoff's bound")
    room = -log_tail(num_hypotheses, delta, side) / num_examples
    ends = smallest_mean(value, room), largest_mean(value, room)
    return _bound(
        "Chernoff", "scores in [0, 1]", value, num_examples, num_hypotheses, delta, side,
        ends=ends, epsilon=reach(value, ends, side),
    )  # fmt: skip


def bernstein(
    value: float,
    num_examples: int,
    *,
    variance: float | None = None,
    num_hypotheses: int = 1,
    delta: float = DELTA,
    side: Side = "both",
) -> Bound:
    r"""The empirical Bernstein bound: narrow where the scores vary little.

    $$ \varepsilon = \sqrt{\frac{2 V \ln(4M/\delta)}{N}} + \frac{7 \ln(4M/\delta)}{3 (N - 1)} $$

    with $V$ the sample variance of the $N$ scores, divided by $N - 1$ (Maurer
    and Pontil 2009, theorem 4 and corollary 5, which bound one side, with
    $2M$ in the place of $4M$; here twice, with half of $\delta$ for each). It
    holds for scores in [0, 1] and $N \ge 2$. The second term makes it useless for
    few examples; the first beats Hoeffding's where $V$ is well below 1/4.

    Args:
        value: The measured mean.
        num_examples: How many scores it is the mean of.
        variance: Theirs, divided by $N - 1$. None takes the largest that scores
            in [0, 1] of that mean can have, $\hat\mu (1 - \hat\mu) N / (N - 1)$,
            which is what scores of 0 and 1 have.
        num_hypotheses: Among how many one was chosen.
        delta: The chance of being wrong.
        side: Which ends are promised.

    Example:
        >>> bound = bernstein(0.93, 4_000, variance=0.01, num_hypotheses=1_000_000)
        >>> round(bound.epsilon, 4)
        0.0202
    """
    check(num_examples=num_examples, fewest=2)
    check_share(value, "the empirical Bernstein bound")
    largest = value * (1 - value) * num_examples / (num_examples - 1)
    variance = largest if variance is None else variance
    # Sums of floats may put scores of 0 and 1 a hair above what they can be.
    if not 0.0 <= variance <= largest * (1 + 1e-9) + 1e-12:
        raise ConfigError(
            f"scores in [0, 1] with the mean {value:g} have a sample variance of at most {largest:g}, got {variance:g}"
        )
    log_term = math.log(2) - log_tail(num_hypotheses, delta, side)
    epsilon = math.sqrt(2 * variance * log_term / num_examples) + 7 * log_term / (3 * (num_examples - 1))
    return _bound(
        "empirical Bernstein", "scores in [0, 1]", value, num_examples, num_hypotheses, delta, side,
        ends=(value - epsilon, value + epsilon), epsilon=epsilon,
    )  # fmt: skip


def binomial(
    num_successes: float, num_examples: int, *, num_hypotheses: int = 1, delta: float = DELTA, side: Side = "both"
) -> Bound:
    r"""Clopper and Pearson's exact interval of a proportion, and the union over all hypotheses.

    With $k$ successes, $t = \delta / 2M$ and $B(q; a, b)$ the $q$ quantile of the
    beta distribution,

    $$ \big[\, B(t;\; k,\; N - k + 1),\;\; B(1 - t;\; k + 1,\; N - k) \,\big] $$

    and $t = \delta / M$ where one side is enough. It holds where each example is
    right or wrong, and each has the same chance of being right, as examples drawn
    at random have. Chernoff's bound is a bound on the very tails that are exact
    here, so that this interval always lies inside Chernoff's.

    Args:
        num_successes: $k$. One that is not whole, as the share that somebody
            rounded times $N$ is, has its lower end computed for the whole number
            below and its upper end for the one above.
        num_examples: How many there were.
        num_hypotheses: Among how many one was chosen.
        delta: The chance of being wrong.
        side: Which ends are promised.

    Example:
        >>> bound = binomial(3_720, 4_000, num_hypotheses=1_000_000)
        >>> round(bound.lower, 4), round(bound.upper, 4)
        (0.9057, 0.95)
    """
    from scipy.special import betaincinv  # which takes a while to load

    check(num_examples=num_examples)
    if not 0 <= num_successes <= num_examples:
        raise ConfigError(
            f"0 <= num_successes <= num_examples must hold, got {num_successes=:g} and {num_examples=}; scores that "
            f"are neither 0 nor 1 have Hoeffding's, Chernoff's and the empirical Bernstein bound"
        )
    tail = math.exp(log_tail(num_hypotheses, delta, side))
    # 0.57 * 100 is a hair below 57, and means 57.
    whole = round(num_successes)
    num_successes = whole if math.isclose(num_successes, whole, rel_tol=1e-12) else num_successes
    num_right, num_wrong = math.floor(num_successes), num_examples - math.ceil(num_successes)
    value = num_successes / num_examples
    lower = 0.0 if num_right == 0 else float(betaincinv(num_right, num_examples - num_right + 1, tail))
    upper = 1.0 if num_wrong == 0 else 1.0 - float(betaincinv(num_wrong, num_examples - num_wrong + 1, tail))
    return _bound(
        "exact binomial", "scores of 0 or 1", value, num_examples, num_hypotheses, delta, side,
        ends=(lower, upper), epsilon=reach(value, (lower, upper), side),
    )  # fmt: skip


def _bound(
    name: str,
    which: str,
    value: float | None,
    num_examples: int,
    num_hypotheses: int,
    delta: float,
    side: Side,
    *,
    ends: tuple[float, float] | None,
    epsilon: float,
) -> Bound:
    """The record of an interval of means in [0, 1], of which one end may not be asked for."""
    lower = upper = None
    if ends is not None:
        lower = 0.0 if side == "upper" else max(0.0, ends[0])
        upper = 1.0 if side == "lower" else min(1.0, ends[1])
    return Bound(
        name=name,
        statement=f"{spell_promise(num_hypotheses, delta, side)}; for {which}, independent examples, and hypotheses "
        f"fixed before them",
        value=value,
        lower=lower,
        upper=upper,
        epsilon=epsilon,
        num_hypotheses=num_hypotheses,
        num_examples=num_examples,
        delta=delta,
        side=side,
    )
