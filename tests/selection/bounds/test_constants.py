"""What each theorem states of an interval's ends, which holds for ours and for no interval with other constants."""

import math
from collections.abc import Callable

import pytest
from scipy.special import betaincinv, rel_entr
from scipy.stats import binom

from regard.selection.bounds import bernstein, binomial, chernoff, hoeffding, pac_bayes
from regard.selection.bounds.means import kl_lower_end, kl_upper_end

Interval = Callable[[float, int, int, float], tuple[float, float]]
"""From a measured mean, a number of examples, one of candidates, and delta to both ends."""
CASES = [(0.8, 200, 17, 0.1), (0.35, 60, 5, 0.02)]
VARIANCE = 0.05


def _around(epsilon: Callable[[float, int, int, float], float]) -> Interval:
    return lambda p, n, m, delta: (p - epsilon(p, n, m, delta), p + epsilon(p, n, m, delta))


def _within(budget: Callable[[int, int, float], float]) -> Interval:
    return lambda p, n, m, delta: (kl_lower_end(p, budget(n, m, delta)), kl_upper_end(p, budget(n, m, delta)))


def _divergence(p: float, q: float) -> float:
    return float(rel_entr(p, q) + rel_entr(1 - p, 1 - q))


def _is_hoeffding(p: float, end: float, n: int, m: int, delta: float) -> bool:
    return 2 * m * math.exp(-2 * n * (end - p) ** 2) == pytest.approx(delta)


def _is_chernoff(p: float, end: float, n: int, m: int, delta: float) -> bool:
    return 2 * m * math.exp(-n * _divergence(p, end)) == pytest.approx(delta)


def _is_bernstein(p: float, end: float, n: int, m: int, delta: float) -> bool:
    # Corollary 5 for one side and M functions, at delta / 2: a root in sqrt(ln).
    log_term = math.log(2 * m / (delta / 2))
    return abs(end - p) == pytest.approx(math.sqrt(2 * VARIANCE * log_term / n) + 7 * log_term / (3 * (n - 1)))


def _is_binomial(p: float, end: float, n: int, m: int, delta: float) -> bool:
    k = round(p * n)
    tail = binom.cdf(k, n, end) if end > p else binom.sf(k - 1, n, end)
    return float(tail) == pytest.approx(delta / (2 * m))


def _is_pac_bayes(p: float, end: float, n: int, m: int, delta: float) -> bool:
    # On one of m candidates the divergence is ln m.
    return m * 2 * math.sqrt(n) * math.exp(-n * _divergence(p, end)) == pytest.approx(delta)


def _beta(low: tuple[float, float], high: tuple[float, float], share: float = 2.0) -> Interval:
    """Clopper and Pearson's interval with other numbers added to the parameters, and another share of delta."""

    def interval(p: float, n: int, m: int, delta: float) -> tuple[float, float]:
        k, tail = round(p * n), delta / (share * m)
        lower = float(betaincinv(k + low[0], n - k + low[1], tail))
        return lower, 1 - float(betaincinv(n - k + high[1], k + high[0], tail))

    return interval


def _bernstein(scale: float = 2.0, share: float = 4.0, factor: float = 7.0, fewer: int = 1) -> Interval:
    def epsilon(p: float, n: int, m: int, delta: float) -> float:
        log_term = math.log(share * m / delta)
        return math.sqrt(scale * VARIANCE * log_term / n) + factor * log_term / (3 * (n - fewer))

    return _around(epsilon)


def _hoeffding(share: float = 2.0, examples: float = 2.0) -> Interval:
    return _around(lambda p, n, m, delta: math.sqrt(math.log(share * m / delta) / (examples * n)))


