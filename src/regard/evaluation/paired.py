"""Which of several models is better, and could it be luck: pairs, and many pairs.

Two recipes are compared on the same examples, pair by pair, since an example
that is hard for one is mostly hard for the other. Where many pairs are compared,
some look different by luck alone, and Holm's correction makes up for that.

Riezler and Maxwell, "On Some Pitfalls in Automatic Evaluation and Significance
Testing for MT" (2005). https://aclanthology.org/W05-0908
Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapters 15 and 16.
Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian
Journal of Statistics 6 (1979).

Dimensions:
    examples    independent draws: sentences, sequences, documents
    columns     all that is counted for an example: statistics, for each seed, for each model
    resamples   test sets drawn, or ways to swap
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError, DataError
from regard.evaluation.bootstrap import CONFIDENCE
from regard.evaluation.scores import Score
from regard.evaluation.seeds import (
    bootstrapped_scores,
    check_draws,
    first_of_alike,
    mean_score,
    percentile_interval,
    score_over_seeds,
    side_by_side,
    stream,
)
from regard.evaluation.tallies import Tally
from regard.settings import nearest

__all__ = [
    "SIGNIFICANCE",
    "ComparedPair",
    "PairedDifference",
    "TestMethod",
    "compare_all",
    "holm",
    "paired_test",
    "score_over_seeds",
]

SIGNIFICANCE = 0.05
"""A difference counts as real where its p-value lies below."""

TestMethod = Literal["randomization", "bootstrap"]
r"""How a p-value is made.

*By randomization* (Riezler and Maxwell 2005, figure 1): for each example a
coin decides whether `a` and `b` swap what they made of it, all seeds
together. Tested is whether `a` and `b` are exchangeable: whether for each
example swapping them would have been as likely. It holds for any score and
any number of independent examples, up to the chance of the coins. For exact
match with one seed it is McNemar's exact test. It takes the trained models
as they are: a small p says that *these* models differ, not that the recipes
do, and where seeds vary it is small for two equal recipes, too. For those,
look at the interval, or use the bootstrap.

*By bootstrap*: the two-level resamples of the interval, shifted so that their
centre is no difference, $d^*_r = \hat d^*_r - d$ (Efron and Tibshirani 1993,
section 16.4). Tested is whether the recipes' mean scores over all seeds and
examples are equal. It holds as the interval does, for many seeds and many
examples; with one seed it tests these models, too. (Koehn's paired bootstrap
of 2004 counts how often `b` wins, which is an interval read backwards, and
one-sided.)
"""

_PROPORTION_RESAMPLES = 10_000
_OTHER_RESAMPLES = 2_000  # BLEU calls Python for each resample, model and seed; a proportion does not

_SWAPS_AT_ONCE = 2**20  # bounds the memory of swapping to some 20 MB
_ROUNDING = 1e-10  # far below any difference of scores, far above what summing in another order changes


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """By how much `a` scores above `b` on the same examples, and could it be luck."""

    name: str
    """The metric."""
    difference: float
    """The score of `a`, mean over its seeds, minus that of `b`."""
    interval: tuple[float, float]
    p: float
    settings: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """As a score's: everything the difference depended on."""
        return Score(name=self.name, value=self.difference, settings=self.settings).signature


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPair:
    """One pair out of many: the names, the difference, and a p-value that knows of the other pairs."""

    name: str
    """The metric."""
    a: str
    b: str
    difference: float
    """The score of `a`, mean over its seeds, minus that of `b`."""
    interval: tuple[float, float]
    """Of this pair by itself: Holm's correction does not widen it."""
    p: float
    """By Holm's correction for all pairs."""
    p_uncorrected: float
    settings: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def is_real(self) -> bool:
        """Whether `p` lies below 0.05 and 0 outside the interval.

        The test by swaps speaks of the models that were trained; the interval
        draws the seeds as well, and so speaks of what another training may bring.
        """
        low, high = self.interval
        return self.p < SIGNIFICANCE and not low <= 0.0 <= high

    @property
    def signature(self) -> str:
        """As a score's: everything the comparison depended on."""
        return Score(name=self.name, value=self.difference, settings=self.settings).signature


