"""Few rows of each label: drawn by content, nested, never held-out ones, and all that anything learns from."""

from collections import Counter
from pathlib import Path

import pytest

from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.data.splits import draw_few
from regard.errors import ConfigError, DataError
from regard.tasks import find_task

LABELS = ("a", "b", "c")
ROWS = [(f"text number {number}", LABELS[number % 3]) for number in range(301)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def prepared(task: str = "classification", rows=ROWS, **settings) -> Prepared:
    config = DataConfig.read({"train": ["(rows in memory)"], "tokenizer": "characters", **settings})
    return find_task(task).prepare(config, rows)


def texts_of(data: Prepared) -> list[str]:
    """What there is to train on."""
    rows = [data.train.sequences(0, [row])[0].tolist() for row in range(len(data.train))]
    return [text.strip() for text in data.tokenizer.decode(rows)]


def label_of(row):
    return row[-1:]


def test_so_many_of_each_label_are_drawn_whatever_their_order():
    drawn = draw_few(ROWS, 7, 0, label_of)
    assert Counter(row[-1] for row in drawn) == dict.fromkeys(LABELS, 7)
    assert draw_few(list(reversed(ROWS)), 7, 0, label_of) == drawn
    assert set(draw_few(ROWS, 3, 0, label_of)) < set(drawn)
    assert set(draw_few(ROWS, 7, 1, label_of)) != set(drawn)


def test_every_row_is_drawn_as_often_as_any_other():
    """Over many draws each of 100 rows of a label is among 7 about 7 times in 100."""
    counts = Counter(row for seed in range(400) for row in draw_few(ROWS[:300], 7, seed, label_of))
    assert len(counts) == 300
    assert 8 < min(counts.values()) <= max(counts.values()) < 58  # 28 on average, deviation 5.1, six of them


def test_a_row_that_stands_twice_is_drawn_once():
    assert sorted(draw_few([*ROWS, *ROWS], 7, 0, label_of)) == sorted(draw_few(ROWS, 7, 0, label_of))


def test_a_row_of_several_labels_counts_for_each():
    rows = [("x", "a b"), ("y", "b"), ("z", "a")]
    assert len(draw_few(rows, 2, 0, lambda row: row[-1].split())) == 3


def test_the_drawn_rows_are_training_rows_and_others_are_held_out_alike():
    one, other = (prepared(few=5, draw=draw) for draw in (0, 1))
    assert len(one.train) == len(other.train) == 15
    assert one.held_out == other.held_out
    held_out = {row for rows in one.held_out.values() for row in rows}
    assert len(one.held_out["test"]) == pytest.approx(120, abs=1)
    left = [row for row in ROWS if row not in held_out]
    assert set(texts_of(one)) == {row[0] for row in draw_few(left, 5, 0, label_of)}


def test_nothing_is_learned_from_rows_that_were_not_drawn():
    rows = [(f"{chr(0x4E00 + number)} {text}", label) for number, (text, label) in enumerate(ROWS)]
    data = prepared(rows=rows, few=4)
    assert data.learned.labels == dict.fromkeys(LABELS, 4)
    known = [row for row in rows if not data.tokenizer.count_unknown(data.tokenizer.encode([row[0][0]]))]
    assert sorted(row[0] for row in known) == sorted(texts_of(data))
    pairs = [(text, str(float(number))) for number, (text, _) in enumerate(ROWS)]
    numbers = prepared("regression", pairs, few=11)
    drawn = [float(dict(pairs)[text]) for text in texts_of(numbers)]
    assert numbers.learned.center == pytest.approx(sum(drawn) / 11)


def test_it_is_said_which_labels_have_fewer():
    rows = [*ROWS, *((f"rare {number}", "d") for number in range(8))]
    data = prepared(rows=rows, few=20, splits=[0.8, 0.1, 0.1])
    (note,) = [note for note in data.notes if note.startswith("draw 0")]
    assert note.startswith("draw 0: 20 rows of each label, but of d (")


@pytest.mark.parametrize(
    ("task", "settings", "error", "message"),
    [
        ("classification", {"few": 400}, DataError, "got 400 of the .* training rows of the commonest label"),
        ("language", {"few": 4}, ConfigError, "data.few is for rows, and running text has none"),
        ("classification", {"draw": 3}, ConfigError, "data.draw says which rows data.few takes"),
        ("classification", {"few": 0}, ConfigError, "few"),
    ],
)
def test_what_cannot_be_drawn_is_told(task: str, settings, error, message: str):
    rows = [(text,) for text, _ in ROWS] if task == "language" else ROWS
    with pytest.raises(error, match=message):
        prepared(task, rows, **settings)
