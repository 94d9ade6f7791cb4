"""The ways to hand data to `regard train`: aligned files, held-out files, a folder, columns."""

import gzip
import json
import tomllib
from pathlib import Path

import pytest

from regard.selection.sealed import unseal


def pairs(start: int, count: int) -> list[tuple[str, str]]:
    return [(f"ein {number} zwei", f"one {number} two") for number in range(start, start + count)]


def write(folder: Path, name: str, rows: list[tuple[str, str]]) -> tuple[Path, Path]:
    """Aligned files; a name that ends in .gz is compressed."""
    paths = []
    for side, language in enumerate(("de", "en")):
        path = folder / name.replace("??", language)
        text = "".join(f"{row[side]}\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        paths.append(path)
    return paths[0], paths[1]


def held_out(run: Path, role: str) -> list[list[str]]:
    if role == "test":
        return [list(row) for row in unseal((run / "sealed" / "test.rows").read_bytes())]
    return [json.loads(line) for line in (run / "held_out" / f"{role}.jsonl").read_text().splitlines()]


@pytest.fixture
def train(regard, tiny, tmp_path: Path):
    """Train one step on these arguments; returns the run's folder and what was said."""

    def start(*arguments: object) -> tuple[Path, str]:
        run = tmp_path / "run"
        return run, regard("train", *arguments, "--out", run, "--steps", 1, *tiny).succeeds().err

    return start


def test_aligned_compressed_files_with_held_out_files(train, tmp_path: Path):
    one, two = write(tmp_path, "train.??.gz", pairs(0, 60))
    valid, test = write(tmp_path, "val.??", pairs(100, 7)), write(tmp_path, "test.??.gz", pairs(200, 5))
    options = ["--valid", valid[0], "--valid", valid[1], "--test", test[0], "--test", test[1]]
    run, said = train(one, two, *options)
    assert "60 for training, 7 for validation, 5 for the test" in said
    assert held_out(run, "valid")[0] == ["ein 100 zwei", "one 100 two"]
    assert held_out(run, "test")[0] == ["ein 200 zwei", "one 200 two"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with aligned files for training and validation."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder, "train.??", pairs(0, 60))
    write(folder, "val.??", pairs(100, 7))
    return folder


def test_a_folder_with_its_splits(train, corpus: Path):
    run, said = train(corpus)
    assert "60 for training, 7 for validation, 0 for the test" in said
    assert held_out(run, "valid")[0] == ["ein 100 zwei", "one 100 two"]


def test_columns_turn_a_folder_round(train, corpus: Path):
    run, _ = train(corpus, "--columns", "en,de")
    assert held_out(run, "valid")[0] == ["one 100 two", "ein 100 zwei"]


@pytest.mark.parametrize("columns", ["english, german", "3,1"])
def test_columns_by_name_and_by_position(train, tmp_path: Path, columns: str):
    table = tmp_path / "table.csv"
    rows = "".join(f"ein {number},{number},one {number}\n" for number in range(60))
    table.write_text("german,number,english\n" + rows)
    run, _ = train(table, "--columns", columns)
    assert all(row[0].startswith("one ") and row[1].startswith("ein ") for row in held_out(run, "valid"))


def test_a_held_out_file_is_what_its_option_says(train, regard, tiny, tmp_path: Path):
    """The same files in other roles are other data, also for the cache of prepared data."""
    one, two = write(tmp_path, "train.??", pairs(0, 60))
    more = write(tmp_path, "more.??", pairs(100, 7))
    _, said = train(one, two, "--valid", more[0], "--valid", more[1])
    assert "60 for training, 7 for validation, 0 for the test" in said
    options = ["--test", more[0], "--test", more[1], "--out", tmp_path / "other", "--steps", 1, *tiny]
    said = regard("train", one, two, *options).succeeds().err
    assert "54 for training, 6 for validation, 7 for the test" in said


def test_rows_in_two_sets_are_counted(train, tmp_path: Path):
    one, two = write(tmp_path, "train.??", pairs(0, 60))
    valid = write(tmp_path, "val.??", pairs(55, 10))
    run, said = train(one, two, "--valid", valid[0], "--valid", valid[1])
    assert "warning: 5 of the 10 validation rows are also training rows" in said
    notes = tomllib.loads((run / "run.toml").read_text())["provenance"]["notes"]
    assert any(note.startswith("5 of the 10 validation rows") for note in notes)


def test_a_built_in_set_goes_by_its_name(train):
    _, said = train("dates", "--set", "data.num_rows=60")
    assert "48 for training, 6 for validation, 6 for the test" in said


@pytest.mark.slow
def test_prepared_data_is_found_again_and_prepared_anew_when_damaged(train, regard, tiny, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    one, two = write(tmp_path, "train.??", pairs(0, 60))
    again = [
        "train",
        one,
        two,
        "--out",
        tmp_path / "run",
        "--overwrite",
        "--steps",
        1,
        *tiny,
        "--quiet",
        "--no-baseline",
    ]
    train(one, two)
    (folder,) = (tmp_path / "cache").iterdir()
    before = (folder / "prepared.json").stat().st_mtime_ns
    assert regard(*again).succeeds().err == ""
    assert (folder / "prepared.json").stat().st_mtime_ns == before
    for damaged in (
        "prepared.json",
        "train/source.ids",
        "train/source.offsets",
        "train/store.json",
        "codecs/text.json",
    ):
        data = (folder / damaged).read_bytes()
        (folder / damaged).write_bytes(data[: len(data) // 2 // 8 * 8])
        assert "is damaged: it is prepared again" in regard(*again).succeeds().err, damaged
        assert (folder / damaged).read_bytes() == data
    (order,) = (folder / "train").glob("order-*.bin")
    data = order.read_bytes()
    order.write_bytes(data[:-8])
    regard(*again).succeeds()
    assert order.read_bytes() == data
