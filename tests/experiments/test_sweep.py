"""Sweeps: proposals that no interruption changes, trials trained once, evaluations counted once."""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import TrialState

import regard
from regard.errors import ConfigError, RunError, RunExistsError
from regard.evaluation.intervals import mean_interval
from regard.experiments.jobs import Job, run_job
from regard.experiments.sweep import Sweep
from regard.experiments.sweep import run as module
from regard.experiments.sweep import study as studies
from regard.experiments.sweep.objectives import SweepObjective, evaluations_of, measure_run
from regard.experiments.sweep.run import pareto_front
from regard.experiments.sweep.study import (
    TrialKey,
    make_sampler,
    open_storage,
    record_heartbeats,
    retry_lost,
    retry_stale,
    take_trial,
    trials_of,
)
from regard.experiments.sweep.worker import work
from regard.explanation.report.sweep import retraining_sentence
from regard.runs.folder import RunFolder
from regard.selection.bounds import ScoreSummary, tightest_bound
from regard.selection.certificate import certify
from regard.selection.ledger import Ledger, candidates_in
from regard.selection.space import Range, Space

ROWS = [
    (f"{word} film number {number}", label) for number in range(70) for word, label in (("good", "+"), ("bad", "-"))
]
TINY: dict[str, Any] = {
    "model": {"num_layers": 1, "model_dim": 8, "num_heads": 1, "feedforward_dim": 11, "dropout": 0.0},
    "task": {"tokenizer": "characters", "ngrams": 0},
    "train": {"batch_tokens": 300, "precision": "float32", "device": "cpu"},
}
RATE = {"train": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}}
SPACE = Space({"x": Range(low=-5.0, high=5.0), "kind": Range(choices=["a", "b", "c"]), "n": Range(low=1, high=9)})


