"""Released scores: transcripts counted by enumeration, failure probabilities summed exactly, and the shared record."""

import itertools
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from regard.errors import ConfigError, RunError
from regard.selection.bounds import DELTA, binomial, chernoff
from regard.selection.certificate import certify
from regard.selection.ledger import HELD_OUT, REPLACED, Ledger
from regard.selection.releases import (
    Ladder,
    Release,
    ReleasedScores,
    Thresholdout,
    bound_released,
    default_parameter,
    make_mechanism,
    num_unreleased,
)
from regard.selection.siblings import Siblings

N = 23
STEP = 0.45
"""Large, so that all transcripts can be enumerated: a Ladder shows 0, 0.45 or 0.9."""
DEPTH = 7


def answers(mechanism: Any, scores: list[float], **options: Any) -> list[Release]:
    found: list[Release] = []
    for score in scores:
        found.append(mechanism.answer(score, found, **options))
    return found


def released(query: int, changes: int, value: float = 11 / N, mechanism: str = "ladder", **more: Any) -> Release:
    known = {"parameter": STEP, "record": "", "is_change": True, "below": 0.0, "above": 0.0}
    return Release(mechanism=mechanism, query=query, changes=changes, value=value, **{**known, **more})


def _places(query: int, changes: int) -> int:
    return math.comb(max(0, query - 2), max(0, changes - 1))


def ladder_nodes(depth: int) -> Iterator[tuple[int, int]]:
    """Each evaluation that an analyst could make, as its number and that of changes before: by all possible scores."""
    ladder, shown = Ladder(STEP), [()]
    for query in range(1, depth + 1):
        for before in shown:
            yield query, sum(each.is_change for each in before)
        extended = {
            tuple((each.value, each.is_change) for each in after): after
            for before in shown
            for count in range(N + 1)
            for after in [(*before, ladder.answer(count / N, before))]
        }
        shown = list(extended.values())


def thresholdout_nodes(depth: int) -> Iterator[tuple[int, int]]:
    """The same: an answer is the score on training rows (0), or one of the values that may be released."""
    values = range(Thresholdout(STEP).num_levels + 1)
    for query in range(1, depth + 1):
        for transcript in itertools.product(values, repeat=query - 1):
            yield query, sum(value > 0 for value in transcript)


def test_what_a_ladder_shows_is_what_its_authors_define():
    ladder = Ladder(0.1)
    scores = [0.52, 0.58, 0.61, 0.55, 0.74, 0.97, 1.0]
    shown = answers(ladder, scores)
    expected, best = [], -math.inf
    for score in scores:  # the algorithm of Blum and Hardt, with scores in the place of losses
        best = round(score / 0.1) * 0.1 if score > best + 0.1 else best
        expected.append(best)
    assert [each.value for each in shown] == pytest.approx(expected)
    assert [each.is_change for each in shown] == [True, False, True, False, True, True, False]
    assert [each.changes for each in shown] == [0, 1, 1, 2, 2, 3, 4]
    assert [each.rank is None for each in shown] == [not each.is_change for each in shown]


def test_thresholdout_shows_training_scores_until_they_differ():
    mechanism = Thresholdout(0.2)
    near, far = (mechanism.answer(score, [], reference=0.5, seed=3) for score in (0.51, 0.95))
    assert (near.value, near.is_change) == (0.5, False)
    assert far.is_change
    assert abs(far.value - 0.95) <= far.above
    assert math.isclose(far.value / 0.1, round(far.value / 0.1))
    again = mechanism.answer(0.95, [], reference=0.5, seed=3)
    assert again == far
    assert mechanism.answer(0.95, [], reference=0.5, seed=4).above != far.above


def test_a_ladder_has_as_many_transcripts_as_are_counted():
    assert Counter(ladder_nodes(DEPTH)) == {node: n for node, n in COUNTS["ladder"].items() if node[0] <= DEPTH}


def test_thresholdout_has_as_many_transcripts_as_are_counted():
    assert Counter(thresholdout_nodes(5)) == {node: n for node, n in COUNTS["thresholdout"].items() if node[0] <= 5}


def ladder_counts(depth: int) -> dict[tuple[int, int], int]:
    """The number of nodes of each kind, as enumeration has confirmed it."""
    levels = Ladder(STEP).num_levels
    later = {
        (i, c): _places(i, c) * math.comb(levels, c) for i in range(2, depth + 1) for c in range(1, min(i, levels + 1))
    }
    return {(1, 0): 1, **later}


