"""A few rows of each label: drawn by content, nested, never held-out ones, and all that codecs are fitted on."""

from collections import Counter
from pathlib import Path

import pytest

from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import IN_MEMORY
from regard.data.splits.by_hash import draw_shots
from regard.errors import ConfigError, DataError
from regard.tasks import find_task

LABELS = ("a", "b", "c")
ROWS = [(f"text number {number}", LABELS[number % 3]) for number in range(301)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def prepared(task: str = "text-classification", rows=ROWS, **data) -> Prepared:
    kind = find_task(task)
    settings = kind.Settings.draft({"name": task, "tokenizer": "characters"})
    return kind(settings).prepare(DataConfig.read({"train": [IN_MEMORY], **data}, section="data"), rows)


def texts_of(data: Prepared) -> list[str]:
    """The training texts."""
    rows = [data.train.sequences(0, [row])[0].tolist() for row in range(len(data.train))]
    return [text.strip() for text in data.codecs["text"].decode(rows)]


def label_of(row):
    return row[-1:]


def test_the_number_of_rows_of_each_label_is_drawn_whatever_their_order():
    drawn = draw_shots(ROWS, 7, 0, label_of)
    assert Counter(row[-1] for row in drawn) == dict.fromkeys(LABELS, 7)
    assert draw_shots(list(reversed(ROWS)), 7, 0, label_of) == drawn
    assert set(draw_shots(ROWS, 3, 0, label_of)) < set(drawn)
    assert set(draw_shots(ROWS, 7, 1, label_of)) != set(drawn)


def test_every_row_is_drawn_with_the_same_probability():
    """Of 100 rows of a label each is among the 7 in 7 % of the draws."""
    counts = Counter(row for seed in range(400) for row in draw_shots(ROWS[:300], 7, seed, label_of))
    assert len(counts) == 300
    assert 8 < min(counts.values()) <= max(counts.values()) < 58  # 28 on average, deviation 5.1, six of them


def test_a_repeated_row_is_drawn_once():
    assert sorted(draw_shots([*ROWS, *ROWS], 7, 0, label_of)) == sorted(draw_shots(ROWS, 7, 0, label_of))


def test_a_row_of_several_labels_counts_for_each():
    rows = [("x", "a b"), ("y", "b"), ("z", "a")]
    assert len(draw_shots(rows, 2, 0, lambda row: row[-1].split())) == 3


def test_drawn_rows_are_training_rows_and_the_seed_does_not_change_held_out_ones():
    one, other = (prepared(shots=5, shot_seed=seed) for seed in (0, 1))
    assert len(one.train) == len(other.train) == 15
    assert one.held_out == other.held_out
    held_out = {row for rows in one.held_out.values() for row in rows}
    assert len(one.held_out["test"]) == pytest.approx(120, abs=1)
    left = [row for row in ROWS if row not in held_out]
    assert set(texts_of(one)) == {row[0] for row in draw_shots(left, 5, 0, label_of)}


def test_codecs_are_fitted_on_drawn_rows_only():
    rows = [(f"{chr(0x4E00 + number)} {text}", label) for number, (text, label) in enumerate(ROWS)]
    data = prepared(rows=rows, shots=4)
    assert data.codecs["label"].counts == dict.fromkeys(LABELS, 4)
    tokenizer = data.codecs["text"].tokenizer
    known = [row for row in rows if not tokenizer.count_unknown(tokenizer.encode([row[0][0]]))]
    assert sorted(row[0] for row in known) == sorted(texts_of(data))
    pairs = [(text, str(float(number))) for number, (text, _) in enumerate(ROWS)]
    numbers = prepared("regression", pairs, shots=11)
    drawn = [float(dict(pairs)[text]) for text in texts_of(numbers)]
    assert numbers.codecs["label"].mean == pytest.approx(sum(drawn) / 11)


def test_labels_with_fewer_rows_are_reported():
    rows = [*ROWS, *((f"rare {number}", "d") for number in range(8))]
    data = prepared(rows=rows, shots=20, splits=[0.8, 0.1, 0.1])
    (note,) = [note for note in data.notes if "shot seed 0" in note]
    assert "20 rows" in note
    assert " d (" in note


@pytest.mark.parametrize(
    ("task", "settings", "error", "message"),
    [
        ("text-classification", {"shots": 400}, DataError, r"data\.shots .* 400"),
        ("language-modeling", {"shots": 4}, ConfigError, r"data\.shots .* 4"),
        ("text-classification", {"shot_seed": 3}, ConfigError, r"data\.shot_seed .* 3"),
        ("text-classification", {"shots": 0}, ConfigError, r"data\.shots.* 0"),
    ],
)
def test_shots_that_cannot_be_drawn_are_errors(task: str, settings, error, message: str):
    rows = [(text,) for text, _ in ROWS] if task == "language-modeling" else ROWS
    with pytest.raises(error, match=message):
        prepared(task, rows, **settings)