@pytest.fixture(autouse=True)
def inside(exact_and_repeatable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Workers and jobs run in the test's process; returns what was started. `tests/cli` tests them as processes."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    started: list[str] = []

    def start_worker(pool: Any, plan: Any, log: Path) -> None:
        started.append("worker")
        work(plan)

    def run_jobs(jobs: Sequence[Job], **_: Any) -> None:
        for job in jobs:
            started.append(job.name)
            run_job(job)

    monkeypatch.setattr(module, "start_worker", start_worker)
    monkeypatch.setattr(module, "run_jobs", run_jobs)
    return started


def swept(folder: Path, **changes: Any) -> Sweep:
    options = {"trials": 3, "steps": 4, "repeats": 2, "sampler": "random", "settings": TINY, "workers": 1}
    return regard.sweep(ROWS, changes.pop("space", RATE), show_progress=False, out=folder, **{**options, **changes})


def quality(params: dict[str, Any]) -> float:
    return (params["x"] - 2) ** 2 + params["n"] + {"a": 0, "b": 1, "c": 2}[params["kind"]]


def proposals(sampler: Any, *, until: int, lost: int | None = None) -> list[dict[str, Any]]:
    """What one worker is proposed; it is killed in the middle of trial `lost`, and another takes its place."""
    storage = optuna.storages.InMemoryStorage()

    def open_it() -> optuna.Study:
        sampler_now = make_sampler(sampler, SPACE, 7)
        return optuna.create_study(storage=storage, study_name="s", load_if_exists=True, sampler=sampler_now)

    study = open_it()
    while trial := take_trial(study, SPACE, num_trials=until, owner="me"):
        if trial.number == lost:
            study = open_it()
            assert retry_lost(study, "me") == 1
            continue
        study.tell(trial, quality(trial.params))
    assert retry_lost(study, "me") == 0
    return [trial.params for trial in trials_of(study).values()]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_an_interrupted_sweep_proposes_what_it_would_have_proposed(sampler: str):
    whole = proposals(sampler, until=14)
    for lost in (0, 11, 12):
        assert proposals(sampler, until=14, lost=lost) == whole
    assert len({params["x"] for params in whole}) == 14


def test_a_trial_that_was_lost_without_some_of_its_settings_gets_those_it_would_have_had():
    whole = proposals("random", until=1)
    study = optuna.create_study(sampler=make_sampler("random", SPACE, 7))
    trial = study.ask()
    trial.set_user_attr(TrialKey.INDEX, 0)
    trial.suggest_float("x", -5.0, 5.0)
    assert retry_lost(study, "me") == 1
    trial = take_trial(study, SPACE, num_trials=1, owner="me")
    assert trial is not None
    assert trial.params == whole[0]


def test_a_trial_that_failed_before_it_was_queued_again_is_not_lost():
    """Where a process is killed between the two writes."""
    study = optuna.create_study(sampler=make_sampler("random", SPACE, 7))
    trial = take_trial(study, SPACE, num_trials=1, owner="other")
    assert trial is not None
    study.tell(trial, state=TrialState.FAIL)
    assert not studies.has_ended(trials_of(study)[0])
    assert retry_lost(study, "me") == 1
    again = take_trial(study, SPACE, num_trials=1, owner="me")
    assert again is not None
    assert (again.params, again.user_attrs[TrialKey.INDEX]) == (trial.params, 0)
    assert take_trial(study, SPACE, num_trials=1, owner="me") is None


def test_a_trial_that_failed_for_a_reason_is_not_queued_again():
    """Where a process is killed after it has written the reason, and before it has ended the trial."""
    study = optuna.create_study(sampler=make_sampler("random", SPACE, 7))
    trial = take_trial(study, SPACE, num_trials=1, owner="me")
    assert trial is not None
    trial.set_user_attr(TrialKey.FAILURE, "a reason")
    retry_lost(study, "me")
    assert studies.has_ended(trials_of(study)[0])
    assert take_trial(study, SPACE, num_trials=1, owner="me") is None


def test_tpe_comes_nearer_than_chance():
    found = {name: proposals(name, until=25) for name in ("random", "tpe")}
    late = {name: sum(map(quality, params[15:])) for name, params in found.items()}
    assert late["tpe"] < late["random"]


@pytest.mark.parametrize("pruner", ["none", "hyperband"])
def test_a_grid_is_tried_point_by_point(pruner: Any):
    space = Space({"kind": Range(choices=["a", "b"]), "n": Range(low=1, high=3)})
    pruner = studies.make_pruner(pruner, every=1, steps=9)
    study = optuna.create_study(sampler=make_sampler("grid", space, 0), pruner=pruner)
    while trial := take_trial(study, space, num_trials=6, owner="me"):
        if trial.number == 2:
            retry_lost(study, "me")
        else:
            study.tell(trial, 0.0)
    assert [trial.params for trial in trials_of(study).values()] == space.grid()


@pytest.mark.slow
def test_several_processes_may_create_the_storage_at_once(tmp_path: Path):
    """As threads here; that the first attempt of some fails depends on the moment."""
    errors: list[Exception] = []

    def create() -> None:
        try:
            optuna.create_study(
                storage=open_storage(f"sqlite:///{tmp_path / 'study.db'}"), study_name="s", load_if_exists=True
            )
        except RunError as error:
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.slow
def test_workers_take_as_many_trials_as_were_asked_for_and_no_more(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    optuna.create_study(storage=open_storage(url), study_name="s")

    def take(number: int) -> None:
        sampler = make_sampler("random", SPACE, 0)
        study = optuna.load_study(storage=open_storage(url), study_name="s", sampler=sampler)
        while trial := take_trial(study, SPACE, num_trials=9, owner=str(number)):
            study.tell(trial, 0.0)

    threads = [threading.Thread(target=take, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    study = optuna.load_study(storage=open_storage(url), study_name="s")
    assert len(trials_of(study)) == 9
    assert all(trial.state == TrialState.COMPLETE for trial in trials_of(study).values())


@pytest.mark.slow
def test_the_folder_of_a_sweep_has_its_results(tmp_path: Path, inside: list[str]):
    result = swept(tmp_path / "s")
    table, folder = result.table, tmp_path / "s"
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(table))
    assert "<html" in result.page.read_text()[:200]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert len(table["trials"]) == table["num_trials"] == 3
    values = [trial["values"]["accuracy"] for trial in table["trials"]]
    assert values == sorted(values, reverse=True)
    for trial in table["trials"]:
        run = RunFolder(trial["run"])
        assert run.read_settings().train.learning_rate == trial["settings"]["train.learning_rate"]
        assert measure_run(run)["accuracy"] == trial["values"]["accuracy"]
        assert trial["evaluations"] == 2  # at steps 2 and 4

    lines = Ledger(folder / "ledger.jsonl").read()
    assert table["hypotheses"] == len(candidates_in(lines)) == (3 + 2) * 2
    assert table["ledger"] == lines[-1]["chain"]
    report = [line for line in RunFolder(table["trials"][0]["run"]).read_ledger() if line["event"] == "report"][-1]
    right, rows = round(report["scores"]["accuracy"]["value"] * report["rows"]), report["rows"]
    assert table["bound"] == tightest_bound(ScoreSummary.from_successes(right, rows), num_candidates=10).to_json()

    assert inside == [
        "worker",
        f"trial {table['winner']['number']}, seed 1",
        f"trial {table['winner']['number']}, seed 2",
    ]
    winner = table["winner"]
    repeats = [RunFolder(path) for path in winner["runs"]]
    assert [run.read_settings().train.seed for run in repeats] == [1, 2]
    assert {run.read_settings().train.learning_rate for run in repeats} == {winner["settings"]["train.learning_rate"]}
    assert winner["repeats"] == [measure_run(run)["accuracy"] for run in repeats]
    assert winner["optimism"] == pytest.approx(winner["value"] - sum(winner["repeats"]) / 2)


@pytest.mark.slow
def test_no_trial_opens_its_test_set(tmp_path: Path):
    result = swept(tmp_path / "s", trials=1, repeats=1)
    for path in (result.table["trials"][0]["run"], *result.table["winner"]["runs"]):
        assert all(line["set"] == "valid" or line["event"] == "sealed" for line in RunFolder(path).read_ledger())
        assert RunFolder(path).has_test


@pytest.mark.slow
def test_the_same_sweep_again_trains_nothing_and_more_trials_are_added(tmp_path: Path, inside: list[str]):
    first = swept(tmp_path / "s").table
    inside.clear()
    assert swept(tmp_path / "s").table == first
    more = swept(tmp_path / "s", trials=5).table
    assert more["num_trials"] == 5
    before = {trial["number"]: trial for trial in first["trials"]}
    for trial in more["trials"]:
        if trial["number"] in before:
            assert trial["settings"] == before[trial["number"]]["settings"]
            assert trial["seconds"] == before[trial["number"]]["seconds"]  # not trained again
    with pytest.raises(ConfigError, match="has 5 trials, so trials must be at least that, got 3"):
        swept(tmp_path / "s", trials=3)
    with pytest.raises(RunExistsError, match=r"another sweep: train\.max_steps was 4, and is now 5"):
        swept(tmp_path / "s", trials=5, steps=5)
    assert swept(tmp_path / "s", steps=5, trials=1, repeats=0, overwrite=True).table["num_trials"] == 1


@pytest.mark.slow
def test_two_folders_share_a_storage_and_each_counts_all_evaluations(tmp_path: Path):
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    first = swept(tmp_path / "a", trials=2, repeats=0, storage=storage).table
    second = swept(tmp_path / "b", trials=4, repeats=0, storage=storage).table
    assert [len(list((tmp_path / name / "trials").iterdir())) for name in ("a", "b")] == [2, 2]
    assert second["num_trials"] == 4
    assert (first["hypotheses"], second["hypotheses"]) == (4, 8)
    alone = swept(tmp_path / "c", trials=4, repeats=0).table
    settings = [{t["number"]: t["settings"] for t in table["trials"]} for table in (alone, second)]
    assert settings[0] == settings[1]


@pytest.mark.slow
def test_trials_of_a_machine_that_is_lost_are_trained_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(studies, "GRACE_SECONDS", 1)
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    swept(tmp_path / "a", trials=1, repeats=0, storage=url)
    (name,) = optuna.get_all_study_names(url)
    space = Space({"train.learning_rate": Range(**RATE["train"]["learning_rate"])})
    storage = open_storage(url)
    study = optuna.load_study(study_name=name, storage=storage, sampler=make_sampler("random", space, 0))
    lost = take_trial(study, space, num_trials=2, owner="lost")
    assert lost is not None
    storage.record_heartbeat(lost._trial_id)
    table = swept(tmp_path / "b", trials=3, repeats=0, storage=url).table
    assert {trial["number"] for trial in table["trials"]} == {0, 1, 2}
    assert (tmp_path / "b" / "trials" / "0001" / "report.html").is_file()
    assert next(t for t in table["trials"] if t["number"] == 1)["settings"] == lost.params
    assert table["hypotheses"] == 3 * 2


@pytest.mark.slow
def test_a_trial_is_not_lost_as_long_as_its_heartbeat_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(studies, "GRACE_SECONDS", 2)
    storage = open_storage(f"sqlite:///{tmp_path / 'study.db'}")
    study = optuna.create_study(storage=storage, sampler=make_sampler("random", SPACE, 0))
    trial = take_trial(study, SPACE, num_trials=1, owner="other")
    assert trial is not None
    for _ in range(4):
        record_heartbeats(study, storage, "other")
        time.sleep(0.8)
        retry_stale(study, storage, "me")
        assert take_trial(study, SPACE, num_trials=1, owner="me") is None
    time.sleep(3.1)  # the clock of SQLite counts seconds
    retry_stale(study, storage, "other")
    assert take_trial(study, SPACE, num_trials=1, owner="other") is None  # it holds the lock: its worker runs
    time.sleep(3.1)
    retry_stale(study, storage, "me")
    again = take_trial(study, SPACE, num_trials=1, owner="me")
    assert again is not None
    assert again.params == trial.params


@pytest.mark.slow
def test_hyperband_ends_bad_trials_early(tmp_path: Path):
    space = {"train": {"learning_rate": {"low": 1e-6, "high": 1e-1, "log": True}}}
    table = swept(tmp_path / "s", trials=8, steps=9, pruner="hyperband", repeats=0, space=space).table
    pruned = [trial for trial in table["trials"] if trial["state"] == "pruned"]
    assert pruned
    for trial in pruned:
        assert trial["steps"] < 9
        assert trial["evaluations"] == trial["steps"]  # one at each step, and none after the last
        assert all(line["event"] != "report" for line in RunFolder(trial["run"]).read_ledger())
    assert table["hypotheses"] == sum(trial["evaluations"] for trial in table["trials"])
    assert max(trial["evaluations"] for trial in table["trials"]) == 9


@pytest.mark.slow
def test_settings_that_do_not_fit_together_are_a_failed_trial(tmp_path: Path):
    space = {"model": {"num_heads": {"choices": [1, 3]}}}
    table = swept(tmp_path / "s", trials=2, sampler="grid", repeats=0, space=space).table
    assert [trial["state"] for trial in table["trials"]] == ["finished", "failed"]
    assert "multiple of num_heads" in table["trials"][1]["failure"]
    assert table["winner"]["settings"] == {"model.num_heads": 1}
    with pytest.raises(RunError, match=r"no trial was finished: .*multiple of num_heads"):
        swept(tmp_path / "t", trials=1, sampler="grid", space={"model": {"num_heads": {"choices": [3]}}})


@pytest.mark.slow
def test_several_objectives_have_a_pareto_front(tmp_path: Path):
    space = {"model": {"num_layers": {"choices": [1, 2]}}, **RATE}
    goals = ["loss", "parameters"]
    table = swept(tmp_path / "s", trials=5, repeats=0, objectives=goals, space=space).table
    points = {trial["number"]: tuple(trial["values"].values()) for trial in table["trials"]}
    front = {trial["number"] for trial in table["trials"] if trial["is_pareto_optimal"]}
    for number, point in points.items():
        is_beaten = any(a <= point[0] and b <= point[1] and (a, b) != point for a, b in points.values())
        assert (number in front) != is_beaten
    assert table["winner"]["number"] in front
    assert table["bound"] is None


def test_the_pareto_front_accounts_for_directions():
    study = optuna.create_study(directions=["maximize", "minimize"])
    for values in ((0.9, 10.0), (0.8, 5.0), (0.8, 7.0), (0.5, 5.0), (0.95, 20.0)):
        study.add_trial(optuna.trial.create_trial(values=values))
    objectives = [SweepObjective("accuracy"), SweepObjective("seconds")]
    assert pareto_front(dict(enumerate(study.trials)), objectives) == {0, 1, 4}


def test_an_evaluation_that_is_repeated_after_a_crash_counts_once(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for step in (2, 4, 2, 4, 6):
        ledger.add("valid", "training", f"step {step}", {"loss": 1.0 / step})
    assert [line["candidate"] for line in evaluations_of(RunFolder(tmp_path))] == ["step 2", "step 4", "step 6"]


@pytest.mark.parametrize(
    ("again", "words"),
    [
        ([0.7, 0.71, 0.72], "reach 0.710 [0.685, 0.735] on average: the selected trial is 0.190 better"),
        ([0.6, 0.8, 0.9], "3 seeds are too few to exclude chance"),
        ([0.8], "one seed is too few to exclude chance"),
        ([0.9, 0.95], "no worse than the selected trial"),
    ],
)
def test_what_was_luck_is_said_no_surer_than_it_is(again: list[float], words: str):
    mean = sum(again) / len(again)
    winner = {
        "value": 0.9,
        "repeats": again,
        "mean": mean,
        "interval": list(mean_interval(again)[1:]) if len(again) > 1 else None,
        "optimism": 0.9 - mean,
    }
    told = retraining_sentence({"winner": winner})
    assert told is not None
    assert words in told
    assert ("too few" in told) == ("too few" in words)
    assert retraining_sentence({"winner": {**winner, "repeats": [], "mean": None}}) is None


@pytest.mark.slow
def test_the_certificate_of_the_winner_counts_what_it_was_selected_from(tmp_path: Path):
    found = swept(tmp_path / "sweep")
    judged = len(candidates_in(Ledger(tmp_path / "sweep" / "ledger.jsonl").read()))
    winner = tmp_path / "sweep" / "trials" / f"{found.table['winner']['number']:04d}"
    swept(tmp_path / "sweep")
    for folder in (winner, tmp_path / "sweep" / "repeats" / "1"):
        lines = RunFolder(folder).read_ledger()
        assert sum(line["event"] == "selection" for line in lines) == 1
        certificate = certify("winner", lines)
        assert certificate.validation is not None
        assert (certificate.validation.num_candidates, certificate.num_models) == (judged, 3)
        assert certificate.is_sealed
