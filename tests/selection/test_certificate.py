"""The certificate against values worked out from the ledger by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from regard.errors import ConfigError, RunError
from regard.selection.bounds import ScoreSummary, tightest_bound
from regard.selection.certificate import CONDITION, Certificate, certify
from regard.selection.ledger import HELD_OUT, OPENED, REPLACED, SEALED, SELECTION, Ledger
from regard.selection.siblings import Siblings

EXACT = "rows:200|interval:clopper-pearson"


def score(value: float, signature: str = EXACT) -> dict[str, Any]:
    return {"value": value, "interval": [value - 0.05, value + 0.05], "signature": signature}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Three evaluations during training, and the one at its end: 180 of 200 right."""
    made = Ledger(tmp_path / "ledger.jsonl")
    made.add("test", SEALED, "", {}, rows=150, hash="ab")
    made.add("valid", HELD_OUT, "", {}, rows=200, hash="cd")
    for step in (10, 20, 30):
        made.add("valid", "training", f"step {step}", {"loss": 1 / step})
    made.add("valid", "report", "step 30", {"accuracy": score(0.9)}, rows=200, headline="accuracy")
    return made


def certified(ledger: Ledger, **options: Any) -> tuple[Certificate, str]:
    certificate = certify("mine", ledger.read(), **options)
    return certificate, " ".join(certificate.sentences())


def test_a_proportion_has_the_exact_bound_over_all_candidates(ledger: Ledger):
    certificate, text = certified(ledger)
    score_of = certificate.validation
    assert score_of is not None
    assert (score_of.num_candidates, score_of.num_examples, certificate.num_evaluations) == (3, 200, 4)
    # Clopper and Pearson at a confidence of 1 - 0.05 / 3.
    low = float(stats.beta.ppf(0.05 / 6, 180, 21))
    high = float(stats.beta.ppf(1 - 0.05 / 6, 181, 20))
    assert score_of.best is not None
    assert score_of.best.interval == pytest.approx((low, high))
    hoeffding = next(bound for bound in score_of.bounds if bound.name == "Hoeffding")
    assert hoeffding.lower == pytest.approx(0.9 - math.sqrt(math.log(2 * 3 / 0.05) / 400))
    assert f"between {low:.3f} and {high:.3f}, whichever of the 3 evaluated candidates was kept" in text
    assert "still sealed" in text


def test_a_smaller_delta_has_a_wider_interval(ledger: Ledger):
    (usual, _), (careful, text) = certified(ledger), certified(ledger, delta=0.001)
    assert usual.validation is not None
    assert careful.validation is not None
    assert usual.validation.best is not None
    assert careful.validation.best is not None
    assert careful.validation.best.lower < usual.validation.best.lower
    assert "with probability at least 99.9 %" in text
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError, match="delta"):
            certified(ledger, delta=wrong)


@pytest.mark.parametrize(("metric", "direction"), [("bleu", "upwards"), ("perplexity", "downwards")])
def test_a_score_without_a_bound_does_not_claim_one(ledger: Ledger, metric: str, direction: str):
    scores = {metric: score(31.0, "interval:bootstrap")}
    ledger.add("valid", "report", "step 30", scores, rows=200, headline=metric)
    _, text = certified(ledger)
    assert "no bound holds for it" in text
    assert f"its score is biased {direction}, and nothing above accounts for it" in text
    assert "wider" not in text


def test_a_mean_of_values_in_the_unit_interval_has_bounds_and_a_loss_has_none(ledger: Ledger):
    scores = {"answer_f1": score(0.7, "interval:bootstrap"), "perplexity": score(31.0, "interval:bootstrap")}
    ledger.add("valid", "report", "step 30", scores, rows=200, headline="perplexity")
    certificate, text = certified(ledger)
    assert certificate.validation is not None
    assert certificate.validation.best is None
    assert not certificate.validation.bounds
    assert "no bound holds for it" in text
    mean, _ = certified(ledger, metric="answer_f1")
    assert mean.validation is not None
    assert mean.validation.best is not None
    assert mean.validation.best.name == "Chernoff"
    with pytest.raises(RunError, match="no score called 'beauty', it has answer_f1, perplexity"):
        certified(ledger, metric="beauty")


def test_the_selection_of_a_sweep_counts(ledger: Ledger):
    ledger.add("valid", SELECTION, "", {}, by="valid", models=8, candidates=33)
    certificate, text = certified(ledger)
    assert certificate.validation is not None
    assert (certificate.validation.num_candidates, certificate.num_models, certificate.num_evaluations) == (33, 8, 4)
    assert "33 candidates of 8 models were evaluated on the validation rows" in text


