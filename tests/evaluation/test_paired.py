"""Tests of tests: their false positives, their power, and whether they equal their definitions."""

import math
from collections.abc import Callable
from itertools import chain, combinations, product
from typing import Any, get_args

import numpy as np
import pytest
import scipy.stats

from regard.errors import ConfigError, DataError
from regard.evaluation import intervals, paired, seeds
from regard.evaluation.counts import Counts
from regard.evaluation.examples import Examples
from regard.evaluation.intervals import bootstrap_interval
from regard.evaluation.metrics.likelihood import count_perplexity
from regard.evaluation.metrics.text import count_bleu
from regard.evaluation.paired import ComparedPair, TestMethod, compare_all, holm
from regard.evaluation.registry import find_metric
from regard.evaluation.seeds import resampling_rng

NUM_SIMULATIONS = 300
MakeCounts = Callable[[np.ndarray], Counts]
Spread = Callable[..., list[np.ndarray]]
Translate = Callable[..., tuple[list[str], list[str]]]


def count(name: str, predictions: list[str], references: list[str]) -> Counts:
    return find_metric(name).count(Examples(outputs=predictions, targets=references))


def paired_test(a: list[Counts], b: list[Counts], **options: Any) -> ComparedPair:
    """The comparison of one pair, for which Holm's correction changes nothing."""
    (pair,) = compare_all({"a": a, "b": b}, **options)
    assert pair.p == pair.p_uncorrected
    return pair


@pytest.fixture
def models(proportion: MakeCounts) -> dict[str, list[Counts]]:
    """One weak and two equally strong ones, of two seeds each."""
    rng = np.random.default_rng(14)
    rates = {"weak": 0.7, "strong": 0.9, "equal": 0.9}
    return {name: [proportion(rng.random(307) < rate) for _ in range(2)] for name, rate in rates.items()}


def test_holm_equals_an_example_worked_by_hand():
    # Sorted: 0.01 * 4 = 0.04, 0.02 * 3 = 0.06, 0.022 * 2 = 0.044 but no less than 0.06, 0.5 * 1.
    np.testing.assert_allclose(holm([0.5, 0.02, 0.01, 0.022]), [0.5, 0.06, 0.04, 0.06], rtol=1e-15)


def test_holm_equals_its_formula():
    """As statsmodels computes it: sort, multiply, take the running maximum, cap, put back."""
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 29):
        p_values = rng.random(size) ** 3
        order = np.argsort(p_values)
        expected = np.empty(size)
        expected[order] = np.minimum(1, np.maximum.accumulate(p_values[order] * np.arange(size, 0, -1)))
        np.testing.assert_allclose(holm(p_values.tolist()), expected, rtol=1e-15)


def test_holm_is_bonferronis_correction_closed_over_all_subsets():
    """Another definition: a test is real if every set of tests that holds it is, by Bonferroni."""
    p_values = [0.011, 0.2, 0.013, 0.0004, 0.013, 0.04]
    tests = range(len(p_values))
    subsets = list(chain.from_iterable(combinations(tests, size) for size in range(1, len(p_values) + 1)))
    expected = [
        max(min(1.0, len(subset) * min(p_values[i] for i in subset)) for subset in subsets if test in subset)
        for test in tests
    ]
    np.testing.assert_allclose(holm(p_values), expected, rtol=1e-15)


def test_holm_never_exceeds_one_nor_changes_the_order():
    p_values = np.random.default_rng(1).random(23).tolist()
    corrected = holm(p_values)
    assert max(corrected) == 1.0
    assert np.all(np.diff(np.array(corrected)[np.argsort(p_values)]) >= 0)
    assert np.all(np.array(corrected) >= p_values)


def test_holm_of_one_test_or_none_changes_nothing():
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_holm_refuses_what_is_no_probability(wrong: float):
    with pytest.raises(ConfigError, match=rf"must be in \[0, 1\], got \[0.5, {wrong}\]"):
        holm([0.5, wrong])