def paired_test(
    a: Sequence[Tally],
    b: Sequence[Tally],
    *,
    method: TestMethod = "randomization",
    num_resamples: int | None = None,
    seed: int = 0,
) -> PairedDifference:
    r"""By how much `a` scores above `b`, with a 95 % interval and a two-sided p-value.

    The interval is the two-level bootstrap's of the difference (see
    `score_over_seeds`): each resample draws examples, and seeds by their number,
    the same for `a` and `b`; with one seed, examples only. Where `a` and `b` do
    the same on every example it is one point, which is not certainty.

    The p-value is the probability of a difference $d^*$ at least as large as the
    one seen, $d$, in either direction, if there were none:
    $(1 + \#\{|d^*_r| \ge |d|\}) / (1 + R)$, which is never 0. What exactly is
    tested depends on the method, see `TestMethod`. Neither says that a difference
    is large enough to matter, nor, where p is large, that there is none.

    Args:
        a: For each training seed of one recipe the tally of the same examples.
        b: Those of the other recipe, as many, of the same examples in the same order.
        method: How the p-value is made: which $d^*$ luck alone would bring.
        num_resamples: How many swaps and test sets are drawn. Unless given, 10,000
            for proportions and 2,000 for other scores, which take one call each.
        seed: Of those draws.

    Raises:
        DataError: If `a` and `b` differ in metric, examples or number of seeds,
            or hold fewer than two examples.
        ConfigError: If an argument lies outside its range.

    Example:
        >>> from regard.evaluation.tallies import tally
        >>> right = tally("exact_match", ["yes"] * 20, ["yes"] * 20)
        >>> often = tally("exact_match", ["yes"] * 14 + ["no"] * 6, ["yes"] * 20)
        >>> test = paired_test([right], [often])
        >>> round(test.difference, 3), abs(test.p - 2 / 2**6) < 0.01
        (0.3, True)
    """
    first_of_alike([*a, *b])
    if len(a) != len(b):
        raise DataError(f"a and b must have equally many seeds, got {len(a)} and {len(b)}")
    return _compare_models({"a": a, "b": b}, method, num_resamples, seed)["a", "b"]


