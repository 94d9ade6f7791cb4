"""Training runs: labels, what the settings may be, and one process in a folder."""

import logging
import multiprocessing
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import ConfigError, RunError, RunExistsError
from regard.runs.folder import RunFolder
from regard.runs.train import TimeEstimate, TrainingDisplay, make_trainer, set_up, start, train
from regard.settings import override

ROWS = [
    (f"{first} and {second} number {number}", ",".join(sorted({first, second})))
    for number in range(20)
    for first, second in (("red", "blue"), ("red", "red"), ("green", "blue"))
]
TINY = {
    "model": {"num_layers": 1, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17},
    "train": {"max_steps": 2, "batch_tokens": 300, "precision": "float32", "device": "cpu"},
    "task": {"name": "text-classification", "tokenizer": "words"},
}
SEVERAL = {**TINY, "task": {**TINY["task"], "label_separator": ","}}


def test_rows_with_several_labels_are_evaluated_by_their_f1(tmp_path: Path):
    run = train(ROWS, out=tmp_path / "run", settings=SEVERAL, show_progress=False)
    assert run.folder.report_path.stat().st_size > 0
    evaluation = run.evaluate_rows(ROWS[:9])
    assert evaluation.headline == "micro_f1"
    assert set(evaluation.scores) >= {"micro_f1", "macro_f1", "subset_accuracy"}
    assert set(run.predict_full(["red and blue"])[0].probabilities or {}) == {"red", "blue", "green"}


