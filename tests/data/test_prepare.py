"""Rows to token ids: split, encoded and cached, and codecs fitted on training rows only."""

import json
from pathlib import Path

import pytest

from regard.data import prepare
from regard.data.prepare import Prepared, cache_folder
from regard.data.settings import DataConfig
from regard.data.sources import IN_MEMORY
from regard.errors import DataError, DeviceError
from regard.tasks import find_task

ROWS = [(f"in {i}", f"out {i}") for i in range(40)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepared(rows=ROWS, *, task="seq2seq", settings=None, **data) -> Prepared:
    kind = find_task(task)
    own = kind.Settings.draft({"name": task, "tokenizer": "bytes", **(settings or {})})
    return kind(own).prepare(DataConfig(train=[IN_MEMORY], **data), rows)


def decoded(data: Prepared, column: int = 0) -> list[str]:
    """A column of the training rows as text."""
    return data.codecs["text"].decode(data.train.sequences(column, range(len(data.train))))


def write(path: Path, rows) -> str:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    return str(path)


def test_every_row_is_in_one_set():
    data = prepared()
    held_out = [row[0] for role in ("valid", "test") for row in data.held_out[role]]
    assert sorted([*decoded(data), *held_out]) == sorted(source for source, _ in ROWS)
    assert len(data.valid) == len(data.held_out["valid"]) == 4


def test_training_rows_are_kept_as_text():
    data = prepared()
    rows = data.train_rows()
    assert [source for source, _ in rows] == decoded(data)
    assert set(rows) | {row for some in data.held_out.values() for row in some} == set(ROWS)
    assert prepared().train_rows() == rows  # from the cache


@pytest.mark.parametrize("limit", [("_KEPT_ROWS", 10), ("_KEPT_CHARACTERS", 100)])
def test_of_many_training_rows_a_sample_is_kept(limit: tuple[str, int], monkeypatch):
    monkeypatch.setattr(prepare, *limit)
    data = prepared()
    kept = data.train_rows()
    assert 1 <= len(kept) < len(data.train)
    assert {source for source, _ in kept} < set(decoded(data))


def test_few_shot_rows_are_the_training_rows_that_are_kept():
    assert len(prepared(shots=7).train_rows()) == 7


def test_running_text_is_kept_as_tokens_alone():
    data = prepared([(" ".join(source for source, _ in ROWS),)] * 9, task="language-modeling")
    assert data.train_rows() == []


def test_the_cache_depends_on_the_content_and_on_settings_that_change_what_is_stored(cache: Path):
    folders = []
    for rows, settings in [
        (ROWS, {}),
        (ROWS, {}),
        (ROWS[1:], {}),
        (ROWS, {"split_seed": 1}),
        (ROWS, {"settings": {"max_length": 9}}),
        (ROWS, {"settings": {"tokenizer": "characters"}}),
        (ROWS, {"settings": {"target_tokenizer": "characters"}}),
        (ROWS, {"task": "sentence-embedding"}),
        (ROWS, {"task": "sentence-embedding", "settings": {"temperature": 0.5}}),
    ]:
        prepared(rows, **settings)
        folders.append(len(list(cache.iterdir())))
    assert folders == [1, 1, 2, 3, 4, 5, 6, 7, 7]


def test_rows_of_two_sets_are_reported(tmp_path: Path):
    valid = write(tmp_path / "valid.tsv", [*ROWS[:3], ("new", "new"), (ROWS[5][0], "another answer")])
    test = write(tmp_path / "test.tsv", [("a", "b"), ROWS[7]])
    data = prepared(valid=[valid], test=[test])
    for start in ("3 of the 5 valid", "1 of the 2 test"):
        assert any(start in note for note in data.notes), data.notes
    assert len(data.train) == 40


def test_the_hash_depends_on_the_role_of_a_file(tmp_path: Path):
    extra = write(tmp_path / "extra.tsv", [("a", "b"), ("c", "d")])
    as_valid, as_test = prepared(valid=[extra]), prepared(test=[extra])
    assert as_valid.content_hash != as_test.content_hash
    assert as_valid.held_out == {"valid": [("a", "b"), ("c", "d")], "test": []}
    assert as_test.held_out["test"] == [("a", "b"), ("c", "d")]


def test_long_training_rows_are_left_out_and_long_held_out_rows_are_not(tmp_path: Path):
    valid = write(tmp_path / "valid.tsv", [("v" * 900, "w")])
    data = prepared([*ROWS, ("x" * 600, "y")], valid=[valid])
    assert (len(data.train), data.train.num_left_out, len(data.valid)) == (40, 1, 1)
    assert any("1 rows" in note and "512 tokens" in note for note in data.notes)


def test_a_failure_leaves_nothing_in_the_cache(cache: Path):
    for settings, message in [
        ({"settings": {"max_length": 1}}, "1 token"),
        ({"splits": [1.0, 0.0, 0.0]}, "no validation rows"),
    ]:
        with pytest.raises(DataError, match=message):
            prepared(**settings)
    assert not cache.exists() or not list(cache.iterdir())


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match="REGARD_CACHE"):
        prepared()


def test_two_processes_may_prepare_the_same_data(cache: Path, monkeypatch):
    """The second one uses the folder of the first."""
    import regard.data.prepare as preparation

    real = preparation._build_rows

    def build(folder: Path, *arguments) -> None:
        real(folder, *arguments)
        monkeypatch.setattr(preparation, "_build_rows", real)
        prepared()

    monkeypatch.setattr(preparation, "_build_rows", build)
    assert len(prepared().train) == 32
    assert len(list(cache.iterdir())) == 1


def test_the_folder_of_the_cache(tmp_path: Path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "regard"


LABELED = [(f"text {number} {'ab'[number % 2] * (number % 5 + 1)}", "ab"[number % 2]) for number in range(60)]
FIT_CASES = {
    "text-classification": (("text", "label"), LABELED, [("ü", "new"), ("é", "other")]),
    "seq2seq": (("source", "target"), LABELED, [("ü", "new"), ("é", "other")]),
    "sentence-embedding": (("source", "target"), LABELED, [("ü", "new"), ("é", "other")]),
    "regression": (
        ("text", "label"),
        [(text, str(number)) for number, (text, _) in enumerate(LABELED)],
        [("ü", "1e9"), ("é", "-1e9")],
    ),
    "token-classification": (("tokens", "tags"), [("a b", "X Y"), ("c", "Z")] * 20, [("ü", "Q"), ("é", "R")]),
    "aspect-sentiment": (
        ("text", "aspect", "label"),
        [(text, "x", label) for text, label in LABELED],
        [("ü", "v", "+"), ("é", "t", "-")],
    ),
}


@pytest.mark.parametrize("task", FIT_CASES)
def test_codecs_are_fitted_on_training_rows_only(tmp_path: Path, task: str):
    """They are the same whatever the held-out rows are."""
    columns, rows, unseen = FIT_CASES[task]
    found = []
    for place, held_out in enumerate((unseen, rows[:2])):
        paths = {}
        for role, row in zip(("valid", "test"), held_out, strict=True):
            cells = [cell.split() for cell in row] if task == "token-classification" else row
            path = tmp_path / f"{role}{place}.jsonl"
            path.write_text(json.dumps(dict(zip(columns, cells, strict=True))) + "\n")
            paths[role] = [str(path)]
        data = prepared(rows, task=task, settings={"tokenizer": "characters"}, **paths)
        assert len(data.train) == len(rows)
        found.append({name: codec.to_json() for name, codec in data.codecs.items()})
    assert found[0] == found[1]
    assert set(found[0]) > {"text"} or task in ("seq2seq", "sentence-embedding")