def test_each_opening_of_the_test_set_counts(ledger: Ledger):
    for times, word in ((1, "once"), (2, "twice"), (3, "3 times")):
        ledger.add("test", OPENED, "step 30", {}, reason="test")
        ledger.add("test", "evaluation", "step 30", {"accuracy": score(0.88)}, rows=150, headline="accuracy")
        certificate, text = certified(ledger)
        assert certificate.test is not None
        assert certificate.test.num_candidates == times
        assert not certificate.is_sealed
        assert f"opened {word}, first on {ledger.read()[0]['time'][:10]}" in text
        assert ("no longer that of unseen rows" in text) == (times > 1)
    ledger.add("test", SELECTION, "", {}, by="test", models=4, candidates=12)
    certificate, _ = certified(ledger)
    assert certificate.test is not None
    assert certificate.test.num_candidates == 12


def test_evaluations_of_an_overwritten_run_count(ledger: Ledger):
    ledger.add("valid", REPLACED, "", {}, keys=["a" * 16, "b" * 16])
    ledger.add("test", REPLACED, "", {}, openings=1, evaluations=1)
    certificate, text = certified(ledger)
    assert certificate.validation is not None
    assert certificate.validation.num_candidates == 5
    assert not certificate.is_sealed
    assert "This run has not opened its test set" in text
    assert "overwritten opened the same rows once. Keeping the best" in text


def test_siblings_count_and_are_named(ledger: Ledger):
    beside = Siblings(others=["a", "b", "c", "d", "e"], num_candidates=40, opened_by=["a", "b"], num_test_evaluations=2)
    certificate, text = certified(ledger, siblings=beside)
    assert certificate.validation is not None
    assert certificate.validation.num_candidates == 40
    assert not certificate.is_sealed
    assert "Sibling runs have opened the same rows: a and b. Keeping the best" in text
    assert "those of the sibling runs a, b, c and 2 more included" in text


def test_numbers_are_written_as_elsewhere_and_a_single_row_or_run_in_the_singular(tmp_path: Path):
    made = Ledger(tmp_path / "ledger.jsonl")
    made.add("test", SEALED, "", {}, rows=1, hash="ab")
    made.add("valid", HELD_OUT, "", {}, rows=1, hash="cd")
    made.add("valid", "report", "step 1", {"bleu": score(2.67812, "n:1")}, rows=1, headline="bleu")
    _, text = certified(made, siblings=Siblings(others=["other"], num_candidates=2))
    assert "The test set of 1 row is still sealed" in text
    assert "Measured on 1 validation row: BLEU 2.68." in text
    assert "Its bootstrap interval is [2.63, 2.73]" in text
    assert "those of the sibling run other included" in text


def test_an_interval_without_width_is_no_interval(tmp_path: Path):
    made = Ledger(tmp_path / "ledger.jsonl")
    same = {**score(1.0, "n:60"), "interval": [1.0, 1.0]}
    made.add("valid", "report", "step 1", {"entity_f1": same}, rows=60, headline="entity_f1")
    _, text = certified(made)
    assert "[1.000, 1.000]" not in text
    assert "It has no bootstrap interval: every resample of the rows has the same score." in text


def test_ledgers_that_cannot_be_read_are_named(ledger: Ledger):
    certificate, text = certified(ledger, siblings=Siblings(unreadable=["old"]))
    assert certificate.is_sealed
    assert "Evaluations of old are not counted" in text
    assert "still sealed: no readable ledger here records an opening" in text


def test_without_sets_and_scores_it_states_so(tmp_path: Path):
    certificate, text = certified(Ledger(tmp_path / "ledger.jsonl"))
    assert (certificate.num_test, certificate.is_sealed, certificate.validation, certificate.head) == (
        0,
        False,
        None,
        "",
    )
    assert "No test rows were set aside" in text
    assert "There is no score on validation rows." in text


