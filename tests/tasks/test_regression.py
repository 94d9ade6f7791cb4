"""Regression: standardized targets, and predictions in the units of the data."""

from pathlib import Path

import pytest
import torch
from tests.tiny import tiny

from regard.data.settings import DataConfig
from regard.errors import ConfigError, DataError
from regard.tasks import detect_task
from regard.tasks.task import EvaluationData

ROWS = [(f"{'very ' * (number % 7)}long {number}", f"{number % 7 + 10}") for number in range(120)]


def test_the_model_is_trained_on_standardized_numbers():
    made = tiny("regression", ROWS, tokenizer="characters", data={"splits": [0.9, 0.05, 0.05]})
    codec = made.task.number_codec
    assert (codec.mean, codec.std) == (pytest.approx(13.0, abs=0.1), pytest.approx(2.0, abs=0.1))
    targets = torch.cat([batch.targets for batch in made.task.validation_batches(made.data)])
    found = sorted((targets * codec.std + codec.mean).tolist())
    assert found == pytest.approx(sorted(float(row[-1]) for row in made.data.held_out["valid"]), abs=1e-4)
    model = made.build()
    (batch,) = made.task.row_batches(ROWS[:1])
    output = float(model(batch.source, batch.lengths, batch.segments).detach())
    (prediction,) = made.predict(model, [ROWS[0][0]])
    assert float(prediction.output) == pytest.approx(output * codec.std + codec.mean, rel=1e-5)
    expected = (output - (10.0 - codec.mean) / codec.std) ** 2 / 2
    assert made.likelihoods(model, ROWS[:1]).losses == [pytest.approx(expected, rel=1e-4)]


@pytest.mark.parametrize("setting", [{"rdrop": 1.0}, {"label_smoothing": 0.1}])
def test_terms_for_labels_are_an_error(setting: dict):
    with pytest.raises(ConfigError, match=rf"train\.{next(iter(setting))} .*regression"):
        tiny("regression", ROWS, tokenizer="characters", train=setting)


def test_a_target_that_is_not_a_number_is_an_error():
    with pytest.raises(DataError, match="have no finite number in column 2: rows 121, 122"):
        tiny("regression", [*ROWS, *((f"x {number}", "much") for number in range(30))], tokenizer="characters")


def test_the_report_shows_errors_as_numbers_and_not_as_texts_that_differ():
    made = tiny("regression", ROWS, tokenizer="characters")
    model = made.build()
    data = EvaluationData(
        ROWS[:9], made.predict(model, [text for text, _ in ROWS[:9]]), made.likelihoods(model, ROWS[:9])
    )
    report = made.task.report(model, data)
    assert report.samples == []
    (section,) = report.sections
    assert section.columns == ("input", "measured", "predicted", "error")
    assert len(section.rows) == 9


def test_counts_of_what_a_text_has_are_numbers_and_digits_of_its_words_are_text(tmp_path: Path):
    """Both have the more digits the longer the text is."""
    lengths = [2 + number * 7 % 40 for number in range(400)]
    endings = [f"{first}{second}" for first in "bcdfghjklmnpqrstvwxz" for second in "bcdfghjklmnpqrstvwxz"]
    counts = [("ab" * length + ending, str(length)) for length, ending in zip(lengths, endings, strict=True)]
    spelled = [(" ".join(f"d{digit}" for digit in str(number**3)), str(number**3)) for number in range(400)]
    for rows, expected in ((counts, "regression"), (spelled, "seq2seq")):
        path = tmp_path / f"{expected}.csv"
        path.write_text("".join(f"{text},{target}\n" for text, target in [("word", "length"), *rows]), encoding="utf-8")
        assert detect_task(DataConfig(train=[str(path)]))[0] == expected
