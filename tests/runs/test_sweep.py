"""Sweeps: proposals that no interruption changes, trials that are neither lost nor doubled, looks counted once."""

import json
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import TrialState

import regard
from regard.errors import ConfigError, RunError, RunExistsError
from regard.evaluation.means import mean_interval
from regard.explanation.sweep_words import luck_of
from regard.runs import sweep_pool
from regard.runs.sweep import Sweep
from regard.runs.sweep_objectives import Goal, looks_of, measure
from regard.runs.sweep_study import left_behind, make_sampler, open_storage, take_back, take_trial, trials_of
from regard.runs.sweep_verdict import _front
from regard.runs.sweep_worker import work
from regard.selection.bounds import Scores, tightest
from regard.selection.certificate import certify
from regard.selection.ledger import Ledger, hypotheses
from regard.selection.space import Range, Space
from regard.training.folder import RunFolder

ROWS = [
    (f"{word} film number {number}", label) for number in range(70) for word, label in (("good", "+"), ("bad", "-"))
]
TINY: dict[str, Any] = {
    "model": {"num_layers": 1, "model_dim": 8, "num_heads": 1, "feedforward_dim": 11, "dropout": 0.0},
    "data": {"tokenizer": "characters"},
    "train": {"batch_tokens": 300, "precision": "float32", "device": "cpu"},
}
RATE = {"train": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}}
SPACE = Space({"x": Range(low=-5.0, high=5.0), "kind": Range(choices=["a", "b", "c"]), "n": Range(low=1, high=9)})


