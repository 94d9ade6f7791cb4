"""Paired comparison of models: differences, their intervals, and p-values corrected for several pairs.

Two recipes are compared on the same examples, example by example, since an
example that is hard for one is mostly hard for the other. With many pairs some
differences are large by chance; Holm's correction accounts for that.

Riezler and Maxwell, "On Some Pitfalls in Automatic Evaluation and Significance
Testing for MT" (2005). https://aclanthology.org/W05-0908
Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapters 15 and 16.
Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian
Journal of Statistics 6 (1979).

Dimensions:
    examples    independent draws: sentences, sequences, documents
    columns     everything counted for an example: statistics, for each seed, for each model
    resamples   resampled test sets, or random swaps
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError, DataError
from regard.evaluation.counts import Counts
from regard.evaluation.intervals import CONFIDENCE, percentile_interval
from regard.evaluation.scores import make_signature
from regard.evaluation.seeds import (
    bootstrapped_scores,
    check_alike,
    check_resampling,
    mean_score,
    resampling_rng,
    stack_statistics,
)
from regard.settings import nearest

SIGNIFICANCE = 0.05
"""A difference is significant where its p-value is below."""

TestMethod = Literal["randomization", "bootstrap"]
r"""How a p-value is computed.

*Randomization* (Riezler and Maxwell 2005, figure 1): for each example the results
of `a` and `b`, of all seeds together, are swapped with probability one half. The
null hypothesis is that `a` and `b` are exchangeable: that for each example the
swapped results were as likely. It holds for any score and any number of
independent examples, up to the randomness of the swaps. For exact match with one
seed it is McNemar's exact test. It takes the trained models as fixed: a small p
means that *these* models differ, not that the recipes do, and where seeds vary
it is small for two equal recipes, too. For recipes, use the interval or the
bootstrap.

*Bootstrap*: the two-level resamples of the interval, shifted so that their
centre is no difference, $d^*_r = \hat d^*_r - d$ (Efron and Tibshirani 1993,
section 16.4). The null hypothesis is that the recipes' mean scores over all seeds
and examples are equal. It holds as the interval does, for many seeds and many
examples; with one seed it tests these models, too. (Koehn's paired bootstrap
of 2004 counts how often `b` wins, which is an inverted interval, and one-sided.)
"""

_PROPORTION_RESAMPLES = 10_000
_OTHER_RESAMPLES = 2_000  # BLEU calls Python for each resample, model and seed; a proportion does not

_SWAPS_AT_ONCE = 2**20  # bounds the memory of swapping to about 20 MB
_ROUNDING = 1e-10  # far below any difference of scores, far above what summing in another order changes


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPair:
    """The difference between two models, with a p-value corrected for the number of pairs."""

    name: str
    """The metric."""
    a: str
    b: str
    difference: float
    """The score of `a`, mean over its seeds, minus that of `b`."""
    interval: tuple[float, float]
    """The interval of this pair alone: Holm's correction does not widen it."""
    p: float
    """Corrected for all pairs by Holm's method."""
    p_uncorrected: float
    not_comparable: str | None = None
    """Why the two scores are not comparable, where they are artifacts of the metric; None where they are."""
    settings: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def is_significant(self) -> bool:
        """Whether the scores are comparable, `p` is below 0.05 and the interval excludes 0.

        The randomization test takes the trained models as fixed; the interval
        resamples the seeds as well, and so accounts for other training seeds.
        """
        low, high = self.interval
        return self.not_comparable is None and self.p < SIGNIFICANCE and not low <= 0.0 <= high

    @property
    def signature(self) -> str:
        """As a score's: everything the comparison depends on."""
        return make_signature(self.settings)


