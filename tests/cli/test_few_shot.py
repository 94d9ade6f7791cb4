"""`--shots` of `regard train` and `regard finetune`, `regard merge`, and `--also` of `regard predict`."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from regard.experiments import few_shot as module
from regard.experiments.jobs import Job, run_job

SMALL = [
    "--model",
    "transformer",
    "--set",
    "model.model_dim=16",
    "--set",
    "model.num_layers=1",
    "--tokenizer",
    "characters",
    "--device",
    "cpu",
]
TUNED = ["--lora", "--rank", 2, "--device", "cpu", "--steps", 2, "--quiet"]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "reviews.tsv"
    rows = [f"{word} film number {number}\t{word}" for number in range(50) for word in ("good", "bad")]
    path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def runs(regard, reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and two runs with LoRA on it: the second knows other labels."""
    folder = tmp_path_factory.mktemp("runs")
    torch.set_default_dtype(torch.float32)
    topics = folder / "topics.tsv"
    topics.write_text(reviews.read_text().replace("\tgood", "\tart").replace("\tbad", "\tsport"))
    regard("train", reviews, "--out", folder / "base", "--steps", 2, "--quiet", *SMALL).succeeds()
    regard("finetune", folder / "base", reviews, "--out", folder / "tone", *TUNED).succeeds()
    regard("finetune", folder / "base", topics, "--out", folder / "topic", *TUNED).succeeds()
    return folder


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run inside the test's process."""

    def run_one_by_one(jobs: Sequence[Job], **_: object) -> None:
        for job in jobs:
            run_job(job)

    monkeypatch.setattr(module, "run_jobs", run_one_by_one)


@pytest.mark.slow
def test_the_scores_are_printed_as_a_table_or_as_json(regard, inside, reviews: Path, runs: Path, tmp_path: Path):
    options = ["--shots", "3,9", "--shot-seeds", 2, "--out", tmp_path / "fresh", "--steps", 2, *SMALL]
    answer = regard("train", reviews, *options).succeeds()
    assert "accuracy on the same 40 test rows" in answer.out
    assert answer.out.count("mean") == 3  # the legend says it once more
    assert str(tmp_path / "fresh") in answer.out
    answer = regard(
        "finetune",
        runs / "base",
        reviews,
        "--shots",
        3,
        "--shot-seeds",
        "4,7",
        "--out",
        tmp_path / "tuned",
        "--json",
        *TUNED,
    ).succeeds()
    table = json.loads(answer.out.splitlines()[-1])
    assert (table["model"], table["shot_seeds"], table["folder"]) == ("base, lora", [4, 7], str(tmp_path / "tuned"))
    assert [run["shot_seed"] for run in table["sizes"][0]["runs"]] == [4, 7]


@pytest.mark.slow
def test_each_draw_is_a_process_of_its_own(regard, reviews: Path, tmp_path: Path):
    options = ["--shots", 3, "--shot-seeds", 1, "--out", tmp_path / "trial", "--steps", 2, *SMALL]
    answer = regard("train", reviews, *options).succeeds()
    assert "3 of each label, seed 0: accuracy" in answer.err
    assert (tmp_path / "trial" / "logs" / "3-0.log").is_file()
    again = regard("train", reviews, *options).succeeds()
    assert "1 of 1 runs are already finished" in again.err
    assert again.out == answer.out


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--shots", "some"], ["--shots must be integers separated by commas, got 'some'"]),
        (["--shots", "3", "--shot-seeds", "x"], ["--shot-seeds must be integers"]),
        (["--shots", "3", "--seed", "1"], ["--shots", "cannot be combined with --seed"]),
        (["--shots", "3", "--resume", "--out", "x"], ["cannot be combined with --resume"]),
        (["--shot-seeds", "3"], ["--shot-seeds needs --shots, got 3 without it"]),
        (["--jobs", "3"], ["--jobs needs --shots"]),
        (["--shots", "0"], ["shots must be at least 1, got [0]"]),
        (["--shots", "99"], ["data.shots must be at most the 25 training rows"]),
        (["--shots", "3", "--task", "language-modeling"], ["got language-modeling"]),
    ],
)
def test_options_that_cannot_be_combined_are_an_error(
    regard, reviews: Path, tmp_path: Path, monkeypatch, options, parts
):
    monkeypatch.chdir(tmp_path)
    regard("train", reviews, *options, "--quiet", *SMALL).fails_with(*parts)


def test_a_merged_run_answers_as_its_run_does(regard, runs: Path, tmp_path: Path):
    answer = regard("merge", runs / "tone", tmp_path / "merged", "--json").succeeds()
    assert json.loads(answer.out) == {"run": str(tmp_path / "merged")}
    before, after = (
        regard("predict", run, "good film", "bad", "--json", "--quiet").succeeds().out
        for run in (runs / "tone", tmp_path / "merged")
    )
    assert before == after
    regard("merge", runs / "tone", tmp_path / "merged", "--quiet").fails_with("already has a run", "--overwrite")
    regard("merge", runs / "base", tmp_path / "no", "--quiet").fails_with("has all its weights")


def test_runs_on_one_base_answer_side_by_side(regard, runs: Path):
    options = [runs / "tone", "--also", runs / "topic", "--quiet"]
    answer = regard("predict", *options, "good film", "bad film").succeeds()
    lines = [line.split("\t") for line in answer.out.splitlines()]
    assert [name for name, _ in lines] == ["tone", "topic", "tone", "topic"]
    alone = {
        name: regard("predict", runs / name, "good film", "--json", "-q").succeeds().out for name in ("tone", "topic")
    }
    told = json.loads(regard("predict", *options, "good film", "--json").succeeds().out)["predictions"]
    for each in told:
        (expected,) = json.loads(alone[each["run"]])["predictions"]
        assert each["output"] == expected["output"]
        assert each["probabilities"] == pytest.approx(expected["probabilities"], rel=1e-5)  # products in other order


def test_a_blank_line_is_a_blank_answer_of_each_run(regard, runs: Path):
    answer = regard("predict", runs / "tone", "--also", runs / "topic", "-q", stdin="good\n\nbad\n").succeeds()
    names, outputs = zip(*(line.split("\t") for line in answer.out.splitlines()), strict=True)
    assert names == ("tone", "topic") * 3
    assert outputs[2:4] == ("", "")


def test_runs_that_share_no_base_are_told(regard, runs: Path):
    regard("predict", runs / "tone", "--also", runs / "base", "x", "-q").fails_with(
        "trained with LoRA", "all its weights"
    )