THEOREMS: dict[str, tuple[Callable[[float, float, int, int, float], bool], Interval]] = {
    "Hoeffding": (_is_hoeffding, lambda p, n, m, delta: hoeffding(p, n, num_candidates=m, delta=delta).interval),
    "Chernoff": (_is_chernoff, lambda p, n, m, delta: chernoff(p, n, num_candidates=m, delta=delta).interval),
    "Bernstein": (
        _is_bernstein,
        _around(
            lambda p, n, m, delta: bernstein(p, n, variance=VARIANCE, num_candidates=m, delta=delta).epsilon
        ),
    ),
    "binomial": (
        _is_binomial,
        lambda p, n, m, delta: binomial(round(p * n), n, num_candidates=m, delta=delta).interval,
    ),
    "PAC-Bayes": (_is_pac_bayes, lambda p, n, m, delta: pac_bayes(p, n, divergence=math.log(m), delta=delta).interval),
}  # fmt: skip
WRONG: dict[str, dict[str, Interval]] = {
    "Hoeffding": {
        "one side": _hoeffding(share=1.0),
        "N for 2N": _hoeffding(examples=1.0),
        "8N, of a range of 1 that is halved twice": _hoeffding(examples=8.0),
        "4M": _hoeffding(share=4.0),
        "without a root": _around(lambda p, n, m, delta: math.log(2 * m / delta) / (2 * n)),
    },
    "Chernoff": {
        "one side": _within(lambda n, m, delta: math.log(m / delta) / n),
        "2N, as in Hoeffding's": _within(lambda n, m, delta: math.log(2 * m / delta) / (2 * n)),
        "N - 1": _within(lambda n, m, delta: math.log(2 * m / delta) / (n - 1)),
        "Pinsker's in place of the divergence": _hoeffding(),
    },
    "Bernstein": {
        "2M": _bernstein(share=2.0),
        "V for 2V": _bernstein(scale=1.0),
        "1 / 3N, of a known variance": _bernstein(factor=1.0, fewer=0),
        "N for N - 1": _bernstein(fewer=0),
        "3 for 7 / 3": _bernstein(factor=9.0),
    },
    "binomial": {
        "one side": _beta((0, 1), (1, 0), share=1.0),
        "4M": _beta((0, 1), (1, 0), share=4.0),
        "one success more and less": _beta((1, 0), (0, 1)),
        "Jeffreys's": _beta((0.5, 0.5), (0.5, 0.5)),
        "a uniform prior": _beta((1, 1), (1, 1)),
    },
    "PAC-Bayes": {
        "without the root, the union bound": _within(lambda n, m, delta: (math.log(m) + math.log(2 / delta)) / n),
        "2N for 2 sqrt(N)": _within(lambda n, m, delta: (math.log(m) + math.log(2 * n / delta)) / n),
        "sqrt(N)": _within(lambda n, m, delta: (math.log(m) + math.log(math.sqrt(n) / delta)) / n),
        "N - 1": _within(lambda n, m, delta: (math.log(m) + math.log(2 * math.sqrt(n) / delta)) / (n - 1)),
        "without the divergence": _within(lambda n, m, delta: math.log(2 * math.sqrt(n) / delta) / n),
    },
}  # fmt: skip


def _agrees(theorem: str, interval: Interval) -> bool:
    states = THEOREMS[theorem][0]
    return all(
        states(p, end, n, m, delta) for p, n, m, delta in CASES for end in interval(p, n, m, delta) if 0 < end < 1
    )


@pytest.mark.parametrize("theorem", THEOREMS)
def test_the_ends_are_those_of_the_theorem(theorem: str):
    interval = THEOREMS[theorem][1]
    assert all(0 < end < 1 for case in CASES[:1] for end in interval(*case))
    assert _agrees(theorem, interval)


@pytest.mark.parametrize(("theorem", "wrong"), [(theorem, wrong) for theorem in WRONG for wrong in WRONG[theorem]])
def test_ends_with_other_constants_are_rejected(theorem: str, wrong: str):
    interval = WRONG[theorem][wrong]
    assert any(0 < end < 1 for case in CASES for end in interval(*case))
    assert not _agrees(theorem, interval)
