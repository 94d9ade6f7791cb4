"""`--few` of `regard train` and `regard finetune`, `regard merge`, and `--also` of `regard predict`."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from regard.runs import few
from regard.runs.job import Job, run_job

SMALL = ["--set", "model.model_dim=16", "--set", "model.num_layers=1", "--tokenizer", "characters", "--device", "cpu"]
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
    regard("train", reviews, "--out", folder / "base", "--steps", 2, "--quiet", *SMALL).is_well()
    regard("finetune", folder / "base", reviews, "--out", folder / "tone", *TUNED).is_well()
    regard("finetune", folder / "base", topics, "--out", folder / "topic", *TUNED).is_well()
    return folder


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run inside the test's process."""

    def run_one_by_one(jobs: Sequence[Job], **_: object) -> None:
        for job in jobs:
            run_job(job)

    monkeypatch.setattr(few, "run_jobs", run_one_by_one)


@pytest.mark.slow
def test_few_labels_are_a_table_and_an_object(regard, inside, reviews: Path, runs: Path, tmp_path: Path):
    told = ["--few", "3,9", "--draws", 2, "--out", tmp_path / "fresh", "--steps", 2, *SMALL]
    answer = regard("train", reviews, *told).is_well()
    assert "accuracy on the same 40 test rows" in answer.out
    assert answer.out.count("mean") == 3  # the legend says it once more
    assert str(tmp_path / "fresh") in answer.out
    answer = regard(
        "finetune", runs / "base", reviews, "--few", 3, "--draws", "4,7", "--out", tmp_path / "tuned", "--json", *TUNED
    ).is_well()
    table = json.loads(answer.out.splitlines()[-1])
    assert (table["model"], table["draws"], table["folder"]) == ("base, lora", [4, 7], str(tmp_path / "tuned"))
    assert [draw["draw"] for draw in table["few"][0]["draws"]] == [4, 7]


@pytest.mark.slow
def test_each_draw_is_a_process_of_its_own(regard, reviews: Path, tmp_path: Path):
    told = ["--few", 3, "--draws", 1, "--out", tmp_path / "trial", "--steps", 2, *SMALL]
    answer = regard("train", reviews, *told).is_well()
    assert "3 of each label, seed 0: accuracy" in answer.err
    assert (tmp_path / "trial" / "logs" / "3-0.log").is_file()
    again = regard("train", reviews, *told).is_well()
    assert "1 of 1 runs are there already" in again.err
    assert again.out == answer.out


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--few", "some"], ["--few takes whole numbers, separated by commas, got 'some'"]),
        (["--few", "3", "--draws", "x"], ["--draws takes whole numbers"]),
        (["--few", "3", "--seed", "1"], ["--few has runs of its own, and does not go with --seed"]),
        (["--few", "3", "--resume", "--out", "x"], ["does not go with --resume"]),
        (["--draws", "3"], ["--draws is for --few, got 3 without it"]),
        (["--jobs", "3"], ["--jobs is for --few"]),
        (["--few", "0"], ["at least one row of each label must be drawn"]),
        (["--few", "99"], ["data.few must leave rows to choose from, got 99 of the"]),
        (["--few", "3", "--task", "language"], ["few labels are drawn for classification"]),
    ],
)
def test_what_does_not_go_with_few_is_told(regard, reviews: Path, tmp_path: Path, monkeypatch, options, parts):
    monkeypatch.chdir(tmp_path)
    regard("train", reviews, *options, "--quiet", *SMALL).says_no(*parts)


def test_a_merged_run_answers_as_its_run_does(regard, runs: Path, tmp_path: Path):
    answer = regard("merge", runs / "tone", tmp_path / "merged", "--json").is_well()
    assert json.loads(answer.out) == {"run": str(tmp_path / "merged")}
    before, after = (
        regard("predict", run, "good film", "bad", "--json", "--quiet").is_well().out
        for run in (runs / "tone", tmp_path / "merged")
    )
    assert before == after
    regard("merge", runs / "tone", tmp_path / "merged", "--quiet").says_no("already holds a run", "--overwrite")
    regard("merge", runs / "base", tmp_path / "no", "--quiet").says_no("holds all its weights already")


def test_runs_on_one_base_answer_side_by_side(regard, runs: Path):
    options = [runs / "tone", "--also", runs / "topic", "--quiet"]
    answer = regard("predict", *options, "good film", "bad film").is_well()
    lines = [line.split("\t") for line in answer.out.splitlines()]
    assert [name for name, _ in lines] == ["tone", "topic", "tone", "topic"]
    alone = {
        name: regard("predict", runs / name, "good film", "--json", "-q").is_well().out for name in ("tone", "topic")
    }
    told = json.loads(regard("predict", *options, "good film", "--json").is_well().out)["predictions"]
    for each in told:
        (expected,) = json.loads(alone[each["run"]])["predictions"]
        assert each["output"] == expected["output"]
        assert each["probabilities"] == pytest.approx(expected["probabilities"], rel=1e-5)  # products in other order


def test_a_blank_line_is_a_blank_answer_of_each_run(regard, runs: Path):
    answer = regard("predict", runs / "tone", "--also", runs / "topic", "-q", stdin="good\n\nbad\n").is_well()
    names, outputs = zip(*(line.split("\t") for line in answer.out.splitlines()), strict=True)
    assert names == ("tone", "topic") * 3
    assert outputs[2:4] == ("", "")


def test_runs_that_share_no_base_are_told(regard, runs: Path):
    regard("predict", runs / "tone", "--also", runs / "base", "x", "-q").says_no(
        "trained with LoRA, but", "all its weights"
    )