def thresholdout_counts(depth: int) -> dict[tuple[int, int], int]:
    levels = Thresholdout(STEP).num_levels
    return {(i, c): math.comb(i - 1, c) * levels**c for i in range(1, depth + 1) for c in range(i)}


COUNTS = {"ladder": ladder_counts(40), "thresholdout": thresholdout_counts(70)}


def total_failure(mechanism: str, delta: float = DELTA) -> float:
    """The sum over all nodes of the probabilities with which an end of the interval misses the true score, exactly."""
    total = 0.0
    for (query, changes), count in COUNTS[mechanism].items():
        node = released(query, changes, mechanism=mechanism)
        lower, upper = bound_released(node, N, is_proportion=True, delta=delta).interval
        # What makes an end exact: at the end itself, so many right examples, or so few, have the probability of a tail.
        total += float(count) * float(binom.sf(10, N, lower) + binom.cdf(11, N, upper))
    return total


def _per_node(weight: Callable[[int, int, int], float]) -> Callable[[Any, int, int], int]:
    """A wrong number of nodes, from the number of the evaluation, of changes and of levels."""
    return lambda self, query, changes: max(1, round(weight(query, changes, self.num_levels)))


LADDER_WRONG = {
    "candidates in place of transcripts": _per_node(lambda i, c, levels: i),
    "any number of evaluations without a share for each": _per_node(
        lambda i, c, levels: c * (c + 1) * _places(i, c) * math.comb(levels, c)
    ),
    "any number of changes without a share for each": _per_node(
        lambda i, c, levels: i * (i + 1) * _places(i, c) * math.comb(levels, c)
    ),
    "one level too few": _per_node(
        lambda i, c, levels: i * (i + 1) * c * (c + 1) * _places(i, c) * math.comb(levels - 1, c)
    ),
    "values without places": _per_node(lambda i, c, levels: i * (i + 1) * c * (c + 1) * math.comb(levels, c)),
    "places without values": _per_node(lambda i, c, levels: i * (i + 1) * c * (c + 1) * _places(i, c)),
}
THRESHOLDOUT_WRONG = {
    "candidates in place of transcripts": _per_node(lambda i, c, levels: i),
    "any number of evaluations without a share for each": _per_node(
        lambda i, c, levels: (c + 1) * (c + 2) * math.comb(i - 1, c) * levels**c
    ),
    "one level too few": _per_node(
        lambda i, c, levels: i * (i + 1) * (c + 1) * (c + 2) * math.comb(i - 1, c) * (levels - 1) ** c
    ),
    "values without places": _per_node(lambda i, c, levels: i * (i + 1) * (c + 1) * (c + 2) * levels**c),
    "places without values": _per_node(lambda i, c, levels: i * (i + 1) * (c + 1) * (c + 2) * math.comb(i - 1, c)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_all_nodes_fail_together_with_at_most_delta(name: str):
    assert 0.6 * DELTA < total_failure(name) <= DELTA


@pytest.mark.parametrize("wrong", LADDER_WRONG)
def test_a_wrong_count_for_a_ladder_is_rejected(wrong: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Ladder, "num_nodes", LADDER_WRONG[wrong])
    assert total_failure("ladder") > DELTA


@pytest.mark.parametrize("wrong", THRESHOLDOUT_WRONG)
def test_a_wrong_count_for_thresholdout_is_rejected(wrong: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Thresholdout, "num_nodes", THRESHOLDOUT_WRONG[wrong])
    assert total_failure("thresholdout") > DELTA


@pytest.mark.parametrize("name", COUNTS)
def test_a_delta_that_is_not_halved_for_two_ends_is_rejected(name: str):
    assert total_failure(name, delta=2 * DELTA) > DELTA


MARGINS_WRONG: dict[str, Callable[[Release], Release]] = {
    "half of the rounding": lambda each: replace(each, below=each.below / 2, above=each.above / 2),
    "rounded down, not up": lambda each: replace(each, above=0.0),
    "rounded up, not down": lambda each: replace(each, below=0.0),
    "no candidate is better than what is shown": lambda each: each if each.is_change else replace(each, above=0.0),
}


def _contains(each: Release, score: float) -> bool:
    return each.value - each.below - 1e-12 <= score <= each.value + each.above + 1e-12


@pytest.mark.parametrize("step", [0.5, 0.35, 0.07, 0.03])
def test_a_measured_score_lies_within_the_margins_of_a_ladder(step: float):
    rng, ladder = np.random.default_rng(0), Ladder(step)
    wrong = dict.fromkeys(MARGINS_WRONG, True)
    for _ in range(40):
        scores = (rng.integers(0, 102, size=30) / 101).tolist()
        for score, each in zip(scores, answers(ladder, scores), strict=True):
            assert _contains(each, score)
            assert 0.0 <= each.value <= 1.0
            for name, change in MARGINS_WRONG.items():
                wrong[name] &= _contains(change(each), score)
    assert not any(wrong.values()), wrong


def test_a_measured_score_lies_within_the_margins_of_thresholdout():
    rng, mechanism = np.random.default_rng(1), Thresholdout(0.1)
    pairs = rng.uniform(0, 1, size=(400, 2)).tolist() + [(x, x + 0.05) for x in rng.uniform(0, 0.9, size=400)]
    wrong = {name: True for name in MARGINS_WRONG if not name.startswith("no candidate")}
    found: list[Release] = []
    for score, reference in pairs:
        found.append(mechanism.answer(score, found[-3:], reference=reference, seed=len(found)))
        assert _contains(found[-1], score)
        for name in wrong:
            wrong[name] &= _contains(MARGINS_WRONG[name](found[-1]), score)
    assert not any(wrong.values()), wrong
    assert 100 < sum(each.is_change for each in found) < 700
    grid = {round(each.value, 9) for each in found if each.is_change}
    assert len(grid) <= mechanism.num_levels


def test_the_bound_is_the_exact_one_with_the_weight_in_place_of_m():
    release = released(12, 3, value=0.5, parameter=0.1, below=0.05, above=0.05)
    bound, nodes = bound_released(release, 200, is_proportion=True), Ladder(0.1).num_nodes(12, 3)
    assert bound.lower == binomial(90, 200, num_candidates=nodes).lower
    assert bound.upper == binomial(110, 200, num_candidates=nodes).upper
    mean = bound_released(release, 200, is_proportion=False)
    assert mean.lower == chernoff(0.45, 200, num_candidates=nodes).lower
    assert mean.upper == pytest.approx(chernoff(0.55, 200, num_candidates=nodes).upper)
    unranked = bound_released(replace(release, is_change=False, below=1.0, above=0.1), 200, is_proportion=True)
    assert (unranked.lower, unranked.upper) == (0.0, binomial(120, 200, num_candidates=nodes).upper)
    other = released(9, 4, parameter=0.2, mechanism="ladder")
    most = max(Ladder(0.2).num_nodes(10, changes) for changes in range(1, 6))
    both = bound_released(release, 200, is_proportion=True, others=[other])
    assert both.num_candidates == nodes * most


@pytest.mark.parametrize("step", [0.0, -0.1, 0.6, math.nan])
def test_a_step_out_of_range_is_an_error(step: float):
    with pytest.raises(ConfigError, match=r"the step of a ladder must be above 0 and at most 0\.5, got"):
        make_mechanism("ladder", step)
    with pytest.raises(ConfigError, match="the threshold of thresholdout"):
        make_mechanism("thresholdout", step)
    assert default_parameter("ladder", 3) == 0.5


def record(folder: Path, step: float = 0.1, rows: str = "ab") -> ReleasedScores:
    return ReleasedScores(folder / "releases.jsonl", Ladder(step), rows=rows)


def test_a_record_answers_equal_weights_once_and_stores_no_measured_score(tmp_path: Path):
    first = record(tmp_path)
    found = [first.release(name, score) for name, score in (("a", 0.4321), ("b", 0.4765), ("c", 0.6789))]
    assert [each.query for each in found] == [1, 2, 3]
    again = record(tmp_path)  # after a crash, say
    assert again.release("b", 0.4765) == found[1]
    assert again.release("d", 0.9).query == 4
    text = first.path.read_text()
    assert not any(score in text for score in ("0.4321", "0.4765", "0.6789"))
    with open(first.path, "ab") as file:
        file.write(b'{"candidate": "e", "qu')  # cut short by a crash
    assert again.release("e", 0.1).query == 5
    assert len(first.path.read_text().splitlines()) == 6


def test_processes_share_a_record(tmp_path: Path):
    # Locks belong to open files, so threads that open the file exclude each other as processes do.
    found: list[Release] = []

    def work(worker: int) -> None:
        rng = np.random.default_rng(worker)
        own = record(tmp_path, step=0.01)
        found.extend(own.release(f"{worker} {n}", float(rng.integers(0, 101)) / 100) for n in range(25))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found.sort(key=lambda each: each.query)
    assert [each.query for each in found] == list(range(1, 101))
    assert len({each.record for each in found}) == 1
    values = [each.value for each in found]
    assert values == sorted(values)
    assert [each.changes for each in found] == [sum(each.is_change for each in found[:n]) for n in range(100)]


def test_a_record_has_one_mechanism_and_one_set_of_rows(tmp_path: Path):
    record(tmp_path).release("a", 0.5)
    with pytest.raises(RunError, match=r"was begun with ladder 0\.1, and all evaluations .* got ladder 0\.2"):
        record(tmp_path, step=0.2).release("b", 0.5)
    with pytest.raises(RunError, match="other validation rows"):
        record(tmp_path, rows="cd").check()
    with pytest.raises(ConfigError, match=r"scores in \[0, 1\], got 31"):
        record(tmp_path).release("b", 31.0)
    (tmp_path / "releases.jsonl").write_text("?\n")
    with pytest.raises(RunError, match="damaged"):
        record(tmp_path).release("b", 0.5)


def released_ledger(folder: Path, *, rank: bool = True) -> Ledger:
    ledger = Ledger(folder / "ledger.jsonl")
    ledger.add("valid", HELD_OUT, "", {}, rows=200, hash="cd")
    release = released(12, 3, value=0.8, parameter=0.1, record="own", below=0.05, above=0.05)
    if not rank:
        release = replace(release, is_change=False, below=1.0, above=0.1)
    line = {**release.to_json(), "examples": 200, "kind": "proportion"}
    ledger.add("valid", "training", "step 20", {"accuracy": 0.8}, release=line)
    scores = {"accuracy": {"value": 0.8, "interval": None, "signature": "n:200"}}
    ledger.add("valid", "report", "step 20", scores, rows=200, headline="accuracy", release=line)
    return ledger


def test_the_certificate_of_a_released_score_holds_under_adaptive_choice(tmp_path: Path):
    lines = released_ledger(tmp_path).read()
    certificate = certify("mine", lines, siblings=Siblings(num_candidates=40))
    score, nodes = certificate.validation, Ladder(0.1).num_nodes(12, 3)
    assert score is not None
    assert score.best is not None
    assert score.best.interval == (
        binomial(150, 200, num_candidates=nodes).lower,
        binomial(170, 200, num_candidates=nodes).upper,
    )
    assert not certificate.may_be_adaptive
    text = " ".join(certificate.sentences())
    assert "by ladder 0.1: accuracy 0.800, at evaluation 12 of 12, after 3 that changed what is shown" in text
    assert f"lies between {score.best.lower:.3f} and {score.best.upper:.3f}, whatever released scores" in text
    assert f"10^{math.log10(nodes):.1f} in place of M" in text
    assert json.loads(json.dumps(certificate.to_json()))["validation"]["release"]["query"] == 12
    own = replace(released(30, 5, parameter=0.1), record="own")
    assert "at evaluation 12 of 30" in certify("mine", lines, siblings=Siblings(releases=[own])).sentences()[1]


def test_a_candidate_that_was_no_better_has_an_upper_end_only(tmp_path: Path):
    text = " ".join(certify("mine", released_ledger(tmp_path, rank=False).read()).sentences())
    assert "It is the score of an earlier candidate" in text
    assert "the score of this model is at most 0.9" in text


def test_a_score_on_training_rows_is_called_so(tmp_path: Path):
    ledger = released_ledger(tmp_path)
    line = ledger.read()[-1]
    release = line["release"] | {"mechanism": "thresholdout", "is_change": False, "below": 0.25, "above": 0.25}
    ledger.add("valid", "report", "step 30", line["scores"], rows=200, headline="accuracy", release=release)
    text = " ".join(certify("mine", ledger.read()).sentences())
    assert "It is the score on training rows: that on validation rows differs by at most 0.250" in text


def test_scores_that_were_shown_elsewhere_as_measured_are_named(tmp_path: Path):
    lines = released_ledger(tmp_path).read()
    text = " ".join(certify("mine", lines, siblings=Siblings(unreleased=["runs/old"])).sentences())
    assert "also shown as measured, by runs/old" in text
    assert "a guide and not a guarantee" in text


def test_evaluations_without_a_mechanism_are_counted(tmp_path: Path):
    ledger = released_ledger(tmp_path)
    assert num_unreleased(ledger.read()) == 0
    ledger.add("valid", REPLACED, "", {}, keys=["a", "b"], unreleased=0)
    assert num_unreleased(ledger.read()) == 0
    ledger.add("valid", "evaluation", "step 20", {"accuracy": 0.81})
    ledger.add("valid", REPLACED, "", {}, keys=["a", "b"])
    assert num_unreleased(ledger.read()) == 3