@pytest.fixture(autouse=True)
def inside(exact_and_repeatable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Workers work inside the test's process; the result counts them. `tests/cli` shows that they are processes."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    started: list[int] = []

    def start(self: sweep_pool.Workers, order: Any) -> None:
        started.append(len(order.again))
        work(order)

    monkeypatch.setattr(sweep_pool.Workers, "start", start)
    return started


def swept(folder: Path, **changes: Any) -> Sweep:
    options = {"trials": 3, "steps": 4, "again": 2, "sampler": "random", "settings": TINY, "workers": 1, "out": folder}
    return regard.sweep(ROWS, changes.pop("space", RATE), show_progress=False, **{**options, **changes})


def quality(params: dict[str, Any]) -> float:
    return (params["x"] - 2) ** 2 + params["n"] + {"a": 0, "b": 1, "c": 2}[params["kind"]]


def proposals(lock: Path, sampler: Any, *, until: int, stop_at: int | None = None) -> list[dict[str, Any]]:
    """What one worker is proposed; it dies in the middle of trial `stop_at` and another takes its place."""
    storage = optuna.storages.InMemoryStorage()

    def open_it() -> optuna.Study:
        sampler_now = make_sampler(sampler, SPACE, 7)
        return optuna.create_study(storage=storage, study_name="s", load_if_exists=True, sampler=sampler_now)

    study = open_it()
    while trial := take_trial(study, SPACE, num_trials=until, owner="me", lock=lock):
        if trial.number == stop_at:
            study = open_it()
            assert left_behind(study, "me") == [stop_at]
            trial = take_back(study, stop_at, SPACE)
        study.tell(trial, quality(trial.params))
    return [trial.params for trial in trials_of(study)]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_an_interrupted_sweep_proposes_what_it_would_have_proposed(sampler: str, tmp_path: Path):
    whole = proposals(tmp_path / "lock", sampler, until=14)
    assert proposals(tmp_path / "lock", sampler, until=14, stop_at=12) == whole
    assert len({params["x"] for params in whole}) == 14


def test_a_trial_that_was_left_without_some_of_its_settings_gets_those_it_would_have_had(tmp_path: Path):
    whole = proposals(tmp_path / "lock", "random", until=1)
    study = optuna.create_study(sampler=make_sampler("random", SPACE, 7))
    study.ask().suggest_float("x", -5.0, 5.0)
    assert take_back(study, 0, SPACE).params == whole[0]


def test_tpe_comes_nearer_than_chance(tmp_path: Path):
    found = {name: proposals(tmp_path / "lock", name, until=25) for name in ("random", "tpe")}
    late = {name: sum(map(quality, params[15:])) for name, params in found.items()}
    assert late["tpe"] < late["random"]


def test_a_grid_is_tried_point_by_point(tmp_path: Path):
    space = Space({"kind": Range(choices=["a", "b"]), "n": Range(low=1, high=3)})
    study = optuna.create_study(sampler=make_sampler("grid", space, 0))
    while trial := take_trial(study, space, num_trials=6, owner="me", lock=tmp_path / "lock"):
        study.tell(trial, 0.0)
    assert [trial.params for trial in trials_of(study)] == space.grid()


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 4])
def test_workers_take_as_many_trials_as_were_asked_for_and_no_more(machines: int, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    optuna.create_study(storage=open_storage(url), study_name="s")

    def take(number: int) -> None:
        sampler = make_sampler("random", SPACE, 0)
        study = optuna.load_study(storage=open_storage(url), study_name="s", sampler=sampler)
        lock = tmp_path / f"{number % machines}.lock"
        while trial := take_trial(study, SPACE, num_trials=9, owner=str(number), lock=lock):
            study.tell(trial, 0.0)

    threads = [threading.Thread(target=take, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    study = optuna.load_study(storage=open_storage(url), study_name="s")
    assert len(trials_of(study)) == 9
    assert all(trial.state == TrialState.COMPLETE for trial in trials_of(study))
    if machines == 1:
        assert len(study.trials) == 9


@pytest.mark.slow
def test_a_sweep_leaves_a_folder_that_tells_all(tmp_path: Path, inside: list[int]):
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
        assert measure(run)["accuracy"] == trial["values"]["accuracy"]
        assert trial["looks"] == 2  # at steps 2 and 4

    lines = Ledger(folder / "ledger.jsonl").read()
    assert table["hypotheses"] == len(hypotheses(lines)) == (3 + 2) * 2
    assert table["ledger"] == lines[-1]["chain"]
    report = [line for line in RunFolder(table["trials"][0]["run"]).read_looks() if line["what"] == "report"][-1]
    right, rows = round(report["scores"]["accuracy"]["value"] * report["rows"]), report["rows"]
    assert table["bound"] == tightest(Scores.counted(right, rows), num_hypotheses=10).to_dict()

    assert inside == [0, 2]
    winner = table["winner"]
    again = [RunFolder(path) for path in winner["runs"]]
    assert [run.read_settings().train.seed for run in again] == [1, 2]
    assert {run.read_settings().train.learning_rate for run in again} == {winner["settings"]["train.learning_rate"]}
    assert winner["again"] == [measure(run)["accuracy"] for run in again]
    assert winner["luck"] == pytest.approx(winner["value"] - sum(winner["again"]) / 2)


@pytest.mark.slow
def test_no_trial_opens_its_test_set(tmp_path: Path):
    result = swept(tmp_path / "s", trials=1, again=1)
    for path in (result.table["trials"][0]["run"], *result.table["winner"]["runs"]):
        assert all(line["set"] == "valid" or line["what"] == "sealed" for line in RunFolder(path).read_looks())
        assert RunFolder(path).has_test


@pytest.mark.slow
def test_the_same_sweep_again_trains_nothing_and_more_trials_go_on(tmp_path: Path, inside: list[int]):
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
    with pytest.raises(ConfigError, match="holds a sweep of 5 trials, and cannot have 3"):
        swept(tmp_path / "s", trials=3)
    with pytest.raises(RunExistsError, match=r"another sweep: train\.max_steps was 4, and would be 5"):
        swept(tmp_path / "s", trials=5, steps=5)
    assert swept(tmp_path / "s", steps=5, trials=1, again=0, overwrite=True).table["num_trials"] == 1


@pytest.mark.slow
def test_two_folders_share_a_storage_and_each_counts_all_looks(tmp_path: Path):
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    first = swept(tmp_path / "a", trials=2, again=0, storage=storage).table
    second = swept(tmp_path / "b", trials=4, again=0, storage=storage).table
    assert [len(list((tmp_path / name / "trials").iterdir())) for name in ("a", "b")] == [2, 2]
    assert second["num_trials"] == 4
    assert (first["hypotheses"], second["hypotheses"]) == (4, 8)
    alone = swept(tmp_path / "c", trials=4, again=0).table
    settings = [{t["number"]: t["settings"] for t in table["trials"]} for table in (alone, second)]
    assert settings[0] == settings[1]


@pytest.mark.slow
def test_trials_of_a_machine_that_never_came_back_are_trained_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    swept(tmp_path / "a", trials=1, again=0, storage=storage)
    (name,) = optuna.get_all_study_names(storage)
    space = Space({"train.learning_rate": Range(**RATE["train"]["learning_rate"])})
    study = optuna.load_study(study_name=name, storage=storage, sampler=make_sampler("random", space, 0))
    gone = take_trial(study, space, num_trials=2, owner="gone", lock=tmp_path / "lock")
    assert gone is not None
    monkeypatch.setattr("regard.runs.sweep_machines._SILENT_SECONDS", 0.2)
    table = swept(tmp_path / "b", trials=3, again=0, storage=storage).table
    assert {trial["number"] for trial in table["trials"]} == {0, 1, 2}
    assert (tmp_path / "b" / "trials" / "0001" / "report.html").is_file()
    assert next(t for t in table["trials"] if t["number"] == 1)["settings"] == gone.params


@pytest.mark.slow
def test_hyperband_ends_trials_that_fall_behind(tmp_path: Path):
    space = {"train": {"learning_rate": {"low": 1e-6, "high": 1e-1, "log": True}}}
    table = swept(tmp_path / "s", trials=8, steps=9, pruner="hyperband", again=0, space=space).table
    pruned = [trial for trial in table["trials"] if trial["state"] == "pruned"]
    assert pruned
    for trial in pruned:
        assert trial["steps"] < 9
        assert trial["looks"] == trial["steps"]  # a look at each step, and none after the last
        assert all(line["what"] != "report" for line in RunFolder(trial["run"]).read_looks())
    assert table["hypotheses"] == sum(trial["looks"] for trial in table["trials"])
    assert max(trial["looks"] for trial in table["trials"]) == 9


@pytest.mark.slow
def test_settings_that_do_not_go_together_are_a_trial_that_failed(tmp_path: Path):
    space = {"model": {"num_heads": {"choices": [1, 3]}}}
    table = swept(tmp_path / "s", trials=2, sampler="grid", again=0, space=space).table
    assert [trial["state"] for trial in table["trials"]] == ["finished", "failed"]
    assert "multiple of num_heads" in table["trials"][1]["failure"]
    assert table["winner"]["settings"] == {"model.num_heads": 1}
    with pytest.raises(RunError, match=r"no trial was finished: .*multiple of num_heads"):
        swept(tmp_path / "t", trials=1, sampler="grid", space={"model": {"num_heads": {"choices": [3]}}})


@pytest.mark.slow
def test_several_objectives_have_a_front(tmp_path: Path):
    space = {"model": {"num_layers": {"choices": [1, 2]}}, **RATE}
    goals = ["loss", "parameters"]
    table = swept(tmp_path / "s", trials=5, again=0, objectives=goals, space=space).table
    points = {trial["number"]: tuple(trial["values"].values()) for trial in table["trials"]}
    front = {trial["number"] for trial in table["trials"] if trial["is_front"]}
    for number, point in points.items():
        is_beaten = any(a <= point[0] and b <= point[1] and (a, b) != point for a, b in points.values())
        assert (number in front) != is_beaten
    assert table["winner"]["number"] in front
    assert table["bound"] is None


def test_the_front_holds_what_none_beats_whichever_way_is_better():
    study = optuna.create_study(directions=["maximize", "minimize"])
    for values in ((0.9, 10.0), (0.8, 5.0), (0.8, 7.0), (0.5, 5.0), (0.95, 20.0)):
        study.add_trial(optuna.trial.create_trial(values=values))
    assert _front(study.trials, [Goal("accuracy", True), Goal("seconds", False)]) == {0, 1, 4}


def test_a_look_that_was_repeated_after_a_crash_counts_once(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for step in (2, 4, 2, 4, 6):
        ledger.add("valid", "training", f"step {step}", {"loss": 1.0 / step})
    assert [look["hypothesis"] for look in looks_of(RunFolder(tmp_path))] == ["step 2", "step 4", "step 6"]


@pytest.mark.parametrize(
    ("again", "words"),
    [
        ([0.7, 0.71, 0.72], "reach 0.710 [0.685, 0.735] on average: what won is 0.190 better than that"),
        ([0.6, 0.8, 0.9], "3 seeds cannot say how much of it is chance"),
        ([0.8], "one seed cannot say how much of it is chance"),
        ([0.9, 0.95], "no worse than what won"),
    ],
)
def test_what_was_luck_is_said_no_surer_than_it_is(again: list[float], words: str):
    mean = sum(again) / len(again)
    winner = {
        "value": 0.9,
        "again": again,
        "mean": mean,
        "interval": list(mean_interval(again)[1:]) if len(again) > 1 else None,
        "luck": 0.9 - mean,
    }
    told = luck_of({"winner": winner})
    assert told is not None
    assert words in told
    assert ("cannot say" in told) == ("cannot say" in words)
    assert luck_of({"winner": {**winner, "again": [], "mean": None}}) is None


def test_the_certificate_of_the_winner_knows_what_it_was_chosen_from(tmp_path: Path):
    found = swept(tmp_path / "sweep")
    judged = len(hypotheses(Ledger(tmp_path / "sweep" / "ledger.jsonl").read()))
    winner = tmp_path / "sweep" / "trials" / f"{found.table['winner']['number']:04d}"
    swept(tmp_path / "sweep")
    for folder in (winner, tmp_path / "sweep" / "again" / "1"):
        lines = RunFolder(folder).read_looks()
        assert sum(line["what"] == "selection" for line in lines) == 1
        certificate = certify("winner", lines)
        assert certificate.validation is not None
        assert (certificate.validation.num_hypotheses, certificate.chosen_among) == (judged, 3)
        assert certificate.is_sealed