def test_the_randomization_equals_all_swaps_written_out(mean: MakeCounts, spread: Spread):
    rng = np.random.default_rng(2)
    a, b = (spread(rng, num_seeds=2, num_examples=11, skill=skill) for skill in (0.5, 0.0))
    differences = (np.mean(a, axis=0) - np.mean(b, axis=0)) / 11
    swapped = np.array(list(product([1, -1], repeat=11))) @ differences
    exact = np.mean(np.abs(swapped) >= abs(differences.sum()) - 1e-12)
    assert 0.02 < exact < 0.5
    p = paired_test([mean(x) for x in a], [mean(x) for x in b], num_resamples=20_000).p
    assert p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000))


def test_the_randomization_of_bleu_equals_swapped_predictions(translations: Translate):
    """The sums that a swap moves are those of texts that were swapped."""
    (good, references), (poor, _) = translations(0.1, seed=0), translations(0.4, seed=1)
    rng = resampling_rng(5)
    expected = []
    for _ in range(23):
        swap = rng.random(61) < 0.5
        one = [b if s else a for a, b, s in zip(good, poor, swap, strict=True)]
        other = [a if s else b for a, b, s in zip(good, poor, swap, strict=True)]
        expected.append(count("bleu", one, references).value - count("bleu", other, references).value)
    counts = [count("bleu", predictions, references) for predictions in (good, poor)]
    ours = paired._swapped_differences([(counts[:1], counts[1:])], 23, 5)
    np.testing.assert_allclose(ours[:, 0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("only_a", "only_b"), [(13, 5), (9, 7), (6, 0), (11, 11)])
def test_the_randomization_of_exact_match_is_mcnemars_exact_test(only_a: int, only_b: int, proportion: MakeCounts):
    both, neither = 31, 17
    a = np.repeat([1, 0, 1, 0], [only_a, only_b, both, neither])
    b = np.repeat([0, 1, 1, 0], [only_a, only_b, both, neither])
    exact = scipy.stats.binomtest(only_a, only_a + only_b).pvalue
    test = paired_test([proportion(a)], [proportion(b)])
    assert test.difference == pytest.approx((only_a - only_b) / len(a))
    assert test.p == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 10_000) + 2e-4)


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_the_randomization_has_the_stated_rate_of_false_positives(num_seeds: int, mean: MakeCounts):
    rng = np.random.default_rng(3)
    p_values = []
    for simulation in range(NUM_SIMULATIONS):
        hardness = rng.gamma(1.0, size=37)  # common to both models: pairs, not two heaps
        a, b = ([mean(rng.normal(hardness)) for _ in range(num_seeds)] for _ in range(2))
        p_values.append(paired_test(a, b, num_resamples=199, seed=simulation).p)
    for level in (0.05, 0.2, 0.5, 0.8):
        calls = np.count_nonzero(np.array(p_values) <= level)
        low, high = scipy.stats.binom.interval(0.998, NUM_SIMULATIONS, level)
        assert low <= calls <= high, f"{calls} of {NUM_SIMULATIONS} at {level}"


def test_the_randomization_of_exact_match_has_at_most_the_stated_rate_of_false_positives(proportion: MakeCounts):
    """Ties count as extreme, so of a score with many ties p-values lie above uniform ones."""
    rng = np.random.default_rng(4)
    p_values = []
    for simulation in range(NUM_SIMULATIONS):
        rates = np.exp(-rng.gamma(1.0, size=101))
        a, b = ([proportion(rng.random(101) < rates) for _ in range(3)] for _ in range(2))
        p_values.append(paired_test(a, b, num_resamples=199, seed=simulation).p)
    for level in (0.05, 0.2, 0.5, 0.8):
        calls = np.count_nonzero(np.array(p_values) <= level)
        assert level / 3 < calls / NUM_SIMULATIONS
        assert calls <= scipy.stats.binom.ppf(0.999, NUM_SIMULATIONS, level), f"{calls} of {NUM_SIMULATIONS} at {level}"


def test_equal_recipes_with_unequal_seeds_fool_the_randomization_and_less_the_bootstrap(
    mean: MakeCounts, spread: Spread
):
    """The swaps take the trained models as they are, and these do differ."""
    rng = np.random.default_rng(4)
    called = {"randomization": 0, "bootstrap": 0}
    for simulation in range(100):
        a, b = ([mean(x) for x in spread(rng, num_seeds=5, num_examples=199, seed_deviation=0.2)] for _ in range(2))
        for method in called:
            test = paired_test(a, b, method=method, num_resamples=99, seed=simulation)  # pyright: ignore[reportArgumentType]
            called[method] += test.p <= 0.05
    assert called["randomization"] > 40
    assert called["bootstrap"] < 20


