"""The score of a recipe over its training seeds, with an interval over seeds and examples.

A recipe (a model with its settings) trained from another seed is another model
with another score. So each recipe is trained from several seeds, and its score
varies for two reasons: which examples are in the test set, and which seeds were
used.

Owen, "The Pigeonhole Bootstrap", Annals of Applied Statistics 1 (2007).
https://arxiv.org/abs/0712.1111

Dimensions:
    examples    independent draws: sentences, sequences, documents
    statistics  what is counted for each example, such as matches and lengths
    seeds       models that differ in their training seed only
    columns     everything counted for an example: statistics, for each seed, for each model
    resamples   resampled test sets
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError, DataError
from regard.evaluation.counts import Counts
from regard.evaluation.intervals import (
    CONFIDENCE,
    NUM_RESAMPLES,
    clopper_pearson,
    percentile_interval,
    resampled_sums,
)
from regard.evaluation.scores import Score, score_counts


def score_over_seeds(
    counts: Sequence[Counts], *, confidence: float = CONFIDENCE, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Score:
    """The mean score of a recipe over its training seeds, with an interval over seeds and examples.

    The ends of the interval are quantiles of the `bootstrapped_scores`, as in
    `bootstrap_interval` (`interval:two-level-bootstrap`). For a proportion it is
    united with Clopper and Pearson's (`two-level-bootstrap+clopper-pearson`),
    since the bootstrap alone gives [1, 1] where every seed is right on every example.

    It holds for many seeds and many examples, both independent draws. A bootstrap
    over few seeds is too narrow: where the seeds, and not the examples, determine
    the score, a 95 % interval from two to five seeds covers in about 75 to 90 % of
    cases. With one seed the interval is that of `score_counts`, which does not
    account for other seeds (`seeds:1`).

    Args:
        counts: For each training seed the counts of the same examples, in the same order.
        confidence: The probability with which the interval should cover.
        num_resamples: The number of resampled sets of seeds and examples.
        seed: Seed of the resampling.

    Raises:
        DataError: If the counts are not of one metric over the same number of
            examples, or, with several seeds, have fewer than two.
        ConfigError: If an argument lies outside its range.

    Example:
        >>> from regard.evaluation.counts import count_right
        >>> print(str(score_over_seeds([count_right([True] * 100)] * 3)).split(" = ")[1])
        1.000 [0.964, 1.000]
    """
    first = check_alike(counts)
    if len(counts) == 1:
        score = score_counts(first, confidence=confidence, num_resamples=num_resamples, seed=seed)
        return replace(score, settings={**score.settings, "seeds": 1})
    check_resampling(first, num_resamples, seed)
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence must be in (0, 1), got {confidence}")
    interval = percentile_interval(bootstrapped_scores([counts], num_resamples, seed)[:, 0], confidence)
    made = "two-level-bootstrap"
    if first.is_proportion:
        exact = _clopper_pearson_of_mean(counts, confidence)
        interval = min(interval[0], exact[0]), max(interval[1], exact[1])
        made += "+clopper-pearson"
    settings = {
        **first.settings,
        "n": len(first),
        "seeds": len(counts),
        "interval": made,
        "confidence": confidence,
        "resamples": num_resamples,
        "seed": seed,
    }
    return Score(name=first.name, value=mean_score(counts), interval=interval, settings=settings, digits=first.digits)


def check_alike(counts: Sequence[Counts]) -> Counts:
    """Return the first counts; raise unless all are of one metric with equal settings over equally many examples."""
    if len(counts) == 0:
        raise DataError("a comparison needs the counts of at least 1 seed for each model, got 0")
    first = counts[0]
    for other in counts:
        if (other.name, len(other), other.settings) != (first.name, len(first), first.settings):
            raise DataError(
                f"counts must be of one metric with equal settings over equally many examples, got "
                f"{_describe(first)} and {_describe(other)}"
            )
    return first


def check_resampling(counts: Counts, num_resamples: int, seed: int) -> None:
    """Raise if the arguments are out of range, or there are too few examples to resample."""
    if num_resamples < 1 or seed < 0:
        raise ConfigError(f"num_resamples must be positive and seed not negative, got {num_resamples=} and {seed=}")
    if len(counts) < 2:
        raise DataError(f"an interval needs at least 2 examples, got {len(counts)}")


def bootstrapped_scores(
    models: Sequence[Sequence[Counts]], num_resamples: int, seed: int
) -> Float[np.ndarray, "resamples models"]:
    r"""The mean score of resampled training seeds on resampled examples, the same draws for every model.

    With $s_{k,i}$ the statistics of seed $k$ on example $i$ and $f$ the score of
    a corpus, each resample draws seeds and examples, the same examples for every
    seed (Owen 2007):

    $$ \hat\theta^*_b = \frac1K \sum_{k=1}^K f\Big(\sum_{i=1}^n s_{J_{b,k},\, I_{b,i}}\Big), \qquad
       J_{b,k} \sim \text{uniform}\{1, \dots, K\}, \quad I_{b,i} \sim \text{uniform}\{1, \dots, n\} $$

    Variance that is common to examples and seeds is counted more than once, so with
    seeds of nearly equal quality an interval from them covers more often than stated.
    """
    rng = resampling_rng(seed)
    num_seeds = len(models[0])
    drawn = rng.integers(num_seeds, size=(num_resamples, 1, num_seeds))
    columns = stack_statistics([counts for seeds in models for counts in seeds])
    sums = np.stack(list(resampled_sums(columns, num_resamples, rng)))
    scores = models[0][0].compute_each(sums.reshape(num_resamples, len(models), num_seeds, -1))
    return np.take_along_axis(scores, drawn, axis=2).mean(axis=2)


def mean_score(counts: Sequence[Counts]) -> float:
    """The mean over seeds of the score on all examples."""
    return float(np.mean([each.value for each in counts]))


def stack_statistics(counts: Sequence[Counts]) -> Float[np.ndarray, "examples columns"]:
    """The statistics of all counts side by side, one row per example."""
    return np.concatenate([each.statistics for each in counts], axis=1, dtype=np.float64)


def resampling_rng(seed: int) -> np.random.Generator:
    """A generator whose stream differs from that of `default_rng(seed)`.

    Predictions that were simulated with the latter would otherwise be correlated
    with the random numbers that test them.
    """
    (own,) = np.random.SeedSequence(seed).spawn(1)
    return np.random.Generator(np.random.PCG64(own))


def _clopper_pearson_of_mean(counts: Sequence[Counts], confidence: float) -> tuple[float, float]:
    r"""The interval for the mean number of right examples over seeds, rounded outwards to whole examples.

    If $Y$ is the share of seeds that are right on an example, $P(Y = 1) \le E[Y]$,
    so $n$ examples in a row on which every seed is right have probability at most
    $E[Y]^n$: the probability from which the end for $n$ of $n$ is computed. It does
    not account for a seed unlike those that were trained. In general $Y$ varies no
    more than a single seed's right or wrong with the same mean, so the interval is
    too wide rather than too narrow.
    """
    num_right = sum(int(each.statistics[:, 0].sum()) for each in counts)
    fewest, most = num_right // len(counts), -(-num_right // len(counts))
    low, _ = clopper_pearson(fewest, len(counts[0]), confidence=confidence)
    _, high = clopper_pearson(most, len(counts[0]), confidence=confidence)
    return low, high


def _describe(counts: Counts) -> str:
    settings = ", ".join(f"{key}:{value}" for key, value in counts.settings.items())
    return f"{counts.name} ({settings}) over {len(counts)}"
