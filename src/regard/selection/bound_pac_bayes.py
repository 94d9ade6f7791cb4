r"""PAC-Bayes: a bound for a predictor that is drawn anew for each example.

Seeger, "PAC-Bayesian Generalisation Error Bounds for Gaussian Process Classification" (2002).
Maurer, "A Note on the PAC Bayesian Theorem" (2004), theorem 5. https://arxiv.org/abs/cs/0411099
"""

import math

from regard.errors import ConfigError
from regard.selection.bound_divergence import largest_mean, smallest_mean
from regard.selection.bound_record import DELTA, Bound, check, check_share


def pac_bayes(value: float, num_examples: int, *, divergence: float, delta: float = DELTA) -> Bound:
    r"""The kl form of the PAC-Bayes bound, inverted numerically.

    Let a prior $P$ over hypotheses be fixed before the examples are seen. With
    probability at least $1 - \delta$, for *all* posteriors $Q$ at once,

    $$ \mathrm{kl}\big(\hat\mu_Q \,\|\, \mu_Q\big)
       \le \frac{\mathrm{KL}(Q \,\|\, P) + \ln(2\sqrt{N} / \delta)}{N} $$

    where $\hat\mu_Q$ and $\mu_Q$ are the measured and the true mean score of a
    hypothesis drawn from $Q$. It holds for scores in [0, 1] and independent
    examples. $Q$ may be chosen after looking: that is what it is for.

    It is a promise about the *randomised* predictor, which draws a hypothesis
    for each example: not about a vote, and not about the best of them. With a
    uniform prior over $M$ and all of $Q$ on one, the divergence is $\ln M$, and
    this is the union bound but for the $\ln \sqrt N$; with $Q$ uniform over the
    best $m$ it is $\ln(M/m)$, so that among many that are nearly as good as the
    best one pays less.

    Args:
        value: The mean of the measured scores, weighted by $Q$.
        num_examples: How many examples each score is the mean of.
        divergence: $\mathrm{KL}(Q \,\|\, P)$ in nats, such as `divergence_from_uniform` gives.
        delta: The chance of being wrong.

    Example:
        >>> one = pac_bayes(0.93, 4_000, divergence=math.log(1_000_000))
        >>> best_tenth = pac_bayes(0.925, 4_000, divergence=math.log(10))
        >>> round(one.lower, 4), round(best_tenth.lower, 4)
        (0.9003, 0.9048)
    """
    check(num_examples=num_examples, delta=delta)
    check_share(value, "the PAC-Bayes bound")
    if not 0.0 <= divergence < math.inf:
        raise ConfigError(f"divergence must be finite and not below 0, got {divergence:g}")
    room = (divergence + math.log(2 * math.sqrt(num_examples) / delta)) / num_examples
    lower, upper = smallest_mean(value, room), largest_mean(value, room)
    return Bound(
        name="PAC-Bayes",
        statement=f"with probability at least {1 - delta:.6g}, for all choices of weights at once, the true mean of a "
        f"hypothesis drawn by the weights lies in the interval; for scores in [0, 1], independent examples, and a "
        f"prior fixed before them",
        value=value,
        lower=lower,
        upper=upper,
        epsilon=max(value - lower, upper - value),
        num_hypotheses=None,
        num_examples=num_examples,
        delta=delta,
    )
