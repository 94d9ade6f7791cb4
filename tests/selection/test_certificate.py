"""The certificate against values worked out from the ledger by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from regard.errors import ConfigError, RunError
from regard.selection.bounds import Scores, tightest
from regard.selection.certificate import CONDITION, Certificate, certify
from regard.selection.ledger import HELD_OUT, OPENED, REPLACED, SEALED, SELECTION, Ledger
from regard.selection.neighbours import Neighbours

EXACT = "rows:200|interval:clopper-pearson"


def score(value: float, signature: str = EXACT) -> dict[str, Any]:
    return {"value": value, "interval": [value - 0.05, value + 0.05], "signature": signature}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Three looks of a training, and its report: 180 of 200 right."""
    made = Ledger(tmp_path / "ledger.jsonl")
    made.add("test", SEALED, "", {}, rows=150, hash="ab")
    made.add("valid", HELD_OUT, "", {}, rows=200, hash="cd")
    for step in (10, 20, 30):
        made.add("valid", "training", f"step {step}", {"loss": 1 / step})
    made.add("valid", "report", "step 30", {"accuracy": score(0.9)}, rows=200, headline="accuracy")
    return made


def tell(ledger: Ledger, **options: Any) -> tuple[Certificate, str]:
    certificate = certify("mine", ledger.read(), **options)
    return certificate, " ".join(certificate.sentences())


def test_a_share_has_the_exact_bound_over_all_that_were_judged(ledger: Ledger):
    certificate, told = tell(ledger)
    judged = certificate.validation
    assert judged is not None
    assert (judged.num_hypotheses, judged.num_examples, certificate.num_looks) == (3, 200, 4)
    # Clopper and Pearson at a confidence of 1 - 0.05 / 3.
    low = float(stats.beta.ppf(0.05 / 6, 180, 21))
    high = float(stats.beta.ppf(1 - 0.05 / 6, 181, 20))
    assert judged.best is not None
    assert judged.best.interval == pytest.approx((low, high))
    hoeffding = next(bound for bound in judged.bounds if bound.name == "Hoeffding")
    assert hoeffding.lower == pytest.approx(0.9 - math.sqrt(math.log(2 * 3 / 0.05) / 400))
    assert f"between {low:.3f} and {high:.3f}, whichever of the 3 that were judged was kept" in told
    assert "still sealed" in told


def test_a_smaller_delta_promises_less(ledger: Ledger):
    (usual, _), (careful, told) = tell(ledger), tell(ledger, delta=0.001)
    assert usual.validation is not None
    assert careful.validation is not None
    assert usual.validation.best is not None
    assert careful.validation.best is not None
    assert careful.validation.best.lower < usual.validation.best.lower
    assert "fails at most 0.1 % of the time" in told
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError, match="delta"):
            tell(ledger, delta=wrong)


def test_a_mean_of_shares_has_bounds_and_a_loss_has_none(ledger: Ledger):
    scores = {"answer_f1": score(0.7, "interval:bootstrap"), "perplexity": score(31.0, "interval:bootstrap")}
    ledger.add("valid", "report", "step 30", scores, rows=200, headline="perplexity")
    certificate, told = tell(ledger)
    assert certificate.validation is not None
    assert certificate.validation.best is None
    assert not certificate.validation.bounds
    assert "nothing can be promised" in told
    mean, _ = tell(ledger, metric="answer_f1")
    assert mean.validation is not None
    assert mean.validation.best is not None
    assert mean.validation.best.name == "Chernoff"
    with pytest.raises(RunError, match="no score called 'beauty', it has answer_f1, perplexity"):
        tell(ledger, metric="beauty")


def test_the_choice_of_a_sweep_counts(ledger: Ledger):
    ledger.add("valid", SELECTION, "", {}, by="valid", models=8, hypotheses=33)
    certificate, told = tell(ledger)
    assert certificate.validation is not None
    assert (certificate.validation.num_hypotheses, certificate.chosen_among, certificate.num_looks) == (33, 8, 4)
    assert "judged 33 hypotheses, of 8 models" in told


def test_each_opening_of_the_test_set_counts(ledger: Ledger):
    for times, word in ((1, "once"), (2, "twice"), (3, "3 times")):
        ledger.add("test", OPENED, "step 30", {}, why="test")
        ledger.add("test", "evaluation", "step 30", {"accuracy": score(0.88)}, rows=150, headline="accuracy")
        certificate, told = tell(ledger)
        assert certificate.test is not None
        assert certificate.test.num_hypotheses == times
        assert not certificate.is_sealed
        assert f"opened {word}, first on {ledger.read()[0]['time'][:10]}" in told
        assert ("no longer that of rows nobody had seen" in told) == (times > 1)
    ledger.add("test", SELECTION, "", {}, by="test", models=4, hypotheses=12)
    certificate, _ = tell(ledger)
    assert certificate.test is not None
    assert certificate.test.num_hypotheses == 12


def test_what_a_run_had_seen_that_was_overwritten_counts(ledger: Ledger):
    ledger.add("valid", REPLACED, "", {}, keys=["a" * 16, "b" * 16])
    ledger.add("test", REPLACED, "", {}, openings=1, looks=1)
    certificate, told = tell(ledger)
    assert certificate.validation is not None
    assert certificate.validation.num_hypotheses == 5
    assert not certificate.is_sealed
    assert "This run has not opened its test set" in told
    assert "overwritten opened the same rows once. Whoever" in told