@pytest.mark.parametrize("method", get_args(TestMethod))
def test_a_clear_difference_is_found(method, proportion: MakeCounts):
    rng = np.random.default_rng(5)
    a, b = ([proportion(rng.random(401) < rate) for _ in range(3)] for rate in (0.95, 0.8))
    test = paired_test(a, b, method=method)
    assert test.p < 0.001
    assert 0.08 < test.interval[0] < test.difference < test.interval[1] < 0.22
    assert test.difference == pytest.approx(np.mean([t.value for t in a]) - np.mean([t.value for t in b]))


@pytest.mark.parametrize("method", get_args(TestMethod))
def test_the_paired_test_agrees_with_students_on_many_examples(method, mean: MakeCounts):
    a, b = np.random.default_rng(6).normal(size=(2, 997))
    a += np.mean(b - a) + 2.5 * np.std(b - a, ddof=1) / np.sqrt(997)
    exact = scipy.stats.ttest_rel(a, b).pvalue
    assert exact == pytest.approx(0.0126, abs=1e-4)
    p = paired_test([mean(a)], [mean(b)], method=method, num_resamples=10_000).p
    assert p == pytest.approx(exact, abs=4 * np.sqrt(exact / 10_000))


@pytest.mark.parametrize("method", get_args(TestMethod))
def test_b_against_a_is_a_against_b_turned_round(method, mean: MakeCounts, spread: Spread):
    rng = np.random.default_rng(7)
    a, b = ([mean(x) for x in spread(rng, num_seeds=3, num_examples=41, skill=s)] for s in (0.2, 0.0))
    one, other = paired_test(a, b, method=method), paired_test(b, a, method=method)
    assert one.difference == -other.difference
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))
    assert one.p == other.p


@pytest.mark.parametrize("method", get_args(TestMethod))
def test_a_model_does_not_differ_from_itself(method, mean: MakeCounts, spread: Spread):
    model = [mean(x) for x in spread(np.random.default_rng(8), num_seeds=2, num_examples=31)]
    test = paired_test(model, model, method=method)
    assert (test.difference, test.interval, test.p) == (0.0, (0.0, 0.0), 1.0)


def test_equal_sums_of_other_seeds_are_ties_in_spite_of_rounding(proportion: MakeCounts):
    """On every example as many seeds of the one are right as of the other, but not the same seeds."""
    right = np.random.default_rng(0).random((3, 13)) < 0.5
    a = [proportion(row) for row in np.vstack([right, np.ones((1, 13), dtype=bool)])]
    b = [proportion(row) for row in np.vstack([np.ones((1, 13), dtype=bool), right])]
    assert paired_test(a, b).p == 1.0


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_the_difference_is_that_of_the_metrics(name: str, translations: Translate):
    good, poor = ([translations(rate, seed=seed) for seed in range(2)] for rate in (0.1, 0.3))
    test = paired_test([count(name, *texts) for texts in good], [count(name, *texts) for texts in poor])
    values = [[count(name, *texts).value for texts in texts_of_seeds] for texts_of_seeds in (good, poor)]
    assert test.difference == pytest.approx(np.mean(values[0]) - np.mean(values[1]), rel=1e-13)
    assert test.difference > 10
    assert test.p == 1 / 2001
    assert test.settings["resamples"] == 2000


def test_the_interval_of_one_seed_is_the_bootstrap_of_the_difference(
    monkeypatch: pytest.MonkeyPatch, translations: Translate
):
    monkeypatch.setattr(seeds, "resampling_rng", lambda seed: np.random.Generator(np.random.PCG64(seed)))
    (a, references), (b, _) = translations(0.1, seed=0), translations(0.3, seed=1)
    counted = [count("bleu", predictions, references) for predictions in (a, b)]

    def difference(sums: np.ndarray) -> float:
        return counted[0].compute(sums[:10]) - counted[1].compute(sums[10:])

    both = np.hstack([counted[0].statistics, counted[1].statistics])
    test = paired_test(counted[:1], counted[1:], num_resamples=101, seed=3)
    assert test.interval == bootstrap_interval(both, difference, num_resamples=101, seed=3)
    assert test.settings["interval"] == "bootstrap"