def compare_all(
    tallies_by_model: Mapping[str, Sequence[Tally]],
    *,
    method: TestMethod = "randomization",
    num_resamples: int | None = None,
    seed: int = 0,
) -> list[ComparedPair]:
    """Each pair of models by `paired_test`, with p-values corrected by `holm` for the number of pairs.

    If no two models differed, the chance that any pair is called real would be
    at most 5 %. It holds for the pairs of one call: a model that was dropped
    before, or a second metric, counts as more pairs.

    Args:
        tallies_by_model: For each model one tally for each training seed, all of
            the same examples in the same order.
        method: As in `paired_test`.
        num_resamples: As in `paired_test`. Since no p-value can be smaller than
            1 / (num_resamples + 1), many pairs need many resamples.
        seed: Of the draws, which all pairs share.

    Returns:
        The pairs in the order of the models, each model as `a` before those behind it.

    Raises:
        DataError: If there are fewer than two models, or two that cannot be compared.
        ConfigError: If an argument lies outside its range, or with so few
            resamples no difference could be real.

    Example:
        >>> from regard.evaluation.tallies import tally
        >>> outputs = {"good": "y" * 60, "fair": "y" * 50 + "n" * 10, "poor": "y" * 48 + "n" * 12}
        >>> models = {model: [tally("exact_match", list(said), ["y"] * 60)] for model, said in outputs.items()}
        >>> [(pair.a, pair.b, pair.is_real) for pair in compare_all(models)]
        [('good', 'fair', True), ('good', 'poor', True), ('fair', 'poor', False)]
    """
    if len(tallies_by_model) < 2:
        raise DataError(f"a comparison needs at least 2 models, got {len(tallies_by_model)}")
    first_of_alike([tally for tallies in tallies_by_model.values() for tally in tallies])
    seeds = {model: len(tallies) for model, tallies in tallies_by_model.items()}
    if len(set(seeds.values())) > 1:
        raise DataError(f"all models must have equally many seeds, got {seeds}")
    tests = _compare_models(tallies_by_model, method, num_resamples, seed)
    corrected = holm([test.p for test in tests.values()])
    return [
        ComparedPair(
            name=test.name,
            a=a,
            b=b,
            difference=test.difference,
            interval=test.interval,
            p=p,
            p_uncorrected=test.p,
            settings={**test.settings, "correction": "holm", "pairs": len(tests)},
        )
        for ((a, b), test), p in zip(tests.items(), corrected, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's step-down correction: p-values that hold for all tests together, in the order given.

    Of $m$ p-values sorted as $p_{(1)} \le \dots \le p_{(m)}$ the $i$-th becomes

    $$ \tilde p_{(i)} = \max_{j \le i}\, \min\big(1,\; (m - j + 1)\, p_{(j)}\big) $$

    If a test is called real where its corrected p-value is at most $\alpha$, the
    chance of one or more false calls is at most $\alpha$, however the tests
    depend on each other and whichever of them are true (Holm 1979). Bonferroni's
    correction, which takes each $p$ times $m$, promises the same and finds less.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]  # 2nd of 4: 3 * 0.01; 4th: no less than the 3rd
        [0.03, 0.06, 0.06, 0.02]
    """
    if not all(0.0 <= p <= 1.0 for p in p_values):
        raise ConfigError(f"p-values must lie in [0, 1], got {list(p_values)}")
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def _compare_models(
    tallies_by_model: Mapping[str, Sequence[Tally]], method: TestMethod, num_resamples: int | None, seed: int
) -> dict[tuple[str, str], PairedDifference]:
    """Each pair by itself, all of them from the same draws."""
    names, models = list(tallies_by_model), list(tallies_by_model.values())
    first = models[0][0]
    if num_resamples is None:
        num_resamples = _PROPORTION_RESAMPLES if first.is_proportion else _OTHER_RESAMPLES
    pairs = list(combinations(range(len(models)), 2))
    check_draws(first, num_resamples, seed)
    _check_test(method, num_resamples, len(pairs))
    left, right = np.array(pairs).T
    scores = np.array([mean_score(tallies) for tallies in models])
    differences = scores[left] - scores[right]
    drawn = bootstrapped_scores(models, num_resamples, seed)
    drawn_differences = drawn[:, left] - drawn[:, right]
    if method == "bootstrap":
        by_luck = drawn_differences - differences
    else:
        by_luck = _swapped_differences([(models[a], models[b]) for a, b in pairs], num_resamples, seed)
    num_extreme = np.count_nonzero(np.abs(by_luck) >= np.abs(differences) - _ROUNDING, axis=0)
    settings = _settings(models[0], method, num_resamples, seed)
    return {
        (names[a], names[b]): PairedDifference(
            name=first.name,
            difference=float(differences[pair]),
            interval=percentile_interval(drawn_differences[:, pair], CONFIDENCE),
            p=(1 + int(num_extreme[pair])) / (1 + num_resamples),
            settings=settings,
        )
        for pair, (a, b) in enumerate(pairs)
    }


def _check_test(method: TestMethod, num_resamples: int, num_pairs: int) -> None:
    if method not in get_args(TestMethod):
        raise ConfigError(f"unknown method {method!r}{nearest(method, get_args(TestMethod))}")
    if num_pairs >= SIGNIFICANCE * (num_resamples + 1):
        raise ConfigError(
            f"num_pairs / (num_resamples + 1), the smallest corrected p-value, must lie below {SIGNIFICANCE}, "
            f"got {num_pairs} / ({num_resamples} + 1)"
        )


def _settings(
    tallies: Sequence[Tally], method: TestMethod, num_resamples: int, seed: int
) -> dict[str, str | int | float]:
    """What the tests depended on; `tallies` are those of any of the models."""
    return {
        **tallies[0].settings,
        "n": len(tallies[0]),
        "seeds": len(tallies),
        "test": method,
        "interval": "bootstrap" if len(tallies) == 1 else "two-level-bootstrap",
        "confidence": CONFIDENCE,
        "resamples": num_resamples,
        "seed": seed,
    }


def _swapped_differences(
    pairs: Sequence[tuple[Sequence[Tally], Sequence[Tally]]], num_resamples: int, seed: int
) -> Float[np.ndarray, "resamples pairs"]:
    """The difference of mean scores once each example was swapped within the pair, or not, by a coin.

    A swap adds to the sums of the one what the other has more on that example,
    and takes it from those of the other: one matrix product for many resamples.
    """
    first = pairs[0][0]
    ours = side_by_side([tally for a, _ in pairs for tally in a])
    theirs = side_by_side([tally for _, b in pairs for tally in b])
    moved = np.concatenate([swaps @ (theirs - ours) for swaps in _swaps(num_resamples, len(ours), stream(seed))])

    def mean_scores(sums: Float[np.ndarray, "resamples columns"]) -> Float[np.ndarray, "resamples pairs"]:
        return first[0].compute_each(sums.reshape(num_resamples, len(pairs), len(first), -1)).mean(axis=2)

    return mean_scores(ours.sum(axis=0) + moved) - mean_scores(theirs.sum(axis=0) - moved)


def _swaps(
    num_resamples: int, num_examples: int, rng: np.random.Generator
) -> Iterator[Float[np.ndarray, "some examples"]]:
    """For each resample and example 1 or 0, each with probability one half, some resamples at a time."""
    resamples_at_once = max(1, _SWAPS_AT_ONCE // num_examples)
    for start in range(0, num_resamples, resamples_at_once):
        size = min(resamples_at_once, num_resamples - start)
        yield (rng.random((size, num_examples)) < 0.5).astype(np.float64)
