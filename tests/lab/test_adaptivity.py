"""Attacks on scores: the simulation against the mechanisms themselves, and the bounds that must and must not hold."""

import numpy as np
import pytest
from scipy.stats import binomtest

from regard.lab.adaptivity.analysts import (
    ATTACKS,
    MEASURED,
    AdaptivitySizes,
    ScoreOracle,
    guess,
    measure_prices,
    simulate_attack,
    study_adaptivity,
)
from regard.selection.bounds import binomial
from regard.selection.releases import Ladder, Release, Thresholdout, bound_released

N = 101
SIZES = AdaptivitySizes(num_analysts=600, num_examples=N, num_guessers=59, analysts_at_once=311)
WRONG = {
    "no union at all": lambda self, query, changes: 1,
    "candidates in place of transcripts": lambda self, query, changes: query,
    "changes in place of transcripts": lambda self, query, changes: changes + 1,
    "the share of an evaluation without its transcripts": lambda self, query, changes: query * (query + 1),
}


def is_violated(failures: int, trials: int, delta: float) -> bool:
    """Whether so many failures have a probability below 1 in 10,000 where each has one of at most delta."""
    return bool(binomtest(failures, trials, delta, alternative="greater").pvalue < 1e-4)


def test_an_oracle_answers_and_fails_as_the_mechanism_and_its_bound_do():
    rng, ladder = np.random.default_rng(0), Ladder(0.03)
    oracle = ScoreOracle(ladder, N, 7, delta=0.3, rng=rng)
    before: list[list[Release]] = [[] for _ in range(7)]
    has_failed = np.zeros(7, dtype=bool)
    for _ in range(40):
        right = rng.integers(25, 85, size=7)
        shown, _ = oracle.ask(right, right)
        for analyst, count in enumerate(right.tolist()):
            release = ladder.answer(count / N, before[analyst])
            before[analyst].append(release)
            assert release.value == shown[analyst]
            has_failed[analyst] |= not bound_released(release, N, is_proportion=True, delta=0.3).holds(0.5)
    assert oracle.changes.tolist() == [sum(each.is_change for each in releases) for releases in before]
    assert oracle.failures().tolist() == has_failed.tolist()
    assert has_failed.any()
    assert not has_failed.all()


def test_a_plain_certificate_is_the_exact_one_over_all_evaluations():
    rng = np.random.default_rng(1)
    oracle = ScoreOracle(None, N, 30, delta=0.05, rng=rng)
    counts = rng.integers(40, 75, size=(20, 30))
    for row in counts:
        oracle.ask(row, row)
    best = counts.max(axis=0).tolist()
    assert oracle.failures().tolist() == [not binomial(k, N, num_candidates=20).holds(0.5) for k in best]


def test_a_guesser_is_right_half_of_the_time():
    found = guess(300, 2 * N, np.random.default_rng(2))
    assert found.shape == (300, 2 * N)
    assert abs(found.mean() - 0.5) < 0.01


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_attack_breaks_the_plain_certificate_and_no_mechanism(attack: str):
    def failures(mechanism: Ladder | Thresholdout | None) -> int:
        return simulate_attack(ATTACKS[attack], mechanism, SIZES, np.random.default_rng(3)).num_failures

    assert is_violated(failures(None), SIZES.num_analysts, SIZES.delta)
    for mechanism in (Ladder(0.1), Ladder(0.01), Thresholdout(0.1)):
        assert failures(mechanism) <= SIZES.delta * SIZES.num_analysts


@pytest.mark.parametrize("kind", [Ladder, Thresholdout])
@pytest.mark.parametrize("wrong", WRONG)
def test_the_simulation_rejects_wrong_weights(
    kind: type[Ladder] | type[Thresholdout], wrong: str, monkeypatch: pytest.MonkeyPatch
):
    attack, mechanism = ATTACKS["climb"], kind(0.01)
    outcome = simulate_attack(attack, mechanism, SIZES, np.random.default_rng(4))
    assert not is_violated(outcome.num_failures, SIZES.num_analysts, SIZES.delta)
    monkeypatch.setattr(kind, "num_nodes", WRONG[wrong])
    outcome = simulate_attack(attack, mechanism, SIZES, np.random.default_rng(4))
    assert is_violated(outcome.num_failures, SIZES.num_analysts, SIZES.delta)


def test_the_price_shrinks_with_the_examples_and_is_that_of_the_bounds():
    prices = measure_prices(AdaptivitySizes())
    assert all(each.ladder > each.plain for each in prices)
    widths = [each.ladder for each in prices]
    assert widths == sorted(widths, reverse=True)
    low, high = binomial(0.8 * 4_000, 4_000, num_candidates=100).interval
    assert next(each.plain for each in prices if each.num_examples == 4_000) == (high - low) / 2


def test_the_study_is_whole_and_its_findings_are_those_of_its_table():
    sizes = AdaptivitySizes(num_analysts=60, num_examples=53, num_guessers=23, analysts_at_once=31)
    study = study_adaptivity(sizes=sizes)
    attacks, prices = study.tables
    assert [tuple(row[:2]) for row in attacks.rows] == [
        (a, m) for a in ATTACKS for m in (MEASURED, "ladder", "thresholdout")
    ]
    assert len(prices.rows) == 7
    assert len(study.figure.axes) == 3
    assert len(study.findings) == 3
    shares = {(row[0], row[1]): row[3][0] for row in attacks.rows}
    assert f"majority {100 * shares['majority', MEASURED]:.3g} %" in study.findings[0]
    assert study_adaptivity(sizes=sizes).findings == study.findings
    assert study.settings["ladder"] == 0.14