def compare_all(
    counts_by_model: Mapping[str, Sequence[Counts]],
    *,
    method: TestMethod = "randomization",
    num_resamples: int | None = None,
    seed: int = 0,
) -> list[ComparedPair]:
    r"""The difference of each pair of models, with a 95 % interval and a two-sided p-value corrected by `holm`.

    The interval is the two-level bootstrap's of the difference (see
    `score_over_seeds`): each resample draws examples, and seeds by their number,
    the same for all models; with one seed, examples only. Where two models do the
    same on every example it is a single point, which is not certainty.

    The p-value of a pair is the probability of a difference $d^*$ at least as large
    as the observed $d$, in either direction, under the null hypothesis:
    $(1 + \#\{|d^*_r| \ge |d|\}) / (1 + R)$, which is never 0. The null hypothesis
    depends on the method, see `TestMethod`. A small p does not mean that a difference
    is large enough to matter, nor a large p that there is none.

    If no two models differed, the probability that any pair is called significant
    would be at most 5 %. This holds for the pairs of one call: a model that was
    dropped before, or a second metric, counts as more pairs.

    A pair whose scores are both artifacts of the metric (`Counts.artifact`, for
    every seed), such as two BLEU scores that consist of smoothing, is not
    comparable, whatever its p-value.

    Args:
        counts_by_model: For each model the counts of each training seed, all of
            the same examples in the same order.
        method: How the p-value is computed.
        num_resamples: The number of random swaps and of resampled test sets. Unless
            given, 10,000 for proportions and 2,000 for other scores, which take one
            call each. Since no p-value can be smaller than 1 / (num_resamples + 1),
            many pairs need many resamples.
        seed: Seed of the resampling, which all pairs share.

    Returns:
        The pairs in the order of the models, each model as `a` before those after it.

    Raises:
        DataError: If there are fewer than two models, or two that differ in metric,
            settings, number of examples or number of seeds, or fewer than two examples.
        ConfigError: If an argument lies outside its range, or with so few
            resamples no difference could be significant.

    Example:
        >>> from regard.evaluation.counts import count_right
        >>> num_right = {"good": 60, "fair": 50, "poor": 48}
        >>> models = {name: [count_right([True] * n + [False] * (60 - n))] for name, n in num_right.items()}
        >>> [(pair.a, pair.b, pair.is_significant) for pair in compare_all(models)]
        [('good', 'fair', True), ('good', 'poor', True), ('fair', 'poor', False)]
    """
    if len(counts_by_model) < 2:
        raise DataError(f"a comparison needs at least 2 models, got {len(counts_by_model)}")
    names, models = list(counts_by_model), list(counts_by_model.values())
    first = check_alike([counts for seeds in models for counts in seeds])
    num_seeds = {name: len(seeds) for name, seeds in counts_by_model.items()}
    if len(set(num_seeds.values())) > 1:
        raise DataError(f"all models must have equally many seeds, got {num_seeds}")
    if num_resamples is None:
        num_resamples = _PROPORTION_RESAMPLES if first.is_proportion else _OTHER_RESAMPLES
    pairs = list(combinations(range(len(models)), 2))
    check_resampling(first, num_resamples, seed)
    _check_test(method, num_resamples, len(pairs))
    left, right = np.array(pairs).T
    scores = np.array([mean_score(seeds) for seeds in models])
    differences = scores[left] - scores[right]
    drawn = bootstrapped_scores(models, num_resamples, seed)
    drawn_differences = drawn[:, left] - drawn[:, right]
    if method == "bootstrap":
        under_null = drawn_differences - differences
    else:
        under_null = _swapped_differences([(models[a], models[b]) for a, b in pairs], num_resamples, seed)
    num_extreme = np.count_nonzero(np.abs(under_null) >= np.abs(differences) - _ROUNDING, axis=0)
    p_values = [(1 + int(extreme)) / (1 + num_resamples) for extreme in num_extreme]
    settings = {**_settings(models[0], method, num_resamples, seed), "correction": "holm", "pairs": len(pairs)}
    return [
        ComparedPair(
            name=first.name,
            a=names[a],
            b=names[b],
            difference=float(differences[pair]),
            interval=percentile_interval(drawn_differences[:, pair], CONFIDENCE),
            p=corrected,
            p_uncorrected=p_values[pair],
            not_comparable=_artifact([*models[a], *models[b]]),
            settings=settings,
        )
        for pair, ((a, b), corrected) in enumerate(zip(pairs, holm(p_values), strict=True))
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's step-down correction: p-values that hold for all tests together, in the order given.

    Of $m$ p-values sorted as $p_{(1)} \le \dots \le p_{(m)}$ the $i$-th becomes

    $$ \tilde p_{(i)} = \max_{j \le i}\, \min\big(1,\; (m - j + 1)\, p_{(j)}\big) $$

    If a test is called significant where its corrected p-value is at most $\alpha$,
    the probability of one or more false positives is at most $\alpha$, however the
    tests depend on each other and whichever null hypotheses are true (Holm 1979).
    Bonferroni's correction, which multiplies each $p$ by $m$, has the same guarantee
    and less power.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]  # 2nd of 4: 3 * 0.01; 4th: no less than the 3rd
        [0.03, 0.06, 0.06, 0.02]
    """
    if not all(0.0 <= p <= 1.0 for p in p_values):
        raise ConfigError(f"p-values must be in [0, 1], got {list(p_values)}")
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def _artifact(counts: Sequence[Counts]) -> str | None:
    """Why two models are not comparable: the reason of the first, if every seed of both has one."""
    reasons = [each.artifact for each in counts]
    return reasons[0] if all(reason is not None for reason in reasons) else None


def _check_test(method: TestMethod, num_resamples: int, num_pairs: int) -> None:
    if method not in get_args(TestMethod):
        raise ConfigError(f"unknown method {method!r}{nearest(method, get_args(TestMethod))}")
    if num_pairs >= SIGNIFICANCE * (num_resamples + 1):
        raise ConfigError(
            f"num_pairs / (num_resamples + 1), the smallest corrected p-value, must lie below {SIGNIFICANCE}, "
            f"got {num_pairs} / ({num_resamples} + 1)"
        )


def _settings(
    seeds: Sequence[Counts], method: TestMethod, num_resamples: int, seed: int
) -> dict[str, str | int | float]:
    """What the tests depend on; `seeds` are the counts of any of the models."""
    return {
        **seeds[0].settings,
        "n": len(seeds[0]),
        "seeds": len(seeds),
        "test": method,
        "interval": "bootstrap" if len(seeds) == 1 else "two-level-bootstrap",
        "confidence": CONFIDENCE,
        "resamples": num_resamples,
        "seed": seed,
    }


def _swapped_differences(
    pairs: Sequence[tuple[Sequence[Counts], Sequence[Counts]]], num_resamples: int, seed: int
) -> Float[np.ndarray, "resamples pairs"]:
    """The difference of mean scores after each example was swapped within the pair with probability one half.

    A swap adds to the sums of one model by how much the other's statistics exceed
    its own on that example, and subtracts it from the other's: one matrix product
    for many resamples.
    """
    first = pairs[0][0]
    ours = stack_statistics([counts for a, _ in pairs for counts in a])
    theirs = stack_statistics([counts for _, b in pairs for counts in b])
    swaps = _swaps(num_resamples, len(ours), resampling_rng(seed))
    moved = np.concatenate([some @ (theirs - ours) for some in swaps])

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
