"""The baseline beside a run's scores: recorded, reported, and the first thing said where the model is not better."""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from regard.baselines import Baseline, BaselinePredictions
from regard.errors import RunError
from regard.explanation.pages import page_data
from regard.runs.baseline import BaselineResult, advise, compare_with_baseline
from regard.runs.finetune import finetune
from regard.runs.folder import RunFolder
from regard.runs.run import Run
from regard.runs.train import train
from regard.tasks.text_classification import TextClassification

WORDS = {"good": "+", "great": "+", "bad": "-", "weak": "-"}
ROWS = [(f"a {word} film number {number}", label) for number in range(60) for word, label in WORDS.items()]
TINY: dict[str, Any] = {
    "preset": "transformer-tiny",
    "model": {"num_layers": 1, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17},
    "data": {"splits": [0.6, 0.3, 0.1]},
    "train": {"max_steps": 1, "batch_tokens": 300, "precision": "float32", "device": "cpu"},
    "task": {"name": "text-classification", "tokenizer": "words", "ngrams": 0},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, list[logging.LogRecord]]]:
    """A run of one step, which is worse than its baseline, and the messages of training it."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("regard")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield train(ROWS, out=tmp_path_factory.mktemp("runs") / "run", settings=TINY, show_progress=False), records
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_the_scores_of_the_baseline_are_recorded_with_the_test_of_the_difference(trained):
    run, _ = trained
    found, report = run.baseline, run.last_report()
    assert found == BaselineResult.from_json(json.loads((run.path / "baseline.json").read_text()))
    assert found.name == "TF-IDF + logistic regression"
    assert found.headline == report["headline"] == "accuracy"
    assert found.scores.keys() == report["scores"].keys() - {"rows"}
    assert found.scores["accuracy"]["signature"] == report["scores"]["accuracy"]["signature"]
    assert found.score == 1.0
    assert found.difference == pytest.approx(report["scores"]["accuracy"]["value"] - 1.0)
    assert found.verdict == "worse"
    assert found.p < 0.05
    low, high = found.interval
    assert low <= found.difference <= high < 0


def test_a_model_that_is_not_better_is_the_first_thing_said_with_what_may_help(trained):
    run, records = trained
    after = [record for record in records if "trained 1 step" not in record.message][-3:]
    assert after[0].levelno == logging.WARNING
    assert after[0].message.startswith("the model is significantly worse than the baseline, TF-IDF + logistic")
    assert "against 1.000 (p < 0.001); most likely to help: training for more than 1 step, fine-" in after[0].message
    assert after[1].message.startswith("validation accuracy")
    assert run.baseline.advice[2] == f"more training rows than {sum(run.task.label_codec.counts.values())}"


def test_the_report_has_the_baseline_and_the_sentence(trained):
    run, _ = trained
    data = page_data(run.folder.report_path)
    assert data["baseline"]["name"] == run.baseline.name
    assert data["baseline"]["score"]["value"] == 1.0
    assert data["baseline"]["is_beaten"] is False
    assert data["baseline"]["sentence"].startswith("The model is significantly worse than the baseline")
    assert data["baseline"]["advice"] == list(run.baseline.advice)


def test_a_model_that_is_better_is_said_after_its_score(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def constant(inputs: Sequence[str]) -> BaselinePredictions:
        return BaselinePredictions(["+"] * len(inputs), [{"+": 1.0, "-": 0.0}] * len(inputs))

    settings = {**TINY, "train": {**TINY["train"], "max_steps": 60, "learning_rate": 0.02}}
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(TextClassification, "baseline", lambda self, data: Baseline("always +", constant))
        run = train(ROWS, out=tmp_path / "run", settings=settings, show_progress=False)
    messages = [record.message for record in caplog.records]
    assert run.baseline is not None
    assert run.baseline.verdict == "better"
    assert run.baseline.advice == ()
    assert messages[-2].startswith("the model is significantly better than the baseline, always +: accuracy")
    assert messages[-3].startswith("validation accuracy")


def test_without_a_baseline_nothing_is_fitted_and_an_earlier_result_is_removed(trained, tmp_path: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextClassification, "baseline", lambda self, data: pytest.fail("a baseline is fitted"))
        run = train(ROWS, out=tmp_path / "run", baseline=False, settings=TINY, show_progress=False)
        tuned = finetune(run.path, ROWS, out=tmp_path / "tuned", baseline=False, steps=1, show_progress=False,
                         settings={"train": {"device": "cpu"}, "task": {"name": "text-classification"}})  # fmt: skip
    assert run.settings.train.baseline is tuned.settings.train.baseline is False
    for each in (run, tuned):
        assert each.baseline is None
        assert page_data(each.folder.report_path)["baseline"] is None
    (run.path / "baseline.json").write_text((trained[0].path / "baseline.json").read_text())
    train(ROWS, out=run.path, steps=2, resume=True, show_progress=False)
    assert not (run.path / "baseline.json").exists()


def test_the_baseline_does_not_change_the_model(trained, tmp_path: Path):
    run = train(ROWS, out=tmp_path / "run", baseline=False, settings=TINY, show_progress=False)
    assert run.folder.model_path.read_bytes() == trained[0].folder.model_path.read_bytes()
    scores = [each.last_report()["scores"] for each in (run, trained[0])]
    assert scores[0] == scores[1]


def test_a_baseline_that_cannot_be_fitted_is_one_message(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def broken(self, data):
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(TextClassification, "baseline", broken)
        run = train(ROWS, out=tmp_path / "run", settings=TINY, show_progress=False)
    assert run.baseline is None
    messages = [record.message for record in caplog.records]
    assert [message for message in messages if "baseline:" in message] == ["no baseline: ZeroDivisionError"]
    assert messages[-1].startswith("report: ")


def test_a_single_row_allows_no_test(trained):
    run, _ = trained
    evaluation = run.evaluate_rows(ROWS[:1])
    task = run.task
    data = task.prepare(run.settings.data, ROWS)
    found = compare_with_baseline(task, data, evaluation.rows, [evaluation.examples], evaluation.headline)
    assert found is not None
    assert (found.p, found.interval, found.verdict) == (None, None, "not significant")
    assert found.sentence.endswith("(no test)")
    assert BaselineResult.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_advice_follows_from_the_settings(trained):
    run, _ = trained
    data = run.task.prepare(run.settings.data, ROWS)
    early = advise(run.settings, run.task, data, used=0.3)
    assert early[0].startswith("fine-tuning of a pretrained model")
    lstm = run.settings.changed(preset="lstm-tiny")
    assert "another model than lstm-tiny, such as transformer" in advise(lstm, run.task, data, used=0.3)
    minutes = run.settings.changed(train={**run.settings.train.model_dump(), "minutes": 2.0, "max_steps": None})
    assert advise(minutes, run.task, data, used=1.0)[0] == "training for more than 2 minutes"


def test_a_damaged_file_is_named(tmp_path: Path):
    (tmp_path / "baseline.json").write_text('{"name": "x"}')
    with pytest.raises(RunError, match=r"baseline\.json is damaged"):
        RunFolder(tmp_path).read_baseline()


def test_a_perfect_model_is_not_advised_to_train_for_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def know(inputs: Sequence[str]) -> BaselinePredictions:
        found = ["+" if "good" in text or "great" in text else "-" for text in inputs]
        return BaselinePredictions(found, [{label: 1.0} for label in found])

    settings = {**TINY, "train": {**TINY["train"], "max_steps": 60, "learning_rate": 0.02}}
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(TextClassification, "baseline", lambda self, data: Baseline("rule", know))
        run = train(ROWS, out=tmp_path / "run", settings=settings, show_progress=False)
    assert run.baseline is not None
    assert run.baseline.is_perfect
    rows = run.last_report()["scores"]["rows"]
    assert run.baseline.advice == (f"more validation rows than {rows} (--valid, or data.splits)",)
    assert f"most likely to help: {run.baseline.advice[0]}" in caplog.text


@pytest.mark.parametrize(("num_scored", "is_first"), [(99, True), (100, False), (None, False)])
def test_few_validation_rows_come_first_in_the_advice(trained, num_scored: int | None, is_first: bool):
    run, _ = trained
    data = run.task.prepare(run.settings.data, ROWS)
    found = advise(run.settings, run.task, data, used=1.0, num_scored=num_scored)
    assert found[0].startswith("more validation rows than 99" if is_first else "training for more than 1 step")
    assert len(found) == 3
