"""Runs and sweeps whose validation scores are released: nothing else is shown, and a resumed run shows the same."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import call

import regard
from regard.errors import ConfigError, RunError
from regard.experiments.jobs import Job, run_job
from regard.experiments.sweep import run as module
from regard.experiments.sweep.worker import work
from regard.runs.folder import RunFolder
from regard.selection.releases import Ladder, bound_released, read_release
from regard.tasks.task import Task
from regard.training.checkpoints import note_of

ROWS = [
    (f"{word} film number {number}", label) for number in range(170) for word, label in (("good", "+"), ("bad", "-"))
]
TINY: dict[str, Any] = {
    "model": {"num_layers": 1, "model_dim": 8, "num_heads": 1, "feedforward_dim": 11, "dropout": 0.0},
    "task": {"tokenizer": "characters"},
    "train": {"batch_tokens": 300, "precision": "float32", "device": "cpu", "evaluate_every": 3, "learning_rate": 0.02,
              "checkpoint_every": 2},
}  # fmt: skip
RATE = {"train": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}}
SHOWN = {"step", "valid_score", "valid_metric", "release"}
"""What a line of figures has about validation rows."""


@pytest.fixture(autouse=True)
def inside(exact_and_repeatable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in the test's process."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))

    def run_jobs(jobs: Sequence[Job], **_: Any) -> None:
        for job in jobs:
            run_job(job)

    monkeypatch.setattr(module, "start_worker", lambda pool, plan, log: work(plan))
    monkeypatch.setattr(module, "run_jobs", run_jobs)


def trained(folder: Path, **changes: Any) -> regard.Run:
    options = {"steps": 12, "settings": TINY, "show_progress": False, "ladder": 0.05}
    return regard.train(ROWS, out=folder, **{**options, **changes})


def swept(folder: Path, **changes: Any) -> Any:
    options = {"trials": 4, "steps": 6, "settings": TINY, "workers": 1, "ladder": True, "show_progress": False}
    return regard.sweep(ROWS, changes.pop("space", RATE), out=folder, **{**options, **changes})


def evaluations_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in RunFolder(folder).read_ledger() if line["event"] == "training"]


def test_a_run_shows_what_the_ladder_releases_and_nothing_else(tmp_path: Path):
    run = trained(tmp_path / "a")
    lines = [line for line in run.folder.read_metrics() if "valid_score" in line]
    assert len(lines) == 4
    assert all(set(line) == SHOWN for line in lines)
    assert all(set(line["scores"]) == {"accuracy"} for line in evaluations_of(run.path))
    releases = [read_release(line["release"]) for line in lines]
    assert [line["valid_score"] for line in lines] == [each.value for each in releases]
    kept = [line["step"] for line, release in zip(lines, releases, strict=True) if release.is_change][-1]
    assert run.candidate() == f"step {kept}"
    report = run.last_report()
    assert report is not None
    assert report["scores"]["accuracy"]["value"] == max(each.value for each in releases)
    assert run.baseline is None
    page = run.folder.report_path.read_text(encoding="utf-8")
    assert '"samples":[]' in re.sub(r"\s", "", page)
    assert "valid_loss" not in run.folder.metrics_path.read_text() + run.folder.ledger.path.read_text()


def test_nothing_is_fitted_to_validation_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def read(*_: Any) -> None:
        raise AssertionError("validation rows are read for something else than the released score")

    monkeypatch.setattr(Task, "validation_batches", read)
    run: Any = trained(tmp_path / "a", steps=3)
    assert run.settings.task.ngrams
    assert not run.model.ngrams.is_solved  # n-grams would be weighted by validation rows
    with pytest.raises(AssertionError, match="validation rows are read"):
        trained(tmp_path / "b", steps=3, ladder=None)


def test_the_certificate_of_a_run_is_recomputed_from_its_ledger(tmp_path: Path):
    run = trained(tmp_path / "a")
    report = run.last_report()
    assert report is not None
    release = read_release(report["release"])
    score = run.certificate().validation
    assert score is not None
    assert score.best == bound_released(release, report["release"]["examples"], is_proportion=True)
    # A second run on the same rows has a record of its own; the scores of both may have influenced the other.
    trained(tmp_path / "b", seed=1)
    wider = run.certificate().validation
    assert wider is not None
    assert wider.best is not None
    assert wider.best.num_candidates is not None
    assert score.best.num_candidates is not None
    assert wider.best.num_candidates % score.best.num_candidates == 0
    assert wider.best.num_candidates > score.best.num_candidates


def test_a_resumed_run_shows_what_an_uninterrupted_one_shows(tmp_path: Path):
    whole = trained(tmp_path / "whole")

    trained(tmp_path / "part", steps=7)
    resumed = regard.train(ROWS, out=tmp_path / "part", resume=True, steps=12, show_progress=False)
    # The rate of the learning schedule depends on the budget, so only what was shown once is compared.
    before = len((tmp_path / "part" / "releases.jsonl").read_text().splitlines())
    again = regard.train(ROWS, out=tmp_path / "part", resume=True, steps=12, show_progress=False)
    assert len((tmp_path / "part" / "releases.jsonl").read_text().splitlines()) == before
    assert again.candidate() == resumed.candidate()
    assert [line["release"]["query"] for line in evaluations_of(whole.path)] == [1, 2, 3, 4]
    # A crash after the last checkpoint: steps are trained, and evaluated, again.
    shown = [line["release"] for line in evaluations_of(whole.path)]
    for path in sorted((whole.path / "checkpoints").glob("step-*"))[-1:]:
        path.unlink()
    regard.train(ROWS, out=whole.path, resume=True, show_progress=False)
    repeated = [line["release"] for line in evaluations_of(whole.path)][4:]
    assert repeated
    assert all({**each, "record": ""} in [{**one, "record": ""} for one in shown] for each in repeated)


def test_thresholdout_shows_scores_on_training_rows_until_they_differ(tmp_path: Path):
    run = trained(tmp_path / "a", ladder=None, thresholdout=0.3)
    releases = [line["release"] for line in evaluations_of(run.path)]
    assert {each["mechanism"] for each in releases} == {"thresholdout"}
    assert not all(each["is_change"] for each in releases)
    assert "thresholdout 0.3" in " ".join(run.certificate().sentences())


@pytest.mark.slow
def test_the_trials_of_a_sweep_share_one_ladder(tmp_path: Path):
    found = swept(tmp_path / "s")
    table = found.table
    lines = [evaluations_of(path) for path in sorted((tmp_path / "s" / "trials").iterdir())]
    releases = [read_release(line["release"]) for trial in lines for line in trial]
    assert [each.query for each in releases] == list(range(1, 9))
    assert len({each.record for each in releases}) == 1
    values = [each.value for each in releases]
    assert values == sorted(values)
    winner = table["winner"]
    assert winner["value"] == values[-1]
    assert winner["repeats"] == []
    last = [each for each in releases if each.is_change][-1]
    assert table["bound"]["upper"] == bound_released(last, table["rows"], is_proportion=True).upper
    shown = {trial["number"]: trial["values"]["accuracy"] for trial in table["trials"]}
    assert shown == {
        number: max((each.value for each in map(read_release, [line["release"] for line in trial]) if each.is_change),
                    default=None)
        for number, trial in enumerate(lines)
    }  # fmt: skip
    # Of a trial that was never better the newest weights are kept: nothing is known about any of them.
    unranked = [number for number, value in shown.items() if value is None]
    assert unranked
    for number in unranked:
        assert note_of(RunFolder(tmp_path / "s" / "trials" / f"{number:04d}").model_path)["step"] == 6
    assert table["release"]["parameter"] == Ladder(table["release"]["parameter"]).parameter
    certificate = RunFolder(tmp_path / "s" / "trials" / f"{winner['number']:04d}").certificate()
    assert f"at evaluation {last.query} of 8" in " ".join(certificate.sentences())
    text = (tmp_path / "s" / "result.json").read_text() + (tmp_path / "s" / "ledger.jsonl").read_text()
    assert '"loss":' not in text.replace('"loss": null', "")
    # The same sweep with more trials continues the same record.
    swept(tmp_path / "s", trials=5)
    assert len((tmp_path / "s" / "releases.jsonl").read_text().splitlines()) == 1 + 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pruner": "hyperband", "steps": 9}, "hyperband compares validation losses, which train.ladder does not"),
        ({"repeats": 2}, "repeats must be 0, got 2"),
        ({"objectives": ["loss"]}, "train.ladder releases accuracy alone: objectives must be that, parameters or sec"),
        ({"storage": "sqlite:///shared.db"}, "do not share the record of released scores"),
        ({"ladder": -0.1}, "the step of a ladder must be above 0 and at most 0.5, got -0.1"),
        ({"ladder": 0.1, "thresholdout": 0.1}, "one mechanism, got both train.ladder and train.thresholdout"),
        ({"space": {"train": {"ladder": {"choices": [0.1, 0.2]}}}}, "train.ladder cannot be searched: all trials"),
    ],
)  # fmt: skip
def test_what_a_sweep_cannot_release_is_an_error(tmp_path: Path, changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        swept(tmp_path / "s", **changes)
    assert not (tmp_path / "s" / "sweep.json").exists()


def test_scores_without_a_bound_cannot_be_released(tmp_path: Path):
    numbers = [(f"film {n}", f"{n / 7:.3f}") for n in range(200)]
    with pytest.raises(ConfigError, match=r"train\.ladder needs a score that is a mean of values in \[0, 1\]"):
        regard.train(numbers, task="regression", out=tmp_path / "r", steps=2, ladder=0.1, settings=TINY)
    text = [(f"line {n} of a text",) for n in range(200)]
    with pytest.raises(ConfigError, match=r"train\.ladder releases a score on validation rows"):
        regard.train(text, task="language-modeling", out=tmp_path / "t", steps=2, ladder=0.1)
    with pytest.raises(ConfigError, match=r"train\.ladder does not release losses"):
        trained(tmp_path / "a", settings={**TINY, "train": {**TINY["train"], "select_by": "loss"}})
    assert list(tmp_path.glob("[rta]")) == []


def test_a_run_has_one_mechanism_from_its_first_evaluation_on(tmp_path: Path):
    trained(tmp_path / "a", ladder=None, steps=3)
    with pytest.raises(ConfigError, match=r"a resumed run keeps its settings, but train\.ladder is 0\.05 and was None"):
        trained(tmp_path / "a", resume=True)
    with pytest.raises(RunError, match="evaluations on its validation rows whose scores were shown as measured"):
        trained(tmp_path / "a", overwrite=True)
    run = trained(tmp_path / "b", steps=3)
    assert "also shown as measured, by a:" in " ".join(run.certificate().sentences())
    with pytest.raises(RunError, match=r"was begun with ladder 0\.05, and all evaluations .* got ladder 0\.1"):
        trained(tmp_path / "b", overwrite=True, ladder=0.1)
    again = trained(tmp_path / "b", overwrite=True, seed=3, steps=3)
    assert evaluations_of(again.path)[0]["release"]["query"] == 2


def test_validation_rows_are_not_evaluated_beside_the_mechanism(tmp_path: Path):
    run = trained(tmp_path / "a", steps=3)
    with pytest.raises(RunError, match="released by ladder during training only"):
        run.evaluate()
    valid = run.folder.read_held_out("valid")
    with pytest.raises(RunError, match="these rows are validation rows"):
        run.evaluate(valid)
    assert len(run.evaluate([*valid, ("a good new film", "+")]).rows) == 1
    assert run.test().rows


def test_the_command_line_takes_a_step_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.tsv").write_text("text\tlabel\n" + "".join("\t".join(row) + "\n" for row in ROWS), encoding="utf-8")
    tiny = [word for section, values in TINY.items() for name, value in values.items()
            for word in ("--set", f"{section}.{name}={value}")]  # fmt: skip
    answer = call("train", "rows.tsv", "--ladder", "--steps", 3, "--out", "a", "--json", *tiny).succeeds()
    assert re.search(r"ladder 0\.\d+, for \d+ validation rows", answer.err)
    found = json.loads(answer.out.splitlines()[-1])
    assert set(found) == {"run", "report", "accuracy", "rows"}
    printed = call("certificate", "a").succeeds().out
    assert "Ladder, exact binomial" in printed
    call("train", "rows.tsv", "--ladder", "-0.1", "--out", "b", *tiny).fails_with("must be above 0", "got -0.1")
    call("train", "rows.tsv", "--ladder=high", "--out", "b", *tiny).fails_with("--ladder takes a number, got 'high'")
    call("evaluate", "a", "--quiet").fails_with("released by ladder")
