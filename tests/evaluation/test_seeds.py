"""Scores over training seeds: their intervals equal their definition, and cover the truth as often as they say."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

from regard.errors import ConfigError, DataError
from regard.evaluation import seeds
from regard.evaluation.counts import Counts
from regard.evaluation.examples import Examples
from regard.evaluation.intervals import clopper_pearson
from regard.evaluation.registry import find_metric
from regard.evaluation.seeds import resampling_rng, score_over_seeds

NUM_SIMULATIONS = 300
MakeCounts = Callable[[np.ndarray], Counts]
Spread = Callable[..., list[np.ndarray]]
Translate = Callable[..., tuple[list[str], list[str]]]


def count(name: str, predictions: list[str], references: list[str]) -> Counts:
    return find_metric(name).count(Examples(outputs=predictions, targets=references))


def test_the_interval_over_seeds_equals_its_definition(translations: Translate):
    """The readable version: draw seeds, draw examples, score each drawn seed on them, take the mean."""
    counted = [count("chrf", *translations(rate, seed=seed)) for seed, rate in enumerate((0.1, 0.2, 0.4))]
    rng = resampling_rng(5)
    scores = []
    for drawn_seeds in rng.integers(3, size=(101, 3)):
        rows = rng.integers(61, size=61)
        scores.append(np.mean([counted[number].subset(rows).value for number in drawn_seeds]))
    score = score_over_seeds(counted, confidence=0.9, num_resamples=101, seed=5)
    assert score.interval == pytest.approx(tuple(np.quantile(scores, [0.05, 0.95])), rel=1e-12)
    assert score.value == pytest.approx(np.mean([seed.value for seed in counted]), rel=1e-15)
    made = {"n": 61, "seeds": 3, "interval": "two-level-bootstrap", "confidence": 0.9, "resamples": 101, "seed": 5}
    assert score.settings == {**counted[0].settings, **made}
    assert score.digits == 2


def test_one_seed_is_the_score_of_its_examples(translations: Translate):
    predictions, references = translations(0.1, seed=0)
    for name in ("exact_match", "bleu"):
        (expected,) = find_metric(name).scores(Examples(outputs=predictions, targets=references))
        score = score_over_seeds([count(name, predictions, references)])
        assert (score.name, score.value, score.interval) == (name, expected.value, expected.interval)
        assert score.settings == {**expected.settings, "seeds": 1}
        assert "|seeds:1|" in score.signature


@pytest.mark.parametrize("num_seeds", [2, 5])
def test_all_right_is_not_certainty(num_seeds: int, proportion: MakeCounts):
    score = score_over_seeds([proportion(np.ones(59))] * num_seeds)
    assert score.value == 1.0
    assert score.interval == pytest.approx((0.025 ** (1 / 59), 1.0))
    assert score.settings["interval"] == "two-level-bootstrap+clopper-pearson"


def test_one_more_error_never_raises_the_lower_end(proportion: MakeCounts):
    """What a guard for the case of no errors alone would get wrong."""
    lows = []
    for num_wrong in range(7):
        right = np.ones((3, 211))
        right.ravel()[: 2 * num_wrong : 2] = 0
        score = score_over_seeds([proportion(row) for row in right])
        assert score.interval is not None
        assert score.interval[0] < score.value < score.interval[1] or num_wrong == 0
        lows.append(score.interval[0])
    assert np.all(np.diff(lows) <= 0)


def test_the_guard_rounds_the_mean_number_right_outwards(proportion: MakeCounts):
    """With 7 of 11 and 8 of 11 right, its ends are those of 7 and of 8."""
    right = np.array([[1] * 7 + [0] * 4, [1] * 8 + [0] * 3])
    ends = seeds._clopper_pearson_of_mean([proportion(row) for row in right], 0.95)
    assert ends == (clopper_pearson(7, 11)[0], clopper_pearson(8, 11)[1])


def test_seeds_that_vary_widen_the_interval(mean: MakeCounts, spread: Spread):
    rng = np.random.default_rng(10)
    values = spread(rng, num_seeds=5, num_examples=211, seed_deviation=0.3)
    both = score_over_seeds([mean(x) for x in values]).interval
    examples_only = score_over_seeds([mean(np.mean(values, axis=0))]).interval
    assert both is not None
    assert examples_only is not None
    assert both[1] - both[0] > 2 * (examples_only[1] - examples_only[0])


def test_seeds_that_do_not_vary_change_nothing(mean: MakeCounts):
    model = mean(np.random.default_rng(11).normal(size=101))
    several, one = score_over_seeds([model] * 3, num_resamples=4000), score_over_seeds([model], num_resamples=4000)
    # Other draws: a quantile of 4 000 of them is off by about 4 % of the standard error of the mean.
    assert several.interval == pytest.approx(one.interval, abs=0.16 / np.sqrt(101))


@pytest.mark.parametrize(
    ("num_seeds", "seed_deviation", "fewest", "most"),
    [
        (8, 0.1, 0.92, 0.999),  # examples and seeds matter alike
        (8, 0.5, 0.83, 0.97),  # seeds decide
        (3, 0.5, 0.65, 0.9),  # few seeds decide: less than it says, as documented
    ],
)
def test_the_interval_over_seeds_covers_the_truth(
    num_seeds: int,
    seed_deviation: float,
    fewest: float,
    most: float,
    mean: MakeCounts,
    spread: Spread,
):
    rng = np.random.default_rng(12)
    covered = 0
    for simulation in range(NUM_SIMULATIONS):
        hardness = rng.normal(size=101)
        values = spread(rng, num_seeds=num_seeds, num_examples=101, seed_deviation=seed_deviation)
        interval = score_over_seeds([mean(x + hardness) for x in values], num_resamples=199, seed=simulation).interval
        assert interval is not None
        covered += interval[0] <= 0.0 <= interval[1]
    assert fewest <= covered / NUM_SIMULATIONS <= most, covered / NUM_SIMULATIONS


@pytest.mark.parametrize("rate", [0.6, 0.995])
def test_the_interval_of_a_proportion_covers_the_truth_at_the_edge_too(rate: float, proportion: MakeCounts):
    """Half of what makes an example wrong is the example, and half the seed."""
    rng = np.random.default_rng(13)
    covered = 0
    for simulation in range(NUM_SIMULATIONS):
        example = rng.random(101) < np.sqrt(rate)
        counts = [proportion(example & (rng.random(101) < np.sqrt(rate))) for _ in range(3)]
        interval = score_over_seeds(counts, num_resamples=199, seed=simulation).interval
        assert interval is not None
        covered += interval[0] <= rate <= interval[1]
    assert covered >= scipy.stats.binom.ppf(0.001, NUM_SIMULATIONS, 0.95)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"confidence": 0.0}, r"confidence must be in \(0, 1\), got 0.0"),
        ({"num_resamples": 0}, "num_resamples=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_a_score_over_seeds_refuses_what_lies_out_of_range(arguments: dict, message: str, mean: MakeCounts):
    with pytest.raises(ConfigError, match=message):
        score_over_seeds([mean(np.arange(7.0))] * 2, **arguments)


def test_counts_that_are_not_alike_are_refused(proportion: MakeCounts):
    with pytest.raises(DataError, match="at least 1 seed"):
        score_over_seeds([])
    with pytest.raises(DataError, match=r"exact_match \(\) over 7 and exact_match \(\) over 5"):
        score_over_seeds([proportion(np.ones(7)), proportion(np.ones(5))])