@pytest.mark.parametrize("draws_at_once", [1, 100, 37 * 13])
def test_the_size_of_the_chunks_changes_nothing(
    draws_at_once: int, monkeypatch: pytest.MonkeyPatch, mean: MakeCounts, spread: Spread
):
    a, b = ([mean(x) for x in spread(np.random.default_rng(s), num_seeds=3, num_examples=37)] for s in (1, 2))
    expected = paired_test(a, b, num_resamples=101)
    monkeypatch.setattr(paired, "_SWAPS_AT_ONCE", draws_at_once)
    monkeypatch.setattr(intervals, "_DRAWS_AT_ONCE", draws_at_once)
    test = paired_test(a, b, num_resamples=101)
    assert (test.p, test.difference) == (expected.p, expected.difference)
    assert test.interval == pytest.approx(expected.interval, rel=1e-12)


def test_a_seed_fixes_the_draws(mean: MakeCounts, spread: Spread):
    a, b = ([mean(x) for x in spread(np.random.default_rng(s), num_seeds=3, num_examples=37)] for s in (1, 2))
    assert paired_test(a, b, seed=1) == paired_test(a, b, seed=1)
    assert paired_test(a, b, seed=1).interval != paired_test(a, b, seed=2).interval
    assert paired_test(a, b, seed=1).p != paired_test(a, b, seed=2).p


def test_predictions_simulated_from_the_same_seed_are_independent_of_the_swaps(proportion: MakeCounts):
    """With the same stream the first swaps would be correlated with the predictions."""
    rng = np.random.default_rng(0)
    right = rng.random((6, 1999)) < np.repeat([0.9, 0.932], 3)[:, None]
    a, b = [proportion(row) for row in right[:3]], [proportion(row) for row in right[3:]]
    assert paired_test(a, b, seed=0).p == 1 / 10_001


def test_the_signature_of_a_paired_test_says_how_it_was_made(proportion: MakeCounts):
    test = paired_test([proportion(np.arange(9) % 2)] * 3, [proportion(np.arange(9) % 3)] * 3, seed=7)
    expected = (
        "confidence:0.95|correction:holm|interval:two-level-bootstrap|n:9|pairs:1|resamples:10000|seed:7|seeds:3|"
        "test:randomization|"
    )
    assert test.signature.startswith(expected)
    assert test.name == "exact_match"


def test_different_numbers_of_seeds_are_refused(proportion: MakeCounts):
    model = proportion(np.arange(7) % 2)
    with pytest.raises(DataError, match=r"equally many seeds, got \{'a': 3, 'b': 2\}"):
        paired_test([model] * 3, [model] * 2)


def test_different_examples_or_metrics_are_refused(translations: Translate):
    a = count("bleu", *translations(0.1, seed=0))
    with pytest.raises(DataError, match=r"equally many examples, got bleu \(.*\) over 61 and bleu \(.*\) over 60"):
        paired_test([a], [a.subset(range(60))])
    with pytest.raises(DataError, match=r"one metric .* got bleu \(.*\) over 61 and chrf"):
        paired_test([a], [count("chrf", *translations(0.1, seed=0))])
    with pytest.raises(DataError, match=r"equal settings .* tok:13a.* and .* tok:char"):
        paired_test([a], [count_bleu(*translations(0.1, seed=0), tokenizer="char")])


def test_perplexities_over_other_tokens_are_refused():
    with pytest.raises(DataError, match=r"tokens:7.* and .*tokens:8"):
        paired_test([count_perplexity([3.0, 4.0], [3, 4])], [count_perplexity([3.0, 4.0], [4, 4])])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_resamples": 0}, "num_resamples=0"),
        ({"seed": -1}, "seed=-1"),
        ({"num_resamples": 19}, r"must lie below 0.05, got 1 / \(19 \+ 1\)"),
        ({"method": "randomisation"}, "unknown method 'randomisation'; did you mean randomization?"),
    ],
)
def test_a_paired_test_refuses_what_lies_out_of_range(arguments: dict, message: str, proportion: MakeCounts):
    model = [proportion(np.arange(7) % 2)]
    with pytest.raises(ConfigError, match=message):
        paired_test(model, model, **arguments)