def test_a_label_that_training_did_not_see_is_a_warning_and_an_error_in_scores(tmp_path: Path, caplog):
    rows = [(f"{'good' if number % 2 else 'bad'} {number}", "+" if number % 2 else "-") for number in range(60)]
    valid = [("good 1", "+"), ("odd 2", "new"), ("odd 3", "new")]
    (tmp_path / "valid.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *valid]))
    with caplog.at_level(logging.WARNING):
        run = train(rows, out=tmp_path / "run", valid=str(tmp_path / "valid.tsv"), settings=TINY, show_progress=False)
    (warning,) = [record.message for record in caplog.records if "new" in record.message]
    assert "2 rows" in warning
    assert run.task.codecs["label"].labels == ["+", "-"]
    evaluation = run.evaluate()
    assert len(evaluation.rows) == 3
    assert evaluation.scores["accuracy"].value <= 1 / 3 + 1e-9


@pytest.mark.parametrize("name", ["preset", "train.seed", "task.name"])
def test_a_setting_below_a_single_value_is_an_error(tmp_path: Path, name: str):
    before = {**TINY, "preset": "tiny", "train": {**TINY["train"], "seed": 1}}
    with pytest.raises(ConfigError, match="horizon"):
        override(before, [f"{name}.horizon=96"])
    nested: object = {"horizon": 96}
    for part in reversed(name.split(".")):
        nested = {part: nested}
    with pytest.raises(ConfigError):
        train(ROWS, out=tmp_path / "run", settings=nested, show_progress=False)
    assert not (tmp_path / "run").exists()


def lock_in_another_process(path: Path, answers) -> None:
    try:
        with RunFolder(path).lock():
            answers.put("locked")
    except RunError as error:
        answers.put(str(error))


def test_a_second_process_in_a_run_folder_is_an_error(tmp_path: Path):
    context = multiprocessing.get_context("fork")

    def try_to_lock() -> str:
        answers = context.Queue()
        process = context.Process(target=lock_in_another_process, args=(tmp_path / "run", answers))
        process.start()
        answer = answers.get(timeout=60)
        process.join(60)
        return answer

    with RunFolder(tmp_path / "run").lock():
        assert str(tmp_path / "run") in try_to_lock()
        with pytest.raises(RunError, match="another process"):
            train(ROWS, out=tmp_path / "run", settings=SEVERAL, show_progress=False)
        assert not RunFolder(tmp_path / "run").exists
    assert try_to_lock() == "locked"
    run = train(ROWS, out=tmp_path / "run", settings=SEVERAL, show_progress=False)
    with run.folder.lock(), pytest.raises(RunError, match="another process"):
        regard.train(ROWS, out=run.path, resume=True, show_progress=False)


def test_a_run_that_another_process_has_finished_in_the_meantime_is_kept(tmp_path: Path):
    values = {**SEVERAL, "data": {"train": ["(rows in memory)"]}}
    data, settings, trainer = set_up(values, ROWS)
    folder = RunFolder(tmp_path / "run")
    start(folder, data, settings, trainer, show_progress=False)
    weights = folder.model_path.read_bytes()
    with pytest.raises(RunExistsError):
        start(folder, data, settings, make_trainer(settings, data), show_progress=False)
    assert folder.model_path.read_bytes() == weights


def test_the_score_of_each_evaluation_is_logged_recorded_and_reported(tmp_path: Path):
    settings = {**TINY, "train": {**TINY["train"], "max_steps": 6, "evaluate_every": 3}}
    run = train(ROWS, out=tmp_path / "run", settings=settings, show_progress=False)
    assert run.settings.train.select_by == "score"
    lines = [line for line in run.folder.read_metrics() if "valid_loss" in line]
    assert [(line["step"], line["valid_metric"]) for line in lines] == [
        (0, "accuracy"),
        (3, "accuracy"),
        (6, "accuracy"),
    ]
    recorded = [line for line in run.folder.read_ledger() if line["event"] == "training"]
    assert [line["scores"] for line in recorded] == [
        {"loss": line["valid_loss"], "accuracy": line["valid_score"]} for line in lines
    ]
    assert [line["candidate"] for line in recorded] == ["step 0", "step 3", "step 6"]
    kept = int(run.candidate().removeprefix("step "))
    best = next(line for line in lines if line["step"] == kept)
    assert run.evaluate(log=False).scores["accuracy"].value == pytest.approx(best["valid_score"])
    assert f"step {kept}, validation loss" in run.folder.report_path.read_text(encoding="utf-8")


def test_progress_names_the_step_of_the_last_evaluation():
    display = TrainingDisplay(is_shown=False)
    display.update({"step": 10, "loss": 0.5, "tokens_per_second": 1200.0}, 0.1)
    assert display.text() == "step 10 · loss 0.500 · 1,200 tokens/s"
    other = TrainingDisplay("nodes", is_shown=False)
    other.update({"step": 10, "loss": 0.5, "tokens_per_second": 1200.0}, 0.1)
    assert other.text() == "step 10 · loss 0.500 · 1,200 nodes/s"
    display.update({"step": 10, "valid_loss": 0.31, "valid_score": 0.874, "valid_metric": "entity_f1"}, 0.1)
    display.update({"step": 20, "loss": 0.4, "tokens_per_second": 1300.0}, 0.2)
    assert display.text() == (
        "step 20 · loss 0.400 · validation loss 0.310, entity F1 0.874 at step 10 · 1,300 tokens/s"
    )


def test_the_expected_time_is_logged_once_by_the_first_steps(caplog):
    estimate = TimeEstimate()
    with caplog.at_level(logging.INFO, logger="regard"):
        for step in range(10, 200, 10):
            # The first ten steps take 5 s, and then a step half a second; 1,000 in all.
            estimate.add({"step": step, "seconds": step / 2, "tokens_per_second": 1234.4}, step / 1000)
    assert [record.message for record in caplog.records] == [
        "expected: at most about 8 min 20 s, at 1,234 tokens/s, measured over the first 50 steps"
    ]


def test_a_classifier_is_never_below_its_linear_model(tmp_path: Path):
    """One step of a network says nothing about the labels, which single words tell."""
    settings = {**TINY, "train": {**TINY["train"], "max_steps": 1}}
    words = {"good": "+", "great": "+", "bad": "-", "weak": "-"}
    rows = [(f"a {word} film number {number}", label) for number in range(40) for word, label in words.items()]
    run = train(rows, out=tmp_path / "run", settings=settings, show_progress=False)
    assert run.evaluate(log=False).scores["accuracy"].value == 1.0
    texts = [text for text, _ in rows[:9]]
    assert regard.load(tmp_path / "run").predict_full(texts) == run.predict_full(texts)
    alone = {**settings, "task": {**settings["task"], "ngrams": 0}}
    network = train(rows, out=tmp_path / "alone", settings=alone, show_progress=False)
    assert network.evaluate(log=False).scores["accuracy"].value < 1.0


def test_a_resumed_classifier_has_the_linear_model_of_the_first_part(tmp_path: Path):
    settings = {**TINY, "train": {**TINY["train"], "max_steps": 4, "evaluate_every": 2, "checkpoint_every": 2}}
    whole = train(ROWS, out=tmp_path / "whole", settings=settings, show_progress=False)
    half = {**settings, "train": {**settings["train"], "max_steps": 2}}
    train(ROWS, out=tmp_path / "parts", settings=half, show_progress=False)
    parts = train(ROWS, out=tmp_path / "parts", settings=settings, resume=True, show_progress=False)
    assert parts.model.ngrams.is_solved
    for name, buffer in whole.model.ngrams.named_buffers():
        assert name == "scales" or torch.equal(buffer, parts.model.ngrams.get_buffer(name))
