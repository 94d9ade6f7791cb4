"""Few-shot experiments: the same rows for every model, scores over rows and draws, and continuing after a crash."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.errors import ConfigError, DataError, RunError, RunExistsError
from regard.evaluation.metrics.classes import count_accuracy
from regard.evaluation.seeds import score_over_seeds
from regard.experiments import few_shot as module
from regard.experiments.jobs import Job, run_job

ROWS = [
    (f"{word} film number {number}", label) for number in range(70) for word, label in (("good", "+"), ("bad", "-"))
]
TINY: dict[str, Any] = {
    "model": {"num_layers": 1, "model_dim": 8, "num_heads": 1, "feedforward_dim": 11, "dropout": 0.0},
    "task": {"tokenizer": "characters"},
    "train": {"max_steps": 2, "batch_tokens": 300, "precision": "float32", "device": "cpu"},
}
TUNED = {"train": TINY["train"]}


@pytest.fixture(autouse=True)
def inside(exact_and_repeatable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Jobs run inside the test's process, in what a user gets; the result limits how many."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    left = [1_000]

    def run_one_by_one(jobs: Sequence[Job], **_: object) -> None:
        for job in jobs:
            if not job.is_done:
                left[0] -= 1
                if left[0] < 0:
                    raise RunError("out of power")
                run_job(job)

    monkeypatch.setattr(module, "run_jobs", run_one_by_one)

    def limit(number: int) -> None:
        left[0] = number

    return limit


def trained_rows(path: str) -> list[list[int]]:
    """The token ids that a run was trained on."""
    run = regard.load(path)
    train: Any = run.task.prepare(run.settings.data).train
    return [train.sequences(0, np.array([row]))[0].tolist() for row in range(len(train))]


@pytest.mark.slow
def test_draws_are_runs_whose_mean_has_an_interval_over_rows_and_draws(tmp_path: Path):
    found = regard.few_shot(
        ROWS, [3, 11], shot_seeds=3, settings=TINY, out=tmp_path / "experiment", show_progress=False
    )
    assert json.loads((tmp_path / "experiment" / "few_shot.json").read_text()) == json.loads(json.dumps(found.table))
    assert (tmp_path / "experiment" / "few_shot.png").read_bytes().startswith(b"\x89PNG")
    assert [(size["shots"], size["train_rows"]) for size in found.table["sizes"]] == [(3, 6), (11, 22)]
    for size in found.table["sizes"]:
        runs = [regard.load(draw["path"]) for draw in size["runs"]]
        rows = runs[0].folder.read_rows("test")
        assert all(run.folder.read_rows("test") == rows for run in runs)
        texts, labels = zip(*rows, strict=True)
        tallies = [count_accuracy(run.predict(list(texts)), list(labels)) for run in runs]
        expected = score_over_seeds(tallies)
        assert size["score"]["value"] == expected.value
        assert size["score"]["interval"] == list(expected.interval or ())
        assert [draw["score"]["value"] for draw in size["runs"]] == [tally.value for tally in tallies]
        assert len({tuple(map(tuple, trained_rows(draw["path"]))) for draw in size["runs"]}) == 3
    fewer, more = (trained_rows(size["runs"][0]["path"]) for size in found.table["sizes"])
    assert len(fewer) < len(more)


def test_no_evaluation_on_held_out_rows_selects_anything(tmp_path: Path):
    settings = {**TINY, "train": {**TINY["train"], "max_steps": 5}}
    found = regard.few_shot(
        ROWS, 3, shot_seeds=[4], settings=settings, out=tmp_path / "experiment", show_progress=False
    )
    (draw,) = found.table["sizes"][0]["runs"]
    run = regard.load(draw["path"])
    assert (run.settings.data.shot_seed, run.settings.train.seed, draw["shot_seed"]) == (4, 4, 4)
    assert [line["step"] for line in run.folder.read_metrics() if "valid_loss" in line] == [5]
    assert not (tmp_path / "experiment" / "few_shot.png").exists()


@pytest.mark.slow
def test_a_fine_tuned_and_a_fresh_model_learn_from_the_same_rows(tmp_path: Path):
    fresh = regard.few_shot(ROWS, 3, shot_seeds=2, settings=TINY, out=tmp_path / "fresh", show_progress=False)
    base = regard.train(ROWS, out=tmp_path / "base", task="text-classification", settings=TINY, show_progress=False)
    tuned = regard.few_shot(
        ROWS,
        3,
        base=base.path,
        method="lora",
        shot_seeds=2,
        settings=TUNED,
        out=tmp_path / "tuned",
        show_progress=False,
    )
    assert tuned.table["model"] == "base, lora"
    for ours, theirs in zip(fresh.table["sizes"][0]["runs"], tuned.table["sizes"][0]["runs"], strict=True):
        one, other = regard.load(ours["path"]), regard.load(theirs["path"])
        assert other.settings.finetune is not None
        assert other.settings.finetune.method == "lora"
        texts = [run.tokenizer.decode(trained_rows(str(run.path))) for run in (one, other)]
        assert texts[0] == texts[1]
        assert one.folder.read_rows("test") == other.folder.read_rows("test")


@pytest.mark.slow
def test_an_interrupted_experiment_is_continued_with_the_same_scores(tmp_path: Path, inside: Callable[[int], None]):
    whole = regard.few_shot(ROWS, 3, shot_seeds=3, settings=TINY, out=tmp_path / "whole", show_progress=False)
    inside(1)
    with pytest.raises(RunError, match="out of power"):
        regard.few_shot(ROWS, 3, shot_seeds=3, settings=TINY, out=tmp_path / "parts", show_progress=False)
    done = (tmp_path / "parts" / "3-0" / "result.json").stat().st_mtime_ns
    inside(2)
    parts = regard.few_shot(ROWS, 3, shot_seeds=3, settings=TINY, out=tmp_path / "parts", show_progress=False)
    assert (tmp_path / "parts" / "3-0" / "result.json").stat().st_mtime_ns == done
    assert parts.table["sizes"][0]["score"] == whole.table["sizes"][0]["score"]


def test_rows_in_memory_take_the_place_of_no_others(tmp_path: Path, inside: Callable[[int], None]):
    shared = {"settings": TINY, "out": tmp_path / "experiment", "show_progress": False}
    regard.few_shot(ROWS, 3, shot_seeds=1, **shared)
    kept = (tmp_path / "experiment" / "rows.jsonl").read_bytes()
    with pytest.raises(RunExistsError, match="a few-shot experiment on other rows"):
        regard.few_shot(ROWS[2:], 3, shot_seeds=1, **shared)
    assert (tmp_path / "experiment" / "rows.jsonl").read_bytes() == kept
    regard.few_shot(ROWS[2:], 3, shot_seeds=1, overwrite=True, **shared)


@pytest.mark.slow
def test_more_draws_and_numbers_join_but_other_settings_do_not(tmp_path: Path, inside: Callable[[int], None]):
    shared = {"settings": TINY, "out": tmp_path / "experiment", "show_progress": False}
    regard.few_shot(ROWS, 3, shot_seeds=2, **shared)
    inside(4)
    found = regard.few_shot(ROWS, [3, 5], shot_seeds=3, **shared)
    assert [len(size["runs"]) for size in found.table["sizes"]] == [3, 3]
    other = {**TINY, "train": {**TINY["train"], "max_steps": 3}}
    with pytest.raises(RunExistsError, match="a few-shot experiment with other settings"):
        regard.few_shot(ROWS, 3, shot_seeds=2, **{**shared, "settings": other})
    inside(2)
    regard.few_shot(ROWS, 3, shot_seeds=2, overwrite=True, **{**shared, "settings": other})


def test_rows_without_labels_are_drawn_so_many_in_all(tmp_path: Path):
    rows = [(text, str(number / 7)) for number, (text, _) in enumerate(ROWS)]
    found = regard.few_shot(
        rows, 13, task="regression", shot_seeds=2, settings=TINY, out=tmp_path / "experiment", show_progress=False
    )
    (size,) = found.table["sizes"]
    assert (size["train_rows"], found.table["metric"]) == (13, "pearson")
    assert set(size["scores"]) == {"rmse"}


@pytest.mark.slow
def test_pairs_of_texts_are_drawn_whole(tmp_path: Path):
    rows = [(text, f"{text} again", label) for text, label in ROWS]
    found = regard.few_shot(rows, 3, shot_seeds=1, settings=TINY, out=tmp_path / "experiment", show_progress=False)
    run = regard.load(found.table["sizes"][0]["runs"][0]["path"])
    assert {len(row) for row in run.folder.read_rows("test")} == {3}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"shots": 0}, ConfigError, "shots must be at least 1, got 0"),
        ({"shots": 500}, DataError, "data.shots must be at most .* got 500"),
        ({"shot_seeds": 0}, ConfigError, "shot_seeds must be at least one, got 0"),
        ({"shot_seeds": [2, 2]}, ConfigError, "shot_seeds must differ"),
        ({"task": "token-classification"}, ConfigError, "seq2seq, text-classification, got token-classification"),
        ({"settings": {"task": {"label_separator": ","}}}, ConfigError, "several labels"),
        ({"data": []}, DataError, "no data"),
        ({"data": [("a",), ("b",)]}, ConfigError, "got language-modeling"),
        ({"data": [("a", "b"), ("c", "d", "e")]}, DataError, "2 in row 1 and 3 in row 2"),
        ({"base": "nowhere"}, RunError, "no run at nowhere"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_an_error_before_training(
    tmp_path: Path, inside: Callable[[int], None], change: dict[str, Any], error: type[Exception], message: str
):
    inside(0)
    given = {"data": ROWS, "shots": 3, "shot_seeds": 2, "settings": TINY, "out": tmp_path / "experiment", **change}
    with pytest.raises(error, match=message):
        regard.few_shot(given.pop("data"), given.pop("shots"), show_progress=False, **given)
    assert not list((tmp_path / "experiment").glob("*/run.toml"))