def test_what_lies_beside_counts_and_is_named(ledger: Ledger):
    beside = Neighbours(others=["a", "b", "c", "d", "e"], num_hypotheses=40, openers=["a", "b"], num_tested=2)
    certificate, told = tell(ledger, neighbours=beside)
    assert certificate.validation is not None
    assert certificate.validation.num_hypotheses == 40
    assert not certificate.is_sealed
    assert "The same rows were opened by a and b beside it. Whoever has kept the better" in told
    assert "those of a, b, c and 2 more beside this run among them" in told


def test_ledgers_that_cannot_be_read_are_told_of(ledger: Ledger):
    certificate, told = tell(ledger, neighbours=Neighbours(unread=["old"]))
    assert certificate.is_sealed
    assert "What old saw is not counted" in told
    assert "still sealed: no ledger here that can be read tells otherwise" in told


def test_without_sets_and_scores_it_says_so(tmp_path: Path):
    certificate, told = tell(Ledger(tmp_path / "ledger.jsonl"))
    assert (certificate.num_test, certificate.is_sealed, certificate.validation, certificate.head) == (
        0,
        False,
        None,
        "",
    )
    assert "No rows were held back for a test" in told
    assert "There is no score on validation rows." in told


def test_rows_from_elsewhere_are_judged_by_all_that_were_scored_on_them(ledger: Ledger):
    for step, value in ((20, 0.7), (30, 0.8)):
        ledger.add(
            "file", "evaluation", f"step {step}", {"accuracy": score(value)},
            rows=200, headline="accuracy", name="mine.tsv", hash="ef",
        )  # fmt: skip
    certificate, told = tell(ledger)
    (mine,) = certificate.files
    assert (mine.value, mine.num_hypotheses, mine.num_examples) == (0.8, 2, 200)
    assert certificate.validation is not None
    assert certificate.validation.num_hypotheses == 3
    assert "Measured on 200 rows of mine.tsv: accuracy 0.800" in told
    beside, _ = tell(ledger, neighbours=Neighbours(num_by_file={"ef": 9}))
    assert beside.files[0].num_hypotheses == 9
    assert [judged.set for judged in certificate.shown] == ["valid", "file"]


def test_it_says_when_earlier_scores_may_have_decided_what_was_tried(ledger: Ledger):
    alone, told = tell(ledger)
    assert not alone.may_depend  # three looks, at weights of one training
    assert CONDITION not in told
    for beside in (Neighbours(num_hypotheses=9), Neighbours(num_tested=2)):
        certificate, told = tell(ledger, neighbours=beside)
        assert certificate.may_depend
        assert CONDITION in told
    ledger.add("valid", SELECTION, "", {}, by="valid", models=8, hypotheses=33)
    assert tell(ledger)[0].may_depend


def test_the_condition_matters_a_vote_of_coins_breaks_the_bound():
    """Blum and Hardt, "The Ladder" (2015): the majority of coins that looked good by the same examples."""
    rng = np.random.default_rng(0)
    missed = {"fixed": 0, "voted": 0}
    for _ in range(200):
        labels, coins = rng.integers(0, 2, 1_000), rng.integers(0, 2, (100, 1_000))
        right = (coins == labels).mean(axis=1)
        voted = (np.where(right[:, None] > 0.5, coins, 1 - coins).mean(axis=0) > 0.5) == labels
        for name, best, count in (("fixed", right.max(), 100), ("voted", voted.mean(), 101)):
            found = tightest(Scores.counted(round(1_000 * best), 1_000), num_hypotheses=count)
            missed[name] += found.interval[0] > 0.5
    assert stats.binomtest(missed["fixed"], 200, 0.05, alternative="greater").pvalue > 0.01
    assert missed["voted"] > 180


def test_of_many_sets_from_elsewhere_the_last_are_told(ledger: Ledger):
    for number in range(5):
        about = {"rows": 200, "headline": "accuracy", "name": f"{number}.tsv", "hash": str(number)}
        ledger.add("file", "evaluation", "step 30", {"accuracy": score(0.8)}, **about)
    ledger.add("file", "evaluation", "step 30", {"accuracy": score(0.6)}, **about | {"name": "0.tsv", "hash": "0"})
    ledger.add("file", "evaluation", "step 30", {"loss": 3.0}, **about | {"name": "odd.tsv", "hash": "odd"})
    certificate, told = tell(ledger)
    assert [judged.name for judged in certificate.files] == ["1.tsv", "2.tsv", "3.tsv", "4.tsv", "0.tsv"]
    assert "rows of 2.tsv" not in told
    assert "rows of 0.tsv: accuracy 0.600" in told
    assert "scored on 2 more sets of rows from elsewhere" in told


def test_a_run_without_sets_of_its_own_is_judged_by_those_from_elsewhere(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    about = {"rows": 200, "headline": "accuracy", "name": "mine.tsv", "hash": "ef"}
    ledger.add("file", REPLACED, "", {}, hash="gone", keys=["a" * 16])
    ledger.add("file", REPLACED, "", {}, hash="ef", keys=["a" * 16])
    ledger.add("file", "evaluation", "step 0", {"accuracy": score(0.8)}, **about)
    certificate, told = tell(ledger)
    assert [judged.num_hypotheses for judged in certificate.files] == [2]
    assert "rows of mine.tsv: accuracy 0.800" in told
