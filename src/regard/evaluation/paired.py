"""Which of several models is better, and could it be luck: seeds, pairs, and many pairs.

A recipe (a model with its settings) trained from another seed is another model
with another score. So each recipe is trained from several seeds, and luck has
two sources: the examples that happened to be in the test set, and the seeds.

Two recipes are compared on the same examples, pair by pair, since an example
that is hard for one is mostly hard for the other. Where many pairs are compared,
some look different by luck alone, and Holm's correction makes up for that.

Owen, "The Pigeonhole Bootstrap", Annals of Applied Statistics 1 (2007).
https://arxiv.org/abs/0712.1111
Riezler and Maxwell, "On Some Pitfalls in Automatic Evaluation and Significance
Testing for MT" (2005). https://aclanthology.org/W05-0908
Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapters 15 and 16.
Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian
Journal of Statistics 6 (1979).

Dimensions:
    examples    independent draws: sentences, sequences, documents
    statistics  what is counted for each example, such as matches and lengths
    seeds       models that differ in their training seed only
    columns     all that is counted for an example: statistics, for each seed, for each model
    resamples   test sets drawn, or ways to swap
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from regard.config import nearest
from regard.errors import ConfigError, DataError
from regard.evaluation.bootstrap import CONFIDENCE, NUM_RESAMPLES, clopper_pearson, resampled_sums
from regard.evaluation.metrics import score_tally
from regard.evaluation.scores import Score
from regard.evaluation.tallies import Tally

SIGNIFICANCE = 0.05
"""A difference counts as real where its p-value lies below."""

TestMethod = Literal["randomization", "bootstrap"]

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


def score_over_seeds(
    tallies: Sequence[Tally], *, confidence: float = CONFIDENCE, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Score:
    r"""The score of a recipe: the mean over its training seeds, with an interval for other seeds and other examples.

    With $s_{k,i}$ the statistics of seed $k$ on example $i$ and $f$ the score of
    a corpus, each resample draws seeds and examples, the same examples for every
    seed (Owen 2007):

    $$ \hat\theta^*_b = \frac1K \sum_{k=1}^K f\Big(\sum_{i=1}^n s_{J_{b,k},\, I_{b,i}}\Big), \qquad
       J_{b,k} \sim \text{uniform}\{1, \dots, K\}, \quad I_{b,i} \sim \text{uniform}\{1, \dots, n\} $$

    and the interval runs between quantiles of the $\hat\theta^*_b$, as that of
    `bootstrap_interval` does (`interval:two-level-bootstrap`).

    It holds for many seeds and many examples, both independent draws. What varies
    over examples and seeds jointly is counted more than once, so with seeds of
    nearly equal skill it covers more often than it says. A bootstrap over few
    seeds is too narrow: where they, and not the examples, decide the score, a
    95 % interval from two to five seeds covers in some 75 to 90 % of cases.

    Of a proportion the interval is united with Clopper and Pearson's, for one
    test set in which the mean number over seeds was right, rounded outwards to
    whole examples (`two-level-bootstrap+clopper-pearson`). The bootstrap alone
    says [1, 1] where every seed is right on every example. If $Y$ is the share of
    seeds that are right on an example, $P(Y = 1) \le E[Y]$, so $n$ such examples
    in a row have probability at most $E[Y]^n$: just what the united end is made
    from. It says nothing of a seed unlike those that were trained. In general
    $Y$ varies no more than one seed's right or wrong of the same mean, so the
    united interval is too wide rather than too narrow.

    With one seed the interval is that of `score_tally`, and does not know how
    other seeds would do (`seeds:1`).

    Args:
        tallies: For each training seed the tally of the same examples, in the same order.
        confidence: With which the interval should cover.
        num_resamples: How many sets of seeds and examples are drawn.
        seed: Of those draws.

    Raises:
        DataError: If the tallies are not of one metric over the same number of
            examples, or, with several seeds, hold fewer than two.
        ConfigError: If an argument lies outside its range.

    Example:
        >>> from regard.evaluation.tallies import tally
        >>> seeds = [tally("exact_match", ["a"] * 100, ["a"] * 100) for _ in range(3)]
        >>> print(str(score_over_seeds(seeds)).split(" = ")[1])
        1.000 [0.964, 1.000]
    """
    first = _first_of_alike(tallies)
    if len(tallies) == 1:
        score = score_tally(first, confidence=confidence, num_resamples=num_resamples, seed=seed)
        return replace(score, settings={**score.settings, "seeds": 1})
    _check_draws(first, num_resamples, seed)
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence must lie in (0, 1), got {confidence}")
    interval = _percentile_interval(_bootstrapped_scores([tallies], num_resamples, seed)[:, 0], confidence)
    made = "two-level-bootstrap"
    if first.is_proportion:
        interval = _union(interval, _clopper_pearson_of_mean(tallies, confidence))
        made += "+clopper-pearson"
    settings = {
        **first.settings,
        "n": len(first),
        "seeds": len(tallies),
        "interval": made,
        "confidence": confidence,
        "resamples": num_resamples,
        "seed": seed,
    }
    value = _mean_score(tallies)
    return Score(name=first.name, value=value, interval=interval, settings=settings, digits=first.digits)


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
    $(1 + \#\{|d^*_r| \ge |d|\}) / (1 + R)$, which is never 0.

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

    Neither says that a difference is large enough to matter, nor, where p is
    large, that there is none.

    Args:
        a: For each training seed of one recipe the tally of the same examples.
        b: Those of the other recipe, as many, of the same examples in the same order.
        method: How the p-value is made.
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
    _first_of_alike([*a, *b])
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
    _first_of_alike([tally for tallies in tallies_by_model.values() for tally in tallies])
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
    _check_draws(first, num_resamples, seed)
    if method not in get_args(TestMethod):
        raise ConfigError(f"unknown method {method!r}{nearest(method, get_args(TestMethod))}")
    pairs = list(combinations(range(len(models)), 2))
    if len(pairs) >= SIGNIFICANCE * (num_resamples + 1):
        raise ConfigError(
            f"num_pairs / (num_resamples + 1), the smallest corrected p-value, must lie below {SIGNIFICANCE}, "
            f"got {len(pairs)} / ({num_resamples} + 1)"
        )
    left, right = np.array(pairs).T
    scores = np.array([_mean_score(tallies) for tallies in models])
    differences = scores[left] - scores[right]
    drawn = _bootstrapped_scores(models, num_resamples, seed)
    drawn_differences = drawn[:, left] - drawn[:, right]
    if method == "bootstrap":
        by_luck = drawn_differences - differences
    else:
        by_luck = _swapped_differences([(models[a], models[b]) for a, b in pairs], num_resamples, seed)
    num_extreme = np.count_nonzero(np.abs(by_luck) >= np.abs(differences) - _ROUNDING, axis=0)
    settings = {
        **first.settings,
        "n": len(first),
        "seeds": len(models[0]),
        "test": method,
        "interval": "bootstrap" if len(models[0]) == 1 else "two-level-bootstrap",
        "confidence": CONFIDENCE,
        "resamples": num_resamples,
        "seed": seed,
    }
    return {
        (names[a], names[b]): PairedDifference(
            name=first.name,
            difference=float(differences[pair]),
            interval=_percentile_interval(drawn_differences[:, pair], CONFIDENCE),
            p=(1 + int(num_extreme[pair])) / (1 + num_resamples),
            settings=settings,
        )
        for pair, (a, b) in enumerate(pairs)
    }


def _bootstrapped_scores(
    models: Sequence[Sequence[Tally]], num_resamples: int, seed: int
) -> Float[np.ndarray, "resamples models"]:
    """The mean score of drawn training seeds on drawn examples, the same draws for every model."""
    rng = _stream(seed)
    num_seeds = len(models[0])
    drawn = rng.integers(num_seeds, size=(num_resamples, 1, num_seeds))
    columns = _side_by_side([tally for tallies in models for tally in tallies])
    sums = np.stack(list(resampled_sums(columns, num_resamples, rng)))
    scores = models[0][0].compute_each(sums.reshape(num_resamples, len(models), num_seeds, -1))
    return np.take_along_axis(scores, drawn, axis=2).mean(axis=2)


def _swapped_differences(
    pairs: Sequence[tuple[Sequence[Tally], Sequence[Tally]]], num_resamples: int, seed: int
) -> Float[np.ndarray, "resamples pairs"]:
    """The difference of mean scores once each example was swapped within the pair, or not, by a coin.

    A swap adds to the sums of the one what the other has more on that example,
    and takes it from those of the other: one matrix product for many resamples.
    """
    first = pairs[0][0]
    ours = _side_by_side([tally for a, _ in pairs for tally in a])
    theirs = _side_by_side([tally for _, b in pairs for tally in b])
    moved = np.concatenate([swaps @ (theirs - ours) for swaps in _swaps(num_resamples, len(ours), _stream(seed))])

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


def _stream(seed: int) -> np.random.Generator:
    """Random numbers of this file's own.

    Predictions that were simulated from a plain `default_rng(seed)` would
    otherwise meet the very coins that made them right or wrong.
    """
    (own,) = np.random.SeedSequence(seed).spawn(1)
    return np.random.Generator(np.random.PCG64(own))


def _side_by_side(tallies: Sequence[Tally]) -> Float[np.ndarray, "examples columns"]:
    return np.concatenate([tally.statistics for tally in tallies], axis=1, dtype=np.float64)


def _mean_score(tallies: Sequence[Tally]) -> float:
    return float(np.mean([tally.value for tally in tallies]))


def _percentile_interval(scores: Float[np.ndarray, " resamples"], confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(scores, [tail, 1 - tail])
    return float(low), float(high)


def _clopper_pearson_of_mean(tallies: Sequence[Tally], confidence: float) -> tuple[float, float]:
    """The interval of one test set with the mean number right, rounded outwards."""
    num_right = sum(int(tally.statistics[:, 0].sum()) for tally in tallies)
    fewest, most = num_right // len(tallies), -(-num_right // len(tallies))
    low, _ = clopper_pearson(fewest, len(tallies[0]), confidence=confidence)
    _, high = clopper_pearson(most, len(tallies[0]), confidence=confidence)
    return low, high


def _union(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    return min(first[0], second[0]), max(first[1], second[1])


def _first_of_alike(tallies: Sequence[Tally]) -> Tally:
    """The first tally, once it is sure that the others count the same on equally many examples."""
    if len(tallies) == 0:
        raise DataError("a comparison needs at least 1 tally for each model, got 0")
    first = tallies[0]
    for other in tallies:
        if (other.name, len(other), other.settings) != (first.name, len(first), first.settings):
            raise DataError(
                f"tallies must be of one metric with equal settings over equally many examples, got "
                f"{_described(first)} and {_described(other)}"
            )
    return first


def _described(tally: Tally) -> str:
    settings = ", ".join(f"{key}:{value}" for key, value in tally.settings.items())
    return f"{tally.name} ({settings}) over {len(tally)}"


def _check_draws(tally: Tally, num_resamples: int, seed: int) -> None:
    if num_resamples < 1 or seed < 0:
        raise ConfigError(f"num_resamples must be positive and seed not negative, got {num_resamples=} and {seed=}")
    if len(tally) < 2:
        raise DataError(f"no spread can be read from fewer than 2 examples, got {len(tally)}")
