"""Runs on the same rows are found, and no evaluation is counted twice."""

import shutil
from pathlib import Path

import pytest

from regard.selection.ledger import HELD_OUT, OPENED, REPLACED, SEALED, Ledger, candidates_in
from regard.selection.releases import Ladder
from regard.selection.siblings import Siblings, read_ledgers


def make_run(path: Path, *losses: float, valid: str = "v", test: str = "t") -> Ledger:
    path.mkdir(parents=True)
    ledger = Ledger(path / "ledger.jsonl")
    ledger.add("test", SEALED, "", {}, rows=9, hash=test)
    ledger.add("valid", HELD_OUT, "", {}, rows=9, hash=valid)
    for step, loss in enumerate(losses):
        ledger.add("valid", "training", f"step {step}", {"loss": loss})
    return ledger


def open_test(ledger: Ledger) -> None:
    ledger.add("test", OPENED, "step 0", {}, reason="test")
    ledger.add("test", "evaluation", "step 0", {"accuracy": 0.5}, rows=9)


def test_a_run_alone_has_its_own_evaluations(tmp_path: Path):
    make_run(tmp_path / "runs" / "a", 0.5, 0.4)
    assert read_ledgers(tmp_path / "runs" / "a") == Siblings(
        others=[], num_candidates=2, opened_by=[], unreadable=[], unreleased=["a"], releases=[]
    )


def test_runs_on_the_same_rows_add_up_and_others_do_not(tmp_path: Path):
    make_run(tmp_path / "a", 0.5, 0.4)
    open_test(make_run(tmp_path / "b", 0.6, 0.3, 0.2))
    open_test(make_run(tmp_path / "other rows", 0.7, valid="x", test="y"))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    found = read_ledgers(tmp_path / "a")
    assert found == Siblings(
        others=["b"], num_candidates=5, opened_by=["b"], num_test_evaluations=1, unreadable=[], unreleased=["a", "b"],
        releases=[],
    )  # fmt: skip
    assert read_ledgers(tmp_path / "b").opened_by == []
    assert read_ledgers(tmp_path / "b").num_candidates == 5


def test_the_last_release_of_each_record_is_found(tmp_path: Path):
    for number, (name, record) in enumerate((("a", "one"), ("b", "one"), ("c", "two"))):
        ledger = make_run(tmp_path / name)
        for query in (1, 2):
            release = Ladder(0.1).answer(0.5, []).to_json() | {"record": record, "query": query + 2 * number}
            ledger.add("valid", "training", f"step {query}", {"accuracy": 0.5}, release=release)
    found = read_ledgers(tmp_path / "a")
    assert [(each.record, each.query) for each in found.releases] == [("one", 4), ("two", 6)]
    assert found.unreleased == []
    make_run(tmp_path / "d", 0.5)
    assert read_ledgers(tmp_path / "a").unreleased == ["d"]


def test_a_copy_and_a_repetition_are_no_new_candidates(tmp_path: Path):
    open_test(make_run(tmp_path / "a", 0.5, 0.4))
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    Ledger(tmp_path / "copy" / "ledger.jsonl").add("valid", "evaluation", "step 0", {"accuracy": 0.9}, rows=9)
    make_run(tmp_path / "again", 0.5, 0.4)
    found = read_ledgers(tmp_path / "a")
    assert (found.num_candidates, found.num_test_evaluations) == (2, 1)


def test_comparisons_and_sweeps_are_read_from_outside_and_from_inside(tmp_path: Path):
    make_run(tmp_path / "alone", 0.1)
    make_run(tmp_path / "compared" / "lstm", 0.2)
    make_run(tmp_path / "compared" / "gpt", 0.3)
    (tmp_path / "compared" / "plan.json").write_text("{}", encoding="utf-8")
    make_run(tmp_path / "swept" / "trials" / "0000", 0.4)
    make_run(tmp_path / "swept" / "again" / "1", 0.5)
    (tmp_path / "swept" / "sweep.json").write_text("{}", encoding="utf-8")
    make_run(tmp_path / "folder" / "deeper", 0.6)
    for run in ("alone", "compared/gpt", "swept/trials/0000", "swept/again/1"):
        found = read_ledgers(tmp_path / run)
        assert found.num_candidates == 5, run
        assert found.others == [name for name in ("alone", "compared", "swept") if not run.startswith(name)]


def test_runs_of_one_sweep_show_which_of_them_has_opened_the_test_set(tmp_path: Path):
    make_run(tmp_path / "alone", 0.1)
    make_run(tmp_path / "swept" / "trials" / "0000", 0.4)
    open_test(make_run(tmp_path / "swept" / "trials" / "0001", 0.5))
    open_test(make_run(tmp_path / "swept" / "again" / "1", 0.6))
    (tmp_path / "swept" / "sweep.json").write_text("{}", encoding="utf-8")
    assert read_ledgers(tmp_path / "swept/trials/0000").opened_by == ["swept/again/1", "swept/trials/0001"]
    assert read_ledgers(tmp_path / "swept/trials/0001").opened_by == ["swept/again/1"]
    assert read_ledgers(tmp_path / "alone").opened_by == ["swept"]
    assert read_ledgers(tmp_path / "alone").num_test_evaluations == 2


def test_trials_of_a_sweep_that_are_not_here_count_by_its_own_ledger(tmp_path: Path):
    make_run(tmp_path / "swept" / "trials" / "0000", 0.4)
    (tmp_path / "swept" / "sweep.json").write_text("{}", encoding="utf-8")
    own = Ledger(tmp_path / "swept" / "ledger.jsonl")
    for trial in range(7):
        own.add("valid", "training", f"trial {trial}, step 0", {"loss": 0.4})
    make_run(tmp_path / "alone", 0.1)
    assert read_ledgers(tmp_path / "alone").num_candidates == len(candidates_in(own.read())) + 1 == 8


def test_what_was_overwritten_beside_counts(tmp_path: Path):
    make_run(tmp_path / "a", 0.5)
    ledger = make_run(tmp_path / "b", 0.6)
    ledger.add("valid", REPLACED, "", {}, keys=["a" * 16, "b" * 16])
    ledger.add("test", REPLACED, "", {}, openings=2, evaluations=2)
    found = read_ledgers(tmp_path / "a")
    assert (found.num_candidates, found.opened_by, found.num_test_evaluations) == (4, ["b"], 2)


@pytest.mark.parametrize("name", ["ledger.jsonl", "ledger.head"])
def test_a_broken_ledger_beside_is_named_and_stops_nothing(tmp_path: Path, name: str):
    make_run(tmp_path / "a", 0.5)
    make_run(tmp_path / "broken", 0.6)
    (tmp_path / "broken" / name).write_text("nonsense\n", encoding="utf-8")
    found = read_ledgers(tmp_path / "a")
    assert (found.unreadable, found.num_candidates, found.others) == (["broken"], 1, [])


def test_rows_of_other_files_are_recognized_by_their_hash(tmp_path: Path):
    first, second = make_run(tmp_path / "a", 0.5), make_run(tmp_path / "b", 0.6, valid="x", test="y")
    for ledger, loss in ((first, 0.1), (first, 0.1), (second, 0.2)):
        ledger.add("file", "evaluation", "step 0", {"loss": loss}, rows=9, name="f.tsv", hash="f")
    second.add("file", "evaluation", "step 0", {"loss": 0.3}, rows=9, name="g.tsv", hash="g")
    assert read_ledgers(tmp_path / "a").num_by_file == {"f": 2}
    assert read_ledgers(tmp_path / "b").num_by_file == {"f": 2, "g": 1}