def test_nothing_and_a_single_example_are_refused(proportion: MakeCounts):
    with pytest.raises(DataError, match="at least 1 seed for each model, got 0"):
        paired_test([], [])
    one = [proportion(np.ones(1))]
    with pytest.raises(DataError, match="at least 2 examples, got 1"):
        paired_test(one, one)


def test_each_pair_is_a_paired_test_with_holms_correction(models: dict[str, list[Counts]]):
    comparisons = compare_all(models, seed=3)
    assert [(one.a, one.b) for one in comparisons] == [("weak", "strong"), ("weak", "equal"), ("strong", "equal")]
    tests = [paired_test(models[one.a], models[one.b], seed=3) for one in comparisons]
    for one, test, p in zip(comparisons, tests, holm([test.p for test in tests]), strict=True):
        assert (one.difference, one.interval, one.p_uncorrected) == (test.difference, test.interval, test.p)
        assert (one.name, one.p) == (test.name, p)
        assert one.settings == {**test.settings, "pairs": 3}
    assert "|pairs:3|" in comparisons[0].signature


@pytest.mark.parametrize("method", get_args(TestMethod))
def test_a_comparison_finds_the_significant_differences(method, models: dict[str, list[Counts]]):
    assert [one.is_significant for one in compare_all(models, method=method)] == [True, True, False]


def test_significance_requires_the_corrected_p_and_the_interval_over_seeds():
    fields = {"name": "bleu", "a": "x", "b": "y", "difference": 1.0, "p_uncorrected": 0.02}
    assert not ComparedPair(**fields, p=0.06, interval=(0.1, 1.9)).is_significant
    assert not ComparedPair(**fields, p=0.04, interval=(-0.1, 2.1)).is_significant
    assert ComparedPair(**fields, p=0.04, interval=(0.1, 1.9)).is_significant


def test_two_scores_made_of_smoothing_are_not_comparable():
    """Neither model has a matching 4-gram: BLEU is then higher for shorter outputs, with a small p-value."""
    rng = np.random.default_rng(0)
    references = [" ".join(f"r{number}" for number in rng.integers(1000, size=11)) for _ in range(97)]
    right, wrong = [line.split() for line in references], ["x"] * 16
    outputs = [[line[:1] + wrong, line[:1] + wrong[:8], line[:7] + wrong[:2]] for line in right]
    long, short, good = (
        count("bleu", [" ".join(words) for words in texts], references) for texts in zip(*outputs, strict=True)
    )
    pair = paired_test([long] * 2, [short] * 2)
    assert max(long.value, short.value) < 0.5
    assert pair.p < 0.05
    assert not pair.interval[0] <= 0.0 <= pair.interval[1]
    assert "smoothing" in str(pair.not_comparable)
    assert not pair.is_significant
    # A model that does match is better than one that does not; one seed that matches is enough.
    assert paired_test([good], [short]).is_significant
    assert paired_test([long, good], [short, short]).not_comparable is None


def test_of_many_equal_models_seldom_any_is_called_better(proportion: MakeCounts):
    """Uncorrected, ten pairs would raise a false alarm in about one experiment of four."""
    rng = np.random.default_rng(15)
    alarms = 0
    for simulation in range(100):
        models = {name: [proportion(rng.random(101) < 0.6)] for name in "abcde"}
        alarms += any(one.is_significant for one in compare_all(models, num_resamples=499, seed=simulation))
    assert alarms <= scipy.stats.binom.ppf(0.999, 100, 0.05)


def test_models_that_cannot_be_compared_are_refused(models: dict[str, list[Counts]]):
    with pytest.raises(DataError, match="at least 2 models, got 1"):
        compare_all({"weak": models["weak"]})
    with pytest.raises(DataError, match=r"equally many seeds, got \{'weak': 2, 'strong': 1, 'equal': 2\}"):
        compare_all({**models, "strong": models["strong"][:1]})
    with pytest.raises(DataError, match=r"over 307 and .* over 300"):
        compare_all({**models, "equal": [seed.subset(range(300)) for seed in models["equal"]]})


def test_resamples_too_few_for_the_pairs_are_refused(models: dict[str, list[Counts]]):
    with pytest.raises(ConfigError, match=r"must lie below 0.05, got 3 / \(59 \+ 1\)"):
        compare_all(models, num_resamples=59)
    assert len(compare_all(models, num_resamples=60)) == 3