def test_rows_of_another_file_count_the_candidates_evaluated_on_them(ledger: Ledger):
    for step, value in ((20, 0.7), (30, 0.8)):
        ledger.add(
            "file", "evaluation", f"step {step}", {"accuracy": score(value)},
            rows=200, headline="accuracy", name="mine.tsv", hash="ef",
        )  # fmt: skip
    certificate, text = certified(ledger)
    (mine,) = certificate.files
    assert (mine.value, mine.num_candidates, mine.num_examples) == (0.8, 2, 200)
    assert certificate.validation is not None
    assert certificate.validation.num_candidates == 3
    assert "Measured on 200 rows of mine.tsv: accuracy 0.800" in text
    beside, _ = certified(ledger, siblings=Siblings(num_by_file={"ef": 9}))
    assert beside.files[0].num_candidates == 9
    assert [score_of.set for score_of in certificate.shown] == ["valid", "file"]


def test_it_states_when_earlier_scores_may_have_influenced_what_was_tried(ledger: Ledger):
    alone, text = certified(ledger)
    assert not alone.may_be_adaptive  # three checkpoints of one training
    assert CONDITION not in text
    for beside in (Siblings(num_candidates=9), Siblings(num_test_evaluations=2)):
        certificate, text = certified(ledger, siblings=beside)
        assert certificate.may_be_adaptive
        assert CONDITION in text
    ledger.add("valid", SELECTION, "", {}, by="valid", models=8, candidates=33)
    assert certified(ledger)[0].may_be_adaptive


def test_the_condition_matters_a_vote_of_coins_breaks_the_bound():
    """Blum and Hardt, "The Ladder" (2015): the majority of coins that scored well on the same examples."""
    rng = np.random.default_rng(0)
    missed = {"fixed": 0, "voted": 0}
    for _ in range(200):
        labels, coins = rng.integers(0, 2, 1_000), rng.integers(0, 2, (100, 1_000))
        right = (coins == labels).mean(axis=1)
        voted = (np.where(right[:, None] > 0.5, coins, 1 - coins).mean(axis=0) > 0.5) == labels
        for name, best, count in (("fixed", right.max(), 100), ("voted", voted.mean(), 101)):
            found = tightest_bound(ScoreSummary.from_successes(round(1_000 * best), 1_000), num_candidates=count)
            missed[name] += found.interval[0] > 0.5
    assert stats.binomtest(missed["fixed"], 200, 0.05, alternative="greater").pvalue > 0.01
    assert missed["voted"] > 180


def test_of_many_files_the_last_are_described(ledger: Ledger):
    for number in range(5):
        about = {"rows": 200, "headline": "accuracy", "name": f"{number}.tsv", "hash": str(number)}
        ledger.add("file", "evaluation", "step 30", {"accuracy": score(0.8)}, **about)
    ledger.add("file", "evaluation", "step 30", {"accuracy": score(0.6)}, **about | {"name": "0.tsv", "hash": "0"})
    ledger.add("file", "evaluation", "step 30", {"loss": 3.0}, **about | {"name": "odd.tsv", "hash": "odd"})
    certificate, text = certified(ledger)
    assert [score_of.name for score_of in certificate.files] == ["1.tsv", "2.tsv", "3.tsv", "4.tsv", "0.tsv"]
    assert "rows of 2.tsv" not in text
    assert "rows of 0.tsv: accuracy 0.600" in text
    assert "evaluated on 2 more files" in text


def test_a_run_without_sets_of_its_own_is_certified_by_files(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    about = {"rows": 200, "headline": "accuracy", "name": "mine.tsv", "hash": "ef"}
    ledger.add("file", REPLACED, "", {}, hash="gone", keys=["a" * 16])
    ledger.add("file", REPLACED, "", {}, hash="ef", keys=["a" * 16])
    ledger.add("file", "evaluation", "step 0", {"accuracy": score(0.8)}, **about)
    certificate, text = certified(ledger)
    assert [score_of.num_candidates for score_of in certificate.files] == [2]
    assert "rows of mine.tsv: accuracy 0.800" in text


def test_a_score_of_some_of_the_rows_is_bounded_by_their_number(ledger: Ledger):
    """Of 200 rows 40 are questions without an answer, 30 of them right: the bound is that of 40 examples."""
    part = score(0.75, "interval:clopper-pearson|n:40")
    scores = {"answer_exact_match": score(0.9), "answer_exact_match_unanswerable": part}
    ledger.add("valid", "report", "step 40", scores, rows=200, headline="answer_exact_match")
    certificate, text = certified(ledger, metric="answer_exact_match_unanswerable")
    assert certificate.validation is not None
    assert certificate.validation.num_examples == 40
    expected = tightest_bound(ScoreSummary.from_successes(30, 40), num_candidates=4)
    assert certificate.validation.best == expected
    assert "answer exact match (unanswerable) 0.750" in text
