"""The score of a recipe over its training seeds, and how far other seeds and other examples may lie from it.

A recipe (a model with its settings) trained from another seed is another model
with another score. So each recipe is trained from several seeds, and luck has
two sources: the examples that happened to be in the test set, and the seeds.

Owen, "The Pigeonhole Bootstrap", Annals of Applied Statistics 1 (2007).
https://arxiv.org/abs/0712.1111

Dimensions:
    examples    independent draws: sentences, sequences, documents
    statistics  what is counted for each example, such as matches and lengths
    seeds       models that differ in their training seed only
    columns     all that is counted for an example: statistics, for each seed, for each model
    resamples   test sets drawn
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError, DataError
from regard.evaluation.bootstrap import CONFIDENCE, NUM_RESAMPLES, clopper_pearson, resampled_sums
from regard.evaluation.metrics import score_tally
from regard.evaluation.scores import Score
from regard.evaluation.tallies import Tally


def score_over_seeds(
    tallies: Sequence[Tally], *, confidence: float = CONFIDENCE, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Score:
    """The score of a recipe: the mean over its training seeds, with an interval for other seeds and other examples.

    The interval runs between quantiles of the `bootstrapped_scores`, as that of
    `bootstrap_interval` does (`interval:two-level-bootstrap`). Of a proportion it
    is united with Clopper and Pearson's (`two-level-bootstrap+clopper-pearson`),
    since the bootstrap alone says [1, 1] where every seed is right on every example.

    It holds for many seeds and many examples, both independent draws. A bootstrap
    over few seeds is too narrow: where they, and not the examples, decide the
    score, a 95 % interval from two to five seeds covers in some 75 to 90 % of cases.
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
    first = first_of_alike(tallies)
    if len(tallies) == 1:
        score = score_tally(first, confidence=confidence, num_resamples=num_resamples, seed=seed)
        return replace(score, settings={**score.settings, "seeds": 1})
    check_draws(first, num_resamples, seed)
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence must lie in (0, 1), got {confidence}")
    interval = percentile_interval(bootstrapped_scores([tallies], num_resamples, seed)[:, 0], confidence)
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
    return Score(name=first.name, value=mean_score(tallies), interval=interval, settings=settings, digits=first.digits)


def first_of_alike(tallies: Sequence[Tally]) -> Tally:
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


def check_draws(tally: Tally, num_resamples: int, seed: int) -> None:
    """Refuse draws that cannot be made, or from which nothing could be read."""
    if num_resamples < 1 or seed < 0:
        raise ConfigError(f"num_resamples must be positive and seed not negative, got {num_resamples=} and {seed=}")
    if len(tally) < 2:
        raise DataError(f"no spread can be read from fewer than 2 examples, got {len(tally)}")


def bootstrapped_scores(
    models: Sequence[Sequence[Tally]], num_resamples: int, seed: int
) -> Float[np.ndarray, "resamples models"]:
    r"""The mean score of drawn training seeds on drawn examples, the same draws for every model.

    With $s_{k,i}$ the statistics of seed $k$ on example $i$ and $f$ the score of
    a corpus, each resample draws seeds and examples, the same examples for every
    seed (Owen 2007):

    $$ \hat\theta^*_b = \frac1K \sum_{k=1}^K f\Big(\sum_{i=1}^n s_{J_{b,k},\, I_{b,i}}\Big), \qquad
       J_{b,k} \sim \text{uniform}\{1, \dots, K\}, \quad I_{b,i} \sim \text{uniform}\{1, \dots, n\} $$

    What varies over examples and seeds jointly is counted more than once, so with
    seeds of nearly equal skill an interval from them covers more often than it says.
    """
    rng = stream(seed)
    num_seeds = len(models[0])
    drawn = rng.integers(num_seeds, size=(num_resamples, 1, num_seeds))
    columns = side_by_side([tally for tallies in models for tally in tallies])
    sums = np.stack(list(resampled_sums(columns, num_resamples, rng)))
    scores = models[0][0].compute_each(sums.reshape(num_resamples, len(models), num_seeds, -1))
    return np.take_along_axis(scores, drawn, axis=2).mean(axis=2)


def mean_score(tallies: Sequence[Tally]) -> float:
    """The mean over seeds of what each scores on all examples."""
    return float(np.mean([tally.value for tally in tallies]))


def percentile_interval(scores: Float[np.ndarray, " resamples"], confidence: float) -> tuple[float, float]:
    """Between the quantiles that leave out as many scores above as below."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(scores, [tail, 1 - tail])
    return float(low), float(high)


def side_by_side(tallies: Sequence[Tally]) -> Float[np.ndarray, "examples columns"]:
    """All that is counted, one row for each example."""
    return np.concatenate([tally.statistics for tally in tallies], axis=1, dtype=np.float64)


def stream(seed: int) -> np.random.Generator:
    """Random numbers apart from those of a plain `default_rng(seed)`.

    Predictions that were simulated from the latter would otherwise meet the very
    coins that made them right or wrong.
    """
    (own,) = np.random.SeedSequence(seed).spawn(1)
    return np.random.Generator(np.random.PCG64(own))


def _clopper_pearson_of_mean(tallies: Sequence[Tally], confidence: float) -> tuple[float, float]:
    r"""The interval of one test set in which the mean number over seeds was right, rounded outwards to whole examples.

    If $Y$ is the share of seeds that are right on an example, $P(Y = 1) \le E[Y]$,
    so $n$ examples in a row on which every seed is right have probability at most
    $E[Y]^n$: just what the end for $n$ of $n$ is made from. It says nothing of a
    seed unlike those that were trained. In general $Y$ varies no more than one
    seed's right or wrong of the same mean, so the interval is too wide rather than
    too narrow.
    """
    num_right = sum(int(tally.statistics[:, 0].sum()) for tally in tallies)
    fewest, most = num_right // len(tallies), -(-num_right // len(tallies))
    low, _ = clopper_pearson(fewest, len(tallies[0]), confidence=confidence)
    _, high = clopper_pearson(most, len(tallies[0]), confidence=confidence)
    return low, high


def _union(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    return min(first[0], second[0]), max(first[1], second[1])


def _described(tally: Tally) -> str:
    settings = ", ".join(f"{key}:{value}" for key, value in tally.settings.items())
    return f"{tally.name} ({settings}) over {len(tally)}"
