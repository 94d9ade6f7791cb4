"""From a source to token ids: prepared once, whole, and with what was found out."""

from pathlib import Path

import pytest

from regard.data.config import DataConfig
from regard.data.preparation import Prepared, cache_folder, prepare
from regard.data.sources import open_source
from regard.errors import DataError, DeviceError

ROLES = ("source", "target")
ROWS = [(f"in {i}", f"out {i}") for i in range(40)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepared(rows=ROWS, **settings) -> Prepared:
    config = DataConfig.read({"tokenizer": "bytes", **settings})
    return prepare(open_source(config, ROLES, rows), config, ROLES)


def write(path: Path, rows) -> str:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    return str(path)


def test_every_row_is_in_one_set():
    data = prepared()
    trained = data.tokenizer.decode(data.train.sequences(0, range(len(data.train))))
    held_out = [row[0] for role in ("valid", "test") for row in data.held_out[role]]
    assert sorted([*trained, *held_out]) == sorted(source for source, _ in ROWS)
    assert len(data.valid) == len(data.held_out["valid"]) == 2


def test_the_cache_is_keyed_by_content_and_by_what_matters(cache: Path):
    folders = []
    for rows, settings in [
        (ROWS, {}),
        (ROWS, {}),
        (ROWS[1:], {}),
        (ROWS, {"split_seed": 1}),
        (ROWS, {"max_length": 9}),
    ]:
        prepared(rows, **settings)
        folders.append(len(list(cache.iterdir())))
    assert folders == [1, 1, 2, 3, 4]


def test_leaks_are_counted_by_set(tmp_path: Path):
    valid = write(tmp_path / "valid.tsv", [*ROWS[:3], ("new", "new"), (ROWS[5][0], "another answer")])
    test = write(tmp_path / "test.tsv", [("a", "b"), ROWS[7]])
    data = prepared(valid=[valid], test=[test])
    assert "3 of the 5 valid rows are training rows too: scores on them flatter the model" in data.notes
    assert "1 of the 2 test rows are training rows too: scores on them flatter the model" in data.notes
    assert len(data.train) == 40


def test_the_same_file_as_validation_or_as_test_rows_is_other_data(tmp_path: Path):
    extra = write(tmp_path / "extra.tsv", [("a", "b"), ("c", "d")])
    as_valid, as_test = prepared(valid=[extra]), prepared(test=[extra])
    assert as_valid.content_hash != as_test.content_hash
    assert as_valid.held_out == {"valid": [("a", "b"), ("c", "d")], "test": []}
    assert as_test.held_out["test"] == [("a", "b"), ("c", "d")]


def test_long_training_rows_are_left_out_and_long_held_out_rows_are_not(tmp_path: Path):
    valid = write(tmp_path / "valid.tsv", [("v" * 900, "w")])
    data = prepared([*ROWS, ("x" * 600, "y")], valid=[valid])
    assert (len(data.train), data.train.num_left_out, len(data.valid)) == (40, 1, 1)
    assert "left out of training: 1 rows with more than 512 tokens on a side" in data.notes


def test_nothing_is_left_of_what_failed(cache: Path):
    for settings, message in [
        ({"max_length": 1}, "longer than max_length=1"),
        ({"splits": [1.0, 0.0, 0.0]}, "no rows were held back for validation"),
    ]:
        with pytest.raises(DataError, match=message):
            prepared(**settings)
    assert not cache.exists() or not list(cache.iterdir())


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match=r"cannot write token ids .* REGARD_CACHE"):
        prepared()


def test_another_run_may_be_first(cache: Path, monkeypatch):
    """Two runs prepare the same data at once: the one that comes second finds the first one's, and uses it."""
    import regard.data.preparation as preparation

    real = preparation._build

    def build(folder: Path, *arguments) -> None:
        real(folder, *arguments)
        monkeypatch.setattr(preparation, "_build", real)
        prepared()

    monkeypatch.setattr(preparation, "_build", build)
    assert len(prepared().train) == 36
    assert len(list(cache.iterdir())) == 1


def test_the_cache_lies_where_the_user_wants_it(tmp_path: Path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "regard"
